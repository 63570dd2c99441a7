"""Published acceptance by depth, for rescaling a trace to a drafter that nobody can run here. No torch.

T = 1, blocks of seven drafts, whole block verified. Where only an accepted length is published, the curve is the
geometric one (the same acceptance at every depth) that gives this length, and its words say so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dsbench.errors import UsageError
from dsbench.profiles.curve import FloatArray

BLOCK = 7
PAPER = "arXiv 2607.05147"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Conditional acceptance at depth 1 .. 7, or the accepted length (bonus included) alone."""

    source: str
    conditional: tuple[float, ...] = ()
    length: float = 0.0

    @property
    def words(self) -> str:
        return self.source if self.conditional else f"{self.source}; geometric, from its accepted length {self.length}"

    def curve(self) -> FloatArray:
        """P(draft k accepted | those before it were), [7]."""
        if self.conditional:
            return np.array(self.conditional)
        rate = brentq(lambda p: 1 + sum(p**k for k in range(1, BLOCK + 1)) - self.length, 0.0, 1.0)
        return np.full(BLOCK, rate)


def _by_domain(drafter: str, math: str, code: str, chat: str) -> dict[str, Published]:
    """Rows of the paper's Figure 2, read off its vector drawing."""
    source = f"{PAPER}, Figure 2"
    return {
        f"{drafter}-{domain}": Published(source=source, conditional=tuple(float(p) for p in row.split()))
        for domain, row in {"math": math, "code": code, "chat": chat}.items()
    }


def _lengths(drafter: str, **lengths: float) -> dict[str, Published]:
    """Means over the paper's three sets of a domain, from its Table 1."""
    source = f"{PAPER}, Table 1"
    return {f"{drafter}-{domain}": Published(source=source, length=length) for domain, length in lengths.items()}


def published() -> dict[str, Published]:
    """By name: drafter, target, domain."""
    return {
        **_by_domain(
            "dspark-qwen3-4b",
            ".905 .890 .888 .885 .887 .891 .882",
            ".886 .872 .860 .861 .858 .859 .851",
            ".735 .738 .740 .744 .758 .766 .761",
        ),
        **_by_domain(
            "dflash-qwen3-4b",
            ".885 .827 .820 .834 .841 .839 .828",
            ".865 .815 .797 .801 .810 .801 .777",
            ".718 .648 .638 .661 .682 .692 .688",
        ),
        **_lengths("dspark-qwen3-8b", math=5.65, code=5.28, chat=3.50),
        **_lengths("dspark-qwen3-14b", math=5.63, code=5.24, chat=3.47),
        "dspark-qwen3-8b-speed-bench": Published(
            source="the released dspark_qwen3_8b_block7 on SPEED-Bench coding, measured by others in vLLM", length=3.41
        ),
    }


def published_curve(name: str, block: int) -> tuple[FloatArray, str]:
    """Conditional acceptance [block] of a published curve, and its words. Raises UsageError if it has none such."""
    known = published()
    if name not in known:
        raise UsageError(f"unknown acceptance {name!r}", hint=f"one of {', '.join(known)}")
    if block > BLOCK:
        raise UsageError(f"acceptance {name} is published for blocks of {BLOCK}, the trace has blocks of {block}")
    return known[name].curve()[:block], f"{name} ({known[name].words})"
