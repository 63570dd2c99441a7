"""How the engine runs. The only runtime configuration: what is compared is an Arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from dsbench.errors import UsageError
from dsbench.profiles.calibration import Rule

LAG = 3  # age of an overlapped budget's confidences: while a round is read, one runs and one waits behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Fields that hold for a whole run.

    rule: coupled, residual or block. draft: planned lets the policy choose the depth (arms that must see the full block
    draft it anyway); full always drafts the block. lag: rounds between the confidences that set a budget and the round
    that uses them: so many are launched before one is read; 0 is the least, 1. page: tokens a KV page; attention on a
    GPU reads 64 keys at a time and looks up one page for them if it holds them all. prefill_chunk: prompt tokens of an
    eager prefill pass. page_seed: shuffles the pages; None keeps them in order.
    """

    rule: str = "coupled"
    draft: str = "planned"
    lag: int = 0
    page: int = 64
    prefill_chunk: int = 512
    page_seed: int | None = 0
    record_rounds: bool = True

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise UsageError(f"unknown acceptance rule {self.rule!r}", hint="coupled, residual or block")
        if self.draft not in ("planned", "full"):
            raise UsageError(f"unknown draft depth {self.draft!r}", hint="planned or full")
        for name, least in (("lag", 0), ("page", 1), ("prefill_chunk", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be >= {least}, got {getattr(self, name)}")
