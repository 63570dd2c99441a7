"""The command line: bad input is one line, a hint and the documented exit code; what needs no torch loads none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import ROOT, Done, dsbench, refused, sweep_flags, write_drafter
from safetensors.torch import load_file, save_file
from synthetic_run import write_synthetic_run
from tiny import write_mtp

from dsbench.errors import UsageError
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey, Quality
from dsbench.ranges import parse_range, split_workloads
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.drafters.checkpoint import read_drafter
from dsbench.runtime.drafters.events import event_shapes
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.targets.tokenizer import ChatTokenizer
from dsbench.runtime.targets.weights import folder_digest
from dsbench.settings import resolve


def test_generate_prints_the_documented_json(model, tmp_path):
    drafter = write_drafter(tmp_path / "drafter")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ABC"}\n{"prompt": "1234"}\n')
    flags = ["--prompts", str(prompts), "--mode", "cap-accept:threshold=0.3", "--target", str(model)]
    flags += ["--drafter", str(drafter), "--batch", "2", "--temperature", "1", "--seed", "7", "--max-tokens", "12"]
    done = dsbench("generate", *flags, "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [set(a) for a in answers] == [{"id", "prompt_ids", "token_ids", "text", "finish_reason", "steps"}] * 2
    tokenizer = ChatTokenizer(model)
    assert [tokenizer.decode(a["prompt_ids"]) for a in answers] == ["ABC", "1234"], "the file's order is lost"
    for answer in answers:
        assert answer["finish_reason"] in ("stop", "length")
        assert all(set(step) == {"window", "accepted", "ceiling"} for step in answer["steps"])
        delivered = sum(step["accepted"] + 1 for step in answer["steps"]) + 1
        assert 0 <= delivered - len(answer["token_ids"]) <= 4  # EOS may cut the last round
    again = dsbench(
        "generate",
        *flags[:2],
        "--mode",
        "none",
        *flags[4:6],
        "--temperature",
        "1",
        "--seed",
        "7",
        "--max-tokens",
        "12",
        "--json",
        home=tmp_path,
    )
    assert [a["token_ids"] for a in json.loads(again.stdout)] == [a["token_ids"] for a in answers]


def test_bad_targets_and_files(model, tmp_path):
    refused(dsbench("generate", "--target", "nope", home=tmp_path), 2, "unknown target", "catalogue")
    refused(dsbench("generate", "--target", "shape:nope", home=tmp_path), 2, "unknown shape", "qwen3-8b")
    refused(dsbench("generate", "--target", str(tmp_path / "x.gguf"), home=tmp_path), 2, "does not exist")
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    refused(dsbench("generate", "--target", str(model), "--mode", "none", home=tmp_path), 2, "safetensors", "truncated")
    weights.write_bytes(whole)
    garbled = tmp_path / "y.gguf"
    garbled.write_bytes(b"GGUF" + bytes(20))
    refused(dsbench("generate", "--target", str(garbled), home=tmp_path), 2, "GGUF")
    assert not list((tmp_path / "models").glob("*")) if (tmp_path / "models").exists() else True


def test_bad_drafters(model, tmp_path):
    run = ("generate", "--target", str(model), "--mode", "static", "--drafter")
    refused(dsbench(*run, str(tmp_path / "absent"), home=tmp_path), 2, "does not exist")
    other = write_drafter(tmp_path / "other", target_digest="0123456789abcdef")
    refused(dsbench(*run, str(other), home=tmp_path), 6, "trained for target 0123456789abcdef")
    wide = write_drafter(tmp_path / "wide", markov_rank=16)
    refused(dsbench(*run, str(wide), home=tmp_path), 2, "markov_w1", "[64, 8]", "[64, 16]")
    hidden = write_drafter(tmp_path / "hidden", hidden_size=64)
    refused(dsbench(*run, str(hidden), home=tmp_path), 2, "fc.weight")
    vocab = write_drafter(tmp_path / "vocab", target_layer_ids=[0, 3])
    refused(dsbench(*run, str(vocab), home=tmp_path), 6, "target_layer_ids")


def test_a_calibration_that_is_not_this_drafters_is_refused(model, tmp_path):
    drafter = write_drafter(tmp_path / "drafter")
    home = {"drafter": folder_digest(drafter), "target": folder_digest(model)}
    ones, none = (1.0,) * 4, Quality(conditional=(), prefix=())
    entry = Calibration(
        method="identity",
        head="conditioned",
        event=EventKey(rule="coupled", temperature=0.0),
        scale=ones,
        offset=ones,
        prior=ones,
        n=0,
        scored_on="fit",
        before=none,
        after=none,
    )
    path = drafter / "calibration.json"
    run = ("generate", "--target", str(model), "--mode", "static", "--drafter", str(drafter), "--temperature", "0")
    run = (*run, "--max-tokens", "3", "--limit", "1")

    def told(entries, contract, edit=lambda body: body):
        CalibrationSet(entries=entries, contract=contract).save(path)
        path.write_text(json.dumps(edit(json.loads(path.read_text()))))
        return dsbench(*run, home=tmp_path)

    short = replace(entry, scale=ones[1:], offset=ones[1:], prior=ones[1:])
    assert told((entry,), home).returncode == 0
    refused(told((entry,), home | {"drafter": "other"}), 6, "drafter: recorded other", "dsbench calibrate")
    refused(told((entry,), {}), 6, "does not say its drafter, target", "dsbench calibrate")
    refused(told((entry,), {"target": home["target"]}), 6, "does not say its drafter", "dsbench calibrate")
    refused(told((short,), home), 6, "a block of 3, the drafter's is 4", "dsbench calibrate")
    refused(told((), home), 6, "calibrates nothing", "dsbench calibrate")
    refused(told((entry,), home, lambda body: body | {"schema": 0}), 2, "schema 0", "dsbench calibrate")
    refused(told((entry,), home, lambda body: body | {"entries": 3}), 2, "damaged", "dsbench calibrate")
    huge = {"scale": [10**400] * 4}
    refused(told((entry,), home, lambda body: body | {"entries": [body["entries"][0] | huge]}), 2, "damaged")
    for content in (b"", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        refused(dsbench(*run, home=tmp_path), 2, "is not a calibration", "dsbench calibrate")


def test_event_heads_that_misfit_are_refused_by_name(tmp_path):
    file = write_drafter(tmp_path / "drafter") / "model.safetensors"
    weights = load_file(file)
    fits = {name: torch.zeros(size) for name, size in event_shapes(32, 8).items()}
    save_file(weights | fits, file)
    held = read_drafter(file.parent, torch.device("cpu"), torch.float32)[1]
    assert held["confidence_events.weight"].shape == (3, 32 + 8 + 6)
    for name in fits:
        save_file(weights | fits | {name: torch.zeros(2, 5)}, file)
        with pytest.raises(UsageError, match=rf"{name} has shape \[2, 5\]"):
            read_drafter(file.parent, torch.device("cpu"), torch.float32)
        save_file(weights | {k: v for k, v in fits.items() if k != name}, file)
        with pytest.raises(UsageError, match=f"lacks the tensor {name}"):
            read_drafter(file.parent, torch.device("cpu"), torch.float32)


def test_bad_prompts_and_numbers(model, tmp_path):
    run = ("generate", "--target", str(model), "--mode", "none")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    refused(dsbench(*run, "--prompts", str(empty), home=tmp_path), 2, "empty")
    refused(dsbench(*run, "--prompts", str(tmp_path / "no.jsonl"), home=tmp_path), 2, "no.jsonl")
    refused(dsbench(*run, "--prompts", "nonsense", home=tmp_path), 2, "nonsense")
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "A" * 300}) + "\n")
    refused(dsbench(*run, "--prompts", str(long), home=tmp_path), 2, "300 tokens, the context is 256")
    refused(dsbench(*run, "--batch", "0", home=tmp_path), 2, "batch must be >= 1")
    refused(dsbench(*run, "--temperature", "-1", home=tmp_path), 2, "temperature")
    refused(dsbench(*run, "--accept", "maybe", home=tmp_path), 2, "acceptance rule")
    refused(dsbench("generate", "--mode", "psychic", home=tmp_path), 2, "unknown mode")
    refused(dsbench("sweep", "--batch", "0", home=tmp_path), 2, "batch")
    refused(dsbench("sweep", "--nonsense", home=tmp_path), 2, "nonsense")
    refused(dsbench("sweep", "--workload", "maths", home=tmp_path), 2, "maths", "math")


def test_unwritable_and_occupied_output(model, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    flags = ("--target", str(model), "--mode", "none", "--workload", "math", "--batch", "1")
    refused(dsbench("sweep", *flags, "--out", str(blocked / "run"), home=tmp_path), 2, "cannot write")
    refused(
        dsbench("profile-cost", "--target", str(model), "--out", str(blocked / "c.json"), home=tmp_path),
        2,
        "cannot write",
    )
    occupied = tmp_path / "run"
    occupied.mkdir()
    (occupied / "run.json").write_text("{}")
    refused(dsbench("sweep", *flags, "--out", str(occupied), home=tmp_path), 2, "--resume")
    refused(dsbench("plot", str(tmp_path / "nothing"), home=tmp_path), 2, "holds no run")
    refused(dsbench("show", str(occupied), home=tmp_path), 2, "another schema")


def test_a_sweep_runs_resumes_and_plots_on_a_tiny_model(model, tmp_path, unpainted):
    drafter = write_drafter(tmp_path / "drafter")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + {i}"}) + "\n" for i in range(10)))
    flags = ["--target", str(model), "--drafter", str(drafter), "--workload", str(prompts), "--batch", "1,2"]
    flags += ["--mode", "none,static,compact,cap-accept", "--max-tokens", "10", "--requests", "4", "--out", "run"]
    done = dsbench("sweep", *flags, "--repeats", "1", home=tmp_path)
    assert done.returncode == 0, done.stderr
    cells = sorted((tmp_path / "run" / "cells").glob("*/cell.json"))
    assert len(cells) == 8
    stamps = {c: c.parent.joinpath("rep-0", "steps.parquet").stat().st_mtime_ns for c in cells}
    shutil.rmtree(cells[0].parent)
    more = dsbench("sweep", *flags, "--repeats", "1", "--resume", home=tmp_path)
    assert more.returncode == 0, more.stderr
    assert len(list((tmp_path / "run" / "cells").glob("*/cell.json"))) == 8
    kept = [c for c in cells[1:] if c.parent.joinpath("rep-0", "steps.parquet").stat().st_mtime_ns == stamps[c]]
    assert len(kept) == 7, "a finished cell was run again"
    drawn = dsbench("plot", "run", home=tmp_path)
    assert drawn.returncode == 0, drawn.stderr
    names = {Path(line).name for line in drawn.stdout.splitlines()}
    assert names >= {"frontier.png", "cost-fit.png", "step-time.png", "frontier.svg", "waterfall-static-compact.png"}
    told = dsbench("waterfall", "run", "--batch", "2", "--json", home=tmp_path)
    (fall,) = json.loads(told.stdout)
    parts, change = fall["parts_ms"], fall["after_ms"]["value"] - fall["before_ms"]["value"]
    assert sum(part["value"] for part in parts.values()) == pytest.approx(change)
    assert abs(parts["residual"]["value"]) < 0.05 * fall["before_ms"]["value"]
    ledger = json.loads(dsbench("break-even", "run", "--json", home=tmp_path).stdout)
    assert {entry["arm"] for entry in ledger} == {"static", "compact", "cap-accept"}
    for command in ("waterfall", "break-even", "frontier"):
        told = dsbench(command, "run", home=tmp_path)
        assert told.returncode == 0 and "coupled, T=1" in told.stdout, told.stderr
    refused(dsbench("waterfall", "run", "--to", "mtp:1", home=tmp_path), 2, "not in this run", "cap-accept")
    refused(dsbench("frontier", "run", "--base", "mtp:1", home=tmp_path), 2, "not in this run")
    refused(dsbench("break-even", "run", "--batch", "7", home=tmp_path), 2, "no data at batch 7")


def test_sweeps_refuse_what_would_mislead(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))

    def run(**changes: str) -> Done:
        return dsbench(*sweep_flags(model, tmp_path, drafter=drafter, **changes), home=tmp_path)

    refused(run(temperature="nan"), 2, "temperature must be finite")
    refused(run(top_k="99999999999"), 2, "top-k")
    refused(run(mode="none,compact:oracle", accept="residual"), 2, "the oracle needs a recorded text", "coupled")
    refused(run(mode="compact:oracle", accept="block"), 2, "the oracle needs a recorded text")
    refused(run(mode="compact:freely"), 2, "unknown mode", "compact[:free")
    refused(run(threads="-1"), 2, "threads must be >= 0")
    refused(run(start="later"), 2, "unknown start 'later'", "spread or together")
    refused(run(target="shape:smollm2-135m"), 2, "has no tokenizer")
    assert not (tmp_path / "run").exists(), "a refused sweep left its folder behind"
    (tmp_path / "b").mkdir()
    twins = f"{tmp_path / 'p.jsonl'},{tmp_path / 'b' / 'p.jsonl'}"
    (tmp_path / "b" / "p.jsonl").write_text('{"prompt": "other"}\n')
    refused(run(workload=twins), 2, "two workloads are named p")


def test_a_window_longer_than_the_block_is_refused(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))
    done = dsbench(*sweep_flags(model, tmp_path, drafter=drafter, mode="static:9"), home=tmp_path)
    refused(done, 2, "block holds 4 drafts")


def test_mtp_arms_run_beside_the_others(model, tmp_path, unpainted):
    drafter, chain = str(write_drafter(tmp_path / "drafter")), str(write_mtp(tmp_path / "chain"))
    flags = {"drafter": drafter, "mtp_drafter": chain, "mode": "none,static:2,mtp:1,mtp:3"}
    done = dsbench(*sweep_flags(model, tmp_path, **flags), home=tmp_path)
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "run" / "run.json").read_text())
    assert body["mtp_contract"]["block"] == "3" and body["contract"]["block"] == "4"
    assert body["mtp_contract"]["drafter"] != body["contract"]["drafter"]
    cells = {json.loads(p.read_text())["parameters"]["mode"]: p for p in (tmp_path / "run").glob("cells/*/cell.json")}
    assert set(cells) == {"none", "static:2", "mtp:1", "mtp:3"}
    assert len(json.loads(cells["mtp:3"].read_text())["summary"]["window_counts"]) == 4
    more = dsbench(*sweep_flags(model, tmp_path, drafter=drafter), "--resume", home=tmp_path)
    assert more.returncode == 0, more.stderr
    other = str(write_mtp(tmp_path / "other", block=5))
    elsewhere = sweep_flags(model, tmp_path, **(flags | {"mtp_drafter": other}))
    refused(dsbench(*elsewhere, "--resume", home=tmp_path), 6, "its mtp arms", "block: recorded 3, here 5")
    drawn = dsbench("plot", "run", home=tmp_path)
    assert drawn.returncode == 0, drawn.stderr


def test_a_sweep_under_the_block_rule_says_so(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))
    done = dsbench(*sweep_flags(model, tmp_path, drafter=drafter, mode="none,static", accept="block"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "block" in done.stdout and "static" in done.stdout


def test_mtp_in_generate_and_selftest(model, tmp_path):
    chain = str(write_mtp(tmp_path / "chain"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "1 + 1"}\n{"prompt": "2 + 2"}\n')
    base = ("--target", str(model), "--mtp-drafter", chain)
    texts = []
    for mode in ("none", "mtp:3"):
        one = ("generate", *base, "--mode", mode, "--prompts", str(prompts), "--max-tokens", "8", "--json")
        done = dsbench(*one, home=tmp_path)
        assert done.returncode == 0, done.stderr
        texts.append([answer["token_ids"] for answer in json.loads(done.stdout)])
    assert texts[0] == texts[1]
    few = ("--prompts", "2", "--max-tokens", "6", "--batch", "1,2", "--workload", str(prompts))
    done = dsbench("selftest", *base, "--mode", "none,mtp:2", *few, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "16 texts the same" in done.stdout and "mtp:2" in done.stdout
    block = ("selftest", *base, "--mode", "none,mtp:2", *few, "--accept", "block")
    refused(dsbench(*block, home=tmp_path), 2, "block rule", "temperature 0 only", "--temperatures 0")
    done = dsbench(*block, "--temperatures", "0", home=tmp_path)
    assert done.returncode == 0 and "8 texts the same" in done.stdout, done.stderr


def test_mtp_without_its_drafter_is_one_line(model, tmp_path):
    block, chain = str(write_drafter(tmp_path / "drafter")), str(write_mtp(tmp_path / "chain"))

    def run(*flags: str, command: str = "generate") -> Done:
        return dsbench(command, "--target", str(model), *flags, home=tmp_path)

    refused(run("--mode", "mtp:3"), 2, "need a chain drafter", "--mtp-drafter FOLDER")
    refused(run("--mode", "none,mtp:3", command="sweep"), 2, "need a chain drafter")
    refused(run("--mode", "mtp:3", "--mtp-drafter", "absent"), 2, "absent does not exist")
    refused(run("--mode", "mtp:4", "--mtp-drafter", chain), 2, "mode mtp:4", "block holds 3 drafts")
    refused(run("--mode", "mtp:4", "--mtp-drafter", chain, command="selftest"), 2, "block holds 3 drafts")
    refused(run("--mode", "mtp:3", "--mtp-drafter", block), 2, "holds no chain drafter")
    refused(run("--mode", "static", "--drafter", chain), 2, "holds a chain drafter", "--mtp-drafter")
    foreign = str(write_mtp(tmp_path / "foreign", target_digest="0123456789abcdef"))
    refused(run("--mode", "mtp:1", "--mtp-drafter", foreign), 6, "trained for target 0123456789abcdef")


@pytest.mark.parametrize("command", ["generate", "sweep"])
def test_token_free_budgets_without_a_head_for_them_are_refused(command, model, tmp_path):
    drafter = write_drafter(tmp_path / "drafter")
    kept = {k: v for k, v in load_file(drafter / "model.safetensors").items() if "free" not in k}
    save_file(kept, drafter / "model.safetensors")
    flags = ("--target", str(model), "--drafter", str(drafter), "--mode", "compact:free")
    refused(dsbench(command, *flags, home=tmp_path), 6, "mode compact:free needs token-free", "--mode compact")
    assert not (tmp_path / "runs").exists()


def test_resume_keeps_to_one_contract_and_one_set_of_prompts(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))
    flags = sweep_flags(model, tmp_path, drafter=drafter)
    assert dsbench(*flags, home=tmp_path).returncode == 0
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5e4}))
    (other / ".digest.json").unlink(missing_ok=True)
    elsewhere = sweep_flags(other, tmp_path, drafter=drafter)
    refused(dsbench(*elsewhere, "--resume", home=tmp_path), 6, "target")
    (tmp_path / "p.jsonl").write_text('{"prompt": "9"}\n{"prompt": "8"}\n')
    refused(dsbench(*flags, "--resume", home=tmp_path), 2, "other settings", "the prompts of p")


def test_a_sweep_of_one_token_has_no_rounds_and_no_traceback(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))
    done = dsbench(*sweep_flags(model, tmp_path, drafter=drafter, mode="none,static", max_tokens="1"), home=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_commands_that_would_hang_or_pass_vacuously(model, tmp_path):
    drafter = str(write_drafter(tmp_path / "drafter"))
    base = ("--target", str(model), "--drafter", drafter)
    refused(dsbench("calibrate", *base, "--batch", "0", home=tmp_path), 2, "calibrate needs")
    few = ("calibrate", *base, "--prompts", "2", "--out", "a/c.json", "--plots", "b", "--max-tokens")
    refused(dsbench(*few, "100000", "--workload", "math", home=tmp_path), 2, "no prompt of math", "lower --max-tokens")
    refused(dsbench(*few, "4", "--events", "coupled@1e-300", home=tmp_path), 2, "temperature must be 0 or lie in")
    refused(dsbench(*few, "4", "--workload", "math,math", home=tmp_path), 2, "workload math is named twice")
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists(), "a refused call left its folder"
    refused(dsbench("selftest", *base, "--prompts", "0", home=tmp_path), 2, "prompts must be >= 1")
    refused(dsbench("calibrate", *base, "--out", str(tmp_path), home=tmp_path), 2, "it is a folder")
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "1"}\n')
    done = dsbench(
        "generate", *base, "--mode", "none", "--prompts", str(prompts), "--max-tokens", "1000000000", home=tmp_path
    )
    assert done.returncode == 0, done.stderr
    prompts.write_text('{"prompt": "a\\ud800b"}\n')
    refused(dsbench("generate", *base, "--prompts", str(prompts), home=tmp_path), 2, "surrogate")


def loaded_by(commands, banned, cwd):
    """Runs the commands in one process; the first that loads one of `banned` modules, or none of them."""
    code = (
        "import json, sys; from dsbench.cli.main import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    sys.argv = ['dsbench', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code, (command, end.code)\n"
        f"    if any(name in sys.modules for name in {sorted(banned)!r}):\n"
        "        sys.exit('LOADED ' + ' '.join(command))"
    )
    asked = json.dumps([[str(part) for part in command] for command in commands])
    path = {"PYTHONPATH": str(ROOT), "DSBENCH_HOME": str(cwd)}
    done = subprocess.run(
        [sys.executable, "-c", code, asked], capture_output=True, text=True, cwd=cwd, env=os.environ | path, check=False
    )
    assert done.returncode == 0 or "LOADED" in done.stderr, done.stderr
    return done.stderr.partition("LOADED ")[2].strip()


def test_commands_that_run_no_model_load_no_torch(tmp_path):
    run, other = (
        write_synthetic_run(tmp_path / name, modes=["none", "compact"], batches=[1], workloads=["math"], measured=6)
        for name in "ab"
    )
    commands = (
        ("show", run.folder),
        ("report", run.folder, "--markdown"),
        ("waterfall", run.folder, "--from", "none"),
        ("frontier", run.folder),
        ("break-even", run.folder),
        ("explain", "tau"),
        ("simulate", "--help"),
        ("workloads", "list"),
        ("models", "list"),
        ("compare", run.folder, other.folder, "--band", "0.9"),
    )
    assert loaded_by(commands, {"torch"}, tmp_path) == ""
    code = (
        "import sys, dsbench.views.simulated, dsbench.views.report\n"
        "import dsbench.analysis.compare, dsbench.analysis.summary\n"
        "assert not {'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules), 'loads more than it needs to start'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert loaded_by([("explain", "tau"), ("show", run.folder)], {"numpy"}, tmp_path).startswith("show")


def test_help_loads_next_to_nothing(tmp_path):
    heavy = {"torch", "numpy", "pandas", "scipy", "matplotlib", "pyarrow", "numba"}
    names = ("", "show", "compare", "report", "simulate")
    assert loaded_by([(*([name] if name else []), "--help") for name in names], heavy, tmp_path) == ""


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1,2,4", (1, 2, 4)),
        ("1:4", (1, 2, 3, 4)),
        ("16:64:24", (16, 40, 64)),
        ("1:20:x2", (1, 2, 4, 8, 16)),
        ("4,1:2,4", (1, 2, 4)),
    ],
)
def test_ranges(text, wanted):
    assert parse_range(text) == wanted


@pytest.mark.parametrize("text", ["", "0", "4:1", "1:2:0", "1:8:x1", "a", "1:2:3:4", "1,,2", "-1", "1.5"])
def test_bad_ranges(text):
    with pytest.raises(UsageError):
        parse_range(text)


@pytest.mark.parametrize(
    "mode",
    [
        "static:0",
        "static:x",
        "static:²",
        "static:３",
        "mtp:" + "9" * 5000,
        "compact:psychic",
        "compact:threshold",
        "compact:threshold=2",
        "mtp",
        "mtp:0",
        "mtp:x",
        "none:1",
        "",
    ],
)
def test_bad_modes(mode):
    with pytest.raises(UsageError):
        parse_arm(mode)


def test_settings_say_where_each_value_came_from(tmp_path, monkeypatch):
    (tmp_path / "dsbench.toml").write_text('seed = 5\nmax-tokens = 9\nworkload = "chat"\n')
    monkeypatch.setenv("DSBENCH_SEED", "6")
    config, sources = resolve({"workload": "math", "batch": None}, folder=tmp_path)
    assert (config.seed, config.max_tokens, config.workload) == (6, 9, "math")
    assert (sources["seed"], sources["max_tokens"], sources["workload"], sources["batch"]) == (
        "environment DSBENCH_SEED",
        "dsbench.toml",
        "flag",
        "default",
    )
    (tmp_path / "dsbench.toml").write_text("sede = 5\n")
    with pytest.raises(UsageError, match="unknown key 'sede'"):
        resolve({}, folder=tmp_path)
    with pytest.raises(UsageError, match="unknown sampling setting"):
        SamplingParams.from_mapping({"temprature": 1})


def test_mix_survives_the_comma():
    assert split_workloads("math,mix:chat=1,poetry=2,code") == ["math", "mix:chat=1,poetry=2", "code"]
