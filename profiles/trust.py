"""Whether a cost table may be planned with: how far off it is on shapes that its fit did not see."""

from __future__ import annotations

from collections.abc import Mapping

from dsbench.errors import EnvironmentRefused
from dsbench.profiles.cost import CostTable

MEDIAN, P95 = "fit_heldout_error_median", "fit_heldout_error_p95"  # in a table's provenance
HELDOUT = "fit_heldout_cells"
LEAST_TESTED = 3  # held-out shapes of a table that was cut short for --within
MOST_MEDIAN = 0.10  # relative error on held-out shapes
P95_OF_MEDIAN = 5  # times the median that the 95th percentile may be
HINT = "profile again with little else on this machine: dsbench profile-cost"


def doubt(provenance: Mapping[str, str], most_median: float = MOST_MEDIAN) -> str:
    """Why a table is too far off to plan with; empty where it is not, or where its errors are not known."""
    tested = _number(provenance.get(HELDOUT, ""))
    if tested is not None and tested < LEAST_TESTED and provenance.get("left_out", "nothing") != "nothing":
        return f"in the time it had so few shapes were timed that only {tested:.0f} could be held out to test it on"
    for name, most, what in ((MEDIAN, most_median, "half"), (P95, P95_OF_MEDIAN * most_median, "one in twenty")):
        error = _number(provenance.get(name, ""))
        if error is not None and not error <= most:
            return f"{what} of its held-out shapes are off by more than {error:.0%} (allowed: {most:.0%})"
    return ""


def require_trust(table: CostTable, what: str, most_median: float = MOST_MEDIAN) -> None:
    """Raises EnvironmentRefused for a table that is too far off to plan with."""
    reason = doubt(table.provenance, most_median)
    if reason:
        raise EnvironmentRefused(f"{what} is too far off to plan with: {reason}", hint=HINT)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
