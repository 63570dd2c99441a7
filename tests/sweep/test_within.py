"""`--within`: what fits is measured, what does not is said and left to --resume; and the number that progress shows."""

from __future__ import annotations

import math

import pytest
from virtual_sweep import BATCHES, MODES, REPEATS, VirtualBench, points, run

from dsbench.analysis.summary import summary_frame
from dsbench.deploy.progress import lines
from dsbench.errors import UsageError
from dsbench.results.store import RunStore
from dsbench.sweep.launch import LocalLauncher
from dsbench.sweep.live import pace_of
from dsbench.sweep.order import left_out_text, order_of, run_missing, writing
from dsbench.within import Deadline, deadline_of, parse_duration


class Clock:
    """Seconds that tasks count up: as many as their batch size."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(VirtualBench):
    """Takes `batch` seconds of the clock a task."""

    clock = Clock()

    def repeat(self, task):
        self.clock.now += task.cell.batch
        return super().repeat(task)


def within(folder, seconds, bench, *, resume=False):
    class Silent:
        began = staticmethod(lambda task: None)
        ended = staticmethod(lambda task, measured: None)

    deadline = Deadline(bench.clock.now + seconds, bench.clock)
    with writing(folder, resume=resume, notice=print) as store:
        return run_missing(
            store,
            points(),
            {"environment": {}, "contract": {}, "date": "", "labels": {}, "code": ""},
            LocalLauncher(bench),
            Silent(),
            repeats=REPEATS,
            seed=0,
            blocks={"none": 0, "static": 7, "compact": 7},
            deadline=deadline,
        )[1]


def test_first_repeats_come_first_and_the_rest_is_resumed(tmp_path):
    """A first repeat of all batch sizes takes 3 * (1 + 2 + 4) = 21 seconds, the whole sweep 42."""
    bench = Slow()
    left = within(tmp_path / "run", 25.0, bench)
    assert {(b[0].number, b[0].cell.batch) for b in left} == {(1, 2), (1, 4)}
    assert left_out_text(left) == "math, repeat 2: batch 2, batch 4"
    store = RunStore(tmp_path / "run")
    assert {(c.cell.batch, c.cell.mode) for c in store.cells()} == {(b, m) for b in BATCHES for m in MODES}
    assert len(summary_frame(store)) == len(BATCHES) * len(MODES)
    assert within(tmp_path / "run", math.inf, bench, resume=True) == []
    assert {tuple(sorted(store.repeats(key))) for point in points() for key, _ in point} == {(0, 1)}
    assert bench.clock.now == 42


def test_too_short_a_time_still_measures_one_block(tmp_path):
    bench = Slow()
    bench.clock = Clock()
    left = within(tmp_path / "run", 0.5, bench)
    assert len(left) == REPEATS * len(BATCHES) - 1
    assert len(RunStore(tmp_path / "run").cells()) == len(MODES)


def test_progress_shows_the_number_of_the_table(tmp_path):
    seen = {}

    class Watcher:
        began = staticmethod(lambda task: None)

        @staticmethod
        def ended(task, measured):
            seen.setdefault(task.cell, []).append(measured)

    run(tmp_path / "run", LocalLauncher(VirtualBench()), watcher=Watcher)
    for stored in RunStore(tmp_path / "run").cells():
        repeats = seen[stored.cell]
        assert pace_of(repeats, stored.cell) == pytest.approx(stored.summary["throughput"]["value"], rel=1e-9)
    assert len(order_of(points(), repeats=REPEATS, seed=0)) == REPEATS * len(points())


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("4m", 240), ("4min", 240), ("1.5h", 5400), ("1h30m", 5400), (" 2m ", 120)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds
    clock = Clock()
    assert deadline_of(text, clock).left() == seconds


@pytest.mark.parametrize("text", ["4", "m", "-4m", "4 m", "0s", "1e9s", "4x", "9999h", "٤m", "4m junk", "nan"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


def test_no_deadline_never_comes():
    assert deadline_of("").left() == math.inf and not deadline_of("").given
    assert deadline_of("").share(0.5).left() == math.inf


def test_a_line_every_few_seconds_without_a_terminal():
    clock, said = Clock(), []
    tell = lines("timing", clock, said.append)
    for done in range(1, 101):
        clock.now += 0.4
        tell(done, 100)
    assert (
        len(said) == 8
        and said[0] == "timing: 13 of 100, 5 s, about 35 s left"
        and said[-1] == "timing: 100 of 100, 40 s"
    )
