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
    token_free: Tensor  # [R, G] fp32 the same, token-free


def script_of(requests: Sequence[Request], recorded: Tensor | None, block: int, vocab: int) -> Script | None:
    """The trace's rows at the requests' anchors; None where the run replays none.

    recorded [R, G + 1]: the pinned text's next tokens. Drafts past its end are arbitrary: nobody verifies them.
    """
    if not requests or requests[0].trace is None:
        return None
    assert recorded is not None, "a trace is replayed on its own text"
    rows = [r.trace.packed[len(r.output) - 1] for r in requests if r.trace is not None]
    assert len(rows) == len(requests), "a run replays all of its requests or none"
    packed = torch.from_numpy(np.concatenate(rows).reshape(len(rows), -1)).to(recorded.device)
    free = 1 + packed.shape[1] // 2  # where the token-free ones begin
    text = recorded[:, :block]
    hit = torch.arange(block, device=recorded.device) < packed[:, :1]
    return Script(
        tokens=torch.where(hit, text, (text + 1) % vocab),
        confidence=packed[:, 1 : 1 + block],
        token_free=packed[:, free : free + block],
    )
