"""Timelines: rows hold their phases side by side, idle + busy = total, Perfetto's format, the picture, bad input."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from command import dsbench, refused, write_drafter
from engine_runs import make_requests
from matplotlib.image import imread
from overlapped_runs import overlapped
from replays import toy_trace, wide
from tiny import tiny_drafter, tiny_target
from toys import staircase_table

from dsbench.analysis.timeline import COLD, WARM, chrome_trace, view_of, view_rounds
from dsbench.errors import DsbenchError
from dsbench.results.acceptance_trace import save_trace
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.watch.timeline import Span, Timeline
from dsbench.views.plots_timeline import draw_timeline

HOST = {
    "overlapped": {"plan", "draft", "verify", "wait", "settle"},
    "padded": {"draft", "plan", "pack", "verify", "commit"},  # what is captured has no phases of its own
    "eager": {"draft", "plan", "pack", "verify", "accept", "commit"},
}


def plain(mode, batch, graphs):
    target, arm = tiny_target(), parse_arm(mode)
    drafter = tiny_drafter(target)
    planner = Planner(arm, block=4, rule="coupled", lag=0, table=staircase_table(batch, 4), calibrations=None)
    config = EngineConfig(page=4, prefill_chunk=7, graphs=graphs)
    return Engine(target, drafter, arm, planner, config, tokens=batch * 90, eos=frozenset())


def view(engine, *, batch, rounds, name="a run"):
    queue = make_requests(60, max_tokens=12)
    return view_rounds(engine, queue, batch=batch, rounds=rounds, name=name, device=engine.device.pool.device)


@pytest.fixture(scope="module")
def views():
    on = view(overlapped("compact", 2), batch=2, rounds=12, name="overlap on")
    return [on, view(plain("compact", 2, 2), batch=2, rounds=12, name="overlap off")]


@pytest.mark.parametrize("kind", ["overlapped", "padded", "eager"])
def test_phases_of_a_row_lie_side_by_side_and_idle_and_busy_are_all_there_is(kind):
    made = {"overlapped": lambda: overlapped("compact", 3), "padded": lambda: plain("compact", 3, 3)}
    shown = view(made.get(kind, lambda: plain("compact", 3, 0))(), batch=3, rounds=9)
    for row in ("host", "device"):
        spans = shown.row(row)
        assert spans[0].begin >= 0 and spans[-1].end <= shown.seconds
        assert all(a.end <= b.begin for a, b in pairwise(spans)) and all(s.end >= s.begin for s in spans)
    assert shown.idle + shown.busy == pytest.approx(shown.seconds, rel=1e-9)
    assert shown.idle_share * shown.seconds == pytest.approx(shown.idle_a_round * 9)
    device = shown.row("device")
    assert {s.name for s in device} == {"prefill", "draft", "verify"}
    for name in ("draft", "verify"):
        rounds = [s.round for s in device if s.name == name]
        assert rounds == list(range(rounds[0], rounds[0] + 9)) and rounds[0] == COLD + WARM + 2 * (kind == "overlapped")
    host = {s.name for s in shown.row("host")} - {"prefill"}
    assert host == HOST[kind]


def test_who_does_not_record_leaves_nothing_and_writes_the_same_text():
    texts = []
    for recorded in (False, True):
        engine, requests = overlapped("compact", 2), make_requests(4, max_tokens=10)
        timeline = Timeline(engine.device)
        engine.record(timeline if recorded else None)
        while requests and not all(r.finished for r in requests):
            engine.admit([r for r in requests if not r.finished and r not in engine.running][: 2 - len(engine.running)])
            engine.step()
        texts.append([r.output for r in requests])
        assert bool(timeline.spans()) == recorded
    assert texts[0] == texts[1]


class Ranges:
    """In place of torch.cuda.nvtx."""

    def __init__(self):
        self.open, self.seen = [], []

    def range_push(self, name):
        self.open.append(name)
        self.seen.append(name)

    def range_pop(self):
        self.open.pop()


@pytest.mark.parametrize("made", [lambda: overlapped("compact", 2), lambda: plain("compact", 2, 2)])
def test_nvtx_ranges_wrap_the_replays_of_every_phase_and_are_closed(made):
    engine, requests, timeline = made(), make_requests(6, max_tokens=8), Timeline(torch.device("cpu"))
    timeline._nvtx = ranges = Ranges()
    engine.record(timeline)
    run_closed_loop(engine, requests, concurrency=2)
    assert not ranges.open and {name.split(" ")[0] for name in ranges.seen} >= {"prefill", "draft", "verify"}
    with pytest.raises(ZeroDivisionError), timeline.span("draft", device=True):
        1 / 0  # noqa: B018
    assert not ranges.open


def test_requests_that_end_at_once_and_too_few_of_them():
    short = make_requests(80, max_tokens=1)
    with pytest.raises(DsbenchError, match="ended before"):
        view_rounds(plain("static", 2, 0), short, batch=2, rounds=3, name="x", device=torch.device("cpu"))
    for made in (plain("static", 2, 0), overlapped("static", 2)):
        shown = view_rounds(
            made, make_requests(80, max_tokens=2), batch=2, rounds=3, name="x", device=torch.device("cpu")
        )
        assert shown.idle + shown.busy == pytest.approx(shown.seconds) and shown.rounds == 3


def test_gaps_are_what_no_phase_covers_and_a_view_ends_with_its_rounds():
    def device(number, begin, end, name="verify"):
        return Span(row="device", name=name, round=number, begin=begin, end=end)

    host = Span(row="host", name="settle", round=0, begin=0.5, end=2.5)
    spans = [device(0, 0.0, 1.0), device(1, 1.5, 2.0, "draft"), device(1, 2.0, 3.0), device(2, 4.0, 5.0), host]
    two = view_of([*spans, device(3, 5.0, 6.0)], first=1, rounds=2, name="x")
    assert two.seconds == 4.0 and two.gaps == [(0.0, 0.5), (2.0, 3.0)]
    assert (two.idle, two.busy, two.idle_a_round, two.idle_share) == (1.5, 2.5, 0.75, 0.375)
    assert [(s.begin, s.end) for s in two.row("host")] == [(0.0, 1.5)]


def test_the_trace_is_in_perfettos_format(views):
    body = json.loads(json.dumps(chrome_trace(views, {"arm": "compact"})))
    events = body["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"} and body["displayTimeUnit"] == "ms"
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"overlap on", "overlap off"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(threads.values()) == {"host", "device", "device idle"} and len(threads) == 6
    timed = [e for e in events if e["ph"] == "X"]
    for e in timed:
        assert e["ts"] >= 0 and e["dur"] >= 0 and math.isfinite(e["ts"] + e["dur"]) and (e["pid"], e["tid"]) in threads
        assert e["name"] and e["cat"] == threads[e["pid"], e["tid"]]
    for row in threads:
        mine = [e for e in timed if (e["pid"], e["tid"]) == row]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(sorted(mine, key=lambda e: e["ts"])))
    numbers = body["otherData"]["views"]["overlap on"]
    assert numbers["busy_seconds"] + numbers["idle_seconds"] == pytest.approx(numbers["seconds"])
    idle = [e["dur"] for e in timed if e["pid"] == 1 and e["name"] == "idle"]
    assert sum(idle) == pytest.approx(numbers["idle_seconds"] * 1e6, abs=0.1)


def test_the_picture_has_both_runs_and_their_idle_sums(views, tmp_path):
    paths = draw_timeline(views, tmp_path, ["Virtual GPU; toy"], "RANDOM WEIGHTS")
    assert [p.name for p in paths] == ["timeline.png", "timeline.svg"]
    pixels = imread(paths[0])[..., :3]
    assert pixels.shape[1] == 1605 and 0.01 < (pixels < 0.98).any(-1).mean() < 0.7
    svg = paths[1].read_text()
    for shown in views:
        assert f"{shown.idle * 1e3:.3f} ms idle in 12 rounds" in svg and f"{shown.idle_share:.1%}" in svg
    for text in ("overlap on", "overlap off", "RANDOM WEIGHTS", "Virtual GPU", "device", "host", "time [ms]"):
        assert text in svg


def test_the_command_on_a_cpu_shows_the_eager_phases(model, tmp_path):  # noqa: F811
    base = ("trace", "--target", str(model), "--drafter", str(write_drafter(tmp_path / "drafter")))
    done = dsbench(*base, "--steps", "3", "--max-tokens", "16", "--out", "t", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "eager engine" in done.stdout and "ms a round" in done.stdout and "timeline.png" in done.stdout
    body = json.loads((tmp_path / "t" / "timeline.json").read_text())
    assert body["otherData"]["labels"]["random_weights"] is False and body["otherData"]["batch"] == 1
    svg = (tmp_path / "t" / "timeline.svg").read_text()
    assert "eager engine" in svg and "arm static, R=1" in svg and "torch" in svg


def test_shape_targets_run_with_random_drafts_or_a_trace_and_say_so(shape, tmp_path):  # noqa: F811
    base = ("trace", "--steps", "1", "--max-tokens", "20", "--target", "shape:tiny")
    done = dsbench(*base, "--out", "r", home=tmp_path)
    assert done.returncode == 0, done.stderr
    svg = (tmp_path / "r" / "timeline.svg").read_text()
    assert "RANDOM WEIGHTS" in svg and "drafts are random" in svg
    save_trace(wide(toy_trace()), tmp_path / "a.parquet")
    done = dsbench(*base, "--trace", "a.parquet", "--workload", "tiny", "--out", "s", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "REPLAYED ACCEPTANCE" in (tmp_path / "s" / "timeline.svg").read_text()


def test_bad_input_is_one_line(model, tmp_path):  # noqa: F811
    base = ("trace", "--target", str(model), "--drafter", str(write_drafter(tmp_path / "drafter")))
    refused(dsbench(*base, "--batch", "0", home=tmp_path), 2, "batch must be >= 1")
    refused(dsbench(*base, "--steps", "0", home=tmp_path), 2, "steps must be >= 1")
    refused(dsbench(*base, "--mode", "nope", home=tmp_path), 2, "nope")
    refused(dsbench(*base, "--mode", "static:9", home=tmp_path), 2, "block holds 4 drafts")
    refused(dsbench(*base, "--mode", "compact:oracle", home=tmp_path), 2, "recorded text")
    refused(dsbench(*base, "--trace", "a.parquet", home=tmp_path), 2, "acceptance of its own")
    refused(dsbench(*base, "--acceptance", "x", home=tmp_path), 2, "--trace FILE")
    refused(dsbench(*base, "--workload", "nope", home=tmp_path), 2, "nope")
    (tmp_path / "file").touch()
    refused(dsbench(*base, "--out", "file", home=tmp_path), 2, "cannot write to file")
    refused(dsbench(*base, "--device", "cuda", home=tmp_path), 6, "no CUDA device")
    absent = ("trace", "--target", "shape:smollm2-135m", "--trace", "absent.parquet")
    refused(dsbench(*absent, home=tmp_path), 2, "absent.parquet")
