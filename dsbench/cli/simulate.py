"""The command `simulate`: a frontier without a GPU, from a cost table and a recorded trace. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsbench.cli.options import Start

simulate_app = typer.Typer()


@simulate_app.command("simulate")
def simulate_command(
    trace: Annotated[str | None, typer.Option(help="Recorded acceptance, made by `record-trace`.")] = None,
    cost: Annotated[str | None, typer.Option(help="Cost table, made by `profile-cost`.")] = None,
    mode: Annotated[str | None, typer.Option(help="Arms: none,static,static:3,compact,cap-accept,...")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes. [default: 1:256:x2]", show_default=False)] = None,
    workload: Annotated[str | None, typer.Option(help="Workloads of the trace, or a mix of them.")] = None,
    acceptance: Annotated[str | None, typer.Option(help="Published acceptance to rescale the trace to.")] = None,
    temperature: Annotated[float | None, typer.Option(help="That of the trace.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output tokens a request at most.")] = None,
    requests: Annotated[int | None, typer.Option(help="Measured requests a cell (at least the batch size).")] = None,
    start: Start = None,
    draft: Annotated[str | None, typer.Option(help="planned, or full: planned arms draft the block.")] = None,
    lag: Annotated[int | None, typer.Option(help="Steps between confidences and the budget they set.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Measured run: what is not given is taken from it, and the errors are printed.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder to write.")] = Path("runs/simulated"),
    json_out: Annotated[bool, typer.Option("--json", help="With --against: the errors as JSON on stdout.")] = False,
) -> None:
    """Predict the frontier from a cost table and a recorded trace, without a GPU; with --against, say how far off."""
    from dsbench.views.simulated import run_simulation

    given = {
        "trace": trace,
        "cost": cost,
        "mode": mode,
        "batch": batch,
        "workload": workload,
        "acceptance": acceptance,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "requests": requests,
        "draft": draft,
        "lag": lag,
        "start": start,
    }
    run_simulation({k: v for k, v in given.items() if v is not None}, against=against, out=out, as_json=json_out)
