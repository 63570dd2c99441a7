"""`train`: runs a training from command-line options, on one device or on those of torchrun; prints progress."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsbench.deploy.deployment import deploy, pick_device
from dsbench.errors import UsageError
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.ranks import joined
from dsbench.runtime.training.train import make_data, train_drafter
from dsbench.settings import RunConfig
from dsbench.workloads.training import training_prompts
from dsbench.workloads.training_openers import training_openers
from dsbench.writing import file_to_write, note, writable_folder

CHAIN_ANCHORS = 224  # of a sequence, at half the sequences: as many rows a step as a block drafter has
MOST_VALIDATION = 512  # sequences in each validation set


def train(
    config: RunConfig,
    *,
    kind: str,
    out: Path,
    data: Path | None,
    data_only: bool,
    log: Path | None,
    options: dict[str, Any],
) -> None:
    """Trains and prints the card; raises UsageError for options that make no sense, before any work."""
    chosen = train_options(kind, options, seed=config.seed, data=data)
    if data_only and data is None:
        raise UsageError("--data-only needs a file to write", hint="give --data FILE")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is in the way", hint="name an empty folder")
    file_to_write(None if data is not None and data.is_file() else data, flag="--data")
    file_to_write(log, flag="--log")
    writable_folder(None if data_only else out.parent)
    tell = progress(log)
    with joined(pick_device(config)) as ranks:
        deployment = deploy(config, need_drafter=False)
        prompts, openers = training_prompts(), training_openers()
        if data_only:
            made = make_data(chosen, deployment.target, prompts, tell, openers=openers, ranks=ranks)
        else:
            command = command_line(kind, options, config.seed)
            made = train_drafter(
                chosen, deployment.target, prompts, out, tell, openers=openers, ranks=ranks, command=command
            )
        if ranks.first:
            print(json.dumps(made, indent=2, default=str))


def train_options(kind: str, typed: dict[str, Any], *, seed: int, data: Path | None) -> TrainOptions:
    """The options of a kind of drafter; dflash is dspark without a sequential head."""
    if kind not in ("dspark", "dflash", "mtp"):
        raise UsageError(f"unknown kind of drafter {kind!r}", hint="dspark, dflash or mtp")
    chain = kind == "mtp"
    filled = {
        **typed,
        "kind": "mtp" if chain else "dspark",
        "head": typed["head"] if kind == "dspark" else "none",
        "layers": (1 if chain else 2) if typed["layers"] is None else typed["layers"],
        "block": (3 if chain else 7) if typed["block"] is None else typed["block"],
        "validation": max(1, min(MOST_VALIDATION, typed["sequences"] // 4)),
        "taps": _layers(typed["taps"]),
        "window": None if chain else typed["window"] or None,
    }
    if chain:
        batch = min(typed["batch"], max(1, typed["batch"] // 2))  # what is below 1 stays so, to be refused
        filled |= {"batch": batch, "anchors": CHAIN_ANCHORS}
    if kind == "dspark" and filled["head"] == "none":
        raise UsageError("a dspark drafter has a sequential head", hint="give --kind dflash for none")
    return TrainOptions(**filled, seed=seed, data_path=data)


def command_line(kind: str, typed: dict[str, Any], seed: int) -> str:
    """The call that trains this drafter again, with every option written out."""
    drops = {"dspark": (), "dflash": ("head", "rank"), "mtp": ("head", "rank", "taps", "window")}[kind]
    flags = {name: value for name, value in typed.items() if value is not None and name not in drops}
    return " ".join(
        [
            "dsbench train --kind",
            kind,
            *(
                f"--{name.replace('_', '-')} {value:g}"
                if isinstance(value, float)
                else f"--{name.replace('_', '-')} {value}"
                for name, value in flags.items()
            ),
            f"--seed {seed}",
        ]
    )


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--taps {text!r} is no list of layer numbers", hint="such as 1,14,27") from None


def progress(path: Path | None) -> Callable[[dict[str, Any]], None]:
    """A log that writes readable lines to stderr, and full records to `path`."""

    def log(record: dict[str, Any]) -> None:
        note(progress_line(record))
        if path is not None:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"time": round(time.time(), 1), **record}) + os.linesep)

    return log


def progress_line(record: dict[str, Any]) -> str:
    """One record for people: a training's step, time left, loss, acceptance by depth; anything else as it is."""
    if record.get("stage") != "train":
        rest = ", ".join(f"{k} {v}" for k, v in record.items() if k != "stage")
        return f"{record.get('stage')}: {rest}"[:400]
    tau = ", ".join(f"{event} {value:.3f}" for event, value in record.get("tau", {}).items())
    return (
        f"step {record['step']:>6}  {record['seconds']:6.1f} s, {record['left']:6.1f} s left  loss {record['loss']:.4f}"
        f"  acceptance {' '.join(f'{a:.3f}' for a in record['acceptance'])}" + (f"  held-out tau {tau}" if tau else "")
    )
