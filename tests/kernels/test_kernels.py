"""Every op of the registry against its reference, on odd shapes with poisoned leftovers."""

from __future__ import annotations

import math

import pytest
import torch

from dsbench.kernels.attention import attention_cost, paged_attention
from dsbench.kernels.check.calls import block_reference
from dsbench.kernels.check.inputs import in_dtype
from dsbench.kernels.check.registry import registry
from dsbench.kernels.draft.head import Head, coupled_block
from dsbench.kernels.draft.stats import coupled_stats, coupled_stats_reference, law_stats
from dsbench.kernels.gumbel import gumbel_argmax
from dsbench.kernels.philox import gumbel_noise
from dsbench.kernels.rope import rotate_and_store

KEPT = ("keys", "values")


@pytest.mark.parametrize(
    ("op", "case"), [(op, case) for op in registry() for case in op.cases], ids=lambda x: getattr(x, "name", str(x))
)
def test_op_equals_its_reference(op, case):
    inputs = op.make_inputs(torch.Generator().manual_seed(5), case)
    made, wanted = op.compiled(**inputs), op.reference(**inputs)
    assert made.shape == wanted.shape and made.dtype == wanted.dtype
    assert torch.isfinite(made.double()).all(), "poison reached the result"
    assert (made.double() - wanted.double()).abs().max() <= op.tolerance, op.why


def test_costs_of_ops():
    """Numbers written out for one case each; an op without one has no place in a roofline."""
    wanted = {  # bytes, operations
        "projection": ((3, 576, 192, False), 4 * (3 * 576 + 192 * 576 + 3 * 192), 2 * 3 * 576 * 192),
        "exact_projection": ((2, 48, 64, True), 4 * (2 * 48 + 64 * 48 + 64 + 2 * 64), 2 * 64 * (2 * 48 + 1)),
        "swiglu": ((5, 63), 4 * 5 * 63 * 3, 5 * 5 * 63),
        "add_norm": ((5, 63, True), 4 * (4 * 5 * 63 + 63), 5 * 5 * 63),
        "rotate_and_store": (
            (7, 9, 3, 64, 16, False, True),
            7 * (8 * 15 * 64 + 4 * 64 + 16),
            7 * 64 * (3 * 12 + 4 * 3),
        ),
        "gumbel_argmax": ((17, 1000), 4 * 17 * 1000 + 8 * 1000 + 17 * (4 + 8 + 8 + 8), 8 * 17 * 1000),
    }
    ops = {op.name: op for op in registry()}
    for name, (case, moved, operations) in wanted.items():
        inputs = ops[name].make_inputs(torch.Generator().manual_seed(0), case)
        assert ops[name].cost(**inputs) == (moved, operations), name
    for op in ops.values():
        if op.cost is not None:
            moved, operations = op.cost(**op.make_inputs(torch.Generator().manual_seed(0), op.cases[0]))
            assert moved > 0 and (operations > 0) == (op.family not in ("pack", "judge", "commit"))


def test_a_row_without_a_slot_leaves_nothing_in_a_page_that_is_somebodys():
    x = next(op for op in registry() if op.name == "rotate_and_store").make_inputs(
        torch.Generator().manual_seed(0), (7, 2, 1, 8, 4, True, True)
    )
    x |= {name: torch.full_like(x[name], float("nan")) for name in KEPT}
    rotate_and_store(**x)
    for name in KEPT:
        kept = x[name][:-1].transpose(1, 2).flatten(0, 1)
        assert kept.isnan().all(dim=-1).sum() == len(kept) - (x["cache_indices"] >= 0).sum()
        assert torch.isfinite(kept[x["cache_indices"][x["cache_indices"] >= 0]]).all()


ATTENTION = next(op for op in registry() if op.name == "paged_attention")


@pytest.mark.parametrize("case", [case for case in ATTENTION.cases if case[6] is not None], ids=str)
def test_windowed_attention_equals_a_plain_sum_over_the_keys_each_row_sees(case):
    """Row by row in float64, with the keys that a row sees written out as a range."""
    x = ATTENTION.make_inputs(torch.Generator().manual_seed(3), case)
    counts, context, group, _, width, causal, window = case[:7]
    made, row = paged_attention(**x), 0
    for r, (start, count) in enumerate(zip(context, counts, strict=True)):
        for at in range(start, start + count):
            last = at if causal else min(start + count - 1, at + window - 1)
            seen = range(max(0, at - window + 1), last + 1)
            where = [(int(x["pages"][r, j // 16]), j % 16) for j in seen]
            for head in range(made.shape[1]):
                keys, values = (torch.stack([x[n][p, head // group, o] for p, o in where]).double() for n in KEPT)
                scores = keys @ x["q"][row, head].double() * width**-0.5
                scores = scores if x["cap"] is None else x["cap"] * torch.tanh(scores / x["cap"])
                assert (made[row, head] - scores.softmax(0) @ values).abs().max() < 2e-5, (r, at, head)
            row += 1


def test_windowed_attention_reads_no_page_that_lies_wholly_before_the_window():
    x = ATTENTION.make_inputs(torch.Generator().manual_seed(3), ((7, 3), (100, 64), 3, 2, 16, False, 20))
    whole = paged_attention(**x)
    for r, first in enumerate((100 - 19, 64 - 19)):  # the first key that the request's first row sees
        for name in KEPT:
            x[name][x["pages"][r, : first // 16].long()] = float("nan")
    assert torch.equal(paged_attention(**x), whole)


def test_attention_of_a_request_does_not_depend_on_its_neighbours():
    """Bitwise: the rows of one request alone, and among others."""
    inputs = ATTENTION.make_inputs(torch.Generator().manual_seed(1), ATTENTION.cases[3])
    whole = paged_attention(**inputs)
    cu_rows = inputs["cu_rows"].tolist()
    for r, (first, last) in enumerate(zip(cu_rows, cu_rows[1:], strict=False)):
        alone = inputs | {
            "q": inputs["q"][first:last],
            "pages": inputs["pages"][r : r + 1],
            "context": inputs["context"][r : r + 1],
            "cu_rows": torch.tensor([0, last - first], dtype=torch.int32),
        }
        assert torch.equal(paged_attention(**alone), whole[first:last])


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_drafts_of_a_request_do_not_depend_on_its_neighbours(kind):
    """Bit for bit, given its base logits and its part of the hidden states; with features or without."""
    op = next(op for op in registry() if op.name == "coupled_block tokens")
    x = op.make_inputs(torch.Generator().manual_seed(4), (9, 5, 24, 12, 5000, kind, False))
    head = Head.of(kind, {name: t for name, t in x.items() if "." in name}, x["markov_w1.weight"])
    part = head.hidden_part(x["hidden"])

    def run(rows, stats):
        mine = {name: x[name][rows] for name in ("base", "anchor", "start", "depth", "temperature", "seeds")}
        counts = mine["depth"].tolist()
        return coupled_block(head, part=part[rows], counts=counts, ids=x["ids"], stats=stats, **mine)

    tokens, features = run(slice(None), True)
    assert torch.equal(run(slice(None), False)[0], tokens) and run(slice(None), False)[1] is None
    assert (tokens[torch.arange(5) >= x["depth"][:, None]] == 0).all()
    for r in range(1, 9):
        if depth := int(x["depth"][r]):
            alone = run(slice(r, r + 1), True)
            assert torch.equal(alone[0][0], tokens[r, :depth]) and torch.equal(alone[1][0], features[r, :depth])


@pytest.mark.parametrize("case", ATTENTION.cases, ids=str)
def test_the_cost_of_attention_counts_the_keys_each_row_sees(case):
    x = ATTENTION.make_inputs(torch.Generator().manual_seed(3), case)
    counts, context, group, kv_heads, width, causal, window = case[:7]
    flops, read = 0, 0
    for start, count in zip(context, counts, strict=True):
        seen = [
            {j for j in range(start + count) if (j <= at or not causal) and abs(at - j) < (window or 1 << 20)}
            for at in range(start, start + count)
        ]
        flops += 4 * group * kv_heads * width * sum(len(keys) for keys in seen)
        read += 2 * kv_heads * width * 4 * len(set().union(*seen))
    assert attention_cost(**x) == (read + 2 * x["q"].numel() * 4, flops)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0])
def test_the_draw_with_features_is_the_draw_without(spread):
    """Bit for bit, cold and hot, with exact ties: every logit and every id stands twice."""
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(60, 1500, generator=generator) * spread).repeat_interleave(2, dim=1)[:, :2999]
    logits[::5, 4:] = float("-inf")
    temperature = torch.tensor([0.0, 0.01, 0.4, 1.0, 1.7, 6.0]).repeat(10)
    seeds = torch.randint(-(2**62), 2**62, (60,), generator=generator)
    rest = (temperature, seeds, torch.arange(60) * 31, torch.arange(2999) // 2)
    winner, features = coupled_stats(logits, *rest)
    assert torch.equal(winner, gumbel_argmax(logits, *rest))
    assert torch.equal(winner, coupled_stats_reference(logits, *rest)[0])
    assert (features[:, 4] == 0).sum() > 55


def test_features_of_laws_known_in_closed_form():
    inf, clipped = float("inf"), math.log(10.1)
    two, even = math.log(2.0), [math.log(2.0), -math.log(2.0), 0.0, math.log(0.1)]
    certain = [0.0, 0.0, 10.0, clipped]
    odds = [two - 0.75 * math.log(3.0) + two, math.log(0.75), math.log(3.0), math.log(math.log(3.0) + 0.1)]
    logits = torch.tensor([[5.0, 5.0, -inf], [-inf, 2.0, -inf], [0.0, math.log(9.0), -inf], [0.0, 300.0, -inf]])
    temperature = torch.tensor([0.7, 1.3, 2.0, 0.0])
    found = law_stats(logits, temperature)
    assert torch.allclose(found[:, :4], torch.tensor([even, certain, odds, certain]), atol=1e-6)
    assert torch.equal(found[:3, 4:], torch.tensor([0.0, math.log(0.1)]).expand(3, 2))
    assert torch.equal(found[3, 4:], found[3, 2:4])
    assert torch.allclose(law_stats(torch.tensor([[3.0]]), torch.ones(1))[0, :4], torch.tensor(certain), atol=1e-6)
    noise = gumbel_noise(torch.tensor([8]), torch.tensor([4]), torch.tensor([6, 9]))[0]
    rest = (torch.ones(1), torch.tensor([8]), torch.tensor([4]), torch.tensor([6, 9]))
    gap = coupled_stats(torch.tensor([[1.0, 1.5]]), *rest)[1][0, 4]
    assert float(gap) == pytest.approx(abs(float(1.0 + noise[0] - 1.5 - noise[1])), abs=1e-6)


NUMBERLESS = [math.nan, -math.inf]


@pytest.mark.parametrize("value", NUMBERLESS, ids=str)
@pytest.mark.parametrize("vocab", [1, 63, 200, 5000])
@pytest.mark.parametrize("op", [gumbel_argmax, lambda *row: coupled_stats(*row)[0]], ids=["argmax", "stats"])
def test_a_row_without_a_number_names_its_first_column(op, vocab, value):
    rest = (torch.tensor([0.0, 1.0]), torch.tensor([3, 4]), torch.tensor([5, 6]), torch.arange(vocab))
    assert op(torch.full((2, vocab), value), *rest).tolist() == [0, 0]


@pytest.mark.parametrize("op", [gumbel_argmax, lambda *row: coupled_stats(*row)[0]], ids=["argmax", "stats"])
def test_a_row_with_some_nan_names_a_column_of_its_own(op):
    logits = torch.randn(40, 333, generator=torch.Generator().manual_seed(0))
    for row in range(40):
        logits[row, row * 3 :: 1 + row % 5] = [math.nan, -math.inf, math.inf][row % 3]
    rest = (torch.arange(40) % 4 / 2.0, torch.arange(40), torch.arange(40), torch.arange(333))
    found = op(logits, *rest)
    assert ((found >= 0) & (found < 333)).all()


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_a_block_without_a_number_drafts_the_first_id(kind):
    op = next(op for op in registry() if op.name == "coupled_block tokens")
    x = op.make_inputs(torch.Generator().manual_seed(4), (9, 5, 24, 12, 5000, kind, False))
    head = Head.of(kind, {name: t for name, t in x.items() if "." in name}, x["markov_w1.weight"])
    part = head.hidden_part(x["hidden"])
    names = ("anchor", "start", "depth", "temperature", "seeds", "ids")
    rest = {name: x[name] for name in names} | {"counts": x["depth"].tolist(), "stats": True}
    drafted = torch.arange(5) < x["depth"][:, None]
    for value in NUMBERLESS:
        tokens, _ = coupled_block(head, base=torch.full_like(x["base"], value), part=part, **rest)
        assert (tokens[drafted] == x["ids"][0]).all() and (tokens[~drafted] == 0).all()
    tokens, _ = coupled_block(head, base=x["base"], part=torch.full_like(part, math.nan), **rest)
    assert torch.isin(tokens, torch.cat([x["ids"], torch.zeros(1, dtype=torch.int64)])).all()


@pytest.mark.parametrize("number", range(len(next(op for op in registry() if op.name == "coupled_block tokens").cases)))
def test_a_block_an_op_after_the_other_draws_the_same(number):
    op = next(op for op in registry() if op.name == "coupled_block tokens")
    inputs = op.make_inputs(torch.Generator().manual_seed(number), op.cases[number])
    tokens, features = op.unfused(inputs)()
    assert torch.equal(tokens, op.compiled(**inputs))
    torch.testing.assert_close(features, block_reference(inputs)[1], atol=4e-4, rtol=0)
    tokens, _ = op.unfused(in_dtype(inputs, torch.bfloat16))()
    assert tokens.shape == inputs["base"].shape[:2]
