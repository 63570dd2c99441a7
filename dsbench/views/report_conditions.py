"""A report's sections on trust: flags, conditions, how to read it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsbench.results.cells import StoredCell
from dsbench.results.columns import shown_in
from dsbench.results.labels import arm_names, arm_rank, setting_text, workload_text
from dsbench.views.numbers import NONE, number, percent, span
from dsbench.views.report_parts import Section
from dsbench.views.tables import Table

FLAGGED = "A flagged cell's numbers stand, but are to be trusted less; flags say why."
INTERVALS = (
    "Values in brackets are 95% bootstrap intervals over prompts, repeats of a prompt averaged first. FASTER, SLOWER: "
    "the whole interval lies beyond the noise band; SAME: inside it; UNCLEAR: it crosses an edge. Text and tables of a "
    "run that is simulated, replayed or on random weights say so at the top of the page and in every picture."
)


def flags_section(cells: Sequence[StoredCell]) -> Section:
    names = arm_names(cells)
    rows = tuple(
        (workload_text(c.cell.workload), c.cell.batch, names[c.folder], "; ".join(c.flags)) for c in cells if c.flags
    )
    counted = {
        "steps that compiled a kernel": sum(c.summary.get("compiled_steps") or 0 for c in cells),
        "steps that fitted no captured graph": sum(c.summary.get("missed_steps") or 0 for c in cells),
    }
    shares = [share for c in cells if (share := c.summary.get("extrapolated_share")) is not None]
    extrapolated = f", steps outside the cost table's box {percent(float(np.mean(shares)), 1)}" if shares else ""
    text = f"{len(rows)} of {len(cells)} cells are flagged; " + ", ".join(f"{k} {v}" for k, v in counted.items())
    tables = (Table(name="flags", caption="Flagged cells", heads=("workload", "R", "arm", "why"), rows=rows),)
    return Section(
        id="flags",
        title="Flags and contamination",
        text=(f"{text}{extrapolated}. {FLAGGED}",),
        tables=tables if rows else (),
    )


def reading_section() -> Section:
    rows = tuple((c.name, c.unit, c.formula, c.others or NONE) for c in shown_in("reading"))
    table = Table(name="terms", caption="Formulas", heads=("name", "unit", "formula", "others"), rows=rows)
    return Section(id="reading", title="How to read the numbers", text=(INTERVALS,), tables=(table,))


def condition_list(run: Mapping[str, Any], cells: Sequence[StoredCell], loud: str) -> tuple[tuple[str, str], ...]:
    """Everything a number of this run depends on: machine, versions, model, drafter, seeds, text, arms, rule."""
    machine, contract, labels, config = (
        dict(run.get(key) or {}) for key in ("environment", "contract", "labels", "config")
    )
    cell = [stored.cell for stored in cells]
    provenance = (run.get("cost_table") or {}).get("provenance") or {}
    sources = [f"{w['name']} ({w['source']}, {str(w['digest'])[:12]})" for w in run.get("workloads") or ()]
    found = {
        "labels": loud,
        "device": _words(machine, "device", "driver", "cuda", "platform"),
        "versions": _words(machine, "python", "torch", "numpy", "revision", named=True),
        "threads": str(contract.get("threads", "")).replace("-", ""),
        "target": " ".join(str(labels[key]) for key in ("target", "target_note") if labels.get(key)),
        "digests": _words(contract, "target", "drafter", named=True),
        "block, dtype, numerics, executor": _words(contract, "block", "dtype", "numerics", "executor"),
        "arms": ", ".join(sorted(set(arm_names(cells).values()), key=arm_rank)),
        "settings": "; ".join(dict.fromkeys(setting_text(c) for c in cell)),
        "workloads": "; ".join(sources) or ", ".join(sorted({c.workload for c in cell})),
        "batch sizes": ", ".join(str(b) for b in sorted({c.batch for c in cell})),
        "measured requests a cell": span([stored.summary["requests"] for stored in cells]),
        "prompts a cell": span([stored.summary["prompts"] for stored in cells]),
        "repeats": span([stored.summary["repeats"] for stored in cells]),
        "prompt tokens": _prompt_tokens(cells),
        "output tokens": f"at most {span([c.max_tokens for c in cell])}",
        "mean context tokens a request": _contexts(cells),
        "seeds": ", ".join(str(seed) for seed in sorted({c.seed for c in cell})),
        "lag": ", ".join(str(lag) for lag in sorted({c.lag for c in cell})),
        "acceptance": "; ".join(sorted({c.acceptance for c in cell if c.acceptance})) or "its own",
        "calibrated confidences": {True: "yes", False: "no"}.get(labels.get("calibrated", ""), ""),
        "cost table": " ".join(
            part
            for part in (
                str((run.get("cost_table") or {}).get("digest", "")),
                str(provenance.get("date", "")),
                str(provenance.get("revision", "")),
            )
            if part
        ),
        "sources": str(run.get("code", "")),
        "date": str(run.get("date", "")),
        "configuration": ", ".join(f"{k}={v}" for k, v in config.items() if v not in ("", None)),
    }
    return tuple((name, value) for name, value in found.items() if value)


def _words(facts: Mapping[str, Any], *keys: str, named: bool = False) -> str:
    kept = {key: str(facts[key]).split("\n")[0] for key in keys if facts.get(key)}
    labelled = {"driver", "cuda"}
    return ", ".join(f"{key} {value}" if named or key in labelled else value for key, value in kept.items())


def _prompt_tokens(cells: Sequence[StoredCell]) -> str:
    seen = [stored.columns("requests", ("prompt_tokens",))["prompt_tokens"] for stored in cells]
    every = np.concatenate(seen)
    return f"{every.min()} to {every.max()}, mean {number(float(every.mean()))}" if len(every) else ""


def _contexts(cells: Sequence[StoredCell]) -> str:
    """Over the steps of each batch size."""
    by_batch: dict[int, list[float]] = {}
    for stored in cells:
        steps = stored.columns("steps", ("context", "requests"))
        rows = steps["requests"] > 0
        by_batch.setdefault(stored.cell.batch, []).append(
            float(steps["context"][rows].sum() / max(1, steps["requests"][rows].sum()))
        )
    means = [float(np.mean(found)) for found in by_batch.values()]
    return f"{number(min(means))} to {number(max(means))}" if means else ""
