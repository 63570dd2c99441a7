"""`compare`, `noise` and `explain` as commands: verdicts, notes, refusals, exit codes; and what they load."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from compare_command import dsbench  # noqa: F401
from synthetic_run import make_cell, write_synthetic_run

from dsbench.analysis.compare import compare
from dsbench.results.columns import COLUMNS, from_source
from dsbench.results.metrics import held_in, held_slots
from dsbench.results.store import RunStore
from dsbench.views.explain import explain

ROOT = Path(__file__).parents[2]
LEAST = {c.name: 1 for c in from_source("summary") if c.always}  # what no finished cell lacks


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    write_synthetic_run(
        folder, modes=["none", "static", "static:2"], batches=[1, 8], workloads=["math", "chat"], repeats=3, noise=0.003
    )
    return folder


def copy(base, folder, *, factor=1.0, jitter=0.001, seed=1, **run):
    """The run measured again, `factor` times as slow; `run`: keys of run.json that are replaced."""
    shutil.copytree(base, folder)
    rng = np.random.default_rng(seed)
    for path in sorted(folder.glob("cells/*/rep-*/requests.parquet")):
        table, scale = pd.read_parquet(path), factor * np.exp(jitter * rng.standard_normal())
        for name in ("admitted", "first_token", "finished"):
            table[name] *= scale
        table.to_parquet(path, index=False)
    body = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(body | run))
    return folder


def edit_cells(folder, **changes):
    for path in folder.glob("cells/*/cell.json"):
        body = json.loads(path.read_text())
        body["parameters"] |= changes
        path.write_text(json.dumps(body))


def test_columns_without_pandas_are_those_of_the_table(base):
    stored = RunStore(base).cells()[0]
    ours, theirs = held_in(stored), held_slots(stored.table("requests"))
    assert ours.names == theirs.names
    assert np.array_equal(ours.tokens, theirs.tokens) and np.array_equal(ours.seconds, theirs.seconds)


def test_the_same_again_is_the_same_and_exits_0(base, tmp_path):
    copy(base, tmp_path / "b", code="")
    code, out, _ = dsbench("compare", str(base), "b", home=tmp_path)
    assert code == 0, out
    assert out.count("SAME") == 12 + 1 and "none is slower beyond noise" in out
    assert "b is as fast as a at batch 8 on chat, static:2" in out
    assert "noise band: 2.0% (the default: no A/A runs" in out and "drift between two runs is not known" in out
    assert "found 4 times in 5 at 3 repeats: a true difference of" in out


def test_a_slower_run_is_told_in_percent_with_its_interval_and_exits_3(base, tmp_path):
    copy(base, tmp_path / "b", factor=1.1)
    code, out, err = dsbench("compare", str(base), "b", home=tmp_path)
    assert code == 3 and "12 SLOWER: slower beyond noise" in err
    assert "SLOWER   b is 9." in out and "slower than a at batch 1 on math, none" in out
    code, out, _ = dsbench("compare", "b", str(base), "--json", home=tmp_path)
    body = json.loads(out)
    assert code == 0 and {c["verdict"] for c in body["cells"]} == {"FASTER"}
    assert all(c["ratio"]["low"] < 1.1 < c["ratio"]["high"] for c in body["cells"])
    assert body["band"]["source"] == "default" and all(c["paired_by_prompt"] for c in body["cells"])


def test_noise_that_hides_a_slow_down_exits_4_and_more_band_makes_it_the_same(base, tmp_path):
    copy(base, tmp_path / "b", jitter=0.06)
    assert dsbench("compare", str(base), "b", home=tmp_path)[0] == 4
    assert dsbench("compare", str(base), "b", "--band", "0.6", home=tmp_path)[0] == 0


def test_two_arms_of_one_run(base, tmp_path):
    code, out, _ = dsbench("compare", f"{base}:none", f"{base}:static:2", home=tmp_path)
    assert code == 0 and "static:2 is" in out and "faster than none at batch 1 on math" in out
    found = compare(f"{base}:none", f"{base}:static:2", home=tmp_path)
    assert len(found.results) == 4 and found.band.kind == "arms"


def test_what_is_not_comparable_is_named_and_exits_6(base, tmp_path):
    copy(base, tmp_path / "threads", contract={"threads": "4", "dtype": "float32", "block": "5"})
    code, out, err = dsbench("compare", str(base), "threads", home=tmp_path)
    assert (code, out) == (6, "") and "threads: 2 in a, 4 in threads" in err and "--allow" in err
    assert dsbench("compare", str(base), "threads", "--allow", "threads", home=tmp_path)[0] == 0
    for field, value in (
        ("temperature", 0.0),
        ("max_tokens", 99),
        ("text", "free"),
        ("acceptance", "replayed"),
        ("prompts", "ff"),
        ("accept", "block"),
        ("seed", 4),
        ("lag", 2),
    ):
        edit_cells(shutil.copytree(base, tmp_path / field), **{field: value})
        code, _, err = dsbench("compare", str(base), field, home=tmp_path)
        assert code == 6 and f"{field}: " in err and "Traceback" not in err


def test_what_may_differ_is_a_note(base, tmp_path):
    folder = copy(base, tmp_path / "b", date="later", environment={"revision": "abc", "torch": "9"})
    edit_cells(folder, cost="other")
    edit_cells(copy(base, tmp_path / "c"), cost="one")
    code, out, _ = dsbench("compare", "c", "b", home=tmp_path)
    assert code == 0
    for part in ("date differs", "revision differs", "torch differs", "cost table differs: one in c, other in b"):
        assert f"note: {part}" in out


def test_a_run_without_rounds_is_compared_and_says_so(base, tmp_path):
    folder = copy(base, tmp_path / "b")
    for path in folder.glob("cells/*/rep-*/rounds.parquet"):
        path.unlink()
    code, out, _ = dsbench("compare", str(base), "b", home=tmp_path)
    assert code == 0 and "b was kept without rounds: not needed here" in out


def test_other_texts_are_not_paired(base, tmp_path):
    folder = copy(base, tmp_path / "b")
    for path in folder.glob("cells/*/rep-*/requests.parquet"):
        table = pd.read_parquet(path)
        table.assign(output_tokens=table["output_tokens"] + 1).to_parquet(path, index=False)
    found = compare(str(base), str(folder), home=tmp_path)
    assert not any(r.measured.paired for r in found.results)
    assert any("wrote other texts" in note for note in found.notes)


def test_wrong_names_are_one_line_and_exit_2(base, tmp_path):
    (tmp_path / "empty").mkdir()
    for sides, part in (
        (("absent", str(base)), "absent is no run folder"),
        (("empty", str(base)), "holds no run"),
        ((str(base), str(base)), "both sides are the same"),
        ((str(base), f"{base}:none"), "one run against an arm of itself"),
        ((f"{base}:none", f"{base}:mtp:3"), "no finished cell of mode mtp:3"),
        ((str(base), f"{base}:none", "--band", "7"), "band must lie in 0..1"),
    ):
        code, out, err = dsbench("compare", *sides, home=tmp_path)
        assert (code, out) == (2, "") and part in err and err.count("\n") == 1


def test_two_cells_of_one_place_are_refused(tmp_path):
    run = RunStore(tmp_path / "r", create=True)
    run.write_run({})
    for lag in (0, 2):
        run.cell_folder(f"c{lag}").mkdir()
        run.write_cell(f"c{lag}", make_cell("compact", 1, "math", lag=lag), LEAST, [])
    run.cell_folder("n").mkdir()
    run.write_cell("n", make_cell("none", 1, "math"), LEAST, [])
    code, _, err = dsbench("compare", "r:none", "r:compact", home=tmp_path)
    assert code == 6 and "two cells of compact at batch 1 on math, which differ in lag" in err


def test_noise_is_kept_for_this_machine_and_used(base, tmp_path):
    for i in range(2):
        copy(base, tmp_path / f"aa{i}", jitter=0.004, seed=10 + i)
    code, out, _ = dsbench("noise", "aa0", "aa1", home=tmp_path)
    assert code == 0 and "arms: 95% of 24 A/A pairs of toy-135m lie within" in out and "runs: 95% of 12" in out
    copy(base, tmp_path / "b", factor=1.2)
    code, out, _ = dsbench("compare", str(base), "b", home=tmp_path)
    assert code == 3 and "(this machine's: 12 A/A pairs of runs on toy-135m)" in out
    copy(base, tmp_path / "other", contract={"threads": "8"})
    assert dsbench("noise", "aa0", "other", home=tmp_path)[0] == 6
    assert dsbench("noise", "absent", home=tmp_path)[0] == 2


def test_what_tables_and_others_call_a_number_is_explained():
    names = """padding vs_static acceptance-by-depth TPOT ITL E2E goodput zombie-rows draft-share noise-band p99
        accepted-length burstiness utility compact:latency request-rate break-even speed-up memory R"""
    for name in names.split():
        assert "[" in explain(name).splitlines()[0]


def test_explain_lists_all_and_offers_near_names(tmp_path):
    code, out, _ = dsbench("explain", home=tmp_path)
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == [c.name for c in COLUMNS]
    code, _, err = dsbench("explain", "thruput", home=tmp_path)
    assert code == 2 and "near it: throughput" in err and err.count("\n") == 1


HEAVY = ("torch", "numba", "scipy", "matplotlib", "pandas", "transformers")


@pytest.mark.parametrize(
    ("commands", "may_load"),
    [
        (("--help", "explain tau", "models list", "workloads list"), ()),
        (("compare A:none A:static:2", "noise A", "show A"), ()),
        (("plot A --out pictures",), ("matplotlib", "pandas", "scipy")),
    ],
)
def test_commands_that_run_no_model_load_no_torch_and_start_fast(commands, may_load, base, tmp_path):
    asked = [[part.replace("A", str(base)) if part[0] == "A" else part for part in c.split()] for c in commands]
    code = (
        "import sys; from dsbench.cli.main import main\n"
        f"for arguments in {asked!r}:\n"
        "    sys.argv = ['dsbench', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as left: assert not left.code, arguments\n"
        f"print('LOADED', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "DSBENCH_HOME": str(tmp_path)},
    )
    loaded = done.stdout.splitlines()[-1].split()[1:]
    assert set(loaded) <= set(may_load), done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not may_load:  # seconds of a core, which other load on the machine does not lengthen much
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert spent < 3, "half a second on a quiet machine"


@pytest.mark.parametrize(("prompts", "code"), [(4, 4), (6, 0)])
def test_too_few_prompts_clear_nobody_of_being_slower(tmp_path, prompts, code):
    write_synthetic_run(
        tmp_path / "a", modes=["none"], batches=[1], workloads=["math"], repeats=3, measured=prompts, noise=0.003
    )
    copy(tmp_path / "a", tmp_path / "b")
    done, told, _ = dsbench("compare", "a", "b", "--band", "0.3", home=tmp_path)
    assert done == code and ("UNCLEAR" in told) == (code == 4)
