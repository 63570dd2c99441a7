"""Makes an arm's policy: one entry a policy. No torch."""

from __future__ import annotations

from collections.abc import Callable

from dsbench.errors import UsageError
from dsbench.runtime.arm import Arm
from dsbench.runtime.policy.compact import Compact
from dsbench.runtime.policy.early_stop import EarlyStop
from dsbench.runtime.policy.fixed import Fixed
from dsbench.runtime.policy.oracle import Oracle
from dsbench.runtime.policy.plan import Policy
from dsbench.runtime.policy.prices import DEPTHS, Prices
from dsbench.runtime.policy.threshold import Threshold
from dsbench.runtime.policy.token_free import TokenFree

MAKERS: dict[str, Callable[[Arm, Prices], Policy]] = {
    "fixed": lambda arm, prices: Fixed(arm.depth(prices.block), arm.depth(prices.block)),
    "record": lambda arm, prices: Fixed(prices.block, 0),
    "argmax": lambda arm, prices: Compact(prices, arm.weight),
    "oracle": lambda arm, prices: Oracle(prices),
    "free": lambda arm, prices: TokenFree(prices, arm.weight),
    "early-stop": lambda arm, prices: EarlyStop(prices),
    "threshold": lambda arm, prices: Threshold(prices.block, arm.threshold),
}


def make_policy(arm: Arm, prices: Prices, rule: str) -> Policy:
    """Raises UsageError for a policy without the table it needs, or one that would bias the text under the rule."""
    refuse_anticipation(arm, rule)
    policy = MAKERS[arm.policy](arm, prices)
    if policy.needs_table and prices.table is None:
        raise UsageError(f"mode {arm.name} needs a cost table", hint="run `dsbench profile-cost`, or give --cost FILE")
    return policy


def depths_of(arm: Arm, block: int, *, full: bool = False) -> tuple[int, ...]:
    """Depths that an arm may draft to, ascending, 0 for no draft; `full`: the block alone, whatever it verifies."""
    depth = arm.depth(block)
    shallow = arm.policy in ("argmax", "oracle") and arm.commit == "all" and not full
    return (0, *(d for d in DEPTHS if d < depth), depth) if shallow and depth else (depth,)


def refuse_anticipation(arm: Arm, rule: str) -> None:
    """Raises UsageError for a policy that knows the block it admits, under a rule whose text it would bias."""
    if rule != "coupled" and arm.policy == "oracle":
        raise UsageError(f"mode {arm.name} would anticipate under the {rule} rule", hint="give --accept coupled")
