"""Commands about drafters: `train`, `calibrate`, `drafters`, `record-trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsbench.cli.options import (
    CalibrationFile,
    Device,
    DrafterFolder,
    Dtype,
    ExecutorName,
    MaxTokens,
    Seed,
    Target,
    Temperature,
    Threads,
    TopK,
    TopP,
    config_of,
)

EVENTS = "coupled@0,coupled@0.7,coupled@1,residual@0.7,residual@1"
drafters_app = typer.Typer()


@drafters_app.command("train")
def train_command(
    out: Annotated[Path, typer.Option(help="Checkpoint folder to write.")] = Path("drafter"),
    target: Target = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    kind: Annotated[str, typer.Option(help="dspark, dflash (no sequential head) or mtp (a chain).")] = "dspark",
    seconds: Annotated[float, typer.Option(help="Training time, data not counted.")] = 300.0,
    head: Annotated[str, typer.Option(help="Sequential head of dspark: vanilla, gated, rnn or deep.")] = "deep",
    layers: Annotated[int | None, typer.Option(help="[default: 2; 1 for mtp]", show_default=False)] = None,
    rank: Annotated[int, typer.Option(help="Width of the sequential head.")] = 64,
    block: Annotated[int | None, typer.Option(help="Draft tokens. [default: 7; 3 for mtp]", show_default=False)] = None,
    taps: Annotated[str, typer.Option(help="Target layers read; one past the last: final norm.")] = "1,14,27",
    window: Annotated[int, typer.Option(help="Context tokens a layer sees; 0: all. Training shows it 512.")] = 512,
    draft_vocab: Annotated[int, typer.Option(help="Ids it can propose, the most frequent ones.")] = 16_384,
    sequences: Annotated[int, typer.Option(help="Training sequences to make.")] = 54_000,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 6e-3,
    batch: Annotated[int, typer.Option(help="Sequences a step, over all GPUs.")] = 64,
    coupled: Annotated[float, typer.Option(help="Part of the distance loss given to the coupled event.")] = 0.0,
    seed: Seed = None,
    data: Annotated[Path | None, typer.Option(help="Data file to reuse, or to write if it is absent.")] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Make the data file and stop.")] = False,
    log: Annotated[Path | None, typer.Option(help="Write progress here too, one JSON object a line.")] = None,
) -> None:
    """Train a drafter for the target on text the target writes itself. Several GPUs: run it under torchrun."""
    from dsbench.drafting import train

    config, _ = config_of({"target": target, "device": device, "dtype": dtype, "threads": threads, "seed": seed})
    options = {
        "seconds": seconds,
        "head": head,
        "layers": layers,
        "rank": rank,
        "block": block,
        "taps": taps,
        "window": window,
        "draft_vocab": draft_vocab,
        "sequences": sequences,
        "lr": lr,
        "batch": batch,
        "coupled": coupled,
    }
    train.train(config, kind=kind, out=out, data=data, data_only=data_only, log=log, options=options)


@drafters_app.command("calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Option(help="Calibration file to write.")] = Path("calibration.json"),
    workload: Annotated[str | None, typer.Option(help="Held-out workloads.")] = None,
    target: Target = None,
    drafter: DrafterFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int, typer.Option(help="Prompts a workload and event.")] = 32,
    events: Annotated[str, typer.Option(help="rule@temperature, ...; rules: coupled, residual, block.")] = EVENTS,
    plots: Annotated[Path | None, typer.Option(help="Folder for the reliability pictures.")] = None,
) -> None:
    """Fit the confidence calibration on full-block rollouts, and report it before and after."""
    from dsbench.cli import commands

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "out")})
    commands.calibrate(config, out=out, batch=batch, prompts=prompts, events=events, plots=plots)


@drafters_app.command("drafters")
def drafters_command(
    folders: Annotated[list[Path], typer.Argument(help="Drafter checkpoint folders; the first is paired.")],
    name: Annotated[list[str] | None, typer.Option(help="A drafter's name, once a folder; default: folders.")] = None,
    out: Annotated[Path, typer.Option(help="Folder; what it holds of these drafters is kept.")] = Path("drafters"),
    workload: Annotated[str | None, typer.Option(help="Held-out workloads.")] = None,
    target: Target = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int, typer.Option(help="Prompts a workload and event.")] = 32,
    events: Annotated[str, typer.Option(help="rule@temperature, ...; rules: coupled, residual, block.")] = EVENTS,
    time: Annotated[str | None, typer.Option(help="Batch sizes to time drafting at, e.g. 1,16.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Write what was measured into the folders' cards.")] = False,
) -> None:
    """Compare drafters on the same prompts, whole blocks verified: accepted length, acceptance by depth, draft time."""
    from dsbench.drafting.compare import drafters
    from dsbench.views.drafters import show_comparison

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "out")})
    drafters(
        config,
        folders,
        tuple(name or ()),
        out=out,
        batch=batch,
        prompts=prompts,
        events=events,
        time=time,
        cards=cards,
        show=show_comparison,
    )


@drafters_app.command("record-trace")
def record_trace_command(
    out: Annotated[Path, typer.Option(help="Trace file to write.")] = Path("trace.parquet"),
    workload: Annotated[str | None, typer.Option(help="Workloads.")] = None,
    target: Target = None,
    drafter: DrafterFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    executor: ExecutorName = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    calibration: CalibrationFile = None,
    max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int | None, typer.Option(help="Prompts a workload; default: all.")] = None,
) -> None:
    """Record texts, and confidences and match length at every token of them, for shape targets to replay."""
    from dsbench.cli import commands

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "out")})
    commands.record_trace(config, out=out, prompts=prompts, batch=batch)
