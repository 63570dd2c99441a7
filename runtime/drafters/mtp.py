"""The chain drafter at run time: one decoder layer, run again for every draft on its own last hidden state.

Sources: EAGLE (arXiv 2401.15077), multi-token prediction (arXiv 2412.19437, section 2.2); top-1 chain, no tree.
Row of the token x_i at position i: u_i = fc [h_{i-1} ; rms_norm(E(x_i))]; h_{i-1} is the target's last hidden state
after its final norm, zeros for i = 0. The layer is causal over all earlier rows; its output after `norm`, m_i, predicts
x_{i+1} through the target's head. Committed rows use the target's h; the rows of a chain past its first use m instead.
Shapes: R requests, G block (steps at most), M rows, D hidden, V' draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.fused.products import await_weights, embed
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotary_table, rotate_and_store
from dsbench.kernels.swiglu import swiglu
from dsbench.runtime.batch import Batch
from dsbench.runtime.drafters.draft import DepthRule, Draft, Standing, depth_on, row_index
from dsbench.runtime.drafters.draw import draw_rows
from dsbench.runtime.drafters.mtp_checkpoint import MtpShape, check_mtp_against_target
from dsbench.runtime.drafters.tensors import reduced_ids
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import MARGIN, Target
from dsbench.runtime.targets.fused import fused_layer, runs_fused
from dsbench.runtime.targets.layer import attend, layer_weights


class MtpDrafter:
    """A chain drafter beside the target whose embedding and head it borrows.

    It keeps two layers in the pool from `first_layer` on: its own keys and values, and the target's hidden states, half
    as keys and half as values.
    """

    has_token_free = False  # but for the first depth

    def __init__(self, shape: MtpShape, weights: dict[str, Tensor], digest: str, target: Target) -> None:
        check_mtp_against_target(shape, target.shape, target.digest)
        self.shape, self.digest, self.block = shape, digest, shape.block
        self.taps: tuple[int, ...] = (target.shape.layers - 1,)
        self.first_layer, self.exact = target.shape.layers, target.exact
        self.layer = layer_weights(shape.layer, weights, "layers.0.")
        self.context_kv = self.layer.qkv.rows(shape.layer.heads * shape.layer.head_width)
        self.fc = Projection(weights["fc.weight"])
        self.embed_norm, self.norm = weights["embed_norm.weight"], weights["norm.weight"]
        self.target_norm, self.target_eps, self.embedding = target.norm, target.shape.norm_eps, target.embedding
        ids = self.ids = reduced_ids(weights, target.shape.vocab)
        self.vocabulary = torch.arange(target.shape.vocab, device=target.device) if ids is None else ids
        self.unembed = target.unembed if ids is None else Projection(target.head[self.vocabulary].contiguous())
        self.confidence: tuple[Tensor, Tensor] | None = None
        if shape.confidence:
            self.confidence = (weights["confidence_head.proj.weight"], weights["confidence_head.proj.bias"])
        self.cos, self.sin = rotary_table(
            target.shape.context + MARGIN, shape.layer.head_width, shape.layer.rope_theta, target.device
        )
        await_weights(target.device)

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        layer = self.shape.layer
        return ((layer.kv_heads, layer.head_width), (1, layer.hidden // 2))

    @torch.inference_mode()
    def propose(self, rows: Standing, sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule) -> Draft:
        """Drafts as many tokens per request as `depth` says; pages must reach G positions past the committed ones.

        `free` is set for the first depth only, whose state depends on no draft; of later depths nothing is known before
        their row is run, and they stand at even odds (0). The first row runs for everybody, since `depth` asks for it.
        """
        start, tokens, device = rows.start, rows.anchor, self.norm.device
        hidden = self.step(tokens, self._kept(start - 1, rows.table, pool), start, rows.table, pool)
        confidence = hidden.new_zeros(start.shape[0], self.block, dtype=torch.float32)
        confidence[:, 0] = self._confidence(hidden)
        free = confidence.clone()
        wanted = depth(free)
        counts: list[int] = wanted.tolist()
        most, alive = max(counts), list(range(len(counts)))
        drafts = tokens.new_zeros(len(counts), self.block)
        laws = None
        if rule != "coupled":
            laws = hidden.new_zeros(len(counts), most, self.vocabulary.shape[0], dtype=torch.float32)
        for j in range(most):
            left = [at for at, r in enumerate(alive) if counts[r] > j]
            kept = row_index(left, len(alive), device)
            hidden, tokens, alive = hidden[kept], tokens[kept], [alive[at] for at in left]
            index = row_index(alive, len(counts), device)
            at = start[index] + j
            if j:
                hidden = self.step(tokens, hidden, at, rows.table[index], pool)
                confidence[index, j] = self._confidence(hidden)
            tokens, _, law = draw_rows(
                self.unembed(hidden), sampling.rows(index), at + 1, self.ids, rule=rule, stats=False
            )
            drafts[index, j] = tokens
            if laws is not None and law is not None:
                laws[index, j] = law
        drafted = depth_on(wanted, counts, device)
        return Draft(tokens=drafts, confidence=confidence, token_free=free, depth=drafted, probabilities=laws)

    def step(self, tokens: Tensor, previous: Tensor, positions: Tensor, table: Tensor, pool: StatePool) -> Tensor:
        """m [R, D] of one row a request: its token [R] at positions [R], the hidden state [R, D] before it.

        Writes the rows' keys and values; `observe` replaces those of a chain once the target has run the positions.
        """
        layer, shape, eps = self.layer, self.shape.layer, self.shape.layer.norm_eps
        batch = _one_row_each(tokens, positions, table)
        turns, cache_indices, kept = (self.cos, self.sin), pool.cache_indices(batch), pool.layer(self.first_layer)
        x = self._inputs(tokens, previous)
        if runs_fused(shape, len(x), x, exact=self.exact):
            stream = embed(None, x, layer.input_norm)
            stream = fused_layer(layer, shape, stream, turns, batch, cache_indices, kept, self.norm, causal=True)
            return add_norm(stream.x, None, self.norm, eps)[1]
        x, h = add_norm(x, None, layer.input_norm, eps)
        mixed = attend(layer, shape, h, turns, batch, cache_indices, kept, causal=True)
        x, h = add_norm(x, mixed, layer.mlp_norm, eps)
        return add_norm(x, layer.down(swiglu(layer.gate_up(h))), self.norm, eps)[1]

    @torch.inference_mode()
    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """The target's states [M, D] of a pass, and this layer's keys and values made from them, at the rows' cache
        indices.

        One layer needs no attention for that. Rows that end up rejected lie past the committed length, which is never
        read, and the next pass over those positions overwrites them.
        """
        cache_indices, eps = pool.cache_indices(batch), self.shape.layer.norm_eps
        _, hidden = add_norm(taps, None, self.target_norm, self.target_eps)
        kept = self._kept(batch.context.long() - 1, batch.pages, pool)
        first_row = batch.positions == batch.context.long()[batch.request]  # a request may have none
        previous = torch.where(first_row[:, None], kept[batch.request], hidden.roll(1, dims=0))
        _, x = add_norm(self._inputs(batch.ids, previous), None, self.layer.input_norm, eps)
        rotate_and_store(
            self.context_kv(x),
            self.cos,
            self.sin,
            batch.positions,
            cache_indices,
            *pool.layer(self.first_layer),
            k_norm=self.layer.k_norm,
            eps=eps,
        )
        first, second = hidden.unsqueeze(1).chunk(2, dim=-1)
        pool.write(self.first_layer + 1, cache_indices, first, second)

    def _inputs(self, tokens: Tensor, previous: Tensor) -> Tensor:
        """u [M, D] of tokens [M] and the hidden states [M, D] before them."""
        _, embedded = add_norm(self.embedding[tokens], None, self.embed_norm, self.shape.layer.norm_eps)
        return self.fc(torch.cat([previous, embedded], dim=-1))

    def _kept(self, positions: Tensor, table: Tensor, pool: StatePool) -> Tensor:
        """The target's state [R, D] at one position [R] of each request; zeros at -1, before the text."""
        cache_indices = pool.cache_indices(_one_row_each(positions, positions.clamp(min=0), table))
        kept = torch.cat(pool.read(self.first_layer + 1, cache_indices), dim=-1).squeeze(1).to(self.norm.dtype)
        return kept.masked_fill(positions[:, None] < 0, 0)

    def _confidence(self, hidden: Tensor) -> Tensor:
        """Logit [n] that the draft made from m [n, D] passes if those before it did; 0 without a confidence head."""
        if self.confidence is None:
            return hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        return F.linear(hidden, *self.confidence).squeeze(-1).float()


def _one_row_each(ids: Tensor, positions: Tensor, table: Tensor) -> Batch:
    """A pass of one row a request, each right after its own context."""
    rows = torch.arange(positions.shape[0] + 1, device=positions.device)
    return Batch(
        ids=ids,
        positions=positions,
        cu_rows=rows.int(),
        context=positions.int(),
        pages=table,
        request=rows[:-1],
        most_rows=1,
    )
