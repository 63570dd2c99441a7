"""Shared by tests: what metrics tests and others run on."""

from __future__ import annotations


def a_step(number, requests=2, rows=8, seconds=0.1, predicted=0.11, padding=2, rep=0, tier=None, **counted):
    phases = dict.fromkeys(("plan", "pack", "accept", "commit"), 0.05) | {"draft": 0.2, "verify": 0.5}
    return {
        "step": number,
        "requests": requests,
        "rows": rows,
        "padding": padding,
        "seconds": seconds,
        "rep": rep,
        "predicted_seconds": predicted,
        "extrapolated": False,
        "tier": tier or rows,
        "misses": 0,
        "compiles": 0,
        **counted,
        **{f"{name}_seconds": share * seconds for name, share in phases.items()},
    }
