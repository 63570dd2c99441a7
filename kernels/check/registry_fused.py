"""The registry's fused products. What they fuse stands in the registry too, to be timed beside them."""

from __future__ import annotations

from typing import Any

from dsbench.kernels.check import costs
from dsbench.kernels.check.calls import pages_after, triton_side
from dsbench.kernels.check.inputs_fused import (
    EMBED_CASES,
    GATE_CASES,
    PRODUCT_CASES,
    QKV_CASES,
    embed_inputs,
    gate_inputs,
    product_add_inputs,
    qkv_inputs,
    small_product_inputs,
)
from dsbench.kernels.check.op import Op
from dsbench.kernels.fused import products as fused

WHY = "fp32 sums of up to 4200 products below 40 / sqrt(K) in another order, times at most 4"


def fused_ops() -> tuple[Op, ...]:
    turn: dict[str, Any] = {"make_inputs": qkv_inputs, "cases": QKV_CASES, "cost": costs.normed_qkv_cost}
    return (
        *_streams(
            "embed_rows",
            fused.embed,
            fused.embed_reference,
            "embed",
            make_inputs=embed_inputs,
            cases=EMBED_CASES,
            cost=costs.embed_cost,
        ),
        Op(
            name="normed_qkv",
            compiled=fused.normed_qkv,
            reference=fused.normed_qkv_reference,
            tolerance=4e-5,
            why=WHY + ", or a norm of heads and a turn more",
            cuda=triton_side("fused.products", "normed_qkv"),
            **turn,
        ),
        Op(
            name="normed_qkv pages",
            compiled=lambda **inputs: pages_after(fused.normed_qkv, inputs),
            reference=lambda **inputs: pages_after(fused.normed_qkv_reference, inputs),
            tolerance=4e-5,
            why="as the queries; unwritten entries are unchanged",
            cuda=lambda **inputs: pages_after(triton_side("fused.products", "normed_qkv"), inputs),
            **turn,
        ),
        Op(
            name="normed_swiglu",
            compiled=fused.normed_swiglu,
            reference=fused.normed_swiglu_reference,
            make_inputs=gate_inputs,
            cases=GATE_CASES,
            tolerance=1e-4,
            why=WHY + ", and a product of two of them",
            cuda=triton_side("fused.products", "normed_swiglu"),
            cost=costs.normed_swiglu_cost,
        ),
        *_streams(
            "product_add",
            fused.product_add,
            fused.product_add_reference,
            "product_add",
            make_inputs=product_add_inputs,
            cases=PRODUCT_CASES,
            cost=costs.product_add_cost,
        ),
        Op(
            name="small_product",
            compiled=fused.small_product,
            reference=fused.small_product_reference,
            make_inputs=small_product_inputs,
            cases=PRODUCT_CASES,
            tolerance=4e-5,
            why=WHY,
            cuda=triton_side("fused.products", "small_product"),
            cost=costs.small_product_cost,
        ),
    )


def _streams(name: str, compiled: Any, reference: Any, kernel: str, **rest: Any) -> tuple[Op, ...]:
    """What a residual stream consists of: three results of one launch."""
    bounds = {
        "x": (1e-5, WHY),
        "gained": (4e-5, "the stream's, times a gain below 4"),
        "squares": (2e-3, "a sum of up to 63 squares below 30 in another order, and of errors of x of 1e-5"),
    }
    make = triton_side("fused.products", kernel)

    def part(run: Any, index: int) -> Any:
        """Squares as one sum: their parts are each side's own."""
        return lambda **inputs: run(**inputs)[index].sum(-1) if index == 2 else run(**inputs)[index]

    return tuple(
        Op(
            name=name if index == 0 else f"{name} {word}",
            compiled=part(compiled, index),
            reference=part(reference, index),
            cuda=part(make, index),
            tolerance=bound,
            why=why,
            **rest,
        )
        for index, (word, (bound, why)) in enumerate(bounds.items())
    )
