"""Shared by tests: what simulate tests and others run on."""

from __future__ import annotations

from dsbench.results.tables import later_ceiling

SAME = ("output_index", "window", "verified", "accepted", "delivered")


def rounds_of_engine(engine, queue):
    by_id = {r.id: r for r in queue}
    return {
        (r.request, r.output_index): (
            r.step,
            *(getattr(r, name) for name in SAME),
            len(r.drafts),
            later_ceiling(r, by_id[r.request], "coupled"),
        )
        for r in engine.rounds
    }


def rounds_of_play(found):
    return {
        (r["request"], r["output_index"]): (r["step"], *(r[name] for name in SAME), len(r["drafts"]), r["ceiling"])
        for r in found.rounds
    }
