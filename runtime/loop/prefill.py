"""Prompts through target and drafter, in chunks; each request's first token comes from its prompt's last row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.drafters.draft import Drafter
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import Purpose, coupled_choice, distribution, inverse_cdf, keyed_uniforms, sampling_of
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import Target

Chunk = list[tuple[Request, int]]  # requests and how many prompt tokens of each


def prefill(
    requests: Sequence[Request], target: Target, drafter: Drafter, pool: StatePool, *, rule: str, chunk: int
) -> Iterator[tuple[Request, int]]:
    """Yields (request, its first output token) as prompts complete; `chunk` prompt tokens a pass at most."""
    done = dict.fromkeys((r.id for r in requests), 0)
    waiting = list(requests)
    while waiting:
        part = _next_chunk(waiting, done, chunk)
        yield from _run_chunk(part, done, target, drafter, pool, rule)
        waiting = [r for r in waiting if done[r.id] < len(r.prompt_ids)]


def _next_chunk(waiting: Sequence[Request], done: dict[int, int], size: int) -> Chunk:
    chunk: Chunk = []
    for request in waiting:
        count = min(size, len(request.prompt_ids) - done[request.id])
        if count == 0:
            break
        chunk.append((request, count))
        size -= count
    return chunk


def _run_chunk(
    chunk: Chunk, done: dict[int, int], target: Target, drafter: Drafter, pool: StatePool, rule: str
) -> list[tuple[Request, int]]:
    device = target.device
    context = torch.tensor([done[r.id] for r, _ in chunk], dtype=torch.int32, device=device)
    cu_rows, index, positions = ragged_positions(context, torch.tensor([n for _, n in chunk], device=device))
    ids = [t for r, n in chunk for t in r.prompt_ids[done[r.id] : done[r.id] + n]]
    for request, count in chunk:
        done[request.id] += count
        pool.grow(request.id, done[request.id])
    whole = [i for i, (r, _) in enumerate(chunk) if done[r.id] == len(r.prompt_ids)]
    batch = Batch(
        ids=torch.tensor(ids, device=device),
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        request=index,
        pages=pool.table([r.id for r, _ in chunk]),
        logit_rows=cu_rows[1:].long()[whole] - 1,
    )
    logits, taps = target.forward(batch, pool, drafter.taps)
    drafter.observe(batch, taps, pool)
    complete = [chunk[i][0] for i in whole]
    return list(zip(complete, _first_tokens(complete, logits, rule), strict=True)) if complete else []


def _first_tokens(requests: Sequence[Request], logits: Tensor, rule: str) -> list[int]:
    """The canonical first token where a text is pinned, else the rule's own choice from logits [n, V]."""
    sampling = sampling_of(requests, logits.device)
    positions = torch.tensor([len(r.prompt_ids) for r in requests], device=logits.device)
    if rule == "coupled":
        tokens = coupled_choice(logits, sampling, positions, None)
    else:
        tokens = inverse_cdf(distribution(logits, sampling), keyed_uniforms(sampling, positions, Purpose.BONUS))
    return [r.canonical[0] if r.canonical else t for r, t in zip(requests, tokens.tolist(), strict=True)]
