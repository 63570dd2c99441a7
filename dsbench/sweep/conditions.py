"""Machine conditions during a repeat: other load, clocks, throttling, where they can be read. No torch.

On Linux from /proc and /sys; for an NVIDIA GPU from one `nvidia-smi` that reports while the sweep runs. Values that
cannot be read are None or absent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/stat, a second
EVERY_MS = 500
PROCESSES_EVERY = 10.0  # seconds; to ask takes a third of one, and repeats are short
FIELDS = "clocks.sm,clocks_event_reasons.active,temperature.gpu,power.draw"
OLD_FIELDS = FIELDS.replace("event", "throttle")  # drivers before 535
REASONS = {  # bits of NVML's clocks event reasons that slow a busy GPU
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Seconds: wall-clock, busy on this process's cores by anybody, busy by this process. MHz; events since boot."""

    wall: float
    busy: float | None
    own: float
    clock: float | None
    throttled: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One line of nvidia-smi, with the wall-clock it came at. MHz, degrees Celsius, watts."""

    wall: float
    clock: float | None
    reasons: tuple[str, ...]
    temperature: float | None
    power: float | None


class Machine:
    """Watches this machine, and one GPU by its UUID or index where it is given, until closed."""

    def __init__(self, gpu: str | None = None) -> None:
        self._gpu, self._readings = gpu, list[GpuReading]()
        self._crowd: int | None = None
        self._asked = float("-inf")
        self._process = _report(gpu) if gpu is not None else None
        if self._process is not None:
            threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed while it was read
            for line in process.stdout:
                reading = gpu_reading(line, time.perf_counter())
                if reading is not None:
                    self._readings.append(reading)

    @contextlib.contextmanager
    def watched(self, facts: dict[str, Any]) -> Iterator[None]:
        """Adds to `facts` the conditions during the block: `others`, a share of the cores' time; clocks in MHz;
        throttling.
        """
        before = cpu_reading()
        yield
        after = cpu_reading()
        facts |= cpu_facts(before, after)
        if self._process is not None:
            seen = [r for r in self._readings if before.wall <= r.wall <= after.wall]
            facts |= gpu_facts(seen) | {"gpu_processes": self._processes(after.wall)}
            self._readings = [r for r in self._readings if r.wall > after.wall]

    def _processes(self, now: float) -> int | None:
        """On the GPU, as far as was known lately."""
        if now - self._asked >= PROCESSES_EVERY:
            self._crowd, self._asked = _processes(self._gpu), now
        return self._crowd

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def cpu_reading(proc: Path = Path("/proc"), system: Path = Path("/sys/devices/system/cpu")) -> CpuReading:
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    return CpuReading(
        wall=time.perf_counter(),
        busy=_busy(proc / "stat", cores),
        own=time.process_time(),
        clock=_clock(proc / "cpuinfo", cores),
        throttled=_throttled(system, cores),
    )


def cpu_facts(before: CpuReading, after: CpuReading) -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seconds = after.wall - before.wall
    facts: dict[str, Any] = {"seconds": seconds, "cores": cores, "others": None, "throttled": []}
    if before.busy is not None and after.busy is not None and seconds > 20 / TICKS:  # else the ticks are too coarse
        foreign = (after.busy - before.busy) - (after.own - before.own)
        facts["others"] = min(max(foreign / (cores * seconds), 0.0), 1.0)
    if before.clock and after.clock:
        facts |= _fall([before.clock, after.clock])
    if before.throttled is not None and after.throttled is not None and after.throttled > before.throttled:
        facts["throttled"] = [f"CPU heat, {after.throttled - before.throttled} times"]
    return facts


def gpu_facts(seen: Sequence[GpuReading]) -> dict[str, Any]:
    """Facts of the GPU in place of the CPU's; nothing where no reading fell into the repeat."""
    clocks, heat = [r.clock for r in seen if r.clock], [r.temperature for r in seen if r.temperature]
    power = [r.power for r in seen if r.power]
    facts: dict[str, Any] = _fall(clocks) if clocks else {}
    facts |= {"temperature": max(heat)} if heat else {}
    facts |= {"power": sum(power) / len(power)} if power else {}
    return facts | {"throttled": sorted({reason for r in seen for reason in r.reasons}), "readings": len(seen)}


def _fall(clocks: Sequence[float]) -> dict[str, float]:
    """The highest clock, and the lowest after it: a clock that rises from idle is not throttling."""
    high = max(clocks)
    return {"clock_high": high, "clock_low": min(clocks[clocks.index(high) :])}


def gpu_reading(line: str, wall: float) -> GpuReading | None:
    """A line of FIELDS as CSV without units; None for one that is something else."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != len(FIELDS.split(",")):
        return None
    try:
        bits = int(parts[1], 16)
    except ValueError:
        bits = 0
    reasons = tuple(name for bit, name in REASONS.items() if bits & bit)
    return GpuReading(wall, _figure(parts[0]), reasons, _figure(parts[2]), _figure(parts[3]))


def _figure(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _report(gpu: str) -> subprocess.Popen[str] | None:
    """nvidia-smi reporting on the GPU, in the words that this driver knows; None where there is none."""
    for fields in (FIELDS, OLD_FIELDS):
        query = ["nvidia-smi", "-i", gpu, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            known = subprocess.run(query, capture_output=True, timeout=20, check=False).returncode == 0
            if known:
                return subprocess.Popen(
                    [*query, f"--loop-ms={EVERY_MS}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def _processes(gpu: str | None) -> int | None:
    query = ["nvidia-smi", "-i", str(gpu), "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return len(done.stdout.split()) if done.returncode == 0 else None


def _busy(stat: Path, cores: set[int]) -> float | None:
    """Seconds since boot that these cores worked for anybody: user, nice, system, interrupts, and stolen."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
        kept = [line for line in lines if line[0] in {f"cpu{core}" for core in cores}]
        return sum(int(line[i]) for line in kept for i in (1, 2, 3, 6, 7, 8)) / TICKS if kept else None
    except (OSError, ValueError, IndexError):
        return None


def _clock(cpuinfo: Path, cores: set[int]) -> float | None:
    """Mean MHz of these cores."""
    try:
        found = [float(line.split(":")[1]) for line in cpuinfo.read_text().splitlines() if line.startswith("cpu MHz")]
    except (OSError, ValueError, IndexError):
        return None
    mine = [found[core] for core in cores if core < len(found)]
    return sum(mine) / len(mine) if mine else None


def _throttled(system: Path, cores: set[int]) -> int | None:
    files = [system / f"cpu{core}" / "thermal_throttle" / "core_throttle_count" for core in cores]
    try:
        return sum(int(path.read_text()) for path in files if path.exists()) if any(p.exists() for p in files) else None
    except (OSError, ValueError):
        return None
