"""The one list of numbers: what is computed, written and shown is declared, and what is declared is computed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from synthetic_run import make_cell, write_synthetic_run

from dsbench.analysis.compare import as_json, compare
from dsbench.analysis.summary import summary_frame
from dsbench.results.cells import Cell
from dsbench.results.columns import BY_NAME, COLUMNS, from_source, value_of
from dsbench.results.store import RunStore
from dsbench.views.explain import document, explain

MEMORY = {
    "weights": dict.fromkeys(("target", "drafter", "chain", "packed"), 2**20),
    "pools": [],
    "executors": [],
    "rest": 2**20,
    "rest_is": "temporary buffers",
    "peak": 2**30,
    "peak_is": "resident",
}
ROOT = Path(__file__).parents[2]
OPEN_LOOP = {"offered_rate", "served_rate", "queue_wait"}  # absent from a cell at fixed concurrency


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    modes = ["none", "static", "static:2", "compact", "cap-accept"]
    folder = tmp_path_factory.mktemp("runs") / "r"
    run = write_synthetic_run(folder, modes=modes, batches=[8], workloads=["math", "mix:math=1,chat=1"])
    run.write_run(run.read_run() | {"config": {"slo": "ttft:10s"}, "memory": MEMORY})
    return run


def test_names_are_unique_and_every_number_has_a_unit_and_a_formula():
    names = [name for c in COLUMNS for name in {c.name, *c.csv_names}]
    assert len(set(names)) == len(names) and len(BY_NAME) == len(COLUMNS)
    also = [other for c in COLUMNS for other in c.also]
    assert len(set(also)) == len(also) and not set(also) & set(BY_NAME)
    assert all(c.unit and c.formula and c.kind for c in COLUMNS)
    assert all((c.kind == "term") == (not c.source) for c in COLUMNS)


def test_every_numeric_column_of_the_csv_is_declared_and_known_to_explain(store):
    frame = summary_frame(store)
    declared = {name: c for c in COLUMNS for name in c.csv_names}
    assert set(frame.columns) - set(declared) == {"arm", "flags"}
    assert set(declared) <= set(frame.columns)
    for name in frame.select_dtypes(["number", "bool"]).columns:
        assert name in declared[name].numeric
        assert explain(name).startswith(f"{declared[name].name} [")


def test_what_a_cell_holds_is_declared_and_what_is_declared_a_cell_holds(store):
    cells = {(c.cell.mode, c.cell.workload): c.summary for c in store.cells()}
    body = cells["compact", "mix:math=1,chat=1"]
    declared = from_source("summary")
    assert set(body) - {c.keys[0] for c in declared} == {"flags"}
    assert {c.keys[0] for c in declared} - set(body) == OPEN_LOOP
    absent = {c.name for c in declared if value_of(c, body) is None}
    assert absent - OPEN_LOOP <= {"ttft_p99", "tpot_p99", "e2e_p99", "itl_p50", "itl_p95", "itl_p99", "idle_share"}
    for part in body["workloads"].values():
        assert set(part) <= {c.keys[0] for c in declared}


def test_every_parameter_of_a_cell_is_declared_with_its_type():
    cell = asdict(make_cell("compact", 2, "math"))
    kinds = {"text": str, "count": int, "number": (int, float)}
    declared = {c.keys[0]: c for c in from_source("parameter")}
    assert set(declared) == {f.name for f in fields(Cell)}
    assert all(isinstance(cell[name], kinds[c.kind]) for name, c in declared.items())


def test_the_csv_holds_the_cells_own_numbers(store):
    frame = summary_frame(store).set_index(["mode", "workload"])
    for stored in RunStore(store.folder).cells():
        row, body = frame.loc[(stored.cell.mode, stored.cell.workload)], stored.summary
        assert row["step_seconds_p50"] == body["step_seconds"]["p50"]
        assert row["share_verify"] == body["phase_share"]["verify"]
        assert (row["tau_low"], row["tau"]) == (body["tau"]["low"], body["tau"]["value"])
        assert row["prompts"] == body["prompts"] and row["prompts_digest"] == stored.cell.prompts
        assert row["memory"] == 2**30 and row["goodput"] == 1.0


def test_what_compare_prints_as_json_is_explained(store, tmp_path):
    found = as_json(compare(f"{store.folder}:none", f"{store.folder}:static", home=tmp_path))
    numbers = {"workload", "modes", "paired_by_prompt"}
    for name in set(found["cells"][0]) - numbers:
        assert "[" in explain(name.replace("tokens_per_second", "throughput"))


def test_the_document_is_what_the_list_says():
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == document(), "run: python scripts/metrics_doc.py"


def test_the_list_loads_nothing_slow():
    code = "import sys, dsbench.results.columns, dsbench.views.explain\n"
    code += "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
