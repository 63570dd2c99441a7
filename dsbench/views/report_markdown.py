"""A report as Markdown for a pull request: the headline, the tables that are meant for it, and the conditions."""

from __future__ import annotations

import re

from dsbench.views.report_parts import Report
from dsbench.views.tables import Table, is_numeric


def as_markdown(report: Report) -> str:
    """Pictures stay out: a comment cannot carry them."""
    lines = [f"## {_text(report.title)}", ""]
    lines += [f"**{_text(report.loud)}**", ""] if report.loud else []
    lines += [_text(report.where), ""] if report.where else []
    lines += [f"- {_text(line)}" for line in report.headline]
    for section in report.sections:
        for table in (t for t in section.tables if t.short):
            lines += ["", f"### {_text(section.title)}", "", _text(table.caption), "", *table_lines(table)]
    flags = [t for s in report.sections if s.id == "flags" for t in s.tables]
    for table in flags:
        noun = "cell" if len(table.rows) == 1 else "cells"
        lines += ["", f"<details><summary>{len(table.rows)} flagged {noun}</summary>", "", *table_lines(table)]
        lines += ["", "</details>"]
    lines += ["", "<details><summary>Conditions</summary>", "", "| | |", "|---|---|"]
    lines += [f"| {_text(name)} | {_text(value)} |" for name, value in report.conditions]
    return "\n".join([*lines, "", "</details>", ""])


def table_lines(table: Table) -> list[str]:
    rule = "|".join("---:" if is_numeric(table, i) else "---" for i in range(len(table.heads)))
    rows = ["| " + " | ".join(_text(table.text(value, i)) for i, value in enumerate(row)) + " |" for row in table.rows]
    return ["| " + " | ".join(map(_text, table.heads)) + " |", f"|{rule}|", *rows]


def _text(text: str) -> str:
    """What a run was named by others stays text: no markup, no link, no line breaks, no new columns."""
    return re.sub(r"([\\`*_<>|#]|(?<=\])\()", r"\\\1", " ".join(text.split()))
