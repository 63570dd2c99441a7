"""From a cell's records to its numbers: a summary's keys, which `columns` declares, are computed here.

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
from dsbench.results.cells import StoredCell
from dsbench.results.columns_rounds import ROUNDS
from dsbench.results.latency import SPEEDS, latencies, percentiles, user_speeds
from dsbench.results.open_loop import open_flags, open_rates
from dsbench.results.step_numbers import measured_steps, step_numbers
from dsbench.stats.intervals import Held, Interval, quantile_of, ratio_of_sums

if TYPE_CHECKING:
    import pandas as pd

ROUND_KEYS = tuple(c.name for c in ROUNDS if c.name not in ("rounds", "repetition", "workloads"))
HELD_COLUMNS = ("name", "output_tokens", "admitted", "finished", "rep")
LEAST_FULL = 0.95
MOST_IDLE = 0.05
AFTER_A_FAILURE = "came after a failure, windows fixed since"
MOST_BEYOND = 0.05  # of steps, outside what the cost table was measured at
DRIFTS = "step time drifts by"
MOST_ERROR = 0.25  # of a step's predicted time, the median: a table that is further off plans for another machine

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
        **step_numbers(measured_steps(steps, seen), None if open_loop else batch),
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
    written, residence = held_slots(served).means()
    moving = sums[sums["after"] > 0]
    speeds = (moving["later"] / moving["after"]).to_numpy(np.float64)
    return {
        "throughput": _rate(ratio_of_sums(written, residence, scale=batch, seed=seed)),
        "user_speed": _rate(ratio_of_sums(sums["later"], sums["after"], seed=seed)),
        "user_speed_p10": _rate(quantile_of(speeds, 0.1, seed=seed)),
    }


def _user_speeds(served: pd.DataFrame, body: Mapping[str, Any], batch: int) -> dict[str, float | None]:
    """The definitions of other tools, beside `user_speed`; None where none can be said."""
    rate, tokens = body["throughput"], served["output_tokens"].to_numpy(np.float64)
    overall = float("nan") if rate is None else rate["value"]
    found = user_speeds(tokens, latencies(served), throughput=overall, concurrency=batch)
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

    Judged: the full block where its ceiling was seen, else the window, as far as the text goes: a round that ends its
    text on an accepted draft says nothing of those after it. Never both: under the block rule they are two judgements
    of one round, and neither bounds the other.
    """
    accepted, window, verified, ceiling, delivered = (
        seen[name].to_numpy(np.int64) for name in ("accepted", "window", "verified", "ceiling", "delivered")
    )
    settled = np.where(delivered <= accepted, np.minimum(window, accepted), window)
    judged, matched = np.where(ceiling > 0, verified, settled), np.where(ceiling > 0, ceiling - 1, accepted)
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
