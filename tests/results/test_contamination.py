"""Flags of a repeat's facts, what is read of a machine, and a warm-up that ends when the pace is flat: known inputs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from dsbench.kernels.compiles import compile_count
from dsbench.results.contamination import flag_note, repeat_flags
from dsbench.sweep.conditions import Machine, cpu_facts, cpu_reading, gpu_facts, gpu_reading
from dsbench.sweep.warm_up import WINDOW, is_flat, warm_up

IDLE = {"others": 0.01, "clock_low": 2000.0, "clock_high": 2100.0, "throttled": [], "gpu_processes": 1}
FLAT = {"flat": True, "steps": 16}


def test_a_clean_repeat_has_no_flag_and_an_older_run_says_nothing():
    assert repeat_flags([{"warm_up": FLAT, "machine": IDLE}, {}]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"others": 0.2}, "other processes took 20% of the cores"),
        ({"clock_low": 1500.0}, "the clock fell to 71% of its highest"),
        ({"throttled": ["power cap"]}, "throttled: power cap"),
        ({"gpu_processes": 3}, "3 processes held the GPU"),
    ],
)
def test_the_worst_repeat_is_flagged(change, words):
    clean = {"warm_up": FLAT, "machine": IDLE}
    assert repeat_flags([clean, {"warm_up": FLAT, "machine": IDLE | change}, clean]) == [words]


def test_a_warm_up_that_never_became_flat_is_flagged():
    assert repeat_flags([{"warm_up": {"flat": False, "steps": 40}}]) == ["not yet flat after 40 steps of warm-up"]


def test_kinds_of_flags_are_counted_by_cell():
    flags = [["2 of 31 steps compiled a kernel", "throttled: power cap"], [], ["1 of 9 steps compiled a kernel"]]
    told = "1 to 2 of 9 to 31 steps compiled a kernel (2 cells); throttled: power cap (1 cell)"
    assert flag_note(flags) == f"2 of 3 cells are flagged: {told}"
    drifts = [[f"step time drifts by {by} within a repeat"] for by in ("-5.9%", "+80.3%", "-42.5%", "+6%")]
    assert flag_note(drifts[:3]).endswith("step time drifts by -42.5% to +80.3% within a repeat (3 cells)")
    assert flag_note(drifts[3:]).endswith("step time drifts by +6% within a repeat (1 cell)")
    assert flag_note([[], []]) == ""


def test_load_of_other_processes_is_told_from_our_own(tmp_path):
    """Ticks of 1/100 s: the core was busy for 3 s of 10, this process for 1 of them."""
    core = min(os.sched_getaffinity(0))

    def reading(busy, wall, own, heat):
        (tmp_path / "stat").write_text(f"cpu 9 9 9 9 9 9 9 9 0 0\ncpu{core} {busy} 0 0 500 7 0 0 0 0 0\n")
        (tmp_path / "cpuinfo").write_text("cpu MHz\t\t: 2400.0\n" * (core + 1))
        folder = tmp_path / f"cpu{core}" / "thermal_throttle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "core_throttle_count").write_text(f"{heat}\n")
        found = cpu_reading(tmp_path, tmp_path)
        assert (found.busy, found.clock, found.throttled) == (pytest.approx(busy / 100), 2400.0, heat)
        return type(found)(wall, found.busy, own, found.clock, found.throttled)

    facts = cpu_facts(reading(100, 5.0, 1.0, 2), reading(400, 15.0, 2.0, 4))
    assert facts["others"] == pytest.approx(2 / (10 * facts["cores"]))
    assert facts["throttled"] == ["CPU heat, 2 times"]
    nothing = cpu_reading(tmp_path / "absent", tmp_path / "absent")
    assert (nothing.busy, nothing.clock, nothing.throttled) == (None, None, None)
    assert cpu_facts(nothing, nothing)["others"] is None


def test_a_busy_neighbour_is_seen():
    neighbour = subprocess.Popen([sys.executable, "-Sc", "while True: pass"])
    facts = {}
    try:
        time.sleep(0.2)
        with Machine().watched(facts):
            time.sleep(0.6)
    finally:
        neighbour.kill()
        neighbour.wait()
    assert facts["others"] * facts["cores"] > 0.4, "a process that spins takes most of a core"


def test_readings_of_a_gpu():
    lines = [
        "345, 0x0000000000000001, 30, 70.1",
        "1980, 0x0000000000000000, 41, 500.5",
        "1500, 0x0000000000000024, [N/A], 690.1",
        "[N/A], [N/A], 60, [N/A]",
        "NVIDIA-SMI has failed",
    ]
    readings = [gpu_reading(line, float(i)) for i, line in enumerate(lines)]
    assert readings[4] is None and readings[3].clock is None
    assert readings[2].reasons == ("power cap", "software thermal slowdown") and readings[0].reasons == ()
    facts = gpu_facts(readings[:4])
    assert (facts["clock_high"], facts["clock_low"]) == (1980.0, 1500.0), "the idle clock before work is no fall"
    assert facts["throttled"] == ["power cap", "software thermal slowdown"] and facts["temperature"] == 60.0
    assert facts["power"] == pytest.approx((70.1 + 500.5 + 690.1) / 3) and facts["readings"] == 4
    assert gpu_facts([]) == {"throttled": [], "readings": 0}


def test_who_else_holds_the_gpu_is_asked_now_and_then(tmp_path, monkeypatch):
    """A question takes longer than many a repeat; the answer counts for ten seconds."""
    asked, tool = tmp_path / "asked", tmp_path / "nvidia-smi"
    answers = f"*compute-apps*) echo x >>{asked}; echo 7; echo 9;; *loop*) exec sleep 60;; *) echo 1;;"
    tool.write_text(f'#!/bin/sh\ncase "$*" in {answers} esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch, found = Machine("GPU-1"), []
    try:
        for _ in range(3):
            with watch.watched(facts := {}):
                pass
            found.append(facts["gpu_processes"])
        assert found == [2, 2, 2] and asked.read_text() == "x\n"
        monkeypatch.setattr("dsbench.sweep.conditions.PROCESSES_EVERY", 0.0)
        with watch.watched({}):
            pass
        assert asked.read_text() == "x\nx\n"
    finally:
        watch.close()


def test_numba_compilations_are_counted():
    import numba

    count = compile_count()

    @numba.njit
    def double(x):
        return 2 * x

    before = count.total
    double(1), double(2)
    assert count.total == before + 1
    double(1.0)
    assert count.total == before + 2


@dataclass
class FakeLoop:
    """Requests of `life` steps each; step number i delivers `delivered(i)` tokens and takes `seconds(i)`."""

    seconds: object
    life: int = 10
    delivered: object = lambda i: 2
    steps: list = field(default_factory=list)
    left: dict = field(default_factory=dict)
    order: list = field(default_factory=list)

    @property
    def running(self):
        return list(self.left)

    def admit(self, requests):
        for request in requests:
            self.order.append(request)
            if self.life:
                self.left[request] = self.life
        return []

    def step(self):
        i = len(self.steps)
        seconds, delivered = self.seconds(i), self.delivered(i)
        self.steps.append(
            SimpleNamespace(requests=len(self.left), delivered=delivered, seconds=seconds, prefill_seconds=0.0)
        )
        self.left = {r: n - 1 for r, n in self.left.items() if n > 1}


def test_a_steady_pace_is_flat_after_two_windows_and_those_running_go_on():
    loop = FakeLoop(lambda i: 0.5, life=100)
    found = warm_up(loop, iter(range(9)), 3)
    assert found.flat and found.steps == 2 * WINDOW and found.seconds == WINDOW
    assert found.paces == (4.0, 4.0)
    assert loop.order == [0, 1, 2] and len(loop.running) == 3


def test_a_slow_start_is_waited_for():
    """The first 12 steps take twice as long: the second window is faster than the first, the third than the second."""
    loop = FakeLoop(lambda i: 2.0 if i < 12 else 1.0)
    found = warm_up(loop, iter(range(99)), 1)
    assert found.flat and found.steps == 4 * WINDOW
    assert found.paces == pytest.approx((1.0, 16 / 12, 2.0, 2.0))


def test_a_pace_that_keeps_changing_ends_with_the_requests():
    loop = FakeLoop(lambda i: 1.0 / (1 + i), life=16)
    found = warm_up(loop, iter(range(6)), 2)
    assert not found.flat and loop.order == list(range(6)) and len(loop.running) < 2
    assert found.steps == 48


def test_luck_of_acceptance_is_no_change_of_pace():
    """8 tokens in one step of five is noise: windows of 8 differ by half, and yet the pace is that of before."""
    loop = FakeLoop(lambda i: 1.0, life=100, delivered=lambda i: 8 if i % 5 == 0 else 1)
    assert warm_up(loop, iter(range(9)), 1).steps == 2 * WINDOW
    changed = [SimpleNamespace(delivered=d, seconds=1.0, prefill_seconds=0.0) for d in [1] * WINDOW + [2] * WINDOW]
    assert not is_flat(changed)


def test_a_few_empty_slots_leave_a_step_full():
    loop = FakeLoop(lambda i: 1.0, life=100)
    loop.step = lambda: loop.steps.append(
        SimpleNamespace(requests=18 if len(loop.steps) % 4 else 17, delivered=2, seconds=1.0, prefill_seconds=0.0)
    )
    assert warm_up(loop, iter(range(60)), 20).steps == 16 + 6, "every fourth step has fewer than nine tenths"


def test_requests_that_end_at_once_warm_nothing():
    found = warm_up(FakeLoop(lambda i: 1.0, life=0), iter(range(5)), 2)
    assert not found.flat and found.steps == 0 and found.paces == ()
