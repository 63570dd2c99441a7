"""A request: prompt, sampling parameters and the output so far. No torch: workloads import this module.

The anchor is the last token of prompt plus output. It is committed text that the target has not run yet, so the KV
pages hold one position fewer than prompt plus output.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, fields
from typing import Any

from dsbench.errors import UsageError
from dsbench.runtime.draft_trace import DraftTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. temperature 0 is greedy; top_k 0 and top_p 1 keep the full vocabulary."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not 0 <= self.top_k < 2**31:
            raise UsageError(f"top-k must be >= 0 (0 = off) and below 2**31, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be in (0, 1], got {self.top_p}")
        if self.max_tokens < 1:
            raise UsageError(f"max-tokens must be >= 1, got {self.max_tokens}")
        if any(not text for text in self.stop):
            raise UsageError("a stop string must not be empty")

    @property
    def truncates(self) -> bool:
        """Whether top-k or top-p is in use."""
        return self.top_k > 0 or self.top_p < 1

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> SamplingParams:
        """From field names and values. Raises UsageError for an unknown key."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise UsageError(f"unknown sampling setting {sorted(unknown)[0]!r}")
        return cls(**values)


def request_seed(run_seed: int, workload: str, prompt: str, replica: int = 0) -> int:
    """A signed 64-bit seed of (run seed, workload, prompt id, replica): no two requests share noise."""
    text = f"{run_seed}\x1f{workload}\x1f{prompt}\x1f{replica}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One request. `canonical` is the pinned text's output tokens, if the run commits a recorded text.

    `trace`: the drafts recorded along that text, if a recorded acceptance is replayed; the noise is then unused.
    """

    id: int
    name: str
    workload: str
    prompt_ids: list[int]
    sampling: SamplingParams
    canonical: list[int] | None = None
    trace: DraftTrace | None = None
    output: list[int] = field(default_factory=list)
    finish_reason: str | None = None  # "stop" (EOS or a stop string), "length", "cancelled"
    rounds: int = 0  # verify rounds so far; keys the noise of the residual and block rules
    text: str | None = None  # the output cut before a stop string, where one came

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def committed(self) -> int:
        """Positions in the KV pages: all tokens but the anchor (before prefill: those of the prompt)."""
        return len(self.prompt_ids) + max(0, len(self.output) - 1)

    @property
    def anchor(self) -> int:
        return self.output[-1] if self.output else self.prompt_ids[-1]

    def room(self, context: int) -> int:
        """Tokens it may still emit, limited by max_tokens and by the model's `context`."""
        left = context - len(self.prompt_ids) - len(self.output)
        return min(self.sampling.max_tokens - len(self.output), left)

    def tokens_needed(self, context: int, block: int) -> int:
        """Tokens of page space for everything it may hold, asked before its first run; runs are never resumed.

        `block`: draft tokens a round. Raises UsageError for a prompt that is empty or leaves no room.
        """
        assert not (self.output or self.finished), f"request {self.id} has run before"
        size = len(self.prompt_ids)
        if size >= context or not size:
            raise UsageError(
                f"prompt {self.name} has {size} tokens, the context is {context}",
                hint="shorten it, or leave it out" if size else "a prompt must not be empty",
            )
        return size + min(self.sampling.max_tokens, context - size) + block + 1


def prompt_name(name: str) -> str:
    """A request's name without its replica number: `math-01#2` -> `math-01`."""
    prompt, sign, replica = name.rpartition("#")  # a file of prompts may have a # in its own name
    return prompt if sign and replica.isdecimal() else name
