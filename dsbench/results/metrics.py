"""From a cell's records to its numbers: what every key of a summary means is defined here and nowhere else.

Takes the tables steps, rounds and requests of all repeats; only measured requests and their rounds count. Repeats of a
prompt are averaged inside it, then prompts are resampled. Rates are {value, low, high, n}, or None where nothing was
seen. Words: a window counts drafts; delivered and ceiling count the bonus too. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.errors import UsageError
from dsbench.results.latency import SPEEDS, latencies, percentiles, user_speeds
from dsbench.results.open_loop import open_flags, open_rates
from dsbench.results.store import StoredCell
from dsbench.stats.intervals import Held, Interval, quantile_of, ratio_of_sums

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("draft", "plan", "pack", "verify", "accept", "commit")
ROUND_KEYS = (
    "tau",
    "accepted",
    "window",
    "ceiling",
    "ceiling_seen",
    "utilisation",
    "acceptance_of_drafted",
    "acceptance_of_scheduled",
    "acceptance_by_depth",
    "window_counts",
    "flips_per_1000",
)
HELD_COLUMNS = ("name", "output_tokens", "admitted", "finished", "rep")
LEAST_FULL = 0.95
DRIFT_LIMIT = 0.05
MOST_IDLE = 0.05
AFTER_A_FAILURE = "came after a failure, windows fixed since"
MOST_BEYOND = 0.05  # of steps, outside what the cost table was measured at
DRIFTS = "step time drifts by"
MOST_ERROR = 0.25  # of a step's predicted time, the median: a table that is further off plans for another machine
DRIFT_STEPS = 8  # fewer full steps in a repeat than this say nothing of drift

Rate = dict[str, Any] | None


def cell_summary(
    steps: pd.DataFrame,
    rounds: pd.DataFrame,
    requests: pd.DataFrame,
    *,
    batch: int,
    block: int,
    seed: int = 0,
    open_loop: bool = False,
) -> dict[str, Any]:
    """All numbers of a cell with block size `block`, ready for JSON; seconds and tokens/s.

    `batch` requests ran at a time: always, or, in an `open_loop` (whose own numbers are `open_rates`), at most. Raises
    UsageError when no request was measured.
    """
    served, seen = measured(requests), measured(rounds)
    if served.empty:
        raise UsageError("the cell has no measured request", hint="run it with more requests than the batch size")
    repetition = float(served["repetition"].mean()) if "repetition" in served else None
    body: dict[str, Any] = {
        "requests": len(served),
        "prompts": int(served["name"].nunique()),
        "repeats": int(served["rep"].nunique()),
        "output_tokens": int(served["output_tokens"].sum()),
        "rounds": len(seen),
        "repetition": repetition,
        **_request_rates(served, batch, seed),
        **percentiles(served, seen, steps, seed=seed),
        **_round_rates(seen, block, seed),
        **_step_numbers(_measured_steps(steps, seen), None if open_loop else batch),
    }
    body |= open_rates(served, steps) if open_loop else {}
    body |= _user_speeds(served, body, batch)
    if served["workload"].nunique() > 1:
        body["workloads"] = by_workload(rounds, requests, block=block, seed=seed)
    return body | {"flags": _flags(body, batch, block)}


def _flags(body: Mapping[str, Any], batch: int, block: int) -> list[str]:
    """What casts doubt on the cell's numbers, in words."""
    unused = block > 0 and body["rounds"] and body["window"] is not None and body["window"]["value"] == 0
    drift, full = body["drift"], body["full_steps"]
    flags = [f"{DRIFTS} {drift['change']:+.1%} within a repeat"] if drift and drift["drifts"] else []
    for name, words in (("missed_steps", "fitted no captured graph"), ("compiled_steps", "compiled a kernel")):
        flags += [f"{body[name]} of {body['steps']} steps {words}"] if body.get(name) else []
    if body.get("fallback_steps"):
        flags.append(f"{body['fallback_steps']} of {body['steps']} steps {AFTER_A_FAILURE}: {body['fallback']}")
    flags += ["no draft was verified in any round"] if unused else []
    if (body.get("idle_share") or 0) > MOST_IDLE:
        flags.append(f"the device waited for its host {body['idle_share']:.0%} of the time")
    if (body.get("predicted_error") or {}).get("median", 0) > MOST_ERROR:
        flags.append(f"the cost table is off by {body['predicted_error']['median']:.0%}")
    if (body.get("extrapolated_share") or 0) > MOST_BEYOND:
        flags.append(f"{body['extrapolated_share']:.0%} of steps lie beyond the cost table")
    if full is None:
        return flags + open_flags(body)
    return flags + ([f"only {full:.0%} of steps ran {batch} requests"] if full < LEAST_FULL else [])


def by_workload(
    rounds: pd.DataFrame, requests: pd.DataFrame, *, block: int, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Round numbers of each request's own workload: what a mixed cell is made of. Throughput is the cell's alone."""
    served, seen = measured(requests), measured(rounds)
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(served["workload"].unique()):
        own = served[served["workload"] == name]
        part = seen if seen.empty else seen[seen["workload"] == name]
        repetition = float(own["repetition"].mean()) if "repetition" in own else None
        counts = {"requests": len(own), "prompts": int(own["name"].nunique()), "rounds": len(part)}
        found[str(name)] = {**counts, "repetition": repetition, **_round_rates(part, block, seed)}
    return found


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of measured requests, with a `rep` column (0 where the table is of one repeat)."""
    if "measured" not in table:
        return table.assign(rep=0) if "rep" not in table else table
    kept = table[table["measured"].astype(bool)]
    return kept if "rep" in kept else kept.assign(rep=0)


def held_slots(requests: pd.DataFrame) -> Held:
    """The measured requests' tokens and residence."""
    served = measured(requests)
    return _held({column: served[column].to_numpy() for column in HELD_COLUMNS})


def held_in(stored: StoredCell) -> Held:
    """The same of a stored cell of the closed loop, read without pandas. Raises UsageError for a damaged table."""
    table = stored.columns("requests", (*HELD_COLUMNS[:-1], "measured"))
    kept = table.pop("measured").astype(bool)
    return _held({column: values[kept] for column, values in table.items()})


def _held(served: Mapping[str, NDArray[Any]]) -> Held:
    names, row = np.unique(served["name"].astype(str), return_inverse=True)
    repeats, column = np.unique(served["rep"].astype(np.int64), return_inverse=True)
    sums = np.full((2, len(names), len(repeats)), np.nan)
    sums[:, row, column] = 0.0
    np.add.at(sums[0], (row, column), served["output_tokens"].astype(np.float64))
    np.add.at(sums[1], (row, column), (served["finished"] - served["admitted"]).astype(np.float64))
    return Held(names=tuple(map(str, names)), tokens=sums[0], seconds=sums[1])


def _per_prompt(table: pd.DataFrame, columns: Mapping[str, NDArray[Any]]) -> pd.DataFrame:
    """Sums of `columns` within a prompt and repeat, then the mean over the prompt's repeats; the index is the name."""
    import pandas as pd

    frame = pd.DataFrame({"name": table["name"].to_numpy(), "rep": table["rep"].to_numpy(), **columns})
    return frame.groupby(["name", "rep"], sort=True).sum().groupby("name", sort=True).mean()


def _rate(found: Interval | None) -> Rate:
    return None if found is None else found.json()


def _request_rates(served: pd.DataFrame, batch: int, seed: int) -> dict[str, Any]:
    """Throughput by Little's law: `batch` slots, always full, each writing sum(n) tokens in sum(residence) seconds."""
    tokens = served["output_tokens"].to_numpy(np.float64)
    after_first = np.where(tokens > 1, (served["finished"] - served["first_token"]).to_numpy(np.float64), 0.0)
    sums = _per_prompt(served, {"later": tokens - 1, "after": after_first})
    written, held = held_slots(served).means()
    moving = sums[sums["after"] > 0]
    speeds = (moving["later"] / moving["after"]).to_numpy(np.float64)
    return {
        "throughput": _rate(ratio_of_sums(written, held, scale=batch, seed=seed)),
        "user_speed": _rate(ratio_of_sums(sums["later"], sums["after"], seed=seed)),
        "user_speed_p10": _rate(quantile_of(speeds, 0.1, seed=seed)),
    }


def _user_speeds(served: pd.DataFrame, body: Mapping[str, Any], batch: int) -> dict[str, float | None]:
    """The definitions of other tools, beside `user_speed`; None where none can be said."""
    rate, tokens = body["throughput"], served["output_tokens"].to_numpy(np.float64)
    whole = float("nan") if rate is None else rate["value"]
    found = user_speeds(tokens, latencies(served), throughput=whole, concurrency=batch)
    return {name: found[name] if np.isfinite(found[name]) else None for name in SPEEDS[1:]}


def _round_rates(seen: pd.DataFrame, block: int, seed: int) -> dict[str, Any]:
    """Numbers of the measured rounds. `ceiling` and `utilisation` use the rounds whose ceiling was seen."""
    if seen.empty:
        return dict.fromkeys(ROUND_KEYS)
    delivered, accepted, window, ceiling, flips = (
        seen[name].to_numpy(np.float64) for name in ("delivered", "accepted", "window", "ceiling", "flips")
    )
    drafted = np.array([len(drafts) for drafts in seen["drafts"]], np.float64)
    known = ceiling > 0
    sums = _per_prompt(
        seen,
        {
            "rounds": np.ones(len(seen)),
            "delivered": delivered,
            "accepted": accepted,
            "window": window,
            "drafted": drafted,
            "flips": flips,
            "known": known.astype(np.float64),
            "ceiling": np.where(known, ceiling, 0.0),
            "of_ceiling": np.where(known, delivered, 0.0),
        },
    )

    def rate(top: str, bottom: str, scale: float = 1.0) -> Rate:
        return _rate(ratio_of_sums(sums[top], sums[bottom], scale=scale, seed=seed))

    return {
        "tau": rate("delivered", "rounds"),
        "accepted": rate("accepted", "rounds"),
        "window": rate("window", "rounds"),
        "ceiling": rate("ceiling", "known"),
        "ceiling_seen": float(known.mean()),
        "utilisation": rate("of_ceiling", "ceiling"),
        "acceptance_of_drafted": rate("accepted", "drafted"),
        "acceptance_of_scheduled": rate("accepted", "window"),
        "acceptance_by_depth": _by_depth(seen, block, seed),
        "window_counts": np.bincount(window.astype(np.int64), minlength=block + 1).tolist(),
        "flips_per_1000": rate("flips", "delivered", 1000.0),
    }


def _by_depth(seen: pd.DataFrame, block: int, seed: int) -> list[dict[str, Any]]:
    """For each depth: of the drafts judged there whose predecessors all matched, the share that matched.

    Judged: the whole block where its ceiling was seen, else the window. Never both: under the block rule they are two
    judgements of one round, and neither bounds the other.
    """
    accepted, window, verified, ceiling = (
        seen[name].to_numpy(np.int64) for name in ("accepted", "window", "verified", "ceiling")
    )
    judged, matched = np.where(ceiling > 0, verified, window), np.where(ceiling > 0, ceiling - 1, accepted)
    rows = []
    for depth in range(1, block + 1):
        tried = (judged >= depth) & (matched >= depth - 1)
        if not tried.any():
            continue
        hits = tried & (matched >= depth)
        sums = _per_prompt(seen, {"hits": hits.astype(np.float64), "tried": tried.astype(np.float64)})
        found = _rate(ratio_of_sums(sums["hits"], sums["tried"], seed=seed))
        rows.append({"depth": depth, "trials": int(tried.sum()), "rate": found})
    return rows


def _measured_steps(steps: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    """Steps in which a measured request took part; all of them where no round was recorded."""
    table = steps if "rep" in steps else steps.assign(rep=0)
    if seen.empty:
        return table
    return table.merge(seen[["rep", "step"]].drop_duplicates(), on=["rep", "step"], how="inner")


def _step_numbers(steps: pd.DataFrame, batch: int | None) -> dict[str, Any]:
    """Numbers of the steps whose `batch` seats were all taken; `full_steps` is their share. None: all with a request.

    Where rounds overlap, a request that has ended holds its seat until that is known: the step is one of `batch`.
    """
    taken = steps["seats" if "seats" in steps and batch is not None else "requests"]
    full = steps[taken == batch] if batch is not None else steps[taken > 0]
    share = (len(full) / len(steps) if len(steps) else 0.0) if batch is not None else None
    body: dict[str, Any] = {"steps": len(steps), "full_steps": share}
    body |= dict(zip(("fallback_steps", "fallback"), fallbacks(steps), strict=True))
    if full.empty:
        return body | {"step_seconds": None, "phase_share": None, "predicted_error": None, "drift": None}
    seconds, rows = full["seconds"].to_numpy(np.float64), full["rows"].to_numpy(np.float64)
    p10, p50, p90 = (float(q) for q in np.quantile(round_seconds(full), [0.1, 0.5, 0.9]))
    shares = {name: float(full[f"{name}_seconds"].sum() / seconds.sum()) for name in PHASES}
    return body | {
        "step_seconds": {"p10": p10, "p50": p50, "p90": p90, "n": len(full)},
        "phase_share": shares | {"other": 1.0 - sum(shares.values())},
        "rows_per_step": float(rows.mean()),
        "padding_share": float(full["padding"].sum() / full["tier"].sum()),
        "idle_share": float(full["idle_seconds"].sum() / seconds.sum()) if "idle_seconds" in full else None,
        "extrapolated_share": float(full["extrapolated"].astype(bool).mean()),
        "missed_steps": int((full["misses"] > 0).sum()),
        "compiled_steps": int((full["compiles"] > 0).sum()),
        "predicted_error": _predicted_error(full),
        "drift": _drift(full) if batch is not None else None,
    }


def fallbacks(steps: pd.DataFrame) -> tuple[int, str]:
    """How many steps came after a failure of what chooses windows, and what failed; (0, "") where nothing did."""
    if "fallback" not in steps:
        return 0, ""
    said = [text for text in steps["fallback"] if text]
    return len(said), said[0] if said else ""


def round_seconds(steps: pd.DataFrame) -> NDArray[np.float64]:
    """Seconds of each step without the prompts that ran before it: what a cost table predicts."""
    seconds = steps["seconds"].to_numpy(np.float64)
    return seconds - steps["prefill_seconds"].to_numpy(np.float64) if "prefill_seconds" in steps else seconds


def _predicted_error(full: pd.DataFrame) -> dict[str, Any] | None:
    """Median of |predicted / measured - 1| and of its signed form; None for an arm without a cost table."""
    ratio = full["predicted_seconds"].to_numpy(np.float64) / round_seconds(full)
    ratio = ratio[np.isfinite(ratio)]
    if not len(ratio):
        return None
    return {"median": float(np.median(np.abs(ratio - 1))), "bias": float(np.median(ratio - 1)), "n": len(ratio)}


def _drift(full: pd.DataFrame) -> dict[str, Any] | None:
    """Median step time in the last quarter of a repeat over that in its first, -1; the median over repeats.

    Where all steps were foreseen, by the cost table, times are those over what was foreseen: an arm may choose shorter
    rounds than before.
    """
    changes = []
    for _, part in full.sort_values("step").groupby("rep"):
        seconds, quarter = round_seconds(part), len(part) // 4
        foreseen = part["predicted_seconds"].to_numpy(np.float64)
        seconds = seconds / foreseen if (foreseen > 0).all() else seconds
        if len(part) >= DRIFT_STEPS:
            changes.append(float(np.median(seconds[-quarter:]) / np.median(seconds[:quarter]) - 1))
    if not changes:
        return None
    change = float(np.median(changes))
    return {"change": change, "drifts": abs(change) > DRIFT_LIMIT, "repeats": len(changes)}
