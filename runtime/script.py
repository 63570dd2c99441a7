"""A round's drafts by a recorded trace: the drafter still runs, and what it made is replaced. Shapes: R, G block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the drafts of R requests are to be, on the device."""

    tokens: Tensor  # [R, G] int64: the recorded match equals the text, the draft after it does not
    confidence: Tensor  # [R, G] fp32 logits, calibrated
    free: Tensor  # [R, G] fp32 the same, token-free


def script_of(requests: Sequence[Request], recorded: Tensor | None, block: int, vocab: int) -> Script | None:
    """The trace's rows at the requests' anchors; None where the run replays none.

    recorded [R, G + 1]: the pinned text's next tokens. Drafts past its end are arbitrary: nobody verifies them.
    """
    if not requests or requests[0].trace is None:
        return None
    assert recorded is not None, "a trace is replayed on its own text"
    rows = [(r.trace, len(r.output) - 1) for r in requests if r.trace is not None]
    assert len(rows) == len(requests), "a run replays all of its requests or none"
    match = torch.tensor([int(trace.match[at]) for trace, at in rows], device=recorded.device)
    text = recorded[:, :block]
    hit = torch.arange(block, device=recorded.device) < match[:, None]
    confidence, free = (
        torch.from_numpy(np.stack(part)[:, :block]).to(recorded.device)
        for part in ([trace.logits[at] for trace, at in rows], [trace.free[at] for trace, at in rows])
    )
    return Script(tokens=torch.where(hit, text, (text + 1) % vocab), confidence=confidence, free=free)
