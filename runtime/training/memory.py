"""Free memory of a device: from CUDA, from Linux or other systems, or a default."""

from __future__ import annotations

import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
UNKNOWN = 2 << 30  # bytes assumed free where the system does not say


def free_memory(device: torch.device) -> int:
    """Bytes free on `device`; on CUDA torch's reserve is released first."""
    if device.type != "cuda":
        return _free_host()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def _free_host() -> int:
    """Bytes available without swapping: Linux's own estimate, else free pages, else UNKNOWN."""
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
