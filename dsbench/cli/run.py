"""Commands that run arms: `sweep`, `generate`, `trace`, `selftest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsbench.cli.options import (
    Accept,
    CalibrationFile,
    Cost,
    Device,
    DraftDepth,
    DrafterFolder,
    Dtype,
    ExecutorName,
    Lag,
    MaxTokens,
    MtpFolder,
    Numerics,
    ParseSpecial,
    Seed,
    Start,
    Target,
    Temperature,
    TemplateArg,
    Threads,
    TopK,
    TopP,
    Within,
    config_of,
)

SELFTEST_MODES = "none,static,compact,cap-accept,no-trim"
run_app = typer.Typer()


@run_app.command("sweep")
def sweep_command(
    mode: Annotated[str | None, typer.Option(help="Arms: none,static,static:3,mtp:3,compact,cap-accept,...")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, e.g. 1:256:x2.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workloads, e.g. math,chat or mix:math=1,chat=1.")] = None,
    target: Target = None,
    drafter: DrafterFolder = None,
    mtp_drafter: MtpFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
    threads: Threads = None,
    executor: ExecutorName = None,
    accept: Accept = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    lag: Lag = None,
    cost: Cost = None,
    calibration: CalibrationFile = None,
    max_tokens: MaxTokens = None,
    draft: DraftDepth = None,
    template_arg: TemplateArg = None,
    parse_special: ParseSpecial = None,
    requests: Annotated[int | None, typer.Option(help="Measured requests a cell (at least the batch size).")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repeats a cell, interleaved with other arms.")] = None,
    text: Annotated[str | None, typer.Option(help="pinned: every arm commits the recorded text; free.")] = None,
    start: Start = None,
    request_rate: Annotated[str | None, typer.Option(help="Open loop: requests/s, e.g. 2,4,closed.")] = None,
    burstiness: Annotated[str | None, typer.Option(help="1: Poisson; below 1: bursts; inf: a steady beat.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="Recorded arrivals and lengths: .csv or .jsonl.")] = None,
    input_len: Annotated[str | None, typer.Option(help="Prompt tokens: 128, 64:512, 64=3,512=1, a file.")] = None,
    output_len: Annotated[str | None, typer.Option(help="Answer tokens at most, likewise.")] = None,
    slo: Annotated[str | None, typer.Option(help="Count goodput against it, e.g. ttft:200ms,tpot:20ms.")] = None,
    trace: Annotated[str | None, typer.Option(help="Recorded acceptance to replay on a shape target.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Published acceptance to rescale the trace to.")] = None,
    out: Annotated[str | None, typer.Option(help="Run folder.")] = None,
    launcher: Annotated[str | None, typer.Option(help="local; ray: spread over its workers, a device each.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers of the launcher; default: as many as GPUs.")] = None,
    within: Within = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and how long it takes, and stop.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="The summary's rows as JSON on stdout.")] = False,
) -> None:
    """Run arms over batch sizes and workloads; store per-step, per-round and per-request records."""
    from dsbench.cli import commands

    config, sources = config_of(locals())
    commands.sweep(config, sources, resume=resume, dry_run=dry_run, as_json=json_out)


@run_app.command("generate")
def generate_command(
    prompts: Annotated[str, typer.Option(help="JSONL file or workload.")] = "chat",
    mode: Annotated[str, typer.Option(help="One arm, e.g. none, static:3, mtp:3, compact.")] = "compact",
    target: Target = None,
    drafter: DrafterFolder = None,
    mtp_drafter: MtpFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
    threads: Threads = None,
    executor: ExecutorName = None,
    accept: Accept = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    lag: Lag = None,
    cost: Cost = None,
    calibration: CalibrationFile = None,
    max_tokens: MaxTokens = None,
    draft: DraftDepth = None,
    template_arg: TemplateArg = None,
    parse_special: ParseSpecial = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    limit: Annotated[int | None, typer.Option(help="Prompts to run; default: all of a file, 4 of a workload.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be given more than once.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """Run prompts in one arm and print what it says."""
    from dsbench.cli import commands

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "mode")})
    commands.generate(
        config, prompts=prompts, mode=mode, batch=batch, limit=limit, stop=tuple(stop or ()), as_list=json_out
    )


@run_app.command("trace")
def trace_command(
    mode: Annotated[str, typer.Option(help="One arm, e.g. none, static, mtp:3, compact.")] = "static",
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 1,
    steps: Annotated[int, typer.Option(help="Rounds to show, after the warm-up.")] = 12,
    out: Annotated[Path, typer.Option(help="Folder for timeline.json, .png and .svg.")] = Path("timeline"),
    workload: Annotated[str | None, typer.Option(help="Where prompts come from; of several the first.")] = None,
    target: Target = None,
    drafter: DrafterFolder = None,
    mtp_drafter: MtpFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
    threads: Threads = None,
    accept: Accept = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    lag: Lag = None,
    cost: Cost = None,
    calibration: CalibrationFile = None,
    max_tokens: MaxTokens = None,
    draft: DraftDepth = None,
    template_arg: TemplateArg = None,
    parse_special: ParseSpecial = None,
    trace: Annotated[str | None, typer.Option(help="Recorded acceptance to replay on a shape target.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Published acceptance to rescale the trace to.")] = None,
) -> None:
    """Show some rounds on a time axis, overlap on against off: a Perfetto trace, and a picture with the idle gaps."""
    from dsbench.cli import commands

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "mode", "out")})
    commands.trace_rounds(config, mode=mode, batch=batch, steps=steps, out=out)


@run_app.command("selftest")
def selftest_command(
    target: Target = None,
    drafter: DrafterFolder = None,
    mtp_drafter: MtpFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
    threads: Threads = None,
    executor: ExecutorName = None,
    seed: Seed = None,
    cost: Cost = None,
    accept: Accept = None,
    template_arg: TemplateArg = None,
    parse_special: ParseSpecial = None,
    workload: Annotated[str | None, typer.Option()] = None,
    mode: Annotated[str, typer.Option(help="Arms to compare with plain decoding.")] = SELFTEST_MODES,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,3,8",
    prompts: Annotated[int, typer.Option(help="Prompts in all.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Output tokens a request.")] = 32,
    temperatures: Annotated[str, typer.Option()] = "0,1",
    within: Within = None,
) -> None:
    """Check that every arm at every batch size writes one text; under rules other than coupled at T = 0 only.

    In fp32 a text may part at a rounding tie. With --numerics exact it may not, in the dtype that is served.
    """
    from dsbench.cli import commands

    config, _ = config_of({k: v for k, v in locals().items() if k not in ("batch", "mode", "max_tokens")})
    commands.selftest(config, mode=mode, batch=batch, prompts=prompts, max_tokens=max_tokens, temperatures=temperatures)
