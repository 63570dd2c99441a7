"""Times an op at a size: microseconds, its limit on this device, and its reference's time.

On CUDA a call is one of many in a captured graph, and each has inputs of its own, so that together they exceed the L2
cache; graphs of all sizes of a batch are replayed in turn, in random order. On a CPU without graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsbench.drafting.draft_time import EAGER, captured, interleaved, milliseconds
from dsbench.kernels.check.inputs import Inputs, in_dtype
from dsbench.kernels.check.op import Op
from dsbench.machine.kernel_check import (
    IN_FP32,
    MOST_MEMORY,
    compare,
    free_memory,
    reference_memory,
    size_of,
    unaffordable,
)
from dsbench.machine.kernel_sizes import Size
from dsbench.stats.intervals import Interval, quantile_of

CACHE = 60_000_000  # bytes of an H200's L2
MOST_CALLS = 256  # of one replay
SPAN = 5e-4  # seconds that a replay should take; events resolve a thousandth of it
LONGEST = {"cuda": 0.02, "cpu": 5e-3}  # seconds of a replay, by what a call takes alone
SLOW = {"cuda": 0.1, "cpu": 0.5}  # seconds of a reference that is not timed
SETS_SHARE, REFERENCE_SHARE = 0.05, 0.1  # of free memory: input sets of a size; what a captured reference holds
UNTIMED = {
    "projection": "the reference multiplies in fp64",
    "exact_projection": "the reference multiplies in fp64",
    **dict.fromkeys(
        ("normed_qkv", "normed_swiglu", "product_add", "small_product"), "the reference multiplies in fp32"
    ),
}
WAITING = ("paged_attention",)  # references that no graph can hold
COPIED = {"cuda": 1 << 30, "cpu": 1 << 27}  # bytes of the copy that gives the bandwidth, beyond any cache
MULTIPLIED = {"cuda": 8192, "cpu": 1024}  # side of the matrices that give the rate

Notice = Callable[[str], None]
Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Measured ceilings of the device: bytes and floating-point operations a second; raw samples in seconds."""

    copy: Interval
    matrix: Interval
    copy_samples: list[float]
    matrix_samples: list[float]

    def limit(self, moved: float, flops: float) -> float:
        """Least possible seconds by the device's ceilings."""
        return max(moved / self.copy.value, flops / self.matrix.value)


@dataclass(slots=True, kw_only=True)
class Result:
    """One size of one op. Microseconds; `of_limit` = limit / time; `ratio` = the reference's time / the op's."""

    op: str
    label: str
    shape: str
    rows: int
    bytes: float
    flops: float
    limit_us: float
    checked: bool = False
    wrong: str = ""
    us: Interval | None = None
    of_limit: Interval | None = None
    gigabytes_per_second: float | None = None
    teraflops_per_second: float | None = None
    ratio: Interval | None = None
    reference_us: Interval | None = None
    executor: str = ""
    calls: int = 0  # of a sample
    input_sets: int = 0
    exceeds_cache: bool = False
    notes: list[str] = field(default_factory=list)
    samples_us: list[float] = field(default_factory=list)
    reference_samples_us: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A size whose results are correct, and the calls to time."""

    result: Result
    run: Run
    reference: Run | None
    reference_calls: int


def measure_ceilings(device: torch.device, dtype: torch.dtype, repeats: int, seed: int, notice: Notice) -> Ceilings:
    """Median bandwidth of a copy, read and written, and of a matrix product of random numbers in `dtype`."""
    generator = torch.Generator(device).manual_seed(seed)
    source = torch.randint(
        0, 1 << 30, (COPIED[device.type] // 4,), dtype=torch.int32, device=device, generator=generator
    )
    side = MULTIPLIED[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype, generator=generator) for _ in range(2))
    target, product = torch.empty_like(source), torch.empty_like(a)
    # a copy in a graph is left to the copy engine, which is slower than kernels are
    eager: list[Run] = [lambda: torch.bitwise_not(source, out=target), lambda: torch.mm(a, b, out=product)]
    runs = [captured(run, device, notice)[0] for run in eager]
    times = interleaved(runs, device, seed, repeats=repeats, behind=True)
    copies, products = ([t / 1e3 for t in row] for row in times)
    return Ceilings(
        copy=_median([2 * source.nbytes / t for t in copies], seed),
        matrix=_median([2 * side**3 / t for t in products], seed),
        copy_samples=copies,
        matrix_samples=products,
    )


def measure(
    batch: Sequence[Size],
    ops: Sequence[Op],
    ceilings: Ceilings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    repeats: int,
    seed: int,
    notice: Notice,
) -> list[Result]:
    """Results in the order of the batch; all of it is in memory at once, and is timed in turn."""
    found, ready = [], []
    for size in batch:
        members = [op for op in ops if op.family == size.family]
        try:
            made = prepare(size, members, ceilings, device=device, dtype=dtype, seed=seed, notice=notice)
        except torch.OutOfMemoryError:
            made = _result(size, 0, 0, 0)
            made.notes.append("left out: not enough memory")
        if isinstance(made, Prepared):
            ready.append(made)
        found.append(made.result if isinstance(made, Prepared) else made)
    runs = [run for p in ready for run in (p.run, p.reference) if run is not None]
    times = iter(interleaved(runs, device, seed, repeats=repeats, behind=True))
    for p in ready:
        own = next(times)
        fill(p.result, own, next(times) if p.reference is not None else [], p.reference_calls, seed)
    return found


def prepare(
    size: Size,
    members: Sequence[Op],
    ceilings: Ceilings,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    notice: Notice,
) -> Prepared | Result:
    """Inputs made, results compared, calls captured; the Result alone where the results are wrong."""
    first = members[0]
    assert first.cost is not None, f"{first.name} has no cost"
    exact = first.make_inputs(torch.Generator(device).manual_seed(seed), size.case, **size.options)
    inputs = in_dtype(exact, dtype)
    moved, flops = first.cost(**inputs)
    limit = ceilings.limit(moved, flops)
    result = _result(size, moved, flops, limit)
    seconds = 0.0
    if reason := unaffordable(size, inputs, device):
        result.notes.append(f"not checked: {reason}")
    else:
        result.wrong, seconds = compare(members, exact if size.family in IN_FP32 else inputs)
        result.checked = not result.wrong
        if size.family in IN_FP32 and dtype != torch.float32:
            result.notes.append("checked in fp32: a rounded logit changes a token, and with it all that follow")
    if result.wrong:
        return result
    del exact
    count = input_sets(moved, size_of(inputs), free_memory(device))
    most = most_calls(first.call(inputs), device)
    result.calls = min(max(count, round(SPAN / limit)), most)
    count = result.input_sets = min(count, most)
    result.exceeds_cache = count * moved >= 2 * CACHE
    sets = [inputs, *(_copy(inputs) for _ in range(count - 1))]
    run, result.executor = captured(_in_turn([first.call(x) for x in sets], result.calls, device), device, notice)
    if device.type == "cuda" and result.executor == EAGER:
        result.notes.append("not captured: the host's time counts")
    if first.unfused is not None:
        result.notes.append("beside it: a loop of torch ops and the draw's own kernel")
        loops = _in_turn([first.unfused(x) for x in sets], result.calls, device)
        beside = captured(loops, device, notice)[0]
        return Prepared(result=result, run=run, reference=beside, reference_calls=result.calls)
    if reason := _untimed(size, inputs, seconds, device):
        result.notes.append(f"reference not timed: {reason}")
        return Prepared(result=result, run=run, reference=None, reference_calls=0)
    calls = max(1, min(result.calls, int(LONGEST[device.type] / seconds)))
    uncaptured_calls: list[Run] = [lambda x=x: first.reference(**x) for x in sets]  # type: ignore[misc]
    reference = _in_turn(uncaptured_calls, calls, device)
    if size.family in WAITING:
        result.notes.append("reference timed without a graph: it waits for the device")
    else:
        reference = captured(reference, device, notice)[0]
    return Prepared(result=result, run=run, reference=reference, reference_calls=calls)


def _result(size: Size, moved: float, flops: float, limit: float) -> Result:
    return Result(
        op=size.family,
        label=size.label,
        shape=size.shape,
        rows=size.rows,
        bytes=moved,
        flops=flops,
        limit_us=limit * 1e6,
    )


def input_sets(moved: float, held: int, free: int) -> int:
    """How many sets of inputs, of `held` bytes and `moved` by a call, leave nothing in the cache when it is their turn.

    At most MOST_CALLS, and no more than a share of the free memory.
    """
    wanted = -(-2 * CACHE // max(int(moved), 1))
    return max(1, min(wanted, MOST_CALLS, int(SETS_SHARE * free / max(held, 1))))


def most_calls(call: Run, device: torch.device) -> int:
    """Calls of one replay at most, by the second of two calls alone."""
    return max(1, min(MOST_CALLS, int(LONGEST[device.type] * 1e3 / [milliseconds(call, device) for _ in range(2)][1])))


def fill(result: Result, times: Sequence[float], reference: Sequence[float], calls: int, seed: int) -> None:
    """The numbers of a result from milliseconds of its samples, and of its reference's in the same rounds."""
    result.samples_us = [t * 1e3 / result.calls for t in times]
    us = result.us = _median(result.samples_us, seed)
    result.of_limit = _median([result.limit_us / t for t in result.samples_us], seed)
    result.gigabytes_per_second = result.bytes / us.value / 1e3
    result.teraflops_per_second = result.flops / us.value / 1e6
    if reference:
        result.reference_samples_us = [t * 1e3 / calls for t in reference]
        result.reference_us = _median(result.reference_samples_us, seed)
        pairs = zip(result.reference_samples_us, result.samples_us, strict=True)
        result.ratio = _median([theirs / own for theirs, own in pairs], seed)


def _untimed(size: Size, inputs: Inputs, seconds: float, device: torch.device) -> str:
    """Why the reference is not timed, "" if it is."""
    if reason := UNTIMED.get(size.family) or unaffordable(size, inputs, device):
        return reason
    if seconds > SLOW[device.type]:
        return f"one call took {seconds * 1e3:.0f} ms"
    share = REFERENCE_SHARE if device.type == "cuda" else MOST_MEMORY  # a graph keeps what it needed once
    return "it needs too much memory" if reference_memory(size, inputs) > share * free_memory(device) else ""


def _in_turn(calls: Sequence[Run], count: int, device: torch.device) -> Run:
    """`count` calls, cycling through `calls`. A graph keeps all results, so that each has its own memory."""
    chosen = [calls[i % len(calls)] for i in range(count)]
    if device.type == "cuda":
        return lambda: [call() for call in chosen]

    def run() -> None:
        for call in chosen:
            call()

    return run


def _copy(inputs: Inputs) -> Inputs:
    return {name: x.clone() if isinstance(x, Tensor) else x for name, x in inputs.items()}


def _median(values: Sequence[float], seed: int) -> Interval:
    found = quantile_of(values, 0.5, seed=seed)
    assert found is not None
    return found
