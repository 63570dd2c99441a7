"""Throughput against per-user speed: its picture, its tables, its command and section."""
