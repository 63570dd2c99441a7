"""Programmatic dependent launch: a kernel's programs start while the kernel before it still runs, and wait for it.

Rule: every program waits before it reads or writes anything that another kernel touches. Before the wait it may read
only a product's weights, which must be written before the pass (`fused.products.await_weights`). A kernel ends after
its wait, so whoever waits for it has waited for all kernels before it.
Imported only where a CUDA device runs it. The interpreter and devices before sm_90 launch without it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

CHAINED = True  # False: launch every kernel without it, to compare
# Most rows of a kernel that lets the next one start as soon as its programs have begun; of more, once they have waited.
# Products of two to four rows let it start at once, other products once they have waited: a kernel that starts too
# early takes the processors of the one it waits for. Passes of smollm2, one row each of 1, 8 and 64 requests: 6, 7 and
# 19% shorter than without chaining.
EARLY_ROWS = 64


@triton.jit
def enter(PDL: tl.constexpr):
    """The first statement of a kernel: lets the next one start, if it may that early."""
    if PDL == 2:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until the kernels before are done and their writes are visible."""
    if PDL > 0:
        tl.extra.cuda.gdc_wait()
    if PDL == 1:
        tl.extra.cuda.gdc_launch_dependents()


@functools.cache
def _able(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chained(device: torch.device, early: bool) -> dict[str, Any]:
    """Launch options of a kernel that calls `wait`: its constexpr PDL, and the attribute of the launch.

    early: programs of the next kernel may start as soon as ours have begun, not only once ours have waited.
    """
    if not CHAINED or knobs.runtime.interpret or not _able(device):
        return {"PDL": 0}
    return {"PDL": 2 if early else 1, "launch_pdl": True}
