"""`dsbench drafters`: counts from rounds, paired differences of a known law, the file, the picture and the command."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace

import command
import numpy as np
import pandas as pd
import pytest
import torch
from drafter_runs import COUPLED, GREEDY, comparison, law, run
from matplotlib.figure import Figure

from dsbench.analysis.acceptance import PromptCounts, acceptance, depth_counts, difference
from dsbench.drafting import draft_time
from dsbench.drafting.draft_time import interleaved
from dsbench.drafting.results_file import Timing, load_comparison, unique_names
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.records import RoundRecord
from dsbench.stats.intervals import Interval, difference_of_ratios
from dsbench.views import drafters
from dsbench.views.draft_time import draw_times
from dsbench.views.drafters import csv_rows, draw_decay


def record(window, accepted, delivered=None):
    return RoundRecord(
        step=0,
        request=0,
        workload="w",
        position=0,
        output_index=0,
        window=window,
        verified=window,
        accepted=accepted,
        delivered=accepted + 1 if delivered is None else delivered,
        ceiling=-1,
        flips=0,
        drafts=(),
        logits=(),
        token_free_logits=(),
    )


# ---- counts and differences


def test_trials_are_the_depths_that_a_round_tested():
    #         rejected at 1,  at 3,       whole block,  all of a short window
    rounds = [record(4, 0), record(4, 2), record(4, 4), record(2, 2)]
    assert depth_counts(rounds, 4) == ((4, 3, 2, 1), (3, 3, 1, 1))
    cut = [record(4, 2, delivered=2)]  # the text ended on the second draft: the third was not refused
    assert depth_counts(cut, 4) == ((1, 1, 0, 0), (1, 1, 0, 0))


def test_numbers_by_hand():
    a = PromptCounts(
        workload="w", name="a", rounds=4, delivered=10, accepted=6, repetition=0.5, trials=(4, 3), passed=(3, 3)
    )
    b = replace(a, name="b", rounds=2, delivered=2, accepted=0, repetition=0.0, trials=(2, 0), passed=(0, 0))
    silent = replace(a, name="c", rounds=0, delivered=0, accepted=0, trials=(0, 0), passed=(0, 0))
    row = acceptance("w", COUPLED, [a, b, silent], 0)
    assert (row.tau.value, row.drafts.value, row.rounds, row.repetition) == (2.0, 1.0, 6, 0.25)
    assert row.trials == (6, 3) and row.tau.n == 2
    assert [p.value for p in row.conditional] == [0.5, 1.0]
    other = [replace(b, name="a", delivered=4, passed=(1, 0), accepted=1, trials=(2, 1)), replace(b, name="z")]
    gap = difference("w", COUPLED, [a, b, silent], other, 0)
    assert gap.tau.value == 10 / 4 - 4 / 2 and gap.tau.n == 1 and gap.tau.low is None  # only prompt a is common
    assert [p.value for p in gap.conditional] == [3 / 4 - 1 / 2, 1.0 - 0.0]
    assert difference("w", COUPLED, [a], [replace(a, name="q")], 0) is None
    with pytest.raises(ValueError, match="passed <= trials"):
        replace(a, passed=(5, 3))


def test_a_difference_is_paired():
    rng = np.random.default_rng(0)
    ease = rng.uniform(1, 5, 80)  # prompts differ much, drafters little
    first, other = ease * 10 + 3, ease * 10
    rounds = np.full(80, 10.0)
    gap = difference_of_ratios(first, rounds, other, rounds)
    assert gap.value == pytest.approx(0.3) and gap.high - gap.low < 1e-9
    with pytest.raises(ValueError, match="pairs must align"):
        difference_of_ratios(first, rounds, other[:3], rounds[:3])
    assert difference_of_ratios(first, rounds, other, 0 * rounds) is None


def test_the_depth_from_which_one_drafter_is_above_is_read_off_the_intervals():
    first, other = law([0.7, 0.8, 0.8], seed=1), law([0.7, 0.6, 0.55], seed=2)
    gap = difference("math", COUPLED, first, other, 0)
    assert gap.conditional[0].low < 0 < gap.conditional[0].high
    for k, truth in ((1, 0.2), (2, 0.25)):
        assert 0 < gap.conditional[k].low < 0.93 * truth < gap.conditional[k].high  # mean ease is 0.875
    assert gap.tau.low > 0
    short = difference("math", COUPLED, first, law([0.7, 0.6], seed=2), 0)
    assert len(short.conditional) == 2
    back = difference("math", COUPLED, other, first, 0)
    assert back.tau.value == pytest.approx(-gap.tau.value)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = []
    for seed in range(60):
        row = acceptance("math", COUPLED, law([0.6, 0.6], prompts=30, rounds=10, seed=seed, hard=0.0), 0)
        covered.append(row.conditional[1].low <= 0.6 <= row.conditional[1].high)
    assert 0.85 <= np.mean(covered) <= 1.0


# ---- the file


def test_a_file_comes_back_equal_and_says_what_it_comes_to(tmp_path):
    found = comparison()
    found.save(tmp_path / "d.json", results=True)
    assert load_comparison(tmp_path / "d.json") == found
    body = json.loads((tmp_path / "d.json").read_text())
    assert (body["kind"], body["schema"]) == ("drafters", 1)
    rows = {(r["drafter"], r["workload"], r["event"]["temperature"]): r for r in body["results"]["acceptance"]}
    assert len(rows) == 2 * (3 + 3 + 1)  # `late` has no `all`: it did not run chat
    assert rows["chain", "all", 1.0]["tau"]["n"] == 120 and len(rows["chain", "all", 1.0]["conditional"]) == 2
    gaps = [(r["drafter"], r["minus"], r["workload"]) for r in body["results"]["differences"]]
    assert gaps[:4] == [
        ("block", "chain", "math"),
        ("block", "chain", "chat"),
        ("block", "chain", "all"),
        ("block", "late", "math"),
    ]
    table = list(csv_rows(found))
    value = next(r for r in table if r["quantity"] == "conditional" and r["depth"] == 2 and r["drafter"] == "chain")
    assert value["value"] == rows["chain", "math", 1.0]["conditional"][1]["value"]
    assert value["n"] == rows["chain", "math", 1.0]["trials"][1]


def test_draft_latency_is_drawn_a_line_a_drafter_and_says_who_was_not_timed_beside(tmp_path):
    found = comparison(prompts=4)
    assert draw_times(found, tmp_path) == []
    for drafter, slope in zip(found.drafters[:2], (0.1, 0.4), strict=True):
        drafter.times = [
            Timing(
                what="propose",
                batch=batch,
                depth=depth,
                rows=batch * depth,
                context=300,
                executor="graph",
                milliseconds=Interval(1 + slope * depth, 0.9, 2.9, 40),
                together=("d1", "d2"),
                environment={},
            )
            for batch in (1, 16)
            for depth in range(1, drafter.block + 1)
        ]
    (path,) = draw_times(found, tmp_path, formats=("svg",))
    text = path.read_text()
    for said in ("block (block of 3)", "chain (block of 2)", "R=16", "Virtual GPU", "n = 40 calls", "graph"):
        assert said in text, said
    assert "late (block" not in text and "NOT ALL TIMED TOGETHER" not in text
    found.drafters[0].times = [replace(t, together=("d1",)) for t in found.drafters[0].times]
    assert "NOT ALL TIMED TOGETHER" in draw_times(found, tmp_path, formats=("svg",))[0].read_text()


def test_counts_of_another_block_are_refused(tmp_path):
    found = comparison()
    found.drafters[1].block = 7
    found.save(tmp_path / "d.json")
    with pytest.raises(UsageError, match="block of 7, counts of 2 depths"):
        load_comparison(tmp_path / "d.json")
    with pytest.raises(EnvironmentRefused, match="seed: recorded 0, here 1"):
        found.require(found.conditions | {"seed": "1"})


def test_other_prompts_of_the_same_names_are_not_paired():
    found = comparison()
    entry = found.drafters[1]
    entry.put(replace(entry.cell(COUPLED, "math"), prompts_digest="edited"))
    gaps = {(d.name, g.event, g.workload) for d, g in found.differences()}
    assert {w for name, event, w in gaps if (name, event) == ("chain", COUPLED)} == {"chat"}
    assert {w for name, event, w in gaps if (name, event) == ("chain", GREEDY)} == {"math", "chat", "all"}


def test_names_are_made_unique(tmp_path):
    folders = [tmp_path / p for p in ("a/dspark", "b/dspark", "mtp")]
    assert unique_names(folders) == ["a/dspark", "b/dspark", "mtp"]
    assert unique_names([tmp_path / "mtp"], taken=["mtp"]) == ["mtp-2"]


def test_the_picture_draws_each_drafters_values_and_bands(tmp_path, monkeypatch):
    kept: list[Figure] = []
    monkeypatch.setattr(drafters, "save", lambda figure, out, name, formats: kept.append(figure) or [])
    found = comparison(prompts=12)
    draw_decay(found, tmp_path)
    panels = [axes for axes in kept[0].axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["coupled at temperature 1", "coupled at temperature 0"]
    rows = {d.name: r for d, r in found.acceptances() if r.workload == "all" and r.event == COUPLED}
    assert set(rows) == {"block", "chain"}
    lines = {line.get_label().split(" ")[0]: line for line in panels[0].lines}
    for (name, row), band in zip(rows.items(), panels[0].collections, strict=True):
        assert list(lines[name].get_xdata()) == list(range(1, len(row.conditional) + 1))
        np.testing.assert_allclose(list(lines[name].get_ydata()), [p.value for p in row.conditional])
        edge = band.get_paths()[0].vertices
        for k, p in enumerate(row.conditional, start=1):
            assert {round(y, 9) for x, y in edge if x == k} == {round(p.low, 9), round(p.high, 9)}
        assert lines[name].get_label() == f"{name} ({row.trials[0]} to {row.trials[-1]} trials)"
    words = [t.get_text() for part in kept[0].subfigs for t in part.texts]
    assert not any("FEW PROMPTS" in t for t in words) and any("n = 24 prompts" in t for t in words)
    draw_decay(comparison(prompts=4), tmp_path)
    assert any("FEW PROMPTS (n = 8)" in t.get_text() for part in kept[1].subfigs for t in part.texts)

    words = [t.get_text() for part in kept[0].subfigs for t in part.texts]
    assert any("prompts a line, the same for every drafter" in t for t in words)
    entry = found.drafters[1]
    entry.put(replace(entry.cell(COUPLED, "math"), prompts_digest="edited"))
    draw_decay(found, tmp_path)
    assert any("NOT the same for every drafter" in t.get_text() for part in kept[2].subfigs for t in part.texts)


def test_reading_results_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys, dsbench.cli.main, dsbench.views.drafters, dsbench.views.draft_time;"
        "import dsbench.views.reliability;"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- times


def test_calls_take_turns_and_warm_ones_are_not_kept(monkeypatch):
    calls: list[int] = []
    monkeypatch.setattr(draft_time, "milliseconds", lambda run, device, behind: run())
    clock = iter(range(1000))

    def call(which):
        return lambda: calls.append(which) or next(clock)

    times = interleaved([call(0), call(1), call(2)], torch.device("cpu"), 0, repeats=6, warm=2)
    assert [len(t) for t in times] == [6, 6, 6]
    turns = [calls[i : i + 3] for i in range(0, 24, 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns) and len({tuple(t) for t in turns}) > 1
    assert sorted(v for t in times for v in t) == list(range(6, 24))


# ---- the command


def test_two_drafters_one_call_equals_one_at_a_time(setting, tmp_path):
    block, chain, flags = setting
    both = run(tmp_path, block, chain, *flags)
    assert both.returncode == 0, both.stderr
    whole = load_comparison(tmp_path / "out" / "drafters.json")
    assert [(d.name, d.block) for d in whole.drafters] == [("block", 4), ("chain", 3)]
    texts = [[p.delivered for p in d.cells[0].counts] for d in whole.drafters]
    assert texts[0] == texts[1] and max(texts[0]) == 9  # one text under the coupled rule; its first token is prefill's
    parts = [*flags[:-1], str(tmp_path / "parts")]
    first, second = run(tmp_path, block, *parts), run(tmp_path, chain, *parts)
    assert first.returncode == second.returncode == 0, second.stderr
    sliced = load_comparison(tmp_path / "parts" / "drafters.json")
    assert [d.name for d in sliced.drafters] == ["block", "chain"]
    assert [[c.counts for c in d.cells] for d in sliced.drafters] == [
        [c.counts for c in d.cells] for d in whole.drafters
    ]
    assert list(csv.reader((tmp_path / "parts" / "drafters.csv").open())) == list(
        csv.reader((tmp_path / "out" / "drafters.csv").open())
    )
    names = {path.name for path in (tmp_path / "parts").iterdir()}
    assert names == {"drafters.json", "drafters.csv", "suffix-decay.png", "suffix-decay.svg"}
    for text in ("block less this one", "coupled at temperature 1", "residual at temperature 1"):
        assert text in second.stdout


def test_what_is_there_is_kept_what_is_missing_runs(setting, tmp_path):
    block, chain, flags = setting
    assert run(tmp_path, block, *flags).returncode == 0
    path = tmp_path / "out" / "drafters.json"
    body = json.loads(path.read_text())
    dropped = body["drafters"][0]["cells"].pop()
    path.write_text(json.dumps(body))
    again = run(tmp_path, block, *flags)
    assert again.returncode == 0, again.stderr
    notes = again.stderr.strip().splitlines()
    assert ": kept" in notes[0] and "rounds" in notes[1] and len(notes) == 2
    redone = json.loads(path.read_text())["drafters"][0]["cells"][-1]
    assert redone["counts"] == dropped["counts"]
    other = [flag if flag != "10" else "12" for flag in flags]
    command.refused(run(tmp_path, block, *other), 6, "max_tokens: recorded 10, here 12", "--out")
    (tmp_path / "p.jsonl").write_text('{"prompt": "9"}\n' * 6)
    edited = run(tmp_path, block, *flags)
    assert ": kept" not in edited.stderr, "results of other prompts were kept"


def test_times_of_the_block_its_first_drafts_and_the_intake(setting, tmp_path, monkeypatch):
    block, chain, flags = setting
    monkeypatch.setattr(draft_time, "REPEATS", 3)
    monkeypatch.setattr(draft_time.interleaved, "__kwdefaults__", {"repeats": 3, "warm": 1, "behind": False})
    flags = [flag if flag != "coupled@1,residual@1" else "coupled@1" for flag in flags]
    done = run(tmp_path, block, chain, *flags, "--time", "1,2", "--name", "b", "--name", "c")
    assert done.returncode == 0, done.stderr
    found = load_comparison(tmp_path / "out" / "drafters.json")
    sizes = {d.name: [(t.batch, t.what, t.depth, t.rows) for t in d.times] for d in found.drafters}
    assert sizes["b"][:5] == [
        (1, "propose", 4, 4),
        (1, "propose", 3, 4),
        (1, "propose", 2, 4),
        (1, "propose", 1, 4),
        (1, "observe", 0, 5),
    ]
    assert sizes["c"][4:] == [(2, "propose", 3, 6), (2, "propose", 2, 6), (2, "propose", 1, 6), (2, "observe", 0, 8)]
    for t in (t for d in found.drafters for t in d.times):
        assert t.milliseconds.n == 3 and t.milliseconds.value > 0 and t.context == 203  # 300 does not fit this model
        assert t.together == tuple(d.digest for d in found.drafters) and t.executor == "eager"
    assert "(full block)" in done.stdout and "timed alone" not in done.stdout


def test_drafters_refuses_in_one_line(setting, tmp_path):
    block, chain, flags = setting
    command.refused(run(tmp_path, block, tmp_path / "absent", *flags), 2, "absent does not exist")
    command.refused(run(tmp_path, block, tmp_path, *flags), 2, "holds no config.json")
    command.refused(run(tmp_path, block, tmp_path / "chain" / ".." / "block", *flags), 2, "named twice")
    command.refused(run(tmp_path, block, chain, *flags, "--name", "x"), 2, "1 names for 2 drafters")
    command.refused(run(tmp_path, block, *flags, "--time", "0"), 2, "time")
    command.refused(run(tmp_path, block, *flags, "--events", "coupled"), 2, "rule@temperature")
    command.refused(run(tmp_path, block, *flags, "--events", "coupled@1,coupled@1.0"), 2, "named twice")
    command.refused(run(tmp_path, block, *flags, "--events", "coupled@0,residual@0"), 2, "all rules are one event")
    command.refused(run(tmp_path, block, *flags, "--prompts", "0"), 2, "drafters needs")
    twin = command.write_drafter(tmp_path / "twin")
    command.refused(run(tmp_path, block, twin, *flags), 2, "hold the same drafter")
    command.refused(run(tmp_path, block, *flags, "--workload", "nonsense"), 2, "nonsense")
    command.refused(run(tmp_path, block, *flags, "--workload", "math,math"), 2, "workload math is named twice")
    command.refused(run(tmp_path, block, *flags, "--max-tokens", "100000"), 2, "no prompt", "lower --max-tokens")
    command.refused(run(tmp_path, block, *flags, "--events", "coupled@1e-300"), 2, "temperature must be 0 or lie in")
    command.refused(run(tmp_path, block, *flags, "--time", "1000000"), 6, "needs", "GiB", "smaller batch sizes")
    command.refused(run(tmp_path, block, *flags, "--time", "100000000"), 2, "must be <= 1000000")
    command.refused(run(tmp_path, block, *flags, "--time", "1:100000000000000000000"), 2, "must be <= 1000000")
    spoilt = command.write_drafter(tmp_path / "spoilt", rope_theta=-1)
    command.refused(run(tmp_path, block, spoilt, *flags), 2, "rope_theta must be above 0")
    command.refused(run(tmp_path, block, *flags, "--out", str(tmp_path / "a" / "b"), "--time", "1000000"), 6, "GiB")
    assert not (tmp_path / "out").exists() and not (tmp_path / "a").exists(), "a refused call left its folder"


def test_a_call_that_was_killed_goes_on_where_it_was(setting, tmp_path):
    block, chain, flags = setting
    call = [sys.executable, "-m", "dsbench", "drafters", str(block), str(chain), *flags]
    surroundings = os.environ | {"DSBENCH_HOME": str(tmp_path), "PYTHONPATH": str(command.ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(call, cwd=tmp_path, env=surroundings, stderr=subprocess.PIPE, text=True)
    assert "rounds" in process.stderr.readline()  # the first cell is done
    process.kill()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()
    again = run(tmp_path, block, chain, *flags)
    assert again.returncode == 0, again.stderr
    whole = load_comparison(tmp_path / "out" / "drafters.json")
    assert [len(d.cells) for d in whole.drafters] == [2, 2]


def test_calibrate_writes_its_report_and_pictures(setting, model, tmp_path):
    block, _, flags = setting
    flags = [flag if flag != "coupled@1,residual@1" else "block@1" for flag in flags[:-2]]
    done = command.dsbench(
        "calibrate", "--drafter", str(block), *flags, "--out", "c.json", "--plots", "pictures", home=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert {"c.json", "c-report.json", "c-report.csv"} <= {p.name for p in tmp_path.iterdir()}
    pictures = {p.name for p in (tmp_path / "pictures").iterdir()}
    assert {"reliability-depth-prefix-block-1.png", "reliability-event-conditional.svg"} <= pictures
    from dsbench.profiles.calibration import load_calibration_set
    from dsbench.profiles.calibration_fit import Rounds, fit_calibration
    from dsbench.profiles.calibration_report import load_report

    report, shipped = load_report(tmp_path / "c-report.json"), load_calibration_set(tmp_path / "c.json")
    assert {str(entry.event) for entry in shipped.entries} == {"block at temperature 1"}
    for entry in shipped.entries:  # the report's Platt rows over all workloads are the calibration's own scores
        for depth, scores in enumerate(entry.after.prefix, start=1):
            place = {"head": entry.head, "method": "platt", "kind": "prefix", "workload": "all", "depth": depth}
            assert [row.scores for row in report.select(**place)] == [scores]
    rounds = pd.read_parquet(tmp_path / "c-rounds.parquet")
    for entry in shipped.entries:  # and a fit to the kept rounds is the shipped one
        column = "logits" if entry.head == "conditioned" else "token_free_logits"
        mine = rounds[rounds["request"] % 2 == 0]
        again = Rounds(
            logits=np.stack(mine[column]).astype(np.float64),
            accepted=mine["accepted"].to_numpy(np.int64),
            window=mine["window"].to_numpy(np.int64),
        )
        fitted = fit_calibration(again, method="platt", event=entry.event, head=entry.head)
        assert fitted.scale == pytest.approx(entry.scale) and fitted.offset == pytest.approx(entry.offset)
