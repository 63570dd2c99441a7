"""The raw timings behind a cost table, kept beside it as `<table>.samples.json`: pictures of the fit need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from dsbench.profiles.curve import FAR
from dsbench.profiles.files import read_json, write_json
from dsbench.profiles.fit import CostSample, Phase, Raw

KIND = "cost-samples"
SCHEMA = 1
PHASES = (*get_args(Phase), *get_args(Raw))
OLD_PHASES = {"plain": "no-draft", "plain step": "no-draft step"}  # in files written before the renaming


def samples_path(table: Path) -> Path:
    """Where the samples of the table at `table` lie."""
    return table.with_suffix(".samples.json")


def save_samples(table: Path, samples: Sequence[CostSample]) -> None:
    write_json(samples_path(table), kind=KIND, schema=SCHEMA, body={"samples": [asdict(s) for s in samples]})


def load_samples(table: Path) -> list[CostSample]:
    """Raises UsageError for a file that is missing, damaged, or of another version."""
    return read_json(samples_path(table), kind=KIND, schema=SCHEMA, build=_from_json, hint="profile again")


def _from_json(body: dict[str, Any]) -> list[CostSample]:
    rows = (row | {"phase": OLD_PHASES.get(row["phase"], row["phase"])} for row in body["samples"])
    return [_checked(CostSample(**row)) for row in rows]


def _checked(sample: CostSample) -> CostSample:
    counts = (sample.requests, sample.rows, sample.context, sample.pass_index)
    counted = all(isinstance(n, int) and 0 <= n <= FAR for n in counts) and sample.requests > 0
    timed = isinstance(sample.seconds, float | int) and 0 < sample.seconds < FAR
    if not (counted and timed and sample.phase in PHASES):
        raise ValueError(f"no valid timed pass: {sample}")
    return sample
