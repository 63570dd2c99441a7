"""The Triton kernels on CPU tensors: run by test_triton.py, under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter
from attention_tools import check_alike

from dsbench.kernels import (
    attention_triton,
    judge_triton,
    linear_triton,
    noise_triton,
    pack_triton,
    plan_triton,
    truncate_triton,
)
from dsbench.kernels.attention import paged_attention_reference
from dsbench.kernels.check.inputs import in_dtype
from dsbench.kernels.check.inputs_step import plan_inputs
from dsbench.kernels.check.registry import registry
from dsbench.kernels.draft import head_triton, stats_triton
from dsbench.kernels.draft.head import Head
from dsbench.kernels.draft.stats import coupled_stats_reference
from dsbench.kernels.fused import products_triton, tiles
from dsbench.kernels.judge import judge_rows_reference
from dsbench.kernels.pack import pack_reference
from dsbench.kernels.philox import GUMBEL_MAX, GUMBEL_MIN, gumbel_from_bits, gumbel_noise
from dsbench.kernels.plan import plan_reference
from dsbench.kernels.truncate import kept_logits, truncate_reference
from dsbench.runtime.drafters.heads import head_shapes, token_width

OPS = {op.name: op for op in registry() if op.cuda is not None}
CASES = [(op, case) for op in OPS.values() for case in op.cases if case != (9, 16384)]


@triton.jit
def log2(b_x):
    return tl.log2(b_x)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """A loop bound is an array of one element there, which NumPy 2.4 no longer takes for an index.

    A device's own instructions are unknown there.
    """
    monkeypatch.setattr(noise_triton, "log2", log2)
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel is to fill starts as NaN, or as the lowest integer."""

    def fill(made):
        return made.fill_(float("nan") if made.is_floating_point() else torch.iinfo(made.dtype).min)

    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *size, **kwargs: fill(empty(*size, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: fill(like(*args, **kwargs)))


@pytest.mark.parametrize(("op", "case"), CASES, ids=lambda x: getattr(x, "name", str(x)))
def test_op_equals_its_reference(op, case):
    inputs = op.make_inputs(torch.Generator().manual_seed(5), case)
    made, wanted = op.cuda(**inputs), op.reference(**inputs)
    assert made.shape == wanted.shape and made.dtype == wanted.dtype
    assert torch.isfinite(made.double()).all(), "poison reached the result"
    assert (made.double() - wanted.double()).abs().max() <= op.tolerance, op.why


@triton.jit
def noise_kernel(p_seed, p_position, p_id, p_out, first, V: tl.constexpr):
    b_row = tl.arange(0, 2)
    b_seed, b_position = tl.load(p_seed + b_row), tl.load(p_position + b_row)
    p_mine = p_out + b_row[:, None] * V + tl.arange(0, V)[None, :]
    tl.store(p_mine, noise_triton.noise_of_run(b_seed, b_position, first, V))
    b_id = tl.load(p_id + tl.arange(0, V))
    tl.store(p_mine + 2 * V, noise_triton.noise_of_ids(b_seed, b_position, b_id))


@pytest.mark.parametrize("first", [0, 8, 151_936 - 512])
def test_noise_is_the_reference_noise_and_that_of_a_run_has_the_same_bits(first):
    seeds, positions, ids = torch.tensor([3, -(2**61)]), torch.tensor([0, 8191]), torch.arange(first, first + 512)
    made = torch.empty(2, 2, 512)
    noise_kernel[(1,)](seeds, positions, ids, made, first, V=512)
    assert torch.equal(made[0], made[1])
    torch.testing.assert_close(made[0], gumbel_noise(seeds, positions, ids), atol=2e-6, rtol=1e-6)


@triton.jit
def word_kernel(p_word, p_out, N: tl.constexpr):
    o_n = tl.arange(0, N)
    tl.store(p_out + o_n, noise_triton._gumbel(tl.load(p_word + o_n).to(tl.uint32)))


def test_noise_of_the_outermost_words_and_of_those_where_its_formula_changes():
    eighth = 1 << 29
    words = torch.tensor([0, 255, 256, 2**32 - 1, 2**32 - 256, 2**31, eighth - 256, eighth])
    made = torch.empty(8)
    word_kernel[(1,)](words, made, N=8)
    assert made.max() <= GUMBEL_MAX and made.min() >= GUMBEL_MIN - 1e-6
    torch.testing.assert_close(made, gumbel_from_bits(words), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_the_draw_is_the_reference_draw_with_exact_ties(spread, monkeypatch):
    """Every logit and every id stands twice, once in another program's part of the row."""
    from dsbench.kernels.draft.stats_triton import coupled_stats, gumbel_argmax

    monkeypatch.setattr(stats_triton, "BLOCK", 1024)
    generator = torch.Generator().manual_seed(2)
    half, ids = torch.randn(24, 1100, generator=generator) * spread, torch.arange(1100) * 7
    order = torch.arange(2200) % 1100
    logits = half[:, order]
    logits[::5, 4:1100] = float("-inf")
    temperature = torch.tensor([0.0, 0.01, 0.4, 1.0, 1.7, 6.0]).repeat(4)
    seeds = torch.randint(-(2**62), 2**62, (24,), generator=generator)
    rest = (temperature, seeds, torch.arange(24) * 31, ids[order])
    winner, features = coupled_stats(logits, *rest)
    wanted = coupled_stats_reference(logits, *rest)
    assert torch.equal(winner, wanted[0]) and torch.equal(gumbel_argmax(logits, *rest), wanted[0])
    assert torch.allclose(features, wanted[1], atol=2e-4)
    assert (features[:, 4] == 0).sum() > 18


def test_logits_may_be_a_slot_of_a_block_in_half_precision():
    from dsbench.kernels.draft.stats_triton import coupled_stats

    op = OPS["coupled_stats winner"]
    inputs = op.make_inputs(torch.Generator().manual_seed(5), (12, 1500))
    block = inputs["logits"].view(4, 3, 1500).bfloat16()
    rest = {name: x if name == "ids" else x[:4] for name, x in inputs.items()}
    for depth in range(3):
        rest["logits"] = block[:, depth]
        made, wanted = coupled_stats(**rest), coupled_stats_reference(**rest)
        assert torch.equal(made[0], wanted[0]) and torch.allclose(made[1], wanted[1], atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rank", [5, 8, 64])
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_a_step_of_a_head_is_the_plain_step(kind, rows, rank, dtype):
    """State, token and hidden part as slices of larger tensors."""
    generator = torch.Generator().manual_seed(rank)
    width = token_width(kind, rank)
    sizes = {"markov_w1.weight": (50, width), "markov_w2.weight": (30, rank)} | head_shapes(kind, 12, rank)
    weights = {n: torch.randn(s, generator=generator).to(dtype) * 0.4 for n, s in sizes.items()}
    head = Head.of(kind, weights, weights["markov_w1.weight"]).merged()
    hidden = torch.randn(rows, 4, 12, generator=generator).to(dtype)
    part, previous = head.hidden_part(hidden)[:, 2], torch.randint(0, 50, (rows, 3), generator=generator)[:, 1]
    state = torch.randn(rows, width, generator=generator).to(dtype)
    wanted = head.advance(part, previous, state)
    made = head_triton.advance(head, part, previous, state)
    for one, two in zip(made, wanted, strict=True):
        assert one.dtype == dtype and one.shape == (rows, width)
        atol, rtol = (5e-6, 2e-6) if dtype == torch.float32 else (1e-2, 2e-3)
        torch.testing.assert_close(one, two, atol=atol, rtol=rtol)


@pytest.mark.parametrize("kind", ["vanilla", "rnn", "deep"])
def test_drafts_of_a_request_do_not_depend_on_its_neighbours(kind):
    """Alone it has a tile of its own; among others its rows stand elsewhere in one."""
    op = OPS["coupled_block tokens"]
    x = op.make_inputs(torch.Generator().manual_seed(1), (19, 3, 9, 8, 300, kind, False))
    weights = {name: t for name, t in x.items() if "." in name}
    head = Head.of(kind, weights, weights["markov_w1.weight"]).merged()
    rest = ("base", "anchor", "start", "depth", "temperature", "seeds")
    part = head.hidden_part(x["hidden"])

    def run(rows, stats):
        mine = {name: x[name][rows] for name in rest}
        return head_triton.coupled_block(head, part=part[rows], most=3, ids=x["ids"], stats=stats, **mine)

    tokens, features = run(slice(None), True)
    assert torch.equal(run(slice(None), False)[0], tokens) and run(slice(None), False)[1] is None
    assert (tokens[torch.arange(3) >= x["depth"][:, None]] == 0).all()
    for r in (0, 7, 15, 16, 18):
        alone = run(slice(r, r + 1), True)
        assert torch.equal(alone[0][0], tokens[r])
        torch.testing.assert_close(alone[1][0], features[r], atol=1e-5, rtol=1e-5)


def test_groups_of_requests_may_be_large(monkeypatch):
    """Of the whole vocabulary, where there are many: the same sums, whoever shares a tile."""
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_in_order)
    x = OPS["coupled_block tokens"].make_inputs(
        torch.Generator().manual_seed(1), (37, 2, 9, 8, 300, "rnn", False, True)
    )
    head = Head.of("rnn", {name: t for name, t in x.items() if "." in name}, x["markov_w1.weight"])
    rest = {name: x[name] for name in ("base", "anchor", "start", "depth", "temperature", "seeds", "ids")}
    part = head.hidden_part(x["hidden"])
    small = head_triton.coupled_block(head, part=part, most=2, stats=True, **rest)
    monkeypatch.setattr(head_triton, "FILLS", 1)
    large = head_triton.coupled_block(head, part=part, most=2, stats=True, **rest)
    assert torch.equal(large[0], small[0]) and large[0][-1].any()
    torch.testing.assert_close(large[1], small[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies no bfloat16
@pytest.mark.parametrize(
    "case",
    [
        ((7,) * 5, (0, 1, 31, 32, 90), 3, 2, 64, False, None),
        ((1,) * 9, tuple(range(0, 90, 10)), 3, 2, 8, True, None),
        ((70,), (5,), 5, 1, 20, True, None),  # more tiles than one
        ((3, 0, 9, 0), (4, 8, 50, 0), 7, 1, 24, True, 11),
        ((2,), (65,), 40, 1, 16, False, None),  # a group wider than a tile of whole rows
        ((3, 6), (40, 4), 2, 2, 16, True, 9, 1.5),
    ],
    ids=str,
)
def test_attention_of_drafter_shapes(case, dtype):
    op = OPS["paged_attention"]
    x = op.make_inputs(torch.Generator().manual_seed(1), case)
    for name in ("q", "keys", "values"):
        x[name] = x[name].to(dtype)
    made, wanted = op.cuda(**x), paged_attention_reference(**x)
    assert made.dtype == dtype
    assert (made.float() - wanted.float()).abs().max() < (2e-5 if dtype == torch.float32 else 3e-3)


def test_attention_reads_no_page_that_lies_wholly_before_the_window():
    op = OPS["paged_attention"]
    x = op.make_inputs(torch.Generator().manual_seed(3), ((7, 3), (100, 64), 3, 2, 16, False, 20))
    whole = op.cuda(**x)
    for r, first in enumerate((100 - 19, 64 - 19)):
        for name in ("keys", "values"):
            x[name][x["pages"][r, : first // 16].long()] = float("nan")
    assert torch.equal(op.cuda(**x), whole)


CHUNKED = [
    ((7, 3, 0, 1), (90, 29, 0, 64), 3, 2, 20, True, None),  # the second's rows lie in two chunks
    ((8, 1), (60, 100), 6, 1, 16, True, 40),
    ((4, 2), (101, 30), 2, 1, 8, False, None),
    ((4, 3), (101, 29), 4, 1, 8, False, 33),
    ((40,), (27,), 2, 1, 8, True, None),  # tiles that see one chunk, and more
    ((8, 1), (60, 100), 2, 1, 8, True, None, 0.7),
]


def chunked(case, dtype, page):
    x = OPS["paged_attention"].make_inputs(torch.Generator().manual_seed(1), case, page=page)
    return x | {name: x[name].to(dtype) for name in ("q", "keys", "values")}


@pytest.mark.parametrize("whole_from", [0, 1000], ids=["whole", "split"])
@pytest.mark.parametrize(("page", "dtype"), [(16, torch.float32), (64, torch.float16)])
@pytest.mark.parametrize("case", CHUNKED, ids=str)
def test_attention_in_chunks_is_the_reference(case, page, dtype, whole_from, monkeypatch):
    monkeypatch.setattr(attention_triton, "WHOLE_FROM", whole_from)
    x = chunked(case, dtype, page)
    made, wanted = attention_triton.paged_attention(**x, chunk=32), paged_attention_reference(**x)
    assert (made.float() - wanted.float()).abs().max() < (2e-5 if dtype == torch.float32 else 3e-3)


def dot_in_order(self, a, b, d, *_):
    """A product that sums one by one whatever the shape, as a tensor core does and BLAS does not."""
    made = d.data
    for k in range(a.data.shape[1]):
        made = made + a.data[:, k : k + 1].astype(made.dtype) * b.data[k : k + 1]
    return interpreter.TensorHandle(made, d.dtype.scalar)


@pytest.mark.parametrize(
    ("case", "page", "dtype"),
    [
        (((5, 3, 0, 1), (62, 29, 0, 40), 3, 1, 20, True, None), 16, torch.float16),
        (((4, 2), (60, 76), 6, 1, 16, True, 40), 64, torch.float32),
        (((4, 3), (90, 29), 4, 1, 8, False, 33), 64, torch.float16),
        (((3, 2), (30, 64), 2, 2, 8, False, None), 16, torch.float32),
    ],
    ids=str,
)
def test_bits_of_attention_depend_on_the_request_alone(case, page, dtype, monkeypatch):
    def attend(**inputs):
        return attention_triton.paged_attention(**inputs, chunk=32)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_in_order)
    x = chunked(case, dtype, page)
    made = check_alike(attend, x)
    monkeypatch.setattr(attention_triton, "WHOLE_FROM", 0)
    assert torch.equal(attend(**x), made), "walked by one program"


def halved(inputs):
    """In float16: the interpreter does not round to bfloat16 as a device does. Angles stay as they are."""
    kept = ("cos", "sin")
    return {
        n: x.half() if torch.is_tensor(x) and x.is_floating_point() and n not in kept else x for n, x in inputs.items()
    }


def close_in_half_precision(made, wanted):
    """Equal but for a few numbers whose fp32 value lies next to a rounding edge: those by a step, or two of a sum."""
    assert made.dtype == wanted.dtype == torch.float16
    torch.testing.assert_close(made, wanted, atol=2e-3, rtol=2**-10)
    assert (made != wanted).float().mean() < 0.01


@pytest.mark.parametrize("wide", [False, True], ids=["", "wide gains"])
@pytest.mark.parametrize("case", [(6, 576, True), (3, 576, False), (2, 4096, True)], ids=str)
def test_norm_in_half_precision_rounds_as_plain_torch_and_knows_no_other_row(case, wide):
    op = OPS["add_norm"]
    inputs = halved(op.make_inputs(torch.Generator().manual_seed(2), case))
    inputs["gain"] = inputs["gain"].float() * 1.001 if wide else inputs["gain"]
    made = op.cuda(**inputs)
    close_in_half_precision(made, op.reference(**inputs))
    assert torch.equal(OPS["add_norm sum"].cuda(**inputs), OPS["add_norm sum"].reference(**inputs))
    for row in range(case[0]):
        mine = {n: x[row : row + 1] if torch.is_tensor(x) and n != "gain" else x for n, x in inputs.items()}
        assert torch.equal(op.cuda(**mine)[0], made[row])


def test_swiglu_in_half_precision_rounds_as_plain_torch():
    op = OPS["swiglu"]
    inputs = halved(op.make_inputs(torch.Generator().manual_seed(2), (4, 1536)))
    close_in_half_precision(op.cuda(**inputs), op.reference(**inputs))


FUSED = {
    "normed_qkv": (70, 48, 2, 1, 16, 16, False, False),
    "normed_swiglu": (70, 130, 40),
    "product_add": (70, 130, 40),
    "small_product": (70, 130, 40),
}


@pytest.mark.parametrize("processors", [1, 1000], ids=["large", "small"])
@pytest.mark.parametrize("name", list(FUSED))
def test_fused_products_in_half_precision_round_as_plain_torch(name, processors, monkeypatch):
    """A sum next to a rounding edge is a step off, and what is multiplied or added after that some more."""
    monkeypatch.setattr(tiles, "MULTIPROCESSORS", processors)
    inputs = OPS[name].make_inputs(torch.Generator().manual_seed(2), FUSED[name])
    inputs = in_dtype(inputs, torch.float16)
    made, wanted = OPS[name].cuda(**inputs), OPS[name].reference(**inputs)
    torch.testing.assert_close(made, wanted, atol=6e-3, rtol=2**-8)
    assert (made != wanted).float().mean() < 0.02


@pytest.mark.parametrize("tile", [(1, 4), (16, 16), (64, 32)], ids=str)
def test_a_row_of_a_fused_product_knows_no_other_row(tile, monkeypatch):
    rows, outputs = tile
    fixed = tiles.Tile(rows=rows, outputs=outputs, inner=32, warps=4, stages=2)
    monkeypatch.setattr(products_triton, "tile_for", lambda *_, **__: fixed)
    x = OPS["product_add"].make_inputs(torch.Generator().manual_seed(2), (2 * rows, 70, 40))
    whole = products_triton.product_add(**x)
    torn = x | {"a": x["a"].clone()}
    torn["a"][::2] = float("nan")
    few = x | {n: x[n][: rows + 3] for n in ("a", "x")}
    for part, one, two in zip(
        whole, products_triton.product_add(**torn), products_triton.product_add(**few), strict=True
    ):
        assert torch.equal(one[1::2], part[1::2]) and torch.equal(two, part[: rows + 3])


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("shape", [(9, 3, 64, 16), (32, 8, 128, 16), (0, 3, 64, 8), (5, 1, 10, 3)], ids=str)
def test_rows_are_rotated_and_written_to_their_slots_and_nowhere_else(shape, dtype, gains):
    """Without gains bit for bit. A row of cache index -1, as padding is, has queries and writes nothing."""
    op = OPS["rotate_and_store"]
    inputs = op.make_inputs(torch.Generator().manual_seed(3), (8, *shape, gains and shape[0] > 0, gains))
    if dtype == torch.float16:
        inputs = halved(inputs)
    inputs["positions"][2::3] = 0
    pools = [{n: torch.full_like(inputs[n], float("nan")) for n in ("keys", "values")} for _ in range(2)]
    made, wanted = op.cuda(**inputs | pools[0]), op.reference(**inputs | pools[1])
    exact = {"atol": 0, "rtol": 0}
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 4e-3, "rtol": 2**-9}
    near = near if gains else exact
    torch.testing.assert_close(made, wanted, **near)
    stored = inputs["cache_indices"][inputs["cache_indices"] >= 0]
    for name, bounds in (("keys", near), ("values", exact)):
        one, two = (pool[name].transpose(1, 2).flatten(0, 1) for pool in pools)  # [indices, K, E]
        torch.testing.assert_close(one[stored], two[stored], **bounds)
        assert torch.isfinite(one[stored]).all()
        one[stored] = float("nan")
        assert one.isnan().all()


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize(("requests", "block"), [(1, 7), (9, 4), (5, 1), (3, 0)])
def test_verdicts_are_those_of_plain_torch(requests, block, pinned):
    """Few ids, so that drafts match; some requests have no rows at all, as nobody's, and some fewer than verified."""
    generator = torch.Generator().manual_seed(requests)

    def whole(most, *size):
        return torch.randint(0, most + 1, size, generator=generator)

    verified = whole(block, requests)
    counts = (verified + 1) * (torch.arange(requests) % 4 != 3)
    cu_rows = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    window, recorded = torch.minimum(whole(block, requests), verified), whole(2, requests, block + 1) - 1
    inputs = (whole(1, int(counts.sum())), cu_rows, whole(1, requests, block), window, verified)
    made = judge_triton.judge_rows(*inputs, recorded if pinned else None)
    for one, two in zip(made, judge_rows_reference(*inputs, recorded if pinned else None), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("requests", "block", "rows"), [(2, 7, 8), (6, 4, 40), (20, 7, 64), (5, 0, 4)])
def test_packed_rows_are_those_of_plain_torch(requests, block, rows):
    generator = torch.Generator().manual_seed(rows)
    for live in {1, requests // 2, requests - 1}:
        verified = torch.randint(0, block + 1, (requests,), generator=generator)
        verified[: max(0, live)] = verified[:live].clamp(max=rows // live - 1)
        context = torch.randint(0, 30, (requests,), generator=generator).int()
        inputs = (
            torch.randint(0, 99, (requests,), generator=generator),
            torch.randint(0, 99, (requests, block)),
            verified,
            context,
            torch.randint(0, 50, (requests, 8), generator=generator).int()[:, :6],
            torch.tensor([live]),
        )
        for one, two in zip(pack_triton.pack(*inputs, rows, 8), pack_reference(*inputs, rows, 8), strict=True):
            assert one.dtype == two.dtype and torch.equal(one, two)


@pytest.mark.parametrize("block", [0, 1, 4, 7, 8])
def test_plans_are_those_of_plain_torch(block):
    """Bit for bit. Few logits, so that survivals tie at every place; every kind of budget; no draft may be allowed."""
    generator = torch.Generator().manual_seed(block)

    def whole(most):
        return int(torch.randint(0, most + 1, (), generator=generator))

    for turn in range(12):
        requests = 2 + whole(45)
        live = 1 + whole(requests - 2)
        x = plan_inputs(generator, (requests, live, block, live + whole(live * block + 4), 8, whole(live * block + 3)))
        if turn % 2:
            x["confidence"] = x["confidence"].clamp(0, 1).round()
            x["scale"], x["offset"] = x["scale"].fill_(1.0), x["offset"].zero_()
        if turn % 5 == 4:
            x["limits"].clamp_(max=0)
        (*made, packed), (*wanted, rows) = plan_triton.plan(**x), plan_reference(**x)
        for one, two in zip((*made, *packed), (*wanted, *rows), strict=True):
            assert one.dtype == two.dtype and torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", [(70, 40), (33, 130)], ids=str)
def test_bits_of_an_exact_projection_depend_on_the_row_alone(size, dtype, monkeypatch):
    """However many rows, wherever it stands, NaNs beside it, in small programs and in large ones."""
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot_in_order)
    (inner, outputs), generator = size, torch.Generator().manual_seed(3)
    x, weight = torch.randn(150, inner, generator=generator).to(dtype), torch.randn(outputs, inner, generator=generator)
    weight, bias = weight.to(dtype), torch.randn(outputs, generator=generator).to(dtype)
    whole = linear_triton.linear(x, weight, bias)
    for fills in (1, 1000):
        monkeypatch.setattr(linear_triton, "FILLS", fills)
        for m in (1, 17, 64, 65):
            assert torch.equal(linear_triton.linear(x[:m], weight, bias), whole[:m]), (fills, m)
            assert torch.equal(linear_triton.linear(x[-m:], weight, bias), whole[-m:]), (fills, m)
        torn = x.clone()
        torn[::2] = float("nan")
        assert torch.equal(linear_triton.linear(torn, weight, bias)[1::2], whole[1::2])
    plain = (x.float() @ weight.float().T + bias.float()).to(dtype)
    torch.testing.assert_close(whole, plain, atol=1e-4 if dtype == torch.float32 else 1e-2, rtol=2e-3)


def test_an_exact_projection_of_no_rows_and_of_rows_in_two_dimensions():
    x, weight = torch.randn(2, 3, 20), torch.randn(7, 20)
    assert linear_triton.linear(x[:, :0], weight).shape == (2, 0, 7)
    torch.testing.assert_close(linear_triton.linear(x, weight), x @ weight.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("lanes", "capacity", "dtype"), [(64, 16, torch.float32), (32, 512, torch.float16)], ids=str)
def test_bounds_are_the_reference_ones_wherever_they_are_searched(lanes, capacity, dtype, monkeypatch):
    """In the list in one tile and in several, and in the row: k too large, a law too flat, too many equals."""
    monkeypatch.setattr(truncate_triton, "LANES", lanes)
    monkeypatch.setattr(truncate_triton, "CAPACITY", capacity)
    logits = (torch.randn(7, 150, generator=torch.Generator().manual_seed(lanes)) * 2).to(dtype)
    logits[1], logits[2] = logits[1].round(), logits[2] / 20
    logits[3, 110:] = float("-inf")
    beside = torch.full((7, 160), float("nan"), dtype=dtype)
    beside[:, :150] = logits
    temperature, top_k = torch.tensor([1.0, 1.0, 1.0, 0.7, 2.0, 1.5, 1.0]), torch.tensor([7, 20, 0, 100, 149, 0, 60])
    rest = (temperature, top_k, torch.tensor([1.0, 0.8, 0.95, 0.9, 1.0, 0.3, 0.99]))
    made, wanted = truncate_triton.truncate(beside[:, :150], *rest), truncate_reference(logits, *rest)
    assert torch.equal(made.cut, wanted.cut) and torch.equal(made.last, wanted.last)
    kept = (kept_logits(logits, made) > float("-inf")).sum(1)
    assert kept.min() > 1 and kept.max() < 150


def test_a_draw_of_what_is_kept_is_the_draw_without_the_rest():
    from dsbench.kernels.draft.stats_triton import coupled_stats, gumbel_argmax, law_stats

    x = OPS["truncate"].make_inputs(torch.Generator().manual_seed(6), (9, 2100))
    x["logits"] = x["logits"].nan_to_num(nan=0.0)
    kept = truncate_reference(**x)
    drawn = (x["temperature"], torch.arange(9) * 5, torch.arange(9) * 31, None)
    winner, features = coupled_stats_reference(kept_logits(x["logits"], kept), *drawn)
    winner[8] = 0  # a row without a number
    assert torch.equal(gumbel_argmax(x["logits"], *drawn, kept), winner)
    made = coupled_stats(x["logits"], *drawn, kept)
    assert torch.equal(made[0], winner)
    torch.testing.assert_close(made[1][:8], features[:8], atol=2e-4, rtol=1e-5)
    torch.testing.assert_close(
        law_stats(x["logits"], x["temperature"], kept)[:8, :4], features[:8, :4], atol=2e-4, rtol=0
    )


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=str)
@pytest.mark.parametrize("vocab", [1, 1000, 1500, 2500])
def test_a_row_without_a_number_names_its_first_column(vocab, value):
    from dsbench.kernels.draft.stats_triton import coupled_stats, gumbel_argmax

    rest = (torch.tensor([0.0, 1.0]), torch.tensor([3, 4]), torch.tensor([5, 6]), torch.arange(vocab))
    logits = torch.full((2, vocab), value)
    assert gumbel_argmax(logits, *rest).tolist() == coupled_stats(logits, *rest)[0].tolist() == [0, 0]


def test_a_block_without_a_number_drafts_the_first_id():
    op = OPS["coupled_block tokens"]
    x = op.make_inputs(torch.Generator().manual_seed(4), op.cases[0])
    for value in (float("nan"), float("-inf")):
        tokens = op.cuda(**(x | {"base": torch.full_like(x["base"], value)}))
        drafted = torch.arange(tokens.shape[1]) < x["depth"][:, None]
        assert (tokens[drafted] == x["ids"][0]).all()
