"""How often a kernel was compiled in this process: after warm-up nothing may be, or a time is not the kernel's."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class CompileCount:
    """Grows by one with each Triton kernel that is compiled."""

    total: int = 0

    def saw(self, **_: Any) -> None:
        self.total += 1


@functools.cache
def compile_count() -> CompileCount:
    """The process's one counter, behind the hook that Triton has one of; a hook that was there before still runs.

    It stays at zero where Triton is not installed: then nothing is compiled at all.
    """
    count = CompileCount()
    try:
        from triton import knobs
    except ImportError:
        return count
    before = knobs.runtime.jit_post_compile_hook

    def hook(**seen: Any) -> Any:
        count.saw()
        return None if before is None else before(**seen)

    knobs.runtime.jit_post_compile_hook = hook
    return count
