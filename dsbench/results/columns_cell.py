"""Columns: a cell's parameters, the run's memory, and an arm's throughput against others."""

from __future__ import annotations

from dsbench.results.column import Column, Kind


def _parameter(name: str, kind: Kind, unit: str, formula: str, *, key: str = "", also: tuple[str, ...] = ()) -> Column:
    path = (key,) if key else ()
    return Column(name=name, kind=kind, unit=unit, formula=formula, source="parameter", path=path, also=also)


PARAMETERS: tuple[Column, ...] = (
    _parameter("mode", "text", "words", "the arm that --mode named"),
    _parameter("batch", "count", "requests", "R: requests at a time, or at most (open loop)", also=("R", "batch size")),
    _parameter("workload", "text", "words", "the workload, or mix of workloads, that prompts come from"),
    _parameter("prompts_digest", "text", "digest", "of the workload's prompts", key="prompts"),
    _parameter("template", "text", "digest", "of the chat template with its arguments; empty: no text is encoded"),
    _parameter("tokenizer", "text", "digest", "of the tokenizer and the end tokens"),
    _parameter("accept", "text", "words", "acceptance rule: coupled or residual"),
    _parameter("temperature", "number", "number", "of the logits; 0: their maximum"),
    _parameter("top_k", "count", "tokens", "the most probable tokens that are kept; 0: all"),
    _parameter("top_p", "number", "share", "the probability that kept tokens reach together; 1: all"),
    _parameter("text", "text", "words", "pinned: every arm commits the recorded text; free: its own"),
    _parameter("seed", "count", "number", "of the run: requests' noise, prompts' order, arrivals"),
    _parameter("max_tokens", "count", "tokens", "output tokens of a request at most"),
    _parameter("start", "text", "words", "of the first R requests of a closed loop: together or spread"),
    _parameter("measured", "count", "requests", "requests whose times count, in a repeat; the first R warm the slots"),
    _parameter("lag", "count", "steps", "age of the confidences that a budget is chosen by"),
    _parameter("draft", "text", "words", "planned: the depth is planned too; full: the full block is drafted"),
    _parameter("cost", "text", "digest", "of the cost table; empty for an arm that plans without one"),
    _parameter("calibration", "text", "digest", "of the calibrations; empty for an arm that reads no confidence"),
    _parameter("acceptance", "text", "words", "the recorded acceptance that is replayed; empty: the run's own"),
    _parameter("arrivals", "text", "words", "the arrival process of an open loop; empty: fixed concurrency"),
    _parameter("rate", "number", "requests/s", "that the arrival process was asked for; 0: none"),
    _parameter("prompt_lengths", "text", "words", "the law of prompt lengths; empty: the prompts' own"),
    _parameter("output_lengths", "text", "words", "the law of answer lengths; empty: at most max_tokens"),
)
RUN: tuple[Column, ...] = (
    Column(
        name="memory",
        unit="bytes",
        kind="count",
        source="run",
        path=("memory", "peak"),
        also=("peak memory",),
        formula="peak of the process that ran the cells: reserved on the device by torch, or resident where it is the "
        "CPU. Its parts, by sums over tensors: weights, KV pages, draft state, captured graphs; rest: what remains",
    ),
)
OVER = {
    "static": "the full block, static",
    "none": "no drafts at all, none",
    "fixed": "the best window of one size, chosen on one half of the repeats or prompts and compared on the other, "
    "both ways round",
}
COMPARED: tuple[Column, ...] = (
    *(
        Column(
            name=f"vs_{base}",
            unit="relative",
            kind="ratio",
            source="compared",
            shown=("show",),
            head="vs best fixed" if base == "fixed" else f"vs {base}",
            also=("speed-up",) if base == "none" else ("regret",) if base == "fixed" else (),
            formula=f"throughput / that of {words}, over the prompts that both served, paired by prompt",
            others="Spec-Bench: mean rate / mean rate, unpaired",
        )
        for base, words in (("static", OVER["static"]), ("fixed", OVER["fixed"]), ("none", OVER["none"]))
    ),
    Column(
        name="fixed_arm",
        unit="words",
        kind="text",
        source="compared",
        formula="the arms of one window that vs_fixed compares with",
    ),
    Column(
        name="fixed_chosen_on",
        unit="words",
        kind="text",
        source="compared",
        formula="the part of the data that the best fixed window was chosen on",
    ),
)
