"""Every op as a pair: the compiled version and its plain-torch reference, with inputs and a tolerance that says why.

The one list that tests (and later benchmarks) walk. An op that is not here is not tested, so it must be here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.attention import paged_attention, paged_attention_reference
from dsbench.kernels.draft_head import Head, coupled_block, coupled_block_reference
from dsbench.kernels.draft_stats import (
    coupled_stats,
    coupled_stats_reference,
    law_stats,
    law_stats_reference,
)
from dsbench.kernels.gumbel import gumbel_argmax, gumbel_argmax_reference
from dsbench.kernels.linear import Projection

Inputs = dict[str, Any]
BLOCK_CASES = (  # requests, slots, hidden, rank, draft vocabulary, head, one depth for all
    (1, 7, 24, 64, 1300, "rnn", True),
    (3, 4, 9, 5, 77, "rnn", False),
    (17, 3, 33, 8, 2049, "rnn", False),
    (2, 3, 16, 70, 300, "rnn", True),  # inner products in parts
    (1, 3, 20, 5, 128, "gated", True),
    (17, 2, 12, 64, 500, "gated", False),
    (3, 5, 7, 8, 1000, "vanilla", False),
    (17, 2, 7, 64, 130, "vanilla", True),
    (1, 1, 3, 1, 1, "rnn", True),
    (1, 7, 24, 16, 1300, "deep", True),
    (17, 3, 9, 5, 4200, "deep", False),
    (2, 2, 7, 70, 128, "deep", True),
)
STATS_CASES = ((1, 1), (2, 2), (7, 63), (99, 1000), (5, 4097), (9, 16384))


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """`make_inputs(generator, case)` gives keyword arguments for both; `cases` are deliberately odd shapes."""

    name: str
    compiled: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    make_inputs: Callable[[torch.Generator, Any], Inputs]
    cases: tuple[Any, ...]
    tolerance: float  # absolute; 0 for tokens, which must be equal
    why: str  # where the tolerance comes from
    cuda: Callable[..., Tensor] | None = None  # what `compiled` runs on CUDA tensors, where that is a Triton kernel


def registry() -> tuple[Op, ...]:
    return (
        Op(
            name="gumbel_argmax",
            compiled=gumbel_argmax,
            reference=gumbel_argmax_reference,
            make_inputs=_argmax_inputs,
            cases=((1, 1), (3, 63), (17, 1000), (5, 4097)),
            tolerance=0.0,
            why="both name a token; scores differ by an ulp of log only, and ties of that size do not occur here",
            cuda=lambda **inputs: _stats_triton().gumbel_argmax(**inputs),
        ),
        Op(
            name="coupled_stats winner",
            compiled=lambda **inputs: coupled_stats(**inputs)[0],
            reference=gumbel_argmax_reference,
            make_inputs=_stats_inputs,
            cases=STATS_CASES,
            tolerance=0.0,
            why="the token of gumbel_argmax",
            cuda=lambda **inputs: _stats_triton().coupled_stats(**inputs)[0],
        ),
        Op(
            name="coupled_stats features",
            compiled=lambda **inputs: coupled_stats(**inputs)[1],
            reference=lambda **inputs: coupled_stats_reference(**inputs)[1],
            make_inputs=_stats_inputs,
            cases=STATS_CASES,
            tolerance=2e-4,
            why="scores below 64 round at 2**-18 on each side, g doubles that, and log(g + 0.1) magnifies it tenfold",
            cuda=lambda **inputs: _stats_triton().coupled_stats(**inputs)[1],
        ),
        Op(
            name="law_stats",
            compiled=lambda logits, temperature, **_: law_stats(logits, temperature),
            reference=lambda logits, temperature, **_: law_stats_reference(logits, temperature),
            make_inputs=_stats_inputs,
            cases=STATS_CASES,
            tolerance=3e-5,
            why="an entropy of up to 10 nats from fp32 exponentials of arguments rounded at 2**-19",
            cuda=lambda logits, temperature, **_: _stats_triton().law_stats(logits, temperature),
        ),
        Op(
            name="coupled_block tokens",
            compiled=lambda **inputs: _block(coupled_block, inputs)[0],
            reference=lambda **inputs: _block_reference(inputs)[0],
            make_inputs=_block_inputs,
            cases=BLOCK_CASES,
            tolerance=0.0,
            why="scores differ by some 2**-19, and leads of that size do not occur here",
            cuda=lambda **inputs: _block(_block_triton, inputs)[0],
        ),
        Op(
            name="coupled_block features",
            compiled=lambda **inputs: _block(coupled_block, inputs)[1],
            reference=lambda **inputs: _block_reference(inputs)[1],
            make_inputs=_block_inputs,
            cases=BLOCK_CASES,
            tolerance=4e-4,
            why="coupled_stats, of logits with an fp32 product each",
            cuda=lambda **inputs: _block(_block_triton, inputs)[1],
        ),
        Op(
            name="paged_attention",
            compiled=paged_attention,
            reference=paged_attention_reference,
            make_inputs=_attention_inputs,
            cases=(
                ((1,), (0,), 1, 1, 8, True, None),
                ((3, 1, 8), (0, 15, 63), 3, 3, 64, True, None),
                ((7, 7), (100, 1), 3, 1, 16, False, None),
                ((2, 5, 1, 4), (16, 31, 200, 5), 4, 2, 20, True, None),
                ((7, 5, 1, 4), (100, 0, 33, 15), 3, 2, 16, False, 20),  # longer and shorter contexts than the window
                ((7, 3), (70, 2), 2, 1, 12, False, 3),  # shorter than the block
                ((4, 2), (40, 0), 1, 3, 8, False, 1),
                ((5, 2), (35, 36), 2, 1, 16, False, 5),  # the first key is the last, the first of a page
                ((40, 5, 1), (37, 3, 16), 2, 2, 20, True, 17),
                ((3, 6), (31, 4), 3, 1, 64, True, 500),
            ),
            tolerance=2e-5,
            why="fp32 sums of up to 208 products in another order, and an exp of relative error 2e-7",
            cuda=_attention_triton,
        ),
        Op(
            name="projection",
            compiled=lambda x, weight: Projection(weight)(x),
            reference=lambda x, weight: F.linear(x.double(), weight.double()).float(),
            make_inputs=_projection_inputs,
            cases=((1, 7, 5), (3, 576, 192), (129, 100, 63)),
            tolerance=2e-4,
            why="fp32 sum of K = 576 products of unit normals: sqrt(K) * K * 2**-24 at worst, about 8e-4 / 4",
        ),
    )


def _stats_triton() -> Any:
    from dsbench.kernels import draft_stats_triton  # imports triton, which a machine without a GPU need not have

    return draft_stats_triton


def _block(run: Callable[..., tuple[Tensor, Any]], inputs: Inputs) -> tuple[Tensor, Any]:
    rest = {name: x for name, x in inputs.items() if "." not in name and name not in ("kind", "hidden")}
    weights = {name: x for name, x in inputs.items() if "." in name}
    head = Head.of(inputs["kind"], weights, weights["markov_w1.weight"])
    return run(
        head=head, part=head.hidden_part(inputs["hidden"]), counts=inputs["depth"].tolist(), stats=True, **rest
    )  # fmt: skip


def _block_reference(inputs: Inputs) -> tuple[Tensor, Tensor]:
    rest = {name: x for name, x in inputs.items() if "." not in name}
    return coupled_block_reference(weights={name: x for name, x in inputs.items() if "." in name}, **rest)


def _block_triton(counts: list[int], **inputs: Any) -> tuple[Tensor, Any]:
    from dsbench.kernels import draft_head_triton

    inputs["head"] = inputs["head"].merged()
    made: tuple[Tensor, Any] = draft_head_triton.coupled_block(most=max(counts), **inputs)
    return made


def _attention_triton(**inputs: Any) -> Tensor:
    from dsbench.kernels.attention_triton import paged_attention as attend

    return attend(**inputs)


def _argmax_inputs(generator: torch.Generator, case: tuple[int, int]) -> Inputs:
    n, vocab = case
    temperature = torch.rand(n, generator=generator) * 1.5
    temperature[::3] = 0
    return {
        "logits": torch.randn(n, vocab, generator=generator) * 3,
        "temperature": temperature,
        "seeds": torch.randint(-(2**62), 2**62, (n,), generator=generator),
        "positions": torch.randint(0, 8192, (n,), generator=generator),
        "ids": torch.randperm(vocab * 3, generator=generator)[:vocab].sort().values,
    }


def _block_inputs(generator: torch.Generator, case: tuple[Any, ...]) -> Inputs:
    """Base logits past a request's depth are poisoned."""
    n, slots, hidden, rank, vocab, kind, whole = case
    inputs = _argmax_inputs(generator, (n, vocab))
    depth = torch.full((n,), slots) if whole else torch.arange(n) % (slots + 1)
    depth[-1] = slots
    base = torch.randn(n, slots, vocab, generator=generator) * 2
    base[torch.arange(slots) >= depth[:, None]] = float("nan")
    width = 4 * rank if kind == "deep" else rank
    sizes = {"markov_w1.weight": (3 * vocab, width), "markov_w2.weight": (vocab, rank)}
    sizes |= {
        "deep": {
            "hidden_proj.weight": (width, hidden), "hidden_proj.bias": (width,),
            "state_proj.weight": (width, width), "feature_proj.weight": (rank, width),
        },
        "rnn": {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)},
        "gated": {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)},
    }.get(kind, {})  # fmt: skip
    weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in sizes.items()}
    return weights | {
        "kind": kind,
        "hidden": torch.randn(n, slots, hidden, generator=generator),
        "base": base,
        "anchor": torch.randint(0, 3 * vocab, (n,), generator=generator),
        "start": inputs["positions"],
        "depth": depth,
        "temperature": inputs["temperature"],
        "seeds": inputs["seeds"],
        "ids": inputs["ids"],
    }


def _stats_inputs(generator: torch.Generator, case: tuple[int, int]) -> Inputs:
    """Every fourth row is full of ties, every fourth has lost half of its tokens to top-k, one all but a token."""
    inputs = _argmax_inputs(generator, case)
    logits, temperature = inputs["logits"], inputs["temperature"]
    temperature[temperature > 0] += 0.3
    logits[1::4] = logits[1::4].round()
    logits[2::4, 1 + case[1] // 2 :] = float("-inf")
    logits[4:5, 1:] = float("-inf")
    return inputs


def _attention_inputs(generator: torch.Generator, case: tuple[Any, ...], page: int = 16) -> Inputs:
    """counts and context per request, query heads a group, key-value heads, head width, causal, window."""
    counts, context, group, kv_heads, width, causal, window = case
    need = [-(-(c + n) // page) for c, n in zip(context, counts, strict=True)]
    total = sum(need) + 3
    order = torch.randperm(total, generator=generator).tolist()
    pages = torch.full((len(counts), max(need)), total, dtype=torch.int32)  # the page that is nobody's
    for row, n in enumerate(need):
        pages[row, :n] = torch.tensor([order.pop() for _ in range(n)])
    kept = (total + 1, kv_heads, page, width)
    keys, values = torch.full(kept, float("nan")), torch.full(kept, float("nan"))
    for row, (c, n) in enumerate(zip(context, counts, strict=True)):
        for t in range(c + n):  # what lies past a request's rows stays poisoned
            at = int(pages[row, t // page])
            keys[at, :, t % page] = torch.randn(kv_heads, width, generator=generator)
            values[at, :, t % page] = torch.randn(kv_heads, width, generator=generator)
    return {
        "q": torch.randn(sum(counts), group * kv_heads, width, generator=generator),
        "keys": keys,
        "values": values,
        "pages": pages,
        "cu_rows": torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32),
        "context": torch.tensor(context, dtype=torch.int32),
        "causal": causal,
        "window": window,
    }


def _projection_inputs(generator: torch.Generator, case: tuple[int, int, int]) -> Inputs:
    m, k, n = case
    return {"x": torch.randn(m, k, generator=generator), "weight": torch.randn(n, k, generator=generator)}
