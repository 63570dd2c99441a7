"""What a report is made of: sections of sentences, pictures and tables; and the cells that a section is of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsbench.analysis.frontier import Point
from dsbench.analysis.gains import Gains
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, arm_rank
from dsbench.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG, whole, and what it says for those who do not see it."""

    name: str
    svg: str
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`id`: its anchor in the page. A section without a picture or table says in `text` why there is none."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run in words, pictures and tables. `loud`: what a reader must not overlook, repeated everywhere."""

    title: str
    where: str  # hardware, target and precision in a line
    loud: str
    headline: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cells of one setting, and how its pictures are labelled. `suffix` tells settings apart in names."""

    cells: Sequence[StoredCell]
    run: Mapping[str, Any]
    lines: tuple[str, ...]
    loud: str
    folder: Path | None  # where pictures are drawn before they are taken in; None: none are drawn
    suffix: str
    tiers: tuple[int, ...] | None  # of the cost table
    points: Mapping[str, Sequence[Point]]
    arm: str  # that the report is about
    gains: Sequence[Gains]

    def pictures(self, draw: Callable[[Path], Sequence[Path]], alt: str) -> tuple[Picture, ...]:
        """The SVGs that `draw` writes into a folder, with the conditions behind the alt text."""
        paths = () if self.folder is None else draw(self.folder)
        said = f"{alt} {'; '.join(part for part in (self.loud, *self.lines) if part)}."
        return tuple(Picture(name=path.stem, svg=path.read_text(encoding="utf-8"), alt=said) for path in paths)

    def ordered(self) -> list[StoredCell]:
        """The cells in the order of tables."""
        names = arm_names(self.cells)
        return sorted(self.cells, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder])))
