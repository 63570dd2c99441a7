"""Reading safetensors checkpoints: one file or an index of several. Knows files and names, not architectures."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dsbench.errors import UsageError


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder. Raises UsageError if one is absent."""
    index = folder / "model.safetensors.index.json"
    files = [folder / name for name in (_indexed(index) if index.exists() else ["model.safetensors"])]
    for file in files:
        if not file.exists():
            raise UsageError(f"weights file {file} does not exist", hint="the checkpoint is incomplete")
    return files


def _indexed(index: Path) -> list[str]:
    """Files that an index names, sorted. Raises UsageError for what is no index."""
    try:
        held = json.loads(index.read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(f"{index} is not a safetensors index: {problem!r}") from None
    names = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(names, dict) or not names:
        raise UsageError(f"{index} is not a safetensors index: it has no weight_map", hint="fetch it again")
    for tensor, name in names.items():
        if not isinstance(name, str) or not name.endswith(".safetensors") or name != Path(name).name:
            raise UsageError(
                f"{index}: weight_map gives {tensor} to {name!r}, which names no safetensors file beside it"
            )
    return sorted(set(names.values()))


def read_weights(folder: Path, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of a checkpoint, floating ones cast to `dtype`. Raises UsageError for a truncated file."""
    weights: dict[str, Tensor] = {}
    for file in checkpoint_files(folder):
        try:
            with safe_open(str(file), framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118  (safe_open is no mapping)
                    tensor = reader.get_tensor(name)
                    weights[name] = tensor.to(
                        device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype
                    )
        except (SafetensorError, OSError) as problem:
            raise UsageError(
                f"{file} is not a whole safetensors file: {problem}", hint="it may be truncated; fetch it again"
            ) from None
    return weights


def folder_digest(folder: Path) -> str:
    """Short sha256 over config.json and the weights' bytes: the identity of a checkpoint in contracts.

    It is computed once and kept beside the weights while their sizes and times stand.
    """
    files = [folder / "config.json", *checkpoint_files(folder)]
    stamp = json.dumps([[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files])
    memo = folder / ".digest.json"
    if memo.exists():
        try:
            kept = json.loads(memo.read_text())
            if kept["stamp"] == stamp:
                return str(kept["digest"])
        except (ValueError, KeyError, TypeError):
            memo.unlink()
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 22):
                total.update(block)
    digest = total.hexdigest()[:16]
    with contextlib.suppress(OSError):  # a read-only checkpoint is hashed each time
        memo.write_text(json.dumps({"stamp": stamp, "digest": digest}))
    return digest
