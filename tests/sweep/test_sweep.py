"""`sweep` as a command: other settings are refused on resume, one writer at a time, Ctrl-C, plans and estimates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from command import dsbench, refused, sweep_flags, write_drafter

from dsbench.errors import UsageError
from dsbench.profiles.cost import Box, CostTable, StepShape
from dsbench.profiles.curve import Curve
from dsbench.ranges import parse_modes
from dsbench.results.store import RunStore
from dsbench.runtime.arm import parse_arm
from dsbench.settings import RunConfig, resolve
from dsbench.sweep import bench as engine_bench
from dsbench.sweep.estimate import estimate, token_seconds
from dsbench.sweep.live import Grid, pace_of
from dsbench.sweep.plan import plan_sweep


@pytest.fixture
def flags(model, tmp_path):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    return lambda **changes: sweep_flags(model, tmp_path, drafter=drafter, **changes)


def test_a_run_keeps_to_its_settings_and_grows_by_arms_sizes_and_repeats(flags, tmp_path):
    assert dsbench(*flags(), home=tmp_path).returncode == 0
    others = {"temperature": "0.5", "max_tokens": "5", "accept": "block", "requests": "3", "text": "free", "seed": "1"}
    for name, value in others.items():
        wrong = dsbench(*flags(**{name: value}), "--resume", home=tmp_path)
        refused(wrong, 2, "begun with other settings", f"{name.replace('_', '-')}: ", value)
    more = dsbench(*flags(mode="none,static", batch="1,2", repeats="2"), "--resume", "--json", home=tmp_path)
    assert more.returncode == 0, more.stderr
    rows = json.loads(more.stdout)
    assert [(r["batch"], r["mode"], r["repeats"]) for r in rows] == [
        (1, "none", 2),
        (1, "static", 2),
        (2, "none", 2),
        (2, "static", 2),
    ]
    assert more.stderr.count("repeat 1:") == 3 and more.stderr.count("repeat 2:") == 4
    body = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [(b["batch"], b["repeat"]) for b in body["order"]] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert len(body["resumed"]) == 1 and body["sources"]["repeats"] == "flag" and body["sources"]["lag"] == "default"
    assert len((tmp_path / "run" / "summary.csv").read_text().splitlines()) == 5


def test_warm_up_and_machine_stand_in_each_repeat(flags, tmp_path):
    assert dsbench(*flags(max_tokens="40"), home=tmp_path).returncode == 0
    (path,) = (tmp_path / "run").glob("cells/*/rep-0/repeat.json")
    facts = json.loads(path.read_text())
    assert facts["warm_up"]["steps"] >= 16 and len(facts["warm_up"]["paces"]) >= 2
    assert facts["machine"]["seconds"] > 0 and facts["place"] == 0
    (stored,) = RunStore(tmp_path / "run").cells()
    rounds = stored.table("rounds")
    mine = rounds[rounds["measured"]]["step"]
    assert mine.min() >= facts["warm_up"]["steps"], "a measured request ran during the warm-up"


def test_ctrl_c_exits_130_and_the_run_goes_on(flags, tmp_path):
    real, calls = engine_bench.run_repeat, []

    def interrupted(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **named)

    with mock.patch.object(engine_bench, "run_repeat", interrupted):
        done = dsbench(*flags(mode="none,static"), home=tmp_path)
    assert done.returncode == 130 and done.stderr.splitlines()[-1].endswith("--resume goes on)"), done.stderr
    shown = dsbench("show", str(tmp_path / "run"), home=tmp_path).stdout
    assert "INCOMPLETE: this run lacks" in shown and "--resume" in shown
    more = dsbench(*flags(mode="none,static"), "--resume", home=tmp_path)
    assert more.returncode == 0 and more.stderr.count("repeat 1:") == 1, more.stderr
    assert "INCOMPLETE" not in dsbench("show", str(tmp_path / "run"), home=tmp_path).stdout


def test_two_sweeps_in_one_folder(flags, tmp_path):
    folder = tmp_path / "run"
    with RunStore(folder, create=True).locked():
        refused(dsbench(*flags(), home=tmp_path), 2, "another sweep writes to run", "name another --out")
    (folder / "run.json").write_text("{")
    refused(dsbench(*flags(), "--resume", home=tmp_path), 2, "run.json is damaged")


def test_a_resumed_run_keeps_the_cost_table_it_was_planned_with(flags, tmp_path):
    assert dsbench(*flags(mode="compact"), home=tmp_path).returncode == 0
    (cached,) = [p for p in (tmp_path / "costs").glob("*.json") if not p.name.endswith(".samples.json")]
    table = json.loads(cached.read_text())
    cached.write_text(json.dumps(table | {"bias": table["bias"] * 2}))
    more = dsbench(*flags(mode="compact", repeats="2"), "--resume", home=tmp_path)
    assert more.returncode == 0, more.stderr
    assert "repeat 1:" not in more.stderr and "repeat 2:" in more.stderr
    named = dsbench(*flags(mode="compact", cost=str(cached)), "--resume", home=tmp_path)
    assert named.returncode == 0 and "repeat 1:" in named.stderr, "another table is another arm"


def test_a_dry_run_of_a_resume_is_refused_where_the_run_would_be(flags, tmp_path):
    assert dsbench(*flags(), home=tmp_path).returncode == 0
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    wrong = dsbench(*flags(max_tokens="5"), "--dry-run", "--resume", home=tmp_path)
    refused(wrong, 2, "begun with other settings", "max-tokens", "give its settings again")
    more = dsbench(*flags(repeats="2"), "--dry-run", "--resume", home=tmp_path)
    assert more.returncode == 0, more.stderr
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == before


def test_a_refused_sweep_leaves_no_folder(flags, tmp_path):
    refused(dsbench(*flags(mode="static:9"), home=tmp_path), 2, "block holds 4 drafts")
    refused(dsbench(*flags(workers="2"), home=tmp_path), 2, "workers must be")
    refused(dsbench(*flags(launcher="slurm"), home=tmp_path), 2, "unknown launcher")
    with mock.patch.dict("sys.modules", {"ray": None}):
        refused(dsbench(*flags(launcher="ray"), home=tmp_path), 2, "needs Ray", "dspark-bench[ray]")
    assert not (tmp_path / "run").exists()


def test_dry_runs_tell_the_time_by_a_table_of_this_deployment(flags, tmp_path):
    many = dsbench(*flags(batch="1:64", max_tokens="4000", requests="9999"), "--dry-run", home=tmp_path)
    assert many.stdout.count("\n") < 15 and "64 loads, batch 1 to 64" in many.stdout, many.stdout
    blind = dsbench(*flags(), "--dry-run", home=tmp_path)
    assert blind.returncode == 0 and "no cost table here" in blind.stdout, blind.stderr
    here = {"dtype": "float32"}  # whichever this processor would choose
    assert dsbench(*flags(mode="compact", out="other", **here), home=tmp_path).returncode == 0
    estimate = dsbench(*flags(**here), "--dry-run", home=tmp_path)
    assert "prompts and loading not counted" in estimate.stdout and "costs/" in estimate.stdout, estimate.stdout
    assert "60% of drafts accepted at each depth" in estimate.stdout
    other = dsbench(*flags(dtype="bfloat16"), "--dry-run", home=tmp_path)
    assert "no cost table here" in other.stdout, "a table of another dtype told the time"
    refused(dsbench(*flags(cost="absent.json"), "--dry-run", home=tmp_path), 2, "absent.json")
    assert not (tmp_path / "run").exists()


def flat_cost(*, step, row):
    """A step and each of its rows cost what is said, a draft 2 ms and 0.1 ms a request."""
    return CostTable(
        bias=step,
        alpha=Curve((1,), (0.0,)),
        theta=Curve((1, 1000), (0.0, 999 * row)),
        tiers=None,
        draft_bias=0.002,
        draft=Curve((1, 101), (0.0, 0.01)),
        box=Box(requests=(1, 64), rows=(1, 1000), context=(0, 10_000)),
    )


def test_seconds_a_token_follow_the_table_and_the_window():
    table, survival = flat_cost(step=0.01, row=0.001), [0.5, 0.25, 0.125]

    def round_of(rows):
        return table.verify_seconds(StepShape(4, rows, 400)) + table.draft_seconds(4, 400)

    def asked(mode):
        return token_seconds(parse_arm(mode), table, survival, 4, 100.0)

    assert asked("none") == pytest.approx(table.verify_seconds(StepShape(4, 4, 400)) / 4)
    assert asked("static") == pytest.approx(round_of(16) / (4 * 1.875))
    assert asked("static:1") == pytest.approx(round_of(8) / (4 * 1.5))
    windows = [round_of(4 * (w + 1)) / (4 * (1 + sum(survival[:w]))) for w in range(4)]
    assert asked("compact") == pytest.approx(min(windows))


def test_an_estimate_adds_up_what_is_run(tmp_path):
    config = RunConfig(mode="none", batch="4", workload="math", requests=6, repeats=3, max_tokens=10, text="free")
    plan = plan_sweep(config, on_gpu=False, home=tmp_path)
    table = flat_cost(step=0.01, row=0.0)
    one = table.verify_seconds(StepShape(4, 4, 0)) / 4
    assert estimate(plan, table, [0.5], "").seconds == pytest.approx(3 * (4 + 6 + 2) * 10 * one)
    recorded = replace(plan, pinned=True)
    texts = (2 * 4 + 6 + 2) * 10 * table.verify_seconds(StepShape(16, 16, 0)) / 16
    assert estimate(recorded, table, [0.5], "").seconds == pytest.approx(3 * (4 + 6 + 2) * 10 * one + texts)


def test_an_estimate_of_open_loops_counts_every_load_and_waits_for_its_requests(tmp_path):
    """6 requests measured, 1 before them, half the slots after: at 0.5/s the last measured one comes after 14 s."""
    config = RunConfig(mode="none", batch="4", workload="math", requests=6, repeats=3, max_tokens=10, text="free")
    table = flat_cost(step=0.01, row=0.0)

    def seconds(rate):
        plan = plan_sweep(replace(config, request_rate=rate), on_gpu=False, home=tmp_path)
        return estimate(plan, table, [0.5], "").seconds

    busy = 3 * (1 + 6 + 2) * 10 * table.verify_seconds(StepShape(4, 4, 0)) / 4
    assert seconds("1000") == pytest.approx(busy)
    assert seconds("0.5") == pytest.approx(3 * (1 + 6) / 0.5)
    assert seconds("0.5,1000,closed") == pytest.approx(seconds("0.5") + busy + seconds(""))


@pytest.mark.parametrize("name", ["requests", "repeats", "threads", "lag"])
def test_settings_beyond_all_bounds_are_refused(name):
    for value in (10**20, -5):
        with pytest.raises(UsageError, match=name.replace("_", "-")):
            RunConfig(**{name: value})


def test_modes_may_be_ranges():
    wanted = ("none", "static:1", "static:2", "static:3", "static", "mtp:1", "mtp:3", "compact:threshold=0.5")
    assert parse_modes("none, static:1:3,static:2,static,mtp:1:3:2,compact:threshold=0.5") == wanted
    for text in ("static:3:1", "mtp:0:2", "static:1:x"):
        with pytest.raises(UsageError):
            parse_modes(text)


def test_an_unknown_variable_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DSBENCH_REPEAT", "3")
    with pytest.raises(UsageError, match="unknown environment variable DSBENCH_REPEAT"):
        resolve({}, folder=tmp_path)


def test_the_live_grid_shows_what_runs_and_what_is_done():
    from io import StringIO

    from rich.console import Console
    from virtual_sweep import VirtualBench, points

    from dsbench.sweep.order import order_of

    console = Console(file=StringIO(), force_terminal=True, width=100)
    first, second, *_ = order_of(points(), repeats=1, seed=0)[0]
    measured = VirtualBench().repeat(first)
    with Grid(console, ("none", "static", "compact"), (1, 2, 4), total=18) as grid:
        grid.began(first)
        grid.ended(first, measured)
        grid.began(second)
        page = Console(file=StringIO(), width=100)
        page.print(grid.table())
    lines = page.file.getvalue().splitlines()
    assert "math: tokens/s, 1 of 18 repeats, about" in lines[0]
    (row,) = [line.split() for line in lines if line.split()[:1] == ["1"]]
    cells = dict(zip(("R", "none", "static", "compact"), row, strict=True))
    assert cells[first.cell.mode] == f"{pace_of([measured], first.cell):.0f}" and cells[second.cell.mode] == "..."
    assert sorted(cells.values()).count("-") == 1 and Path(__file__).exists()
