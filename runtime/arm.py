"""Arms, the configurations that are compared: drafter, policy, layout of the verified rows, and commit rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dsbench.errors import UsageError

PLANNED = ("argmax", "free", "early-stop", "threshold", "oracle")
MOST = 1_000_000  # drafts in a window
CAPTURED = ("fixed", "argmax", "oracle")  # policies whose windows no host need see: their rounds may be captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """`--mode` names a preset of these.

    policy: fixed, threshold, early-stop, argmax, free (the argmax over the round's own token-free confidences), oracle
    or record (drafts the block, verifies nothing);
    layout: rectangular (every request pays the same rows) or packed (exactly the kept rows);
    commit: all that was verified, or the window alone.
    """

    name: str
    drafter: str  # "none", "dspark" (blocks) or "mtp" (a chain)
    policy: str
    layout: str
    commit: str
    fixed: int | None = None  # window of the fixed policy
    threshold: float = 0.0  # of the threshold policy; none passes above 1
    weight: float = 1.0  # of throughput in what argmax maximises; the rest is per-user speed

    def depth(self, block: int) -> int:
        """Draft tokens to make a round."""
        if self.drafter == "none":
            return 0
        return block if self.fixed is None else min(self.fixed, block)

    def check_block(self, block: int) -> None:
        """Raises UsageError for a window beyond a drafter's block."""
        if self.fixed is not None and self.fixed > block:
            raise UsageError(f"mode {self.name}: the drafter's block holds {block} drafts")

    @property
    def drafts_full_block(self) -> bool:
        """Whether it verifies more than it may commit, and so must draft the full block."""
        return self.commit == "window"

    @property
    def planned(self) -> bool:
        """Whether it needs a cost table."""
        return self.policy in ("argmax", "free", "early-stop", "oracle")


# Drafts at every token of the text: it verifies nothing, because no confidence reaches its threshold.
RECORDER = Arm(name="record", drafter="dspark", policy="record", layout="packed", commit="all")


def parse_arm(mode: str) -> Arm:
    """The arm of a `--mode` name. Raises UsageError for an unknown name, with the list of names."""
    name, _, detail = mode.partition(":")
    if name == "none" and not detail:
        return Arm(name=mode, drafter="none", policy="fixed", layout="packed", commit="all", fixed=0)
    if name == "static":
        fixed = _window(mode, detail) if detail else None
        return Arm(name=mode, drafter="dspark", policy="fixed", layout="rectangular", commit="all", fixed=fixed)
    if name == "no-trim" and not detail:
        return Arm(name=mode, drafter="dspark", policy="fixed", layout="packed", commit="all")
    if name in ("compact", "cap-accept"):
        commit = "all" if name == "compact" else "window"
        policy, _, value = (detail or "argmax").partition("=")
        packed = Arm(name=mode, drafter="dspark", policy=policy, layout="packed", commit=commit)
        if policy in PLANNED and (policy == "threshold") == bool(value):
            return replace(packed, threshold=_threshold(mode, value) if value else 0.0)
        if detail == "latency":
            return replace(packed, policy="argmax", weight=0.0)
        if policy == "utility" and value:
            return replace(packed, policy="argmax", weight=_weight(mode, value))
    if name == "mtp":
        if not detail:
            raise UsageError(f"mode {mode!r} lacks its number of steps", hint="e.g. mtp:1 or mtp:3")
        fixed = _window(mode, detail)
        return Arm(name=mode, drafter="mtp", policy="fixed", layout="rectangular", commit="all", fixed=fixed)
    raise UsageError(
        f"unknown mode {mode!r}",
        hint="none, static, static:K, mtp:K, no-trim, compact[:free|:latency|:utility=W|:early-stop|:threshold=P|"
        ":oracle] and the same after cap-accept",
    )


def _window(mode: str, detail: str) -> int:
    if not (detail.isascii() and detail.isdigit()) or len(detail) > len(str(MOST)) or not 1 <= int(detail) <= MOST:
        raise UsageError(
            f"mode {mode!r}: the window must be an integer in 1..{MOST}", hint="for none at all use --mode none"
        )
    return int(detail)


def _threshold(mode: str, value: str) -> float:
    number = _number(value)
    if not 0 < number < 1:
        raise UsageError(f"mode {mode!r}: the threshold must lie between 0 and 1")
    return number


def _weight(mode: str, value: str) -> float:
    number = _number(value)
    if not 0 <= number <= 1:
        raise UsageError(
            f"mode {mode!r}: the weight of throughput must lie in 0..1", hint="1 is compact, 0 is compact:latency"
        )
    return number


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
