"""A sweep killed, interrupted, locked, on a full disk or with dying workers ends as one that nobody disturbed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from virtual_sweep import MODES, REPEATS, VirtualBench, on_disk, points, run

from dsbench.errors import UsageError
from dsbench.results.columns import from_source
from dsbench.results.store import RunStore
from dsbench.sweep.launch import ATTEMPTS, LocalLauncher, PoolLauncher
from dsbench.sweep.order import Measured, Task, order_of, writing

ROOT = Path(__file__).parents[2]
KILLS = 20


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of `virtual_sweep.py`: a whole run, one killed KILLS times, one on a full disk."""
    folder = tmp_path_factory.mktemp("killed")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, str(ROOT / "tests" / "support" / "virtual_sweep.py"), str(folder), "1", str(KILLS)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)
    return folder


def test_a_sweep_killed_at_any_moment_ends_with_the_same_summary(killed):
    whole = (killed / "whole" / "summary.csv").read_bytes()
    assert (killed / "killed" / "summary.csv").read_bytes() == whole
    assert len(whole.splitlines()) == 1 + sum(map(len, points()))


def test_no_repeat_that_was_done_is_measured_again_and_a_kill_loses_one(killed):
    sessions = json.loads((killed / "sessions.json").read_text())
    assert sum(s["killed"] for s in sessions) >= KILLS // 2
    for number, session in enumerate(sessions[:-1]):
        assert not set(session["before"]) & set(session["begun"])
        after = set(sessions[number + 1]["before"])
        lost = set(session["begun"]) - after
        assert set(session["before"]) <= after and len(lost) <= session["killed"]
    assert not sessions[-1]["killed"]
    assert [p for p in (killed / "killed").rglob(".*") if p.name != ".lock"] == [], "half-written files were left"


def test_a_full_disk_leaves_nothing_half_written_and_the_run_goes_on(killed):
    assert json.loads((killed / "full.json").read_text())["errno"] == errno.EFBIG
    assert (killed / "full" / "summary.csv").read_bytes() == (killed / "whole" / "summary.csv").read_bytes()


def test_damaged_repeats_are_measured_again_and_damaged_cells_told_anew(killed, tmp_path, capsys):
    run(tmp_path / "run", LocalLauncher(VirtualBench()))
    done = on_disk(tmp_path / "run")
    first, second, third = sorted((tmp_path / "run" / "cells").iterdir())[:3]
    rounds = first / "rep-1" / "rounds.parquet"
    rounds.write_bytes(rounds.read_bytes()[:-100])
    (second / "rep-0" / "steps.parquet").unlink()
    (third / "cell.json").write_text('{"schema": 1, "par')
    with pytest.raises(UsageError, match="damaged"):
        RunStore(tmp_path / "run").cells()
    log = tmp_path / "log"
    run(tmp_path / "run", LocalLauncher(VirtualBench(log=log)), resume=True)
    begun = sorted(line.rpartition(" ")[0] for line in log.read_text().splitlines())
    assert begun == sorted([f"{first.name} 1", f"{second.name} 0"])
    assert capsys.readouterr().out.count("could not be read") == 2
    assert on_disk(tmp_path / "run") == done
    assert (tmp_path / "run" / "summary.csv").read_bytes() == (killed / "whole" / "summary.csv").read_bytes()


def test_the_order_is_random_within_a_repeat_and_recorded(killed):
    order = order_of(points(), repeats=8, seed=3)
    tasks = [task for block in order for task in block]
    assert [task.place for task in tasks] == list(range(len(tasks)))
    assert Counter((t.key, t.number) for t in tasks) == Counter(
        (key, n) for p in points() for key, _ in p for n in range(8)
    )
    for block in order:
        assert len({(t.cell.workload, t.cell.batch, t.number) for t in block}) == 1
        assert sorted(t.cell.mode for t in block) == sorted(MODES)
    assert len({tuple(t.cell.mode for t in block) for block in order}) == 6, "24 blocks of 3 arms show every order"
    assert order == order_of(points(), repeats=8, seed=3) != order_of(points(), repeats=8, seed=4)
    recorded = json.loads((killed / "whole" / "run.json").read_text())["order"]
    places = {}
    for path in (killed / "killed").glob("cells/*/rep-*/repeat.json"):
        cell = json.loads((path.parent.parent / "cell.json").read_text())["parameters"]
        place = json.loads(path.read_text())["place"]
        places[place] = (cell["workload"], cell["batch"], int(path.parent.name[4:]), cell["mode"])
    recorded = [(b["workload"], b["batch"], b["repeat"], mode) for b in recorded for mode in b["modes"]]
    assert [places[i] for i in range(len(recorded))] == recorded


def test_more_repeats_are_added_to_those_that_are_there(tmp_path):
    store = RunStore(tmp_path / "run", create=True)
    (key, cell), *_ = points()[0]
    for number in (2, 0):
        store.write_repeat(key, VirtualBench().repeat(task(key, cell, number)).tables, number=number)
    assert store.repeats(key) == {0, 2}
    least = {c.name: 1 for c in from_source("summary") if c.always}
    store.write_cell(key, cell, least, [])
    assert store.tells(key, {0, 2}, "") and not store.tells(key, {0, 1, 2}, "") and not store.tells(key, {0, 2}, "x")
    assert set(store.cells()[0].table("steps")["rep"]) == {0, 2}
    assert set(store.cells()[0].columns("steps", ["rows"])["rep"]) == {0, 2}


def test_one_process_writes_a_run_and_a_refused_one_leaves_nothing(tmp_path):
    with writing(tmp_path / "a" / "run", resume=False, notice=print) as store:
        (tmp_path / "a" / "run" / "run.json").write_text("{}")
        with (
            pytest.raises(UsageError, match=rf"another sweep writes to .*run \(process {os.getpid()}\)"),
            writing(store.folder, resume=True, notice=print),
        ):
            pass
    with writing(store.folder, resume=True, notice=print):
        pass
    with pytest.raises(UsageError, match="already holds a run"), writing(store.folder, resume=False, notice=print):
        pass
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "b" / "run", resume=False, notice=print) as store:
        (store.folder / "texts" / ".lock").touch()  # as who is about to record texts holds it
        raise KeyboardInterrupt
    assert not (tmp_path / "b").exists(), "nothing came of it, and its folder stayed"


def task(key, cell, number=0):
    return Task(key=key, cell=cell, number=number, place=0)


class FakePool:
    """Workers that measure at once and end in a random order; worker and task pairs in `deadly` kill the worker."""

    def __init__(self, rng, dies):
        self.rng, self.dies, self.added, self.dead, self.busy, self.did = rng, dies, 0, set(), {}, []

    def add(self):
        self.added += 1
        return self.added - 1

    def start(self, worker, task):
        assert worker not in self.busy and worker not in self.dead
        self.busy[worker] = task

    def wait(self):
        worker = self.rng.choice(sorted(self.busy))
        task = self.busy.pop(worker)
        if self.dies(task, worker):
            self.dead.add(worker)
            return worker, None
        self.did.append((worker, task))
        return worker, VirtualBench().repeat(task)


def test_blocks_stay_on_one_worker_and_a_death_loses_its_repeat_alone(tmp_path, killed):
    import random

    deaths = {5, 11}
    pool = FakePool(random.Random(0), lambda task, worker: task.place in deaths and not deaths.discard(task.place))
    assert run(tmp_path / "run", PoolLauncher(pool, 3)) == []
    assert pool.added == 5 and len(pool.dead) == 2
    assert (tmp_path / "run" / "summary.csv").read_bytes() == (killed / "whole" / "summary.csv").read_bytes()
    assert Counter(t.place for _, t in pool.did) == Counter(range(REPEATS * sum(map(len, points()))))
    broken = [t for t in ({w for w, t in pool.did if t.place // 3 == b} for b in range(6)) if len(t) > 1]
    assert len(broken) <= 2, "a block without a death was spread over workers"


def test_a_repeat_that_takes_every_worker_with_it_is_given_up_and_the_rest_is_done(tmp_path):
    import random

    pool = FakePool(random.Random(1), lambda task, worker: task.place == 7)
    (lost,) = run(tmp_path / "run", PoolLauncher(pool, 2))
    assert lost.place == 7 and len(pool.dead) == ATTEMPTS
    assert len(on_disk(tmp_path / "run")) == REPEATS * sum(map(len, points())) - 1
    assert len(RunStore(tmp_path / "run").cells()) == sum(map(len, points())) - 1


def test_an_error_of_the_bench_ends_the_sweep_and_keeps_what_was_done(tmp_path):
    class Failing(VirtualBench):
        def repeat(self, task):
            if task.place == 4:
                raise KeyboardInterrupt
            return super().repeat(task)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", LocalLauncher(Failing()))
    assert len(on_disk(tmp_path / "run")) == 4
    assert isinstance(VirtualBench().repeat(task(*points()[0][0])), Measured)
    run(tmp_path / "run", LocalLauncher(VirtualBench()), resume=True)
    assert len(on_disk(tmp_path / "run")) == REPEATS * sum(map(len, points()))
