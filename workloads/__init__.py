"""Prompt sets, their lengths and their order. Knows requests, never tensors."""
