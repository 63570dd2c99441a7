"""The cost table: what a decode step of a given shape costs on the machine it was measured on.

    T(R, M, S) = bias + alpha(R) + theta(tier(M)) + (walk + walk_rise(R))*S/R + kappa*S
                 + draft_bias + draft(R) + draft_kappa*S  [seconds],
    less depth_bias + depth(R) for each depth of the sequential head that a shallower draft leaves out;
    a no-draft round: no_draft(R) + no_draft_per_token(R)*S/R

Owns evaluation, candidate row totals and the file format; `fit.py` makes tables from samples. Legend: `R` requests,
`G` block size, `M` packed rows, `S` sum of context tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dsbench.profiles.contract import check_contract
from dsbench.profiles.curve import FAR, Curve, FloatArray, IntArray, round_up
from dsbench.profiles.files import only, read_json, strings, write_json
from dsbench.profiles.no_draft import NoDraftPass

KIND = "cost-table"
SCHEMA = 1
OLD_NAMES = {"plain": "no_draft", "slot": "depth", "slot_bias": "depth_bias"}  # in files written before the renaming
HINT = "measure one on this machine with: dsbench profile-cost"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's time depends on: R requests, M packed rows, S context tokens summed over the requests."""

    requests: int
    rows: int
    context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The measured ranges, both ends included: (least, most) of R, M and S.

    Raises ValueError when one is empty, or out of range.
    """

    requests: tuple[int, int]
    rows: tuple[int, int]
    context: tuple[int, int]

    def __post_init__(self) -> None:
        for name, (least, most) in (("requests", self.requests), ("rows", self.rows), ("context", self.context)):
            if least > most:
                raise ValueError(f"box.{name} must be (least, most), got ({least}, {most})")
            if least < 0 or most > FAR:
                raise ValueError(f"box.{name} must lie in 0..{FAR}, got ({least}, {most})")


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Additive cost of a step, in seconds. Raises ValueError when a field is out of its range."""

    # the target's verify pass
    bias: float  # seconds, > 0
    alpha: Curve  # R -> seconds
    theta: Curve  # M (a tier where there are tiers) -> seconds
    tiers: tuple[int, ...] | None  # captured row totals; None: no padding, every M is a candidate
    kappa: float = 0.0  # seconds per context token, >= 0; 0 where walk was measured
    walk: float = 0.0  # seconds per token of the requests' mean context, >= 0, at the fewest requests
    walk_rise: Curve = Curve((1,), (0.0,))  # R -> seconds more

    # the draft pass; no rows in it, since every request drafts the full block
    draft_bias: float = 0.0  # seconds, >= 0
    draft: Curve = Curve((1,), (0.0,))  # R -> seconds
    draft_kappa: float = 0.0  # seconds per context token, >= 0
    depth_bias: float = 0.0  # seconds of one depth of the sequential head, >= 0; 0 where depth was not measured
    depth: Curve = Curve((1,), (0.0,))  # R -> seconds more

    no_draft: NoDraftPass | None = None  # a round without drafts of an arm that drafts in others; None: not measured

    # where it holds
    box: Box
    contract: dict[str, str] = field(default_factory=dict)  # what must be the same: hashes, dtype, G, device, threads
    provenance: dict[str, str] = field(default_factory=dict)  # how it came about: driver, versions, date, revision

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bias) and self.bias > 0):
            raise ValueError(f"bias must be > 0 seconds, got {self.bias}")
        for name in ("kappa", "walk", "draft_bias", "draft_kappa", "depth_bias"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be >= 0, got {value}")
        tiers = self.tiers
        if tiers is not None and (not tiers or tiers[0] < 1 or list(tiers) != sorted(set(tiers))):
            raise ValueError(f"tiers must be increasing row totals, got {tiers}")
        if tiers is not None and tiers[-1] > FAR:
            raise ValueError(f"tiers must be at most {FAR}, got {tiers[-1]}")

    def verify_curve(self, requests: int, rows: IntArray, context: int) -> FloatArray:
        """Seconds of a verify pass at each of `rows` [n] for one R and S: [n], non-decreasing in the rows.

        Past the measured rows theta keeps its last slope, and at least its mean one. Where theta is flat altogether,
        an unmeasured row costs what the average measured row does (bias / M): extra rows never look free there. Below
        the first knot it falls with the mean slope, limited so that the step keeps a positive time.
        """
        theta = self.theta
        flat = self.bias / theta.at[-1]
        above = theta.outer_slope or flat
        below = min(theta.mean_slope or flat, self.bias / theta.at[0])
        row_seconds = theta.value(round_up(rows, self.tiers), above=above, below=below)
        alpha_seconds = float(self.alpha.value(requests, above=self.alpha.outer_slope))
        return self.bias + alpha_seconds + self.per_token(requests, drafts=False) * context + row_seconds

    def verify_seconds(self, shape: StepShape) -> float:
        """Seconds of the target's pass over the packed rows."""
        return float(self.verify_curve(shape.requests, np.array([shape.rows]), shape.context)[0])

    def draft_seconds(self, requests: int, context: int, skipped: int = 0) -> float:
        """Seconds of drafting for each of R requests with S context tokens in all; the block, less `skipped` depths."""
        request_seconds = float(self.draft.value(requests, above=self.draft.outer_slope))
        per_depth = (
            self.depth_bias + float(self.depth.value(requests, above=self.depth.outer_slope)) if skipped else 0.0
        )
        return self.draft_bias + request_seconds + self.draft_kappa * context - skipped * per_depth

    def step_seconds(self, shape: StepShape, skipped: int = 0) -> float:
        """Seconds of draft and verify together; the last `skipped` depths are not drafted."""
        return self.verify_seconds(shape) + self.draft_seconds(shape.requests, shape.context, skipped)

    def no_draft_parts(self, requests: int) -> tuple[float, float]:
        """Seconds of a no-draft round at no context, and of a context token more."""
        if self.no_draft is not None:
            return self.no_draft.parts(requests)
        return self.verify_seconds(StepShape(requests, requests, 0)), self.per_token(requests, drafts=False)

    def no_draft_seconds(self, requests: int, context: int) -> float:
        """Seconds of a no-draft round of R requests with S context tokens in all."""
        base, per_token = self.no_draft_parts(requests)
        return base + per_token * context

    def per_token(self, requests: int, *, drafts: bool) -> float:
        """Seconds that a context token more adds to a step of R requests."""
        walk = self.walk + float(self.walk_rise.value(requests, above=self.walk_rise.outer_slope))
        return self.kappa + walk / requests + (self.draft_kappa if drafts else 0.0)

    def tier(self, rows: int) -> int:
        """The row total that really runs: the next captured tier, or `rows` itself without tiers or past the last."""
        return int(round_up(rows, self.tiers))

    def candidates(self, requests: int, block: int) -> IntArray:
        """Row totals worth comparing, increasing, within [R, R*(G+1)]; the last one is verify-all.

        With tiers: each tier filled up, since its padding would cost the same, so the first is verify-nothing rounded
        up to its tier; one that exceeds verify-all is clipped to it. Without tiers: every row total.
        """
        everything = requests * (block + 1)
        if self.tiers is None:
            return np.arange(requests, everything + 1, dtype=np.int64)
        least = self.tier(requests)
        between = [tier for tier in self.tiers if least < tier < everything]
        return np.unique(np.array([min(least, everything), *between, everything], np.int64))

    def outside(self, shape: StepShape) -> bool:
        """Whether the shape's cost is extrapolated: R, the tier of M, or S was not covered by the measurement."""
        least, most = (self.tier(rows) for rows in self.box.rows)
        inside = (
            self.box.requests[0] <= shape.requests <= self.box.requests[1]
            and least <= self.tier(shape.rows) <= most
            and self.box.context[0] <= shape.context <= self.box.context[1]
        )
        return not inside

    def require(self, current: Mapping[str, str], *, may_differ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Notes on the fields that differ and may; raises EnvironmentRefused naming those that must not."""
        return check_contract(self.contract, current, what="the cost table", may_differ=may_differ, hint=HINT)

    def save(self, path: Path) -> None:
        """Write the table as versioned JSON, atomically."""
        write_json(Path(path), kind=KIND, schema=SCHEMA, body=_to_json(self))


def load_cost_table(path: Path) -> CostTable:
    """Read a table. Raises UsageError with a hint for a file that is missing, damaged, or of another version."""
    return read_json(Path(path), kind=KIND, schema=SCHEMA, build=_from_json, hint=HINT)


def _to_json(table: CostTable) -> dict[str, Any]:
    curves = ("alpha", "theta", "walk_rise", "draft", "depth")
    body = {item.name: getattr(table, item.name) for item in fields(table)}
    knots = {name: {"at": list(body[name].at), "seconds": list(body[name].seconds)} for name in curves}
    box = {item.name: list(getattr(table.box, item.name)) for item in fields(table.box)}
    no_draft = None if table.no_draft is None else table.no_draft.json()
    return (
        body | knots | {"box": box, "no_draft": no_draft, "tiers": None if table.tiers is None else list(table.tiers)}
    )


def _from_json(body: dict[str, Any]) -> CostTable:
    body = {OLD_NAMES.get(name, name): value for name, value in body.items()}
    names = {item.name for item in fields(CostTable)}
    only(body, names)
    optional = {"depth", "depth_bias", "walk", "walk_rise", "no_draft"}  # older tables lack these
    missing = sorted(names - set(body) - optional)
    if missing:
        raise ValueError(f"missing fields {', '.join(missing)}")
    only(body["box"], {"requests", "rows", "context"})

    def curve(name: str) -> Curve:
        return Curve(tuple(map(int, body[name]["at"])), tuple(map(float, body[name]["seconds"])))

    def pair(name: str) -> tuple[int, int]:
        least, most = map(int, body["box"][name])
        return least, most

    no_draft = body.get("no_draft")
    if no_draft is not None:
        only(no_draft, {"requests", "seconds", "per_token"})
        no_draft = NoDraftPass(
            requests=tuple(map(int, no_draft["requests"])),
            seconds=tuple(map(float, no_draft["seconds"])),
            per_token=tuple(map(float, no_draft["per_token"])),
        )
    return CostTable(
        bias=float(body["bias"]),
        alpha=curve("alpha"),
        theta=curve("theta"),
        tiers=None if body["tiers"] is None else tuple(map(int, body["tiers"])),
        kappa=float(body["kappa"]),
        walk=float(body.get("walk", 0.0)),
        walk_rise=curve("walk_rise") if "walk_rise" in body else Curve((1,), (0.0,)),
        draft_bias=float(body["draft_bias"]),
        draft=curve("draft"),
        draft_kappa=float(body["draft_kappa"]),
        depth_bias=float(body.get("depth_bias", 0.0)),
        depth=curve("depth") if "depth" in body else Curve((1,), (0.0,)),
        no_draft=no_draft,
        box=Box(requests=pair("requests"), rows=pair("rows"), context=pair("context")),
        contract=strings(body["contract"]),
        provenance=strings(body["provenance"]),
    )
