"""Padded passes: the graphs' executor, uncaptured on a CPU, writes what the eager one writes, whatever lies around."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from engine_runs import make_requests, plain_texts, run
from tiny import tiny_drafter, tiny_target
from toys import ToyDrafter, ToyTarget, staircase_table

from dsbench.deploy.engines import Engines
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.batch import pack_padded, pack_rows
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.graphs import Tiers

MODES = ["none", "static", "static:2", "no-trim", "compact", "cap-accept", "mtp:2"]


def config(graphs, **changes):
    return EngineConfig(page=4, prefill_chunk=7, graphs=graphs, **changes)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", MODES)
def test_graphs_write_the_eager_text(mode, temperature):
    for batch, every in ((1, 4), (5, 1)):
        requests = make_requests(7, temperature=temperature, max_tokens=10)[::every]
        engine = run(mode, requests, batch=batch, config=config(batch))
        assert [r.output for r in requests] == plain_texts(7, temperature, 10)[::every]
        for step in engine.steps:
            assert step.misses == 0
            assert step.tier in engine.executor.tiers.rows and step.tier >= step.rows
            assert mode in ("static", "static:2", "mtp:2", "cap-accept") or step.padding == step.tier - step.rows


@pytest.mark.parametrize("mode", ["static", "compact", "cap-accept"])
def test_graphs_read_and_leave_what_the_eager_passes_do(mode):
    """Every law of the toy target is a function of the ids that it finds in the pages."""
    records = []
    for graphs in (0, 3):
        requests = make_requests(6, temperature=0.9, max_tokens=14)
        for request in requests:
            request.prompt_ids = [t % 16 for t in request.prompt_ids]
        kinds = {"target": ToyTarget(16), "drafter": ToyDrafter(16, 4)}
        engine = run(mode, requests, batch=3, config=config(graphs, draft="full"), **kinds)
        records.append(
            ([r.output for r in requests], [(r.window, r.accepted, r.ceiling, r.drafts) for r in engine.rounds])
        )
    assert records[0] == records[1]


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
        run(mode, requests, batch=3, config=config(3))
        assert [r.output for r in requests] == [r.output for r in wanted]


@pytest.mark.parametrize("changes", [{"top_k": 5, "top_p": 0.8}, {}], ids=["top-k", "residual"])
def test_what_no_graph_fits_runs_eagerly_and_is_counted(changes):
    rule = "coupled" if changes else "residual"
    texts = []
    for graphs in (0, 2):
        requests = make_requests(3, temperature=0.9, max_tokens=10, **changes)
        engine = run("static", requests, batch=2, rule=rule, config=config(graphs, rule=rule))
        texts.append([r.output for r in requests])
        assert [s.misses for s in engine.steps] == [2 if graphs else 0] * len(engine.steps)
    assert texts[0] == texts[1]


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
def test_graphs_that_truncate_write_the_eager_text(mode, bounded_texts):
    for batch, every in ((1, 3), (5, 1)):
        requests = mixed_bounds()[::every]
        engine = run(mode, requests, batch=batch, config=config(batch, truncates=True))
        assert [r.output for r in requests] == bounded_texts[::every]
        assert all(step.misses == 0 for step in engine.steps)


def test_padded_rows_are_the_packed_ones_and_nobodys():
    anchor, drafts = torch.tensor([7, 8, 9, 0]), torch.arange(12).view(4, 3)
    verified, context = torch.tensor([2, 0, 3, 1]), torch.tensor([5, 6, 7, 0], dtype=torch.int32)
    pages = torch.arange(8, dtype=torch.int32).view(4, 2)
    for live in (1, 2, 3):
        real = pack_rows(anchor[:live], drafts[:live], verified[:live], context[:live], pages[:live])
        for rows in (real.rows, real.rows + 5):
            made = pack_padded(anchor, drafts, verified, context, pages, torch.tensor([live]), rows, 8)
            where = pages.long()[real.request, real.positions // 8] * 8 + real.positions % 8
            assert made.slots.tolist() == where.tolist() + [-1] * (rows - real.rows)
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


def test_an_executor_serves_one_engine_after_another():
    """As a sweep reuses captured graphs: other arms of one depth, fewer requests, requests left running before."""
    wanted = make_requests(6, max_tokens=12)
    run("none", wanted, batch=6)
    target = tiny_target()
    kinds = {"target": target, "drafter": tiny_drafter(target)}
    first = run("static", make_requests(6, max_tokens=12), batch=4, config=config(4), **kinds)
    first.admit(make_requests(2, max_tokens=12))
    first.step()
    assert first.running
    first.close()
    for mode, batch in (("compact", 4), ("no-trim", 2), ("cap-accept", 3)):
        requests = make_requests(6, max_tokens=12)
        engine = run(mode, requests, batch=batch, config=config(4), executor=first.executor, **kinds)
        assert engine.executor is first.executor and all(s.misses == 0 for s in engine.steps)
        assert [r.output for r in requests] == [r.output for r in wanted]


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
    engines, table, executors = sweep_of(tiny_target()), staircase_table(4, 4), []
    for sampling in ({}, {"top_k": 4}, {"top_p": 0.7}, {}):
        wanted, queue = (make_requests(6, max_tokens=10, **sampling) for _ in range(2))
        run("none", wanted, batch=6)
        engine = engines.make(parse_arm("static"), config(0), table, queue, 3)
        run_closed_loop(engine, queue, concurrency=3)
        engine.close()
        assert [r.output for r in queue] == [r.output for r in wanted]
        assert all(s.misses == 0 for s in engine.steps)
        executors.append(engine.executor)
    plain, few, likely, again = executors
    assert plain is again and few is likely and plain is not few


def test_overlapped_engines_of_a_sweep_share_what_their_table_says_of_depths_and_rows():
    engines, table, other = sweep_of(tiny_target(), overlap=True), staircase_table(4, 4), staircase_table(4, 4)

    def budgets(mode, of):
        return engines.make(parse_arm(mode), config(0), of, make_requests(4), 3).steering.budgets

    first = budgets("compact", table)
    assert budgets("compact", table) is first and budgets("static", table) is None
    assert budgets("compact:latency", table) is not first and budgets("compact", other).table is other


def test_engines_of_a_sweep_share_graphs_until_one_needs_more():
    engines, executors = sweep_of(tiny_target()), []
    table = staircase_table(4, 4)
    wanted = make_requests(6, max_tokens=10)
    run("none", wanted, batch=6)
    for mode, batch in (("none", 2), ("static", 2), ("compact", 3), ("static:1", 2), ("none", 3), ("compact", 4)):
        queue = make_requests(6, max_tokens=10)
        engine = engines.make(parse_arm(mode), config(0), table, queue, batch)
        run_closed_loop(engine, queue, concurrency=batch)
        engine.close()
        engine.device.pool.check()
        assert [r.output for r in queue] == [r.output for r in wanted]
        assert all(s.misses == 0 and s.tier in engine.executor.tiers.rows for s in engine.steps)
        executors.append(engine.executor)
    none, static, compact, one, again, more = executors
    assert static is compact and none is again
    assert len({id(e) for e in (none, static, one, more)}) == 4
