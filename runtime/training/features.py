"""The target's states and laws for every token of the data, computed once and kept on the device.

Shapes: N tokens back to back, m taps, D hidden, V vocabulary, n sequences.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.errors import EnvironmentRefused
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.training.forward import padded_forward
from dsbench.runtime.training.generate import Log
from dsbench.runtime.training.memory import free_memory
from dsbench.runtime.training.token_data import TokenData

PASS_TOKENS = 65_536  # a target pass
HEAD_VALUES = 1 << 28  # logits at a time
MOST_MEMORY = 0.7  # of what is free, for the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Per token and per sequence, all on the device. Target law at T = 1: p(v) = exp(head[v] . last - lse)."""

    taps: Tensor  # [N, m * D]
    last: Tensor  # [N, D] after the target's final norm; a view of `taps` where that is one of them
    lse: Tensor  # [N] fp32 log-sum-exp over the full vocabulary
    ids: Tensor  # [N] int32
    start: Tensor  # [n] int64
    length: Tensor  # [n] int64
    prompt: Tensor  # [n] int64
    greedy: Tensor  # [n] bool: the answer was drawn at temperature 0


@torch.inference_mode()
def _fill(features: Features, target: DecoderTarget, data: TokenData, taps: tuple[int, ...]) -> None:
    lengths, device = data.lengths, target.device
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        # ascending lengths: the last sequence of a pass is its longest
        count = 1
        while first + count < len(order) and (count + 1) * int(lengths[order[first + count]]) <= PASS_TOKENS:
            count += 1
        chosen = order[first : first + count]
        longest = int(lengths[chosen[-1]])
        padded = np.zeros((count, longest), np.int64)
        real = np.arange(longest) < lengths[chosen][:, None]
        where = (data.starts[chosen][:, None] + np.arange(longest))[real]
        padded[real] = data.ids[where]
        last, tapped = padded_forward(target, torch.from_numpy(padded).to(device), taps)
        rows = torch.from_numpy(np.flatnonzero(real)).to(device)
        at = torch.from_numpy(where).to(device)
        kept = last.flatten(0, 1)[rows]
        features.taps[at] = tapped.flatten(0, 1)[rows]
        if features.last.is_contiguous():
            features.last[at] = kept
        chunk = max(1, HEAD_VALUES // target.shape.vocab)
        features.lse[at] = torch.cat(
            [F.linear(part, target.head).float().logsumexp(-1) for part in torch.split(kept, chunk)]
        )
        first += count


def make_features(target: DecoderTarget, data: TokenData, taps: tuple[int, ...], log: Log) -> Features:
    """Runs the target over all of the data. Raises EnvironmentRefused if the cache would not fit on the device."""
    tokens, d, device = int(data.starts[-1]), target.shape.hidden, target.device
    final = target.shape.layers in taps
    need = tokens * ((len(taps) + 1 - final) * d * target.dtype.itemsize + 8)
    if need > MOST_MEMORY * free_memory(device):
        raise EnvironmentRefused(
            f"the features of {tokens} tokens need {need / 2**30:.1f} GiB on {device}", hint="lower --sequences"
        )
    began = time.perf_counter()
    tapped = torch.empty(tokens, len(taps) * d, dtype=target.dtype, device=device)
    features = Features(
        taps=tapped,
        last=tapped[:, -d:] if final else torch.empty(tokens, d, dtype=target.dtype, device=device),
        lse=torch.empty(tokens, dtype=torch.float32, device=device),
        ids=torch.from_numpy(data.ids).to(device),
        start=torch.from_numpy(data.starts[:-1]).to(device),
        length=torch.from_numpy(data.lengths).to(device),
        prompt=torch.from_numpy(data.prompt.astype(np.int64)).to(device),
        greedy=torch.from_numpy(data.temperature == 0).to(device),
    )
    _fill(features, target, data, taps)
    finite = bool(features.lse.isfinite().all())
    if not finite:
        raise EnvironmentRefused("the target's logits are not finite", hint="use bfloat16, not float16")
    log(
        {
            "stage": "features",
            "tokens": tokens,
            "gib": round(need / 2**30, 2),
            "seconds": round(time.perf_counter() - began, 2),
        }
    )
    return features
