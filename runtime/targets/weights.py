"""Reading safetensors checkpoints: one file or an index of several."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.quantised import Quantisation
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.targets.tensors import EMBEDDING, HEAD, check_tensors, expected_tensors

FLOATS = {"F64", "F32", "F16", "BF16"}  # stored types that are the weights themselves


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
    for name, tensor in _tensors(folder, lambda name: True):
        weights[name] = tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
    return weights


def read_target_weights(
    folder: Path, shape: ModelShape, quantisation: Quantisation | None, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The tensors that a target of this shape reads, dequantised and cast to `dtype`.

    Raises UsageError or EnvironmentRefused naming a tensor that lacks, misfits, is read by nobody, packs numbers that
    the config does not explain, or is not finite.
    """
    stored = tensor_sizes(folder)
    sizes = {name: size for name, (size, _) in stored.items()}
    parts: dict[str, dict[str, Tensor]] = {}
    owner = {name: quantisation.module(name, stored) if quantisation else None for name in stored}
    wanted = expected_tensors(shape)
    stems = {stem for stem in owner.values() if stem is not None}
    idle = {f"{stem}.bias" for stem in stems} - wanted.keys()  # AutoGPTQ gives every map one, of zeros
    plain = {name: size for name, size in sizes.items() if owner[name] is None and name not in idle}
    check_tensors(plain | {stem + ".weight": wanted.get(stem + ".weight", (0,)) for stem in stems}, shape)
    for name in plain:
        if name in wanted and stored[name][1] not in FLOATS:
            raise EnvironmentRefused(
                f"{shape.name}: tensor {name} holds {stored[name][1]}, packed or scaled numbers that no"
                " quantization_config explains"
            )
    weights: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> None:
        if tuple(tensor.shape) != wanted.get(name, tuple(tensor.shape)):
            raise UsageError(f"tensor {name} has shape {list(tensor.shape)}, the config says {list(wanted[name])}")
        weights[name] = _finite(name, tensor.to(device=device, dtype=dtype))

    used = {*wanted, *idle, HEAD, *(name for name, stem in owner.items() if stem is not None)}
    for name, tensor in _tensors(folder, used.__contains__):
        stem = owner[name]
        if name in idle:
            if bool(tensor.any()):
                raise EnvironmentRefused(f"{shape.name}: tensor {name} is none that this architecture reads")
        elif stem is None:
            keep(name, tensor)
        else:
            parts.setdefault(stem, {})[name.rpartition(".")[2]] = tensor
    for stem in sorted(parts):
        assert quantisation is not None
        keep(stem + ".weight", quantisation.weight(stem, parts.pop(stem)))
    if shape.tied and HEAD in weights and not torch.equal(weights.pop(HEAD), weights[EMBEDDING]):
        raise EnvironmentRefused(
            f"{shape.name}: {HEAD} differs from the embedding that config.json ties it to",
            hint="set tie_word_embeddings to false if the model has a head of its own",
        )
    return weights


def _finite(name: str, tensor: Tensor) -> Tensor:
    if not bool(torch.isfinite(tensor).all()):
        raise UsageError(f"tensor {name} holds numbers that are not finite as {tensor.dtype}", hint="fetch it again")
    return tensor


def tensor_sizes(folder: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Size and stored type (F32, BF16, F8_E4M3, I32, ...) of every tensor, by name."""
    sizes: dict[str, tuple[tuple[int, ...], str]] = {}
    for file in checkpoint_files(folder):
        with _opened(file) as reader:
            for name in reader.keys():  # noqa: SIM118  (safe_open is no mapping)
                held = reader.get_slice(name)
                sizes[name] = tuple(held.get_shape()), str(held.get_dtype())
    return sizes


def _tensors(folder: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    for file in checkpoint_files(folder):
        with _opened(file) as reader:
            for name in reader.keys():  # noqa: SIM118
                if wanted(name):
                    yield name, reader.get_tensor(name)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """An open safetensors file. Raises UsageError where it is none, or ends early."""
    try:
        with safe_open(str(file), framework="pt") as reader:
            yield reader
    except (SafetensorError, OSError) as problem:
        raise UsageError(
            f"{file} is not a whole safetensors file: {problem}", hint="it may be truncated; fetch it again"
        ) from None


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
