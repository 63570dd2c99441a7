"""Settings as people write them: paths of a home and variables, TOML of every kind, names with commas and capitals."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command import ROOT, dsbench, model, sweep_flags  # noqa: F401

from dsbench.errors import UsageError
from dsbench.ranges import split_workloads
from dsbench.settings import resolve
from dsbench.workloads.recorded import read_recorded
from dsbench.workloads.workload import load_workload


def settings(folder, text, **flags):
    (folder / "dsbench.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return resolve(flags, folder=folder)[0]


def test_paths_know_the_home_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODELS", "/srv/models")
    config = settings(tmp_path, 'out = "~/runs/x"\ntarget = "$MODELS/a"\nworkload = "${MODELS}/p.jsonl,chat"\n')
    assert (config.out, config.target) == (f"{tmp_path}/runs/x", "/srv/models/a")
    assert config.workload == "/srv/models/p.jsonl,chat"
    assert resolve({"drafter": "~/d"}, folder=tmp_path)[0].drafter == f"{tmp_path}/d"
    monkeypatch.setenv("DSBENCH_TRACE", "~/t.parquet")
    assert resolve({}, folder=tmp_path)[0].trace == f"{tmp_path}/t.parquet"
    with pytest.raises(UsageError, match=r"names the variable \$NOWHERE, which is not set"):
        settings(tmp_path, 'cost = "$NOWHERE/cost.json"\n')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a$b").mkdir()
    assert settings(tmp_path, 'target = "a$b"\n').target == "a$b"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("batch = 1", "batch", "1"),
        ("batch = [1, 2, 4]", "batch", "1,2,4"),
        ('batch = ["1:4", 8]', "batch", "1:4,8"),
        ('mode = ["none", "static:3"]', "mode", "none,static:3"),
        ("request_rate = 2.5", "request_rate", "2.5"),
        ("request-rate = [2, 4]", "request_rate", "2,4"),
        ("temperature = 1", "temperature", 1.0),
        ("output_len = 128", "output_len", "128"),
        ("parse_special = true", "parse_special", True),
        ('template_arg = ["a=1", "b=x"]', "template_arg", "a=1,b=x"),
        ("template-arg = {enable_thinking = false, k = 'x'}", "template_arg", "enable_thinking=false,k=x"),
        ("seed = 5", "seed", 5),
    ],
)
def test_scalars_lists_and_tables_are_what_a_flag_takes(line, name, value, tmp_path):
    found = getattr(settings(tmp_path, line + "\n"), name)
    assert found == value and type(found) is type(value)


def test_a_byte_order_mark_is_no_key(tmp_path):
    assert settings(tmp_path, b"\xef\xbb\xbfseed = 7\n").seed == 7


@pytest.mark.parametrize(
    "line", ["batch = true", "seed = 1.5", "seed = [1]", "mode = [[true]]", "parse_special = 3", "out = 1979-05-27"]
)
def test_other_types_are_refused_by_name(line, tmp_path):
    name = line.split(" ")[0]
    with pytest.raises(UsageError, match=f"{name} must be of type"):
        settings(tmp_path, line + "\n")


@pytest.mark.parametrize(("word", "value"), [("1", True), ("true", True), ("no", False), ("OFF", False)])
def test_a_switch_in_the_environment(word, value, tmp_path, monkeypatch):
    monkeypatch.setenv("DSBENCH_PARSE_SPECIAL", word)
    assert resolve({}, folder=tmp_path)[0].parse_special is value
    monkeypatch.setenv("DSBENCH_PARSE_SPECIAL", "maybe")
    with pytest.raises(UsageError, match="DSBENCH_PARSE_SPECIAL must be of type bool"):
        resolve({}, folder=tmp_path)


def test_a_file_may_have_commas_and_capitals_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a, b=1.JSONL").write_text('{"prompt": "x"}\n')
    assert split_workloads("math,a, b=1.JSONL,chat") == ["math", "a, b=1.JSONL", "chat"]
    assert split_workloads("mix:a, b=1.JSONL=2,chat=1,math") == ["mix:a, b=1.JSONL=2,chat=1", "math"]
    assert split_workloads("math,chat") == ["math", "chat"]
    assert load_workload("a, b=1.JSONL", seed=0, home=tmp_path).name == "a, b=1"
    mixed = load_workload("mix:a, b=1.JSONL=1,chat=1", seed=0, home=tmp_path)
    assert {prompt.workload for prompt in mixed.prompts} == {"a, b=1", "chat"}
    (tmp_path / "T.CSV").write_text('Seconds, Prompt_Tokens\n0,"1"\n2,3\n')
    assert read_recorded(tmp_path / "T.CSV").prompt_tokens == (1, 3)


def test_a_name_that_is_no_utf8_is_told_in_ascii(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl")
    with open(path, "w") as stream:
        stream.write('{"prompt": "x"}\n')
    workload = load_workload(path, seed=0, home=tmp_path)
    assert workload.name == "caf\\xe9" and workload.prompts[0].id == "caf\\xe9-00001"
    workload.prompts[0].id.encode()


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_run_in_a_locale_that_is_not_utf8(locale, model, tmp_path):  # noqa: F811
    """Template and prompts are UTF-8 whatever the locale; what it cannot show is replaced, not a traceback."""
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}é{% endfor %}", encoding="utf-8")
    path = os.fsencode(tmp_path) + b"/caf\xe9, x.JSONL"
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(json.dumps({"prompt": "é!"}, ensure_ascii=False) + "\n")
    command = [sys.executable, "-m", "dsbench", "generate", "--target", str(model), "--mode", "none"]
    command += ["--max-tokens", "3", "--batch", "1", "--prompts"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "DSBENCH"))}
    env = kept | locale | {"PYTHONPATH": str(ROOT), "DSBENCH_HOME": str(tmp_path)}
    done = subprocess.run([*command, path], capture_output=True, env=env, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr.decode("latin-1")
    assert b"caf" in done.stdout and b"Traceback" not in done.stderr
