"""Padded passes: the captured device, uncaptured on a CPU, writes what the eager one writes, whatever lies around."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from captured_runs import engine_of
from engine_runs import make_requests, plain_texts, run
from overlapped_runs import finish
from tiny import tiny_drafter, tiny_target
from toys import ToyDrafter, ToyTarget, staircase_table

from dsbench.deploy.engines import Engines
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.batch import pack_padded, pack_rows
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.build import make_captured, make_engine, make_models, slot_shape
from dsbench.runtime.loop.captured import CapturedDevice
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.eager import EagerDevice
from dsbench.runtime.loop.tiers import Tiers
from dsbench.runtime.policy.calibrated import Calibrated

MODES = ["none", "static", "static:2", "no-trim", "compact", "cap-accept", "mtp:2"]
CPU = torch.device("cpu")


def captured(mode, batch, **changes):
    return engine_of(mode, batch, captured=True, device=CPU, **changes)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", MODES)
def test_padded_passes_write_the_eager_text(mode, temperature):
    for batch, every in ((1, 4), (5, 1)):
        requests = make_requests(7, temperature=temperature, max_tokens=10)[::every]
        engine = captured(mode, batch)
        assert finish(engine, requests, batch) == plain_texts(7, temperature, 10)[::every]
        for step in engine.steps:
            plain = step.rows == step.requests and mode == "compact"  # a no-draft round has a request's tier
            tiers = engine.device.tiers.requests if plain else engine.device.tiers.rows
            assert step.tier in tiers and step.tier >= step.rows
            assert mode == "cap-accept" or step.padding == step.tier - step.rows


def toy_engine(mode, batch, *, padded):
    """Of whole drafts, whose rounds are waited for one by one."""
    arm, target, drafter = parse_arm(mode), ToyTarget(16), ToyDrafter(16, 4)
    config = EngineConfig(page=4, prefill_chunk=7, draft="full")
    models = make_models(target, drafter, config, batch * 80, 40)
    shape, calibrated = slot_shape(models, batch, [], frozenset()), Calibrated(None, "coupled", 4)
    if padded:
        made = make_captured(models, arm, config, shape, calibrated)
    else:
        made = EagerDevice(models, arm, shape, calibrated.maps, config.prefill_chunk)
    return make_engine(made, arm, config, calibrated, staircase_table(batch, 4))


@pytest.mark.parametrize("mode", ["static", "compact", "cap-accept"])
def test_padded_passes_read_and_leave_what_the_eager_ones_do(mode):
    """Every law of the toy target is a function of the ids that it finds in the pages."""
    records = []
    for padded in (False, True):
        requests = make_requests(3, temperature=0.9, max_tokens=14)
        for request in requests:
            request.prompt_ids = [t % 16 for t in request.prompt_ids[:2]]  # all start in the same round
        engine = toy_engine(mode, 3, padded=padded)
        run_closed_loop(engine, requests, concurrency=3)
        rounds = [(r.step, r.request, r.window, r.accepted, r.ceiling, r.drafts) for r in engine.rounds]
        records.append(([r.output for r in requests], sorted(rounds)))
    assert records[0] == records[1] and len(records[0][1]) > 12


def test_what_lies_in_nobodys_page_reaches_nobody(monkeypatch):
    from dsbench.runtime.state import StatePool

    made = StatePool.__init__

    def poisoned(self, *args, **kwargs):
        made(self, *args, **kwargs)
        for kept in (*self.keys, *self.values):
            kept[-1] = float("nan")

    wanted = make_requests(4, max_tokens=10)
    run("none", wanted, batch=4)
    monkeypatch.setattr(StatePool, "__init__", poisoned)
    for mode in ("static", "compact"):
        requests = make_requests(4, max_tokens=10)
        assert finish(captured(mode, 3), requests, 3) == [r.output for r in wanted]


@pytest.mark.parametrize(("mode", "rule"), [("static", "residual"), ("static", "block"), ("compact:free", "coupled")])
def test_what_no_graph_can_hold_runs_eagerly(mode, rule):
    engines, queue = sweep_of(tiny_target()), make_requests(3, temperature=0.9, max_tokens=10)
    engine = engines.make(
        parse_arm(mode), EngineConfig(rule=rule, page=4, prefill_chunk=7), staircase_table(3, 4), queue, 3
    )
    wanted = make_requests(3, temperature=0.9, max_tokens=10)
    other = run(mode, wanted, batch=3, rule=rule)
    assert finish(engine, queue, 3) == [r.output for r in wanted]
    assert isinstance(engine.device, EagerDevice) and not engines.captured
    assert [s.tier for s in engine.steps] == [s.tier for s in other.steps]


def mixed_bounds():
    """Requests with both bounds, with one and with none, some of them greedy."""
    kinds = [{"top_k": 5, "top_p": 0.8}, {}, {"top_p": 0.6}, {"top_k": 3}, {"top_k": 4, "temperature": 0.0}]
    made = [make_requests(7, **({"temperature": 0.9, "max_tokens": 12} | kind)) for kind in kinds]
    return [made[i % len(kinds)][i] for i in range(7)]


@pytest.fixture(scope="module")
def bounded_texts():
    wanted = mixed_bounds()
    run("none", wanted, batch=7)
    texts = [r.output for r in wanted]
    assert texts != plain_texts(7, 0.9, 12)
    return texts


@pytest.mark.parametrize("mode", ["none", "static", "compact", "mtp:2"])
def test_padded_passes_that_truncate_write_the_eager_text(mode, bounded_texts):
    for batch, every in ((1, 3), (5, 1)):
        requests = mixed_bounds()[::every]
        assert finish(captured(mode, batch, truncates=True), requests, batch) == bounded_texts[::every]


def test_padded_rows_are_the_packed_ones_and_nobodys():
    anchor, drafts = torch.tensor([7, 8, 9, 0]), torch.arange(12).view(4, 3)
    verified, context = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 6, 7, 0], dtype=torch.int32)
    pages = torch.arange(8, dtype=torch.int32).view(4, 2)
    for live in (1, 2, 3):
        real = pack_rows(anchor[:live], drafts[:live], verified[:live], context[:live], pages[:live])
        for rows in (real.rows, real.rows + 5):
            made = pack_padded(anchor, drafts, verified, context, pages, torch.tensor([live]), rows, 8)
            where = pages.long()[real.request, real.positions // 8] * 8 + real.positions % 8
            assert made.cache_indices.tolist() == where.tolist() + [-1] * (rows - real.rows)
            assert made.rows == rows and made.requests == 4
            for name in ("ids", "positions", "request"):
                assert torch.equal(getattr(made, name)[: real.rows], getattr(real, name))
            assert (made.request[real.rows :] == 3).all() and (made.positions[real.rows :] == 0).all()
            counts = made.cu_rows.diff().tolist()
            assert counts[:live] == (verified[:live] + 1).tolist() and sum(counts) == real.rows


@pytest.mark.parametrize(("requests", "block"), [(1, 0), (1, 7), (5, 4), (64, 7), (256, 7)])
def test_tiers_cover_every_size_and_are_among_those_of_a_larger_run(requests, block):
    tiers = Tiers.ladder(requests, block)
    assert tiers.requests[-1] >= requests and tiers.rows[-1] >= requests * (block + 1)
    larger = Tiers.ladder(512, 7)
    assert set(tiers.requests) <= set(larger.requests) and set(tiers.rows) <= set(larger.rows)
    assert all(a < b for sizes in (tiers.requests, tiers.rows) for a, b in pairwise(sizes))
    assert tiers.rows[-1] < 1.3 * requests * (block + 1) + 8
    apart = Tiers.ladder(requests, block, 22)
    for taken in range(1, requests + 1):
        for rows in {taken, taken * (block + 1)}:
            tier, slots = apart.of(taken, rows)
            assert tier >= rows and slots >= taken and (tier, slots) in apart.verify()
            assert slots <= 22 or taken > 22 or min(tier, apart.requests[-1]) == slots <= 22


def test_a_captured_device_serves_one_engine_after_another():
    """As a sweep reuses captured graphs: other arms of one depth, fewer requests, requests left running before."""
    wanted = make_requests(6, max_tokens=12)
    run("none", wanted, batch=6)
    first = captured("static", 4)
    run_closed_loop(first, make_requests(6, max_tokens=12), concurrency=4)
    first.admit(make_requests(2, max_tokens=12))
    first.step()
    assert first.running
    first.close()
    for mode, batch in (("compact", 4), ("no-trim", 2), ("static", 3)):
        requests = make_requests(6, max_tokens=12)
        engine = captured(mode, batch, made=first.device)
        assert engine.device is first.device
        assert finish(engine, requests, batch) == [r.output for r in wanted]


def sweep_of(target, *, overlap=False):
    drafters = {"none": NoDrafter(target.device), "dspark": tiny_drafter(target)}
    deployment = SimpleNamespace(
        target=SimpleNamespace(model=target, tokenizer=None, eos=frozenset()),
        calibrations=None,
        graphs=True,
        overlap=overlap,
        drafter_of=lambda arm: drafters[arm.drafter],
    )
    return Engines(deployment, requests=3)


def test_a_sweep_has_graphs_for_top_k_beside_those_without():
    engines, table, devices = sweep_of(tiny_target()), staircase_table(4, 4), []
    for sampling in ({}, {"top_k": 4}, {"top_p": 0.7}, {}):
        wanted, queue = (make_requests(6, max_tokens=10, **sampling) for _ in range(2))
        run("none", wanted, batch=6)
        engine = engines.make(parse_arm("static"), EngineConfig(page=4), table, queue, 3)
        assert finish(engine, queue, 3) == [r.output for r in wanted]
        assert isinstance(engine.device, CapturedDevice) and engine.device.waits
        devices.append(engine.device)
    plain, few, likely, again = devices
    assert plain is again and few is likely and plain is not few


def test_engines_of_a_sweep_share_what_their_table_says_of_depths_and_rows():
    engines, table, other = sweep_of(tiny_target(), overlap=True), staircase_table(4, 4), staircase_table(4, 4)

    def prices(mode, of):
        engine = engines.make(parse_arm(mode), EngineConfig(page=4), of, make_requests(4), 3)
        assert getattr(engine.policy.policy, "prices", engine.prices) is engine.prices
        return engine.prices

    first = prices("compact", table)
    assert prices("compact", table) is first and prices("compact:latency", table) is first
    assert prices("static", table).depths == (4,) and prices("compact", other).table is other
    assert first.depths[0] == 0, "it may rest"


def test_engines_of_a_sweep_share_graphs_until_one_needs_more():
    engines, devices = sweep_of(tiny_target()), []
    table = staircase_table(4, 4)
    wanted = make_requests(6, max_tokens=10)
    run("none", wanted, batch=6)
    for mode, batch in (("none", 2), ("static", 2), ("compact", 3), ("static:1", 2), ("none", 3), ("compact", 4)):
        queue = make_requests(6, max_tokens=10)
        engine = engines.make(parse_arm(mode), EngineConfig(page=4), table, queue, batch)
        assert finish(engine, queue, batch) == [r.output for r in wanted]
        devices.append(engine.device)
    none, static, compact, one, again, more = devices
    assert static is compact and none is again
    assert len({id(d) for d in (none, static, one, more)}) == 4
