"""A checkpoint folder to the drafter it holds: config.json says which kind."""

from __future__ import annotations

from pathlib import Path

from dsbench.errors import UsageError
from dsbench.runtime.drafters.checkpoint import read_drafter
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.drafters.mtp import MtpDrafter
from dsbench.runtime.drafters.mtp_checkpoint import is_mtp, read_mtp
from dsbench.runtime.targets.base import Target
from dsbench.runtime.targets.config import read_config


def load_drafter(folder: Path, target: Target) -> DSparkDrafter | MtpDrafter:
    """The drafter of a checkpoint folder, on the target's device and in its dtype."""
    if not folder.is_dir():
        raise UsageError(f"drafter folder {folder} does not exist")
    if is_mtp(read_config(folder), folder.name):
        chain, weights, digest = read_mtp(folder, target.device, target.dtype)
        return MtpDrafter(chain, weights, digest, target)
    shape, weights, digest = read_drafter(folder, target.device, target.dtype)
    return DSparkDrafter(shape, weights, digest, target)
