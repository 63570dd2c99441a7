"""Flags that several commands have, and the configuration they make. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dsbench.settings import RunConfig

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
Start = Annotated[str | None, typer.Option(help="spread: first requests are as far on as if come before; together.")]
MaxTokens = Annotated[int | None, typer.Option(help="Output tokens a request at most.")]
Within = Annotated[str | None, typer.Option(help="Time to take, e.g. 90s, 4m: what does not fit is left out.")]
CalibrationFile = Annotated[str | None, typer.Option("--calibration", help="Calibration file of the drafter.")]

TemplateArg = Annotated[
    list[str] | None,
    typer.Option("--template-arg", help="name=value for the chat template, e.g. enable_thinking=false."),
]
ParseSpecial = Annotated[
    bool | None, typer.Option("--parse-special/--no-parse-special", help="Control tokens in prompts are no text.")
]


def config_of(given: dict[str, Any]) -> tuple[RunConfig, dict[str, str]]:
    """RunConfig from the flags of a command; what is no field of it is the command's own business."""
    from dataclasses import fields

    from dsbench.settings import RunConfig, resolve

    names = {f.name for f in fields(RunConfig)}
    given = given | {k: ",".join(v) for k, v in given.items() if k == "template_arg" and v}
    return resolve({k: v for k, v in given.items() if k in names and not isinstance(v, Path)})
