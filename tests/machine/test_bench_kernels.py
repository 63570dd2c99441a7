"""`dsbench bench-kernels` on a CPU at tiny sizes: limits, intervals, wrong results, bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import dsbench, refused
from tiny import tiny_shape

from dsbench.kernels.check.inputs import attention_inputs, in_dtype
from dsbench.kernels.check.registry import registry
from dsbench.machine import bench_kernels, kernel_sizes, kernel_time
from dsbench.machine.kernel_check import difference
from dsbench.machine.kernel_sizes import CONTEXTS, FAMILIES, ROWS, SHAPES, plan, spread
from dsbench.machine.kernel_time import CACHE, Ceilings, Result, fill, input_sets
from dsbench.runtime.targets.shape import catalogue_shapes
from dsbench.stats.intervals import Interval

OPS = {op.name: op for op in registry()}


@pytest.fixture
def small(monkeypatch):
    """A model of a few numbers, ceilings and caches to match."""
    monkeypatch.setattr(kernel_sizes, "catalogue_shapes", lambda: {"tiny": replace(tiny_shape(), name="tiny")})
    monkeypatch.setattr(kernel_sizes, "SHAPES", ("tiny",))
    monkeypatch.setattr(kernel_sizes, "CONTEXTS", (40, 90))
    monkeypatch.setattr(kernel_time, "COPIED", {"cpu": 1 << 16})
    monkeypatch.setattr(kernel_time, "MULTIPLIED", {"cpu": 32})
    monkeypatch.setattr(kernel_time, "CACHE", 1 << 14)
    monkeypatch.setattr(kernel_time, "LONGEST", {"cpu": 1e-4})


def test_every_op_is_right_and_timed_at_tiny_sizes(small, tmp_path):
    done = dsbench("bench-kernels", "--quick", "--device", "cpu", "--out", "k.json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GB/s" in done.stdout and all(family in done.stdout for family in FAMILIES)
    body = json.loads((tmp_path / "k.json").read_text())
    assert body["complete"] and body["environment"]["torch"] == torch.__version__ and body["dtype"] == "float32"
    assert {r["op"] for r in body["results"]} == set(FAMILIES) == {op.family for op in OPS.values()}
    copy, matrix = (body["ceilings"][name]["value"] for name in ("copy", "matrix"))
    for r in body["results"]:
        assert r["checked"] and not r["wrong"], r
        assert len(r["samples_us"]) == r["us"]["n"] == body["repeats"]
        assert r["us"]["low"] <= r["us"]["value"] <= r["us"]["high"]
        assert r["limit_us"] == pytest.approx(1e6 * max(r["bytes"] / copy, r["flops"] / matrix))
        assert r["ratio"] is not None or any(n.startswith("reference not timed") for n in r["notes"])
    assert [p.name for p in tmp_path.iterdir()] == ["k.json"], "temporary files"


def test_json_on_stdout_of_the_ops_and_rows_that_were_asked_for(small, tmp_path):
    some = ("--op", "swiglu, add_norm", "--rows", "1:4:x2", "--json")
    done = dsbench("bench-kernels", "--quick", "--device", "cpu", *some, home=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {(r["op"], r["rows"]) for r in json.loads(done.stdout)["results"]}
    assert found == {(op, rows) for op in ("swiglu", "add_norm") for rows in (1, 2, 4)}


def test_a_wrong_kernel_is_reported_and_not_timed(small, tmp_path, monkeypatch):
    def planted(gate_up):
        out = OPS["swiglu"].reference(gate_up)
        out[-1, -1] += 0.01
        return out

    ops = tuple(replace(op, compiled=planted) if op.name == "swiglu" else op for op in OPS.values())
    monkeypatch.setattr(bench_kernels, "registry", lambda: ops)
    some = ("--op", "swiglu,add_norm", "--rows", "2", "--out", "k.json")
    done = dsbench("bench-kernels", "--quick", "--device", "cpu", *some, home=tmp_path)
    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert "1 of 2 sizes are wrong, first swiglu" in last and "1 of 2 rows differ, by up to 0.01" in last
    assert "WRONG" in done.stdout
    results = {r["op"]: r for r in json.loads((tmp_path / "k.json").read_text())["results"]}
    assert results["swiglu"]["wrong"] and results["swiglu"]["us"] is None and not results["swiglu"]["samples_us"]
    assert results["add_norm"]["checked"] and results["add_norm"]["us"]["value"] > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--op", "swiglu,nope"), ("unknown op 'nope'", "paged_attention")),
        (("--op", ""), ("unknown op ''",)),
        (("--shape", "gpt-9"), ("unknown shape 'gpt-9'", "qwen3-8b")),
        (("--rows", "8:1"), ("runs backwards",)),
        (("--dtype", "bfloat16"), ("float32",)),
        (("--dtype", "int3"), ("unknown dtype",)),
        (("--device", "tpu"), ("unknown device",)),
        (("--out", "."), ("it is a folder",)),
        (("--out", "/proc/none/k.json"), ("cannot write",)),
    ],
)
def test_bad_input_is_one_line(flags, words, tmp_path):
    flags = flags if "--device" in flags else (*flags, "--device", "cpu")
    refused(dsbench("bench-kernels", *flags, home=tmp_path), 2, *words)


def test_a_limit_is_the_larger_of_two_times():
    ceilings = Ceilings(
        copy=Interval(4e12, None, None, 1), matrix=Interval(8e14, None, None, 1), copy_samples=[], matrix_samples=[]
    )
    op = OPS["projection"]
    few = in_dtype(op.make_inputs(torch.Generator().manual_seed(0), (1, 512, 1024, False)), torch.bfloat16)
    assert ceilings.limit(*op.cost(**few)) == pytest.approx(2 * (512 + 512 * 1024 + 1024) / 4e12)
    many = in_dtype(op.make_inputs(torch.Generator().manual_seed(0), (2048, 512, 1024, False)), torch.bfloat16)
    moved, flops = op.cost(**many)
    assert (moved, flops) == (2 * (2048 * 512 + 512 * 1024 + 2048 * 1024), 2 * 2048 * 512 * 1024)
    assert ceilings.limit(moved, 100 * flops) == pytest.approx(100 * flops / 8e14)


def test_the_cost_of_a_block_is_that_of_its_operands():
    op = OPS["coupled_block tokens"]
    x = op.make_inputs(torch.Generator().manual_seed(0), (2, 3, 8, 4, 100, "deep", True), odd=False)
    operands = 2 * 3 * 100 + 100 * 4 + 16 * 16 + 4 * 16 + 6 * 16  # base, W2, state_proj, feature_proj, e
    moved = 4 * operands + 8 * 100 + 6 * (8 + 24) + 2 * (8 + 8 + 8 + 4 + 8)
    assert op.cost(**x) == (moved, 6 * (2 * (100 * 4 + 16 * 16 + 4 * 16) + 14 * 100))


def test_medians_and_their_intervals():
    def made(times, reference=()):
        result = Result(op="x", label="", shape="", rows=1, bytes=3e6, flops=6e6, limit_us=1.0, calls=10)
        fill(result, times, reference, 5, seed=0)
        return result

    even = made([0.02] * 20, [0.03] * 20)  # milliseconds of ten calls, and of five of the reference
    assert (even.us.value, even.us.low, even.us.high) == pytest.approx((2.0, 2.0, 2.0))
    assert even.of_limit.value == pytest.approx(0.5) and even.ratio.value == pytest.approx(3.0)
    assert even.gigabytes_per_second == pytest.approx(1500) and even.teraflops_per_second == pytest.approx(3.0)
    drift = [0.02 + 0.001 * i for i in range(21)]  # reference and op drift alike: their ratio does not
    moving = made(drift, drift)
    assert moving.us.value == pytest.approx(3.0) and 2.2 < moving.us.low < 3.0 < moving.us.high < 3.8
    assert (moving.ratio.low, moving.ratio.high) == pytest.approx((2.0, 2.0))
    assert made([0.02] * 20).ratio is None


def test_input_sets_exceed_the_cache_within_memory():
    assert input_sets(CACHE * 4, 10**9, 10**12) == 1
    assert input_sets(CACHE / 10, CACHE, 10**12) == 20
    assert input_sets(1000, 1000, 10**12) == 256
    assert input_sets(CACHE / 10, 10**9, 10**11) == 5


def test_the_plan_of_a_gpu_holds_every_shape_row_count_and_context():
    batches = plan(ops=None, shapes=None, rows=None, quick=False, on_gpu=True)
    every = [size for batch in batches for size in batch]
    assert {(batch[0].shape, batch[0].rows) for batch in batches} == {(s, r) for s in SHAPES for r in ROWS}
    assert {size.case[1] for size in every if size.family == "law_stats"} == {16_384, 49_152, 151_936}
    assert len({(size.family, size.case) for size in every}) == len(every)
    shape = catalogue_shapes()["qwen3-8b"]
    last = {size.label: size.case for size in batches[-1] if size.family in ("projection", "paged_attention")}
    assert last["gate_up 4096>24576"] == (256, shape.hidden, 2 * shape.mlp, False)
    counts, contexts, *rest = last["S=4096 x8"]
    assert counts == (8,) * 256 and rest == [4, 8, 128, True, None]
    assert (min(contexts), max(contexts)) == (3072, 5120) and sum(contexts) / 256 == pytest.approx(4096, rel=1e-3)
    assert spread(CONTEXTS[0], 1) == (1024,)


def test_attention_inputs_fill_what_is_read_and_poison_the_rest():
    counts, context = (3, 0, 5), (14, 0, 31)
    x = attention_inputs(torch.Generator().manual_seed(0), (counts, context, 1, 2, 4, True, None), page=8)
    nobody, held = x["keys"].shape[0] - 1, 0
    assert x["pages"].tolist()[1] == [nobody] * 5 and x["pages"][0, 3:].tolist() == [nobody] * 2
    for r, (n, c) in enumerate(zip(counts, context, strict=True)):
        for name in ("keys", "values"):
            mine = x[name][x["pages"][r].long()].transpose(1, 2).flatten(0, 1)[: n + c]
            assert torch.isfinite(mine).all()
        held += n + c
    assert torch.isfinite(x["keys"]).sum() == held * 2 * 4
    used = x["pages"][x["pages"] != nobody]
    assert len(used.unique()) == len(used) == 3 + 5 and x["cu_rows"].tolist() == [0, 3, 3, 8]


def test_what_counts_as_different():
    attention, draw = OPS["paged_attention"], OPS["gumbel_argmax"]
    wanted = torch.randn(50, 4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert difference(attention, wanted, wanted) == ""
    assert difference(attention, (wanted.float() * (1 + 2**-8)).bfloat16(), wanted) == ""
    assert "1 of 50 rows" in difference(attention, wanted + 0.2 * (torch.arange(50) == 7)[:, None, None], wanted)
    lost = wanted.clone()
    lost[3, 0, 0] = float("nan")
    assert "1 of 50 rows differ, by up to inf" in difference(attention, lost, wanted)
    assert "shape" in difference(attention, wanted[1:], wanted)
    tokens = torch.arange(50)
    assert difference(draw, tokens + (tokens < 2), tokens) == "", "near ties may fall either way"
    assert "3 of 50 rows" in difference(draw, tokens + (tokens < 3), tokens)
    assert "1 of 8 rows" in difference(draw, tokens[:8] + (tokens[:8] < 1), tokens[:8])


def test_the_file_is_written_after_every_batch(small, tmp_path, monkeypatch):
    measure, seen = bench_kernels.measure, []

    def stopped(*args, **kwargs):
        seen.append(json.loads(Path("k.json").read_text()) if Path("k.json").exists() else None)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return measure(*args, **kwargs)

    monkeypatch.setattr(bench_kernels, "measure", stopped)
    some = ("--op", "swiglu", "--rows", "1,2,3", "--out", "k.json")
    assert dsbench("bench-kernels", "--quick", "--device", "cpu", *some, home=tmp_path).returncode == 130
    assert seen[0] is None and not seen[2]["complete"] and [r["rows"] for r in seen[2]["results"]] == [1, 2]
