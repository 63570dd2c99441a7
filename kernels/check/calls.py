"""Calls of ops as the runtime makes them, with weights laid out and host-side values passed. Only the call is timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.attention import paged_attention
from dsbench.kernels.check.inputs import Inputs
from dsbench.kernels.draft.head import Head, coupled_block, coupled_block_reference, coupled_loop
from dsbench.kernels.linear import Projection
from dsbench.kernels.truncate import Kept

Block = tuple[Tensor, Any]


def attention_call(inputs: Inputs) -> Callable[[], Tensor]:
    return partial(paged_attention, **inputs, most_rows=int(inputs["cu_rows"].diff().max()))


def projection_call(inputs: Inputs, *, exact: bool = False) -> Callable[[], Tensor]:
    return partial(Projection(inputs["weight"], inputs["bias"], exact=exact), inputs["x"])


def block_call(inputs: Inputs) -> Callable[[], Block]:
    """Ids and features of all depths; the part of the hidden states is made before, by one product for all."""
    return partial(coupled_block, **_block_arguments(inputs))


def block_loop(inputs: Inputs) -> Callable[[], Block]:
    """As `block_call`, one torch op after another at each depth."""
    arguments = _block_arguments(inputs)
    return partial(coupled_loop, **arguments, advance=arguments["head"].unfused_advance)


def block_reference(inputs: Inputs) -> tuple[Tensor, Tensor]:
    rest = {name: x for name, x in inputs.items() if "." not in name}
    return coupled_block_reference(weights={name: x for name, x in inputs.items() if "." in name}, **rest)


def block_triton(inputs: Inputs) -> Block:
    arguments = _block_arguments(inputs)
    arguments["head"] = arguments["head"].merged()
    made: Block = triton_side("draft.head", "coupled_block")(most=max(arguments.pop("counts")), **arguments)
    return made


def pages_after(run: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """Keys over values in all pages but the last (of no request), after a run on a copy of them."""
    copies = {name: inputs[name].clone() for name in ("keys", "values")}
    run(**inputs | copies)
    return torch.stack([x[:-1] for x in copies.values()])


def bounds(kept: Kept) -> Tensor:
    """Cut and last column of each row [n, 2] as fp64; where everything is kept, the cut is the lowest fp32 number."""
    return torch.stack([kept.cut.double().clamp(min=torch.finfo(torch.float32).min), kept.last.double()], dim=1)


def triton_side(module: str, name: str) -> Callable[..., Any]:
    """The Triton function `name` of kernels/<module>_triton.py; the call imports Triton, a CPU need not have it."""
    return lambda **inputs: getattr(import_module(f"dsbench.kernels.{module}_triton"), name)(**inputs)


def _block_arguments(inputs: Inputs) -> dict[str, Any]:
    rest = {name: x for name, x in inputs.items() if "." not in name and name not in ("kind", "hidden")}
    weights = {name: x for name, x in inputs.items() if "." in name}
    head = Head.of(inputs["kind"], weights, weights["markov_w1.weight"])
    part, counts = head.hidden_part(inputs["hidden"]), inputs["depth"].tolist()
    return rest | {"head": head, "part": part, "counts": counts, "stats": True}
