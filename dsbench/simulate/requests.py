"""A simulated request: what was recorded of it, and how far it is. Shapes: G block, n output tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dsbench.results.acceptance_trace import TraceRow
from dsbench.runtime.policy.objective import Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Script:
    """A request to play: its prompt's length, how many tokens it emits, and what was drafted at every anchor."""

    id: int
    name: str
    workload: str
    prompt_tokens: int
    room: int
    match: Array  # [n - 1] drafts that equal the text
    conditional: Array  # [n - 1, G] calibrated P(draft j passes | those before it did)
    token_free: Array  # [n - 1, G] the same from the token-free head
    repetition: float


def script_of(row: TraceRow, most: int) -> Script:
    """A recorded request, of `most` tokens at most; not numbered yet."""
    room = min(most, len(row.output))
    return Script(
        id=-1,
        name=row.name,
        workload=row.workload,
        prompt_tokens=len(row.prompt),
        room=room,
        match=row.drafts.match.astype(np.int64),
        conditional=_chance(row.drafts.logits),
        token_free=_chance(row.drafts.token_free),
        repetition=_repetition(row.output[:room]),
    )


def _chance(logits: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logits.astype(np.float64))))


def _repetition(tokens: Sequence[int], n: int = 4) -> float:
    """As `measure.repetition`."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(slots=True, kw_only=True)
class Seat:
    """A request under way.

    past: (tokens emitted, survival [G], None of a plain round) after each of its rounds, from round `joined` on.
    """

    script: Script
    admitted: float
    first: float = 0.0
    prefilled: int = 0
    out: int = 0
    joined: int = -1
    ended: int | None = None  # the round that brought its last token
    past: list[tuple[int, Array | None]] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Drafts that may be accepted now."""
        return 0 if self.ended is not None else self.script.room - self.out - 1

    @property
    def context(self) -> int:
        return self.script.prompt_tokens + self.out - 1

    @property
    def match(self) -> int:
        """Drafts at the anchor that equal the text."""
        return int(self.script.match[self.out - 1]) if self.out <= len(self.script.match) else 0

    def emitted(self, by: int) -> int:
        """Tokens after round `by`; none before its first round was read."""
        at = min(by - self.joined, len(self.past) - 1)
        return self.past[at][0] if at >= 0 else 0

    def seen(self, by: int) -> int | None:
        """The last of its rounds up to `by` that counted and drafted; None where none has been read."""
        last = min(by, self.joined + len(self.past) - 1, by if self.ended is None else self.ended)
        rounds = range(last, self.joined - 1, -1)
        return next((number for number in rounds if self.past[number - self.joined][1] is not None), None)

    def survival(self, by: int) -> Array | None:
        last = self.seen(by)
        return None if last is None else self.past[last - self.joined][1]

    def row(self, of: Array) -> Array:
        """The row [G] of `conditional` or `free` at its anchor; the last one again once it has ended."""
        return of[min(self.out, len(of)) - 1] if len(of) else np.zeros(of.shape[1])
