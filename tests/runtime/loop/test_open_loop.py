"""Requests that come by a schedule: closed forms on a virtual clock, and real devices, which idle and never admit
early."""

from __future__ import annotations

import numpy as np
import pytest
from engine_runs import make_requests, run
from overlapped_runs import overlapped
from staircase_run import BLOCK, MATCH, STAIR, TIERS, VERIFY, tier_of
from tiny import tiny_drafter, tiny_target
from toys import staircase_table
from virtual_engine import VirtualEngine, toy_requests

from dsbench.analysis.slo import goodput, parse_slo
from dsbench.results.metrics import cell_summary
from dsbench.results.tables import tables_of
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.build import eager_engine
from dsbench.runtime.loop.drive import run_open_loop

PREFILL, ROUND = 0.01, 0.1


def ran(arrivals, lengths, *, limit, measured=None, seconds=lambda n: ROUND, delivers=(1,)):
    engine = VirtualEngine(prefill=PREFILL, seconds=seconds, delivers=delivers)
    requests = toy_requests(lengths)
    wanted = frozenset(measured if measured is not None else range(len(lengths)))
    came = run_open_loop(engine, requests, arrivals, concurrency=limit, until=wanted)
    return engine, tables_of(engine, requests, wanted, "coupled", came)


def summed(tables, limit):
    return cell_summary(*tables.values(), batch=limit, block=0, open_loop=True)


def test_a_burst_by_hand():
    """Two come at 0, one at .1, one at 1; two at a time; 3 tokens each, one a round.

    Prompts end at .01 and .02, rounds at .12 and .22; the third waits until then: first token .23, rounds .33 and .43.
    Then nobody is there until 1.
    """
    engine, tables = ran([0, 0, 0.1, 1.0], [3, 3, 3, 3], limit=2)
    done = tables["requests"].sort_values("request")
    assert done["arrived"].tolist() == [0, 0, 0.1, 1.0]
    assert done["admitted"].tolist() == pytest.approx([0, 0, 0.22, 1.0])
    assert done["ttft"].tolist() == pytest.approx([0.01, 0.02, 0.13, 0.01])
    assert done["e2e"].tolist() == pytest.approx([0.22, 0.22, 0.33, 0.21])
    assert done["tpot"].tolist() == pytest.approx([0.105, 0.1, 0.1, 0.1])
    assert done["itl_max"].tolist() == pytest.approx([0.11, 0.1, 0.1, 0.1])
    assert engine.rested == pytest.approx(1 - 0.43)
    rounds = [s.seconds - s.prefill_seconds for s in engine.steps]
    assert rounds == pytest.approx([ROUND] * 6), "no round is charged for the pause"
    found = goodput(done, parse_slo("ttft:50ms"), batch=2, open_loop=True, throughput=9.0)
    assert found["goodput"]["value"] == 3 / 4 and found["goodput_tokens"]["value"] == pytest.approx(9 * 9 / 12)
    found = goodput(done, parse_slo("ttft:50ms, tpot:102ms"), batch=2, open_loop=True, throughput=9.0)
    assert found["goodput"]["value"] == 2 / 4
    body = summed(tables, 2)
    assert body["queue_wait"] == pytest.approx(0.12 / 4) and body["offered_rate"] == pytest.approx(3)


@pytest.mark.parametrize("interval", [0.5, 1.0])
def test_evenly_spaced_requests_that_fit_wait_for_nothing(interval):
    """D/D/1 below capacity: 5 tokens take .01 + 4 x .1 = .41 s, one comes every `interval`."""
    count, before = 24, 4
    times = [i * interval for i in range(count + before + 3)]
    _, tables = ran(times, [5] * len(times), limit=1, measured=range(before, before + count))
    body = summed(tables, 1)
    for point in ("p50", "p95"):
        assert body[f"ttft_{point}"]["value"] == pytest.approx(PREFILL)
        assert body[f"tpot_{point}"]["value"] == body[f"itl_{point}"]["value"] == pytest.approx(ROUND)
        assert body[f"e2e_{point}"]["value"] == pytest.approx(0.41)
    assert body["ttft_p99"] is None, "24 requests have no 99th percentile"
    assert body["queue_wait"] == pytest.approx(0, abs=1e-9) and body["flags"] == []
    assert body["throughput"]["value"] == pytest.approx(5 / interval)
    assert body["offered_rate"] == pytest.approx(1 / interval) == pytest.approx(body["served_rate"])


def test_requests_that_come_faster_than_they_are_served_wait_ever_longer():
    """D/D/1 above capacity: request i starts at i x s, having come at i x a. The wait counts, and a flag says so."""
    a, s, count, before = 0.25, 0.41, 120, 8
    times = [i * a for i in range(count + before + 3)]
    _, tables = ran(times, [5] * len(times), limit=1, measured=range(before, before + count))
    body, i = summed(tables, 1), np.arange(before, before + count)
    waits = i * (s - a)
    assert body["queue_wait"] == pytest.approx(waits.mean())
    for point, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert body[f"ttft_{point}"]["value"] == pytest.approx(np.quantile(waits + PREFILL, share))
        assert body[f"e2e_{point}"]["value"] == pytest.approx(np.quantile(waits + s, share))
        assert body[f"tpot_{point}"]["value"] == pytest.approx(ROUND), "queueing is no part of the time a token"
    assert body["offered_rate"] == pytest.approx(1 / a) and body["served_rate"] == pytest.approx(1 / s, rel=0.01)
    assert "served 2.44 of 4 requests a second" in body["flags"][0]
    good = goodput(tables["requests"], parse_slo("e2e:10s"), batch=1, open_loop=True, throughput=5 / s)
    share = np.mean(waits + s <= 10)
    assert 0.3 < share < 0.6 and good["goodput"]["value"] == pytest.approx(share)
    assert good["goodput_tokens"]["value"] == pytest.approx(5 / s * share)


@pytest.mark.parametrize("limit", [4, 2])
def test_bursts_on_a_staircase_of_step_costs(limit):
    """Four at once every 2 s; rounds deliver 5, 1, 3 tokens at the staircase's price; 28 tokens take 9 rounds.

    At a limit of 4 a burst is one wave. At 2 its second half starts where the first ends: it waits for the whole wave.
    """
    every, bursts, delivers, rows = 2.0, 40, [match + 1 for match in MATCH], BLOCK + 1
    prices = {n: VERIFY + STAIR * TIERS.index(tier_of(n * rows)) for n in (1, 2, 4)}
    times = [every * (i // 4) for i in range(4 * bursts)]
    _, tables = ran(times, [28] * len(times), limit=limit, seconds=prices.__getitem__, delivers=delivers)
    body, moving = summed(tables, limit), 9 * prices[limit]
    wave = limit * PREFILL + moving
    first = [wait + (i + 1) * PREFILL for wait in np.arange(4 // limit) * wave for i in range(limit)]
    last = np.repeat(np.arange(1, 4 // limit + 1) * wave, limit)
    after = [moving + (limit - 1 - i) * PREFILL for i in range(limit)] * (4 // limit)
    for point, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert body[f"ttft_{point}"]["value"] == pytest.approx(np.quantile(first * bursts, share))
        assert body[f"e2e_{point}"]["value"] == pytest.approx(np.quantile(np.tile(last, bursts), share))
        assert body[f"tpot_{point}"]["value"] == pytest.approx(np.quantile(after * bursts, share) / 27)
    assert body["user_speed"]["value"] == pytest.approx(4 * 27 / sum(after))
    assert body["tau"]["value"] == pytest.approx(3) and body["accepted"]["value"] == pytest.approx(2)
    assert body["queue_wait"] == pytest.approx(0 if limit == 4 else wave / 2)
    assert body["step_seconds"]["p50"] == pytest.approx(prices[limit])
    target = float(np.median(first))
    found = goodput(
        tables["requests"], parse_slo(f"ttft:{target * 1e3:.6f}ms"), batch=limit, open_loop=True, throughput=56.0
    )
    assert found["goodput"]["value"] == 0.5 and found["goodput_tokens"]["value"] == pytest.approx(28)


def test_an_engine_that_stalls_is_charged_for_those_who_came_meanwhile():
    """No coordinated omission: one round takes 2 s; ten requests come during it and count from when they came."""
    stall = iter([2.0])
    times = [0.0, *(0.1 * i for i in range(1, 11))]
    _, tables = ran(times, [2] * 11, limit=11, seconds=lambda n: next(stall, ROUND))
    done = tables["requests"].sort_values("request")
    wanted = [2.01 - 0.1 * i + 0.01 * i for i in range(1, 11)]  # the stall ends at 2.01; prompts one after another
    assert done["ttft"].tolist()[1:] == pytest.approx(wanted)


def test_tokens_of_a_round_come_together():
    """Rounds of 3, 1, 2 tokens: waits 0, 0, .1; .1; 0, .1; the last round is cut at the limit."""
    _, tables = ran([0.0], [9], limit=1, delivers=(3, 1, 2))
    own = tables["requests"].iloc[0]
    assert own["tpot"] == pytest.approx(0.4 / 8)
    waits = [0, 0, 0.1, 0.1, 0, 0.1, 0, 0.1]
    assert own[["itl_p50", "itl_p95", "itl_max"]].tolist() == pytest.approx([*np.quantile(waits, [0.5, 0.95]), 0.1])
    body = summed(tables, 1)
    assert body["itl_p50"]["value"] == pytest.approx(0.05) and body["itl_p50"]["n"] == 8 and body["itl_p95"] is None


def test_what_was_not_seen_is_none():
    """One request has no rate and no interval; answers of one token have no time a token, and no round."""
    body = summed(ran([0.5], [5], limit=1)[1], 1)
    assert body["offered_rate"] is None and body["served_rate"] is None and body["flags"] == []
    assert body["throughput"]["value"] == pytest.approx(5 / 0.41) and body["full_steps"] is None
    body = summed(ran([0.0, 1.0, 2.0], [1, 1, 1], limit=2)[1], 2)
    assert body["tpot_p50"] is body["itl_p50"] is body["speed_by_mean_tpot"] is body["tau"] is None
    assert body["ttft_p50"]["value"] == body["e2e_p50"]["value"] == pytest.approx(PREFILL)
    assert body["throughput"]["value"] == pytest.approx(3 / 3) and body["served_rate"] == pytest.approx(1)


class Clock:
    """Every look at it takes a tenth of a millisecond; sleeping is free of noise."""

    def __init__(self):
        self.at, self.slept = 100.0, 0.0

    def look(self):
        self.at += 1e-4
        return self.at

    def sleep(self, seconds):
        self.slept += seconds
        self.at += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("time.perf_counter", made.look)
    monkeypatch.setattr("time.sleep", made.sleep)
    return made


def waiting_engine(mode, requests, batch):
    target = tiny_target()
    config = EngineConfig(page=4, prefill_chunk=7)
    return eager_engine(
        target,
        tiny_drafter(target),
        parse_arm(mode),
        config,
        requests,
        slots=batch,
        tokens=batch * 80,
        table=staircase_table(batch, 4),
    )


@pytest.mark.parametrize("loop", ["waiting", "overlapped"])
@pytest.mark.parametrize("mode", ["static", "compact"])
def test_real_devices_admit_nobody_early_and_charge_no_round_for_a_pause(loop, mode, clock):
    wanted = make_requests(7, temperature=0.8, max_tokens=12)
    run("none", wanted, batch=7)
    requests = make_requests(7, temperature=0.8, max_tokens=12)
    engine = waiting_engine(mode, requests, 2) if loop == "waiting" else overlapped(mode, 2)
    arrivals, running = [0.0, 0.0, 0.0, 0.004, 5.0, 5.001, 60.0], []
    came = run_open_loop(engine, requests, arrivals, concurrency=2, on_step=lambda r: running.append(r.requests))
    assert [r.output for r in requests] == [r.output for r in wanted]
    assert max(running) == 2
    tables = tables_of(engine, requests, frozenset(range(7)), "coupled", came)
    done = tables["requests"].sort_values("request").reset_index()
    assert (done["admitted"] >= done["arrived"]).all() and done["admitted"].is_monotonic_increasing
    assert done["arrived"].diff()[1:].tolist() == pytest.approx(np.diff(arrivals).tolist())
    assert (done["admitted"] - done["arrived"])[[4, 6]].max() < 0.002, "it woke up for them"
    assert clock.slept > 59 and tables["steps"]["seconds"].max() < 1 and tables["steps"]["idle_seconds"].max() < 1
    assert (done["first_token"] > done["admitted"]).all() and (done["e2e"] < 1).all()
    per_request = tables["rounds"].groupby("request")["delivered"].sum()
    assert (per_request.to_numpy() == done["output_tokens"].to_numpy() - 1).all()
    assert (done["itl_max"] > 0).all()
    engine.close()
