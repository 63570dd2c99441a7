"""What a verdict changes: tokens delivered, the next anchor, and whether the request has come to its end. One launch.

Shapes: S seats, W = G + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def commit(
    accepted: Tensor,
    tokens: Tensor,
    eos: Tensor,
    heeds: Tensor,
    live: Tensor,
    anchor: Tensor,
    start: Tensor,
    emitted: Tensor,
    room: Tensor,
    round_: Tensor,
    ended: Tensor,
) -> Tensor:
    """Delivered tokens [S]; the last six, [S] int64 each, are moved on in place.

    accepted [S] drafts and one token after them stand in tokens [S, W]; the first of the ids eos [E] ends a request
    that `heeds` [S] it, as does the last token it has `room` for. A seat at or past live [1], or one whose request
    has `ended` before, delivers nothing. All int64.
    """
    if accepted.device.type == "cuda":
        from dsbench.kernels import commit_triton  # imports triton, which a machine without a GPU need not have

        run = commit_triton.commit
    else:
        run = commit_reference
    return run(accepted, tokens, eos, heeds, live, anchor, start, emitted, room, round_, ended)


def commit_reference(
    accepted: Tensor,
    tokens: Tensor,
    eos: Tensor,
    heeds: Tensor,
    live: Tensor,
    anchor: Tensor,
    start: Tensor,
    emitted: Tensor,
    room: Tensor,
    round_: Tensor,
    ended: Tensor,
) -> Tensor:
    """As `commit`, in plain torch."""
    seats, width = tokens.shape
    column = torch.arange(width, device=tokens.device)
    stops = (tokens[:, :, None] == eos).any(-1) & (heeds > 0)[:, None]
    until = torch.where(stops, column, width).amin(1) + 1  # tokens up to the first that stops, that one included
    runs = (torch.arange(seats, device=tokens.device) < live) & (ended == 0)
    delivered = torch.where(runs, torch.minimum(torch.minimum(accepted + 1, until), room), 0)
    last = tokens.gather(1, (delivered - 1).clamp(min=0)[:, None]).squeeze(1)
    anchor.copy_(torch.where(delivered > 0, last, anchor))
    ended.copy_(torch.where(runs & ((until <= delivered) | (delivered >= room)), 1, ended))
    start += delivered
    emitted += delivered
    room -= delivered
    round_ += runs
    return delivered
