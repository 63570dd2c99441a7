"""Which cells of two runs, or of two arms of one, may be compared; what forbids it, and what is worth a note.

A field that decides what work was done must be the same: the contract, the prompts, sampling, text, acceptance. What a
comparison is usually about may differ: the sources, the cost table, the date, versions of what lies below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles.contract import differences
from dsbench.results.cells import Cell, StoredCell
from dsbench.results.labels import arm_rank, finished_cells
from dsbench.results.store import RunStore

WORK = (
    "prompts",
    "template",
    "tokenizer",
    "accept",
    "temperature",
    "top_k",
    "top_p",
    "text",
    "seed",
    "max_tokens",
    "measured",
    "acceptance",
    "start",
    "prompt_lengths",
    "output_lengths",
)
ARM = ("lag", "draft")  # part of what an arm is
PLANNING = ("cost", "calibration")
ARM_CONTRACT = ("drafter", "block")  # differ where the arms are of different drafters, which is the point then
BELOW = ("platform", "python", "torch", "numpy", "driver", "cuda", "revision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A run, or one arm of it."""

    label: str
    store: RunStore
    run: Mapping[str, Any]
    mode: str  # "" = every arm
    cells: tuple[StoredCell, ...]

    @property
    def contract(self) -> dict[str, str]:
        return dict(self.run.get("contract") or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Pairs in the order of tables, and what a reader should know of them."""

    pairs: tuple[tuple[StoredCell, StoredCell], ...]
    notes: tuple[str, ...]
    together: bool  # both sides are arms of one run, whose repeats are interleaved


def open_sides(first: str, second: str) -> tuple[Side, Side]:
    """RUN or RUN:MODE each. Raises UsageError for what is no run or no arm of it, or a run against itself."""
    (folder_a, mode_a), (folder_b, mode_b) = _split(first), _split(second)
    same = folder_a.resolve() == folder_b.resolve()
    if same and mode_a == mode_b:
        raise UsageError("both sides are the same", hint="two runs, or two arms of one: RUN:none RUN:compact")
    if same and not (mode_a and mode_b):
        raise UsageError("one run against an arm of itself", hint="name both arms: RUN:none RUN:compact")
    names = ("", "") if same else (folder_a.name, folder_b.name)
    if not same and names[0] == names[1]:
        names = (str(folder_a), str(folder_b))
    a, b = (
        _side(folder, mode, ":".join(part for part in (name, mode) if part))
        for folder, mode, name in ((folder_a, mode_a, names[0]), (folder_b, mode_b, names[1]))
    )
    return a, b


def _split(text: str) -> tuple[Path, str]:
    """`runs/x:static:3` -> (runs/x, static:3): the longest start of it that is a folder."""
    parts = text.split(":")
    for end in range(len(parts), 0, -1):
        folder = Path(":".join(parts[:end]))
        if folder.is_dir():
            return folder, ":".join(parts[end:])
    raise UsageError(f"{text} is no run folder", hint="RUN or RUN:MODE, e.g. runs/latest:compact")


def _side(folder: Path, mode: str, label: str) -> Side:
    store = RunStore(folder)
    run, cells = store.read_run(), finished_cells(store)
    if mode:
        found = sorted({c.cell.mode for c in cells}, key=arm_rank)
        cells = [c for c in cells if c.cell.mode == mode]
        if not cells:
            raise UsageError(f"{folder} holds no finished cell of mode {mode}", hint=f"it has: {', '.join(found)}")
    return Side(label=label, store=store, run=run, mode=mode, cells=tuple(cells))


def pair_cells(a: Side, b: Side, *, allow: Collection[str] = ()) -> Pairing:
    """Pairs by workload, batch and arm. Raises EnvironmentRefused naming every difference that is not in `allow`."""
    across = a.mode != b.mode
    refused, notes = _contract_differences(a, b, across, allow)
    alone_a, alone_b = (_by_place(side, arm=not across) for side in (a, b))
    pairs = [(alone_a.pop(place), alone_b.pop(place)) for place in alone_a.keys() & alone_b.keys()]
    near = _near_pairs(alone_a, alone_b, across)
    for left, right in near:
        for field, mine, its in _cell_differences(left.cell, right.cell, across):
            (notes if field in allow else refused).setdefault(field, (mine, its))
    if not refused:
        pairs += near
    notes |= _planning_differences(pairs)
    if refused:
        raise EnvironmentRefused(
            f"{a.label} and {b.label} are not comparable: {'; '.join(_in_words(refused, a, b, ': '))}",
            hint="--allow FIELD where the difference is the point",
        )
    if not pairs:
        raise EnvironmentRefused(
            f"{a.label} and {b.label} have no cell in common", hint="same workloads, batch sizes and arms on both sides"
        )
    lines = _in_words(notes, a, b, " differs: ")
    paired = {cell.folder for pair in pairs for cell in pair}
    for side in (a, b):
        alone = [c for c in side.cells if c.folder not in paired]
        lines += [f"only in {side.label}: {_places(alone, side.mode)}"] if alone else []
    return Pairing(
        pairs=tuple(sorted(pairs, key=lambda p: (p[0].cell.workload, p[0].cell.batch, arm_rank(p[0].cell.mode)))),
        notes=tuple(lines),
        together=a.store.folder.resolve() == b.store.folder.resolve(),
    )


Differences = dict[str, tuple[Any, Any]]


def _contract_differences(a: Side, b: Side, across: bool, allow: Collection[str]) -> tuple[Differences, Differences]:
    """(what forbids a comparison, what is worth a note)."""
    refused: Differences = {}
    notes: Differences = {}
    for found in differences(a.contract, b.contract):
        point = found.field in allow or (across and found.field in ARM_CONTRACT)
        (notes if point else refused)[found.field] = (found.recorded, found.current)
    chains = [side.run.get("mtp_contract") or {} for side in (a, b)]
    if all(chains) and any(c.cell.mode.startswith("mtp") for c in (*a.cells, *b.cells)):
        for found in differences(*chains, fields=ARM_CONTRACT):
            point = found.field in allow or across
            (notes if point else refused)[f"mtp {found.field}"] = (found.recorded, found.current)
    mine, its = a.run.get("environment") or {}, b.run.get("environment") or {}
    for field in BELOW:
        if mine.get(field) != its.get(field):
            notes[field] = (mine.get(field), its.get(field))
    for field in ("code", "date"):
        if a.run.get(field) != b.run.get(field):
            notes["sources" if field == "code" else field] = (a.run.get(field), b.run.get(field))
    return refused, notes


def _by_place(side: Side, *, arm: bool) -> dict[tuple[Any, ...], StoredCell]:
    """Cells by what two must share to be a pair at once. Raises EnvironmentRefused where that names two of one side."""
    fields = ("workload", "batch", *WORK, *(("mode", *ARM) if arm else ()))
    found: dict[tuple[Any, ...], StoredCell] = {}
    for stored in side.cells:
        cell = stored.cell
        other = found.setdefault(tuple(getattr(cell, field) for field in fields), stored)
        if other is not stored:
            apart = [f for f in (*ARM, *PLANNING) if getattr(cell, f) != getattr(other.cell, f)]
            raise EnvironmentRefused(
                f"{side.label} holds two cells of {cell.mode} at batch {cell.batch} on {cell.workload}, "
                f"which differ in {', '.join(apart)}",
                hint="run them into folders of their own",
            )
    return found


def _near_pairs(
    a: Mapping[tuple[Any, ...], StoredCell], b: Mapping[tuple[Any, ...], StoredCell], across: bool
) -> list[tuple[StoredCell, StoredCell]]:
    """Cells of one workload, batch and mode that another field keeps apart, where neither side has a second one."""

    def where(cell: Cell) -> tuple[Any, ...]:
        return (cell.workload, cell.batch) if across else (cell.workload, cell.batch, cell.mode)

    found = []
    for left in a.values():
        mine, its = ([c for c in side.values() if where(c.cell) == where(left.cell)] for side in (a, b))
        if len(mine) == len(its) == 1:
            found.append((left, its[0]))
    return found


def _cell_differences(a: Cell, b: Cell, across: bool) -> list[tuple[str, Any, Any]]:
    fields = WORK if across else (*WORK, *ARM)
    pairs = [(field, getattr(a, field), getattr(b, field)) for field in fields]
    return [(field, x, y) for field, x, y in pairs if x != y]


def _planning_differences(pairs: Iterable[tuple[StoredCell, StoredCell]]) -> Differences:
    found: Differences = {}
    for left, right in pairs:
        mine, its = asdict(left.cell), asdict(right.cell)
        for field in PLANNING:
            if mine[field] and its[field] and mine[field] != its[field]:
                found.setdefault({"cost": "cost table"}.get(field, field), (mine[field], its[field]))
    return found


def _places(cells: Collection[StoredCell], mode: str) -> str:
    names = [f"{c.cell.workload} at batch {c.cell.batch}" + ("" if mode else f", {c.cell.mode}") for c in cells]
    return "; ".join(names[:3]) + (f"; and {len(names) - 3} more cells" if len(names) > 3 else "")


def _in_words(found: Differences, a: Side, b: Side, link: str) -> list[str]:
    return [f"{field}{link}{_short(x)} in {a.label}, {_short(y)} in {b.label}" for field, (x, y) in found.items()]


def _short(value: Any) -> str:
    text = " ".join(str(value).split()) or "(none)"
    return text[:12] if len(text) == 64 else text
