"""`drafters.json`: the results of each drafter on each prompt, kept so that drafters of different runs can be paired.

Owns the file, its merging, and the statistics read out of it; runs nothing and imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsbench.analysis.acceptance import ALL, Acceptance, Difference, PromptCounts, acceptance, difference, with_all
from dsbench.profiles.calibration import EventKey
from dsbench.profiles.contract import check_contract
from dsbench.profiles.files import only, read_json, strings, write_json
from dsbench.stats.intervals import Interval

KIND = "drafters"
SCHEMA = 1
HINT = "name another --out"
FILE = "drafters.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One drafter, event and workload: its prompts' counts, and on what machine and sources they ran."""

    event: EventKey
    workload: str
    prompts_digest: str
    environment: dict[str, str]
    counts: tuple[PromptCounts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Median milliseconds of a call at batch size `batch`; the interval is that of the median over `n` repeats."""

    what: str  # propose: `depth` drafts of every request; observe: the rows of a full verified block
    batch: int
    depth: int  # 0 for observe
    rows: int  # rows of the call: batch * G (the block pass) or batch * (G + 1)
    context: int  # committed tokens a request
    milliseconds: Interval
    executor: str
    together: tuple[str, ...]  # digests of the drafters it took turns with
    environment: dict[str, str]


@dataclass(slots=True, kw_only=True)
class DrafterEntry:
    """One drafter. Raises ValueError for counts of another block size than its own."""

    name: str
    folder: str
    digest: str
    block: int
    cells: list[Cell] = field(default_factory=list)
    times: list[Timing] = field(default_factory=list)

    def __post_init__(self) -> None:
        for cell in self.cells:
            wrong = {len(p.trials) for p in cell.counts} - {self.block}
            if wrong:
                raise ValueError(f"{self.name}: block of {self.block}, counts of {wrong.pop()} depths")

    def cell(self, event: EventKey, workload: str) -> Cell | None:
        return next((c for c in self.cells if (c.event, c.workload) == (event, workload)), None)

    def put(self, cell: Cell) -> None:
        """Adds the cell, or replaces the earlier one."""
        self.cells = [c for c in self.cells if (c.event, c.workload) != (cell.event, cell.workload)] + [cell]


@dataclass(slots=True, kw_only=True)
class Comparison:
    """Drafters under the same conditions (target, dtype, device, batch, tokens, prompts, seed); the first is paired."""

    conditions: dict[str, str]
    drafters: list[DrafterEntry] = field(default_factory=list)

    def require(self, conditions: Mapping[str, str]) -> None:
        """Raises EnvironmentRefused naming each condition that differs."""
        check_contract(self.conditions, conditions, what="what --out holds", hint=HINT)

    def find(self, digest: str) -> DrafterEntry | None:
        return next((d for d in self.drafters if d.digest == digest), None)

    def events(self) -> list[EventKey]:
        return list(dict.fromkeys(c.event for d in self.drafters for c in d.cells))

    def workloads(self) -> list[str]:
        return list(dict.fromkeys(c.workload for d in self.drafters for c in d.cells))

    def counts(self, drafter: DrafterEntry, event: EventKey) -> dict[str, list[PromptCounts]]:
        """By workload, and `all` where every workload of the file ran."""
        found = {w: c.counts for w in self.workloads() if (c := drafter.cell(event, w)) is not None}
        return {
            name: own for name, own in with_all(found).items() if name != ALL or len(found) == len(self.workloads())
        }

    def acceptances(self) -> Iterator[tuple[DrafterEntry, Acceptance]]:
        """A row a drafter, event and workload; workloads in which no request made a round are left out."""
        seed = int(self.conditions["seed"])
        for event in self.events():
            for drafter in self.drafters:
                for workload, own in self.counts(drafter, event).items():
                    if any(p.rounds for p in own):
                        yield drafter, acceptance(workload, event, own, seed)

    def differences(self) -> Iterator[tuple[DrafterEntry, Difference]]:
        """The first drafter less each other one, where both ran the same prompts."""
        seed = int(self.conditions["seed"])
        for event in self.events():
            first = self.counts(self.drafters[0], event)
            for other in self.drafters[1:]:
                theirs = self.counts(other, event)
                for workload in (w for w in first if w in theirs and self.alike(other, event, w)):
                    found = difference(workload, event, first[workload], theirs[workload], seed)
                    if found is not None:
                        yield other, found

    def alike(self, other: DrafterEntry, event: EventKey, workload: str) -> bool:
        """Whether the first drafter and this one ran the same prompts, not only ones of the same names."""
        parts = self.workloads() if workload == ALL else [workload]
        sides = [[c.prompts_digest for w in parts if (c := d.cell(event, w))] for d in (self.drafters[0], other)]
        return sides[0] == sides[1]

    def save(self, path: Path, *, results: bool = False) -> None:
        """The counts, and with `results` the statistics: the bootstrap takes seconds, so not after every cell."""
        body = {"conditions": self.conditions, "drafters": [asdict(d) for d in self.drafters]}
        write_json(path, kind=KIND, schema=SCHEMA, body=body | {"results": self.results() if results else None})

    def results(self) -> dict[str, Any]:
        """The statistics for a reader; a loader recomputes them."""
        return {
            "acceptance": [{"drafter": d.name} | asdict(row) for d, row in self.acceptances()],
            "differences": [
                {"drafter": self.drafters[0].name, "minus": d.name} | asdict(row) for d, row in self.differences()
            ],
        }


def load_comparison(path: Path) -> Comparison:
    """Raises UsageError for a file that is missing, damaged, or of another version."""
    return read_json(path, kind=KIND, schema=SCHEMA, build=_from_json, hint=HINT)


def unique_names(folders: Sequence[Path], taken: Sequence[str] = ()) -> list[str]:
    """Folder names; with as many parent folders as make them unique, or a number where that fails."""
    parts = [folder.resolve().parts for folder in folders]
    longest = max(map(len, parts), default=1)
    found: list[str] = []
    for own in parts:
        depth = 1
        while depth < longest and sum(other[-depth:] == own[-depth:] for other in parts) > 1:
            depth += 1
        name = base = "/".join(own[-depth:])
        number = 2
        while name in (*taken, *found):
            name, number = f"{base}-{number}", number + 1
        found.append(name)
    return found


def _from_json(body: dict[str, Any]) -> Comparison:
    only(body, {"conditions", "drafters", "results"})
    return Comparison(conditions=strings(body["conditions"]), drafters=[_drafter(d) for d in body["drafters"]])


def _drafter(body: dict[str, Any]) -> DrafterEntry:
    cells = [
        Cell(**(c | {"event": EventKey(**c["event"]), "counts": tuple(map(_counts, c["counts"]))}))
        for c in body["cells"]
    ]
    times = [
        Timing(**(t | {"milliseconds": Interval(**t["milliseconds"]), "together": tuple(t["together"])}))
        for t in body["times"]
    ]
    return DrafterEntry(**(body | {"cells": cells, "times": times}))


def _counts(body: dict[str, Any]) -> PromptCounts:
    return PromptCounts(**(body | {"trials": tuple(body["trials"]), "passed": tuple(body["passed"])}))
