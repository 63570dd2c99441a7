"""What a run leaves out, cuts short or labels: counted, and said in words."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from command import dsbench, model, sweep_flags, write_drafter  # noqa: F401
from replays import record, toy_trace
from synthetic_run import make_cell

from dsbench.deploy.replay import refuse_unlike
from dsbench.errors import EnvironmentRefused
from dsbench.results.labels import arm_names, conditions
from dsbench.results.store import RunStore
from dsbench.settings import RunConfig
from dsbench.sweep.order import text_flags
from dsbench.sweep.run import _environments
from dsbench.sweep.traffic import plan_traffic


def test_a_loads_label_is_the_rate_that_its_requests_are_offered_at(tmp_path):
    """Twenty a second, and then nothing for ten minutes, which no measured request sees."""
    times = [i / 20 for i in range(41)] + [600 + i / 20 for i in range(290)]
    path = tmp_path / "bursts.csv"
    path.write_text("seconds\n" + "\n".join(map(str, times)) + "\n")
    (own,) = plan_traffic(RunConfig(arrivals=str(path), requests=32)).loads
    assert own.rate == pytest.approx(20)
    (asked,) = plan_traffic(RunConfig(arrivals=str(path), requests=32, request_rate="2")).loads
    assert asked.rate == 2 and asked.recorded[20] == pytest.approx(10)


def test_a_text_that_is_another_models_flags_the_cell():
    assert text_flags({"flips_per_1000": {"value": 545.0}}) == [
        "the pinned text is not this model's: it would have written 545 of 1,000 tokens otherwise"
    ]
    for small in ({"value": 4.0}, {"value": None}, None):
        assert text_flags({"flips_per_1000": small}) == []


def test_a_pinned_text_of_another_model_is_flagged_in_its_cell(model, tmp_path):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    flags = sweep_flags(model, tmp_path, drafter=drafter, mode="static", max_tokens="24")
    assert dsbench(*flags, home=tmp_path).returncode == 0
    (clean,) = RunStore(tmp_path / "run").cells()
    assert not any("not this model's" in flag for flag in clean.flags)
    import pandas as pd

    (path,) = (tmp_path / "run" / "texts").glob("*.parquet")
    frame = pd.read_parquet(path)
    frame["output"] = [[(int(i) + 7) % 64 for i in text] for text in frame["output"]]
    frame.to_parquet(path, index=False)
    more = dsbench(*flags, "--resume", "--repeats", "2", home=tmp_path)
    assert more.returncode == 0, more.stderr
    (flipped,) = RunStore(tmp_path / "run").cells()
    assert any("not this model's" in flag for flag in flipped.flags)


def test_prompts_left_out_and_answers_cut_are_counted(model, tmp_path):  # noqa: F811
    flags = sweep_flags(model, tmp_path, max_tokens="200")
    rows = [{"prompt": "1" * (80 if i % 2 else 3)} for i in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = dsbench(*flags, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 of the first 6 prompts of p are left out" in done.stderr
    assert "answers of p are cut at their limit" in done.stderr
    cut = dsbench(*sweep_flags(model, tmp_path, out="b", output_len="lognormal:6:2.0"), home=tmp_path)
    assert "answers of p are cut to --max-tokens 6" in cut.stderr


def test_a_trace_shorter_than_the_answers_is_said(model, tmp_path):  # noqa: F811
    assert record(model, tmp_path).returncode == 0
    flags = ["simulate", "--trace", "t.parquet", "--cost", "none.json", "--workload", "p", "--max-tokens", "64"]
    assert dsbench(*flags, home=tmp_path).returncode == 2
    trace, said = toy_trace(), []
    from dsbench.deploy import replay

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "note", said.append)
        replay.say_short(trace, SimpleNamespace(max_tokens=64))
        replay.say_short(trace, SimpleNamespace(max_tokens=20))
    assert said == ["answers end with the trace, after 20 tokens at most, not after the 64 asked for"]


def test_cells_that_differ_in_one_thing_have_two_names():
    cells = [
        SimpleNamespace(folder=number, cell=make_cell(mode="compact", batch=1, workload="w", **changes))
        for number, changes in enumerate(
            ({}, {"calibration": "aaaaaaaa"}, {"template": "bbbbbbbb"}, {"tokenizer": "cccccccc"}, {"lag": 2})
        )
    ]
    for other in cells[1:]:
        assert len(set(arm_names([cells[0], other]).values())) == 2
    assert arm_names(cells[:2]) == {0: "compact calibration none", 1: "compact calibration aaaaaa"}


def test_a_resume_elsewhere_is_another_environment_and_is_said():
    recorded = {"environment": {"torch": "2.11", "device": "A", "revision": "x"}}
    now = {"torch": "2.13", "device": "A", "revision": "y"}
    both = _environments(recorded, now)
    assert both == [recorded["environment"], now]
    assert _environments(recorded | {"environments": both}, now | {"revision": "z"}) == both
    said = conditions({"environment": recorded["environment"], "environments": both})
    assert "resumed in 1 other environments (revision x -> y, torch 2.11 -> 2.13)" in said
    assert "resumed" not in conditions(recorded)


def run_of(**changes):
    run = {"labels": {"rule": "coupled", "text": "pinned", "temperature": 1.0}, "contract": {"target": "abc"}}
    return {**run, "encoding": {"chat template": "t", "tokenizer": "k"}, "trace": None, **changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": {"rule": "residual", "text": "pinned"}}, "rule: recorded residual, here coupled"),
        ({"labels": {"rule": "coupled", "text": "free"}}, "text: recorded free, here pinned"),
        ({"labels": {"rule": "coupled", "temperature": 0.0}}, "temperature: recorded 0.0, here 1.0"),
        ({"contract": {"target": "abc", "drafter": "x"}}, "drafter: recorded x, here d"),
        ({"contract": {"target": "xyz"}}, "target: recorded xyz, here abc"),
        ({"encoding": {"chat template": "u"}}, "chat template: recorded u, here t"),
        ({"trace": {"digest": "other"}}, "trace: recorded other, here mine"),
    ],
)
def test_simulate_against_refuses_another_by_name(changes, named):
    from dataclasses import replace

    facts = {"target_digest": "abc", "drafter": "d", "template": "t", "tokenizer": "k"}
    trace = replace(toy_trace(), provenance=facts, digest="mine")
    refuse_unlike(trace, run_of(), "the run")
    with pytest.raises(EnvironmentRefused) as caught:
        refuse_unlike(trace, run_of(**changes), "the run")
    assert named in caught.value.message
