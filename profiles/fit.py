"""From timed samples to a cost table: collapse repeats, hold out cells, fit, and say how far to trust it.

Which cells a design needs. alpha(R) and theta(M) can be told apart when the cells, read as edges between R levels and
M levels (tiers, where there are tiers), form one connected graph: time each R at several row totals between R and
R*(G+1), and let neighbouring R share row totals. kappa needs some (R, M) at two or more contexts. The diagonal
M = R*(G+1) alone determines neither alpha nor theta; such a fit gives the shared time to theta, so that rows look dear
and not free, and lists the values in `FitReport.confounded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dsbench.errors import UsageError
from dsbench.profiles.additive import AdditiveFit, confounded, fit_additive
from dsbench.profiles.cost import Box, CostTable
from dsbench.profiles.curve import Curve, FloatArray, round_up
from dsbench.profiles.falls import FALLS, NONE, falls
from dsbench.profiles.holdout import choose_holdout
from dsbench.profiles.no_draft import NoDraftPass, no_draft_line
from dsbench.profiles.robust import middle, pass_factors
from dsbench.profiles.trust import HELDOUT, MEDIAN, P95

Phase = Literal["verify", "draft"]
# kept beside what is fitted: a verify pass without the host, a whole step; both of decoding without a drafter.
# shallow: a draft pass whose sequential head makes the first depth alone, of a block of `rows`; reference: the shape
# that is timed all along, seconds as the clock said
Raw = Literal["pass", "step", "no-draft", "no-draft step", "shallow", "reference"]


FEW = 4  # costs that fall, at most, as provenance names them


@dataclass(frozen=True, slots=True)
class CostSample:
    """One timed replay. `rows` is ignored in the draft phase; `pass_index` counts the passes over all cells."""

    requests: int
    rows: int
    context: int
    seconds: float  # at the machine's usual speed
    phase: Phase | Raw
    pass_index: int
    slowdown: float = 1.0  # of the machine then, by its reference shape: the clock said seconds * slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCell:
    """One shape, its repeats collapsed."""

    requests: int
    rows: int  # 0 in the draft phase
    context: int
    seconds: float  # median over passes of the median within a pass, passes brought to the speed of the fastest
    repeats: int
    spread: float  # median |pass / seconds - 1| over passes: what repeating alone changes


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFit:
    """One cell beside its fit; residuals are fitted / measured - 1."""

    phase: Phase
    cell: CostCell
    fitted: float  # seconds, by the table (fitted on all cells)
    residual: float
    heldout_residual: float | None  # by a fit that did not see this cell; None for a cell that was not held out


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """Relative errors of one phase. Held-out figures are None where no cell could be spared."""

    cells: int
    heldout_cells: int
    heldout_median: float | None  # of |residual|
    heldout_p95: float | None
    insample_median: float
    insample_p95: float
    spread_median: float  # between passes: no fit can do better on single passes
    confounded: tuple[str, ...]  # values that the cells do not determine


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """How well a table describes the cells that it was fitted on, and those that it was not."""

    verify: PhaseReport
    draft: PhaseReport | None  # None without draft samples
    cells: tuple[CellFit, ...]

    @property
    def confounded(self) -> tuple[str, ...]:
        """The undetermined values of both phases."""
        return self.verify.confounded + (self.draft.confounded if self.draft else ())


def collapse(samples: Iterable[CostSample], phase: Phase) -> tuple[CostCell, ...]:
    """The cells of one phase in (R, M, S) order. Raises UsageError for a time that is not positive and finite."""
    grouped: dict[tuple[int, int, int], dict[int, list[float]]] = {}
    for sample in samples:
        if sample.phase != phase:
            continue
        if not (np.isfinite(sample.seconds) and sample.seconds > 0):
            raise UsageError(f"a timed sample must be > 0 seconds, got {sample}", hint="profile again")
        shape = (int(sample.requests), int(sample.rows) if phase == "verify" else 0, int(sample.context))
        grouped.setdefault(shape, {}).setdefault(sample.pass_index, []).append(sample.seconds)
    by_pass = {
        shape: {number: float(np.median(times)) for number, times in passes.items()}
        for shape, passes in sorted(grouped.items())
    }
    factors = pass_factors(list(by_pass.values()))
    cells = []
    for (requests, rows, context), passes in by_pass.items():
        medians = np.array([seconds / factors[number] for number, seconds in passes.items()])
        seconds = middle(medians.tolist())
        cells.append(
            CostCell(
                requests=requests,
                rows=rows,
                context=context,
                seconds=seconds,
                repeats=sum(map(len, grouped[requests, rows, context].values())),
                spread=float(np.median(np.abs(medians / seconds - 1.0))),
            )
        )
    return tuple(cells)


def fit_cost_table(
    samples: Iterable[CostSample],
    *,
    tiers: tuple[int, ...] | None,
    contract: dict[str, str],
    provenance: dict[str, str],
    holdout: float = 0.2,
    seed: int = 0,
) -> tuple[CostTable, FitReport]:
    """Fit the table on all cells; report errors from a second fit that did not see a share `holdout` of them.

    A cell is held out only when the rest still determines the same values. The fit's figures are added to the
    provenance. Raises UsageError when there is no verify sample or a time is not positive.
    """
    timed = list(samples)
    verify_cells = collapse(timed, "verify")
    draft_cells = collapse(timed, "draft")
    if not verify_cells:
        raise UsageError("no verify samples to fit a cost table on", hint="profile verify shapes first")
    verify, verify_report, verify_table = _fit_phase("verify", verify_cells, tiers, holdout, seed)
    draft: AdditiveFit | None = None
    draft_report: PhaseReport | None = None
    draft_table: tuple[CellFit, ...] = ()
    depth_bias, depth = depth_curve(timed)
    if draft_cells:
        draft, draft_report, draft_table = _fit_phase("draft", draft_cells, None, holdout, seed)
    table = CostTable(
        bias=verify.bias,
        alpha=verify.curves[0],
        theta=verify.curves[1],
        tiers=tiers,
        kappa=verify.kappa,
        walk=verify.walk,
        walk_rise=verify.rise,
        draft_bias=draft.bias if draft else 0.0,
        draft=draft.curves[0] if draft else Curve((1,), (0.0,)),
        draft_kappa=draft.kappa if draft else 0.0,
        depth_bias=depth_bias,
        depth=depth,
        no_draft=no_draft_rounds(timed, verify_cells),
        box=Box(
            requests=_range([cell.requests for cell in verify_cells]),
            rows=_range([cell.rows for cell in verify_cells]),
            context=_range([cell.context for cell in verify_cells]),
        ),
        contract=contract,
        provenance=provenance | _figures(verify_report) | {FALLS: "; ".join(falls(verify_cells)[:FEW]) or NONE},
    )
    return table, FitReport(verify=verify_report, draft=draft_report, cells=verify_table + draft_table)


def no_draft_rounds(samples: Iterable[CostSample], verify: Sequence[CostCell]) -> NoDraftPass | None:
    """No-draft rounds of an arm with a drafter: the passes of arm none, plus what keeping the drafter's context costs.

    That cost is the difference at the fewest requests, where passes of one row a request differ in nothing else. None
    without samples of phase no-draft.
    """
    line = no_draft_pass(samples)
    fewest = [c for c in verify if c.requests == c.rows == min(v.requests for v in verify)]
    if line is None or not fewest:
        return None
    beyond = max(0.0, float(np.median([c.seconds - line.of(c.requests, c.context) for c in fewest])))
    return replace(line, seconds=tuple(seconds + beyond for seconds in line.seconds))


def no_draft_pass(samples: Iterable[CostSample]) -> NoDraftPass | None:
    """The pass of arm none, from samples of phase no-draft; None without any."""
    return no_draft_line((*at, seconds) for at, seconds in _by_place(samples, "no-draft").items())


def depth_curve(samples: Iterable[CostSample]) -> tuple[float, Curve]:
    """Seconds of one depth of the sequential head: at the fewest requests, and what more requests add to it.

    From the median draft of the full block less that of its first depth, of each (R, S), over the depths between;
    medians over S, made to not decrease. (0, flat) without shallow samples.
    """
    timed = list(samples)
    block = max((s.rows for s in timed if s.phase == "shallow"), default=0)
    draft, shallow = (_by_place(timed, phase) for phase in ("draft", "shallow"))
    found: dict[int, list[float]] = {}
    for at in draft.keys() & shallow.keys():
        found.setdefault(at[0], []).append(max(0.0, draft[at] - shallow[at]) / max(block - 1, 1))
    if not found or block < 2:
        return 0.0, Curve((1,), (0.0,))
    knots = sorted(found)
    seconds = np.maximum.accumulate([float(np.median(found[r])) for r in knots])
    return float(seconds[0]), Curve(tuple(knots), tuple(float(s - seconds[0]) for s in seconds))


def _by_place(samples: Iterable[CostSample], phase: Phase | Raw) -> dict[tuple[int, int], float]:
    """Seconds of the phase by (R, S)."""
    cells = collapse([replace(s, phase="draft") for s in samples if s.phase == phase], "draft")
    return {(c.requests, c.context): c.seconds for c in cells}


def _fit_phase(
    phase: Phase, cells: tuple[CostCell, ...], tiers: tuple[int, ...] | None, holdout: float, seed: int
) -> tuple[AdditiveFit, PhaseReport, tuple[CellFit, ...]]:
    requests = np.array([cell.requests for cell in cells], np.int64)
    context = np.array([cell.context for cell in cells], np.int64)
    seconds = np.array([cell.seconds for cell in cells])
    axes, names, free, walked = [requests], ["draft"], [True], None
    if phase == "verify":
        walked = context / requests
        axes.append(round_up([cell.rows for cell in cells], tiers))
        names, free = ["alpha", "theta"], [False, True]

    fit = fit_additive(axes, context, seconds, free=free, walked=walked)
    fitted = fit.predict(axes, context, walked)
    heldout_residual = np.full(len(cells), np.nan)
    spared = choose_holdout(axes, context, share=holdout, seed=seed, keep_levels=tiers is not None)
    if spared.any():
        rest, far = [axis[~spared] for axis in axes], None if walked is None else walked[~spared]
        partial = fit_additive(rest, context[~spared], seconds[~spared], free=free, walked=far)
        far = None if walked is None else walked[spared]
        unseen = partial.predict([axis[spared] for axis in axes], context[spared], far)
        heldout_residual[spared] = unseen / seconds[spared] - 1.0

    residual = fitted / seconds - 1.0
    loose = confounded(axes, context, names, walked)
    report = _report(cells, residual, heldout_residual[spared], loose)
    return fit, report, _cell_fits(phase, cells, fitted, residual, heldout_residual, spared)


def _cell_fits(
    phase: Phase,
    cells: Sequence[CostCell],
    fitted: FloatArray,
    residual: FloatArray,
    heldout_residual: FloatArray,
    spared: NDArray[np.bool_],
) -> tuple[CellFit, ...]:
    return tuple(
        CellFit(
            phase=phase,
            cell=cell,
            fitted=float(fitted[i]),
            residual=float(residual[i]),
            heldout_residual=float(heldout_residual[i]) if spared[i] else None,
        )
        for i, cell in enumerate(cells)
    )


def _report(cells: Sequence[CostCell], residual: FloatArray, unseen: FloatArray, loose: tuple[str, ...]) -> PhaseReport:
    size, unseen_size = np.abs(residual), np.abs(unseen)
    return PhaseReport(
        cells=len(cells),
        heldout_cells=len(unseen),
        heldout_median=float(np.median(unseen_size)) if len(unseen) else None,
        heldout_p95=float(np.quantile(unseen_size, 0.95)) if len(unseen) else None,
        insample_median=float(np.median(size)),
        insample_p95=float(np.quantile(size, 0.95)),
        spread_median=float(np.median([cell.spread for cell in cells])),
        confounded=loose,
    )


def _figures(report: PhaseReport) -> dict[str, str]:
    heldout = "none" if report.heldout_median is None else f"{report.heldout_median:.4f}"
    p95 = "none" if report.heldout_p95 is None else f"{report.heldout_p95:.4f}"
    return {
        "fit_cells": str(report.cells),
        HELDOUT: str(report.heldout_cells),
        MEDIAN: heldout,
        P95: p95,
        "fit_confounded": ", ".join(report.confounded) or "none",
    }


def _range(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)
