"""The real engine's sweep in a process of its own, killed and interrupted: no repeat that was done is done again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import sweep_flags, write_drafter

from dsbench.results.store import RunStore

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def begin(flags, home):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "DSBENCH_HOME": str(home)}
    command = [sys.executable, "-m", "dsbench", *flags, "--resume"]
    return subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def done(folder):
    """Finished repeats, with the moment at which each was written."""
    return {p: (p / "steps.parquet").stat().st_mtime_ns for p in folder.glob("cells/*/rep-*")}


def wait_for(sweep, folder, count):
    while sweep.poll() is None and len(done(folder)) < count:
        time.sleep(0.02)


def test_the_same_cells_and_none_done_twice(model, tmp_path):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    flags = sweep_flags(model, tmp_path, drafter=drafter, mode="none,static,compact", repeats="2", max_tokens="24")
    folder, rng, kept = tmp_path / "run", random.Random(5), {}
    for count, sign in ((0, signal.SIGKILL), (1, signal.SIGKILL), (3, signal.SIGINT), (5, signal.SIGKILL)):
        sweep = begin(flags, tmp_path)
        wait_for(sweep, folder, count)
        time.sleep(rng.uniform(0, 0.3 if count else 8.0))
        sweep.send_signal(sign)
        _, said = sweep.communicate()
        if sign == signal.SIGINT and sweep.returncode != 0:
            assert sweep.returncode == 130 and b"--resume goes on" in said and b"Traceback" not in said, said
        assert kept.items() <= done(folder).items(), "a finished repeat was written anew"
        kept = done(folder)
    sweep = begin(flags, tmp_path)
    out, said = sweep.communicate()
    assert sweep.returncode == 0, said
    assert kept.items() <= done(folder).items() and len(done(folder)) == 6
    cells = RunStore(folder).cells()
    assert [c.cell.mode for c in cells] == ["compact", "none", "static"] and b"compact" in out
    assert all(c.summary["repeats"] == 2 for c in cells) and (folder / "summary.csv").exists()
    assert [p for p in folder.rglob(".*") if p.name != ".lock"] == []
