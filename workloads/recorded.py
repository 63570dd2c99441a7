"""Reads recorded traffic: arrival times and, where known, lengths of prompts and answers.

CSV with a head line, or JSON lines. Columns: `seconds` (or Mooncake's `timestamp`, in ms), and `prompt_tokens` (or
`input_length`) and `output_tokens` (or `output_length`). Other columns are ignored.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsbench.errors import UsageError
from dsbench.workloads.lines import file_text, numbered_lines, read_text

COLUMNS = "a column `seconds`, and `prompt_tokens` and `output_tokens` where they are known"
FILES = (".csv", ".jsonl")
MOST = 1_000_000  # tokens of a prompt or an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Rows of a file in its order: `seconds` after the first one, non-decreasing; None for a missing column.

    `digest`: hash of the three columns, independent of the file.
    """

    name: str
    seconds: tuple[float, ...] | None
    prompt_tokens: tuple[int, ...] | None
    output_tokens: tuple[int, ...] | None

    @property
    def digest(self) -> str:
        text = repr((self.seconds, self.prompt_tokens, self.output_tokens))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_recorded(path: Path) -> Recorded:
    """UsageError: a file that is missing, empty or of another kind, a row that lacks a value or runs back in time."""
    rows = list(_rows(path))
    if not rows:
        raise UsageError(f"{path}: no row in the file", hint=f"each row is a request, with {COLUMNS}")
    seconds = _column(path, rows, {"seconds": 1.0, "timestamp": 1e-3}, integer=False)
    for (line, _), before, after in zip(rows[1:], (seconds or ())[:-1], (seconds or ())[1:], strict=False):
        if after < before:
            raise UsageError(
                f"{path}:{line}: it arrives at {after:g} s, before the row above ({before:g} s)",
                hint="sort the file by time",
            )
    prompt = _column(path, rows, {"prompt_tokens": 1.0, "input_length": 1.0}, integer=True)
    output = _column(path, rows, {"output_tokens": 1.0, "output_length": 1.0}, integer=True)
    if seconds is None and prompt is None and output is None:
        keys = ", ".join(map(str, list(rows[0][1])[:6])) or "none"
        raise UsageError(f"{path}: no column of it is known (it has: {keys})", hint=COLUMNS)
    return Recorded(
        name=file_text(path.name),
        seconds=None if seconds is None else tuple(s - seconds[0] for s in seconds),
        prompt_tokens=None if prompt is None else tuple(map(int, prompt)),
        output_tokens=None if output is None else tuple(map(int, output)),
    )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line numbers and rows; blank lines are passed over."""
    kind = path.suffix.lower()
    if kind not in FILES:
        raise UsageError(f"{path}: recorded traffic is a .csv or a .jsonl file", hint=COLUMNS)
    text = read_text(path, ".csv or .jsonl")
    if kind == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
        try:
            for row in reader:
                yield reader.line_num, {str(k).strip().lower(): v for k, v in row.items()}
        except csv.Error as problem:
            raise UsageError(f"{path}:{reader.line_num}: not CSV ({problem})", hint=COLUMNS) from None
        return
    for number, line in numbered_lines(text):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"{path}:{number}: not JSON", hint="one JSON object a line") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: a row must be an object", hint=COLUMNS)
        yield number, row


def _column(
    path: Path, rows: list[tuple[int, Mapping[str, Any]]], names: Mapping[str, float], *, integer: bool
) -> list[float] | None:
    """The column of the first of `names` that the first row has, times its unit; None where it has none of them."""
    name = next((n for n in names if n in rows[0][1]), None)
    if name is None:
        return None
    values = []
    for line, row in rows:
        value = row.get(name)
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if integer and not (number >= 1 and number == int(number) and number <= MOST):
            raise UsageError(f"{path}:{line}: {name} must be an integer in 1..{MOST}, got {value!r}", hint=COLUMNS)
        if not (math.isfinite(number) and number >= 0):
            raise UsageError(f"{path}:{line}: {name} must be a number >= 0, got {value!r}", hint=COLUMNS)
        values.append(number * names[name])
    return values
