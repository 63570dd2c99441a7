"""A cell: its parameters, and what a finished one left on disk. No torch; pandas only where a table is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.errors import UsageError
from dsbench.results.store_shape import COLUMNS, column_fault

if TYPE_CHECKING:
    import pandas as pd

FACTS = "repeat.json"  # of a repeat: its place in the order, warm-up, what else ran on the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of a sweep: everything that its numbers depend on besides the contract and the sources."""

    mode: str
    batch: int
    workload: str
    prompts: str = ""  # digest of the workload's prompts
    template: str = ""  # digest of the chat template with its arguments, "" where no text is encoded
    tokenizer: str = ""  # digest
    accept: str
    temperature: float
    top_k: int
    top_p: float
    text: str  # pinned or free
    seed: int
    max_tokens: int
    start: str = "together"  # or spread: of the first `batch` requests of a closed loop
    measured: int  # requests whose times count; the first `batch` of the queue warm the slots
    lag: int
    draft: str = "planned"  # planned or full
    cost: str  # digest of the cost table, "" for an arm that plans without one
    calibration: str = ""  # digest of the calibrations, "" for an arm that does not look at confidences
    acceptance: str = ""  # in words: which recorded acceptance is replayed; "" where it is the run's own
    arrivals: str = ""  # the arrival process of an open loop, of `batch` requests at a time at most; "": closed loop
    rate: float = 0.0  # its requests a second
    prompt_lengths: str = ""  # the law of lengths, "" for the prompts' own
    output_lengths: str = ""

    def key(self, contract: Mapping[str, str], sources: str) -> str:
        """The cell's folder name: a hash of its parameters, the contract and the measured packages' sources."""
        text = json.dumps([asdict(self), dict(sorted(contract.items())), sources], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cell_from(parameters: Mapping[str, Any]) -> Cell:
    return Cell(**{f.name: parameters[f.name] for f in fields(Cell) if f.name in parameters})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCell:
    """A cell on disk. `status` is "done" or "partial" (some repeats, no cell.json)."""

    folder: Path
    cell: Cell
    status: str
    summary: dict[str, Any]
    flags: list[str]

    def table(self, name: str) -> pd.DataFrame:
        """steps, rounds or requests of all repeats, with a `rep` column."""
        import pandas as pd

        repeats = repeats_of(self.folder)
        try:
            frames = [pd.read_parquet(path / f"{name}.parquet") for path in repeats]
        except (OSError, ValueError) as problem:
            raise damaged(self.folder, problem) from None
        absent = [column for frame in frames for column in sorted(COLUMNS[name] - set(frame.columns))]
        if absent:
            raise damaged(self.folder, ValueError(f"{name}.parquet has no column {absent[0]!r}"))
        for frame in frames:
            for column in frame.columns:
                self._sound(name, column, frame[column].to_numpy())
        return pd.concat([f.assign(rep=number_of(p)) for f, p in zip(frames, repeats, strict=True)], ignore_index=True)

    def facts(self) -> list[dict[str, Any]]:
        """What each repeat's repeat.json says; {} for one of an older run. Raises UsageError for a damaged one."""
        try:
            paths = [path / FACTS for path in repeats_of(self.folder)]
            return [dict(json.loads(path.read_text())) if path.exists() else {} for path in paths]
        except (OSError, ValueError, TypeError) as problem:
            raise damaged(self.folder, problem) from None

    def columns(self, name: str, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
        """These columns of a table over all repeats, and `rep`; without pandas, which is slow to load.

        Raises UsageError for a table that is absent or damaged, or lacks a column.
        """
        import pyarrow.parquet

        kept: dict[str, list[Any]] = {column: [] for column in (*wanted, "rep")}
        try:
            for path in repeats_of(self.folder):
                table = pyarrow.parquet.ParquetFile(path / f"{name}.parquet").read(columns=list(wanted))
                for column in wanted:
                    kept[column] += table.column(column).to_pylist()  # its to_numpy loads pandas
                kept["rep"] += [number_of(path)] * table.num_rows
        except (OSError, ValueError, KeyError) as problem:
            raise damaged(self.folder, problem) from None
        found = {column: np.asarray(values) for column, values in kept.items()}
        for column in wanted:
            self._sound(name, column, found[column])
        return found

    def _sound(self, name: str, column: str, values: NDArray[Any]) -> None:
        fault = column_fault(name, column, values) if len(values) else ""
        if fault:
            raise damaged(self.folder, ValueError(fault))

    def has(self, name: str) -> bool:
        """Whether every repeat holds the table; a run may be kept without its rounds."""
        return all((path / f"{name}.parquet").exists() for path in repeats_of(self.folder))


def damaged(folder: Path, problem: Exception) -> UsageError:
    """What is raised for a cell that cannot be read."""
    return UsageError(f"{folder} holds a damaged file: {problem}", hint="remove that cell, and --resume")


def repeats_of(folder: Path) -> list[Path]:
    """Finished repeats in order; what else somebody put there (rep-0.old) is none."""
    return sorted((path for path in folder.glob("rep-*") if path.name[4:].isdecimal()), key=number_of)


def number_of(repeat: Path) -> int:
    """Of its folder's name."""
    return int(repeat.name.removeprefix("rep-"))
