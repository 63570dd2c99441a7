"""Calibrations: from a drafter's confidence logits to calibrated probabilities.

    c[k] = sigmoid(scale[k] * z[k] + offset[k])        survival[k] = prod over i <= k of c[i]

Owns the maps, their choice for a request's sampling setting, and the file; `calibration_fit.py` makes them. Legend:
`N` rounds, `G` block size; position k = 1..G is column k - 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dsbench.errors import EnvironmentRefused
from dsbench.profiles.contract import check_contract
from dsbench.profiles.curve import FloatArray
from dsbench.profiles.files import only, read_json, strings, write_json
from dsbench.profiles.metrics import Scores

KIND = "calibration"
SCHEMA = 1
HINT = "fit one for this drafter with: dsbench calibrate"

Rule = Literal["coupled", "residual", "block"]  # every acceptance rule
Method = Literal["identity", "sts", "platt"]
Head = Literal["conditioned", "free"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKey:
    """Which acceptance event is predicted. top_k = 0 and top_p = 1 mean off. Raises ValueError out of range."""

    rule: Rule
    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"rule must be one of {get_args(Rule)}, got {self.rule!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if self.top_k < 0 or not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_k must be >= 0 and top_p in (0, 1], got {self.top_k} and {self.top_p}")

    @property
    def canonical(self) -> EventKey:
        """The key itself, or one and the same at temperature 0: there every rule is equality of the argmax."""
        return self if self.temperature > 0 else EventKey(rule="coupled", temperature=0.0)

    def __str__(self) -> str:
        parts = [f"{self.rule} at temperature {self.temperature:g}"]
        if self.top_k > 0:
            parts.append(f"top_k {self.top_k}")
        if self.top_p < 1:
            parts.append(f"top_p {self.top_p:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Scores by position [G] of the conditional events, and of the events 'the first k drafts are all accepted'."""

    conditional: tuple[Scores, ...]
    prefix: tuple[Scores, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One map. Raises ValueError when the positions' counts disagree or a value is out of range."""

    method: Method
    head: Head  # 'conditioned' on the drafted tokens, or 'free' of them
    event: EventKey
    scale: tuple[float, ...]  # [G], >= 0
    offset: tuple[float, ...]  # [G]
    prior: tuple[float, ...]  # [G] mean conditional acceptance, for a request without history
    n: int  # rounds it was fitted on
    scored_on: Literal["fit", "test"]  # the rounds behind before and after: the fitted ones, or others
    before: Quality
    after: Quality

    def __post_init__(self) -> None:
        if self.method not in get_args(Method) or self.head not in get_args(Head):
            raise ValueError(f"unknown method {self.method!r} or head {self.head!r}")
        if not self.scale or not len(self.scale) == len(self.offset) == len(self.prior):
            raise ValueError(
                f"scale, offset and prior need one length, got {len(self.scale)}, {len(self.offset)}, {len(self.prior)}"
            )
        if not np.isfinite([*self.scale, *self.offset]).all() or min(self.scale) < 0:
            raise ValueError("scale must be >= 0 and finite, offset finite")
        if not all(0.0 <= value <= 1.0 for value in self.prior):
            raise ValueError(f"prior must lie in [0, 1], got {self.prior}")

    @property
    def block(self) -> int:
        """G, the positions it covers."""
        return len(self.scale)

    def apply(self, z: ArrayLike) -> FloatArray:
        """Conditional acceptance probability [N, g] of logits [N, g], g <= G."""
        return conditional(z, self.scale, self.offset)

    def survival(self, z: ArrayLike) -> FloatArray:
        """Probability [N, g] that the first k drafts are all accepted."""
        return np.asarray(np.cumprod(self.apply(z), axis=1), np.float64)

    @property
    def prior_survival(self) -> FloatArray:
        """Survival [G] of a request without history."""
        return np.asarray(np.cumprod(self.prior), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The calibration for a request; `note` names the mismatch when it is not exact."""

    calibration: Calibration
    exact: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSet:
    """All calibrations of one drafter on one target. Raises ValueError for two entries of one head and event."""

    entries: tuple[Calibration, ...]
    contract: dict[str, str] = field(default_factory=dict)  # drafter hash, target hash
    provenance: dict[str, str] = field(default_factory=dict)  # rollouts, date, revision

    def __post_init__(self) -> None:
        keys = [(entry.head, entry.event.canonical) for entry in self.entries]
        twice = {f"{head} head, {event}" for head, event in keys if keys.count((head, event)) > 1}
        if twice:
            raise ValueError(f"calibrated twice: {'; '.join(sorted(twice))}")

    def choose(
        self, rule: Rule, temperature: float, top_k: int = 0, top_p: float = 1.0, *, head: Head = "conditioned"
    ) -> Choice:
        """The entry for a request's sampling: the exact event, else the nearest temperature of the same rule.

        Nearest: the same top_k and top_p before others, then by |log temperature ratio|, then the lower temperature.
        Temperature 0 matches only temperature 0, under any rule. The block rule also takes the residual rule's entries,
        its own first at equal distance. Raises EnvironmentRefused when nothing matches.
        """
        wanted = EventKey(rule=rule, temperature=temperature, top_k=top_k, top_p=top_p).canonical
        entries = [entry for entry in self.entries if entry.head == head]
        for entry in entries:
            if entry.event.canonical == wanted:
                return Choice(calibration=entry, exact=True)
        rules = (rule, "residual") if rule == "block" else (rule,)
        near = [
            entry for entry in entries if entry.event.rule in rules and min(entry.event.temperature, temperature) > 0
        ]
        if not near:
            known = "; ".join(str(entry.event) for entry in entries) or "nothing"
            raise EnvironmentRefused(f"no calibration of the {head} head for {wanted}; it has {known}", hint=HINT)

        def distance(entry: Calibration) -> tuple[bool, float, bool, float]:
            event = entry.event
            limits_differ = (event.top_k, event.top_p) != (top_k, top_p)
            return limits_differ, abs(math.log(event.temperature / temperature)), event.rule != rule, event.temperature

        nearest = min(near, key=distance)
        return Choice(calibration=nearest, exact=False, note=f"calibrated for {nearest.event}, used for {wanted}")

    def require(self, current: Mapping[str, str], *, may_differ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Notes on recorded fields that differ and may; raises EnvironmentRefused naming those that must not.

        `current` may have more fields (dtype, device): they do not bear on a calibration.
        """
        return check_contract(
            self.contract, current, what="the calibration", fields=self.contract, may_differ=may_differ, hint=HINT
        )

    def require_drafter(self, drafter: str, target: str, block: int) -> None:
        """Raises EnvironmentRefused for a set that is not of this drafter and target, or says of neither."""
        ours = {"drafter": drafter, "target": target}
        unsaid = ", ".join(name for name in ours if name not in self.contract)
        if unsaid:
            raise EnvironmentRefused(f"the calibration does not say its {unsaid}", hint=HINT)
        self.require(ours)
        blocks = sorted({entry.block for entry in self.entries} - {block})
        if blocks:
            raise EnvironmentRefused(
                f"the calibration is for a block of {blocks[0]}, the drafter's is {block}", hint=HINT
            )
        if not self.entries:
            raise EnvironmentRefused("the calibration calibrates nothing", hint=HINT)

    def save(self, path: Path) -> None:
        """Write the set as versioned JSON, atomically."""
        write_json(Path(path), kind=KIND, schema=SCHEMA, body=asdict(self))


def conditional(z: ArrayLike, scale: ArrayLike, offset: ArrayLike) -> FloatArray:
    """sigmoid(scale * z + offset), z [N, g] with the first g of the positions [G]. Raises ValueError when g > G."""
    logits, a, b = np.asarray(z, np.float64), np.asarray(scale, np.float64), np.asarray(offset, np.float64)
    if logits.ndim != 2 or logits.shape[1] > len(a):
        raise ValueError(f"logits must be [N, g] with g <= {len(a)}, got {logits.shape}")
    width = logits.shape[1]
    return np.asarray(np.exp(-np.logaddexp(0.0, -(a[:width] * logits + b[:width]))), np.float64)


def load_calibration_set(path: Path) -> CalibrationSet:
    """Read a set. Raises UsageError with a hint for a file that is missing, damaged, or of another version."""
    return read_json(Path(path), kind=KIND, schema=SCHEMA, build=_from_json, hint=HINT)


def _from_json(body: dict[str, Any]) -> CalibrationSet:
    only(body, {item.name for item in fields(CalibrationSet)})
    return CalibrationSet(
        entries=tuple(map(_entry, body["entries"])),
        contract=strings(body["contract"]),
        provenance=strings(body["provenance"]),
    )


def _entry(body: dict[str, Any]) -> Calibration:
    positions = {name: tuple(map(float, body[name])) for name in ("scale", "offset", "prior")}
    qualities = {name: _quality(body[name]) for name in ("before", "after")}
    return Calibration(**(body | positions | qualities | {"event": EventKey(**body["event"])}))


def _quality(body: dict[str, Any]) -> Quality:
    return Quality(**{name: tuple(map(_scores, rows)) for name, rows in body.items()})


def _scores(body: dict[str, Any]) -> Scores:
    band = body["ece_null"]
    return Scores(**(body | {"ece_null": None if band is None else (float(band[0]), float(band[1]))}))
