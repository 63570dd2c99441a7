"""Drafters behind one seam: `propose -> Draft`, `observe(committed hidden states)`."""
