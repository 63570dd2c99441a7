"""How the engine runs. The only runtime configuration: what is compared is an Arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from dsbench.errors import UsageError
from dsbench.profiles.calibration import Rule

LAG = 3  # age of an overlapped budget's confidences: while a round is read, one runs and one waits behind it
PROMPTS = 32  # requests of a captured prefill pass at most
CHUNKS = (32, 64, 128, 256, 512, 1024)  # its prompt tokens
# Prompts wait until there is one for so many requests that sit, but no longer than so many rounds: a pass costs much
# whatever it holds. Against 32 and 3: 10 to 20% more tokens a second of 16 to 256 requests whose ends are spread, first
# tokens up to a third later (simulated, SmolLM2 and the 8B on an H200); twice as long brings nothing more.
SHARE = 12
PATIENCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Fields that hold for a whole run.

    rule: coupled, residual or block. draft: planned stops the sequential head where token-free confidences see no use
    for more (arms that must see the whole block draft it anyway); full never does. lag: steps between the confidences
    that set the budget and the step that uses them; where rounds overlap at least 1, and so many are under way. page:
    tokens a KV page; attention on a GPU reads 64 keys at a time and looks up one page for them if it holds them all.
    prefill_chunk: prompt tokens a prefill pass. page_seed: shuffles the pages; None keeps them in order. graphs:
    requests that captured graphs are made for, 0 runs eagerly; then the whole block is drafted. truncates: the graphs
    take requests with top-k or top-p too.
    """

    rule: str = "coupled"
    draft: str = "planned"
    lag: int = 0
    page: int = 64
    prefill_chunk: int = 512
    page_seed: int | None = 0
    graphs: int = 0
    truncates: bool = False
    record_rounds: bool = True

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise UsageError(f"unknown acceptance rule {self.rule!r}", hint="coupled, residual or block")
        if self.draft not in ("planned", "full"):
            raise UsageError(f"unknown draft depth {self.draft!r}", hint="planned or full")
        for name, least in (("lag", 0), ("page", 1), ("prefill_chunk", 1), ("graphs", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be >= {least}, got {getattr(self, name)}")
