"""Columns: the steps of the engine, where their time went, and what the cost table predicted of them."""

from __future__ import annotations

from dsbench.results.column import Column

PHASES = ("draft", "plan", "pack", "verify", "accept", "commit")
QUANTILES = {"p10": "10%", "p50": "50%", "p90": "90%"}


def _step_seconds(point: str) -> Column:
    return Column(
        name=f"step_seconds_{point}",
        unit="s",
        kind="number",
        path=("step_seconds", point),
        also=("step_seconds",) if point == "p50" else (),
        formula="from the end of one round to the end of the next on the device, without the prompts between them. "
        f"{QUANTILES[point]} quantile of the steps whose slots were all occupied",
        others="SGLang's SPS profiler: one median of the host interval a shape" if point == "p50" else "",
    )


def _share(phase: str) -> Column:
    rest = "what no phase covers" if phase == "other" else f"sum({phase} seconds)"
    return Column(
        name=f"share_{phase}",
        unit="share of step time",
        kind="number",
        path=("phase_share", phase),
        also=("draft share", "phase_share") if phase == "draft" else (),
        formula=f"{rest} / sum(step seconds) over full steps",
    )


STEPS: tuple[Column, ...] = (
    Column(
        name="steps", unit="steps", kind="count", formula="steps in which a measured request took part", always=True
    ),
    Column(
        name="full_steps",
        unit="share",
        kind="number",
        formula="steps whose R slots were all occupied / steps with a measured request; none in the open loop. Where "
        "rounds overlap, a request that has ended holds its slot until that is read",
    ),
    *map(_step_seconds, QUANTILES),
    *map(_share, (*PHASES, "other")),
    Column(
        name="idle_share",
        unit="share of step time",
        kind="number",
        also=("idle",),
        formula="sum(idle seconds) / sum(step seconds) over full steps: the device has nothing to do until its host "
        "launches more. Above 5% the cell is flagged. Where every phase is waited for it is not told apart, and is 0",
    ),
    Column(
        name="rows_per_step", unit="rows", kind="number", formula="mean over full steps of the rows of a target's pass"
    ),
    Column(
        name="padding_share",
        unit="share of rows",
        kind="number",
        shown=("reading",),
        also=("padding",),
        formula="sum(tier - rows) / sum(tier) over full steps: rows of a captured graph that belong to nobody",
    ),
    Column(
        name="extrapolated_share",
        unit="share",
        kind="number",
        also=("extrapolated",),
        formula="full steps outside what the cost table was measured at / full steps. Above 5% the cell is flagged",
    ),
    Column(
        name="missed_steps",
        unit="steps",
        kind="count",
        formula="full steps that fitted no captured graph and ran without one. The cell is flagged",
    ),
    Column(
        name="compiled_steps",
        unit="steps",
        kind="count",
        formula="full steps during which a kernel was compiled. The cell is flagged",
    ),
    Column(
        name="fallback_steps",
        unit="steps",
        kind="count",
        also=("fallbacks",),
        formula="steps after what chooses windows had failed (budget, cost table, calibration, a reading of what a "
        "round left): full blocks are verified from then on, and the text is the same. The cell is flagged",
    ),
    Column(name="fallback", unit="words", kind="text", formula="what failed first, empty where nothing did"),
    Column(
        name="predicted_error",
        unit="relative",
        kind="number",
        shown=("reading",),
        path=("predicted_error", "median"),
        formula="median of |predicted / measured step seconds - 1|, prompts left out, over full steps",
    ),
    Column(
        name="predicted_bias",
        unit="relative",
        kind="number",
        path=("predicted_error", "bias"),
        formula="median of predicted / measured step seconds - 1, prompts left out, over full steps",
    ),
    Column(
        name="drift",
        unit="relative",
        kind="number",
        path=("drift", "change"),
        formula="median step time of a repeat's last quarter / of its first, - 1; median over repeats; over the step's "
        "predicted time where there is a cost table, as an arm may choose shorter steps than before",
    ),
)
