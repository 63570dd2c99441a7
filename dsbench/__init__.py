"""dsbench: how far should speculative drafts be verified, measured on your machine."""

__version__ = "0.1.0"
