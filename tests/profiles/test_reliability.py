"""The calibration report: what it says of rounds whose truth is known, its file, and the pictures of its bins."""

from __future__ import annotations

import csv
import math
from functools import cache

import numpy as np
import pytest
from matplotlib.figure import Figure

from dsbench.drafting.calibrate import fit_and_score
from dsbench.drafting.rollouts import Rollout
from dsbench.errors import UsageError
from dsbench.profiles import metrics
from dsbench.profiles.calibration import EventKey
from dsbench.profiles.calibration_fit import Rounds, fit_calibration
from dsbench.profiles.calibration_report import CalibrationReport, load_report, reliability_bins, report_rows
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.request import Request
from dsbench.views import reliability
from dsbench.views.reliability import draw_reliability, print_report, wilson

COUPLED = EventKey(rule="coupled", temperature=1.0)


def law(n, scale, offset, *, seed):
    """Rounds of block 3 whose conditional acceptance is sigmoid(scale * z + offset)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(0.6, 1.4, (n, 3))
    passed = rng.random((n, 3)) < 1 / (1 + np.exp(-(scale * z + offset)))
    return Rounds(logits=z, accepted=np.cumprod(passed, axis=1).sum(axis=1), window=np.full(n, 3))


@cache
def report(scale=1.0, offset=0.0, *, events=(COUPLED,), poetry=60):
    """Workloads chat (3000 rounds) and poetry, scored; the maps are fitted on other rounds of the same law."""
    rows = []
    for number, event in enumerate(events):
        parts = {"chat": law(3000, scale, offset, seed=number), "poetry": law(poetry, scale, offset, seed=50 + number)}
        together = {
            n: np.concatenate([getattr(r, n) for r in parts.values()]) for n in ("logits", "accepted", "window")
        }
        fitted = law(4000, scale, offset, seed=90 + number)
        maps = [fit_calibration(fitted, method=method, event=event) for method in ("sts", "platt")]
        rows += report_rows(parts | {"all": Rounds(**together)}, maps)
    facts = {"device": "Virtual CPU", "split": "fitted on even requests, scored on odd ones"}
    return CalibrationReport(rows=tuple(rows), contract={"drafter": "d1"}, provenance=facts)


def one(found, **wanted):
    (row,) = found.select(**wanted)
    return row


def test_a_calibrated_head_lies_in_the_band_with_skill_at_every_depth():
    found = report()
    for kind in ("conditional", "prefix"):
        for depth in (1, 2, 3):
            scores = one(found, workload="all", method="raw", kind=kind, depth=depth).scores
            assert scores.ece <= 1.25 * scores.ece_null[1]  # 95% of the band is not all of it
            assert scores.skill > 0.1 and scores.auc > 0.65
    pooled = one(found, workload="all", method="raw", kind="conditional", depth=0).scores
    assert pooled.within_noise


def test_an_overconfident_head_is_found_and_platt_mends_it():
    found = report(scale=0.4, offset=-0.7)
    for kind in ("conditional", "prefix"):
        rows = {m: one(found, workload="all", method=m, kind=kind, depth=1).scores for m in ("raw", "sts", "platt")}
        assert rows["raw"].ece > 3 * rows["raw"].ece_null[1] and rows["raw"].skill < 0
        assert rows["raw"].mean_probability > rows["raw"].base_rate + 0.1
        assert rows["platt"].ece < 1.5 * rows["platt"].ece_null[1] and rows["platt"].skill > 0
        assert rows["platt"].log_loss < rows["sts"].log_loss < rows["raw"].log_loss


def test_rows_are_the_held_out_events_and_nothing_else():
    #                 rejected at 1, at 2, all, all of a 2-window
    rounds = Rounds(
        logits=np.array([[0.0, 9, 9], [2, -1, 9], [1, 1, 1], [-1, 3, 9]]),
        accepted=np.array([0, 1, 3, 2]),
        window=np.array([3, 3, 3, 2]),
    )
    maps = [fit_calibration(law(200, 1, 0, seed=3), method="platt", event=COUPLED)]
    rows = CalibrationReport(rows=tuple(report_rows({"chat": rounds}, maps)))
    place = {"workload": "chat", "method": "raw"}
    counts = [one(rows, kind="conditional", depth=k, **place).scores.n for k in range(4)]
    assert counts == [4 + 3 + 1, 4, 3, 1]
    assert [one(rows, kind="prefix", depth=k, **place).scores.n for k in range(4)] == [4 + 4 + 3, 4, 4, 3]
    first = one(rows, kind="conditional", depth=1, **place).scores
    # hits have logits 2, 1, -1; the miss 0: two of three pairs are in order
    assert (first.base_rate, first.auc) == (0.75, pytest.approx(2 / 3))
    second = one(rows, kind="prefix", depth=2, **place).scores
    p = [s(a) * s(b) for a, b, *_ in rounds.logits]
    assert second.brier == pytest.approx(metrics.brier(p, [0, 0, 1, 1]))
    assert second.log_loss == pytest.approx(metrics.log_loss(p, [0, 0, 1, 1]))


def s(x):
    return 1 / (1 + math.exp(-x))


def test_maps_are_fitted_on_even_requests_and_scored_on_odd_ones():
    def rollout(number, accepted):
        record = RoundRecord(
            step=0,
            request=number,
            workload="w",
            position=0,
            output_index=0,
            window=2,
            verified=2,
            accepted=accepted,
            delivered=accepted + 1,
            ceiling=accepted + 1,
            flips=0,
            drafts=(1, 2),
            logits=(0.5, 0.5),
            token_free_logits=(-1.0, -1.0),
        )
        text = Request(id=number, name=str(number), workload="w", prompt_ids=[1], sampling=None, output=[0] * 9)
        return Rollout(text, (record,) * 3)

    own = {name: [rollout(i, 0 if i % 2 else 2) for i in range(n)] for name, n in (("chat", 40), ("math", 20))}
    for head, logit in (("conditioned", 0.5), ("free", -1.0)):
        maps, rows = fit_and_score(own, COUPLED, head)
        assert [m.method for m in maps] == ["sts", "platt"] and all(m.n == 90 and m.prior[0] > 0.98 for m in maps)
        assert {m.after.prefix[0].base_rate for m in maps} == {0.0}
        found = CalibrationReport(rows=tuple(rows))
        for workload, n in (("chat", 60), ("math", 30), ("all", 90)):
            row = one(found, workload=workload, method="raw", kind="conditional", depth=1)
            assert (row.scores.n, row.scores.base_rate, row.head) == (n, 0.0, head)
            assert row.scores.mean_probability == pytest.approx(s(logit))


def test_bins_hold_every_observation_once():
    p, y = np.array([0.0, 0.049, 0.05, 0.51, 1.0]), np.array([False, True, True, True, True])
    bins = reliability_bins(p, y)
    assert [(b.index, b.n, b.hits) for b in bins] == [(0, 2, 1), (1, 1, 1), (10, 1, 1), (19, 1, 1)]
    assert bins[0].mean_probability == pytest.approx(0.0245)
    gap = sum(abs(b.n * b.mean_probability - b.hits) for b in bins) / len(p)
    assert gap == pytest.approx(metrics.ece(p, y))


def test_a_saved_report_comes_back_equal_and_its_csv_has_every_row(tmp_path):
    found = report()
    found.save(tmp_path / "r.json")
    assert load_report(tmp_path / "r.json") == found
    with (tmp_path / "r.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(found.rows) == 3 * 3 * 2 * 4  # workloads, maps, kinds, depths and all of them
    for line, row in zip(lines, found.rows, strict=True):
        assert (line["workload"], line["method"], int(line["depth"])) == (row.workload, row.method, row.depth)
        assert float(line["ece"]) == row.scores.ece and float(line["ece_null_p95"]) == row.scores.ece_null[1]
    (tmp_path / "r.json").write_text((tmp_path / "r.json").read_text().replace('"conditional"', '"other"'))
    with pytest.raises(UsageError, match="damaged calibration-report"):
        load_report(tmp_path / "r.json")


def test_the_printed_table_has_a_line_an_event_and_depth(capsys):
    found = report(events=(COUPLED, EventKey(rule="residual", temperature=0.7)))
    print_report(found)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 140
    tables = [line for line in lines if line.startswith(("coupled at", "residual at"))]
    assert len(tables) == 2 * 2 * 3 + 2 * 3  # kinds, events, depths; events, workloads
    raw, platt = (one(found, event=COUPLED, workload="all", kind="prefix", depth=3, method=m) for m in ("raw", "platt"))
    line = tables[2 * 3 + 2]
    for value in (f" {raw.scores.n} ", f"{raw.scores.ece:.3f}/", f"{platt.scores.log_loss:.3f}"):
        assert value in line
    assert f"[{platt.scores.ece_null[0]:.3f},{platt.scores.ece_null[1]:.3f}]" in line


def test_wilson_is_the_textbook_interval():
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))
    assert wilson(8, 10) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))


@pytest.fixture
def figures(monkeypatch) -> dict[str, Figure]:
    """Pictures by name, kept instead of written."""
    kept: dict[str, Figure] = {}

    def keep(figure, out, name, formats):
        kept[name] = figure
        return [out / name]

    monkeypatch.setattr(reliability, "save", keep)
    return kept


def test_reliability_lines_are_the_reports_bins(figures, tmp_path):
    found = report()
    draw_reliability(found, tmp_path)
    assert set(figures) == {
        f"reliability-{by}-{kind}{'' if by == 'event' else '-coupled-1'}"
        for by in ("depth", "workload", "event")
        for kind in ("conditional", "prefix")
    }
    panels = {axes.get_title(): axes for axes in figures["reliability-depth-prefix-coupled-1"].axes if axes.get_title()}
    assert list(panels) == [f"depth {k}   n = 3060" for k in (1, 2, 3)]
    for depth, axes in enumerate(panels.values(), start=1):
        for bars, method in zip(axes.containers, ("raw", "sts", "platt"), strict=True):
            row = one(found, workload="all", method=method, kind="prefix", depth=depth)
            shown = [b for b in row.bins if b.n >= 10]
            line, _, (reach,) = bars.lines
            np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [b.mean_probability for b in shown])
            np.testing.assert_allclose(np.asarray(line.get_ydata(), float), [b.hits / b.n for b in shown])
            ends = np.array([segment[:, 1] for segment in reach.get_segments()])
            np.testing.assert_allclose(ends, [wilson(b.hits, b.n) for b in shown], atol=1e-12)


def test_counts_are_drawn_below_and_small_panels_are_loud(figures, tmp_path):
    found = report()
    draw_reliability(found, tmp_path)
    axes = figures["reliability-workload-conditional-coupled-1"].axes
    titles = [a.title for a in axes if a.get_title()]
    poetry = one(found, workload="poetry", method="raw", kind="conditional", depth=0)
    assert poetry.scores.n < 200
    assert [t.get_text().split()[0] for t in titles] == ["chat", "poetry", "all"]
    assert f"n = {poetry.scores.n}" in titles[1].get_text()
    assert titles[1].get_color() == reliability.LOUD != titles[0].get_color()
    strip = next(a for a in axes if a.get_ylabel() == "count")
    chat = one(found, workload="chat", method="raw", kind="conditional", depth=0)
    drawn = strip.patches[0].get_data().values
    assert drawn.sum() == chat.scores.n and [drawn[b.index] for b in chat.bins] == [b.n for b in chat.bins]
