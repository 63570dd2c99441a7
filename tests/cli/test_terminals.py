"""Output where it is hard to write: nobody reads on, no room on the device, a terminal without Unicode."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic_run import write_synthetic_run

from dsbench.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "naïve–run"
    write_synthetic_run(
        folder,
        modes=["none", "static"],
        batches=[1, 2],
        workloads=["math"],
        repeats=1,
        measured=6,
        labels={"target": "naïve"},
    )
    return folder


def start(*arguments, **settings):
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    return subprocess.Popen(
        [sys.executable, "-m", "dsbench", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


@pytest.mark.parametrize("arguments", [("show",), ("report", "--markdown"), ("break-even",)])
def test_who_stops_reading_ends_the_command_in_peace(run, arguments):
    command = start(arguments[0], run, *arguments[1:])
    command.stdout.close()
    said = command.stderr.read()
    assert command.wait() == 0 and said == b""


@pytest.mark.parametrize(
    "arguments", [("show",), ("report", "--markdown"), ("waterfall", "--from", "none", "--to", "static")]
)
def test_a_terminal_without_unicode_shows_what_it_can(run, arguments, monkeypatch, capsys):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "argv", ["dsbench", arguments[0], str(run), *arguments[1:]])
    with contextlib.redirect_stdout(terminal), pytest.raises(SystemExit) as left:
        main()
    terminal.flush()
    assert not left.value.code and capsys.readouterr().err == "" and b"static" in terminal.buffer.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("waterfall", "--from", "none", "--to", "static"),
        ("frontier", "--arm", "static"),
        ("break-even",),
        ("slo", "--slo", "ttft:1s"),
    ],
)
def test_brackets_in_names_and_flags_are_no_markup(tmp_path, arguments, monkeypatch, capsys):
    """What an exception said stands in a flag; a run, a device and a workload are named by others."""
    folder = tmp_path / "run[tuned]"
    write_synthetic_run(
        folder,
        modes=["none", "static"],
        batches=[1],
        workloads=["mix:math=1"],
        repeats=1,
        measured=6,
        labels={"target": "a[b]"},
    )
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(run | {"environment": {"device": "GPU [/x]"}}))
    for path in folder.glob("cells/*/cell.json"):
        cell = json.loads(path.read_text())
        cell["parameters"]["workload"] = "p[old]"
        path.write_text(json.dumps(cell | {"flags": ["no such thing: [/tmp/x]"]}))
    monkeypatch.setattr(sys, "argv", ["dsbench", arguments[0], str(folder), *arguments[1:]])
    with pytest.raises(SystemExit) as left:
        main()
    told = "".join(capsys.readouterr().out.split())
    assert not left.value.code and "p[old]" in told and ("[/tmp/x]" in told or arguments != ("show",))
    assert arguments[0] == "frontier" or ("run[tuned]" in told and "GPU[/x]" in told)


def test_a_page_is_utf8_whatever_the_locale(run, tmp_path):
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    shutil.copytree(run, tmp_path / "run")
    command = start("report", tmp_path / "run", "--out", tmp_path / "page.html", **settings)
    assert command.communicate()[1] == b"" and command.returncode == 0
    assert "–" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_device_is_one_line(run):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dsbench", "show", str(run)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr
