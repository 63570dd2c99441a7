"""Toy target and drafter: laws over a tiny vocabulary that are plain functions of the text, through the real pages.

The toy target keeps token ids in the pool and reads the whole prefix back through the page table, so that a wrong slot,
a stale row or a page of somebody else changes its law.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dsbench.profiles.cost import Box, CostTable
from dsbench.profiles.curve import Curve
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.sampling import Purpose, coupled_choice, distribution, inverse_cdf, keyed_uniforms
from dsbench.runtime.targets.shape import ModelShape


@lru_cache(2**15)  # a target, its drafter and what is expected of them ask for the same ones
def toy_logits(prefix: tuple[int, ...], vocab: int, salt: int, spread: float = 1.5) -> list[float]:
    """Logits of the next token: arbitrary, but a fixed function of the whole prefix."""
    generator = np.random.default_rng([salt, len(prefix), *prefix])
    return [float(x) for x in generator.normal(0, spread, vocab)]


def toy_shape(vocab: int, context: int = 64) -> ModelShape:
    return ModelShape(
        name="toy",
        layers=1,
        hidden=1,
        mlp=1,
        heads=1,
        kv_heads=1,
        head_width=1,
        vocab=vocab,
        context=context,
        rope_theta=1e4,
        norm_eps=1e-5,
        tied=True,
        qk_norm=False,
    )


def read_ids(pool) -> list[list[int]]:
    """The token ids that a toy target left in the pages."""
    return pool.layer(0)[0][:, 0, :, 0].long().tolist()


class ToyTarget:
    """The `forward` of a Target, with `toy_logits` of the prefix it reads from the pages."""

    def __init__(self, vocab: int, salt: int = 1) -> None:
        self.shape, self.vocab, self.salt = toy_shape(vocab), vocab, salt
        self.device, self.dtype, self.digest = torch.device("cpu"), torch.float32, f"toy-{salt}"
        self.executed: list[int] = []
        self._memo: dict[tuple[int, ...], list[float]] = {}

    def forward(self, batch, pool, taps=()):
        pool.write(0, pool.cache_indices(batch), batch.ids.float()[:, None, None], batch.ids.float()[:, None, None])
        page = pool.shape.page
        rows = range(batch.rows) if batch.logit_rows is None else batch.logit_rows.tolist()
        tables, owners, positions = batch.pages.tolist(), batch.request.tolist(), batch.positions.tolist()
        flat = read_ids(pool)
        logits = []
        for row in rows:
            table = tables[owners[row]]
            prefix = tuple(flat[table[p // page]][p % page] for p in range(positions[row] + 1))
            if prefix not in self._memo:
                self._memo[prefix] = toy_logits(prefix, self.vocab, self.salt)
            logits.append(self._memo[prefix])
        if batch.logit_rows is None:  # a decode pass; prefill wants some rows' logits only
            self.executed.append(batch.rows)
        return torch.tensor(logits), torch.empty(batch.rows, 0)


class ToyDrafter:
    """Drafts from `toy_logits` blended with the target's, so that acceptance is neither 0 nor 1."""

    taps: tuple[int, ...] = ()

    def __init__(self, vocab: int, block: int, salt: int = 1) -> None:
        self.block, self.vocab, self.salt, self.digest = block, vocab, salt, "toy"
        self.vocabulary = torch.arange(vocab)
        self._memo: dict[tuple[int, ...], tuple[list[float], float]] = {}

    def pool_layers(self):
        return ()

    def law(self, prefix: tuple[int, ...]) -> tuple[list[float], float]:
        """Logits of the draft after `prefix`, and its raw confidence, which depends on the prefix's last token."""
        if prefix not in self._memo:
            own = toy_logits(prefix, self.vocab, self.salt + 100)
            true = toy_logits(prefix, self.vocab, self.salt)
            confidence = toy_logits(prefix, 1, self.salt + 200, spread=2.0)[0]
            self._memo[prefix] = ([0.6 * t + 0.4 * o for t, o in zip(true, own, strict=True)], confidence)
        return self._memo[prefix]

    def propose(self, rows, sampling, pool, *, rule, depth):
        start, count = rows.start, rows.start.shape[0]
        depth = depth(torch.zeros(count, self.block))
        flat, page = read_ids(pool), pool.shape.page
        prefixes = [
            (*(flat[table[p // page]][p % page] for p in range(n)), anchor)
            for table, n, anchor in zip(rows.table.tolist(), start.tolist(), rows.anchor.tolist(), strict=True)
        ]
        tokens = torch.zeros(count, self.block, dtype=torch.int64)
        confidence = torch.zeros(count, self.block)
        laws: list[Tensor] = []
        for j in range(int(depth.max())):
            rows = [self.law(p) for p in prefixes]
            logits = torch.tensor([row[0] for row in rows])
            confidence[:, j] = torch.tensor([row[1] for row in rows])
            if rule != "coupled":
                laws.append(distribution(logits, sampling))
                tokens[:, j] = inverse_cdf(laws[-1], keyed_uniforms(sampling, start + j + 1, Purpose.DRAFT))
            else:
                tokens[:, j] = coupled_choice(logits, sampling, start + j + 1, None)
            prefixes = [(*p, int(t)) for p, t in zip(prefixes, tokens[:, j], strict=True)]
        return Draft(
            tokens=tokens,
            confidence=confidence,
            token_free=confidence,
            depth=depth,
            probabilities=torch.stack(laws, 1) if laws else None,
        )

    def observe(self, batch, taps, pool):
        """The toy keeps nothing."""


def staircase_table(requests: int, block: int) -> CostTable:
    """A step cost with a jump in the middle, so that planners disagree."""
    rows = requests * (block + 1)
    middle = max(2, rows // 2)
    knots = {1: 0.0, middle: 0.15, middle + 1: 0.7, rows + 1: 1.0}
    return CostTable(
        bias=1.0,
        alpha=Curve((1, max(2, requests)), (0.0, 0.1)),
        theta=Curve.of(knots),
        tiers=None,
        box=Box(requests=(1, max(2, requests)), rows=(1, rows + 1), context=(0, 10_000)),
    )
