"""How every picture looks: size, header, colours that colour-blind readers can tell apart, and saving.

No pyplot and no global state: figures are matplotlib Figure objects, saved by the Agg and SVG canvases under a local
rc context. matplotlib is imported inside functions, so that the command line starts fast.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.errors import UsageError
from dsbench.results.labels import arm_rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDTH, DPI = 10.7, 150  # inches, dots per inch: 1605 pixels wide
FORMATS = ("png", "svg", "pdf")
INK, GREY, LOUD = "#1a1a1a", "#767676", "#b00020"
RC: dict[Any, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "text.color": INK,
    "axes.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "dsbench",  # the same picture gives the same bytes
}
# Okabe and Ito's palette; a kind of arm keeps its colour in every picture.
KINDS = {
    "none": ("#000000", "s"),
    "static": ("#0072B2", "o"),
    "mtp": ("#E69F00", "v"),
    "no-trim": ("#CC79A7", "P"),
    "compact": ("#D55E00", "D"),
    "cap-accept": ("#009E73", "^"),
}
DRAFTERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DRAFTER_MARKERS = "osD^vPX"
LINES = ("-", "--", "-.", ":")
FIXED = "#56B4E9"  # static:K, beside static's darker blue
FIXED_MARKERS = "<>hpd*X8"


@contextmanager
def style() -> Iterator[None]:
    """The rc settings of every picture, for this block alone."""
    import matplotlib

    with matplotlib.rc_context(RC):
        yield


def arm_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Line settings by arm: colour by kind, line style by variant of a kind, thin for fixed windows."""
    seen: dict[str, int] = {}
    styles: dict[str, dict[str, Any]] = {}
    for name in sorted(names, key=arm_rank):
        mode = name.split(" ")[0]
        kind = mode.partition(":")[0]
        colour, marker = KINDS.get(kind, (GREY, "X"))
        fixed = mode.startswith("static:")
        number = seen[kind + ":" * fixed] = seen.get(kind + ":" * fixed, -1) + 1
        if fixed:
            colour, marker = FIXED, FIXED_MARKERS[number % len(FIXED_MARKERS)]
        width = 1.0 if fixed else 1.8
        styles[name] = {"color": colour, "marker": marker, "linestyle": LINES[number % len(LINES)], "linewidth": width}
    return styles


def drafter_look(at: int) -> dict[str, Any]:
    """Colour and marker of the drafter at this place in a comparison."""
    return {"color": DRAFTERS[at % len(DRAFTERS)], "marker": DRAFTER_MARKERS[at % len(DRAFTER_MARKERS)]}


def new_figure(height: float, title: str, lines: Sequence[str], loud: str = "") -> tuple[Figure, SubFigure]:
    """A figure `height` inches tall below its header, and the part to draw in. `lines` say under what conditions."""
    from matplotlib.figure import Figure

    wrapped = [part for line in lines if line for part in textwrap.wrap(line, 128)]
    head = 0.44 + 0.19 * len(wrapped) + (0.26 if loud else 0.0)
    figure = Figure(figsize=(WIDTH, head + height), dpi=DPI, layout="constrained", facecolor="white")
    parts: Any = figure.subfigures(2, 1, height_ratios=[head, height])
    top, body = parts
    at = 1 - 0.1 / head
    top.text(0.012, at, title, fontsize=14, fontweight="bold", va="top")
    at -= 0.3 / head
    if loud:
        top.text(0.012, at, loud, fontsize=11.5, fontweight="bold", color=LOUD, va="top")
        at -= 0.26 / head
    top.text(0.012, at, "\n".join(wrapped), fontsize=9.5, color=GREY, va="top", linespacing=1.35)
    return figure, body


def save(figure: Figure, out: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Writes the figure once a format. Raises UsageError for a format or a folder that does not work."""
    unknown = [kind for kind in formats if kind not in FORMATS]
    if unknown:
        raise UsageError(f"unknown picture format {unknown[0]!r}", hint=f"known: {', '.join(FORMATS)}")
    paths = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for kind in formats:
            path = out / f"{name}.{kind}"
            dated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
            figure.savefig(path, dpi=DPI, metadata=dated)
            paths.append(path)
    except OSError as problem:
        raise UsageError(f"cannot write pictures to {out}: {problem.strerror}", hint="name another --out") from None
    return paths


def plain_ticks(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers where the values span more than a factor of 4, else one from zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    positive = [value for value in values if value > 0]
    which = axes.xaxis if axis == "x" else axes.yaxis
    limits = axes.set_xlim if axis == "x" else axes.set_ylim
    if not positive or max(positive) <= 4 * min(positive):
        limits(0, (max(positive) if positive else 1.0) * 1.15)
        return
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    limits(min(positive) / 1.2, max(positive) * 1.3)
    which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    which.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    which.set_minor_formatter(NullFormatter())


def small_grid(panels: int) -> tuple[int, int]:
    """Rows and columns for `panels` panels, at most three a row."""
    columns = 2 if panels == 4 else min(panels, 3)
    return -(-panels // columns), columns
