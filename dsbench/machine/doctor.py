"""`doctor`: facts of this machine, what is installed and cached, and what a run lacks."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import torch

from dsbench.deploy.deployment import SHIPPED, cpu_has_bf16, device_name, environment
from dsbench.runtime.targets.catalogue import catalogue, default_home, model_folder

PACKAGES = ("numba", "triton", "safetensors", "tokenizers", "gguf", "pandas", "pyarrow", "matplotlib")


def facts() -> dict[str, dict[str, str]]:
    """Sections of name -> value, for a table or --json."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = environment(device) | {"cores": str(os.cpu_count()), "memory": memory()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        machine["gpu memory"] = f"{free / 2**30:.0f} GiB free of {total / 2**30:.0f} GiB"
        machine["gpus"] = str(torch.cuda.device_count())
    machine["cpu"] = device_name(torch.device("cpu"))
    machine["bf16 on the cpu"] = "yes" if cpu_has_bf16() else "no: CPU runs default to float32"
    home = default_home()
    models = {
        name: "cached" if (model_folder(name, home) / "config.json").exists() else f"run `dsbench models pull {name}`"
        for name in catalogue()
    }
    folders = sorted(p.parent for kind in ("dspark", "mtp") for p in SHIPPED.glob(f"*/{kind}/config.json"))
    drafters = {f"{folder.parent.name} {folder.name}": "ships" for folder in folders}
    tables = {p.stem: str(p) for p in sorted((home / "costs").glob("*.json")) if ".samples" not in p.name}
    return {
        "machine": machine,
        "packages": {name: version(name) for name in PACKAGES},
        "cache": {"home": str(home), "writable": "yes" if writable(home) else "no: set DSBENCH_HOME"},
        "models": models,
        "drafters": drafters,
        "cost tables": tables or {"none": "run `dsbench profile-cost`"},
    }


def memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return "unknown"
    total = next((int(line.split()[1]) for line in lines if line.startswith("MemTotal")), 0)
    return f"{total / 2**20:.1f} GiB"


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def writable(folder: Path) -> bool:
    """Whether the folder, or the nearest parent that exists, may be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return os.access(folder, os.W_OK)
