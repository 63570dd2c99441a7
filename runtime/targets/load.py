"""`--target` to a target: a catalogue name, a Hugging Face folder, a GGUF file, or `shape:<name>` on random weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.kernels.linear import rows_hold
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.targets.catalogue import SHAPE_PREFIX, catalogue, model_folder
from dsbench.runtime.targets.config import read_config, shape_from_config, stop_ids
from dsbench.runtime.targets.convert import convert_gguf
from dsbench.runtime.targets.dense import DenseTarget, random_weights
from dsbench.runtime.targets.quantised import quantisation_of
from dsbench.runtime.targets.shape import ModelShape, catalogue_shapes
from dsbench.runtime.targets.tokenizer import ChatTokenizer
from dsbench.runtime.targets.weights import folder_digest, read_target_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target with what text needs. `tokenizer` is None and `random` True for shape targets."""

    name: str
    model: DecoderTarget
    tokenizer: ChatTokenizer | None
    eos: frozenset[int]
    random: bool


def load_target(
    spec: str, *, home: Path, device: torch.device, dtype: torch.dtype, seed: int = 0, exact: bool = False
) -> LoadedTarget:
    """`exact`: as Target.exact.

    Raises UsageError if `spec` names nothing, EnvironmentRefused if what it names cannot run here, or not exactly.
    """
    if spec.startswith(SHAPE_PREFIX):
        return _random_target(spec, device, dtype, seed, exact)
    folder = target_folder(spec, home)
    config = read_config(folder)
    shape = shape_from_config(config, spec)
    stops = stop_ids(folder, config, shape.vocab)
    weights = read_target_weights(folder, shape, quantisation_of(config, spec), device, dtype)
    model = build_target(shape, weights, digest=folder_digest(folder), exact=exact)
    _refuse_inexact(model)
    return LoadedTarget(name=spec, model=model, tokenizer=ChatTokenizer(folder), eos=stops, random=False)


def build_target(
    shape: ModelShape, weights: dict[str, torch.Tensor], *, digest: str, exact: bool = False
) -> DecoderTarget:
    """The target of that shape and weights by Hugging Face names. Raises UsageError naming a tensor that misfits."""
    return DenseTarget(shape, weights, digest=digest, exact=exact)


def target_folder(spec: str, home: Path) -> Path:
    """The Hugging Face folder behind a spec; a GGUF file is converted into the cache at first use."""
    path = Path(spec)
    if spec in catalogue():
        folder = model_folder(spec, home)
        if not (folder / "config.json").exists():
            raise UsageError(f"model {spec} is not here yet", hint=f"run `dsbench models pull {spec}`")
        return folder
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        if not path.exists():
            raise UsageError(f"{path} does not exist")
        stamp = hashlib.sha256(f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}".encode()).hexdigest()
        folder = home / "models" / f"{path.stem}-{stamp[:8]}"
        return folder if (folder / "config.json").exists() else convert_gguf(path, folder)
    names = ", ".join(catalogue())
    raise UsageError(
        f"unknown target {spec!r}", hint=f"a catalogue name ({names}), a model folder, a .gguf file, or shape:<name>"
    )


def _refuse_inexact(model: DecoderTarget) -> None:
    """On a CPU the library's products decide; layers are alike in shape, so one stands for all."""
    layer = model.layers[0]
    tried = (layer.qkv, layer.output, layer.gate_up, layer.down, model.unembed)
    if model.exact and model.device.type == "cpu" and not all(map(rows_hold, tried)):
        name = str(model.dtype).removeprefix("torch.")
        raise EnvironmentRefused(
            f"exact numerics are not to be had on this CPU: its {name} products change with the number of rows",
            hint="a CUDA device has them; try --dtype float32, or leave --numerics out",
        )


def _random_target(spec: str, device: torch.device, dtype: torch.dtype, seed: int, exact: bool) -> LoadedTarget:
    shapes = catalogue_shapes()
    name = spec.removeprefix(SHAPE_PREFIX)
    if name not in shapes:
        raise UsageError(f"unknown shape {name!r}", hint=f"shapes: {', '.join(shapes)}")
    shape: ModelShape = shapes[name]
    need = shape.parameters * torch.empty((), dtype=dtype).element_size()
    have = free_bytes(device)
    if have is not None and need > 0.9 * have:
        raise EnvironmentRefused(
            f"{spec} needs {need / 2**30:.1f} GiB for its weights, {have / 2**30:.1f} GiB are free on {device}"
        )
    weights = random_weights(shape, device, dtype, seed)
    model = build_target(shape, weights, digest=f"random-{name}-{seed}", exact=exact)
    _refuse_inexact(model)
    return LoadedTarget(name=spec, model=model, tokenizer=None, eos=frozenset(), random=True)


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free; None where nobody says."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)
