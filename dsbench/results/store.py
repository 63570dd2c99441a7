"""The result store: runs/<name>/run.json, cells/<hash>/cell.json, rep-<n>/*.parquet, texts/<hash>.parquet. No torch.

A repeat is the unit of loss: its folder appears whole or not at all. `cell.json` is written last. One process at a time
writes a run (`locked`), and clears away what a killed one left (`mend`). Nothing here knows what a number means.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.errors import UsageError
from dsbench.results.cells import FACTS, Cell, StoredCell, cell_from, damaged, number_of, repeats_of
from dsbench.results.store_shape import cell_fault, run_fault

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Cell", "RunStore", "StoredCell", "records_frame", "write_atomically"]
SCHEMA = 2
TABLES = ("steps", "rounds", "requests")
DRAFTS = (
    "cells/*/.rep-*",
    "cells/*/.cell.json.*",
    "texts/.*.parquet.*",
    ".run.json.*",
    ".summary.csv.*",
    ".cost.*",
    ".writable-*",
)


class RunStore:
    """One run's folder. Opening creates it; raises UsageError if it cannot be written or is another thing."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        if create:
            try:
                (folder / "cells").mkdir(parents=True, exist_ok=True)
                (folder / "texts").mkdir(exist_ok=True)
                probe = folder / f".writable-{os.getpid()}"
                probe.touch()
                probe.unlink(missing_ok=True)  # who mends the run may have taken it for a leftover
            except OSError as problem:
                raise UsageError(f"cannot write to {folder}: {problem.strerror}", hint="name another --out") from None
        elif not (folder / "run.json").exists():
            raise UsageError(f"{folder} holds no run", hint="it lacks run.json; name the folder of a finished sweep")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other writers out for as long as this process lives at most. Raises UsageError where one is at work."""
        with (self.folder / ".lock").open("a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                stream.seek(0)
                who = stream.read().strip() or "unknown"
                raise UsageError(
                    f"another sweep writes to {self.folder} (process {who})", hint="let it end, or name another --out"
                ) from None
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield

    def mend(self) -> list[str]:
        """Removes half-written files, and repeats whose tables cannot be read; returns the latter, in words."""
        for pattern in DRAFTS:
            for path in self.folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        lost = []
        for path in sorted(self.folder.glob("cells/*/rep-*")):
            if not _readable(path):
                shutil.rmtree(path)
                lost.append(f"{path.parent.name}/{path.name}")
        return lost

    def forget(self) -> None:
        """Removes the folders that opening made, where no run came of it."""
        if not self.exists and self.folder in self._made:
            for lock in (self.folder / ".lock", self.folder / "texts" / ".lock"):
                lock.unlink(missing_ok=True)
            for path in (self.folder / "cells", self.folder / "texts", *self._made):
                with contextlib.suppress(OSError):
                    path.rmdir()

    @property
    def exists(self) -> bool:
        return (self.folder / "run.json").exists()

    def write_run(self, body: Mapping[str, Any]) -> None:
        write_atomically(self.folder / "run.json", json.dumps({"schema": SCHEMA, **body}, indent=2, default=str) + "\n")

    def read_run(self) -> dict[str, Any]:
        try:
            body = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        except ValueError as problem:
            raise UsageError(f"{self.folder / 'run.json'} is damaged: {problem}") from None
        if not isinstance(body, dict) or body.get("schema") != SCHEMA:
            raise UsageError(f"{self.folder / 'run.json'} is of another schema than {SCHEMA}")
        fault = run_fault(body)
        if fault:
            raise UsageError(f"{self.folder / 'run.json'} is damaged: {fault}")
        return body

    def cell_folder(self, key: str) -> Path:
        return self.folder / "cells" / key

    def repeats(self, key: str) -> frozenset[int]:
        """Numbers of the finished repeats of a cell."""
        return frozenset(map(number_of, repeats_of(self.cell_folder(key))))

    def write_repeat(
        self,
        key: str,
        tables: Mapping[str, pd.DataFrame],
        *,
        number: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a repeat of a cell, whole: `number`, or the next one."""
        folder = self.cell_folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        number = len(self.repeats(key)) if number is None else number
        draft = Path(tempfile.mkdtemp(prefix=".rep-", dir=folder))
        try:
            for name in TABLES:
                tables[name].to_parquet(draft / f"{name}.parquet", index=False)
            (draft / FACTS).write_text(json.dumps(dict(facts or {})) + "\n", encoding="utf-8")
            for path in (*draft.iterdir(), draft):
                _to_disk(path)
            draft.chmod(0o777 & ~_umask())
            os.replace(draft, folder / f"rep-{number}")
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def write_cell(
        self, key: str, cell: Cell, summary: Mapping[str, Any], flags: Sequence[str], *, code: str = ""
    ) -> None:
        """`code`: digest of the measured packages' sources."""
        body = {
            "schema": SCHEMA,
            "code": code,
            "parameters": asdict(cell),
            "status": "done",
            "summary": summary,
            "flags": list(flags),
            "repeats": sorted(self.repeats(key)),
        }
        write_atomically(self.cell_folder(key) / "cell.json", json.dumps(body, indent=2) + "\n")

    def tells(self, key: str, repeats: Iterable[int], code: str) -> bool:
        """Whether the cell's cell.json is whole, of these sources, and of exactly these repeats."""
        try:
            body = json.loads((self.cell_folder(key) / "cell.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return not cell_fault(body, Cell) and bool(
            body.get("code", "") == code and body.get("repeats") == sorted(repeats)
        )

    def cells(self) -> list[StoredCell]:
        """Finished cells of the sources that run.json names, in a stable order (workload, batch, mode)."""
        found = []
        code = self.read_run().get("code", "") if self.exists else ""
        for path in (self.folder / "cells").glob("*/cell.json"):
            try:
                body = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as problem:
                raise damaged(path.parent, problem) from None
            fault = cell_fault(body, Cell)
            if fault:
                raise damaged(path.parent, ValueError(f"cell.json: {fault}"))
            if body.get("code", "") != code:
                continue
            found.append(
                StoredCell(
                    folder=path.parent,
                    cell=cell_from(body["parameters"]),
                    status=body["status"],
                    summary=body["summary"],
                    flags=body["flags"],
                )
            )
        return sorted(found, key=lambda c: (c.cell.workload, c.cell.batch, c.cell.mode))


def records_frame(records: Iterable[Any], kind: type) -> pd.DataFrame:
    """A table of dataclass records of one kind, one column a field, also where there is no record."""
    import pandas as pd

    kept = list(records)
    return pd.DataFrame({f.name: [getattr(r, f.name) for r in kept] for f in fields(kind)})


def _umask() -> int:
    """The process's file mode mask: what is made through temporary files gets the modes it would have had."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _readable(repeat: Path) -> bool:
    """Whether all its tables are whole: a Parquet file ends with its own index.

    Raises OSError for what the system refuses now, and may give another time: that is no reason to remove a repeat.
    """
    import pyarrow.parquet

    try:
        for name in TABLES:
            if name != "rounds" or (repeat / f"{name}.parquet").exists():  # a run may be kept without its rounds
                pyarrow.parquet.read_metadata(repeat / f"{name}.parquet")
    except (FileNotFoundError, ValueError):
        return False
    except OSError as problem:
        if problem.errno is not None:  # not Arrow's own, of damaged bytes
            raise
        return False
    return True


def _to_disk(path: Path) -> None:
    """Asks the system to have the file or folder on disk before what follows."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by `content` whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
