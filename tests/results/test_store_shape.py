"""Damaged, hand-edited and swapped files of a run: one line each, whatever reads them, and never a traceback."""

import errno
import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
from compare_command import dsbench
from synthetic_run import write_synthetic_run

from dsbench.analysis.compare import compare
from dsbench.analysis.summary import write_summary
from dsbench.errors import UsageError
from dsbench.results.cells import Cell
from dsbench.results.columns import from_source
from dsbench.results.store import RunStore
from dsbench.sweep.run import check_settings
from dsbench.views.break_even import show_break_even
from dsbench.views.frontier.section import show_frontier
from dsbench.views.plots import draw_all
from dsbench.views.report import write_report
from dsbench.views.show import print_summary
from dsbench.views.waterfall import draw_run

MEMORY = {
    "weights": dict.fromkeys(("target", "drafter", "chain", "packed"), 2**20),
    "pools": [],
    "executors": [],
    "rest": 2**20,
    "rest_is": "temporary buffers",
    "peak": 2**30,
    "peak_is": "resident",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    write_synthetic_run(folder, modes=("none", "static", "compact"), batches=(2,), workloads=("math",), repeats=1)
    return folder


def edited(whole, folder, file, change):
    shutil.copytree(whole, folder)
    (path,) = list(folder.glob(file))[:1]
    body = json.loads(path.read_text())
    path.write_text(json.dumps(change(body)))
    return folder


def readers(folder, tmp_path):
    return (
        lambda: print_summary(folder),
        lambda: show_break_even(folder, workload="", batch="", as_json=True),
        lambda: write_report(folder, out=tmp_path / "report.html", markdown=False, partial=True),
        lambda: compare(f"{folder}:none", f"{folder}:static", home=tmp_path),
        lambda: draw_all(RunStore(folder), tmp_path / "pictures", formats=("svg",)),
        lambda: draw_run(RunStore(folder), tmp_path / "pictures", formats=("svg",)),
        lambda: show_frontier(folder, arm="compact", base="none", workload=""),
        lambda: write_summary(RunStore(folder)),
    )


def without(name):
    return lambda body: {key: value for key, value in body.items() if key != name}


def parameter(**changes):
    return lambda body: body | {"parameters": body["parameters"] | changes}


def figure(**changes):
    return lambda body: body | {"summary": body["summary"] | changes}


CELLS = {
    "a list": lambda body: [1],
    "a number": lambda body: 3,
    "no parameters": without("parameters"),
    "no summary": without("summary"),
    "no flags": without("flags"),
    "no status": without("status"),
    "parameters of null": lambda body: body | {"parameters": None},
    "flags of numbers": lambda body: body | {"flags": [3]},
    "summary of text": lambda body: body | {"summary": "x"},
    "batch of text": parameter(batch="x"),
    "mode of null": parameter(mode=None),
    "temperature of a list": parameter(temperature=[1]),
    "rate of text": parameter(rate="x"),
    "seed of true": parameter(seed=True),
    "endless temperature": parameter(temperature=float("inf")),
    "huge temperature": parameter(temperature=10**400),
    "throughput of a list": figure(throughput=[1]),
    "speed without a value": figure(user_speed={"low": 1.0}),
    "huge tau": figure(tau={"value": 10**400, "low": None, "high": None, "n": 1}),
    "window of text": figure(window="x"),
    "latency of a number": figure(ttft_p50=0.1),
    "repetition of text": figure(repetition="x"),
    "rounds of text": figure(rounds="x"),
    "drift of a list": figure(drift=[1]),
    "step times of text": figure(step_seconds="x"),
    "no mode": lambda body: body | {"parameters": without("mode")(body["parameters"])},
}


@pytest.mark.parametrize("what", CELLS)
def test_a_cell_that_is_none_is_said_in_one_line_by_every_reader(whole, tmp_path, what):
    folder = edited(whole, tmp_path / "run", "cells/*/cell.json", CELLS[what])
    for read in readers(folder, tmp_path):
        with pytest.raises(UsageError, match="damaged file: cell.json"):
            read()
    assert not (tmp_path / "report.html").exists()


RATE = {"value": 1.0, "low": 0.9, "high": 1.1, "n": 3}
NOT_A_NUMBER, VAST = float("nan"), 10**400
IN_ALL = ["x", [1], True, {}, NOT_A_NUMBER]  # no column may hold one of these, but as below
BESIDES = {
    "number": [VAST, RATE],
    "count": [VAST, RATE, -1, 1.5],
    "text": [1.0, RATE],
    "rate": [1.0, RATE | {"value": None}, RATE | {"low": None}, RATE | {"n": "x"}, RATE | {"high": NOT_A_NUMBER}]
    + [{key: RATE[key] for key in RATE if key != gone} for gone in RATE],
    "counts": [1.0, [1, None], ["x"], [-1], RATE],
    "depths": [1.0, [{"depth": 1}], [{"depth": 1, "trials": 2, "rate": "x"}], [{"depth": "1", "trials": 2}], RATE],
    "parts": [1.0, {"math": 1}, {"math": {"rounds": "x"}}, {"math": {"requests": 1, "prompts": 1}}, RATE],
}
BESIDES["quantile"] = BESIDES["rate"]
FITS = {"text": ["x"], "counts": [[1]], "parts": [{}]}  # of IN_ALL


def damages(column):
    """Values that the column may not hold."""
    fits = FITS.get(column.kind, [])
    values = [value for value in [*IN_ALL, *BESIDES[column.kind]] if value not in fits]
    return values + ([None] if column.always else [])


def with_value(column, value):
    def change(body):
        *objects, last = column.keys
        summary = body["summary"]
        if objects:
            summary = summary | {objects[0]: (summary[objects[0]] or {}) | {last: value}}
        else:
            summary = summary | {last: value}
        return body | {"summary": summary}

    return change


@pytest.mark.parametrize("column", from_source("summary"), ids=lambda column: column.name)
def test_a_damaged_number_is_said_in_one_line_by_every_reader(whole, tmp_path, column):
    """Of every declared column in turn; in one way of them by all readers, in all ways by what they read cells with."""
    folder = edited(
        whole, tmp_path / "run", "cells/*/cell.json", with_value(column, "x" if column.kind != "text" else 1)
    )
    said = f"damaged file: cell.json: '{'.'.join(column.keys)}' of the summary is damaged"
    for read in readers(folder, tmp_path):
        with pytest.raises(UsageError, match=said):
            read()
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())
    (path,) = [p for p in folder.glob("cells/*/cell.json") if p.read_text() != original(whole, p)]
    for value in damages(column):
        path.write_text(json.dumps(with_value(column, value)(json.loads(original(whole, path)))))
        with pytest.raises(UsageError, match=said):
            RunStore(folder).cells()


def original(whole, path):
    return (whole / "cells" / path.parent.name / "cell.json").read_text()


@pytest.mark.parametrize("part", ["step_seconds", "phase_share", "predicted_error", "drift"])
def test_an_object_of_a_summary_that_lacks_a_key_is_damaged(whole, tmp_path, part):
    folder = edited(whole, tmp_path / "run", "cells/*/cell.json", figure(**{part: {"n": 3}}))
    with pytest.raises(UsageError, match=f"'{part}[.][a-z0-9]+' of the summary is damaged"):
        RunStore(folder).cells()


@pytest.mark.parametrize("gone", [False, True])
def test_every_reader_works_without_what_a_cell_may_lack(whole, tmp_path, gone, capsys):
    """Numbers that are null, or that an older run did not know."""
    shutil.copytree(whole, tmp_path / "run")
    for path in (tmp_path / "run").glob("cells/*/cell.json"):
        body = json.loads(path.read_text())
        kept = {c.name: body["summary"][c.name] for c in from_source("summary") if c.always}
        rest = {} if gone else {c.keys[0]: None for c in from_source("summary") if not c.always}
        path.write_text(json.dumps(body | {"summary": kept | rest}))
    for read in readers(tmp_path / "run", tmp_path):
        read()
    assert "no data" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "report", "plot", "compare", "frontier", "waterfall", "break-even", "slo"])
def test_a_damaged_number_exits_2_with_one_line(whole, tmp_path, command):
    damaged = figure(acceptance_of_drafted={"value": "x", "low": None, "high": None, "n": 1})
    edited(whole, tmp_path / "run", "cells/*/cell.json", damaged)
    asked = {"compare": ["run:none", "run:static"], "slo": ["run", "--slo", "ttft:1s"]}.get(command, ["run"])
    code, out, err = dsbench(command, *asked, home=tmp_path)
    assert (code, out) == (2, "") and err.count("\n") <= 2 and "Traceback" not in err
    assert "'acceptance_of_drafted' of the summary is damaged" in " ".join(err.split())


@pytest.mark.parametrize("key", ["config", "contract", "environment", "labels", "workloads", "memory", "cost_table"])
@pytest.mark.parametrize("value", [3, "x", [1]])
def test_a_run_json_of_other_types_is_said_in_one_line_by_every_reader(whole, tmp_path, key, value):
    folder = edited(whole, tmp_path / "run", "run.json", lambda body: body | {key: value})
    for read in readers(folder, tmp_path):
        with pytest.raises(UsageError, match=f"run.json is damaged: '{key}'"):
            read()


@pytest.mark.parametrize(
    "change", [{"peak": "x"}, {"weights": None}, {"pools": [{}]}, {"executors": 3}, {"rest_is": 3}, {"rest": -1.5}]
)
def test_damaged_memory_is_said_in_one_line_by_every_reader(whole, tmp_path, change):
    folder = edited(whole, tmp_path / "run", "run.json", lambda body: body | {"memory": MEMORY | change})
    for read in readers(folder, tmp_path):
        with pytest.raises(UsageError, match="run.json is damaged: 'memory' is damaged"):
            read()


def test_a_cell_json_that_is_none_is_written_again(whole, tmp_path):
    folder = edited(whole, tmp_path / "run", "cells/*/cell.json", lambda body: [1])
    (path,) = list(folder.glob("cells/*/cell.json"))[:1]
    assert not RunStore(folder).tells(path.parent.name, {0}, "")


def test_tables_that_were_swapped_are_said_in_one_line(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (repeat,) = list((tmp_path / "run").glob("cells/*/rep-0"))[:1]
    shutil.copy(repeat / "requests.parquet", repeat / "steps.parquet")
    with pytest.raises(UsageError, match="steps.parquet has no column"):
        show_break_even(tmp_path / "run", workload="", batch="", as_json=True)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("requests", "finished", None),
        ("requests", "finished", float("nan")),
        ("requests", "first_token", "x"),
        ("requests", "admitted", "x"),
        ("requests", "output_tokens", "x"),
        ("steps", "seconds", None),
        ("steps", "seconds", float("inf")),
    ],
)
def test_a_column_that_holds_no_numbers_is_said_in_one_line(whole, tmp_path, name, column, value):
    """Among them by `compare`, whose verdict would be of nothing."""
    shutil.copytree(whole, tmp_path / "run")
    for path in (tmp_path / "run").glob(f"cells/*/rep-0/{name}.parquet"):
        pd.read_parquet(path).assign(**{column: value}).to_parquet(path)
    _, costs, report, against, *_ = readers(tmp_path / "run", tmp_path)
    for read in (costs, report, *([against] if name == "requests" and column != "first_token" else [])):
        with pytest.raises(UsageError, match=f"{name}.parquet: {column!r} holds what is no number"):
            read()


def test_what_else_lies_beside_the_repeats_is_none(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    store = RunStore(tmp_path / "run")
    (repeat,) = list((tmp_path / "run").glob("cells/*/rep-0"))[:1]
    shutil.copytree(repeat, repeat.with_name("rep-0.old"))
    (repeat.parent / "rep-notes").write_text("")
    assert store.repeats(repeat.parent.name) == {0}
    assert all(len(stored.facts()) == 1 for stored in store.cells())


def test_no_repeat_is_removed_because_the_system_would_not_read_it(whole, tmp_path, monkeypatch):
    store = RunStore(Path(shutil.copytree(whole, tmp_path / "run")))
    held = sorted(store.folder.rglob("*.parquet"))

    def refused(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet, "read_metadata", refused)
        with pytest.raises(OSError, match="Input/output"):
            store.mend()
    assert sorted(store.folder.rglob("*.parquet")) == held and store.mend() == []
    held[0].write_bytes(b"PAR1" + bytes(200) + b"\x10\0\0\0PAR1")
    assert len(store.mend()) == 1


def test_facts_that_are_none_are_damaged(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    for stored in RunStore(tmp_path / "run").cells():
        (stored.folder / "rep-0" / "repeat.json").write_text("[1]")
        with pytest.raises(UsageError, match="damaged"):
            stored.facts()


def test_a_cell_of_the_right_types_is_no_fault(whole):
    assert all(isinstance(stored.cell, Cell) for stored in RunStore(whole).cells())


def test_a_run_without_settings_cannot_be_gone_on_with(tmp_path):
    with pytest.raises(UsageError, match="does not say its settings"):
        check_settings({"schema": 1}, None, tmp_path)  # type: ignore[arg-type]


def test_what_a_kill_leaves_of_opening_a_run_is_mended(tmp_path):
    store = RunStore(tmp_path / "r", create=True)
    (store.folder / ".writable-1").touch()
    assert store.mend() == [] and list(store.folder.glob(".*")) == []
