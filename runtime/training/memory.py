"""How much memory a device has left, as far as it can be told without asking more of torch than it knows."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
UNKNOWN = 2 << 30  # bytes that a machine which does not say is taken to have


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; on CUDA what torch holds in reserve is given back first and counts."""
    if device.type != "cuda":
        return _free_host()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def _free_host() -> int:
    """Bytes that processes can take without swapping: Linux's own estimate, or free pages, or UNKNOWN."""
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):  # names that this system lacks; no sysconf at all
        return UNKNOWN
    return pages * size if pages > 0 < size else UNKNOWN
