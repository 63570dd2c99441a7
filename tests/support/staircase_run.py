"""An engine of a known law on a virtual clock: a staircase of step costs, known matches, lockstep waves, no noise.

Every request drafts BLOCK tokens a round, of which MATCH[i] equal the text in its i-th round, over and over; all R
requests of a wave are admitted one after another, then run in lockstep. So every number has a closed form, `law`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dsbench.results.metrics import cell_summary
from dsbench.results.store import RunStore

BLOCK, MATCH, CYCLES = 4, (4, 0, 2), 3
TIERS = (4, 8, 16, 32, 64)
PREFILL, BETWEEN = 0.005, 0.0001  # seconds a prompt; seconds of a round in no phase
DRAFT, VERIFY, STAIR, ACCEPT, PLAN = 0.002, 0.010, 0.003, 0.0005, 0.0002  # seconds
WAVES = 3
PROMPTS = 4  # a wave's requests share them in turn


def tier_of(rows):
    return next(tier for tier in TIERS if tier >= rows)


def phases(batch, window):
    """Seconds of a round's phases; verify is VERIFY and a STAIR a tier above the first."""
    verify = VERIFY + STAIR * TIERS.index(tier_of(batch * (window + 1)))
    drafts = window > 0
    return {
        "draft": DRAFT * drafts,
        "plan": PLAN * drafts,
        "pack": 0.0,
        "verify": verify,
        "accept": ACCEPT,
        "commit": 0.0,
    }


@dataclass(frozen=True)
class Law:
    """Closed forms of a cell: a request writes `tokens` in `rounds` rounds of `step` seconds."""

    tokens: int
    rounds: int
    accepted: float
    tau: float
    by_depth: tuple[float, ...]
    step: float
    padding: float
    user_speed: float
    throughput: float
    first_token: tuple[float, ...]
    held: float


def text_rounds(window):
    """What each round accepts until the text, 1 + 3 cycles of MATCH at the whole block, is written; windows may cut."""
    return [min(match, window) for match in MATCH] * CYCLES


def law(batch, window):
    accepts = text_rounds(window)
    rounds, parts = len(accepts), phases(batch, window)
    tokens, step = 1 + sum(accepts) + rounds, sum(parts.values()) + BETWEEN
    moving = rounds * step
    waits = [(batch - i) * PREFILL for i in range(batch)]
    held = float(np.mean(waits)) + moving
    rows = batch * (window + 1)
    padding = (parts["verify"] + parts["accept"]) * (tier_of(rows) - rows) / tier_of(rows)
    tried = [sum(match >= depth - 1 for match in MATCH) for depth in range(1, window + 1)]
    hit = [sum(match >= depth for match in MATCH) for depth in range(1, window + 1)]
    return Law(
        tokens=tokens,
        rounds=rounds,
        accepted=sum(accepts) / rounds,
        tau=sum(accepts) / rounds + 1,
        by_depth=tuple(h / t for h, t in zip(hit, tried, strict=True)),
        step=step,
        padding=padding,
        user_speed=(tokens - 1) / moving,
        throughput=batch * tokens / held,
        first_token=tuple(waits),
        held=held,
    )


def window_of(mode):
    return {"none": 0, "static": BLOCK}.get(mode) if ":" not in mode else int(mode.split(":")[1])


def simulate(batch, window):
    """Steps, rounds and requests of WAVES waves; the middle one is measured."""
    steps, rounds, done, now = [], [], [], 0.0
    accepts, parts, rows = text_rounds(window), phases(batch, window), batch * (window + 1)
    for wave in range(WAVES):
        admitted = [now + i * PREFILL for i in range(batch)]
        now = first = now + batch * PREFILL
        names, measured, out = [f"p{i % PROMPTS}" for i in range(batch)], wave == 1, 1
        for i, accepted in enumerate(accepts):
            seconds, prefill, number = sum(parts.values()) + BETWEEN, 0.0 if i else batch * PREFILL, len(steps)
            now += seconds
            steps.append(
                {
                    "step": number,
                    "start": now,
                    "requests": batch,
                    "budget": batch * window,
                    "rows": rows,
                    "tier": tier_of(rows),
                    "padding": tier_of(rows) - rows,
                    "misses": 0,
                    "compiles": 0,
                    "context": 9,
                    "delivered": batch * (accepted + 1),
                    "seconds": prefill + seconds,
                    "prefill_seconds": prefill,
                    "predicted_seconds": np.nan,
                    "read": now,
                    "confidence_age": 0,
                    "priors": 0,
                    "extrapolated": False,
                    "flips": 0,
                    **{f"{name}_seconds": value for name, value in parts.items()},
                }
            )
            whole = MATCH[i % len(MATCH)]
            rounds += [
                {
                    "step": number,
                    "request": wave * batch + r,
                    "workload": "toy",
                    "position": 5 + out,
                    "output_index": out,
                    "window": window,
                    "verified": window,
                    "accepted": accepted,
                    "delivered": accepted + 1,
                    "ceiling": whole + 1 if window else 1,
                    "flips": 0,
                    "drafts": [1] * (BLOCK if window else 0),
                    "logits": [],
                    "token_free_logits": [],
                    "name": names[r],
                    "measured": measured,
                }
                for r in range(batch)
            ]
            out += accepted + 1
        done += [
            {
                "request": wave * batch + r,
                "name": names[r],
                "workload": "toy",
                "prompt_tokens": 5,
                "output_tokens": out,
                "rounds": len(accepts),
                "admitted": admitted[r],
                "first_token": first,
                "finished": now,
                "finish_reason": "length",
                "measured": measured,
                "repetition": 0.0,
            }
            for r in range(batch)
        ]
    return {"steps": pd.DataFrame(steps), "rounds": pd.DataFrame(rounds), "requests": pd.DataFrame(done)}


def write_staircase_run(folder, make_cell, *, modes, batches, workload="toy", rounds=True):
    """A finished run; without `rounds` its cells lack that table, as a run does that was too big to keep."""
    store = RunStore(folder, create=True)
    labels = {"target": "a staircase", "synthetic": True}
    store.write_run({"environment": {"device": "a virtual clock"}, "contract": {"block": str(BLOCK)}, "labels": labels})
    for batch in batches:
        for mode in modes:
            key, tables = f"{mode}-{batch}".replace(":", "_"), simulate(batch, window_of(mode))
            store.write_repeat(key, tables)
            summary = cell_summary(*tables.values(), batch=batch, block=BLOCK if mode != "none" else 0)
            store.write_cell(key, make_cell(mode, batch, workload), summary, [])
            if not rounds:
                (store.cell_folder(key) / "rep-0" / "rounds.parquet").unlink()
    return store
