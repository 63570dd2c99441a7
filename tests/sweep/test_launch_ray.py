"""Ray on one machine: two workers, one of them killed in the middle of a repeat, leave the local sweep's summary."""

from __future__ import annotations

import operator

import pytest
import virtual_sweep
from command import dsbench, sweep_flags, write_drafter
from virtual_sweep import VirtualBench, run

from dsbench.results.store import RunStore
from dsbench.sweep.launch import LocalLauncher, PoolLauncher
from dsbench.sweep.launch_ray import RayWorkers

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray leaves sockets open


def test_two_workers_and_a_death_leave_the_local_summary(tmp_path):
    import synthetic_run

    for module in (virtual_sweep, synthetic_run):
        ray.cloudpickle.register_pickle_by_value(module)
    assert run(tmp_path / "local", LocalLauncher(VirtualBench())) == []
    log, doomed = tmp_path / "log", tmp_path / "doomed"
    doomed.touch()
    pool = RayWorkers(VirtualBench, (log, 0.2, doomed), local=2)
    try:
        assert run(tmp_path / "ray", PoolLauncher(pool, 2)) == []
    finally:
        pool.close()
    assert (tmp_path / "ray" / "summary.csv").read_bytes() == (tmp_path / "local" / "summary.csv").read_bytes()
    begun = [line.split() for line in log.read_text().splitlines()]
    tasks = [(key, number) for key, number, _ in begun]
    assert not doomed.exists() and len({pid for *_, pid in begun}) == 3, "one of two workers died, and was replaced"
    assert len(tasks) == len(set(tasks)) + 1, "more than the repeat that it died of was lost"


def test_the_real_engine_runs_on_workers(model, tmp_path):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    changes = {"drafter": drafter, "mode": "none,compact", "batch": "1,2", "threads": "1"}
    here = dsbench(*sweep_flags(model, tmp_path, **changes, out="here"), home=tmp_path)
    assert here.returncode == 0, here.stderr
    there = dsbench(*sweep_flags(model, tmp_path, **changes, launcher="ray", workers="2"), home=tmp_path)
    assert there.returncode == 0, there.stderr
    local, spread = (RunStore(tmp_path / name) for name in ("here", "run"))
    key = operator.attrgetter("folder.name")
    assert sorted(map(key, local.cells())) == sorted(map(key, spread.cells())), "one deployment has one set of cells"
    workers = {fact["worker"] for cell in spread.cells() for fact in cell.facts()}
    assert len(workers) == 2
    for a, b in zip(local.cells(), spread.cells(), strict=True):
        assert list(a.table("requests")["output_tokens"]) == list(b.table("requests")["output_tokens"])
