"""The words beside every table and picture: an arm's name, the setting of a cell, the run's conditions, loud labels.

Reads of run.json: `environment` (device, threads), `contract` (dtype, block) and `labels` (target, target_note,
calibrated, replayed, and the keys of LOUD). What is absent is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsbench.errors import UsageError
from dsbench.results.cells import Cell, StoredCell
from dsbench.results.store import RunStore

LOUD = {
    "random_weights": "RANDOM WEIGHTS: times are real, texts and acceptance mean nothing",
    "replay": "REPLAY: acceptance was recorded, times are modelled",
    "simulated": "SIMULATED: times come from a cost table, no model ran",
    "synthetic": "SYNTHETIC DATA: drawn from a law, not measured",
}
REPLAYED = "RANDOM WEIGHTS, REPLAYED ACCEPTANCE: times are real, what is accepted follows a recorded trace"
MIX = "mix:"
TOLD_APART = ("lag", "cost", "calibration", "template", "tokenizer")  # of a cell: what else makes it another arm


def finished_cells(store: RunStore) -> list[StoredCell]:
    """The run's cells at fixed concurrency. Raises UsageError when there is none."""
    every = all_cells(store)
    cells = [stored for stored in every if not stored.cell.arrivals]
    if not cells:
        raise UsageError(
            f"no data: {store.folder} holds cells of the open loop alone",
            hint="`dsbench show` and `dsbench slo` read them",
        )
    return cells


def all_cells(store: RunStore) -> list[StoredCell]:
    """The run's cells of both loops. Raises UsageError when there is none."""
    cells = store.cells()
    if not cells:
        raise UsageError(f"no data: {store.folder} holds no finished cell", hint="let the sweep finish one cell first")
    return cells


def setting_text(cell: Cell) -> str:
    """Acceptance rule, sampling, text and traffic of a cell, in words."""
    parts = [cell.accept, f"T={cell.temperature:g}"]
    parts += [f"top-k {cell.top_k}"] if cell.top_k else []
    parts += [f"top-p {cell.top_p:g}"] if cell.top_p < 1 else []
    parts += [f"{cell.text} text", f"at most {cell.max_tokens} tokens", f"seed {cell.seed}"]
    parts += ["starts together"] if cell.start == "together" and not cell.arrivals else []
    parts += [f"prompts of {cell.prompt_lengths}"] if cell.prompt_lengths else []
    parts += [f"answers of {cell.output_lengths}"] if cell.output_lengths else []
    parts += [f"{cell.arrivals} arrivals"] if cell.arrivals else []
    return ", ".join(parts + ([f"{cell.rate:.4g} a second"] if cell.rate else []))


def by_setting(cells: Iterable[StoredCell]) -> dict[str, list[StoredCell]]:
    """Cells that may be compared with each other, by their setting's text."""
    groups: dict[str, list[StoredCell]] = {}
    for stored in cells:
        groups.setdefault(setting_text(stored.cell), []).append(stored)
    return groups


def arm_names(cells: Sequence[StoredCell]) -> dict[Path, str]:
    """Each cell's arm by its folder: the mode, with its lag, cost table, calibration, template or tokenizer where the
    mode ran with several."""
    seen: dict[tuple[str, str], set[object]] = {}
    for stored in cells:
        for part in TOLD_APART:
            seen.setdefault((stored.cell.mode, part), set()).add(getattr(stored.cell, part))
    names = {}
    for stored in cells:
        mode, values = stored.cell.mode, {part: getattr(stored.cell, part) for part in TOLD_APART}
        told = [part for part in TOLD_APART if len(seen[mode, part]) > 1]
        names[stored.folder] = " ".join([mode, *(f"{part} {str(values[part])[:6] or 'none'}" for part in told)])
    return names


def arm_rank(name: str) -> tuple[int, int, str]:
    """Sort key of arms: none, fixed windows by length, the full block, then the planned ones."""
    mode = name.split(" ")[0]
    head, _, detail = mode.partition(":")
    if head == "static":
        return (1, int(detail) if detail.isdecimal() else 1000, name)
    order = {"none": 0, "mtp": 2, "no-trim": 3, "compact": 4, "cap-accept": 5}
    return (order.get(head, 6), 0, name)


def is_fixed(cell: Cell) -> bool:
    """Whether the arm verifies the same window >= 1 for every request: static or static:K."""
    return cell.mode == "static" or cell.mode.startswith("static:")


def workload_text(name: str) -> str:
    """A workload's name; a mix with spaces after its commas, so that it can break."""
    return name.replace(",", ", ") if name.startswith(MIX) else name


def conditions(run: Mapping[str, Any]) -> str:
    """Hardware, target and precision of a run in one line; empty where run.json says nothing."""
    machine, contract, labels = (_part(run, key) for key in ("environment", "contract", "labels"))
    device, threads = machine.get("device") or contract.get("device"), contract.get("threads", "-")
    note = labels.get("target_note")
    others = environments_text(run)
    parts = [
        f"{device}, {threads} threads" if device and threads != "-" else device,
        f"{labels['target']} ({note})" if labels.get("target") and note else labels.get("target"),
        f"G={contract['block']}" if contract.get("block") else "",
        contract.get("dtype"),
        "exact numerics" if contract.get("numerics") == "exact" else "",
        f"acceptance {labels['replayed']}" if labels.get("replayed") else "",
        "confidences not calibrated" if labels.get("calibrated") is False else "",
        f"resumed in {len(others)} other environments ({others[-1]})" if others else "",
    ]
    return "; ".join(str(part) for part in parts if part)


def environments_text(run: Mapping[str, Any]) -> list[str]:
    """How each environment that the run was resumed in differs from its first."""
    known = run.get("environments")
    first, *others = known if isinstance(known, list) and known else [{}]
    changed = [[k for k in sorted({*first, *other}) if first.get(k) != other.get(k)] for other in others]
    return [
        ", ".join(f"{k} {first.get(k)} -> {other.get(k)}" for k in names)
        for other, names in zip(others, changed, strict=True)
    ]


def loud_label(run: Mapping[str, Any]) -> str:
    """What a reader must not overlook (random weights, replay, ...); empty for a run of a real model."""
    labels = _part(run, "labels")
    words = LOUD | ({"random_weights": REPLAYED} if labels.get("replayed") else {})
    return "; ".join(text for key, text in words.items() if labels.get(key))


def _part(run: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = run.get(key)
    return part if isinstance(part, Mapping) else {}
