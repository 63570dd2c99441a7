"""What `profile-cost` says of its table beside the errors of the fit. Plain lines on stdout."""

from __future__ import annotations

from collections.abc import Mapping

from dsbench.profiles.falls import FALLS, NONE
from dsbench.profiles.regret import Regret

KEPT_WHOLE = ("", "nothing")


def print_regret(found: Regret | None) -> None:
    """Throughput lost by the table's decisions, judged by passes that it did not see."""
    if found is None:
        print("decision regret: not known from one pass")
        return
    print(
        f"decision regret {100 * found.mean:.2f}% of the throughput [{100 * found.low:.2f}, {100 * found.high:.2f}], "
        f"95% within {100 * found.p95:.1f}%: {found.decisions} choices of rows by a table that did not see the pass "
        "whose times judge them"
    )


def print_doubts(provenance: Mapping[str, str]) -> None:
    """What of the profile is to be known before its table is used: costs that fall, shapes left out, disturbances."""
    if provenance.get(FALLS, NONE) != NONE:
        print(f"doubtful: more rows took less time at {provenance[FALLS]}")
    if provenance.get("left_out", "") not in KEPT_WHOLE:
        print(f"left out for --within: {provenance['left_out']}")
    print(
        f"reference {provenance.get('reference', '-')}; the machine was up to {provenance.get('slowest', '-')} times "
        f"slower than usual; timed again: {provenance.get('timed_again', '-')}"
    )
