"""Targets: the model whose distribution is kept. Loading, tokenizer, the dense decoder."""
