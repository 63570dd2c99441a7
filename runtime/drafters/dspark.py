"""The DSpark block drafter at run time: one parallel pass over G rows, then a light sequential head, left to right.

Source: arXiv 2607.05147, eq. 2-8. The anchor row predicts the first draft; mask rows the others. (In the layout of
DFlash's authors the anchor row predicts nothing, and each mask row its own token.) Context keys and
values come from tapped target states of committed tokens, strictly before the anchor; block rows see each other.
Shapes: R requests, G block, D hidden, V' draft vocabulary, r head rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft.head import Head
from dsbench.kernels.fused.products import await_weights, embed
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotary_table, rotate_and_store
from dsbench.kernels.swiglu import swiglu
from dsbench.runtime.batch import Batch, block_positions
from dsbench.runtime.drafters.checkpoint import EMBEDDING, DrafterShape, check_against_target
from dsbench.runtime.drafters.draft import DepthRule, Draft, Standing, depth_on, row_index
from dsbench.runtime.drafters.draw import DrawPlan, at_once, in_turn
from dsbench.runtime.drafters.events import event_head, event_of
from dsbench.runtime.drafters.heads import token_table
from dsbench.runtime.drafters.tensors import reduced_ids
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import Target
from dsbench.runtime.targets.fused import fused_layer, runs_fused
from dsbench.runtime.targets.layer import attend, layer_weights


class DSparkDrafter:
    """A block drafter beside the target whose embedding and head it borrows. `first_layer`: its first in the pool."""

    def __init__(self, shape: DrafterShape, weights: dict[str, Tensor], digest: str, target: Target) -> None:
        check_against_target(shape, target.shape, target.digest)
        self.shape, self.digest, self.block = shape, digest, shape.block
        self.taps = tuple(tap for tap in shape.taps if tap != EMBEDDING)  # which the ids give without the target
        self.entering = target.embedding if EMBEDDING in shape.taps else None
        self.first_layer, self.exact = target.shape.layers, target.exact
        self.layers = [layer_weights(shape.layer, weights, f"layers.{i}.") for i in range(shape.layer.layers)]
        self.fc = Projection(weights["fc.weight"])
        self.hidden_norm, self.norm = weights["hidden_norm.weight"], weights["norm.weight"]
        self.norms = [*(layer.input_norm for layer in self.layers), self.norm]
        self.embedding = weights.get("embed_tokens.weight", target.embedding)
        ids = self.ids = reduced_ids(weights, target.shape.vocab)
        self.vocabulary = torch.arange(target.shape.vocab, device=target.device) if ids is None else ids
        self.head = weights.get("lm_head.weight", target.head)
        if self.head.shape[0] != self.vocabulary.shape[0]:
            self.head = self.head[self.vocabulary].contiguous()
        self.unembed = Projection(self.head)
        q_rows = shape.layer.heads * shape.layer.head_width
        self.context_kv = [layer.qkv.rows(q_rows) for layer in self.layers]
        self.mask = weights["mask_embedding"] if shape.mask_token is None else self.embedding[shape.mask_token]
        self.sequential = {
            k.removeprefix("markov_head."): w for k, w in weights.items() if k.startswith("markov_head.")
        }
        self.markov = None
        if shape.head != "none":
            table = token_table(shape.head, self.sequential, self.embedding)
            self.markov = Head.of(shape.head, self.sequential, table)
        self.confidence = _linear(weights, "confidence_head.proj")
        self.confidence_free = _linear(weights, "confidence_head_free.proj")
        self.events = event_head(weights, "confidence_events")
        self.events_free = event_head(weights, "confidence_free_events")
        self.has_token_free = self.confidence_free is not None or self.events_free is not None
        layer = shape.layer
        self.cos, self.sin = rotary_table(target.positions, layer.head_width, layer.rope_theta, target.device)
        await_weights(target.device)

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        return ((self.shape.layer.kv_heads, self.shape.layer.head_width),) * self.shape.layer.layers

    @torch.inference_mode()
    def propose(self, rows: Standing, sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule) -> Draft:
        """Drafts as many tokens per request as `depth` says; pages must reach G positions past the committed ones."""
        hidden = self.backbone(rows.anchor, rows.start, rows.table, pool)
        free = self._confidence_free(hidden, event_of(sampling.temperature, rule))
        return self.draw(hidden, free, rows.anchor, rows.start, sampling, rule=rule, depth=depth(free))

    def backbone(self, anchor: Tensor, start: Tensor, table: Tensor, pool: StatePool) -> Tensor:
        """Hidden states [R, G, D] after the final norm, of blocks that follow `start` [R] committed tokens."""
        requests, block = anchor.shape[0], self.shape.rows
        cu_rows, index, positions = block_positions(start, block)
        batch = Batch(
            ids=positions,
            positions=positions,
            cu_rows=cu_rows,
            context=start.int(),
            pages=table,
            request=index,
            most_rows=block,
        )  # ids unused
        x = self.mask.expand(requests, block, -1).clone()
        x[:, 0] = self.embedding[anchor]
        return self._states(x.reshape(requests * block, -1), batch, pool).view(requests, block, -1)[:, -self.block :]

    def _states(self, x: Tensor, batch: Batch, pool: StatePool) -> Tensor:
        """Normed states [M, D] after the last layer, of rows that come in as x [M, D]."""
        shape, cache_indices, turns = self.shape.layer, pool.cache_indices(batch), (self.cos, self.sin)
        kept = [pool.layer(self.first_layer + i) for i in range(shape.layers)]
        sight: list[dict[str, Any]] = [
            {"causal": self.shape.causal_in(i), "window": self.shape.window_of(i)} for i in range(shape.layers)
        ]
        if runs_fused(shape, len(x), x, exact=self.exact):
            stream = embed(None, x, self.norms[0])
            for i, layer in enumerate(self.layers):
                gain = self.norms[i + 1]
                stream = fused_layer(layer, shape, stream, turns, batch, cache_indices, kept[i], gain, **sight[i])
            return add_norm(stream.x, None, self.norm, shape.norm_eps)[1]
        x, h = add_norm(x, None, self.norms[0], shape.norm_eps)
        for i, layer in enumerate(self.layers):
            mixed = attend(layer, shape, h, turns, batch, cache_indices, kept[i], **sight[i])
            x, h = add_norm(x, mixed, layer.mlp_norm, shape.norm_eps)
            x, h = add_norm(x, layer.down(swiglu(layer.gate_up(h))), self.norms[i + 1], shape.norm_eps)
        return h

    def draw(
        self,
        hidden: Tensor,
        free: Tensor,
        anchor: Tensor,
        start: Tensor,
        sampling: Sampling,
        *,
        rule: str,
        depth: Tensor,
    ) -> Draft:
        """The sequential head over hidden [R, G, D]: tokens and confidences of the first depth[r] depths.

        A depth runs only for the requests that want it. `depth` lies on the host: where all of it is equal,
        nothing here waits for the device.
        """
        counts: list[int] = depth.tolist()
        most, drafted = max(counts), depth_on(depth, counts, hidden.device)
        plan = DrawPlan(
            start=start,
            counts=counts,
            depth=drafted,
            sampling=sampling,
            ids=self.ids,
            rule=rule,
            stats=self.events is not None,
        )
        base, mine = self._base(hidden, counts), hidden[:, :most]
        made = at_once(base, plan) if self.markov is None else in_turn(self.markov, base, mine, anchor, plan)
        before = torch.cat([anchor[:, None], made.tokens], dim=1)[:, :most]
        confidence = self._confidence(mine, before, made.features, event_of(sampling.temperature, rule))
        if len(set(counts)) > 1:
            confidence = confidence.masked_fill(torch.arange(most, device=hidden.device) >= drafted[:, None], 0)
        left = (0, self.block - most)
        return Draft(
            tokens=F.pad(made.tokens, left),
            confidence=F.pad(confidence, left),
            token_free=free,
            depth=drafted,
            probabilities=made.laws,
        )

    def _base(self, hidden: Tensor, counts: list[int]) -> Tensor:
        """Base logits [R, max(counts), V'] of hidden [R, G, D]; depths past counts[r] are not computed."""
        requests, most = hidden.shape[0], max(counts)
        flat = hidden[:, :most].flatten(0, 1)
        wanted_rows = [r * most + j for r, count in enumerate(counts) for j in range(count)]
        wanted = row_index(wanted_rows, len(flat), hidden.device)
        if isinstance(wanted, slice):
            return self.unembed(flat).view(requests, most, self.vocabulary.shape[0])
        base = hidden.new_empty(len(flat), self.vocabulary.shape[0])
        base[wanted] = self.unembed(flat[wanted])
        return base.view(requests, most, self.vocabulary.shape[0])

    def _confidence_free(self, hidden: Tensor, event: Tensor) -> Tensor:
        """Token-free logits [R, G] for the events [R]; even odds without such a head."""
        if self.events_free is not None:
            return self.events_free((hidden,), event[:, None].expand(hidden.shape[:2]))
        if self.confidence_free is None:
            return hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
        return F.linear(hidden, *self.confidence_free).squeeze(-1).float()

    def _confidence(self, h: Tensor, before: Tensor, features: Tensor | None, event: Tensor) -> Tensor:
        """Logits [R, n] that the draft at a depth passes if those before it did; 0 (even odds) without a confidence
        head.

        h [R, n, D], before [R, n] the ids before each depth, features [R, n, 6] where the head reads them, event [R].
        """
        inputs = [h]
        if self.markov is not None and (features is not None or self.shape.confidence_with_token):
            inputs.append(self.markov.w1[before])
        if self.events is not None and features is not None:
            return self.events((*inputs, features), event[:, None].expand(before.shape))
        if self.confidence is None:
            return h.new_zeros(before.shape, dtype=torch.float32)
        return F.linear(torch.cat(inputs, dim=-1), *self.confidence).squeeze(-1).float()

    @torch.inference_mode()
    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Context keys and values of every row of a target pass, at the rows' cache indices.

        Rows that end up rejected are written too: they lie past the committed length, which is never read, and the next
        pass over those positions overwrites them.
        """
        cache_indices, eps = pool.cache_indices(batch), self.shape.layer.norm_eps
        if self.entering is not None:
            taps = torch.cat([self.entering[batch.ids], taps], dim=-1)
        _, context = add_norm(self.fc(taps), None, self.hidden_norm, eps)
        for i, layer in enumerate(self.layers):
            rotate_and_store(
                self.context_kv[i](context),
                self.cos,
                self.sin,
                batch.positions,
                cache_indices,
                *pool.layer(self.first_layer + i),
                k_norm=layer.k_norm,
                eps=eps,
            )


def _linear(weights: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor] | None:
    weight = weights.get(name + ".weight")
    return None if weight is None else (weight, weights[name + ".bias"])
