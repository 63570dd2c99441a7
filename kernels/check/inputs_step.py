"""Inputs of the ops between a draft and its verdict, by case, on the generator's device; unread leftovers are absurd.

Shapes: R requests, of which the last is a dummy where rows are packed; G block, W = G + 1, M rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.check.inputs import Inputs, there

JUDGE_CASES = (  # requests, block, whether a text is recorded
    (1, 7, False),
    (9, 4, True),
    (5, 1, False),
    (3, 0, True),
    (17, 7, True),
)
PACK_CASES = (  # requests with the dummy, live, block, rows, tokens a page
    (2, 1, 7, 8, 16),
    (6, 3, 4, 41, 8),
    (20, 19, 7, 64, 4),
    (5, 2, 0, 4, 8),
    (40, 33, 3, 132, 16),
)
PLAN_CASES = (  # as PACK_CASES, and the budget
    (2, 1, 7, 8, 16, 4),
    (6, 3, 4, 41, 8, 6),
    (20, 19, 7, 64, 4, 40),
    (20, 19, 7, 40, 4, 40),  # more than the rows have room for
    (5, 2, 1, 4, 8, 1),
    (40, 33, 3, 132, 16, 500),  # more than is allowed
    (34, 33, 7, 132, 16, 0),
    (70, 68, 8, 200, 16, 90),
)
COMMIT_CASES = (  # slots, block, ids that end a text
    (1, 7, 1),
    (9, 4, 2),
    (5, 0, 1),
    (40, 7, 0),
    (300, 3, 3),
)
LONGEST = 100  # tokens before a packed row
ABSURD = -(2**40)  # of what must not be read: as an index it would be seen


@there
def judge_inputs(generator: torch.Generator, case: tuple[int, int, bool], *, odd: bool = True) -> Inputs:
    """Few ids, so that drafts match. Odd: some have fewer rows than they verified, some, like the dummy, none."""
    requests, block, pinned = case
    verified = torch.randint(0, block + 1, (requests,), generator=generator)
    counts = verified + 1
    if odd:
        counts = (counts - (torch.arange(requests) % 5 == 2).long()) * (torch.arange(requests) % 4 != 3)
    recorded = torch.randint(-1, 2, (requests, block + 1), generator=generator)
    return {
        "own": torch.randint(0, 2, (int(counts.sum()),), generator=generator),
        "cu_rows": torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(),
        "drafts": torch.randint(0, 2, (requests, block), generator=generator),
        "window": torch.minimum(torch.randint(0, block + 1, (requests,), generator=generator), verified),
        "verified": verified,
        "recorded": recorded if pinned else None,
    }


@there
def commit_inputs(generator: torch.Generator, case: tuple[int, int, int]) -> Inputs:
    """Few ids, so that texts end; little room; some ended before, some do not stop at EOS, the last quarter of the
    slots is free.
    """
    slots, block, stops = case

    def numbers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size or (slots,), generator=generator)

    return {
        "accepted": numbers(0, block + 1),
        "tokens": numbers(0, 9, slots, block + 1),
        "eos": torch.arange(stops),
        "stops_at_eos": numbers(0, 2),
        "live": torch.tensor([slots - slots // 4]),
        "anchor": numbers(0, 9),
        "start": numbers(5, 100),
        "emitted": numbers(1, 50),
        "room": numbers(1, 2 * block + 4),
        "round_": numbers(0, 9),
        "ended": (numbers(0, 5) == 0).long(),
    }


@there
def pack_inputs(generator: torch.Generator, case: tuple[int, int, int, int, int]) -> Inputs:
    """As many drafts as rows allow at most; what slots at or past `live` hold is absurd."""
    requests, live, block, rows, page = case
    verified = torch.randint(0, block + 1, (requests,), generator=generator).clamp(max=rows // live - 1)
    return {
        "verified": torch.where(torch.arange(requests) < live, verified, ABSURD),
        **standing_inputs(generator, case),
    }


@there
def plan_inputs(generator: torch.Generator, case: tuple[int, int, int, int, int, int], *, odd: bool = True) -> Inputs:
    """Logits that tie within and across requests. Odd: limits of 0 and below, logits that say it is hopeless, or sure.

    Maps of two events; what slots at or past `live` hold is NaN.
    """
    *standing, budget = case
    requests, live, block = standing[:3]
    beyond = torch.arange(requests)[:, None] >= live
    confidence = torch.randn(requests, block, generator=generator) * 2 + 1
    limits = torch.full((requests,), block)
    if odd:
        confidence = confidence.mul(2).round() / 2
        confidence[1::5, 1:] = -200.0
        confidence[2::5] = 200.0
        confidence[3::7, :1] = float("nan")
        limits = torch.randint(-1, block + 2, (requests,), generator=generator)
    event = torch.arange(requests) % 2
    scale, offset = torch.rand(2, block, generator=generator) + 0.5, torch.randn(2, block, generator=generator) / 2
    return {
        "confidence": confidence.masked_fill(beyond, float("nan")),
        "scale": scale[event].masked_fill(beyond, float("nan")),
        "offset": offset[event].masked_fill(beyond, float("nan")),
        "limits": limits.masked_fill(beyond[:, 0], -ABSURD),
        "budget": torch.tensor([budget]),
        **standing_inputs(generator, tuple(standing)),
    }


def standing_inputs(generator: torch.Generator, case: tuple[int, ...]) -> Inputs:
    """Where requests stand and what they drafted; page tables are as wide as their longest text needs."""
    requests, live, block, rows, page = case
    table = -(-(LONGEST + block + 1) // page)
    beyond = torch.arange(requests) >= live
    beyond[-1] = False  # the dummy's anchor and context are read
    context = torch.randint(0, LONGEST, (requests,), generator=generator)
    context[-1] = 0
    return {
        "anchor": torch.randint(0, 50_000, (requests,), generator=generator).masked_fill(beyond, ABSURD),
        "drafts": torch.randint(0, 50_000, (requests, block), generator=generator),
        "context": context.int().masked_fill(beyond, -(2**30)),
        "pages": torch.randint(0, 5000, (requests, table), generator=generator).int(),
        "live": torch.tensor([live]),
        "rows": rows,
        "page": page,
    }
