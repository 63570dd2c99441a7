"""`explain`: a metric's formula, unit and other definitions, from `explain_terms`. No torch, no tables."""

from __future__ import annotations

import difflib
import textwrap

from dsbench.errors import UsageError
from dsbench.results.explain_terms import TERMS

WIDTH = 100


def explain(name: str) -> str:
    """The entry of a metric, by its name or another name of it. Raises UsageError with near matches."""
    known = {_plain(other): key for key, term in TERMS.items() for other in (key, *term.also)}
    wanted = _plain(name)
    if wanted not in known:
        near = dict.fromkeys(known[match] for match in difflib.get_close_matches(wanted, known, n=5, cutoff=0.5))
        hint = f"near it: {', '.join(near)}" if near else "`dsbench explain` lists all"
        raise UsageError(f"no metric is named {name}", hint=hint)
    key = known[wanted]
    term = TERMS[key]
    lines = [f"{key} [{term.unit}]", *_block("", term.formula)]
    lines += _block("also: ", ", ".join(term.also)) if term.also else []
    return "\n".join(lines + (_block("others: ", term.others) if term.others else []))


def listing() -> str:
    """One line a metric."""
    return "\n".join(f"{key:<24} {term.unit:<30} {textwrap.shorten(term.formula, 64)}" for key, term in TERMS.items())


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ").strip()


def _block(lead: str, text: str) -> list[str]:
    return textwrap.wrap(lead + text, WIDTH, initial_indent="  ", subsequent_indent="  ")
