"""What a policy decides for one round. No torch. Shapes: R requests, G block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeVar

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import Array

T = TypeVar("T")
Looks = Literal["", "token-free", "confidence", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Drafts `depth` tokens a request (0: a no-draft round) and verifies `budget` of them over all requests.

    `window` [R] is set where the host chose each request's drafts; else the device gives the budget to the likeliest.
    """

    depth: int
    budget: int
    reason: str
    priors: int = 0  # requests whose budget came from a prior
    age: int = 0  # rounds since the oldest confidences behind the budget; 0: none, or the round's own
    window: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a round's own draft says, to a policy that looks at it.

    survival [R, G] is of the token-free head before the first draft is drawn, of the confidence head after the last;
    of a policy that looks at the text: 1 for each draft that the text accepts. limits [R]: drafts that may be verified.
    """

    survival: Array
    limits: Array
    context: int  # tokens of all requests


class Policy(Protocol):
    """Chooses a round before it is launched. `looks` at the round's own draft: `within` then has the last word."""

    @property
    def looks(self) -> Looks: ...

    @property
    def needs_table(self) -> bool: ...

    def choose(self, history: History) -> VerifyPlan: ...

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan: ...

    def attempt(self, what: str, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Returns what `run` gives; one that is guarded gives `otherwise` where that fails."""


class Blind:
    """Base of policies that do not look at the round's own draft."""

    looks: ClassVar[Looks] = ""
    needs_table: ClassVar[bool] = False

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        return plan

    def attempt(self, what: str, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
        return run()
