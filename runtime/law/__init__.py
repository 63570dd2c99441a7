"""Acceptance laws: from the target's logits to what each request emits."""
