"""Compares an op at a real size with its reference, where the reference is affordable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.check.inputs import Inputs
from dsbench.kernels.check.op import Op
from dsbench.machine.kernel_sizes import Size

SHARE = {torch.bfloat16: 2.0**-6, torch.float32: 2.0**-15}  # of a number, and of the root mean square of all
# bf16: 8 bits of mantissa, two or three roundings where the reference has one or none, which the largest terms of a
# sum pass on to a small result. fp32: sums of up to 12k products instead of the few hundred of the test cases.
OWN_SHARE = dict.fromkeys(("add_norm", "rotate_and_store", "normed_qkv", "product_add"), 2.0**-4)
# bf16: gains make terms of up to 16, an ulp is 2**-4
LEAST = {"coupled_block": 2e-3}  # fp32: a logit is good to 1e-5, and temperatures from 0.3 and a log magnify it
NEAR_TIES = 0.04  # of a draw's rows: best and second closer than an ulp of their scores may trade places
DRAWS = ("gumbel_argmax", "coupled_stats", "law_stats", "truncate", "coupled_block")
IN_FP32 = ("coupled_block",)  # a rounded logit changes a token, and with it all that follows: fp32 to be compared
MEMORY = {
    "gumbel_argmax": 100,
    "coupled_stats": 100,
    "law_stats": 20,
    "truncate": 40,
}  # of a reference, in bytes of its inputs
MEMORY_ELSE = 10
TURNS = {"cuda": 512, "cpu": 8}  # requests x depths at most for the token-by-token reference of a block
FIRST = (0.02, 1.0)  # seconds: so long a first call may have loaded its kernels, and is made again
MOST_MEMORY = 0.4  # of what is free


def free_memory(device: torch.device) -> int:
    """Bytes free on the device."""
    if device.type == "cuda":
        free, reserved = torch.cuda.mem_get_info(device)[0], torch.cuda.memory_reserved(device)
        return int(free + reserved - torch.cuda.memory_allocated(device))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration):
        return 1 << 62


def size_of(inputs: Inputs) -> int:
    """Bytes of the tensors."""
    return sum(x.numel() * x.element_size() for x in inputs.values() if isinstance(x, Tensor))


def reference_memory(size: Size, inputs: Inputs) -> int:
    """Bytes that the reference needs beside its inputs, roughly."""
    return MEMORY.get(size.family, MEMORY_ELSE) * size_of(inputs)


def unaffordable(size: Size, inputs: Inputs, device: torch.device) -> str:
    """Why the reference is not run at all, "" if it is."""
    turns = TURNS[device.type]
    if size.family == "coupled_block" and size.case[0] * size.case[1] > turns:
        return "the reference draws token by token"
    if reference_memory(size, inputs) > MOST_MEMORY * free_memory(device):
        return "the reference needs too much memory"
    return ""


def compare(members: Sequence[Op], inputs: Inputs) -> tuple[str, float]:
    """The difference in the results of a family on these inputs, "" if none; seconds a call of its first reference."""
    seconds = 0.0
    _now(next(x.device for x in inputs.values() if isinstance(x, Tensor)))  # inputs are there, see pdl.py
    for op in members:
        made = op.compiled(**inputs)
        for _ in range(2):
            begin = _now(made.device)
            wanted = op.reference(**inputs)
            spent = _now(made.device) - begin
            if seconds or not FIRST[0] < spent < FIRST[1]:
                break
        seconds = seconds or spent
        if text := difference(op, made, wanted):
            return f"{op.name}: {text}", seconds
    return "", seconds


def difference(op: Op, made: Tensor, wanted: Tensor) -> str:
    """The difference in words, "" where every row is within tolerance; a few rows of a draw may be near ties."""
    if made.shape != wanted.shape:
        return f"shape {list(made.shape)}, the reference has {list(wanted.shape)}"
    x, y = (
        made.double().flatten(1) if made.ndim > 1 else made.double()[:, None],
        wanted.double().reshape(len(wanted), -1),
    )
    y = y.to(x.device)
    off = (x - y).abs()
    wrong = ~(off <= _allowed(op, made.dtype, y)).all(dim=1)  # a NaN is wrong
    allowed = int(NEAR_TIES * len(wrong)) if op.family in DRAWS else 0
    if int(wrong.sum()) <= allowed:
        return ""
    return f"{int(wrong.sum())} of {len(wrong)} rows differ, by up to {float(off.nan_to_num(torch.inf).max()):.3g}"


def _allowed(op: Op, dtype: torch.dtype, wanted: Tensor) -> Any:
    """Largest difference of each number; tokens must be equal."""
    if dtype not in SHARE:
        return 0.0
    share = SHARE[dtype]
    typical = OWN_SHARE.get(op.family, share) if dtype == torch.bfloat16 else share
    least = max(op.tolerance, LEAST.get(op.family, 0.0))
    return (typical * wanted.square().mean().sqrt()).clamp(min=least) + share * wanted.abs()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
