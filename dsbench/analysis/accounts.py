"""Where a request's time went: what its residence in a slot is made of, summed per prompt. Works without rounds.

A request takes part in a round exactly if the round was read, at its `start`, between its first token and its end. Of
each such round it waits for the whole, whoever the work was for. Seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dsbench.results.metrics import measured
from dsbench.results.store import StoredCell

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
OF_A_ROUND = ("draft", "verify", "padding", "host")
SPENT = (*OF_A_ROUND, "prefill")
KEYS = ("requests", "tokens", "rounds", "held", *SPENT)


@dataclass(frozen=True, slots=True)
class Account:
    """Sums per prompt, mean over its repeats: KEYS, each [prompts].

    draft, verify (with accept and commit, without padding), padding (verify's time by the share of its rows that ran
    for nobody: an attribution at the mean price of a row), host (plan, pack, idle, and what no phase covers), prefill
    (the wait for the first token and for other requests' prompts); `held` is the whole residence.
    """

    names: tuple[str, ...]
    sums: Mapping[str, FloatArray]

    def only(self, names: Sequence[str]) -> Account:
        place = {name: i for i, name in enumerate(self.names)}
        rows = [place[name] for name in names]
        return Account(tuple(names), {key: values[rows] for key, values in self.sums.items()})

    def at(self, index: NDArray[np.int64]) -> dict[str, FloatArray]:
        """Sums over the prompts of `index` [..., prompts], and `residual`: what of the residence is in no other sum."""
        found = {key: np.asarray(values[index].sum(-1)) for key, values in self.sums.items()}
        return found | {"residual": found["held"] - sum(found[key] for key in SPENT)}


def account_of(stored: StoredCell) -> Account:
    """The account of a cell's measured requests."""
    return account(stored.table("steps"), stored.table("requests"))


def account(steps: pd.DataFrame, requests: pd.DataFrame) -> Account:
    """The account of the measured requests; both tables with a `rep` column where there are several repeats."""
    import pandas as pd

    steps = steps if "rep" in steps else steps.assign(rep=0)
    everybody = requests if "rep" in requests else requests.assign(rep=0)
    parts = []
    for rep, served in measured(everybody).groupby("rep"):
        mine = steps[steps["rep"] == rep].sort_values("start")
        parts.append(_of_repeat(mine, served).assign(name=served["name"].to_numpy(str), rep=rep))
    whole = pd.concat(parts, ignore_index=True)
    sums = whole.groupby(["name", "rep"], sort=True).sum().groupby("name", sort=True).mean()
    return Account(tuple(map(str, sums.index)), {key: sums[key].to_numpy(np.float64) for key in KEYS})


def _of_repeat(steps: pd.DataFrame, served: pd.DataFrame) -> pd.DataFrame:
    """KEYS of each measured request of a repeat."""
    import pandas as pd

    start, seconds = _column(steps, "start"), _column(steps, "seconds")
    admitted, first, finished = (_column(served, name) for name in ("admitted", "first_token", "finished"))
    there = (first[:, None] <= start) & (start <= finished[:, None])
    verify = sum((_column(steps, f"{name}_seconds") for name in ("verify", "accept", "commit")), np.zeros(len(steps)))
    tier = _column(steps, "tier")
    padding = verify * np.divide(
        np.maximum(tier - _column(steps, "rows"), 0), tier, out=np.zeros(len(tier)), where=tier > 0
    )
    draft, prefill = _column(steps, "draft_seconds"), _column(steps, "prefill_seconds")
    host = seconds - draft - verify - prefill
    rounds = {"draft": draft, "verify": verify - padding, "padding": padding, "host": host, "prefill": prefill}
    found: dict[str, FloatArray] = {key: there @ values for key, values in rounds.items()}
    wait = first - admitted
    if len(steps):  # the round that a request is first in is counted whole, with what of it came before its first token
        opening = there.argmax(1)
        before = seconds[opening] - np.maximum(start[opening] - first, 0.0)
        wait = wait - np.where(there.any(1), before, 0.0)
    found["prefill"] = found["prefill"] + wait
    columns = {"requests": np.ones(len(served)), "tokens": _column(served, "output_tokens"), "rounds": there.sum(1)}
    return pd.DataFrame({**columns, "held": finished - admitted, **found}, columns=list(KEYS))


def _column(table: pd.DataFrame, name: str) -> FloatArray:
    """The column, or zeros in a run older than it."""
    return table[name].to_numpy(np.float64) if name in table else np.zeros(len(table))
