"""Commits a verdict to the per-slot state: delivered tokens, next anchor, whether the request ended. One launch.

Shapes: S slots, W = G + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def commit(
    accepted: Tensor,
    tokens: Tensor,
    eos: Tensor,
    stops_at_eos: Tensor,
    live: Tensor,
    anchor: Tensor,
    start: Tensor,
    emitted: Tensor,
    room: Tensor,
    round_: Tensor,
    ended: Tensor,
) -> Tensor:
    """Returns the delivered tokens [S]; updates the last six arguments, [S] int64 each, in place.

    tokens [S, W] holds the accepted [S] drafts and the token after them. A request ends with the first of the ids
    eos [E] where its `stops_at_eos` [S] is 1, and with the last token it has `room` for. Slots at or past live [1] and
    slots whose request has `ended` before deliver nothing. All int64.
    """
    if accepted.device.type == "cuda":
        from dsbench.kernels import commit_triton  # imports triton, which a machine without a GPU need not have

        run = commit_triton.commit
    else:
        run = commit_reference
    return run(accepted, tokens, eos, stops_at_eos, live, anchor, start, emitted, room, round_, ended)


def commit_reference(
    accepted: Tensor,
    tokens: Tensor,
    eos: Tensor,
    stops_at_eos: Tensor,
    live: Tensor,
    anchor: Tensor,
    start: Tensor,
    emitted: Tensor,
    room: Tensor,
    round_: Tensor,
    ended: Tensor,
) -> Tensor:
    """The reference of `commit`, in torch."""
    slots, width = tokens.shape
    column = torch.arange(width, device=tokens.device)
    stops = (tokens[:, :, None] == eos).any(-1) & (stops_at_eos > 0)[:, None]
    until = torch.where(stops, column, width).amin(1) + 1  # tokens up to the first that stops, that one included
    runs = (torch.arange(slots, device=tokens.device) < live) & (ended == 0)
    delivered = torch.where(runs, torch.minimum(torch.minimum(accepted + 1, until), room), 0)
    last = tokens.gather(1, (delivered - 1).clamp(min=0)[:, None]).squeeze(1)
    anchor.copy_(torch.where(delivered > 0, last, anchor))
    ended.copy_(torch.where(runs & ((until <= delivered) | (delivered >= room)), 1, ended))
    start += delivered
    emitted += delivered
    room -= delivered
    round_ += runs
    return delivered
