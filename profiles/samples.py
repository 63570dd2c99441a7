"""The raw timings behind a cost table, kept beside it as `<table>.samples.json`: pictures of the fit need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsbench.profiles.files import read_json, write_json
from dsbench.profiles.fit import CostSample

KIND = "cost-samples"
SCHEMA = 1


def samples_path(table: Path) -> Path:
    """Where the samples of the table at `table` lie."""
    return table.with_suffix(".samples.json")


def save_samples(table: Path, samples: Sequence[CostSample]) -> None:
    write_json(samples_path(table), kind=KIND, schema=SCHEMA, body={"samples": [asdict(s) for s in samples]})


def load_samples(table: Path) -> list[CostSample]:
    """Raises UsageError for a file that is missing, damaged, or of another version."""
    return read_json(samples_path(table), kind=KIND, schema=SCHEMA, build=_from_json, hint="profile again")


def _from_json(body: dict[str, Any]) -> list[CostSample]:
    return [CostSample(**row) for row in body["samples"]]
