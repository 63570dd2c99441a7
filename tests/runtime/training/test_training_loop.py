"""The training loop: the log, stops and resumed runs, the whole pipeline from a data file."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from training_tools import CPU, EOS, MTP, OPTIONS, quiet, random_data, setting_of, toy_target

from dsbench.errors import DsbenchError, EnvironmentRefused, UsageError
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.targets.load import LoadedTarget
from dsbench.runtime.training.evaluate import evaluate
from dsbench.runtime.training.fit import Sums, fit
from dsbench.runtime.training.keeper import BatchOrder, Keeper
from dsbench.runtime.training.loss import LossParts
from dsbench.runtime.training.step import loss_of
from dsbench.runtime.training.token_data import TRAIN, VALIDATION_MIXED, VALIDATION_T1, save_data
from dsbench.runtime.training.train import train_drafter

EVENTS = {"greedy", "coupled", "residual"}
ENDLESS = {"seconds": 1e9, "log_every": 1e-9}  # the schedule follows the steps alone; every step is logged
KINDS = pytest.mark.parametrize(
    "options", [OPTIONS, replace(OPTIONS, head="rnn", coupled=0.5), MTP], ids=["vanilla", "rnn", "mtp"]
)


def parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def test_an_order_shows_every_sequence_once_before_any_twice():
    order = BatchOrder(torch.arange(100, 111), 3, torch.Generator().manual_seed(0))
    for _ in range(3):
        epoch = torch.cat([order.take() for _ in range(3)]).tolist()
        assert len(set(epoch)) == 9 and set(epoch) <= set(range(100, 111))
    assert epoch != sorted(epoch)


@KINDS
def test_a_short_training_lowers_the_loss_and_logs_how_it_stands(options):
    setting, log = setting_of(options, 40), []
    goals = setting.maker.make(setting.splits[TRAIN][:8], torch.Generator().manual_seed(9))

    @torch.no_grad()
    def loss() -> float:
        return loss_of(setting.module, setting, goals, torch.tensor([5])).total.item()

    before = loss()
    progress = fit(replace(options, lr=1e-2, **ENDLESS), setting, log.append, most_steps=25)
    assert progress.step == 25 and progress.seconds > 0
    assert loss() < before - 0.1
    assert [r["step"] for r in log] == list(range(26)) and all(r["stage"] == "train" for r in log)
    seconds = [r["seconds"] for r in log]
    assert seconds == sorted(seconds) and log[-1]["left"] == 0
    middle = log[10]
    assert middle["left"] == pytest.approx(1.5 * middle["seconds"], abs=0.1)
    assert middle["loss"] > 0 and middle["loss"] == pytest.approx(
        0.1 * middle["ce"]
        + 0.9 * (1 - options.coupled) * middle["l1"]
        + 1.8 * options.coupled * middle["coupled"]
        + middle["confidence"]
        + middle["free"],
        abs=1e-3,
    )
    assert middle["gradient"] > 0 and len(middle["acceptance"]) == 3 and all(0 <= a <= 1 for a in middle["acceptance"])
    assert set(middle["tau"]) == EVENTS and all(1 <= t <= 4 for t in middle["tau"].values())
    json.dumps(log)


def test_a_log_line_holds_the_means_of_its_period():
    options = replace(OPTIONS, seconds=1e9, log_every=1e9)
    whole: list[dict[str, object]] = []
    fit(options, setting_of(OPTIONS), whole.append, most_steps=6)
    each: list[dict[str, object]] = []
    fit(replace(options, log_every=1e-9), setting_of(OPTIONS), each.append, most_steps=6)
    assert len(whole) == 1 and len(each) == 7
    for name in Sums.NAMES:
        assert whole[0][name] == pytest.approx(sum(r[name] for r in each[1:]) / 6, abs=1e-3), name


@torch.no_grad()
def test_evaluation_counts_each_event_on_its_own_text():
    setting = setting_of(OPTIONS, 40)
    data = random_data(40)
    found = evaluate(setting, setting.splits[VALIDATION_MIXED], batch=3, seed=1)
    assert set(found) == EVENTS and found["coupled"]["blocks"] == found["residual"]["blocks"]
    sampled = torch.tensor([i for i in range(40) if data.temperature[i] > 0])
    assert set(evaluate(setting, sampled, batch=4, seed=1)) == {"coupled", "residual"}
    # tau and acceptance again, from the rows of one batch
    batch = setting.splits[VALIDATION_T1]
    blocks = setting.maker.make(batch, torch.Generator().manual_seed(1))
    parts = loss_of(setting.module, setting, blocks, torch.tensor([1]))
    once = evaluate(setting, batch, batch=len(batch), seed=1)
    greedy = blocks.goals.greedy.view(-1, 3)[:, 0]
    valid = blocks.valid.view(-1, 3)
    for event, passed in (("greedy", parts.match), ("coupled", parts.match), ("residual", parts.accept)):
        rows = [
            (p, v)
            for p, v, g in zip(passed.view(-1, 3).tolist(), valid.tolist(), greedy, strict=True)
            if g == (event == "greedy")
        ]
        tau = [1 + p[0] + p[0] * p[1] + math.prod(p) for p, v in rows if all(v)]
        assert once[event]["tau"] == pytest.approx(sum(tau) / len(tau), abs=1e-3)
        for k in range(3):
            slot = [p[k] for p, v in rows if v[k]]
            assert once[event]["acceptance"][k] == pytest.approx(sum(slot) / len(slot), abs=1e-3)


def test_a_training_that_diverges_raises():
    setting = setting_of(OPTIONS)
    with torch.no_grad():
        setting.module.fc.weight[0, 0] = float("nan")
    with pytest.raises(DsbenchError, match="diverged"):
        fit(replace(OPTIONS, **ENDLESS), setting, quiet, most_steps=3)


def test_a_last_update_that_ruins_the_weights_is_seen(monkeypatch):
    """No loss is computed after it."""
    monkeypatch.setattr("dsbench.runtime.training.fit.learning_rate", lambda fraction, peak: float("inf"))
    with pytest.raises(DsbenchError, match="diverged: weights are not finite"):
        fit(replace(OPTIONS, **ENDLESS), setting_of(OPTIONS), quiet, most_steps=1)


class Stop(Exception):
    """Stands for a machine that is taken away."""


@KINDS
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(options, tmp_path):
    options = replace(options, **ENDLESS)
    path = tmp_path / "new" / "d.state"

    def stopping(record: dict[str, object]) -> None:
        if record["step"] == 8:
            raise Stop

    through = setting_of(options)
    fit(options, through, quiet, most_steps=12)
    stopped = setting_of(options)
    with pytest.raises(Stop):
        fit(options, stopped, stopping, most_steps=12, keeper=Keeper(path, "k", 0.0))
    assert [p.name for p in path.parent.iterdir()] == ["d.state"]
    resumed, log = setting_of(options), []
    keeper = Keeper(path, "k", 0.0)
    assert fit(options, resumed, log.append, most_steps=12, keeper=keeper).step == 12
    assert (log[0]["stage"], log[0]["step"], log[1]["step"]) == ("resume", 7, 7)
    for (name, one), other in zip(parameters(through.module).items(), resumed.module.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert any(
        (one != other).any()
        for one, other in zip(stopped.module.parameters(), resumed.module.parameters(), strict=True)
    )
    with pytest.raises(EnvironmentRefused, match="other options or data"):
        fit(options, setting_of(options), quiet, most_steps=12, keeper=Keeper(path, "other", 0.0))
    whole = torch.load(path)
    for damaged in (
        {"key": "k"},
        whole | {"module": {}},
        whole | {"order": torch.zeros(3)},
        whole | {"step": None},
        whole | {"order": whole["order"] + 1},
    ):
        torch.save(damaged, path)
        with pytest.raises(EnvironmentRefused, match="is damaged") as refused:
            fit(options, setting_of(options), quiet, most_steps=12, keeper=Keeper(path, "k", 0.0))
        assert refused.value.hint == "delete it"
    keeper.done()
    assert not list(path.parent.iterdir())


def test_a_state_is_kept_so_many_seconds_apart(tmp_path):
    options = replace(OPTIONS, **ENDLESS)
    fit(options, setting_of(options), quiet, most_steps=2, keeper=Keeper(tmp_path / "s", "k", 1e6))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [OPTIONS, MTP], ids=["dspark", "mtp"])
def test_train_drafter_from_a_data_file_writes_a_drafter_that_loads(options, tmp_path, monkeypatch):
    monkeypatch.setattr("dsbench.runtime.training.train.KEEP_EVERY", 0.0)
    path, out = tmp_path / "data.npz", tmp_path / "out" / "drafter"
    save_data(random_data(48), path)
    loaded = LoadedTarget(name="toy", model=toy_target(), tokenizer=None, eos=EOS, random=False)
    options = replace(options, seconds=0.6, log_every=0.02, data_path=path)
    seen: list[str] = []

    def stopping(record: dict[str, object]) -> None:
        seen.append(record["stage"])
        if seen.count("train") == 3:
            raise Stop

    with pytest.raises(Stop):
        train_drafter(options, loaded, [], out, stopping)
    assert [p.name for p in out.parent.iterdir()] == ["drafter.state"]
    with pytest.raises(EnvironmentRefused, match="other options"):
        train_drafter(replace(options, lr=1e-4), loaded, [], out, quiet)
    log: list[dict[str, object]] = []
    card = train_drafter(options, loaded, [], out, log.append)
    assert [p.name for p in out.parent.iterdir()] == ["drafter"], "no state, nothing half-written"
    drafter = load_drafter(out, toy_target())
    assert 2 in drafter.vocabulary.tolist() and len(drafter.vocabulary) == 40 and drafter.block == 3
    stages = [r["stage"] for r in log]
    assert stages.index("resume") < stages.index("train") and stages[-1] == "saved"
    lines = [r for r in log if r["stage"] == "train"]
    assert lines[-1]["step"] == card["steps"] > 3 and set(lines[-1]["tau"]) == EVENTS
    text = (out / "README.md").read_text()
    assert text.startswith(f"# A {'chain' if options.kind == 'mtp' else 'DSpark'} drafter for toy")
    assert "0.1 cross-entropy + 0.9 L1 + the" in text and "| mixed | coupled |" in text
    assert json.loads((out / "card.json").read_text())["validation"] == card["validation"]
    assert set(card["validation"]["mixed"]) == EVENTS and 1 < card["validation"]["T=1"]["residual"]["tau"] <= 4


@pytest.mark.parametrize("where", ["update", "evaluate", "save"])
def test_a_training_that_ends_badly_saves_nothing(where, tmp_path, monkeypatch):
    """Nor is a state kept where there is nothing to go on with."""
    path, out = tmp_path / "data.npz", tmp_path / "drafter"
    save_data(random_data(48), path)
    loaded = LoadedTarget(name="toy", model=toy_target(), tokenizer=None, eos=EOS, random=False)
    if where == "evaluate":
        monkeypatch.setattr("dsbench.runtime.training.train.evaluate", lambda *_, **__: {"greedy": {"tau": math.nan}})
    elif where == "update":
        rate = "dsbench.runtime.training.fit.learning_rate"
        good = iter(range(3))
        monkeypatch.setattr(rate, lambda fraction, peak: math.inf if next(good, None) is None else peak)
    else:
        monkeypatch.setattr("dsbench.runtime.training.save.card_text", lambda card: card["nothing"])
    monkeypatch.setattr("dsbench.runtime.training.train.KEEP_EVERY", 0.0)
    seconds = 60 if where == "update" else 0.3  # which it does not wait for
    options = replace(OPTIONS, seconds=seconds, log_every=0.01, data_path=path)
    with pytest.raises(KeyError if where == "save" else DsbenchError, match="diverged|nothing"):
        train_drafter(options, loaded, [], out, quiet)
    assert {p.name for p in tmp_path.iterdir()} - {"drafter.state" if where == "save" else ""} == {"data.npz"}


def test_a_batch_wants_that_many_training_sequences():
    with pytest.raises(UsageError, match="fewer than a batch"):
        setting_of(replace(OPTIONS, batch=64))
    with pytest.raises(UsageError, match="do not fit"):
        setting_of(replace(OPTIONS, block=200, max_tokens=300, width=400))


def test_a_log_line_counts_greedy_rows_by_match_and_the_others_by_the_law():
    """All that it divides by lies on the device: a replayed graph runs no Python."""
    sums, one = Sums(2, CPU), torch.ones(())
    parts = LossParts(
        total=one * 3,
        ce=one,
        l1=one,
        coupled=one,
        confidence=one,
        free=one,
        accept=torch.tensor([0.5, 0.25, 0.75, 0.5]),
        match=torch.tensor([1.0, 0.0, 1.0, 1.0]),
    )
    valid, greedy = torch.tensor([[True, True], [True, False]]), torch.tensor([True, True, False, False])
    for _ in range(2):
        sums.add(parts, valid, greedy, one)
    assert isinstance(sums.steps, torch.Tensor) and sums.steps == 2
    assert sums.take() == {**dict.fromkeys(Sums.NAMES, 1.0), "loss": 3.0, "acceptance": [0.875, 0.0]}
    assert sums.take() == {**dict.fromkeys(Sums.NAMES, 0.0), "acceptance": [0.0, 0.0]}
