"""The frontier: dominance with ties, gains at equal service, crossings; on points laid by hand and on a known law."""

from __future__ import annotations

import numpy as np
import pytest
from staircase_run import law, window_of, write_staircase_run
from synthetic_run import make_cell, write_synthetic_run

from dsbench.analysis.frontier import Point, against_best, crossings, dominators, envelope, gain_at, points_of
from dsbench.errors import UsageError
from dsbench.views.frontier.picture import legend_columns
from dsbench.views.frontier.section import show_frontier
from dsbench.views.frontier.tables import standing, turns


def point(arm, batch, speed, throughput, spread=0.001, prompts=9):
    noise = 1 + spread * np.random.default_rng([batch, *arm.encode()]).standard_normal((2, 200))
    noise[:, 0] = 1
    return Point(arm, batch, speed * noise[0], throughput * noise[1], prompts)


def test_dominance_has_ties_within_the_band():
    a, tie = point("a", 1, 100, 1000), point("b", 1, 101, 1000)
    better, worse, other = point("c", 1, 110, 1000), point("d", 1, 100, 900), point("e", 2, 50, 2000)
    found = dominators([a, tie, better, worse, other], band=0.02)
    assert found == {
        "a R=1": ["c R=1"],
        "b R=1": ["c R=1"],
        "c R=1": [],
        "d R=1": ["a R=1", "b R=1", "c R=1"],
        "e R=2": [],
    }
    assert standing([a, tie, better, worse, other])[1:] == ["dominated at every R: a, b, d"]


def test_gains_at_equal_service_lie_on_the_curve_and_nowhere_else():
    curve = [point("a", 1, 200, 200), point("a", 4, 100, 400)]
    at = point("b", 2, 100, 200 * 2**0.5)
    speed = gain_at(curve, at, "throughput")
    assert speed.value == pytest.approx(2**0.5)
    assert speed.low < speed.value < speed.high
    assert gain_at(curve, point("b", 2, 200 / 2**0.5, 50), "speed").value == pytest.approx(2**0.5 * 4)
    assert gain_at(curve, point("b", 1, 100, 150), "throughput") is None
    assert gain_at(curve, point("b", 1, 300, 300), "speed") is None
    assert gain_at(curve[:1], at, "throughput") is None
    edge = gain_at(curve, point("b", 1, 100, 200, spread=0.05), "throughput")
    assert (edge.value, edge.low) == (pytest.approx(2.0), None)


def test_a_crossing_is_bracketed_by_batch_sizes_with_clear_verdicts():
    base = [point("none", batch, 1, 100 * batch) for batch in (1, 4, 16, 64)]
    arm = [point("x", 1, 1, 200), point("x", 4, 1, 400), point("x", 16, 1, 800), point("x", 64, 1, 6600)]
    found, words = crossings(arm, base)
    assert words == {1: "FASTER", 4: "SAME", 16: "SLOWER", 64: "FASTER"}
    assert [(c.low, c.high, c.gains) for c in found] == [(1, 16, False), (16, 64, True)]
    assert found[0].batch.low < 4.01 and found[0].batch.high > 3.99
    assert 16 < found[1].batch.low < found[1].batch.value < found[1].batch.high <= 64
    (line,) = turns([*arm, *base], "none")
    assert line.startswith("x against none: falls behind between R=1 and R=16, near 4")
    assert "no crossing; FASTER at R=1" in turns([*arm[:1], *base], "none")[0]


def test_a_point_of_few_prompts_has_no_verdict_whatever_ran_elsewhere():
    base = [point("none", batch, 1, 100 * batch) for batch in (1, 4, 16)]
    arm = [point("x", 1, 1, 200, prompts=3), point("x", 4, 1, 800), point("x", 16, 1, 800)]
    found, words = crossings(arm, base)
    assert words == {1: "UNCLEAR", 4: "FASTER", 16: "SLOWER"}
    assert [(c.low, c.high, c.batch.n) for c in found] == [(4, 16, 9)]
    curve = [point("a", 1, 200, 200, prompts=2), point("a", 4, 100, 400), point("a", 8, 50, 800)]
    assert gain_at(curve, point("b", 2, 100, 300), "throughput").n == 2
    assert gain_at(curve, point("b", 4, 100, 600), "throughput").n == 9


def test_points_of_a_known_law(tmp_path):
    modes, batches = ("none", "static:1", "static"), (1, 3, 8)
    run = write_staircase_run(tmp_path / "r", make_cell, modes=modes, batches=batches)
    points = {(p.arm, p.batch): p for p in points_of(run.cells(), draws=50)}
    for (arm, batch), found in points.items():
        want = law(batch, window_of(arm))
        assert found.throughput[0] == pytest.approx(want.throughput)
        drawn = found.speed[np.isfinite(found.speed)]  # a resample may miss a cell's only prompt
        assert drawn == pytest.approx(np.full(len(drawn), want.user_speed))
    best = envelope(list(points.values()), lambda arm: arm.startswith("static"))
    assert [(p.arm, p.batch) for p in best] == [
        (max(("static:1", "static"), key=lambda mode: law(batch, window_of(mode)).throughput), batch)
        for batch in batches
    ]


def test_the_best_is_chosen_on_one_half_and_the_oracle_is_compared(tmp_path, capsys):
    modes = ["none", "static:2", "static", "compact", "compact:oracle"]
    run = write_synthetic_run(tmp_path / "r", modes=modes, batches=[1, 4], workloads=["math"])
    rivals = {c.cell.mode: c for c in run.cells() if c.cell.batch == 1}
    found = against_best(rivals, "compact", ["static:2", "static"])
    assert (found.best, found.basis) == (("static",), "half of the repeats")
    assert found.ratio.low < found.ratio.value < found.ratio.high
    assert against_best(rivals, "static", ["static:2", "static"]) is None
    assert against_best(rivals, "compact", []) is None
    show_frontier(run.folder, arm="compact", base="none", workload="")
    out = capsys.readouterr().out
    for part in ("on the frontier: R=1", "compact:oracle against none", "coupled, T=1", ", compact:oracle"):
        assert part in out
    with pytest.raises(UsageError, match="not in this run"):
        show_frontier(run.folder, arm="compact", base="mtp:1", workload="")


def test_a_legend_has_as_many_columns_as_fit():
    assert legend_columns([4, 6, 7]) == 2 and legend_columns([4]) == 1
    assert legend_columns([4, 8, 8, 6, 5, 5, 7, 7, 28, 10, 41, 25, 18]) == 4, "six of them were cut at both sides"
    assert legend_columns([130, 130]) == 1
