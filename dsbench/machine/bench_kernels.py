"""`dsbench bench-kernels`: every op of the registry at real sizes, against its limit and against its reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dsbench.deploy.deployment import environment, pick_device, use_threads
from dsbench.errors import UsageError, WrongResult
from dsbench.kernels.check.registry import registry
from dsbench.machine.kernel_sizes import Size, plan
from dsbench.machine.kernel_table import print_ceilings, print_results
from dsbench.machine.kernel_time import Ceilings, Result, measure, measure_ceilings
from dsbench.results.store import write_atomically
from dsbench.settings import RunConfig
from dsbench.writing import file_to_write, note

SCHEMA = 1
REPEATS, QUICK_REPEATS = 30, 7


@torch.inference_mode()
def bench_kernels(
    config: RunConfig,
    *,
    ops: str | None,
    shapes: str | None,
    rows: str | None,
    quick: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Prints the table, writes `out` after every batch. Raises WrongResult at the end if an op was wrong."""
    file_to_write(out)
    device = pick_device(config)
    batches = plan(ops=ops, shapes=shapes, rows=rows, quick=quick, on_gpu=device.type == "cuda")
    dtype = dtype_of(config, device)
    use_threads(config)
    repeats = QUICK_REPEATS if quick else REPEATS
    ceilings = measure_ceilings(device, dtype, repeats, config.seed, note)
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "kernels",
        "dtype": str(dtype).removeprefix("torch."),
        "seed": config.seed,
        "repeats": repeats,
        "environment": environment(device),
    }
    if not as_json:
        print_ceilings(ceilings, facts)
    found: list[Result] = []
    for number, batch in enumerate(batches):
        found += measure(
            batch, registry(), ceilings, device=device, dtype=dtype, repeats=repeats, seed=config.seed, notice=note
        )
        note(f"{number + 1}/{len(batches)}: {_words(batch)}")
        if device.type == "cuda":
            torch.cuda.empty_cache()
        body = facts | {"complete": number + 1 == len(batches)} | as_body(ceilings, found)
        if out is not None:
            write_atomically(out, json.dumps(body) + "\n")
    print(json.dumps(body)) if as_json else print_results(found)
    wrong = [result for result in found if result.wrong]
    if wrong:
        first = wrong[0]
        raise WrongResult(
            f"{len(wrong)} of {len(found)} sizes are wrong, first {first.op} {first.label} at {first.rows} rows of "
            f"{first.shape}: {first.wrong}",
            hint="they were not timed",
        )


def dtype_of(config: RunConfig, device: torch.device) -> torch.dtype:
    """The dtype of models on this device. Raises UsageError for bf16 on a CPU, whose kernels read fp32."""
    if device.type == "cuda":
        return torch.float32 if config.dtype == "float32" else torch.bfloat16
    if config.dtype == "bfloat16":
        raise UsageError("the kernels of a CPU read float32", hint="leave --dtype out")
    return torch.float32


def as_body(ceilings: Ceilings, found: Sequence[Result]) -> dict[str, Any]:
    """Ceilings and results as JSON values."""
    return {"ceilings": asdict(ceilings), "results": [asdict(result) for result in found]}


def _words(batch: Sequence[Size]) -> str:
    return f"{len(batch)} sizes at {batch[0].rows} rows of {batch[0].shape}"
