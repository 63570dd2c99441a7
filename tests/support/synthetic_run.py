"""Fabricates runs of a known law: acceptance per depth and workload, step time affine in requests and rows.

A closed loop on a virtual clock, so the tables have the shape of measured ones; no model, no torch. Drafts match the
same way in every arm (the coupled rule), since matches are a function of prompt and position.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from dsbench.results.metrics import cell_summary
from dsbench.results.store import Cell, RunStore

BLOCK = 5
MATCH = {"math": 0.88, "chat": 0.7, "poetry": 0.5}  # chance that a draft matches, given that those before it did
BASE, PER_REQUEST, PER_ROW, DRAFT = 0.010, 0.0002, 0.0006, 0.002  # seconds
PREFILL = 0.004


def step_seconds(requests, rows, drafts):
    return BASE + PER_REQUEST * requests + PER_ROW * rows + (DRAFT if drafts else 0.0)


def match_lengths(name, workload, tokens):
    """Per output position, how many drafts of a block proposed there equal the text."""
    rng = np.random.default_rng([len(name), *name.encode()])
    hits = rng.random((tokens + 1, BLOCK)) < MATCH[workload]
    return np.where(hits.all(1), BLOCK, hits.argmin(1))


def window_of(mode, workload, batch):
    """Drafts sent, and committed at most; the planned arms take less of what seldom matches, and less under load."""
    if mode == "none":
        return 0, 0
    if mode.startswith(("static:", "mtp:")):
        return (int(mode.split(":")[1]),) * 2
    if mode in ("static", "no-trim"):
        return BLOCK, BLOCK
    survival = MATCH[workload] ** np.arange(1, BLOCK + 1)
    window = int((survival > 0.1 + 0.03 * batch).sum())
    return (BLOCK if mode == "cap-accept" else window), window


def simulate(mode, batch, workloads, *, measured=12, tokens=30, rep=0, noise=0.02):
    """One repeat's three tables. `workloads` take turns in the queue."""
    rng = np.random.default_rng([batch, rep, *mode.encode()])
    waiting = [
        (i, f"{w}-{i // len(workloads):03d}", w)
        for i, w in ((i, workloads[i % len(workloads)]) for i in range(2 * batch + measured))
    ]
    wanted = set(range(batch, batch + measured))
    slots, steps, rounds, done, now = [], [], [], [], 0.0
    while not wanted <= {r["request"] for r in done}:
        begin = now
        while len(slots) < batch and waiting:
            index, name, workload = waiting.pop(0)
            admitted, now = now, now + PREFILL
            slots.append(
                {
                    "id": index,
                    "name": name,
                    "workload": workload,
                    "admitted": admitted,
                    "first": now,
                    "out": 1,
                    "rounds": 0,
                    "match": match_lengths(name, workload, tokens),
                }
            )
        number, rows, total, flat, prefill = len(steps), 0, 0, [], now - begin
        for slot in slots:
            sent, window = window_of(mode, slot["workload"], batch)
            window = min(window, tokens - slot["out"] - 1)
            if mode != "none" and not mode.startswith(("static", "mtp:")):
                window = max(0, window - int(rng.random() < 0.3))
            sent = window if mode == "compact" else min(sent, tokens - slot["out"] - 1)
            whole = int(slot["match"][slot["out"]])
            accepted = min(whole, window)
            seen = whole < sent or sent >= BLOCK
            rounds.append(
                {
                    "step": number,
                    "request": slot["id"],
                    "workload": slot["workload"],
                    "position": 20 + slot["out"],
                    "output_index": slot["out"],
                    "window": window,
                    "verified": sent,
                    "accepted": accepted,
                    "delivered": accepted + 1,
                    "ceiling": min(whole, sent) + 1 if seen and mode != "none" else -1,
                    "flips": 0,
                    "drafts": [7] * (0 if mode == "none" else BLOCK),
                    "logits": [],
                    "token_free_logits": [],
                    "name": slot["name"],
                    "measured": slot["id"] in wanted,
                }
            )
            slot["out"] += accepted + 1
            slot["rounds"] += 1
            rows, total = rows + sent + 1, total + accepted + 1
            flat.append(window)
        expected = step_seconds(len(slots), rows, mode != "none")
        seconds = expected * (1 + noise * rng.standard_normal())
        now += seconds
        share = {"draft": 0.15, "plan": 0.02, "pack": 0.03, "verify": 0.7, "accept": 0.06, "commit": 0.03}
        steps.append(
            {
                "step": number,
                "start": now,
                "requests": len(slots),
                "budget": sum(flat),
                "rows": rows,
                "tier": rows,
                "padding": 0,
                "context": 40 * len(slots),
                "delivered": total,
                "seconds": prefill + seconds,
                "prefill_seconds": prefill,
                "misses": 0,
                "compiles": 0,
                "predicted_seconds": expected * 1.03 if mode in ("compact", "cap-accept") else np.nan,
                "confidence_age": 0,
                "priors": 0,
                "extrapolated": False,
                "flips": 0,
                **{f"{k}_seconds": v * seconds for k, v in share.items()},
            }
        )
        for slot in [s for s in slots if s["out"] >= tokens]:
            done.append(
                {
                    "request": slot["id"],
                    "name": slot["name"],
                    "workload": slot["workload"],
                    "prompt_tokens": 20,
                    "output_tokens": slot["out"],
                    "rounds": slot["rounds"],
                    "admitted": slot["admitted"],
                    "first_token": slot["first"],
                    "finished": now,
                    "finish_reason": "length",
                    "measured": slot["id"] in wanted,
                    "repetition": 0.1,
                }
            )
        slots = [s for s in slots if s["out"] < tokens]
    return {"steps": pd.DataFrame(steps), "rounds": pd.DataFrame(rounds), "requests": pd.DataFrame(done)}


def make_cell(mode, batch, workload, **changes):
    parameters = {
        "mode": mode,
        "batch": batch,
        "workload": workload,
        "accept": "coupled",
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "text": "pinned",
        "seed": 0,
        "max_tokens": 30,
        "measured": 12,
        "lag": 0,
        "cost": "",
    }
    return Cell(**(parameters | changes))


def write_synthetic_run(folder, *, modes, batches, workloads, repeats=2, measured=12, labels=None, **law):
    """A finished run; a workload such as mix:math=1,poetry=1 takes its members in turn. Returns the store."""
    store = RunStore(folder, create=True)
    store.write_run(
        {
            "environment": {"device": "Virtual CPU @ 2.0 GHz"},
            "contract": {"threads": "2", "dtype": "float32", "block": str(BLOCK)},
            "labels": {"target": "toy-135m", "target_note": "quantised weights, dequantised once"} | (labels or {}),
        }
    )
    for workload in workloads:
        members = [part.split("=")[0] for part in workload.removeprefix("mix:").split(",")]
        for batch in batches:
            for mode in modes:
                cell, key = make_cell(mode, batch, workload), f"{mode}-{batch}-{workload}".replace(":", "_")
                repeat = [simulate(mode, batch, members, measured=measured, rep=i, **law) for i in range(repeats)]
                for tables in repeat:
                    store.write_repeat(key, tables)
                whole = {
                    name: pd.concat([t[name].assign(rep=i) for i, t in enumerate(repeat)], ignore_index=True)
                    for name in ("steps", "rounds", "requests")
                }
                summary = cell_summary(
                    whole["steps"],
                    whole["rounds"],
                    whole["requests"],
                    batch=batch,
                    block=BLOCK if mode != "none" else 0,
                )
                store.write_cell(key, cell, summary, summary["flags"])
    return store
