"""Runs a policy so that its failure costs the choice of windows, never the run: no choice here changes a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dsbench.errors import DsbenchError
from dsbench.runtime.policy.fixed import Fixed
from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.plan import Looks, Policy, Seen, VerifyPlan

T = TypeVar("T")


class Guard:
    """A policy that falls back to full blocks of `depth` for good at its first failure, which `failure` names.

    `check` raises where a failure means that the device itself no longer answers.
    """

    def __init__(self, policy: Policy, depth: int, check: Callable[[], None]) -> None:
        self.policy, self.check, self.failure = policy, check, ""
        self._fallback = Fixed(depth, depth)

    @property
    def looks(self) -> Looks:
        return self.policy.looks

    @property
    def needs_table(self) -> bool:
        return self.policy.needs_table

    def choose(self, history: History) -> VerifyPlan:
        return self.attempt("the budget", lambda: self.policy.choose(history), lambda: self._fallback.choose(history))

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        return self.attempt("the budget", lambda: self.policy.within(plan, seen), lambda: plan)

    def attempt(self, what: str, run: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """Returns what `run` gives, or `otherwise`, with full blocks from then on, if it fails."""
        try:
            return run()
        except DsbenchError:  # refused, and said so
            raise
        except Exception as problem:
            self.check()
            said = next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
            self.failure = self.failure or f"{what} failed: {type(problem).__name__}: {said}"
            self.policy = self._fallback
            return otherwise()
