"""Quantised checkpoints, dequantised as they are read: quantization_config says how, or the format is refused by name.

The dequantised numbers are the target from then on; the rounding of activations that some formats ask for is not done.
Formats: fp8 (a scale a block, row or tensor), fbgemm_fp8, compressed-tensors (int8, fp8, packed 4-bit), AWQ and GPTQ
with 2, 4 or 8 bits, bitsandbytes int8. Shapes: N outputs, K inputs of a linear map, g numbers that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused, UsageError

Parts = Mapping[str, Tensor]  # suffix -> tensor of one linear map
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in its word output i of eight lies


class Quantisation:
    """How the linear maps of a checkpoint are stored. `suffixes`: the names of the tensors of one map."""

    def __init__(self, suffixes: frozenset[str], weight: Callable[[Parts], Tensor]) -> None:
        self.suffixes = suffixes
        self._weight = weight

    def module(self, name: str, names: Mapping[str, Any]) -> str | None:
        """The quantised map that a tensor belongs to, if it is part of one."""
        stem, _, suffix = name.rpartition(".")
        marks = self.suffixes - {"weight", "bias"}
        return stem if suffix in self.suffixes and any(f"{stem}.{mark}" in names for mark in marks) else None

    def weight(self, stem: str, parts: Parts) -> Tensor:
        """[N, K] fp32. Raises UsageError if a tensor lacks or misfits."""
        try:
            return self._weight(parts)
        except KeyError as lacks:
            raise UsageError(f"the checkpoint lacks the tensor {stem}.{lacks.args[0]}") from None
        except (RuntimeError, IndexError, ValueError) as problem:
            sizes = ", ".join(f"{suffix} {list(tensor.shape)}" for suffix, tensor in parts.items())
            raise UsageError(f"the tensors of {stem} do not fit each other ({sizes}): {problem}") from None


def quantisation_of(config: Mapping[str, Any], name: str) -> Quantisation | None:
    """What `quantization_config` says; None without one. Raises EnvironmentRefused naming what is not supported."""
    said = config.get("quantization_config")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise UsageError(f"{name}: config field quantization_config must be an object, got {said!r:.80}")
    method = str(said.get("quant_method"))
    known = {
        "fp8": _fp8,
        "fbgemm_fp8": _fp8,
        "compressed-tensors": _compressed,
        "awq": _awq,
        "gptq": _gptq,
        "bitsandbytes": _bitsandbytes,
    }
    if method not in known:
        raise EnvironmentRefused(
            f"{name}: quant_method {method!r} is not supported", hint=f"dequantised on load: {', '.join(known)}"
        )
    return known[method](said, name)


def _refused(name: str, said: str) -> EnvironmentRefused:
    return EnvironmentRefused(f"{name}: quantization_config {said} is not supported")


def _scaled(weight: Tensor, scale: Tensor, block: tuple[int, int] | None) -> Tensor:
    """weight [N, K] times a scale for all, a row ([N] or [N, 1]) or a block ([N / rows, K / columns], rounded up)."""
    scale = scale.float()
    if block is not None:
        rows, columns = block
        wanted = (-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
        if tuple(scale.shape) != wanted:
            raise ValueError(f"scales of blocks {rows} x {columns} would be {list(wanted)}")
        scale = scale.repeat_interleave(rows, 0)[: weight.shape[0]]
        scale = scale.repeat_interleave(columns, 1)[:, : weight.shape[1]]
    elif scale.numel() == 1:
        scale = scale.reshape(1, 1)
    elif scale.numel() == weight.shape[0]:
        scale = scale.reshape(-1, 1)
    else:
        raise ValueError("there must be one scale, or one a row")
    return weight.float() * scale


def _fp8(said: Mapping[str, Any], name: str) -> Quantisation:
    """`weight_scale_inv` is what a weight is multiplied by, in spite of its name."""
    size = said.get("weight_block_size")
    block = (int(size[0]), int(size[1])) if isinstance(size, list) and len(size) == 2 else None
    if (size is not None and block is None) or said.get("fmt") not in (None, "e4m3"):
        raise _refused(name, f"weight_block_size = {size!r}, fmt = {said.get('fmt')!r}")

    def weight(parts: Parts) -> Tensor:
        scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
        return _scaled(parts["weight"], scale, block)

    names = {"weight", "weight_scale_inv", "weight_scale", "input_scale", "input_scale_ub", "activation_scale"}
    return Quantisation(frozenset(names), weight)


def _bitsandbytes(said: Mapping[str, Any], name: str) -> Quantisation:
    if not said.get("load_in_8bit"):
        raise _refused(name, "load_in_4bit of bitsandbytes")
    return Quantisation(
        frozenset({"weight", "SCB", "weight_format"}),
        lambda parts: _scaled(parts["weight"], parts["SCB"].float() / 127, None),
    )


def _compressed(said: Mapping[str, Any], name: str) -> Quantisation:
    """One group of all linear maps; its weights' `num_bits`, `type`, `strategy` and `block_structure` say how."""
    groups = list((said.get("config_groups") or {}).values())
    weights = groups[0].get("weights") if len(groups) == 1 and isinstance(groups[0], dict) else None
    if not isinstance(weights, dict):
        raise _refused(name, f"of {len(groups)} groups")
    bits, kind, strategy = (weights.get(k) for k in ("num_bits", "type", "strategy"))
    form = groups[0].get("format") or said.get("format")
    if weights.get("symmetric", True) is not True or strategy not in ("tensor", "channel", "group", "block"):
        raise _refused(name, f"symmetric = {weights.get('symmetric')!r}, strategy = {strategy!r}")
    if form == "pack-quantized" and kind == "int" and bits in (4, 8) and strategy in ("group", "channel"):
        return Quantisation(
            frozenset({"weight_packed", "weight_scale", "weight_shape", "weight_g_idx"}),
            lambda parts: _packed_rows(parts, int(bits)),
        )
    if (kind, bits) not in (("int", 8), ("float", 8)) or strategy == "group":
        raise _refused(name, f"format = {form!r} of {bits!r} bits {kind!r} by {strategy!r}")
    size = weights.get("block_structure")
    block = (int(size[0]), int(size[1])) if strategy == "block" and isinstance(size, list) and len(size) == 2 else None
    if strategy == "block" and block is None:
        raise _refused(name, f"block_structure = {size!r}")
    return Quantisation(
        frozenset({"weight", "weight_scale", "input_scale"}),
        lambda parts: _scaled(parts["weight"], parts["weight_scale"], block),
    )


def _words(packed: Tensor, bits: int) -> Tensor:
    """int32 [...] -> [..., 32 / bits] numbers of `bits` bits, lowest first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (packed[..., None] >> shifts) & ((1 << bits) - 1)


def _packed_rows(parts: Parts, bits: int) -> Tensor:
    """weight_packed [N, K bits / 32] of numbers above zero, less half their range, times weight_scale [N, K / g]."""
    n, k = (int(size) for size in parts["weight_shape"].tolist())
    whole = _words(parts["weight_packed"], bits).flatten(1)[:, :k] - (1 << (bits - 1))
    scale = parts["weight_scale"].float()
    group = parts.get("weight_g_idx")
    if group is None:
        group = torch.arange(k) // (-(-k // scale.shape[1]))
    if whole.shape != (n, k):
        raise ValueError(f"weight_shape says {[n, k]}")
    return whole.float() * scale[:, group.long()]


def _awq(said: Mapping[str, Any], name: str) -> Quantisation:
    """qweight [K, N / 8], qzeros [K / g, N / 8], scales [K / g, N]; eight outputs a word, in an order of its own."""
    if said.get("bits", said.get("w_bit", 4)) != 4 or str(said.get("version", "gemm")).lower() != "gemm":
        raise _refused(name, f"awq of {said.get('bits')!r} bits, version {said.get('version')!r}")

    def unpacked(words: Tensor) -> Tensor:
        return _words(words, 4)[..., list(AWQ_ORDER)].flatten(-2)

    def weight(parts: Parts) -> Tensor:
        q, scales = unpacked(parts["qweight"]), parts["scales"].float()
        group = torch.arange(len(q)) // (len(q) // len(scales))
        zeros = unpacked(parts["qzeros"]) if "qzeros" in parts else torch.full_like(scales, 8)
        made: Tensor = (q - zeros[group]).float() * scales[group]
        return made.T

    return Quantisation(frozenset({"qweight", "qzeros", "scales"}), weight)


def _gptq(said: Mapping[str, Any], name: str) -> Quantisation:
    """qweight [K bits / 32, N], qzeros [K / g, N bits / 32] (less one but in v2), scales [K / g, N], g_idx [K]."""
    bits, form = said.get("bits"), said.get("checkpoint_format") or "gptq"
    if bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2"):
        raise _refused(name, f"gptq of {bits!r} bits, checkpoint_format {form!r}")
    less = 1 if form == "gptq" else 0

    def weight(parts: Parts) -> Tensor:
        words, scales = _words(parts["qweight"], bits), parts["scales"].float()  # [K bits / 32, N, 32 / bits]
        q = words.transpose(1, 2).flatten(0, 1)
        zeros = (_words(parts["qzeros"], bits).flatten(-2) + less) & ((1 << bits) - 1)
        group = parts["g_idx"].long() if "g_idx" in parts else torch.arange(len(q)) // (len(q) // len(scales))
        made: Tensor = (q - zeros[group]).float() * scales[group]
        return made.T

    return Quantisation(frozenset({"qweight", "qzeros", "scales", "g_idx"}), weight)
