"""The settings of one drafter training, checked before any work starts. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from dsbench.errors import UsageError
from dsbench.runtime.drafters.heads import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Raises UsageError for values that make no sense. Times in seconds, lengths in tokens."""

    # the drafter
    kind: str = "dspark"  # or mtp, the chain; dflash is dspark with head none
    head: str = "vanilla"
    layers: int = 2
    taps: tuple[int, ...] = (1, 14, 27)
    rank: int = 64
    block: int = 7
    window: int | None = None  # context tokens a layer sees; None: all
    draft_vocab: int = 16_384
    # the data
    sequences: int = 36_000
    validation: int = 512  # sequences in each of the two validation sets
    max_tokens: int = 384  # of an answer
    width: int = 512  # of prompt and answer
    decode_batch: int = 4096  # rows that decode together; fewer where memory says so
    data_path: Path | None = None  # generated data is read from here if it exists, else written here
    # the optimiser
    seconds: float = 300.0  # of optimisation: data, features and compilation come on top
    lr: float = 3e-3
    muon: bool = True
    muon_share: float = 2.0  # Muon's learning rate over AdamW's
    coupled: float = 0.0  # part of the distance loss that is the coupled event's, 0 to 1
    batch: int = 64  # sequences a step
    anchors: int = 48  # blocks a sequence
    seed: int = 0
    compile: bool = True  # only on CUDA
    log_every: float = 5.0

    def __post_init__(self) -> None:
        if self.kind not in ("dspark", "mtp"):
            raise UsageError(f"unknown kind of drafter {self.kind!r}", hint="dspark or mtp")
        if self.kind == "mtp" and (self.layers != 1 or self.head != "none"):
            raise UsageError(f"an mtp drafter has one layer and no sequential head, got {self.layers}, {self.head!r}")
        if not 0 <= self.coupled <= 1:
            raise UsageError(f"coupled must lie in 0..1, got {self.coupled}")
        if self.window is not None and self.window < self.block:  # the rows of a block see each other
            raise UsageError(f"window must be >= block = {self.block}, got {self.window}")
        if self.window is not None and self.kind == "mtp":
            raise UsageError("an mtp drafter has no window")
        if self.head not in KINDS:
            raise UsageError(f"unknown sequential head {self.head!r}", hint=f"one of {', '.join(KINDS)}")
        for name in ("layers", "block", "draft_vocab", "sequences", "validation", "batch", "anchors", "decode_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', '-')} must be >= 1, got {getattr(self, name)}")
        if self.head != "none" and self.rank < 1:
            raise UsageError(f"rank must be >= 1 for a sequential head, got {self.rank}")
        if not self.taps or list(self.taps) != sorted(set(self.taps)) or self.taps[0] < 0:
            raise UsageError(f"taps must be ascending layer numbers, got {list(self.taps)}")
        for name in ("seconds", "lr", "muon_share", "log_every"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be a number > 0, got {getattr(self, name)}")
        if not self.max_tokens < self.width:
            raise UsageError(f"max_tokens must be < width, got {self.max_tokens} and {self.width}")
        if not self.block < self.max_tokens:
            raise UsageError(f"block must be < {self.max_tokens}, the tokens of an answer, got {self.block}")
