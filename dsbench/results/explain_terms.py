"""What each number of the tables means: formula, unit, how others define it. Data only; `metrics` computes them.

Others as read in their sources (vLLM, SGLang, AIPerf, GuideLLM, LLMPerf, InferenceX, MLPerf, TensorRT-LLM) or papers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """`formula` as dsbench computes it; `others`: who defines it how, "" where nobody else has it."""

    unit: str
    formula: str
    others: str = ""
    also: tuple[str, ...] = ()  # other names, and keys of summary.csv


TERMS: dict[str, Term] = {
    "tau": Term(
        unit="tokens per verify round",
        also=("accepted length", "acceptance length", "al"),
        formula="sum(delivered) / verify rounds, delivered = accepted drafts + 1 bonus token; a ratio of sums",
        others="vLLM, SGLang, the DSpark paper: the same, bonus included. AIPerf also the mean of per-request means. "
        "TensorRT-LLM's forced acceptance leaves the bonus out: tau - 1",
    ),
    "accepted": Term(
        unit="drafts per verify round", formula="sum(accepted drafts) / verify rounds = tau - 1; bonus not counted"
    ),
    "acceptance_of_drafted": Term(
        unit="share",
        formula="sum(accepted drafts) / sum(drafts proposed), bonus in neither",
        others="vLLM, SGLang, AIPerf call this the acceptance rate; the DSpark paper's counts the bonus in both",
        also=("acceptance rate",),
    ),
    "acceptance_of_scheduled": Term(
        unit="share",
        formula="sum(accepted drafts) / sum(window): of the drafts that were verified and could be kept",
        others="AIPerf: accepted/verified. Equals the rate of drafted only where whole blocks are verified",
    ),
    "acceptance_by_depth": Term(
        unit="share per depth",
        also=("conditional acceptance",),
        formula="depth d: matches at d / rounds that judged d and matched every depth before it",
        others="vLLM's per-position rate divides by all drafts (survival, not conditional): wrong under trimming",
    ),
    "window": Term(
        unit="drafts per round and request",
        also=("verify budget", "budget"),
        formula="mean over rounds of the drafts sent to verification that could be committed, 0..G; rows = window + 1",
        others="the DSpark paper's and SGLang's verify budget counts the bonus row: window + 1",
    ),
    "ceiling": Term(
        unit="tokens per round",
        also=("ceiling_seen",),
        formula="mean of what had been delivered, had the whole block been verified, over the rounds that show it",
    ),
    "utilisation": Term(unit="share", formula="sum(delivered) / sum(ceiling), over the rounds whose ceiling was seen"),
    "throughput": Term(
        unit="tokens/s",
        also=("tokens/s", "output throughput", "tput"),
        formula="R x sum(output tokens) / sum(finished - admitted) over measured requests: Little's law at R slots. "
        "Open loop: tokens of everybody / seconds, from the first measured arrival to the last measured end",
        others="vLLM, SGLang, AIPerf: output tokens / wall time, ramp-up and drain included. InferenceX: per GPU, "
        "total (prompt too) and output variants",
    ),
    "user_speed": Term(
        unit="tokens/s/user",
        also=("per-user speed", "per user", "interactivity", "tps/user"),
        formula="sum(n - 1) / sum(finished - first token) over measured requests, n output tokens: 1 / mean TPOT "
        "weighted by tokens",
        others="others have other values for one run: speed_by_mean_tpot and speed_by_p90_tpot (InferenceX), "
        "speed_mean_of_rates and speed_p90_of_rates (AIPerf, GenAI-Perf), speed_e2e_mean_of_rates (AIPerf, GuideLLM), "
        "speed_e2e, speed_by_p90_e2e (InferenceX AgentX), speed_by_concurrency (vLLM); all in summary.csv",
    ),
    "user_speed_p10": Term(
        unit="tokens/s/user",
        formula="10th percentile over prompts of (n - 1) / seconds after the first token: slow tail",
        others="InferenceX calls the slow tail P90 interactivity; AIPerf's p90 is the other end",
        also=("slow tail",),
    ),
    "speed_by_mean_tpot": Term(
        unit="tokens/s/user",
        formula="1 / mean over requests of TPOT",
        others="InferenceX's interactivity: 1000 / mean TPOT in ms. vLLM, SGLang print the mean TPOT itself",
    ),
    "speed_by_p90_tpot": Term(
        unit="tokens/s/user",
        formula="1 / 90th percentile over requests of TPOT: the slow tail",
        others="InferenceX: P90 interactivity",
    ),
    "speed_mean_of_rates": Term(
        unit="tokens/s/user",
        formula="mean over requests of 1 / TPOT: at least 1 / mean TPOT, by Jensen",
        others="AIPerf, GenAI-Perf: output token throughput per user, 1 / ITL of each request",
    ),
    "speed_p90_of_rates": Term(
        unit="tokens/s/user",
        formula="90th percentile over requests of 1 / TPOT: the fast tail",
        others="AIPerf, GenAI-Perf: p90 of output token throughput per user",
    ),
    "speed_e2e_mean_of_rates": Term(
        unit="tokens/s/user",
        formula="mean over requests of n / E2E, first token and waiting included",
        others="AIPerf: E2E output token throughput. GuideLLM: output tokens per second of a request",
    ),
    "speed_e2e": Term(
        unit="tokens/s/user",
        formula="sum(n) / sum(E2E) over requests: 1 / mean of E2E / n weighted by tokens",
        others="GuideLLM's time per output token is E2E / n",
    ),
    "speed_by_p90_e2e": Term(
        unit="tokens/s/user",
        formula="1 / 90th percentile over requests of E2E / n",
        others="InferenceX AgentX: the default axis",
    ),
    "speed_by_concurrency": Term(
        unit="tokens/s/user",
        formula="throughput / R, requests at a time (in the open loop: at most)",
        others="vLLM's Pareto plot: output throughput / configured concurrency",
    ),
    "tpot": Term(
        unit="s/token",
        also=("time per output token", "tpot_p50", "tpot_p95", "tpot_p99"),
        formula="(E2E - TTFT) / (n - 1) of a request; none for an answer of one token. Percentiles over requests",
        others="vLLM, SGLang, MLPerf: the same, requests weighted equally. GuideLLM: E2E / n, first token included",
    ),
    "itl": Term(
        unit="s",
        also=("inter-token latency", "itl_p50", "itl_p95", "itl_p99", "itl_max"),
        formula="time from one output token to the next; the tokens of one round come together, so 0, 0, ..., gap. "
        "Percentiles over tokens of all requests; in requests.parquet over the request's own; SLOs limit the longest",
        others="vLLM: one sample a chunk, so about tau x TPOT under speculation. SGLang: gap / new tokens. AIPerf, "
        "GuideLLM: per-request mean, which is TPOT. LLMPerf: TTFT included",
    ),
    "ttft": Term(
        unit="s",
        also=("time to first token", "ttft_p50", "ttft_p95", "ttft_p99"),
        formula="first token - arrived. arrived: when the schedule says that it comes, however late the engine is for "
        "it; at fixed concurrency, when it took its slot. Percentiles over requests",
        others="tools that send a request once a slot is free leave its wait out (coordinated omission); servers' "
        "tools count the network too",
    ),
    "e2e": Term(
        unit="s",
        also=("latency", "e2el", "e2e_p50", "e2e_p95", "e2e_p99"),
        formula="finished - arrived of a request (see ttft). Percentiles over requests",
        others="servers' tools count the network too",
    ),
    "percentile": Term(
        unit="as its value",
        also=("p50", "p95", "p99"),
        formula="over all measured requests of all repeats, linear between ranks; intervals resample prompts. p95 "
        "needs 20 of them, p99 100",
        others="GuideLLM: rank ceil(0.99 n), so that p99 of fewer than 100 is the largest",
    ),
    "goodput": Term(
        unit="share, and tokens/s",
        also=("goodput_tokens", "slo"),
        formula="measured requests that meet every limit of --slo / those sent; goodput_tokens: throughput x their "
        "share of the tokens. An answer of one token meets limits on TPOT and ITL",
        others="vLLM, SGLang, AIPerf: good requests a second; a one-token answer passes in vLLM and SGLang, fails in "
        "AIPerf. inference-perf: / successful ones. MLPerf: the largest Poisson rate whose p99 meets the limits",
    ),
    "allowed": Term(
        unit="requests, or requests/s",
        also=("slo load", "max concurrency"),
        formula="`dsbench slo`: the largest load that ran at which, as at every lower one, the share of good requests "
        "reaches the target. Loads that did not run are no data",
        others="evalscope, AIPerf: a search that runs more loads",
    ),
    "offered_rate": Term(
        unit="requests/s",
        also=("request rate", "arrivals"),
        formula="(measured requests - 1) / time between the first and the last arrival: what really came",
        others="vLLM: the configured rate, its intervals scaled so that they add up to it",
    ),
    "served_rate": Term(
        unit="requests/s", formula="throughput / mean output tokens of a request; below offered_rate the queue grows"
    ),
    "queue_wait": Term(unit="s", formula="mean of admitted - arrived: waiting for a slot"),
    "burstiness": Term(
        unit="number",
        formula="shape of the gamma law of intervals between requests: 1 Poisson, below 1 bursts, inf a steady beat",
        others="vLLM: the same",
    ),
    "utility": Term(
        unit="share",
        also=("compact:utility", "compact:latency", "objective"),
        formula="W x throughput / best throughput + (1 - W) x per-user speed / best per-user speed, over the row "
        "totals of a step; per-user speed: 1 / mean over requests of expected seconds a token. compact: W = 1",
        others="vLLM, SGLang, the DSpark paper: throughput alone",
    ),
    "padding": Term(
        unit="share of rows",
        also=("padding_share",),
        formula="sum(tier - rows) / sum(tier) over full steps: rows of a captured graph that belong to nobody",
    ),
    "plain_round": Term(
        unit="round",
        also=("plain round",),
        formula="a round of compact that drafts nothing and verifies one row a request, since by the cost table and "
        "the survivals read last it brings more tokens a second; after 16 in a row one drafts. Where rounds overlap",
        others="vLLM's speculative_disable_by_batch_size of 2024: none above a batch size that is named. SGLang's "
        "--speculative-adaptive: down to 0 steps as the batch grows",
    ),
    "oracle": Term(
        unit="arm",
        also=("compact:oracle", "upper bound"),
        formula="as compact, but that it knows which drafts the recorded text takes: it verifies of them what pays by "
        "the cost table, and nothing else. Knowing is free: its clock stands still while the host waits for the answer",
    ),
    "idle": Term(
        unit="share of step time",
        also=("idle_share",),
        formula="sum(idle seconds) / sum(step seconds) over full steps: the device has nothing to do until its host "
        "launches more. Above 5% the cell is flagged. Where every phase is waited for it is not told apart, and is 0",
    ),
    "zombies": Term(
        unit="rows per step",
        also=("zombie rows",),
        formula="rows, drafts included, of seats whose request had ended, unknown to the step when it was launched or "
        "not yet replaced; their tokens are dropped and are not in tau. In the steps table",
    ),
    "fallback_steps": Term(
        unit="steps",
        also=("fallback",),
        formula="steps after what chooses windows had failed (budget, cost table, calibration, a reading of what a "
        "round left): whole blocks are verified from then on, and the text is the same. The cell is flagged",
    ),
    "flips_per_1000": Term(
        unit="per 1000 tokens",
        also=("flips",),
        formula="1000 x positions where the arm's own choice differs from the pinned text / delivered tokens",
    ),
    "repetition": Term(
        unit="share",
        also=("4-gram repetition", "rep."),
        formula="4-grams of an output seen before in it / its 4-grams, mean over requests: looping text flatters tau",
    ),
    "draft_share": Term(
        unit="share of step time",
        also=("draft share", "share_draft", "phase_share"),
        formula="sum(draft seconds) / sum(step seconds) over full steps; likewise plan, pack, verify, accept, commit",
    ),
    "step_seconds": Term(
        unit="s",
        also=("step_seconds_p50",),
        formula="from the end of one round to the end of the next on the device, prompts between them left out. "
        "p10, p50, p90 of the steps whose seats were all taken",
        others="SGLang's SPS profiler: one median of the host interval a shape",
    ),
    "full_steps": Term(
        unit="share",
        formula="steps whose R seats were all taken / steps with a measured request. Where rounds "
        "overlap, a request that has ended holds its seat until that is read",
    ),
    "predicted_error": Term(
        unit="relative", formula="median of |predicted / measured step seconds - 1|; bias: of its signed form"
    ),
    "drift": Term(
        unit="relative",
        formula="median step time of a repeat's last quarter / of its first, - 1; median over repeats; over the step's "
        "predicted time where there is a cost table, as an arm may choose shorter steps than before",
    ),
    "ratio": Term(
        unit="relative",
        also=("vs_static", "vs_none", "vs_fixed", "speed-up"),
        formula="throughput of B / of A over the prompts that both served, paired by prompt where texts are the same",
        others="Spec-Bench: mean rate / mean rate, unpaired",
    ),
    "interval": Term(
        unit="as its value",
        also=("confidence interval", "ci"),
        formula="95% bootstrap over prompts, repeats averaged in each; `compare` adds the error between repeats, "
        "Student's t with a variance shared over cells (Smyth 2004)",
        others="most tools print none; AIPerf: t over whole runs",
    ),
    "noise_band": Term(
        unit="relative",
        also=("noise band", "band", "a/a"),
        formula="what 95% of A/A pairs (one thing measured twice) lie within, from `dsbench noise`; 2% without it",
        others="nvbench: a threshold on relative noise of each side. asv: a fixed factor",
    ),
    "verdict": Term(
        unit="word",
        also=("faster", "slower", "same", "unclear"),
        formula="FASTER, SLOWER: the whole interval beyond the noise band; SAME: inside it; UNCLEAR: across an edge, "
        "or of fewer than five prompts",
        others="nvbench: SAME, FAST, SLOW, AMBG",
    ),
    "detectable": Term(
        unit="relative",
        also=("minimum detectable effect", "mde"),
        formula="the true difference that would be called FASTER or SLOWER 4 times in 5 at these repeats: noise band, "
        "plus half the interval, plus the 80% quantile of its error",
    ),
}
