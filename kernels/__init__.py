"""One op per file: a kernel beside its torch reference; check/registry.py pairs them. Imports nothing."""
