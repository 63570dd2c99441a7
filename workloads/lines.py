"""Text files with one row a line: prompts and recorded traffic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dsbench.errors import UsageError


def read_text(path: Path, kinds: str) -> str:
    """The file's UTF-8 text. UsageError if it is missing or unreadable; kinds: what it should be, e.g. ".jsonl"."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", hint=f"give the path of an existing {kinds} file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path}: cannot be read ({problem})", hint=f"give a UTF-8 {kinds} file") from None


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and the lines that are not blank.

    Not splitlines: texts contain U+2028 and its like, which JSON allows inside a string.
    """
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def file_text(name: str) -> str:
    """A file's name as text: bytes of it that are no UTF-8 read \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
