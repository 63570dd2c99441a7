"""Noise bands: how far two measurements of the very same thing lie apart on this machine, kept in DSBENCH_HOME.

Two kinds, because they differ: "arms" of one run are interleaved (A/A pairs: even against odd repeats of a cell), whole
"runs" are not (A/A pairs: one cell in two runs). The band is what 95% of the pairs stay within. No torch.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.results.store import write_atomically
from dsbench.stats.block_noise import Spread, log_speeds, prior_of
from dsbench.stats.intervals import BAND, Held

SCHEMA = 1
MACHINE = ("device", "dtype", "executor", "numerics", "threads")  # of the contract: what noise is thought to hang on
KINDS = ("arms", "runs")
LEAST_PAIRS = 8
SHARE = 0.95
WIDEST = 0.25  # a wider band would call anything the same: the machine was busy


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """`value`: relative half-width around 1. `prior`: the block noise that a comparison may lean on."""

    value: float = BAND
    kind: str = ""
    pairs: int = 0
    median: float = 0.0  # of the pairs' distances from 1
    repeats: int = 0  # a side, at least
    targets: tuple[str, ...] = ()
    prior: Spread | None = None
    source: str = "default"

    def words(self) -> str:
        if self.source == "default":
            return f"{self.value:.1%} (the default: no A/A {self.kind} measured on this machine)"
        return f"{self.value:.1%} ({self.source}: {self.pairs} A/A pairs of {self.kind} on {', '.join(self.targets)})"


def band_of(
    kind: str, log_ratios: Sequence[float], spreads: Sequence[Spread | None], *, repeats: int, targets: Sequence[str]
) -> Band:
    """What 95% of the pairs stay within. Raises UsageError for too few, EnvironmentRefused where that is too wide."""
    if len(log_ratios) < LEAST_PAIRS:
        raise UsageError(
            f"{len(log_ratios)} A/A pairs of {kind} make no band", hint=f"at least {LEAST_PAIRS}: more cells or repeats"
        )
    far = np.sort(np.abs(log_ratios))
    value = math.expm1(float(far[math.ceil(SHARE * len(far)) - 1]))
    if value > WIDEST:
        raise EnvironmentRefused(
            f"A/A pairs of {kind} differ by up to {value:.0%}: this machine was not quiet",
            hint="nothing is kept; measure again with nothing beside it",
        )
    return Band(
        value=value,
        kind=kind,
        pairs=len(far),
        median=math.expm1(float(np.median(far))),
        repeats=repeats,
        targets=tuple(targets),
        prior=prior_of(spreads),
        source="measured",
    )


def pairs_within(held: Held) -> tuple[float, Spread] | None:
    """A cell against itself: log ratio of its odd to its even repeats, and the spread of neighbours' log ratios."""
    repeats = held.tokens.shape[1]
    if repeats < 2:
        return None
    even, odd = held.repeats(0), held.repeats(1)
    speeds = log_speeds(held)[: repeats // 2 * 2]
    steps = speeds[1::2] - speeds[::2]
    spread = Spread(variance=float(np.mean(np.square(steps))), freedom=float(len(steps)))
    return math.log(odd.speed / even.speed), spread


def machine_of(contract: Mapping[str, str]) -> dict[str, str]:
    return {name: contract.get(name, "-") for name in MACHINE}


def band_path(home: Path, contract: Mapping[str, str]) -> Path:
    key = hashlib.sha256(json.dumps(machine_of(contract), sort_keys=True).encode()).hexdigest()[:12]
    return home / "noise" / f"{key}.json"


def save_bands(home: Path, contract: Mapping[str, str], bands: Sequence[Band]) -> Path:
    """Puts these kinds in the machine's file; a kind that is not among them stays. Raises UsageError if it cannot."""
    path = band_path(home, contract)
    kept = _read(path)["bands"] if path.exists() else {}
    kept |= {band.kind: asdict(band) for band in bands}
    body = {
        "schema": SCHEMA,
        "machine": machine_of(contract),
        "bands": kept,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(body, indent=2) + "\n")
    except OSError as problem:
        raise UsageError(f"cannot write to {path.parent}: {problem.strerror}", hint="set DSBENCH_HOME") from None
    return path


def find_band(home: Path, contract: Mapping[str, str], kind: str) -> Band:
    """This machine's band of that kind, or the default one."""
    path = band_path(home, contract)
    saved = _read(path)["bands"].get(kind) if path.exists() else None
    if saved is None:
        return Band(kind=kind)
    prior = None if saved["prior"] is None else Spread(**saved["prior"])
    return Band(**(saved | {"prior": prior, "targets": tuple(saved["targets"]), "source": "this machine's"}))


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["schema"] == SCHEMA and all(kind in KINDS for kind in body["bands"]):
            return dict(body)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UsageError(f"{path} is damaged or of another version", hint="remove it, and run `dsbench noise` again")
