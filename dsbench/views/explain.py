"""`explain`, and docs/metrics.md: what each number means and who defines it otherwise, from `columns`. No tables."""

from __future__ import annotations

import difflib
import textwrap

from dsbench.errors import UsageError
from dsbench.results.column import Column
from dsbench.results.columns import COLUMNS, TOPICS

WIDTH = 100
HEADER = """# Metrics

Generated from `dsbench/results/columns.py` by `python scripts/metrics_doc.py`; `dsbench explain NAME` prints an entry.
A rate or quantile has columns `_low` and `_high` in summary.csv, its 95% interval over prompts; a ratio also `_n`,
the prompts, and `_word`, the verdict.
"""


def explain(name: str) -> str:
    """The entry of a number, by any of its names or a column of summary.csv. Raises UsageError with near ones."""
    known = {_loose(other): c for c in COLUMNS for other in (*c.also, *c.csv_names)}
    known |= {_loose(c.name): c for c in COLUMNS}
    wanted = _loose(name)
    if wanted not in known:
        near = dict.fromkeys(known[match].name for match in difflib.get_close_matches(wanted, known, n=5, cutoff=0.5))
        hint = f"near it: {', '.join(near)}" if near else "`dsbench explain` lists all"
        raise UsageError(f"no metric is named {name}", hint=hint)
    column = known[wanted]
    lines = [f"{column.name} [{column.unit}]", *_block("", column.formula)]
    lines += _block("also: ", ", ".join(column.also)) if column.also else []
    lines += _block("others: ", column.others) if column.others else []
    return "\n".join(lines + _block("in: ", places(column)))


def listing() -> str:
    """One line a number."""
    return "\n".join(f"{c.name:<24} {c.unit:<30} {textwrap.shorten(c.formula, 64)}" for c in COLUMNS)


def places(column: Column) -> str:
    """Where it is recorded and shown, in words."""
    where = {
        "summary": f"cell.json summary.{'.'.join(column.keys)}",
        "parameter": f"cell.json parameters.{'.'.join(column.keys)}",
        "run": f"run.json {'.'.join(column.keys)}",
    }
    tables = {"show": "show", "latency": "show", "frontier": "report", "reading": "report"}
    found = [where[column.source]] if column.source in where else []
    found += ["summary.csv"] if column.csv_names else []
    return ", ".join(dict.fromkeys([*found, *(tables[place] for place in column.shown)])) or "the words of tables"


def document() -> str:
    """The text of docs/metrics.md."""
    lines = [HEADER]
    for topic, columns in TOPICS.items():
        lines.append(f"## {topic}\n")
        for c in columns:
            lines.append(f"### `{c.name}`\n")
            kind = "" if c.kind == "term" else f", {c.kind}"
            lines.append(f"*{c.unit}{kind}; in {places(c)}*\n")
            lines.append(f"{_sentence(c.formula)}\n")
            lines += [f"Others: {_sentence(c.others)}\n"] if c.others else []
            lines += [f"Also called: {', '.join(c.also)}.\n"] if c.also else []
    return "\n".join(lines)


def _sentence(text: str) -> str:
    return (text + ("" if text.endswith(".") else ".")).replace("*", "\\*").replace("<", "\\<")


def _loose(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ").strip()


def _block(lead: str, text: str) -> list[str]:
    return textwrap.wrap(lead + text, WIDTH, initial_indent="  ", subsequent_indent="  ")
