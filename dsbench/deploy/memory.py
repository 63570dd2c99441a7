"""Memory use of a run in bytes: each part, and the rest of the peak. In run.json as `memory`."""

from __future__ import annotations

from typing import Any

import torch

from dsbench.deploy.engines import Engines
from dsbench.deploy.tensor_bytes import bytes_of, graph_bytes, packed_bytes, peak_bytes, pool_bytes, state_bytes
from dsbench.runtime.loop.graphs import Graphs
from dsbench.runtime.loop.steady import Steady

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
    executors: list[dict[str, Any]] = [
        _executor(made) for made in engines.captured.values() if isinstance(made, (Steady, Graphs))
    ]
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


def _executor(made: Steady | Graphs) -> dict[str, Any]:
    depth = made.depths[-1] if isinstance(made, Steady) else made.depth
    return {
        "kind": "overlapped" if isinstance(made, Steady) else "round by round",
        "drafter": made.models.drafter.digest,
        "depth": depth,
        "commit": made.commit if isinstance(made, Steady) else "",
        "requests": made.tiers.requests[-1],
        "rows": made.tiers.rows[-1],
        "passes": len(made.verify_graphs) + len(made.draft_graphs),
        "state": state_bytes(made),
        "graphs": graph_bytes(made),
    }
