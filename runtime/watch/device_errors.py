"""Turns device errors into one line: after one, the process cannot use the device any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsbench.errors import EnvironmentRefused


@contextmanager
def named_device_errors() -> Iterator[None]:
    """Raises EnvironmentRefused, with the first line of what torch says, for a device that failed or is full."""
    try:
        yield
    except RuntimeError as problem:
        import torch  # a simulated run needs none

        if isinstance(problem, torch.OutOfMemoryError):
            what, hint = "the device is full", "give a smaller --batch, or a shorter --max-tokens"
        elif isinstance(problem, torch.AcceleratorError):
            what, hint = "the device failed", "what was finished is kept; a new process may go on"
        else:
            raise
        raise EnvironmentRefused(f"{what}: {first_line(problem)}", hint=hint) from problem


def first_line(problem: BaseException) -> str:
    """The first line of an exception's message; its type name where it has none."""
    return next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
