"""Events as they are typed: an acceptance rule at a temperature. No torch."""

from __future__ import annotations

import math
from typing import cast, get_args

from dsbench.errors import UsageError
from dsbench.profiles.calibration import EventKey, Rule

COLDEST, HOTTEST = 1e-6, 1e6  # beyond, logits over temperature leave fp32


def parse_events(text: str) -> tuple[EventKey, ...]:
    """`rule@temperature, ...` as events, in order. Raises UsageError for anything else, and for one named twice."""
    found: list[EventKey] = []
    for part in text.split(","):
        rule, _, temperature = part.strip().partition("@")
        if rule not in get_args(Rule) or not temperature:
            raise UsageError(f"event {part!r} is not rule@temperature", hint="e.g. coupled@1,residual@0.7,block@1")
        try:
            heat = float(temperature)
        except ValueError:
            raise UsageError(f"{temperature!r} is no number") from None
        if not (math.isfinite(heat) and heat >= 0):
            raise UsageError(f"temperature must be finite and >= 0, got {heat}")
        if heat and not COLDEST <= heat <= HOTTEST:
            raise UsageError(
                f"temperature must be 0 or lie in {COLDEST:g}..{HOTTEST:g}, got {heat}", hint="0 takes the likeliest"
            )
        event = EventKey(rule=cast(Rule, rule), temperature=heat)
        if event.canonical in [other.canonical for other in found]:
            raise UsageError(f"event {part.strip()} is named twice", hint="at temperature 0 all rules are one event")
        found.append(event)
    return tuple(found)
