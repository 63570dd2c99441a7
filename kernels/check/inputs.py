"""Inputs of the registered ops, by case, on the generator's device: odd shapes, what must not be read poisoned.

`odd=False` leaves out what a run has few of: greedy rows, exact ties, lost tokens, rows whose cache index is -1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]
IN_FP32 = ("cos", "sin", "squares", "temperature", "confidence", "scale", "offset")  # whatever the model's dtype
DRAW_CASES = ((1, 1), (3, 63), (17, 1000), (5, 4097), (3, 63, True), (5, 4097, True))  # see argmax_inputs
BLOCK_CASES = (  # requests, block, hidden, rank, draft vocabulary, head, one depth for all, whether that is the whole
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
    (17, 3, 9, 5, 300, "rnn", False, True),
    (1, 2, 9, 64, 1300, "vanilla", True, True),
)
STATS_CASES = ((1, 1), (2, 2), (7, 63), (99, 1000), (5, 4097), (9, 16384), (7, 2100, True))
TRUNCATE_CASES = ((1, 1), (12, 3), (19, 300), (5, 4500))
PROJECTION_CASES = (  # rows, inner, outputs, whether there is a bias
    (1, 1, 1, False),
    (1, 7, 5, True),
    (3, 576, 192, False),
    (65, 33, 63, True),
    (129, 100, 130, False),
    (2, 48, 64, True),
)
NORM_CASES = (  # rows, width, whether there is something to add
    (1, 1, True),
    (5, 63, True),
    (3, 576, False),
    (2, 4100, True),
)
ROTATE_CASES = (  # rows, query heads, key-value heads, head width, tokens a page, gains of queries and keys
    (1, 1, 1, 8, 16, False, False),
    (7, 9, 3, 64, 16, False, False),
    (5, 4, 2, 20, 4, True, True),
    (6, 0, 3, 12, 16, False, True),  # rows that are only seen
    (4, 13, 7, 6, 3, True, False),  # keys and values in two programs
    (3, 32, 8, 128, 16, True, True),
)
ATTENTION_CASES = (  # counts and context per request, query heads a group, kv heads, head width, causal, window[, cap]
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
    ((3, 6), (31, 4), 2, 2, 16, True, 9, 1.5),
    ((7, 1), (20, 0), 1, 2, 8, True, None, 0.5),
)


def in_dtype(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The same inputs as a model of that dtype has them."""

    def cast(name: str, x: Any) -> Any:
        return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and name not in IN_FP32 else x

    return {name: cast(name, x) for name, x in inputs.items()}


def there(make: Callable[..., Inputs]) -> Callable[..., Inputs]:
    """New tensors of `make` lie on its generator's device."""

    @functools.wraps(make)
    def made(generator: torch.Generator, *args: Any, **options: Any) -> Inputs:
        with generator.device:
            return make(generator, *args, **options)

    return made


@there
def argmax_inputs(generator: torch.Generator, case: tuple[Any, ...], *, odd: bool = True) -> Inputs:
    """Rows, columns and, if some, whether these are the whole vocabulary."""
    n, vocab, *whole = case
    temperature = torch.rand(n, generator=generator) * 1.5
    if odd:
        temperature[::3] = 0
    else:
        temperature += 0.3
    return {
        "logits": torch.randn(n, vocab, generator=generator) * 3,
        "temperature": temperature,
        "seeds": torch.randint(-(2**62), 2**62, (n,), generator=generator),
        "positions": torch.randint(0, 8192, (n,), generator=generator),
        "ids": None if any(whole) else torch.randperm(vocab * 3, generator=generator)[:vocab].sort().values,
    }


@there
def block_inputs(generator: torch.Generator, case: tuple[Any, ...], *, odd: bool = True) -> Inputs:
    """Base logits past a request's depth are poisoned."""
    n, block, hidden, rank, vocab, kind, even, *whole = case
    inputs = argmax_inputs(generator, (n, vocab, *whole), odd=odd)
    depth = torch.full((n,), block) if even else torch.arange(n) % (block + 1)
    depth[-1] = block
    base = torch.randn(n, block, vocab, generator=generator) * 2
    base[torch.arange(block) >= depth[:, None]] = float("nan")
    width = 4 * rank if kind == "deep" else rank
    sizes = {"markov_w1.weight": (3 * vocab, width), "markov_w2.weight": (vocab, rank)}
    sizes |= {
        "rnn": {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)},
        "gated": {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)},
        "deep": {
            "hidden_proj.weight": (width, hidden),
            "hidden_proj.bias": (width,),
            "state_proj.weight": (width, width),
            "feature_proj.weight": (rank, width),
        },
    }.get(kind, {})
    weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in sizes.items()}
    return weights | {
        "kind": kind,
        "hidden": torch.randn(n, block, hidden, generator=generator),
        "base": base,
        "anchor": torch.randint(0, 3 * vocab, (n,), generator=generator),
        "start": inputs["positions"],
        "depth": depth,
        "temperature": inputs["temperature"],
        "seeds": inputs["seeds"],
        "ids": inputs["ids"],
    }


@there
def stats_inputs(generator: torch.Generator, case: tuple[Any, ...], *, odd: bool = True) -> Inputs:
    """Every fourth row is full of ties, every fourth has lost half of its tokens to top-k, one all but a token."""
    inputs = argmax_inputs(generator, case, odd=odd)
    if not odd:
        return inputs
    logits, temperature = inputs["logits"], inputs["temperature"]
    temperature[temperature > 0] += 0.3
    logits[1::4] = logits[1::4].round()
    logits[2::4, 1 + case[1] // 2 :] = float("-inf")
    logits[4:5, 1:] = float("-inf")
    return inputs


@there
def truncate_inputs(generator: torch.Generator, case: tuple[int, int], *, odd: bool = True) -> Inputs:
    """Rows with neither bound, with one, with both; ties, lost tokens, a NaN, a flat row and one without a number."""
    n, vocab = case
    drawn = argmax_inputs(generator, case, odd=odd)
    logits, row = drawn["logits"], torch.arange(n)
    top_k, top_p = torch.full((n,), 50), torch.full((n,), 0.95)
    if odd:
        top_k = torch.tensor([0, 3, 0, 40, vocab // 2, vocab + 5])[row % 6]
        top_p = torch.tensor([0.9, 1.0, 0.4, 0.97])[row % 4]
        logits[1::3] = logits[1::3].round()
        logits[2::4, vocab // 2 :] = float("-inf")
        logits[3::7, ::3] = float("nan")
        logits[5::9] = 0.25
        logits[8::9] = float("-inf")
    return {"logits": logits, "temperature": drawn["temperature"], "top_k": top_k, "top_p": top_p}


@there
def attention_inputs(generator: torch.Generator, case: tuple[Any, ...], page: int = 16) -> Inputs:
    """Pages in random order; what lies past a request's rows, and the page of no request, are poisoned."""
    (counts, context, group, kv_heads, width, causal, window), cap = case[:7], case[7] if len(case) > 7 else None
    rows, start = torch.tensor(counts), torch.tensor(context)
    length = rows + start
    need = -(-length // page)
    total, most = int(need.sum()) + 3, int(need.max())
    mine = torch.arange(most) < need[:, None]  # [R, N] entries of the page table that hold something
    order = torch.randperm(total, generator=generator)[: total - 3]
    pages = torch.full((len(counts), most), total, dtype=torch.int32)
    pages[mine] = order.int()
    empty = torch.ones(total + 1, page, dtype=torch.bool)
    empty[order] = (torch.arange(most * page) >= length[:, None]).view(-1, most, page)[mine]
    kept = (total + 1, kv_heads, page, width)
    keys, values = (
        torch.randn(kept, generator=generator).masked_fill_(empty[:, None, :, None], float("nan")) for _ in range(2)
    )
    return {
        "q": torch.randn(sum(counts), group * kv_heads, width, generator=generator),
        "keys": keys,
        "values": values,
        "pages": pages,
        "cu_rows": torch.cat([rows.new_zeros(1), rows.cumsum(0)]).int(),
        "context": start.int(),
        "causal": causal,
        "window": window,
        "cap": cap,
    }


@there
def projection_inputs(generator: torch.Generator, case: tuple[int, int, int, bool]) -> Inputs:
    m, k, n, biased = case
    return {
        "x": torch.randn(m, k, generator=generator),
        "weight": torch.randn(n, k, generator=generator),
        "bias": torch.randn(n, generator=generator) if biased else None,
    }


@there
def norm_inputs(generator: torch.Generator, case: tuple[int, int, bool]) -> Inputs:
    m, width, adds = case
    return {
        "x": torch.randn(m, width, generator=generator),
        "delta": torch.randn(m, width, generator=generator) if adds else None,
        "gain": torch.randn(width, generator=generator),
        "eps": 1e-5,
    }


@there
def rotate_inputs(generator: torch.Generator, case: tuple[Any, ...], *, odd: bool = True) -> Inputs:
    """The cache index of every third row is -1; the last page of the pool belongs to no request."""
    m, heads, kv_heads, width, page, q_norm, k_norm = case
    pages, positions = -(-m // page) + 2, 50
    cache_indices = torch.randperm((pages - 1) * page, generator=generator)[:m]
    if odd:
        cache_indices[2::3] = -1
    angles = torch.rand(positions, width // 2, generator=generator) * 100
    return {
        "qkv": torch.randn(m, (heads + 2 * kv_heads) * width, generator=generator),
        "cos": angles.cos(),
        "sin": angles.sin(),
        "positions": torch.randint(0, positions, (m,), generator=generator),
        "cache_indices": cache_indices,
        "keys": torch.randn(pages, kv_heads, page, width, generator=generator),
        "values": torch.randn(pages, kv_heads, page, width, generator=generator),
        "q_norm": torch.randn(width, generator=generator) if q_norm else None,
        "k_norm": torch.randn(width, generator=generator) if k_norm else None,
        "eps": 1e-5,
    }


@there
def swiglu_inputs(generator: torch.Generator, case: tuple[int, int]) -> Inputs:
    m, width = case
    return {"gate_up": torch.randn(m, 2 * width, generator=generator)}
