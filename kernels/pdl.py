"""Programmatic dependent launch: a kernel's programs start while the kernel before it still runs, and wait for it.

The law of the chain: every program waits before it reads or writes anything that another kernel touches, and may read
a product's weights before that, which must be there before the pass: `fused.settle`. A kernel ends after its wait, so
what waited for it has waited for all before it too.
Imported only where a CUDA device runs it. The interpreter and devices before sm_90 launch as ever.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

CHAINED = True  # False: every kernel is launched as ever, to compare
EARLY = True  # programs of the next kernel may start as soon as ours have begun; False: once ours have waited


@triton.jit
def enter(PDL: tl.constexpr):
    """The first statement of a kernel: lets the next one start, if it may that early."""
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Until the kernels before are done, and what they wrote is there."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()


@functools.cache
def _able(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chained(device: torch.device) -> dict[str, Any]:
    """Launch options of a kernel that calls `wait`: its constexpr PDL, and the attribute of the launch."""
    if not CHAINED or knobs.runtime.interpret or not _able(device):
        return {"PDL": 0}
    return {"PDL": 2 if EARLY else 1, "launch_pdl": True}
