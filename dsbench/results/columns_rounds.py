"""Columns: what came of the rounds of the measured requests. Words: delivered and ceiling count the bonus token."""

from __future__ import annotations

from dsbench.results.column import Column

ROUNDS: tuple[Column, ...] = (
    Column(name="rounds", unit="rounds", kind="count", formula="verify rounds of the measured requests", always=True),
    Column(
        name="tau",
        unit="tokens per verify round",
        kind="rate",
        shown=("show", "frontier", "reading"),
        also=("accepted length", "acceptance length", "al"),
        formula="sum(delivered) / verify rounds, delivered = accepted drafts + 1 bonus token; a ratio of sums",
        others="vLLM, SGLang, the DSpark paper: the same, bonus included. AIPerf also the mean of per-request means. "
        "TensorRT-LLM's forced acceptance leaves the bonus out: tau - 1",
    ),
    Column(
        name="repetition",
        unit="share",
        kind="number",
        head="rep.",
        shown=("show", "reading"),
        also=("4-gram repetition", "rep."),
        formula="4-grams of an output seen before in it / its 4-grams, mean over requests: looping text flatters tau",
    ),
    Column(
        name="accepted",
        unit="drafts per verify round",
        kind="rate",
        formula="sum(accepted drafts) / verify rounds = tau - 1; bonus not counted",
    ),
    Column(
        name="window",
        unit="drafts per round and request",
        kind="rate",
        shown=("show", "frontier", "reading"),
        also=("verify budget", "budget"),
        formula="mean over rounds of the drafts sent to verification that could be committed, 0..G; rows = window + 1",
        others="the DSpark paper's and SGLang's verify budget counts the bonus row: window + 1",
    ),
    Column(
        name="ceiling",
        unit="tokens per round",
        kind="rate",
        under="window",
        shown=("show", "reading"),
        formula="mean of what had been delivered, had the full block been verified, over the rounds that show it",
    ),
    Column(
        name="ceiling_seen",
        unit="share",
        kind="number",
        formula="rounds that show what the full block had delivered / all rounds",
    ),
    Column(
        name="utilisation",
        unit="share",
        kind="rate",
        shown=("reading",),
        formula="sum(delivered) / sum(ceiling), over the rounds whose ceiling was seen",
    ),
    Column(
        name="acceptance_of_drafted",
        unit="share",
        kind="rate",
        formula="sum(accepted drafts) / sum(drafts proposed), bonus in neither",
        others="vLLM, SGLang, AIPerf call this the acceptance rate; the DSpark paper's counts the bonus in both",
        also=("acceptance rate",),
    ),
    Column(
        name="acceptance_of_scheduled",
        unit="share",
        kind="rate",
        shown=("reading",),
        formula="sum(accepted drafts) / sum(window): of the drafts that were verified and could be kept",
        others="AIPerf: accepted/verified. Equals the rate of drafted only where full blocks are verified",
    ),
    Column(
        name="acceptance_by_depth",
        unit="share per depth",
        kind="depths",
        also=("conditional acceptance",),
        formula="depth d: matches at d / rounds that judged d and matched every depth before it",
        others="vLLM's per-position rate divides by all drafts (survival, not conditional): wrong under trimming",
    ),
    Column(
        name="window_counts", unit="rounds", kind="counts", formula="rounds whose window was 0, 1, ..., G: a count each"
    ),
    Column(
        name="flips_per_1000",
        unit="per 1000 tokens",
        kind="rate",
        also=("flips",),
        formula="1000 x positions where the arm's own choice differs from the pinned text / delivered tokens",
    ),
    Column(
        name="workloads",
        unit="object",
        kind="parts",
        formula="of a mixed cell: requests, prompts, repetition and the numbers of rounds, by each request's workload",
    ),
)
