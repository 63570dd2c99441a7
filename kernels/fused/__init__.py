"""Products fused with their neighbours in a layer."""
