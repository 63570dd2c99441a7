"""Pictures: written, not blank, saying what they must; what cannot be drawn is refused in words or left out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from synthetic_run import BLOCK, make_cell, write_synthetic_run

from dsbench.analysis.waterfall import PARTS, waterfalls
from dsbench.errors import UsageError
from dsbench.profiles.fit import CostSample, fit_cost_table
from dsbench.results.metrics import ROUND_KEYS
from dsbench.results.store import RunStore
from dsbench.views.against import draw_against
from dsbench.views.budget.picture import draw_budgets, planned_cells
from dsbench.views.cost import draw_cost
from dsbench.views.frontier.picture import free_corner
from dsbench.views.plots import draw_all
from dsbench.views.style import arm_styles, style
from dsbench.views.waterfall import draw_run

MIX = "mix:math=1,poetry=1"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    modes = ["none", "static:2", "static", "mtp:1", "mtp:3", "compact", "compact:oracle", "cap-accept"]
    run = write_synthetic_run(folder / "r", modes=modes, batches=[1, 4], workloads=["math", MIX], repeats=1, tokens=24)
    stored = next(c for c in run.cells() if c.cell.mode == "mtp:1")
    flags = ["2 of 31 steps compiled a kernel", *stored.flags]
    run.write_cell(stored.folder.name, stored.cell, stored.summary, flags)
    return {path.name: path for path in draw_all(run, folder / "plots")}


def test_every_picture_comes_as_png_and_svg(drawn):
    names = ("frontier", "budget", "budget-mix-math-1-poetry-1", "step-time", "prediction")
    assert set(drawn) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


def test_pictures_are_wide_enough_and_not_blank(drawn):
    for path in (path for name, path in drawn.items() if name.endswith("png")):
        pixels = imread(path)[..., :3]
        assert pixels.shape[1] == 1605
        inked = (pixels < 0.98).any(-1)
        assert 0.01 < inked.mean() < 0.7
        colours = (pixels[inked] * 15).astype(int) @ (256, 16, 1)
        assert np.count_nonzero(np.bincount(colours)) > 20


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("frontier", ["per-user speed [tokens/s]", "throughput [tokens/s]", "R=4", "none", "cap-accept", "static:2"]),
        ("frontier", ["best fixed window at each R, in hindsight", "mix:math=1, poetry=1", "compact, against none:"]),
        ("frontier", ["best mtp at each R", "compact:oracle (upper bound)", "2 of 31 steps compiled"]),
        ("step-time", ["cells are flagged: "]),
        ("budget", ["Verify budget by workload", "drafts scheduled", "would have been accepted", "cap-accept"]),
        ("budget-mix-math-1-poetry-1", ["Verify budget inside mix:math=1, poetry=1", ">poetry<", ">all of it<"]),
        ("prediction", ["rows of the executed shape (tier)", "predicted / measured - 1 [%]", "over the run"]),
        ("step-time", ["predicted step time [ms]", "measured step time [ms]", "median error", "n = "]),
    ],
)
def test_pictures_say_what_they_show(drawn, name, texts):
    svg = drawn[f"{name}.svg"].read_text()
    for text in [*texts, "Virtual CPU @ 2.0 GHz", "toy-135m", "coupled, T=1, pinned text"]:
        assert text in svg


def test_notes_keep_off_the_points():
    axes = Figure().subplots()
    axes.set(xscale="log", yscale="log", xlim=(10, 1000), ylim=(10, 1000))
    assert free_corner(axes, [(20, 900), (900, 20)])[2:] == ("left", "bottom")
    assert free_corner(axes, [(20, 12), (900, 20)])[2:] == ("right", "top")
    assert free_corner(axes, [(20, 12), (900, 990)])[2:] == ("left", "bottom")


def budget_of(run, out):
    with style():
        draw_budgets(run.cells(), out, "budget", (), "", ("svg",))
    return (out / "budget.svg").read_text()


def test_the_budget_prints_the_summarys_own_numbers(tmp_path):
    run = write_synthetic_run(
        tmp_path / "r", modes=["compact", "cap-accept"], batches=[2], workloads=["math"], repeats=1
    )
    chosen = planned_cells(run.cells())
    assert [c.cell.mode for c in chosen] == ["cap-accept"]
    svg = budget_of(run, tmp_path / "p")
    body = chosen[0].summary
    accepted, window = body["accepted"]["value"], body["window"]["value"]
    missed = body["ceiling"]["value"] * (1 - body["utilisation"]["value"])
    for value in (accepted, window - accepted, missed, BLOCK - window - missed):
        assert f">{value:.2f}<" in svg or value < 0.5
    assert f">{accepted:.2f}<" in svg


def test_cells_without_rounds_show_their_rows_and_say_so(tmp_path):
    run = write_synthetic_run(tmp_path / "r", modes=["compact"], batches=[1, 4], workloads=["math"], repeats=1)
    stored = next(c for c in run.cells() if c.cell.batch == 4)
    empty = dict.fromkeys(ROUND_KEYS) | {"rounds": 0}
    run.write_cell(stored.folder.name, stored.cell, stored.summary | empty, [])
    (stored.folder / "rep-0" / "rounds.parquet").unlink()
    svg = budget_of(run, tmp_path / "p")
    assert svg.count(">no rounds<") == 2
    drafts = stored.table("steps")
    drafts = (drafts["rows"] - drafts["requests"]).sum() / drafts["requests"].sum()
    assert f">{drafts:.2f}<" in svg
    other = next(c for c in run.cells() if c.cell.batch == 1).folder
    run.write_cell(other.name, make_cell("compact", 1, "math"), stored.summary | empty, [])
    assert "no rounds were recorded" in budget_of(run, tmp_path / "q")


def test_waterfalls_are_drawn_for_the_arms_that_ran(tmp_path):
    run = write_synthetic_run(tmp_path / "r", modes=["none", "compact"], batches=[1, 4], workloads=["math"], repeats=1)
    paths = draw_run(run, tmp_path / "p", formats=("svg",))
    assert [path.name for path in paths] == ["waterfall-none-compact.svg"]
    text = paths[0].read_text()
    for fall in waterfalls(run.cells(), "none", "compact"):
        assert f">{100 * fall.after.value / fall.before.value:.0f}<" in text
        assert f"{fall.before.value:.3g} →" in text and f"{fall.after.value:.3g} ms" in text
    for part in (*PARTS, "from none to compact", "Virtual CPU @ 2.0 GHz"):
        assert part in text


def test_a_run_of_one_plain_cell_has_a_frontier_and_nothing_else(tmp_path):
    run = write_synthetic_run(
        tmp_path / "r",
        modes=["none"],
        batches=[1],
        workloads=["chat"],
        repeats=1,
        measured=1,
        labels={"random_weights": True},
    )
    paths = draw_all(run, tmp_path / "p", formats=("svg",))
    assert [path.name for path in paths] == ["frontier.svg"]
    assert "RANDOM WEIGHTS" in paths[0].read_text()


def test_what_cannot_be_drawn_is_refused_in_words(tmp_path):
    empty = RunStore(tmp_path / "empty", create=True)
    empty.write_run({})
    with pytest.raises(UsageError, match="no data"):
        draw_all(empty, tmp_path / "p")
    run = write_synthetic_run(tmp_path / "r", modes=["none"], batches=[1], workloads=["chat"], repeats=1)
    with pytest.raises(UsageError, match="unknown picture format"):
        draw_all(run, tmp_path / "p", formats=("gif",))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        draw_all(run, tmp_path / "file")


def cost_samples():
    rng = np.random.default_rng(0)
    for requests in (1, 2, 4, 8):
        for tokens in (128, 512):
            context = requests * tokens
            for number in range(3):
                noise = 1 + 0.01 * rng.standard_normal()
                for rows in (r for r in (1, 2, 4, 8, 16, 32, 48) if requests <= r <= 6 * requests):
                    yield CostSample(
                        requests, rows, context, (0.01 + 3e-4 * rows + 1e-7 * context) * noise, "verify", number
                    )
                yield CostSample(requests, 0, context, (0.002 + 1e-4 * requests) * noise, "draft", number)


def test_the_cost_fit_shows_cells_held_out_cells_and_the_draft_curve(tmp_path):
    facts = {"random_weights": "True", "date": "2026-01-02T03:04:05+00:00"}
    table, report = fit_cost_table(cost_samples(), tiers=None, contract={"device": "Virtual CPU"}, provenance=facts)
    png, svg = draw_cost(table, report, tmp_path)
    assert report.verify.heldout_cells > 0
    inked = (imread(png)[..., :3] < 0.98).any(-1)
    assert 0.01 < inked.mean() < 0.7
    text = svg.read_text()
    for part in ("packed rows M", "verify time [ms]", "draft time [ms]", "held out", "R=8", "M=8", "RANDOM WEIGHTS"):
        assert part in text
    assert f"{report.verify.cells} verify cells" in text and "date 2026-01-02T03:04:05+00:00" in text


def test_a_table_without_draft_samples_is_drawn_too(tmp_path):
    samples = [sample for sample in cost_samples() if sample.phase == "verify"]
    table, report = fit_cost_table(samples, tiers=None, contract={}, provenance={})
    (path,) = draw_cost(table, report, tmp_path, formats=("svg",))
    assert "no draft samples" in path.read_text()


def test_kinds_of_arms_keep_their_colour_and_variants_differ():
    few, many = arm_styles(["compact", "none"]), arm_styles(["compact", "compact:early-stop", "static:1", "static:2"])
    assert few["compact"]["color"] == many["compact"]["color"]
    looks = {tuple(sorted((key, str(value)) for key, value in look.items())) for look in many.values()}
    assert len(looks) == 4


def test_simulated_against_measured_is_drawn_with_its_parts(tmp_path):
    parts = dict.fromkeys(PARTS, 0.0) | {"draft": 0.04, "prefill": -0.01}
    whole = {"cells": 2, "median": 0.03, "p95": 0.031, "bias": -0.03, "parts": parts}
    cells = [
        {"arm": arm, "measured": speed, "simulated": 0.97 * speed}
        for arm, speed in (("none", 100.0), ("compact", 900.0))
    ]
    body = {"against": "r", "all": whole, "by_arm": {"none": whole, "compact": whole}, "cells": cells}
    (path,) = draw_against(body, tmp_path, "against", ["where"], "SIMULATED", ("svg",))
    text = path.read_text()
    for said in ("SIMULATED", "where", "median error 3.0%", "simulated [tokens/s]", "compact", *PARTS):
        assert f"{said}" in text, said


def test_analysis_imports_neither_torch_nor_pyplot():
    code = (
        "import sys, dsbench.views.plots, dsbench.views.cost, dsbench.analysis.summary;"
        "import dsbench.views.waterfall, dsbench.views.frontier.section, dsbench.views.report;"
        "import dsbench.views.against;"
        "assert not {'torch', 'matplotlib.pyplot', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
