"""One op per file: a kernel beside its plain-torch reference; `registry` pairs them. No imports here, on purpose."""
