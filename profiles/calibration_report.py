"""Reliability of a drafter's confidences before and after calibration: by event, workload and depth, on rounds that no
map was fitted on.

A row is one set of predictions: a head's, through one map, of one kind of event. `conditional`: draft k is accepted,
given that those before it were; `prefix`: the first k drafts all are. Depth 0 pools all depths.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dsbench.profiles.calibration import Calibration, EventKey, Head, conditional
from dsbench.profiles.calibration_fit import Rounds
from dsbench.profiles.curve import FloatArray
from dsbench.profiles.files import only, read_json, strings, write_json
from dsbench.profiles.metrics import BINS, Scores, score

KIND = "calibration-report"
SCHEMA = 1
HINT = "write one with: dsbench calibrate"
POOLED = 0  # the depth of a row over all depths

Kind = Literal["conditional", "prefix"]
Map = Literal["raw", "sts", "platt"]
Predictions = tuple[FloatArray, NDArray[np.bool_]]  # probability [n], outcome [n]


@dataclass(frozen=True, slots=True)
class Bin:
    """One of the 20 equal-width bins of the predicted probability that is not empty."""

    index: int
    n: int
    hits: int
    mean_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Scores of one set of predictions, and its reliability bins."""

    event: EventKey
    workload: str  # or "all"
    head: Head
    method: Map
    kind: Kind
    depth: int  # 0: all depths together
    scores: Scores
    bins: tuple[Bin, ...]

    def __post_init__(self) -> None:
        if self.method not in get_args(Map) or self.kind not in get_args(Kind) or self.head not in get_args(Head):
            raise ValueError(f"unknown map {self.method!r}, kind {self.kind!r} or head {self.head!r}")
        if sum(b.n for b in self.bins) != self.scores.n:
            raise ValueError(f"the bins hold {sum(b.n for b in self.bins)} observations, the scores {self.scores.n}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """All rows of one calibration; contract and provenance are the calibration's own."""

    rows: tuple[Row, ...]
    contract: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    def select(self, **wanted: object) -> list[Row]:
        """Rows whose fields equal what is asked, in order."""
        return [row for row in self.rows if all(getattr(row, name) == value for name, value in wanted.items())]

    def events(self) -> list[EventKey]:
        return list(dict.fromkeys(row.event for row in self.rows))

    def workloads(self) -> list[str]:
        return list(dict.fromkeys(row.workload for row in self.rows))

    def save(self, path: Path) -> None:
        """Versioned JSON at `path`, and the same rows without their bins as CSV beside it."""
        rows = [asdict(row) | {"bins": [astuple(b) for b in row.bins]} for row in self.rows]
        body = {"rows": rows, "contract": self.contract, "provenance": self.provenance}
        write_json(path, kind=KIND, schema=SCHEMA, body=body, indent=None)
        with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            names = [f.name for f in fields(Scores) if f.name != "ece_null"]
            table.writerow(
                [
                    "rule",
                    "temperature",
                    "top_k",
                    "top_p",
                    "workload",
                    "head",
                    "method",
                    "kind",
                    "depth",
                    *names,
                    "ece_null_p5",
                    "ece_null_p95",
                ]
            )
            for row in self.rows:
                event, band = row.event, row.scores.ece_null or (None, None)
                place = (event.rule, event.temperature, event.top_k, event.top_p, row.workload, row.head)
                numbers = [getattr(row.scores, name) for name in names]
                table.writerow([*place, row.method, row.kind, row.depth, *numbers, *band])


def report_path(calibration: Path) -> Path:
    """Where the report of the calibration file at `calibration` lies."""
    return calibration.with_name(f"{calibration.stem}-report.json")


def report_rows(held_out: Mapping[str, Rounds], maps: Sequence[Calibration]) -> Iterator[Row]:
    """Rows of one event and head: by workload (a name each), raw and through each of `maps`, which share both."""
    event, head = maps[0].event, maps[0].head
    assert all((c.event, c.head) == (event, head) for c in maps)
    for workload, rounds in held_out.items():
        ones = np.ones(rounds.logits.shape[1])
        ways: list[tuple[Any, Any, Any]] = [("raw", ones, 0 * ones), *((c.method, c.scale, c.offset) for c in maps)]
        for method, scale, offset in ways:
            chance = conditional(rounds.logits, scale, offset)
            for kind in get_args(Kind):
                for depth, (probability, outcome) in enumerate(_by_depth(rounds, chance, kind)):
                    yield Row(
                        event=event,
                        workload=workload,
                        head=head,
                        method=method,
                        kind=kind,
                        depth=depth,
                        scores=score(probability, outcome),
                        bins=reliability_bins(probability, outcome),
                    )


def _by_depth(rounds: Rounds, chance: FloatArray, kind: Kind) -> list[Predictions]:
    """Predictions of all depths together, then of depth 1..G."""
    survival = np.cumprod(chance, axis=1)
    found: list[Predictions] = []
    for k in range(1, chance.shape[1] + 1):
        observed, hit = rounds.conditional(k) if kind == "conditional" else rounds.prefix(k)
        values = chance if kind == "conditional" else survival
        found.append((values[observed, k - 1], hit[observed]))
    together = np.concatenate([p for p, _ in found]), np.concatenate([y for _, y in found])
    return [together, *found]


def reliability_bins(probability: FloatArray, outcome: NDArray[np.bool_], bins: int = BINS) -> tuple[Bin, ...]:
    """Bins that hold an observation, by rising probability; the last one holds 1 too."""
    index = np.minimum((probability * bins).astype(np.int64), bins - 1)
    n, hits, mass = (
        np.bincount(index, weights=w, minlength=bins) for w in (np.ones(len(index)), outcome.astype(float), probability)
    )
    return tuple(Bin(int(b), int(n[b]), int(hits[b]), float(mass[b] / n[b])) for b in np.flatnonzero(n))


def load_report(path: Path) -> CalibrationReport:
    """Raises UsageError for a file that is missing, damaged, or of another version."""
    return read_json(Path(path), kind=KIND, schema=SCHEMA, build=_from_json, hint=HINT)


def _from_json(body: dict[str, Any]) -> CalibrationReport:
    only(body, {item.name for item in fields(CalibrationReport)})
    rows: Iterable[dict[str, Any]] = body["rows"]
    return CalibrationReport(
        rows=tuple(map(_row, rows)), contract=strings(body["contract"]), provenance=strings(body["provenance"])
    )


def _row(body: dict[str, Any]) -> Row:
    band = body["scores"]["ece_null"]
    scores = Scores(**(body["scores"] | {"ece_null": None if band is None else (band[0], band[1])}))
    parts = {"event": EventKey(**body["event"]), "scores": scores, "bins": tuple(Bin(*b) for b in body["bins"])}
    return Row(**(body | parts))
