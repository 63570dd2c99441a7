"""Ray on one machine: two workers, one of them killed in the middle of a repeat, leave the local sweep's summary."""

from __future__ import annotations

import pytest
import virtual_sweep
from virtual_sweep import VirtualBench, run

from dsbench.launch import Here, Workers
from dsbench.launch_ray import RayStaff

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray leaves sockets open


def test_two_workers_and_a_death_leave_the_local_summary(tmp_path):
    import synthetic_run

    for module in (virtual_sweep, synthetic_run):
        ray.cloudpickle.register_pickle_by_value(module)
    assert run(tmp_path / "local", Here(VirtualBench())) == []
    log, doomed = tmp_path / "log", tmp_path / "doomed"
    doomed.touch()
    staff = RayStaff(VirtualBench, (log, 0.2, doomed), local=2)
    try:
        assert run(tmp_path / "ray", Workers(staff, 2)) == []
    finally:
        staff.close()
    assert (tmp_path / "ray" / "summary.csv").read_bytes() == (tmp_path / "local" / "summary.csv").read_bytes()
    begun = [line.split() for line in log.read_text().splitlines()]
    tasks = [(key, number) for key, number, _ in begun]
    assert not doomed.exists() and len({pid for *_, pid in begun}) == 3, "one of two workers died, and was replaced"
    assert len(tasks) == len(set(tasks)) + 1, "more than the repeat that it died of was lost"
