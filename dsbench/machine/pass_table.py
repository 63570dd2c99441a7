"""Times the parts of a round on captured graphs, by requests: the passes alone, the host, and the full engine step."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsbench.profiles.fit import CostSample


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Median seconds at R requests and S context tokens in all.

    no_draft: without a drafter; least: one row a request, beside a drafter; full: the full block of every request.
    """

    requests: int
    context: int
    draft: float
    no_draft: float
    least: float
    full: float
    no_draft_step: float
    full_step: float

    @property
    def draft_share(self) -> float:
        """Share of drafting in the passes of a round that verifies the full block."""
        return self.draft / (self.draft + self.full)

    @property
    def host_share(self) -> float:
        """Share of an engine step with the full block that is not in its passes."""
        return max(0.0, 1 - (self.draft + self.full) / self.full_step)


def round_times(samples: Iterable[CostSample]) -> list[RoundTimes]:
    """A line for each (R, S) that has replays of its own; none for a profile of eager steps."""
    found: dict[tuple[str, int, int, int], list[float]] = {}
    for s in samples:
        found.setdefault((s.phase, s.requests, s.context, s.rows), []).append(s.seconds)
    median = {key: statistics.median(seconds) for key, seconds in found.items()}
    lines = []
    for requests, context in sorted({(r, c) for phase, r, c, _ in median if phase == "pass"}):
        rows = sorted(m for phase, r, c, m in median if (phase, r, c) == ("pass", requests, context))
        at, least, most = (requests, context), rows[0], rows[-1]
        lines.append(
            RoundTimes(
                requests=requests,
                context=context,
                draft=median["draft", *at, 0],
                no_draft=median["no-draft", *at, least],
                least=median["pass", *at, least],
                full=median["pass", *at, most],
                no_draft_step=median["no-draft step", *at, least],
                full_step=median["step", *at, most],
            )
        )
    return lines


def print_rounds(lines: Sequence[RoundTimes]) -> None:
    if not lines:
        return
    print("milliseconds, medians; passes: replays of their graphs alone; steps: full engine steps, host included")
    print("    R context/R    draft  verify: none  1 row  block  step: none   block  draft/passes  host/step")
    for t in lines:
        ms = "{:8.3f} {:13.3f} {:6.3f} {:6.3f} {:11.3f} {:7.3f}".format(
            *(1e3 * s for s in (t.draft, t.no_draft, t.least, t.full, t.no_draft_step, t.full_step))
        )
        shares = f"{100 * t.draft_share:12.1f}% {100 * t.host_share:9.1f}%"
        print(f"{t.requests:>5} {t.context / t.requests:>9.0f} {ms} {shares}")
