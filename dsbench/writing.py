"""Progress on stderr, and checks that results can be written before anything is computed. Imports no torch."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from dsbench.errors import UsageError


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def file_to_write(path: Path | None, *, flag: str = "--out") -> None:
    """Raises UsageError if `path`, given by `flag`, could not be written as a file, before anything is computed."""
    if path is not None and path.is_dir():
        raise UsageError(f"cannot write to {path}: it is a folder", hint="name a file")
    check_writable(path.parent if path is not None else None, flag=flag)


def writable_folder(folder: Path | None, *, flag: str = "--out") -> None:
    """Raises UsageError if results could not be written into `folder`, before anything is computed."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".dsbench-writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another rank of this training may probe as well
    except OSError as problem:
        raise UsageError(f"cannot write to {folder}: {problem.strerror}", hint=f"name another {flag}") from None


def check_writable(folder: Path | None, *, flag: str = "--out") -> None:
    """As `writable_folder`, but leaves no folder behind: the writer makes it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()] if folder is not None else []
    try:
        writable_folder(folder, flag=flag)
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
