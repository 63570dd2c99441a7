"""A trace of one target drives what is accepted on another: matches, windows, texts, files, published levels."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import dsbench, refused
from engine_runs import make_requests, run
from overlapped_runs import finish, overlapped
from replays import BLOCK, EVENT, VOCAB, record, recorded, replayed, toy_trace, wide
from tiny import tiny_target
from toys import ToyDrafter, ToyTarget

from dsbench.deploy.curves import published, published_curve
from dsbench.deploy.rescale import rescaled
from dsbench.drafting.record_trace import matched
from dsbench.errors import UsageError
from dsbench.profiles.calibration import Calibration, CalibrationSet, Quality
from dsbench.results.acceptance_trace import Trace, TraceRow, load_trace, save_trace
from dsbench.results.tables import later_ceiling
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.draft_trace import DraftTrace
from dsbench.runtime.drafters.random import random_drafter


def test_the_recorder_writes_plain_decodings_text_and_judges_every_anchor():
    trace = toy_trace()
    canonical, other = (make_requests(8, vocab=VOCAB, max_tokens=20) for _ in range(2))
    run("none", canonical, batch=8, target=ToyTarget(VOCAB), drafter=ToyDrafter(VOCAB, BLOCK))
    assert [list(row.output) for row in trace.rows] == [r.output for r in canonical]
    engine = run("static", other, batch=8, target=ToyTarget(VOCAB), drafter=ToyDrafter(VOCAB, BLOCK))
    seen = 0
    for done in engine.rounds:
        drafts = trace.rows[done.request].drafts
        at, ceiling = done.output_index - 1, later_ceiling(done, other[done.request], "coupled")
        if ceiling > 0:
            assert drafts.match[at] == ceiling - 1 and not drafts.censored[at]
            seen += 1
        else:
            assert drafts.match[at] == drafts.left[at] and drafts.censored[at]
        np.testing.assert_array_equal(drafts.logits[at], np.float32(done.logits))
    assert seen > 50
    assert matched((1, 2, 3), (1, 2)) == 2 and matched((1, 2), (1, 2, 3)) == 2 and matched((1, 2), (9,)) == 0


@pytest.mark.parametrize("mode", ["static", "static:2", "no-trim", "compact", "cap-accept", "compact:oracle"])
@pytest.mark.parametrize("captured", [False, True])
def test_rounds_accept_what_the_trace_says_on_a_random_target(mode, captured):
    trace = wide(toy_trace())
    target = tiny_target(seed=3)
    queue = replayed(trace, target)
    if captured:
        engine = overlapped(mode, 3, recorded=20, replayed=True, lag=LAG)
        finish(engine, queue, 3)
    else:
        config = EngineConfig(page=4, prefill_chunk=7)
        engine = run(mode, queue, batch=3, target=target, drafter=random_drafter(target), config=config)
    assert [r.output for r in queue] == [list(row.output) for row in trace.rows]
    assert len(engine.rounds) > 20
    some = 0
    for done in engine.rounds:
        drafts = trace.rows[done.request].drafts
        at = done.output_index - 1
        match = int(drafts.match[at])
        assert done.accepted == min(match, done.window)
        ceiling = later_ceiling(done, queue[done.request], "coupled")
        if ceiling > 0:
            assert ceiling == match + 1
        if done.drafts:
            assert done.token_free_logits == tuple(drafts.token_free[at].tolist())
        else:  # a no-draft round asks no head
            assert np.isnan(done.token_free_logits).all()
        some += match > 0 and ceiling > 0
        assert done.flips == 0
    assert sum(s.flips for s in engine.steps) == 0
    assert some > 10 or mode == "static:2"


def test_plain_decoding_commits_the_text_too_and_shorter_limits_cut_it():
    trace, target = toy_trace(), tiny_target(seed=3)
    queue = replayed(trace, target, tokens=9, size=11)
    engine = run("none", queue, batch=4, target=target)
    assert [r.output for r in queue] == [list(trace.rows[i % 8].output[:9]) for i in range(11)]
    assert [r.name for r in queue[7:10]] == ["p7", "p0#1", "p1#1"]
    assert sum(s.flips for s in engine.steps) == 0


@pytest.mark.parametrize("draft", ["planned", "full"])
@pytest.mark.parametrize("mode", ["compact", "compact:early-stop", "cap-accept", "compact:threshold=0.4"])
def test_a_replay_makes_the_windows_of_the_run_it_was_recorded_from(mode, draft):
    trace = toy_trace()
    mine, steps = [], []
    kinds = {"drafter": ToyDrafter(VOCAB, BLOCK), "draft": draft, "batch": 4}
    for queue, target in (
        (make_requests(8, vocab=VOCAB, max_tokens=20), ToyTarget(VOCAB)),
        (replayed(trace, ToyTarget(VOCAB)), ToyTarget(VOCAB, salt=9)),  # another model
    ):
        if target.salt == 9:  # token-free confidences are all zero in the toy drafter's own passes
            for request in queue:
                blind = np.zeros_like(request.trace.token_free)
                request.trace = DraftTrace(match=request.trace.match, logits=request.trace.logits, token_free=blind)
            kinds["drafter"] = ToyDrafter(VOCAB, BLOCK, salt=5)
        engine = run(mode, queue, target=target, **kinds)
        mine.append([(r.request, r.output_index, r.window, r.verified, r.accepted, r.ceiling) for r in engine.rounds])
        steps.append([(s.rows, s.tier, s.budget, s.context, s.delivered) for s in engine.steps])
    assert mine[0] == mine[1] and steps[0] == steps[1]


def test_captured_rounds_replay_what_eager_ones_do():
    trace, target = wide(toy_trace()), tiny_target()
    config = EngineConfig(page=4, prefill_chunk=512, draft="full")
    queue, again = (replayed(trace, target, size=12) for _ in range(2))
    eager = run("compact", queue, batch=4, target=target, drafter=random_drafter(target), config=config)
    captured = overlapped("compact", 4, recorded=20, replayed=True, full=True, lag=1)
    finish(captured, again, 4)
    one, other = (
        {(r.request, r.output_index): (r.window, r.accepted, r.drafts, r.logits) for r in engine.rounds}
        for engine in (eager, captured)
    )
    same = one.keys() & other.keys()
    assert len(same) > 40
    assert {key: one[key] for key in same} == {key: other[key] for key in same}


def test_recorded_confidences_are_calibrated_ones():
    nothing = Quality(conditional=(), prefix=())
    maps = [
        Calibration(
            method="platt",
            head=head,
            event=EVENT,
            scale=(2.0,) * BLOCK,
            offset=offset,
            prior=(0.5,) * BLOCK,
            n=1,
            scored_on="fit",
            before=nothing,
            after=nothing,
        )
        for head, offset in (("conditioned", (0.5,) * BLOCK), ("free", (-1.0,) * BLOCK))
    ]
    raw, made = toy_trace(), recorded(calibrations=CalibrationSet(entries=tuple(maps)))
    for before, after in zip(raw.rows, made.rows, strict=True):
        np.testing.assert_allclose(after.drafts.logits, 2 * before.drafts.logits + 0.5, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(after.drafts.token_free, 2 * before.drafts.token_free - 1, rtol=1e-6, atol=1e-6)
    prior = raw.calibrations().choose("coupled", 1.0)
    assert prior.exact and prior.calibration.scale == (1.0,) * BLOCK
    first = [m >= 1 for row in raw.rows for m in row.drafts.match]
    assert prior.calibration.prior[0] == pytest.approx(np.mean(first))


def test_a_trace_survives_its_file(tmp_path):
    trace, path = toy_trace(), tmp_path / "t.parquet"
    save_trace(trace, path)
    read = load_trace(path)
    assert (read.block, read.event, read.provenance) == (trace.block, trace.event, trace.provenance)
    for old, new in zip(trace.rows, read.rows, strict=True):
        assert (new.name, new.workload, new.prompt, new.output) == (old.name, old.workload, old.prompt, old.output)
        np.testing.assert_array_equal(new.drafts.match, old.drafts.match)
        np.testing.assert_allclose(new.drafts.logits, old.drafts.logits, rtol=1e-3)
    table = pq.read_table(path)
    assert table["prompt_tokens"].to_pylist() == [len(row.prompt) for row in trace.rows]
    assert table["censored"].to_pylist() == [row.drafts.censored.tolist() for row in trace.rows]
    assert [p.name for p in tmp_path.iterdir()] == ["t.parquet"]


def long_trace(block: int = 7) -> Trace:
    """Confidences that drift along the text, as hard and easy passages would make them; 300 texts of 81 tokens."""
    rng = np.random.default_rng(1)
    rows = []
    for number in range(300):
        level = np.convolve(rng.normal(0, 3, 99), np.ones(20) / 20, "valid")[:, None]
        logits = (level + rng.normal(0, 1, (80, block))).astype(np.float32)
        drafts = DraftTrace(match=np.zeros(80, np.int8), logits=logits, token_free=logits + 1)
        rows.append(TraceRow(name=f"p{number}", workload="tiny", prompt=(1,), output=(2,) * 81, drafts=drafts))
    return Trace(block=block, event=EVENT, provenance={"target": "drawn"}, rows=tuple(rows))


@pytest.mark.parametrize("name", ["dspark-qwen3-4b-chat", "dflash-qwen3-4b-math", "dspark-qwen3-8b-speed-bench"])
def test_rescaling_hits_the_published_acceptance_in_rounds_that_verify_the_whole_block(name):
    trace = rescaled(long_trace(), name)
    curve, words = published_curve(name, 7)
    assert words in trace.label and "replayed from drawn" in trace.label
    trials, passed, expected = np.zeros(7), np.zeros(7), np.zeros((2, 7))
    for row in trace.rows:
        at, d = 0, row.drafts
        while at < len(d.match):
            m, seen = int(d.match[at]), int(min(7, d.left[at]))
            reached = np.arange(7) < min(m + 1, seen)
            trials += reached
            passed += np.arange(7) < m
            for head, logits in enumerate((d.logits, d.token_free)):
                expected[head] += reached / (1 + np.exp(-logits[at].astype(np.float64)))
            at += m + 1
    error = np.sqrt(curve * (1 - curve) / trials)
    assert (trials > 300).all()
    assert (abs(passed / trials - curve) < 4 * error).all(), (passed / trials, curve)
    for head in expected:
        assert (abs(head / trials - curve) < 4 * error).all(), (head / trials, curve)
    again = rescaled(long_trace(), name)
    assert all((a.drafts.match == b.drafts.match).all() for a, b in zip(trace.rows, again.rows, strict=True))
    spread = [np.std([r.drafts.logits[:, 0] for r in t.rows]) for t in (trace, long_trace())]
    assert spread[0] == pytest.approx(spread[1], rel=1e-4), "an offset changed more than the level"


def test_published_curves_give_the_published_lengths():
    lengths = {"dspark-qwen3-4b-math": 5.57, "dspark-qwen3-4b-code": 5.12, "dspark-qwen3-4b-chat": 3.49}
    lengths |= {name: p.length for name, p in published().items() if p.length}
    assert len(lengths) > 8
    for name, length in lengths.items():
        curve, words = published_curve(name, 7)
        assert 1 + np.cumprod(curve).sum() == pytest.approx(length, abs=0.05)
        assert ("geometric" in words) == (not published()[name].conditional)
    with pytest.raises(UsageError, match="blocks of 7, the trace has blocks of 8"):
        published_curve("dspark-qwen3-4b-math", 8)


def test_a_damaged_trace_is_refused():
    drafts = toy_trace().rows[0].drafts
    with pytest.raises(ValueError, match="what is left"):
        replace(drafts, match=drafts.match + np.int8(BLOCK))
    with pytest.raises(ValueError, match="need match"):
        replace(drafts, match=drafts.match[1:])
    with pytest.raises(ValueError, match="finite"):
        replace(drafts, token_free=drafts.token_free * np.nan)
    with pytest.raises(ValueError, match="anchors"):
        replace(toy_trace().rows[0], output=(1, 2))


def test_record_then_sweep_a_shape_then_plot(model, tmp_path, request, unpainted):  # noqa: F811
    done = record(model, tmp_path)
    assert done.returncode == 0 and "6 texts" in done.stdout, done.stderr
    trace = load_trace(tmp_path / "t.parquet")
    assert trace.provenance["calibrated"] == "no" and trace.provenance["target"] == str(model) and trace.block == 4
    request.getfixturevalue("shape")
    flags = ["--target", "shape:tiny", "--drafter", str(tmp_path / "drafter"), "--trace", "t.parquet"]
    flags += ["--workload", "p", "--max-tokens", "12", "--batch", "2", "--requests", "2", "--repeats", "1"]
    runs = {
        "run": ["--mode", "none,static,compact:threshold=0.4"],
        "scaled": ["--mode", "none,static", "--acceptance", "dspark-qwen3-4b-chat"],
    }
    for out, more in runs.items():
        done = dsbench("sweep", *flags, *more, "--out", out, home=tmp_path)
        assert done.returncode == 0, done.stderr
        body = json.loads((tmp_path / out / "run.json").read_text())
        label = body["labels"]["replayed"]
        assert label.startswith(f"replayed from {model}") and ("Figure 2" in label) == (out == "scaled")
        assert body["trace"]["provenance"]["drafter"] == trace.provenance["drafter"]
        printed = " ".join(done.stdout.split())
        assert "REPLAYED ACCEPTANCE" in printed and "acceptance replayed from" in printed
        cells = [json.loads(p.read_text()) for p in (tmp_path / out).glob("cells/*/cell.json")]
        assert len(cells) == len(more[1].split(",")) and {c["parameters"]["acceptance"] for c in cells} == {label}
        assert all((c["summary"]["flips_per_1000"] or {"value": 0})["value"] == 0 for c in cells)
        drawn = dsbench("plot", out, home=tmp_path)
        assert drawn.returncode == 0, drawn.stderr
        svgs = [p for p in (tmp_path / out / "plots").glob("*.svg") if p.name != "cost-fit.svg"]
        assert svgs and all("REPLAYED ACCEPTANCE" in p.read_text() for p in svgs)
    as_recorded = dsbench("sweep", *flags, "--mode", "none", "--out", "scaled", "--resume", home=tmp_path)
    refused(as_recorded, 6, "acceptance: recorded replayed from")


def test_what_cannot_be_replayed_is_one_line(model, tmp_path, request):  # noqa: F811
    assert record(model, tmp_path).returncode == 0

    def sweep(*flags, target="shape:qwen3-0.6b", trace="t.parquet"):
        base = ["--target", target, "--mode", "none,static", "--workload", "p", "--batch", "1", "--out", "run"]
        return dsbench("sweep", *base, *(["--trace", trace] if trace else []), *flags, home=tmp_path)

    (tmp_path / "junk.parquet").write_text("junk")
    pq.write_table(pa.table({"name": ["x"]}), tmp_path / "other.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    head = json.loads(table.schema.metadata[b"dsbench"])
    for name, change in (("schema", {"schema": 9}), ("block", {"block": 5}), ("damaged", {"event": {"rule": "x"}})):
        changed = table.replace_schema_metadata({"dsbench": json.dumps(head | change)})
        pq.write_table(changed, tmp_path / f"{name}.parquet")
    refused(sweep(trace=""), 2, "has no tokenizer", "--trace FILE")
    refused(sweep(trace="no.parquet"), 2, "cannot read the trace no.parquet", "record-trace")
    refused(sweep(trace="junk.parquet"), 2, "junk.parquet is not a trace")
    refused(sweep(trace="other.parquet"), 2, "other.parquet is not a trace")
    refused(sweep(trace="schema.parquet"), 2, "schema 9; this dsbench reads schema 1")
    refused(sweep(trace="damaged.parquet"), 2, "damaged.parquet is a damaged trace")
    refused(sweep(trace="block.parquet"), 2, "block.parquet is a damaged trace")
    refused(sweep(target=str(model)), 2, "acceptance of its own", "shape:NAME")
    refused(sweep("--accept", "residual"), 2, "coupled rule, not residual")
    refused(sweep("--text", "free"), 2, "replayed on its own text")
    refused(sweep("--temperature", "0"), 2, "was recorded under: coupled at temperature 1; asked for: coupled at tem")
    refused(sweep("--mode", "none,mtp:2"), 2, "mtp:2 drafts with a chain")
    refused(sweep("--workload", "math"), 2, "holds no workload 'math'", "it holds: p")
    refused(sweep("--acceptance", "wishful"), 2, "unknown acceptance 'wishful'", "dspark-qwen3-8b-math")
    refused(sweep("--acceptance", "dspark-qwen3-4b-chat", trace=""), 2, "--acceptance rescales a trace")
    (tmp_path / "again").mkdir()
    refused(record(model, tmp_path / "again", target="shape:qwen3-0.6b"), 2, "no acceptance to record")
    assert not (tmp_path / "run").exists(), "a refused sweep left its folder behind"
    request.getfixturevalue("shape")
    refused(sweep(), 6, "blocks of 4, this drafter's hold 7", "record-trace")
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_recording_that_fails_leaves_no_file(model, tmp_path, monkeypatch):  # noqa: F811
    def broken(*args, **kwargs):
        raise OSError(28, "no space left")

    monkeypatch.setattr("pyarrow.parquet.write_table", broken)
    assert record(model, tmp_path).returncode == 2
    assert not list(tmp_path.glob("*t.parquet*"))
