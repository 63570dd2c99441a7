"""Real sizes of the registered ops: the shapes of public models at typical rows, requests and contexts of a server.

No torch. Shapes: M rows of a pass or R requests, as the op takes them; V' draft vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dsbench.errors import UsageError
from dsbench.ranges import parse_range
from dsbench.runtime.targets.shape import ModelShape, catalogue_shapes

SHAPES = ("smollm2-135m", "qwen3-1.7b", "qwen3-8b")
ROWS = (1, 8, 32, 64, 128, 256)
CPU_ROWS = (1, 8, 32)
CONTEXTS = (1024, 4096)  # tokens a request, mean
WINDOWS = (1, 8)  # rows a request: decoding without drafts, and a full block of seven drafts
BLOCK_SIZE = 7  # drafts a block
PAGE = 64  # tokens, as the runtime's
DRAFT_VOCAB = 16_384
HEADS = {"smollm2-135m": ("deep", 64)}  # kind and rank of the sequential head; of the others:
HEAD = ("vanilla", 256)
FAMILIES = (
    "gumbel_argmax",
    "coupled_stats",
    "law_stats",
    "truncate",
    "coupled_block",
    "paged_attention",
    "projection",
    "exact_projection",
    "swiglu",
    "add_norm",
    "rotate_and_store",
    "embed_rows",
    "normed_qkv",
    "normed_swiglu",
    "product_add",
    "small_product",
    "plan",
    "pack",
    "judge",
    "commit",
)
FUSED_ROWS = 256  # of a pass that may be fused
FEW_ROWS = 16  # of a product that the library may leave to a kernel for few
PAGED = {"page": PAGE}
EVEN = {"odd": False}  # inputs without what a run has few of


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One case of a family of ops: what its `make_inputs` takes, and its label."""

    family: str
    label: str
    shape: str  # of the model
    rows: int
    case: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def plan(
    *, ops: str | None, shapes: str | None, rows: str | None, quick: bool, on_gpu: bool
) -> tuple[tuple[Size, ...], ...]:
    """Sizes to measure, grouped by those timed in turn. Raises UsageError for a name or a range that is none.

    Quick: one shape, few rows, the shorter context, the smaller vocabulary. By default a CPU
    has the small shape and few rows.
    """
    families = _names(ops, FAMILIES, "op") if ops is not None else FAMILIES
    known = catalogue_shapes()
    few = quick or not on_gpu
    chosen = _names(shapes, tuple(known), "shape") if shapes is not None else SHAPES[: 1 if few else None]
    usual = ROWS if on_gpu else CPU_ROWS
    counts = parse_range(rows, what="rows") if rows is not None else usual[: 1 + on_gpu] if quick else usual
    batches: list[tuple[Size, ...]] = []
    seen: set[tuple[str, tuple[Any, ...]]] = set()
    for name in chosen:
        for count in counts:
            fresh = [
                size
                for size in sizes(known[name], count, quick)
                if size.family in families and (size.family, size.case) not in seen
            ]
            seen.update((size.family, size.case) for size in fresh)
            if fresh:
                batches.append(tuple(fresh))
    return tuple(batches)


def sizes(shape: ModelShape, rows: int, quick: bool = False) -> list[Size]:
    """Every family at `rows` rows, or requests where it takes requests."""
    few = 1 if quick else 2
    vocabularies = sorted({min(DRAFT_VOCAB, shape.vocab), shape.vocab})
    return [
        *_draws(shape, rows, vocabularies[:few]),
        *_layer(shape, rows),
        *_fused(shape, rows),
        *_attention(shape, rows, CONTEXTS[:few]),
        *_step(shape, rows),
    ]


def _draws(shape: ModelShape, rows: int, vocabularies: Sequence[int]) -> list[Size]:
    """Draws depend on the vocabulary alone; the head step before them also on the head."""
    found = []
    kind, rank = HEADS.get(shape.name, HEAD)
    for vocab in vocabularies:
        whole = vocab == shape.vocab
        for family in ("gumbel_argmax", "coupled_stats", "law_stats"):
            case: tuple[Any, ...] = (rows, vocab, whole)
            found.append(Size(family=family, label=f"V'={vocab}", shape=shape.name, rows=rows, case=case, options=EVEN))
        found.append(
            Size(
                family="truncate",
                label=f"V'={vocab} k=50 p=0.95",
                shape=shape.name,
                rows=rows,
                case=(rows, vocab),
                options=EVEN,
            )
        )
        case = (rows, BLOCK_SIZE, shape.hidden, rank, vocab, kind, True, whole)
        label = f"V'={vocab} {kind} r={rank}"
        found.append(Size(family="coupled_block", label=label, shape=shape.name, rows=rows, case=case, options=EVEN))
    return found


def _layer(shape: ModelShape, rows: int) -> list[Size]:
    d, matrices = shape.hidden, _matrices(shape)
    turned = (rows, shape.heads, shape.kv_heads, shape.head_width, PAGE, shape.qk_norm, shape.qk_norm)
    parts: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
        ("swiglu", f"I={shape.mlp}", (rows, shape.mlp), {}),
        ("add_norm", f"D={d}", (rows, d, True), {}),
        ("rotate_and_store", f"{shape.heads}/{shape.kv_heads} heads of {shape.head_width}", turned, EVEN),
    ]
    for family in ("projection", "exact_projection"):
        parts += [(family, f"{name} {k}>{n}", (rows, k, n, False), {}) for name, (k, n) in matrices.items()]
    return [
        Size(family=family, label=label, shape=shape.name, rows=rows, case=case, options=options)
        for family, label, case, options in parts
    ]


def _matrices(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a pass's products."""
    d, q, kv = shape.hidden, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    return {
        "qkv": (d, q + 2 * kv),
        "output": (q, d),
        "gate_up": (d, 2 * shape.mlp),
        "down": (shape.mlp, d),
        "lm_head": (d, shape.vocab),
    }


def _fused(shape: ModelShape, rows: int) -> list[Size]:
    """Fused products, at the row counts they serve."""
    d, found = shape.hidden, list[tuple[str, str, tuple[Any, ...], dict[str, Any]]]()
    if rows <= FUSED_ROWS:
        turned = (rows, d, shape.heads, shape.kv_heads, shape.head_width, 16, shape.qk_norm, shape.qk_norm)
        found += [
            ("embed_rows", f"D={d}", (rows, shape.vocab, d), {}),
            ("normed_qkv", f"{d}>{shape.heads}/{shape.kv_heads} heads of {shape.head_width}", turned, EVEN),
            ("normed_swiglu", f"{d}>I={shape.mlp}", (rows, d, shape.mlp), {}),
        ]
    for name, (k, n) in _matrices(shape).items():
        if rows <= FUSED_ROWS and name in ("output", "down"):
            found.append(("product_add", f"{name} {k}>{n}", (rows, k, n), {}))
        if rows <= FEW_ROWS:
            found.append(("small_product", f"{name} {k}>{n}", (rows, k, n), {"normed": False}))
    return [
        Size(family=family, label=label, shape=shape.name, rows=rows, case=case, options=options)
        for family, label, case, options in found
    ]


def _attention(shape: ModelShape, rows: int, contexts: Sequence[int]) -> list[Size]:
    found = []
    for context in contexts:
        for window in WINDOWS:
            group = shape.heads // shape.kv_heads
            counts, tokens = (window,) * rows, spread(context, rows)
            case = (counts, tokens, group, shape.kv_heads, shape.head_width, True, None)
            label = f"S={context} x{window}"
            size = Size(family="paged_attention", label=label, shape=shape.name, rows=rows, case=case, options=PAGED)
            found.append(size)
    return found


def _step(shape: ModelShape, requests: int) -> list[Size]:
    """Equal for every shape. Half of all drafts are granted; `pack` packs the full block."""
    rows, most = requests * (BLOCK_SIZE + 1), requests * BLOCK_SIZE
    parts: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
        ("plan", f"K={most // 2}", (requests + 1, requests, BLOCK_SIZE, requests + most // 2, 16, most // 2), EVEN),
        ("pack", f"into {rows} rows", (requests + 1, requests, BLOCK_SIZE, rows, 16), {}),
        ("judge", f"G={BLOCK_SIZE}", (requests, BLOCK_SIZE, True), EVEN),
        ("commit", f"G={BLOCK_SIZE}", (requests + 1, BLOCK_SIZE, 2), {}),
    ]
    return [
        Size(family=family, label=label, shape=shape.name, rows=requests, case=case, options=options)
        for family, label, case, options in parts
    ]


def spread(mean: int, requests: int) -> tuple[int, ...]:
    """Contexts from three quarters to five quarters of the mean, in mixed order: equal ones hide imbalance."""
    if requests == 1:
        return (mean,)
    steps = random.Random(requests).sample(range(requests), requests)
    return tuple(mean * 3 // 4 + mean // 2 * step // (requests - 1) for step in steps)


def _names(text: str, known: Sequence[str], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"unknown {what} {name!r}", hint=f"one or more of {', '.join(known)}")
    return names
