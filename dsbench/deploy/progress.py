"""Progress of work that counts its parts: a line that changes on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsbench.within import span
from dsbench.writing import note

EVERY = 5.0  # seconds between lines


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """On stderr; yields what is told (done, total)."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lines(what)
        return
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def lines(
    what: str, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = note
) -> Callable[[int, int], None]:
    """Says how many of the total are done, the time so far and what is left: every few seconds, and at the end."""
    begin = said = clock()

    def tell(done: int, total: int) -> None:
        nonlocal said
        now = clock()
        if now - said < EVERY and (done < total or now - begin < EVERY):
            return
        said = now
        left = (now - begin) / done * (total - done) if done else 0.0
        say(f"{what}: {done} of {total}, {span(now - begin)}" + (f", about {span(left)} left" if done < total else ""))

    return tell
