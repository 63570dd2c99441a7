"""Versioned JSON files: written atomically, and refused with one readable line.

Handles the envelope (`kind`, `schema`) that cost tables and calibrations share, not its content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dsbench.errors import UsageError

T = TypeVar("T")


def write_json(path: Path, *, kind: str, schema: int, body: Mapping[str, Any], indent: int | None = 1) -> None:
    """Write `body` under its envelope; atomically.

    `indent` None writes one line, for large files. Makes the folder where it is missing. Raises ValueError for a NaN or
    an infinity: JSON has none.
    """
    write_whole(path, json.dumps({"kind": kind, "schema": schema, **body}, indent=indent, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes the text to the file atomically. Makes the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, *, kind: str, schema: int, build: Callable[[dict[str, Any]], T], hint: str) -> T:
    """Read a file of `write_json` and hand its body to `build`.

    Raises UsageError, with `hint`, when the file is missing, is not JSON, is of another kind or schema, or when `build`
    finds its content wrong (KeyError, TypeError or ValueError).
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the {kind} {path}: {error.strerror}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a {kind}: not JSON ({error})", hint=hint) from error
    if not isinstance(data, dict) or data.get("kind") != kind:
        found = data.get("kind") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"{path} is not a {kind}: its kind is {found!r}", hint=hint)
    if data.get("schema") != schema:
        raise UsageError(f"{path} has schema {data.get('schema')!r}; this dsbench reads schema {schema}", hint=hint)
    body = {key: value for key, value in data.items() if key not in ("kind", "schema")}
    try:
        return build(body)
    except KeyError as error:
        raise UsageError(f"{path} is a damaged {kind}: field {error} is missing", hint=hint) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is a damaged {kind}: {error}", hint=hint) from error


def strings(value: object) -> dict[str, str]:
    """The value as a str -> str mapping. Raises TypeError for anything else, so that a contract compares exactly."""
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise TypeError(f"expected a mapping of strings, got {value!r}")
    return dict(value)


def only(body: Mapping[str, Any], allowed: set[str]) -> None:
    """Raise ValueError when `body` has an unknown field."""
    unknown = sorted(set(body) - allowed)
    if unknown:
        raise ValueError(f"unknown fields {', '.join(unknown)}")
