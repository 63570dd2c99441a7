"""A sweep of a known law on a virtual clock, through the same order, store and summary as a real one. Loads no torch.

    python virtual_sweep.py FOLDER SEED KILLS

runs it once to its end in FOLDER/whole, then in FOLDER/killed over and over with a SIGKILL at a random moment, and at
last to its end. FOLDER/sessions.json has, for each session, what was on disk before it and what it measured. In
FOLDER/full no file may grow beyond FULL bytes, as on a disk that is full; FOLDER/full.json has what came of it.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pandas  # noqa: F401  before the forks, so that a session is no longer than its work
import pyarrow.parquet  # noqa: F401
from synthetic_run import BLOCK, make_cell, simulate

from dsbench.sweep.launch import LocalLauncher
from dsbench.sweep.order import Measured, run_missing, writing

MODES, BATCHES, WORKLOADS, REPEATS = ("none", "static", "compact"), (1, 2, 4), ("math",), 2
FULL = 12_000  # bytes: run.json and the steps of a repeat fit, its rounds do not
CONTRACT = {"block": str(BLOCK), "threads": "2", "dtype": "float32", "device": "Virtual CPU"}


def points():
    cells = [
        [make_cell(mode, batch, workload, measured=6) for mode in MODES] for workload in WORKLOADS for batch in BATCHES
    ]
    return [[(cell.key(CONTRACT, ""), cell) for cell in point] for point in cells]


@dataclass
class VirtualBench:
    """Measures by the law of `synthetic_run`; each task is logged as it begins. `pause`: seconds of real time a task.

    `doomed`: a file; who finds it takes it away and dies in the middle of that task.
    """

    log: Path | None = None
    pause: float = 0.0
    doomed: Path | None = None

    def describe(self):
        return SimpleNamespace(contract=CONTRACT, code="")

    def repeat(self, task):
        cell = task.cell
        if self.log is not None:
            with self.log.open("a") as stream:
                stream.write(f"{task.key} {task.number} {os.getpid()}\n")
        time.sleep(self.pause)
        if self.doomed is not None and self.doomed.exists():
            self.doomed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        tables = simulate(cell.mode, cell.batch, [cell.workload], measured=6, tokens=16, rep=task.number)
        return Measured(tables=tables, facts={"worker": os.getpid()})


class Silent:
    def began(self, task):
        pass

    def ended(self, task, measured):
        pass


def run(folder, launcher, *, resume=False, watcher=None):
    """The sweep in `folder`, to its end; what was given up."""
    body = {
        "environment": {"device": "Virtual CPU"},
        "contract": CONTRACT,
        "date": "",
        "labels": {"target": "toy", "synthetic": True},
        "code": "",
    }
    blocks = {mode: 0 if mode == "none" else BLOCK for mode in MODES}
    with writing(folder, resume=resume, notice=print) as store:
        return run_missing(
            store, points(), body, launcher, watcher or Silent(), repeats=REPEATS, seed=0, blocks=blocks
        )[0]


def on_disk(folder):
    return sorted(f"{p.parent.name} {p.name.removeprefix('rep-')}" for p in folder.glob("cells/*/rep-*"))


def session(folder, log, seconds):
    """One process that sweeps, killed after `seconds`; None: it ends by itself. Returns whether it was killed."""
    child = os.fork()
    if child == 0:
        run(folder, LocalLauncher(VirtualBench(log=log)), resume=True)
        os._exit(0)
    with nullcontext() if seconds is None else _killed_after(child, seconds):
        _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


class _killed_after:
    def __init__(self, child, seconds):
        self.child, self.seconds = child, seconds

    def __enter__(self):
        time.sleep(self.seconds)
        os.kill(self.child, signal.SIGKILL)

    def __exit__(self, *why):
        pass


def _timed(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def kill_over_and_over(folder, seed, kills):
    rng, sessions = random.Random(seed), []
    whole, opening = (_timed(lambda: session(folder / "whole", folder / "log-whole", None)) for _ in range(2))
    reach = opening + 3 * max(whole - opening, 0.1) / kills  # so that the kills together reach the end, about
    for number in range(kills + 1):
        log, before = folder / f"log-{number}", on_disk(folder / "killed")
        killed = session(folder / "killed", log, rng.uniform(0, reach) if number < kills else None)
        begun = [line.rpartition(" ")[0] for line in log.read_text().splitlines()] if log.exists() else []
        sessions.append({"before": before, "begun": begun, "killed": killed})
    (folder / "sessions.json").write_text(json.dumps(sessions))


def run_on_a_full_disk(folder):
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))
        try:
            run(folder / "full", LocalLauncher(VirtualBench()))
        except OSError as problem:
            left = [str(p) for p in (folder / "full").rglob("*.parquet")]
            os._exit(problem.errno if not left else 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    session(folder / "full", folder / "log-full", None)
    (folder / "full.json").write_text(json.dumps({"errno": os.waitstatus_to_exitcode(status)}))


if __name__ == "__main__":
    kill_over_and_over(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    run_on_a_full_disk(Path(sys.argv[1]))
    assert "torch" not in sys.modules
