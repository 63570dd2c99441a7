"""The memory ledger: sums are what the shapes say, shared memory counts once, and run.json and `show` have them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from command import dsbench, write_drafter
from engine_runs import make_requests
from overlapped_runs import overlapped
from synthetic_run import write_synthetic_run
from tiny import tiny_drafter, tiny_mtp, tiny_shape, tiny_target

from dsbench.analysis.summary import summary_frame
from dsbench.deploy.engines import Engines
from dsbench.deploy.memory import _captured, memory_of
from dsbench.deploy.tensor_bytes import bytes_of, packed_bytes, pool_bytes, tensors_in
from dsbench.results.store import RunStore
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter

LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48  # q, o, k, v, mlp of tiny_shape


def turns(held):
    return (held.cos.numel() + held.sin.numel()) * 4


def test_a_targets_bytes_are_those_of_its_shape_and_its_rotary_tables():
    target, shape = tiny_target(), tiny_shape()
    assert bytes_of(target) == 4 * (64 * 32 + shape.layers * (LAYER + 2 * 32) + 32) + turns(target)
    assert 4 * (shape.parameters + (2 * shape.layers + 1) * 32) == bytes_of(target) - turns(target)  # and norms
    assert packed_bytes(target) == 4 * (shape.layers * LAYER + 64 * 32)  # the head is laid out apart from the embedding


def test_what_a_drafter_borrows_is_the_targets():
    target = tiny_target()
    drafter = tiny_drafter(target)
    own = 2 * (LAYER + 2 * 32 + 2 * 8) + 2 * 32 * 32 + 2 * 32 + 32  # layers, fc over two taps, norms, mask
    own += 64 * 8 * 2 + (32 + 8 + 1) + (32 + 1)  # head, confidence with and without its token
    own += 8 * 128  # the head's W2 once more, as the CPU kernel reads it; the context's projections are views
    vocabulary = 64 * 8
    assert bytes_of(target, drafter) - bytes_of(target) == 4 * own + vocabulary + turns(drafter)


def test_shared_memory_counts_once_and_views_by_what_they_reach():
    x = torch.zeros(10, 4)
    assert bytes_of(x, x, x[2:5], [x], {"a": x.t()}) == 160
    assert bytes_of(x[:2], x[8:]) == 64 and bytes_of(x[:, 0]) == 4 * 37 and bytes_of(torch.zeros(0)) == 0
    assert bytes_of(x, torch.zeros(3, dtype=torch.int64)) == 184
    assert tensors_in(SimpleNamespace(x=x)) == [], "objects of others are left alone"


@pytest.mark.parametrize(("mode", "drafts"), [("none", 0), ("static", 2 * 2 * 16), ("mtp:3", 2 * 16 + 2 * 16)])
def test_pages_and_slots(mode, drafts):
    made = overlapped(mode, 3).device
    models, slots = made.passes.models, made.slots
    tokens = (models.pool.shape.pages + 1) * models.pool.shape.page
    assert pool_bytes(models) == (tokens * 4 * 2 * 16 * 4, tokens * drafts * 4)
    assert sum(pool_bytes(models)) == models.pool.bytes
    held = [x for x in vars(slots).values() if isinstance(x, torch.Tensor)]
    rows = [x for c in made.chunks.values() for x in (c.ints, c.reals, c.pages)]
    assert _captured(made)["state"] == sum(x.numel() * x.element_size() for x in (*held, *rows))


def test_the_ledger_of_engines_lists_weights_pools_and_executors_and_adds_up():
    target = tiny_target()
    drafter, chain = tiny_drafter(target), tiny_mtp(target)
    drafters = {"none": NoDrafter(target.device), "dspark": drafter, "mtp": chain}
    deployment = SimpleNamespace(
        target=SimpleNamespace(model=target, tokenizer=None, eos=frozenset()),
        drafter=drafter,
        chain=chain,
        calibrations=None,
        graphs=True,
        overlap=True,
        device=target.device,
        drafter_of=lambda arm: drafters[arm.drafter],
    )
    engines = Engines(deployment, requests=4)
    for mode in ("static", "static:2", "mtp:2"):
        engines.make(parse_arm(mode), EngineConfig(page=4), None, make_requests(6), 4)
    body = json.loads(json.dumps(memory_of(engines)))
    assert body["weights"]["target"] == bytes_of(target)
    assert sum(body["weights"][k] for k in ("target", "drafter", "chain")) == bytes_of(target, drafter, chain)
    assert [p["drafter"] for p in body["pools"]] == ["tiny", "tiny-mtp"]
    assert [(m["kind"], m["depth"], m["graphs"]) for m in body["executors"]] == [
        ("captured", 4, 0),
        ("captured", 2, 0),
        ("captured", 2, 0),
    ]
    parts = sum(body["weights"].values()) + sum(m["state"] for m in body["executors"])
    parts += sum(p["target_layers"] + p["drafter_layers"] for p in body["pools"])
    assert body["peak"] == parts + body["rest"] and body["peak"] > 50 << 20


def test_a_sweep_keeps_its_ledger_and_show_prints_it(model, tmp_path):  # noqa: F811
    (tmp_path / "p.jsonl").write_text('{"prompt": "ABC"}\n{"prompt": "1234"}\n')
    flags = ["--target", str(model), "--drafter", str(write_drafter(tmp_path / "drafter")), "--workload", "p.jsonl"]
    flags += ["--mode", "none,static", "--batch", "1", "--max-tokens", "6", "--requests", "2", "--repeats", "1"]
    done = dsbench("sweep", *flags, "--out", "run", home=tmp_path)
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "run" / "run.json").read_text())["memory"]
    assert body["peak_is"] == "resident in the process" and len(body["pools"]) == 2 and body["executors"] == []
    shown = dsbench("show", "run", home=tmp_path).stdout
    for text in ("memory [MiB]", "weights", "KV pages", "drafter's layers", "rest of the peak"):
        assert text in shown
    assert set(summary_frame(RunStore(tmp_path / "run"))["memory"]) == {body["peak"]}
    again = dsbench("sweep", *flags, "--out", "run", "--resume", home=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["memory"] == body, "nothing ran, and it was lost"


def test_a_run_without_a_ledger_is_shown_all_the_same(tmp_path):
    store = write_synthetic_run(tmp_path / "r", modes=["none"], batches=[1], workloads=["chat"], repeats=1)
    assert pd.isna(summary_frame(store)["memory"]).all()
    done = dsbench("show", str(tmp_path / "r"), home=tmp_path)
    assert done.returncode == 0 and "memory" not in done.stdout
