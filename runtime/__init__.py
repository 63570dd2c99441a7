"""The engine. Read `loop/engine.py` first: one decode step on one screen. No imports here: `request.py` is torch-free.

Shape legend of the whole package: `R` requests, `G` block size (gamma), `M` packed rows, `V` vocabulary, `D` hidden,
`S` sum of context tokens.
"""
