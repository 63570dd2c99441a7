"""`dsbench train` on a tiny model: what is refused, at once and in one line; what a stop or a failure leaves behind."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import dsbench, refused
from training_tools import random_data

from dsbench.drafting.train import train_options
from dsbench.errors import UsageError
from dsbench.runtime.targets.load import load_target
from dsbench.runtime.training.token_data import save_data
from dsbench.settings import resolve

NOWHERE = ("train", "--target", "no-such-model")  # told only after what is wrong with the options
SMALL = ("--taps", "0,2", "--rank", "8", "--block", "3", "--batch", "4", "--seconds", "0.3", "--draft-vocab", "40")


@pytest.fixture
def target(request) -> Path:
    return request.getfixturevalue("model")


@pytest.fixture
def arrays(target, tmp_path) -> dict[str, Any]:
    """What a sound data file for the tiny model holds, by name."""
    loaded = load_target(str(target), home=tmp_path, device=torch.device("cpu"), dtype=torch.float32, seed=0)
    data = random_data(48)
    data = replace(data, ids=data.ids % 64, meta=data.meta | {"target_digest": loaded.model.digest})
    save_data(data, tmp_path / "d.npz")
    with np.load(tmp_path / "d.npz") as file:
        return {name: file[name] for name in file.files}


def train(target: Path, home: Path, *flags: str):
    return dsbench(
        "train",
        "--target",
        str(target),
        "--dtype",
        "float32",
        "--out",
        "x",
        "--data",
        "d.npz",
        *SMALL,
        *flags,
        home=home,
    )


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--lr", "nan"), "lr must"),
        (("--lr", "inf"), "lr must"),
        (("--seconds", "nan"), "seconds must"),
        (("--seconds", "inf"), "seconds must"),
        (("--coupled", "nan"), "coupled must"),
        (("--block", "0"), "block must be >= 1"),
        (("--layers", "0"), "layers must be >= 1"),
        (("--block", "384"), "block must be < 384"),
        (("--draft-vocab", "0"), "draft-vocab must"),
        (("--batch", "0", "--kind", "mtp"), "batch must be >= 1"),
        (("--block", "0", "--kind", "mtp"), "block must"),
        (("--seed", "-1"), "seed must"),
        (("--seed", str(1 << 70)), "seed must"),
        (("--data", "file/d.npz"), "name another --data"),
        (("--data", "."), "it is a folder"),
        (("--log", "."), "it is a folder"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_options_are_refused_before_anything_is_loaded(flags, word, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(dsbench(*NOWHERE, *flags, home=tmp_path), 2, word)


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1 << 63])
def test_no_command_takes_a_seed_that_its_generators_would_not(seed):
    with pytest.raises(UsageError, match="seed must lie"):
        resolve({"seed": seed})


def test_validation_sets_grow_with_the_training_up_to_what_the_default_has():
    typed = {"head": "deep", "layers": None, "block": None, "taps": "0", "window": 512, "batch": 5, "sequences": 54_000}

    def made(kind: str = "dspark", **changes: Any):
        return train_options(kind, typed | changes, seed=0, data=None)

    assert [made(sequences=n).validation for n in (1, 3, 40, 2048, 54_000)] == [1, 1, 10, 512, 512]
    assert made().decode_batch == 4096 and made("mtp").batch == 2 and made("mtp", batch=1).batch == 1


DAMAGE: dict[str, Any] = {
    "cut": lambda a: {"cut": 2},
    "flipped": lambda a: {"flip": True},
    "empty": lambda a: {"raw": b""},
    "junk": lambda a: {"raw": b"PK garbage"},
    "no arrays": lambda a: {"only": np.arange(3)},
    "meta list": lambda a: {"meta": np.array("[1]")},
    "meta no json": lambda a: {"meta": np.array("{")},
    "meta no tokens": lambda a: {"meta": without(a, "tokens")},
    "meta no seed": lambda a: {"meta": without(a, "seed")},
    "meta no digest": lambda a: {"meta": without(a, "target_digest")},
    "meta no counts": lambda a: {"meta": without(a, "sequences")},
    "prompt short": lambda a: {"prompt": a["prompt"][:-1]},
    "prompt long": lambda a: {"prompt": first(a["prompt"], 500)},
    "prompt none": lambda a: {"prompt": first(a["prompt"], 0)},
    "starts far": lambda a: {"starts": np.append(a["starts"][:-1], a["starts"][-1] + 9)},
    "starts back": lambda a: {"starts": first(a["starts"][::-1].copy(), 0)},
    "starts float": lambda a: {"starts": a["starts"].astype(float)},
    "ids beyond": lambda a: {"ids": first(a["ids"], 64)},
    "ids negative": lambda a: {"ids": first(a["ids"].astype(np.int32), -1)},
    "ids 64 bit": lambda a: {"ids": first(a["ids"].astype(np.int64), 1 << 32)},
    "ids square": lambda a: {"ids": a["ids"][:4].reshape(2, 2)},
    "no sequences": lambda a: {k: a[k][:0] for k in ("ids", "prompt", "temperature", "split")} | {"starts": [0]},
    "temperature": lambda a: {"temperature": first(a["temperature"], math.nan)},
    "split unknown": lambda a: {"split": first(a["split"], 7)},
    "split text": lambda a: {"split": a["split"].astype(str)},
}


def without(arrays: dict[str, Any], name: str) -> np.ndarray:
    return np.array(json.dumps({k: v for k, v in json.loads(str(arrays["meta"])).items() if k != name}))


def first(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array[0] = value
    return array


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_data_file_is_one_line(name, target, arrays, tmp_path):
    path, changes = tmp_path / "d.npz", DAMAGE[name](arrays)
    content = path.read_bytes()
    if "cut" in changes:
        path.write_bytes(content[: len(content) // 2])
    elif "flip" in changes:
        path.write_bytes(content[:99] + bytes(b ^ 255 for b in content[99:120]) + content[120:])
    elif "raw" in changes:
        path.write_bytes(changes["raw"])
    elif "only" in changes:
        with path.open("wb") as stream:
            np.save(stream, changes["only"])
    else:
        np.savez_compressed(path, **(arrays | changes))
    refused(train(target, tmp_path), 2, "d.npz is damaged: ", "(delete it)")
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith("x")]


def saved_state(content: Any, size: int | None = None):
    """Writes a torch file, or its first `size` bytes."""

    def write(path: Path) -> None:
        torch.save(content, path)
        path.write_bytes(path.read_bytes()[:size])

    return write


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"junk"),
        saved_state([1]),
        saved_state({"step": 1}),
        saved_state({"key": 1}),
        saved_state({"key": "k", "module": torch.zeros(9)}, 400),
    ],
    ids=["empty", "junk", "list", "no key", "a number as key", "cut"],
)
def test_a_damaged_state_is_refused(write, target, arrays, tmp_path):
    write(tmp_path / "x.state")
    refused(train(target, tmp_path), 6, "x.state is damaged: ", "(delete it)")


def test_a_training_that_diverges_leaves_nothing(target, arrays, tmp_path):
    done = train(target, tmp_path, "--lr", "1e30")
    assert done.returncode == 1 and "training diverged" in done.stderr.splitlines()[-1], done.stderr
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith("x")]


@pytest.mark.parametrize("kind", ["dspark", "dflash", "mtp"])
def test_short_data_trains_every_kind(kind, target, arrays, tmp_path):
    done = train(target, tmp_path, "--kind", kind)
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)
    assert card["steps"] > 0 and sorted(p.name for p in tmp_path.iterdir()) == ["d.npz", "model", "x"]


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("train", "the same command goes on"),
        ("drafters", "the same command goes on"),
        ("calibrate", ""),
        ("sweep", "the same command with --resume goes on"),
        ("profile-cost", ""),
    ],
)
def test_an_interrupt_says_how_to_go_on_where_something_was_kept(command, hint, monkeypatch, tmp_path):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    place = {"train": "drafting.train", "drafters": "drafting.compare"}.get(command, "cli.commands")
    monkeypatch.setattr(f"dsbench.{place}.{command.replace('-', '_')}", stop)
    done = dsbench(command, *(["folder"] if command == "drafters" else []), home=tmp_path)
    assert done.returncode == 130
    assert done.stderr.strip() == "dsbench: interrupted" + (f" ({hint})" if hint else "")
