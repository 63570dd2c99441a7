"""Pages and packing as state machines: conservation, isolation, and positions that name the right rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsbench.runtime.batch import Batch, pack_rows, ragged_positions
from dsbench.runtime.state import PoolShape, StatePool

PAGE, PAGES = 4, 12


class Pages(RuleBasedStateMachine):
    """Owners open, grow, write, truncate and leave; what each wrote must read back until it is truncated."""

    def __init__(self) -> None:
        super().__init__()
        shape = PoolShape(layers=((1, 1),), page=PAGE, pages=PAGES, table=8)
        self.pool = StatePool(shape, torch.device("cpu"), torch.float32, shuffle_seed=9)
        self.promised: dict[int, int] = {}
        self.texts: dict[int, list[float]] = {}
        self.next = 0

    @rule(tokens=st.integers(1, 8 * PAGE))
    def open(self, tokens: int) -> None:
        spoken_for = sum(-(-n // PAGE) for n in self.promised.values())
        fits = -(-tokens // PAGE) <= PAGES - spoken_for
        assert self.pool.open(self.next, tokens) == fits
        if fits:
            self.promised[self.next], self.texts[self.next] = tokens, []
        self.next += 1

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.texts)))
        text = self.texts[owner]
        count = data.draw(st.integers(0, self.promised[owner] - len(text)))
        self.pool.grow(owner, len(text) + count)
        if count:
            values = [float(1000 * owner + len(text) + i) for i in range(count)]
            batch = self.batch(owner, len(text), count)
            tensor = torch.tensor(values)[:, None, None]
            self.pool.write(0, self.pool.cache_indices(batch), tensor, -tensor)
            text += values

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.texts)))
        keep = data.draw(st.integers(0, len(self.texts[owner])))
        self.pool.truncate(owner, keep)
        del self.texts[owner][keep:]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.texts)))
        self.pool.release(owner)
        del self.texts[owner], self.promised[owner]

    def batch(self, owner: int, context: int, count: int) -> Batch:
        start = torch.tensor([context], dtype=torch.int32)
        cu_rows, index, positions = ragged_positions(start, torch.tensor([count]))
        return Batch(
            ids=positions,
            positions=positions,
            cu_rows=cu_rows,
            context=start,
            pages=self.pool.table([owner]),
            request=index,
        )

    @invariant()
    def everything_reads_back(self) -> None:
        self.pool.check()
        keys, values = self.pool.layer(0)
        for owner, text in self.texts.items():
            if text:
                slots = self.pool.cache_indices(self.batch(owner, 0, len(text)))
                assert keys[slots // PAGE, 0, slots % PAGE, 0].tolist() == text
                assert (-values[slots // PAGE, 0, slots % PAGE, 0]).tolist() == text


Pages.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestPages = Pages.TestCase


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=6))
def test_packing_keeps_each_requests_rows_in_order(requests):
    context = torch.tensor([c for c, _ in requests], dtype=torch.int32)
    verified = torch.tensor([v for _, v in requests])
    anchor = torch.arange(len(requests)) * 100
    drafts = anchor[:, None] + torch.arange(1, 6)
    batch = pack_rows(anchor, drafts, verified, context, torch.zeros(len(requests), 1, dtype=torch.int32))
    rows = [(r, c + i, 100 * r + i) for r, (c, v) in enumerate(requests) for i in range(v + 1)]
    assert list(zip(batch.request.tolist(), batch.positions.tolist(), batch.ids.tolist(), strict=True)) == rows
    assert batch.cu_rows.tolist() == [0, *torch.tensor([v + 1 for _, v in requests]).cumsum(0).tolist()]


def test_a_promise_is_kept_and_not_exceeded():
    pool = StatePool(
        PoolShape(layers=((1, 1),), page=4, pages=4, table=4), torch.device("cpu"), torch.float32, shuffle_seed=None
    )
    assert pool.open(1, 9)
    assert not pool.open(2, 8), "one page is left, two are wanted"
    assert pool.open(3, 4)
    with pytest.raises(AssertionError, match="past its reservation"):
        pool.grow(3, 5)
    pool.grow(1, 9)
    pool.check()
