"""The report: whole, offline, labelled, with the numbers of the run behind every table; and in a real browser."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from command import dsbench, refused
from staircase_run import law, window_of, write_staircase_run
from synthetic_run import BLOCK, make_cell, write_synthetic_run

from dsbench.analysis.gains import main_arm
from dsbench.analysis.prediction import by_arm, by_tier, off, over_run, steps_of
from dsbench.errors import IncompleteRun, UsageError
from dsbench.results.completeness import missing_cells
from dsbench.results.store import RunStore
from dsbench.stats.intervals import Interval
from dsbench.views.report import make_report, write_report
from dsbench.views.report_html import as_html
from dsbench.views.report_markdown import as_markdown
from dsbench.views.tables import Table, as_csv, shown

SVG = "{http://www.w3.org/2000/svg}"
NASTY = 'toy <script>alert("x")</script> [a](http://x.example) | `b`'
MODES = ["none", "static:2", "static", "compact", "cap-accept", "compact:oracle"]


class Page(HTMLParser):
    """Collects tags with their attributes, and the text outside style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if "style" not in self._open:
            self.words.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def data_of(url):
    head, _, body = url.partition(",")
    assert head.endswith(";base64")
    return base64.b64decode(body).decode()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    store = write_synthetic_run(
        tmp_path_factory.mktemp("runs") / "r",
        modes=MODES,
        batches=[1, 4],
        workloads=["math", "chat"],
        repeats=2,
        tokens=24,
        measured=9,
    )
    body = store.read_run()
    body |= {
        "config": {"mode": ",".join(MODES), "batch": "1,4"},
        "workloads": [
            {"name": name, "source": "drawn", "licence": "-", "digest": "ab" * 32} for name in ("math", "chat")
        ],
        "memory": {
            "weights": {"target": 2**21, "drafter": 2**20, "chain": 0, "packed": 0},
            "pools": [],
            "executors": [],
            "rest": 2**20,
            "rest_is": "temporary buffers",
            "peak": 2**22,
            "peak_is": "resident",
        },
        "labels": body["labels"] | {"target": NASTY, "synthetic": True},
    }
    store.write_run(body)
    return store


@pytest.fixture(scope="module")
def report(run):
    return make_report(run)


@pytest.fixture(scope="module")
def page(report):
    return Page(as_html(report))


def table_of(report, name):
    return next(t for s in report.sections for t in s.tables if t.name == name)


def test_every_picture_has_ink_alt_text_and_its_conditions(report, page):
    images = page.of("img")
    names = {p.name for s in report.sections for p in s.pictures}
    assert len(images) == len(names) >= 6
    assert names >= {
        "frontier",
        "budget",
        "waterfall-static-compact",
        "waterfall-none-compact",
        "step-time",
        "prediction",
    }
    for image in images:
        assert len(image["alt"]) > 80 and "SYNTHETIC DATA" in image["alt"] and "coupled, T=1" in image["alt"]
        root = ElementTree.fromstring(data_of(image["src"]))
        assert len(root.findall(f".//{SVG}path")) > 20 and len(root.findall(f".//{SVG}text")) > 10
        assert "SYNTHETIC DATA" in "".join(root.itertext())
    assert page.text.count("SYNTHETIC DATA") >= 1 + len(images) + len(page.of("table"))


def test_the_page_fetches_nothing_runs_nothing_and_escapes_what_it_is_told(page):
    assert not page.of("script") and not page.of("iframe") and not page.of("object")
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, name)
    assert NASTY in page.text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = {a["href"][1:] for a in page.of("a") if a["href"].startswith("#")}
    assert anchors <= set(ids)


def test_every_table_can_be_downloaded_and_holds_what_is_shown(report, page):
    files = {a["download"]: data_of(a["href"]) for a in page.of("a") if a.get("download", "").endswith(".csv")}
    tables = [t for s in report.sections for t in s.tables]
    assert {f"{t.name}.csv" for t in tables} == set(files) and len(page.of("table")) == len(tables)
    for table in tables:
        rows = list(csv.reader(io.StringIO(files[f"{table.name}.csv"])))
        assert len(rows) == 1 + len(table.rows) and {len(row) for row in rows} == {len(rows[0])}


def test_points_are_the_cells_own_numbers(report, run):
    rows = {(r[0], r[1], r[2]): r for r in table_of(report, "frontier").rows}
    assert len(rows) == len(run.cells()) == 24
    for stored in run.cells():
        row = rows[stored.cell.workload, stored.cell.batch, stored.cell.mode]
        for at, key in ((3, "throughput"), (4, "user_speed"), (6, "tau"), (7, "window")):
            rate = stored.summary[key]
            assert (row[at].value, row[at].low, row[at].high) == (rate["value"], rate["low"], rate["high"])
    text = " ".join(report.headline)
    for base in ("none", "best fixed window", "best fixed window or none", "oracle"):
        assert f"compact against {base}: " in text
    assert "of 4 cells" in text and "At none's throughput" in text
    flagged = [("cells are flagged" in line) for line in report.headline]
    assert flagged.index(True) == (0 if any(c.flags for c in run.cells()) else len(flagged) - 1)


def test_budgets_and_windows_sum_to_the_block_and_to_one(report):
    for row in table_of(report, "budget").rows:
        accepted, rejected, missed, trimmed = row[8:12]
        assert accepted + rejected + (missed or 0) + trimmed == pytest.approx(BLOCK)
        assert row[12].value == pytest.approx(accepted + 1)
    windows = table_of(report, "windows")
    assert windows.heads[4:] == tuple(str(i) for i in range(BLOCK + 1))
    for row in windows.rows:
        assert sum(float(share.rstrip("%")) for share in row[4:]) == pytest.approx(100, abs=3)


def test_the_page_says_under_what_conditions(page):
    for part in (
        "Virtual CPU @ 2.0 GHz",
        "arms none, static:2, static, compact, ",
        "seed 0",
        "at most 30 tokens",
        "math (drawn",
        "prompt tokens",
        "Memory",
        "4.00",
        "How to read the numbers",
        "Conditions",
    ):
        assert part in page.text, part


def test_markdown_has_the_headline_the_gains_and_no_markup_of_others(report):
    text = as_markdown(report)
    lines = text.splitlines()
    assert lines[0].startswith("## toy") and "<script>" not in text and "](http" not in text
    assert "**SYNTHETIC DATA" in lines[2]
    assert sum(line.startswith("- compact against") for line in lines) == 4
    table = [line for line in lines if line.startswith("| chat |")]
    assert len(table) >= 2 and len({line.count(" | ") for line in table[:2]}) == 1
    assert text.count("<details>") == text.count("</details>") and "img" not in text


def test_an_unfinished_run_is_refused_by_name_or_reported_as_such(run, tmp_path):
    folder = tmp_path / "half"
    shutil.copytree(run.folder, folder)
    gone = [
        c
        for c in RunStore(folder).cells()
        if (c.cell.workload, c.cell.batch, c.cell.mode) in (("math", 4, "static"), ("chat", 1, "none"))
    ]
    (gone[0].folder / "cell.json").unlink()
    shutil.rmtree(gone[1].folder)
    store = RunStore(folder)
    assert missing_cells(store) == [("chat", 1, "none"), ("math", 4, "static")]
    assert "INCOMPLETE: this run lacks none at R=1 on chat" in dsbench("show", str(folder), home=tmp_path).stdout
    with pytest.raises(IncompleteRun, match="lacks 2 cells: none at R=1 on chat, static at R=4 on math; 1 begun"):
        write_report(folder, out=None, markdown=False, partial=False)
    assert not (folder / "report.html").exists()
    half = make_report(store, partial=True, pictures=False)
    assert "INCOMPLETE: this run lacks none at R=1 on chat" in half.loud
    assert len(table_of(half, "frontier").rows) == 22
    refused(dsbench("report", str(folder), home=tmp_path), 5, "lacks 2 cells", "--resume")


def test_a_run_whose_modes_were_a_range_lacks_nothing(tmp_path):
    store = write_synthetic_run(
        tmp_path / "run", modes=["none", "static:1", "static:2"], batches=[1], workloads=["math"], repeats=1, measured=3
    )
    config = {"mode": "none,static:1:2", "batch": "1"}
    sets = [{"name": "math", "digest": ""}]
    store.write_run(store.read_run() | {"config": config, "workloads": sets})
    assert missing_cells(store) == []
    store.write_run(store.read_run() | {"config": config | {"mode": "none,static:1:3"}})
    assert missing_cells(store) == [("math", 1, "static:3")]


def test_a_cell_of_the_open_loop_is_none_of_the_closed_one(tmp_path):
    store = write_synthetic_run(
        tmp_path / "run", modes=["none"], batches=[1, 2], workloads=["math"], repeats=1, measured=3
    )
    config = {"mode": "none", "batch": "1,2", "request_rate": "2,closed"}
    store.write_run(store.read_run() | {"config": config, "workloads": [{"name": "math", "digest": ""}]})
    path = tmp_path / "run" / "cells" / "none-2-math" / "cell.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"parameters": body["parameters"] | {"arrivals": "Poisson", "rate": 2.0}}))
    assert missing_cells(store) == [("math", 2, "none")]


def test_what_cannot_be_reported_is_refused_in_words(run, tmp_path):
    empty = RunStore(tmp_path / "empty", create=True)
    empty.write_run({})
    with pytest.raises(UsageError, match="no data"):
        make_report(empty)
    with pytest.raises(UsageError, match="it is a folder"):
        write_report(run.folder, out=tmp_path, markdown=False, partial=False)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write"):
        write_report(run.folder, out=tmp_path / "file" / "r.html", markdown=False, partial=False)
    refused(dsbench("report", str(tmp_path / "nothing"), home=tmp_path), 2, "holds no run")
    done = dsbench("report", str(run.folder), "--markdown", home=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("## toy")


def test_a_run_of_plain_decoding_alone_has_a_report(tmp_path):
    store = write_synthetic_run(tmp_path / "r", modes=["none"], batches=[1], workloads=["chat"], repeats=1, measured=1)
    report = make_report(store)
    assert main_arm(store.cells()) == "none"
    said = {s.id: s.text for s in report.sections}
    assert said["budget"] == ("No planned arm ran.",) and "lacks the arms" in said["waterfall"][0]
    assert (
        "no data" in said["break-even"][0] and "No step" in said["prediction"][0] and "no memory" in said["memory"][0]
    )
    assert Page(as_html(report)).of("img")


def test_the_headline_knows_the_law(tmp_path):
    """On a staircase without noise: ratios of closed forms, no interval's width."""
    modes, batches = ("none", "static:1", "static"), (1, 3)
    store = write_staircase_run(tmp_path / "r", make_cell, modes=modes, batches=batches)
    rows = {row[1]: row for row in table_of(make_report(store, pictures=False), "gains").rows}
    for batch in batches:
        one, other = (law(batch, window_of(mode)).throughput for mode in ("static", "none"))
        assert rows[batch][2].ratio.value == pytest.approx(one / other)


def test_the_error_of_predictions_is_told_by_tier_and_over_the_run(tmp_path):
    store = write_staircase_run(tmp_path / "r", make_cell, modes=["static"], batches=[2])
    (stored,) = store.cells()
    file = stored.folder / "rep-0" / "steps.parquet"
    steps = stored.table("steps").drop(columns="rep")
    half = np.arange(len(steps)) >= len(steps) / 2
    steps["predicted_seconds"] = (steps["seconds"] - steps["prefill_seconds"]) * np.where(half, 1.2, 0.9)
    steps.loc[0, "predicted_seconds"] = np.nan
    steps.loc[half, "tier"] = 32
    steps.to_parquet(file)
    found = steps_of(stored)
    whole = off(found.error)
    assert whole.n == len(steps) - 1 and whole.p95 == pytest.approx(0.2)
    tiers = by_tier(by_arm(store.cells())["static"])
    assert {tier: round(one.bias, 6) for tier, one in tiers.items()} == {16: -0.1, 32: 0.2}
    over = over_run(found)
    assert [round(one.bias, 6) for one in over.values()] == [-0.1] * 5 + [0.2] * 5
    assert list(over) == pytest.approx(np.arange(10) / 10 + 0.05) and off(np.array([])) is None


def test_values_are_shown_short_and_kept_whole():
    interval = Interval(1.23456, 1.2, None, 3)
    assert [shown(v) for v in (None, "x", 12345, 12345.6, 0.12345, -0.00001, float("nan"), interval)] == [
        "–",
        "x",
        "12,345",
        "12,346",
        "0.123",
        "0.000",
        "–",
        "1.23",
    ]
    assert shown(Interval(1.23456, 1.2, 1.3, 3)) == "1.23 [1.20, 1.30]"
    table = Table(name="t", caption="", heads=("a", "b"), rows=((1, Interval(1.23456, 1.2, 1.3, 3)), (None, None)))
    assert as_csv(table) == "a,b,b_low,b_high\n1,1.23456,1.2,1.3\n,,,\n"


@pytest.mark.slow
def test_a_real_browser_shows_it(report, tmp_path):
    """Light and dark, wide and on a phone: pictures drawn and not blank, no console message, no sideways scroll."""
    playwright = pytest.importorskip("playwright.sync_api")
    browser_file = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if browser_file is None:
        pytest.skip("no browser here")
    file = tmp_path / "report.html"
    file.write_text(as_html(report))
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=browser_file, args=["--no-sandbox"])
        looks = {}
        for scheme in ("light", "dark"):
            for width in (1280, 390):
                context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
                tab, said = context.new_page(), []
                tab.on("console", lambda message, said=said: said.append(message.text))
                tab.on("pageerror", lambda error, said=said: said.append(str(error)))
                tab.on(
                    "request", lambda r, said=said: None if r.url.startswith(("data:", "file:")) else said.append(r.url)
                )
                tab.goto(file.as_uri())
                assert said == []
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                loaded = tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 500)")
                assert loaded and tab.evaluate("document.images.length") == len(Page(file.read_text()).of("img"))
                looks[scheme] = tab.evaluate("getComputedStyle(document.body).backgroundColor")
                shot = tab.locator("figure img").first.screenshot()
                assert len(set(_pixels(shot))) > 20, "a picture is blank"
                context.close()
        browser.close()
    light, dark = (sum(map(int, re.findall(r"\d+", looks[s])[:3])) for s in ("light", "dark"))
    assert light > 700 > 150 > dark


def _pixels(png):
    from matplotlib.image import imread

    values = (imread(io.BytesIO(png))[..., :3] * 15).astype(int).reshape(-1, 3)
    return map(tuple, values[:: max(1, len(values) // 20000)])


def test_a_report_is_the_same_twice(run, report):
    again = make_report(run, pictures=False)
    assert json.dumps([as_csv(t) for s in again.sections for t in s.tables]) == json.dumps(
        [as_csv(t) for s in report.sections for t in s.tables]
    )
