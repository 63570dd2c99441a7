"""Turns device errors into one line: after one, the process cannot use the device any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dsbench.errors import EnvironmentRefused


@contextmanager
def named_device_errors() -> Iterator[None]:
    """Raises EnvironmentRefused, with the first line of what torch says, for a device that failed or is full."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise EnvironmentRefused(
            f"the device is full: {first_line(problem)}", hint="give a smaller --batch, or a shorter --max-tokens"
        ) from problem
    except torch.AcceleratorError as problem:
        raise EnvironmentRefused(
            f"the device failed: {first_line(problem)}", hint="what was finished is kept; a new process may go on"
        ) from problem


def first_line(problem: BaseException) -> str:
    """The first line of an exception's message; its type name where it has none."""
    return next((line for line in str(problem).splitlines() if line.strip()), type(problem).__name__)
