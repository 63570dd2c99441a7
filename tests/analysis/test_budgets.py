"""The verify budget adds up to what ran, and to the block that was drafted."""

from __future__ import annotations

import pandas as pd
import pytest

from dsbench.analysis.budgets import Drafts, Rows, drafts_of, rows_of


def step(requests, budget, rows, tier):
    return {"requests": requests, "budget": budget, "rows": rows, "tier": tier}


def test_rows_add_up_to_the_tier_and_those_after_a_tiers_first_fill_it():
    found = rows_of(pd.DataFrame([step(2, 4, 6, 8), step(2, 0, 2, 4), step(0, 0, 0, 4)]), (4, 8, 16))
    assert found == Rows(anchor=1.0, scheduled=0.75, filler=0.25, seen=0.0, padding=1.0)
    inside = rows_of(pd.DataFrame([step(2, 2, 4, 4)]), (4, 8))
    assert inside == Rows(anchor=1.0, scheduled=0.0, filler=1.0, seen=0.0, padding=0.0)


def test_rows_past_the_window_are_apart_and_without_tiers_none_is_free():
    found = rows_of(pd.DataFrame([step(2, 4, 12, 12)]), None)
    assert found == Rows(anchor=1.0, scheduled=2.0, filler=0.0, seen=3.0, padding=0.0)
    assert rows_of(pd.DataFrame([step(0, 0, 0, 4)]), None) is None


def body(seen):
    rates = {"accepted": 1.5, "window": 3.0, "ceiling": 4.0, "utilisation": 0.75}
    return {name: {"value": value} for name, value in rates.items()} | {"ceiling_seen": seen}


def test_drafts_add_up_to_the_block_and_missed_ones_need_their_ceiling():
    found = drafts_of(body(0.9), 7)
    assert found == Drafts(bonus=1.0, accepted=1.5, rejected=1.5, missed=1.0, trimmed=3.0, seen=0.9)
    assert found.accepted + found.rejected + found.missed + found.trimmed == pytest.approx(7)
    hidden = drafts_of(body(0.5), 7)
    assert (hidden.missed, hidden.trimmed) == (None, 4.0)
    assert drafts_of({"window": None, "accepted": None}, 7) is None
