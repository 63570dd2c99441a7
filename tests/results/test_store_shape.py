"""Damaged, hand-edited and swapped files of a run: one line each, whatever reads them, and never a traceback."""

import errno
import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet
import pytest
from synthetic_run import write_synthetic_run

from dsbench.analysis.compare import compare
from dsbench.errors import UsageError
from dsbench.results.store import Cell, RunStore
from dsbench.sweep.run import check_settings
from dsbench.views.report import write_report
from dsbench.views.summary import print_summary
from dsbench.views.waterfall_table import show_ledger


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
        lambda: show_ledger(folder, workload="", batch="", as_json=True),
        lambda: write_report(folder, out=tmp_path / "report.html", markdown=False, partial=True),
        lambda: compare(f"{folder}:none", f"{folder}:static", home=tmp_path),
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


@pytest.mark.parametrize("key", ["config", "contract", "environment", "labels", "workloads", "memory", "cost_table"])
@pytest.mark.parametrize("value", [3, "x", [1]])
def test_a_run_json_of_other_types_is_said_in_one_line_by_every_reader(whole, tmp_path, key, value):
    folder = edited(whole, tmp_path / "run", "run.json", lambda body: body | {key: value})
    for read in readers(folder, tmp_path):
        with pytest.raises(UsageError, match=f"run.json is damaged: '{key}'"):
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
        show_ledger(tmp_path / "run", workload="", batch="", as_json=True)


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
    _, ledger, report, against = readers(tmp_path / "run", tmp_path)
    for read in (ledger, report, *([against] if name == "requests" and column != "first_token" else [])):
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
