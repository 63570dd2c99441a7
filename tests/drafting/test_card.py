"""A drafter's card says what the comparison says, of the right drafter."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import command
import pytest
from drafter_runs import comparison, run
from typer.testing import CliRunner

from dsbench.cli.main import app
from dsbench.drafting.card import write_card
from dsbench.drafting.results_file import load_comparison
from dsbench.drafting.train import command_line, train_options
from dsbench.errors import UsageError

SHIPPED = Path(__file__).parents[2] / "profiles" / "smollm2-135m"

CARD = {
    "target": "toy",
    "target_digest": "d1",
    "draft_vocab": 40,
    "steps": 1200,
    "seconds": 61.2,
    "device": "CPU",
    "options": {
        "kind": "dspark",
        "block": 3,
        "layers": 2,
        "taps": [0, 2],
        "window": 64,
        "head": "rnn",
        "seed": 5,
        "lr": 0.01,
        "coupled": 0.0,
    },
    "data": {"tokens": 1000, "sequences": {"train": 10}, "seed": 5},
    "final": {"loss": 1.25, "l1": 0.5},
    "validation": {"T=1": {"residual": {"tau": 2.5, "acceptance": [0.7, 0.6, 0.5]}}},
    "licence": "Apache-2.0",
}


def test_a_card_holds_the_drafters_own_lengths_and_everyones_depths(tmp_path):
    (tmp_path / "card.json").write_text(json.dumps(CARD))
    found = comparison()
    found.conditions |= {"prompts": "60", "max_tokens": "64", "dtype": "float32", "device": "CPU"}
    chain = next(d for d in found.drafters if d.name == "chain")
    write_card(tmp_path, found, chain)
    rows = {(d.name, r.workload, str(r.event)): r for d, r in found.acceptances()}
    measured = json.loads((tmp_path / "card.json").read_text())["measured"]
    assert {(r["event"], r["workload"]) for r in measured["lengths"]} == {(e, w) for n, w, e in rows if n == "chain"}
    for row in measured["lengths"]:
        assert row["tau"][0] == pytest.approx(rows["chain", row["workload"], row["event"]].tau.value, abs=1e-4)
    assert {r["drafter"] for r in measured["depths"]} == {n for n, w, _ in rows if w == "all"}
    text = (tmp_path / "README.md").read_text()
    whole = rows["chain", "all", "coupled at temperature 1"]
    tau, deep = whole.tau, whole.conditional[1]
    assert f"| all | {tau.value:.2f} [{tau.low:.2f}, {tau.high:.2f}] | {whole.rounds} |" in text
    assert f"{deep.value:.3f} [{deep.low:.3f}, {deep.high:.3f}]" in text
    assert "loss 1.25, L1 0.5" in text and "1,200 steps in 61 s" in text and "within 64 tokens" in text
    block = rows["block", "all", "coupled at temperature 1"].tau
    assert f"{block.value:.2f} [{block.low:.2f}" not in text.split("## Acceptance by depth")[0]


def test_a_folder_without_a_card_is_refused(tmp_path):
    found = comparison()
    with pytest.raises(UsageError, match=r"no card\.json"):
        write_card(tmp_path, found, found.drafters[0])


@pytest.mark.parametrize("name", ["dspark", "mtp"])
def test_the_command_of_a_shipped_card_has_the_cards_options(name, monkeypatch):
    """What `dsbench train` prints into a card is the call that makes the same drafter."""
    card = json.loads((SHIPPED / name / "card.json").read_text())
    called = {}
    monkeypatch.setattr("dsbench.drafting.train.train", lambda config, **given: called.update(given, seed=config.seed))
    done = CliRunner().invoke(app, shlex.split(card["command"])[1:])
    assert done.exit_code == 0, done.output
    options = asdict(train_options(called["kind"], called["options"], seed=called["seed"], data=None))
    assert {n: list(x) if isinstance(x, tuple) else x for n, x in options.items()} == card["options"]
    again = command_line(called["kind"], called["options"], called["seed"])
    other = CliRunner().invoke(app, shlex.split(again)[1:])
    assert (
        other.exit_code == 0
        and asdict(train_options(called["kind"], called["options"], seed=called["seed"], data=None)) == options
    )


TEXT = json.dumps(CARD)


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (None, "has no card.json"),
        (b"{", "card.json is damaged"),
        (b"[]", "card.json is damaged"),
        (b"\xff", "card.json is damaged"),
        (b"[" * 100_000, "card.json is damaged"),
        (b"{}", "field 'options' is missing"),
        (TEXT.replace('"block": 3', '"block": "3"').encode(), "card.json is damaged"),
        (TEXT.replace('"tokens": 1000', '"tokens": "many"').encode(), "card.json is damaged"),
        (TEXT.replace('"toy"', '"\\ud800"').encode(), "card.json is damaged"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_card_that_cannot_be_rewritten_is_told_before_anything_runs(card, words, setting, tmp_path):  # noqa: F811
    block, chain, flags = setting
    (chain / "card.json").write_text(TEXT)
    if card is not None:
        (block / "card.json").write_bytes(card)
    command.refused(run(tmp_path, chain, block, *flags, "--cards"), 2, words)
    assert not (tmp_path / "out").exists() and (chain / "card.json").read_text() == TEXT


def test_the_card_is_of_what_the_folder_holds_now(setting, tmp_path):  # noqa: F811
    """A folder whose drafter was made anew keeps its name in --out, and the results of the one before."""
    block, chain, flags = setting
    flags = [flag if flag != "coupled@1,residual@1" else "coupled@1" for flag in flags]
    (block / "card.json").write_text(TEXT)
    assert run(tmp_path, block, *flags).returncode == 0
    config = json.loads((block / "config.json").read_text())
    (block / "config.json").write_text(json.dumps(config | {"block_size": 2}))
    done = run(tmp_path, block, *flags, "--cards")
    assert done.returncode == 0, done.stderr
    measured = json.loads((block / "card.json").read_text())["measured"]
    found = load_comparison(tmp_path / "out" / "drafters.json")
    assert [d.block for d in found.drafters] == [4, 2]
    rows = {d.name: r for d, r in found.acceptances() if r.workload == "all"}
    assert measured["lengths"][0]["rounds"] == rows[found.drafters[1].name].rounds != rows["block"].rounds
    assert not [p for p in block.iterdir() if p.suffix == ".tmp"]
