"""Every op as a pair: the compiled version and its torch reference, with inputs, a tolerance and its reason.

The one list that tests and `dsbench bench-kernels` walk. An op that is not here is not tested, so it must be here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dsbench.kernels.attention import attention_cost, paged_attention_reference
from dsbench.kernels.check import costs
from dsbench.kernels.check.calls import (
    attention_call,
    block_call,
    block_loop,
    block_reference,
    block_triton,
    bounds,
    pages_after,
    projection_call,
    triton_side,
)
from dsbench.kernels.check.inputs import (
    ATTENTION_CASES,
    BLOCK_CASES,
    DRAW_CASES,
    NORM_CASES,
    PROJECTION_CASES,
    ROTATE_CASES,
    STATS_CASES,
    TRUNCATE_CASES,
    argmax_inputs,
    attention_inputs,
    block_inputs,
    norm_inputs,
    projection_inputs,
    rotate_inputs,
    stats_inputs,
    swiglu_inputs,
    truncate_inputs,
)
from dsbench.kernels.check.op import Op
from dsbench.kernels.check.registry_fused import fused_ops
from dsbench.kernels.check.registry_step import step_ops
from dsbench.kernels.draft.stats import coupled_stats, coupled_stats_reference, law_stats, law_stats_reference
from dsbench.kernels.gumbel import gumbel_argmax, gumbel_argmax_reference
from dsbench.kernels.linear import projection_reference
from dsbench.kernels.norm import add_norm, add_norm_reference
from dsbench.kernels.rope import rotate_and_store, rotate_and_store_reference
from dsbench.kernels.swiglu import swiglu, swiglu_reference
from dsbench.kernels.truncate import truncate, truncate_reference


def registry() -> tuple[Op, ...]:
    return (*_draws(), *_blocks(), *_layer_parts(), *_rows(), *fused_ops(), *step_ops())


def _draws() -> tuple[Op, ...]:
    return (
        Op(
            name="gumbel_argmax",
            compiled=gumbel_argmax,
            reference=gumbel_argmax_reference,
            make_inputs=argmax_inputs,
            cases=DRAW_CASES,
            tolerance=0.0,
            why="both name a token; scores differ by a few ulp of logs only, and ties of that size do not occur here",
            cuda=triton_side("draft.stats", "gumbel_argmax"),
            cost=costs.argmax_cost,
        ),
        Op(
            name="coupled_stats winner",
            compiled=lambda **inputs: coupled_stats(**inputs)[0],
            reference=gumbel_argmax_reference,
            make_inputs=stats_inputs,
            cases=STATS_CASES,
            tolerance=0.0,
            why="the token of gumbel_argmax",
            cuda=lambda **inputs: triton_side("draft.stats", "coupled_stats")(**inputs)[0],
            cost=costs.coupled_stats_cost,
        ),
        Op(
            name="coupled_stats features",
            compiled=lambda **inputs: coupled_stats(**inputs)[1],
            reference=lambda **inputs: coupled_stats_reference(**inputs)[1],
            make_inputs=stats_inputs,
            cases=STATS_CASES,
            tolerance=2e-4,
            why="scores below 64 round at 2**-18, noise is good to 4e-6, g doubles it, log(g + 0.1) magnifies tenfold",
            cuda=lambda **inputs: triton_side("draft.stats", "coupled_stats")(**inputs)[1],
            cost=costs.coupled_stats_cost,
        ),
        Op(
            name="law_stats",
            compiled=lambda logits, temperature, **_: law_stats(logits, temperature),
            reference=lambda logits, temperature, **_: law_stats_reference(logits, temperature),
            make_inputs=stats_inputs,
            cases=STATS_CASES,
            tolerance=3e-5,
            why="an entropy of up to 10 nats from fp32 exponentials of arguments rounded at 2**-19",
            cuda=lambda logits, temperature, **_: triton_side("draft.stats", "law_stats")(
                logits=logits, temperature=temperature
            ),
            cost=costs.law_stats_cost,
        ),
        Op(
            name="truncate",
            compiled=lambda **inputs: bounds(truncate(**inputs)),
            reference=lambda **inputs: bounds(truncate_reference(**inputs)),
            make_inputs=truncate_inputs,
            cases=TRUNCATE_CASES,
            tolerance=0.0,
            why="bounds are logits and columns of the row; no mass before a token is within 1e-6 of a top-p here",
            cuda=lambda **inputs: bounds(triton_side("truncate", "truncate")(**inputs)),
            cost=costs.truncate_cost,
            bind=lambda inputs: partial(truncate, **inputs),
        ),
    )


def _blocks() -> tuple[Op, ...]:
    block: dict[str, Any] = {
        "make_inputs": block_inputs,
        "cases": BLOCK_CASES,
        "cost": costs.block_cost,
        "bind": block_call,
        "unfused": block_loop,
    }
    return (
        Op(
            name="coupled_block tokens",
            compiled=lambda **inputs: block_call(inputs)()[0],
            reference=lambda **inputs: block_reference(inputs)[0],
            tolerance=0.0,
            why="scores differ by some 2**-19, and leads of that size do not occur here",
            cuda=lambda **inputs: block_triton(inputs)[0],
            **block,
        ),
        Op(
            name="coupled_block features",
            compiled=lambda **inputs: block_call(inputs)()[1],
            reference=lambda **inputs: block_reference(inputs)[1],
            tolerance=4e-4,
            why="coupled_stats, of logits with an fp32 product each",
            cuda=lambda **inputs: block_triton(inputs)[1],
            **block,
        ),
    )


def _layer_parts() -> tuple[Op, ...]:
    product: dict[str, Any] = {"make_inputs": projection_inputs, "cases": PROJECTION_CASES, "tolerance": 2e-4}
    product |= {"reference": projection_reference, "cost": costs.projection_cost}
    return (
        Op(
            name="paged_attention",
            compiled=lambda **inputs: attention_call(inputs)(),
            reference=paged_attention_reference,
            make_inputs=attention_inputs,
            cases=ATTENTION_CASES,
            tolerance=2e-5,
            why="fp32 sums of up to 208 products in another order, and an exp of relative error 2e-7",
            cuda=triton_side("attention", "paged_attention"),
            cost=attention_cost,
            bind=attention_call,
        ),
        Op(
            name="projection",
            compiled=lambda **inputs: projection_call(inputs)(),
            why="fp32 sum of K = 576 products of unit normals: sqrt(K) * K * 2**-24 at worst, about 8e-4 / 4",
            bind=projection_call,
            **product,
        ),
        Op(
            name="exact_projection",
            compiled=lambda **inputs: projection_call(inputs, exact=True)(),
            why="as the projection: the bound holds for a sum from the front",
            cuda=triton_side("linear", "linear"),
            bind=partial(projection_call, exact=True),
            **product,
        ),
        Op(
            name="swiglu",
            compiled=swiglu,
            reference=swiglu_reference,
            make_inputs=swiglu_inputs,
            cases=((1, 1), (5, 63), (3, 1536), (2, 1100)),
            tolerance=1e-5,
            why="a product below 16 of an exponential and a quotient, each good to 3 ulp of 2**-24",
            cuda=triton_side("swiglu", "swiglu"),
            cost=costs.swiglu_cost,
        ),
    )


def _rows() -> tuple[Op, ...]:
    norm: dict[str, Any] = {"make_inputs": norm_inputs, "cases": NORM_CASES, "cost": costs.add_norm_cost}
    turn: dict[str, Any] = {"make_inputs": rotate_inputs, "cost": costs.rotate_cost}
    return (
        Op(
            name="add_norm sum",
            compiled=lambda **inputs: add_norm(**inputs)[0],
            reference=lambda **inputs: add_norm_reference(**inputs)[0],
            tolerance=0.0,
            why="one rounded sum",
            cuda=lambda **inputs: triton_side("norm", "add_norm")(**inputs)[0],
            **norm,
        ),
        Op(
            name="add_norm",
            compiled=lambda **inputs: add_norm(**inputs)[1],
            reference=lambda **inputs: add_norm_reference(**inputs)[1],
            tolerance=1e-5,
            why="products below 16, an ulp each of a mean square summed in another order, its root and two products",
            cuda=lambda **inputs: triton_side("norm", "add_norm")(**inputs)[1],
            **norm,
        ),
        Op(
            name="rotate_and_store",
            compiled=rotate_and_store,
            reference=rotate_and_store_reference,
            cases=tuple(case for case in ROTATE_CASES if case[1] > 0),
            tolerance=1e-5,
            why="as add_norm; without gains there is no difference",
            cuda=triton_side("rope", "rotate_and_store"),
            **turn,
        ),
        Op(
            name="rotate_and_store pages",
            compiled=lambda **inputs: pages_after(rotate_and_store, inputs),
            reference=lambda **inputs: pages_after(rotate_and_store_reference, inputs),
            cases=ROTATE_CASES,
            tolerance=1e-5,
            why="as the queries; unwritten entries are unchanged",
            cuda=lambda **inputs: pages_after(triton_side("rope", "rotate_and_store"), inputs),
            **turn,
        ),
    )
