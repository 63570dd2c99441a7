"""Words of the tables that are no number of a cell, with their definitions: verdicts, intervals, arms, break-even.

Others as read in their sources (vLLM, SGLang, AIPerf, GuideLLM, LLMPerf, InferenceX, MLPerf, TensorRT-LLM) or papers.
"""

from __future__ import annotations

from dsbench.results.column import Column, Place


def _term(
    name: str, unit: str, formula: str, *, others: str = "", also: tuple[str, ...] = (), shown: tuple[Place, ...] = ()
) -> Column:
    return Column(name=name, unit=unit, kind="term", formula=formula, others=others, also=also, source="", shown=shown)


TERMS: tuple[Column, ...] = (
    _term(
        "ratio",
        "relative",
        "throughput of B / of A over the prompts that both served, paired by prompt where texts are the same",
        others="Spec-Bench: mean rate / mean rate, unpaired",
    ),
    _term(
        "verdict",
        "word",
        "FASTER, SLOWER: the whole interval beyond the noise band; SAME: inside it; UNCLEAR: across an edge, or of "
        "fewer than five prompts",
        also=("faster", "slower", "same", "unclear"),
        others="nvbench: SAME, FAST, SLOW, AMBG",
        shown=("reading",),
    ),
    _term(
        "noise_band",
        "relative",
        "what 95% of A/A pairs (one thing measured twice) lie within, from `dsbench noise`; 2% without it",
        also=("noise band", "band", "a/a"),
        others="nvbench: a threshold on relative noise of each side. asv: a fixed factor",
    ),
    _term(
        "detectable",
        "relative",
        "the true difference that would be called FASTER or SLOWER 4 times in 5 at these repeats: noise band, plus "
        "half the interval, plus the 80% quantile of its error",
        also=("minimum detectable effect", "mde"),
    ),
    _term(
        "block_noise",
        "relative",
        "standard deviation of the error that repeats of one cell share, its degrees of freedom beside it",
    ),
    _term(
        "interval",
        "as its value",
        "95% bootstrap over prompts, repeats averaged in each; `compare` adds the error between repeats, Student's t "
        "with a variance shared over cells (Smyth 2004)",
        also=("confidence interval", "ci"),
        others="most tools print none; AIPerf: t over whole runs",
    ),
    _term(
        "percentile",
        "as its value",
        "over all measured requests of all repeats, linear between ranks; intervals resample prompts. p95 needs 20 of "
        "them, p99 100",
        also=("p50", "p95", "p99"),
        others="GuideLLM: rank ceil(0.99 n), so that p99 of fewer than 100 is the largest",
    ),
    _term(
        "allowed",
        "requests, or requests/s",
        "`dsbench slo`: the largest load that ran at which, as at every lower one, the share of good requests reaches "
        "the target. Loads that did not run are no data",
        also=("slo load", "max concurrency"),
        others="evalscope, AIPerf: a search that runs more loads",
    ),
    _term(
        "burstiness",
        "number",
        "shape of the gamma law of intervals between requests: 1 Poisson, below 1 bursts, inf a steady beat",
        others="vLLM: the same",
    ),
    _term(
        "utility",
        "share",
        "W x throughput / best throughput + (1 - W) x per-user speed / best per-user speed, over the row totals of a "
        "step; per-user speed: 1 / mean over requests of expected seconds a token. compact: W = 1",
        also=("compact:utility", "compact:latency", "objective"),
        others="vLLM, SGLang, the DSpark paper: throughput alone",
    ),
    _term(
        "no_draft_round",
        "round",
        "a round of compact that drafts nothing and verifies one row a request, since by the cost table and the "
        "survivals read last it brings more tokens a second; after 16 in a row one drafts. Where rounds overlap",
        others="vLLM's speculative_disable_by_batch_size of 2024: none above a batch size that is named. SGLang's "
        "--speculative-adaptive: down to 0 steps as the batch grows",
    ),
    _term(
        "oracle",
        "arm",
        "as compact, but that it knows which drafts the recorded text takes: it verifies of them what pays by the cost "
        "table, and nothing else. Knowing is free: its clock stands still while the host waits for the answer",
        also=("compact:oracle", "upper bound"),
    ),
    _term(
        "zombies",
        "rows per step",
        "rows, drafts included, of slots whose request had ended, unknown to the step when it was launched or not yet "
        "replaced; their tokens are dropped and are not in tau. In the steps table",
        also=("zombie rows",),
    ),
    _term(
        "saved",
        "ms per round",
        "`dsbench break-even`: delivered x a no-draft round - the round: above 0 drafting pays. Prefill left out",
        also=("break-even", "break even"),
    ),
    _term(
        "needed",
        "tokens per round",
        "`dsbench break-even`: the round / a no-draft round: delivered tokens at which drafting breaks even",
    ),
    _term(
        "acceptance_needed",
        "share",
        "`dsbench break-even`: (needed - 1) / window; above 100% no acceptance would do at this window",
    ),
    _term(
        "waterfall",
        "ms per token",
        "`dsbench waterfall`: the change of a request's time per output token from one arm to another. accepted "
        "length: rounds a token, at the mean price of a round; draft, verify, padding, host: a round's time, at the "
        "mean number of rounds; prefill: waiting for prompts. The parts add up; products are split at the midpoint",
    ),
)
