"""The exceptions shown to users, with their exit codes. Every package may import this module; it imports nothing.

DsbenchError              exit 1
├── UsageError            exit 2   a flag, a range, a file that the user named
├── RegressionFound       exit 3   a comparison that says SLOWER
├── WrongResult           exit 3   an op that does not give what its reference gives
├── Inconclusive          exit 4   a comparison that cannot say
├── IncompleteRun         exit 5   a run with cells missing or failed
└── EnvironmentRefused    exit 6   this machine, or a model, drafter or table that does not fit it
"""

from __future__ import annotations


class DsbenchError(Exception):
    """One line for the user, a hint on what to do, and the exit code of the process."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DsbenchError):
    """The user asked for something that does not exist or makes no sense."""

    exit_code = 2


class RegressionFound(DsbenchError):
    """A comparison found the second run slower."""

    exit_code = 3


class WrongResult(DsbenchError):
    """An op does not give what its reference gives."""

    exit_code = 3


class Inconclusive(DsbenchError):
    """A comparison found neither a difference nor sameness."""

    exit_code = 4


class IncompleteRun(DsbenchError):
    """A run lacks cells, or some of them failed."""

    exit_code = 5


class EnvironmentRefused(DsbenchError):
    """The machine, the model, the drafter or the table does not fit what was asked."""

    exit_code = 6
