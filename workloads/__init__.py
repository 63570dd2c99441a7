"""Prompt sets, their lengths and their order. Imports no torch."""
