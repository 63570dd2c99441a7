"""Memory use of a run in bytes: each part, and the rest of the peak. In run.json as `memory`."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch

from dsbench.deploy.engines import Engines
from dsbench.deploy.tensor_bytes import bytes_of, graph_bytes, packed_bytes, peak_bytes, pool_bytes
from dsbench.runtime.loop.captured import CapturedDevice

PEAKS = {"cuda": "reserved by torch on the device", "cpu": "resident in the process"}
RESTS = {"cuda": "temporary buffers", "cpu": "temporary buffers, interpreter, libraries"}


def memory_of(engines: Engines) -> dict[str, Any]:
    """Sums over the tensors of the engines' models, pools and captured executors, beside the peak of the process.

    rest: the peak less all that is listed; no less than 0, since untouched pages on a CPU are not resident.
    """
    deployment = engines.deployment
    target, drafter, chain = deployment.target.model, deployment.drafter, deployment.chain
    whole, block = bytes_of(target), bytes_of(target, drafter)
    weights = {
        "target": whole,
        "drafter": block - whole,
        "chain": bytes_of(target, drafter, chain) - block,
        "packed": packed_bytes(target, drafter, chain),
    }
    pools: list[dict[str, Any]] = []
    for (digest, rule), models in engines.models.items():
        of_target, of_drafter = pool_bytes(models)
        pools.append(
            {
                "drafter": digest,
                "rule": rule,
                "tokens": models.pool.shape.pages * models.pool.shape.page,
                "target_layers": of_target,
                "drafter_layers": of_drafter,
            }
        )
    executors: list[dict[str, Any]] = [_captured(made) for made in engines.captured.values()]
    parts = [*weights.values()]
    parts += [pool[name] for pool in pools for name in ("target_layers", "drafter_layers")]
    parts += [made[name] for made in executors for name in ("state", "graphs")]
    kind, peak = deployment.device.type, peak_bytes(deployment.device)
    body: dict[str, Any] = {
        "weights": weights,
        "pools": pools,
        "executors": executors,
        "rest": max(0, peak - sum(parts)),
        "rest_is": RESTS[kind],
        "peak": peak,
        "peak_is": PEAKS[kind],
    }
    if kind == "cuda":
        free, total = torch.cuda.mem_get_info(deployment.device)
        body["peak_allocated"] = int(torch.cuda.max_memory_allocated(deployment.device))
        body["outside_torch"] = total - free - int(torch.cuda.memory_reserved(deployment.device))
    return body


def _captured(made: CapturedDevice) -> dict[str, Any]:
    passes: tuple[Sized, ...] = (
        made.verify_graphs,
        made.no_draft_graphs,
        made.draft_graphs,
        made.look_graphs,
        made.prefill_graphs,
    )
    return {
        "kind": "captured",
        "drafter": made.passes.models.drafter.digest,
        "depth": made.depths[-1],
        "commit": made.commit,
        "requests": made.tiers.requests[-1],
        "rows": made.tiers.rows[-1],
        "passes": sum(len(graphs) for graphs in passes),
        "state": bytes_of(made.slots, list(made.chunks.values())),
        "graphs": graph_bytes(made.graph_pool),
    }
