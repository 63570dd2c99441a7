"""`--within 4m`: how long a command may take. What does not fit is left out, and said."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from dsbench.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
LONGEST = 30 * 24 * 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """The clock's time (seconds) at which a command should be done; infinite where none was given."""

    at: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @property
    def given(self) -> bool:
        return self.at < math.inf

    def left(self) -> float:
        """Seconds that are left; never negative."""
        return max(0.0, self.at - self.clock())

    def share(self, part: float) -> Deadline:
        """After that part of the seconds that are left."""
        return Deadline(self.clock() + part * self.left(), self.clock) if self.given else self


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `4m`, `1.5h` or `1h30m`. Raises UsageError for anything else, or what is not 1 s to 30 days."""
    parts = re.findall(r"(\d{1,9}(?:\.\d{1,9})?)(min|[smh])", text.strip(), flags=re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise UsageError(f"{text[:40]!r} is no duration", hint="e.g. 90s, 4m, 1h30m")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not 1 <= seconds <= LONGEST:
        raise UsageError(f"a duration must be 1s to 720h, got {text[:40]!r}")
    return seconds


def deadline_of(text: str, clock: Callable[[], float] = time.monotonic) -> Deadline:
    """That long from now; none for an empty text."""
    return Deadline(clock() + parse_duration(text), clock) if text else Deadline()


def span(seconds: float) -> str:
    """A duration for a reader: 48 s, 3 min, 2.5 h, 12 days."""
    for unit, length in (("s", 1), ("min", 60)):
        if seconds < 100 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
