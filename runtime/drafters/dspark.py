"""The DSpark block drafter at run time: one parallel pass over G rows, then a light sequential head, left to right.

Source: arXiv 2607.05147, eq. 2-8. The anchor row predicts the first draft; mask rows the others. Context keys and
values come from tapped target states of committed tokens, strictly before the anchor; block rows see each other.
Shapes: R requests, G block, D hidden, V' draft vocabulary, r head rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.attention import paged_attention
from dsbench.kernels.linear import Projection
from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.drafters.checkpoint import DrafterShape, check_against_target
from dsbench.runtime.drafters.draft import DepthRule, Draft
from dsbench.runtime.drafters.events import event_head, event_of
from dsbench.runtime.drafters.heads import head_feature
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import (
    Purpose,
    Sampling,
    coupled_choice,
    coupled_draw,
    distribution,
    inverse_cdf,
    keyed_uniforms,
    law_features,
)
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.dense import DenseTarget, layer_weights, split_heads
from dsbench.runtime.targets.layers import rms_norm, rotary_table, rotate, swiglu


class DSparkDrafter:
    """A block drafter beside the target whose embedding and head it borrows. `first_layer`: its first in the pool."""

    def __init__(self, shape: DrafterShape, weights: dict[str, Tensor], digest: str, target: DenseTarget) -> None:
        check_against_target(shape, target.shape, target.digest)
        self.shape, self.digest, self.block, self.taps = shape, digest, shape.block, shape.taps
        self.first_layer = target.shape.layers
        self.layers = [layer_weights(shape.layer, weights, f"layers.{i}.") for i in range(shape.layer.layers)]
        self.fc = Projection(weights["fc.weight"])
        self.hidden_norm, self.norm = weights["hidden_norm.weight"], weights["norm.weight"]
        self.embedding = weights.get("embed_tokens.weight", target.embedding)
        ids = weights.get("draft_vocab_ids")
        self.vocabulary = torch.arange(target.shape.vocab, device=target.device) if ids is None else ids.long()
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
        self.bias = Projection(self.sequential["markov_w2.weight"]) if shape.head != "none" else None
        self.confidence = _linear(weights, "confidence_head.proj")
        self.confidence_free = _linear(weights, "confidence_head_free.proj")
        self.events = event_head(weights, "confidence_events")
        self.events_free = event_head(weights, "confidence_free_events")
        positions = target.cos.shape[0]
        self.cos, self.sin = rotary_table(positions, shape.layer.head_width, shape.layer.rope_theta, target.device)

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        return ((self.shape.layer.kv_heads, self.shape.layer.head_width),) * self.shape.layer.layers

    @torch.inference_mode()
    def propose(
        self, requests: Sequence[Request], sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule
    ) -> Draft:
        """Drafts as many tokens per request as `depth` says; pages must reach G slots past the committed ones."""
        device = self.norm.device
        start = torch.tensor([r.committed for r in requests], dtype=torch.int32, device=device)
        anchor = torch.tensor([r.anchor for r in requests], dtype=torch.int64, device=device)
        table = pool.table([r.id for r in requests])
        hidden = self.backbone(anchor, start, table, pool)
        free = self._confidence_free(hidden, event_of(sampling.temperature, rule))
        return self.draw(hidden, free, anchor, start.long(), sampling, rule=rule, depth=depth(free))

    def backbone(self, anchor: Tensor, start: Tensor, table: Tensor, pool: StatePool) -> Tensor:
        """Hidden states [R, G, D] after the final norm, of blocks that follow `start` [R] committed tokens."""
        requests, block = anchor.shape[0], self.block
        cu_rows, index, positions = ragged_positions(start, torch.full_like(start, block), requests * block)
        batch = Batch(
            ids=positions, positions=positions, cu_rows=cu_rows, context=start, pages=table, request=index
        )  # ids unused
        slots, cos, sin = pool.slots(batch), self.cos[positions], self.sin[positions]
        x = self.mask.expand(requests, block, -1).clone()
        x[:, 0] = self.embedding[anchor]
        x = x.reshape(requests * block, -1)
        eps = self.shape.layer.norm_eps
        for i, layer in enumerate(self.layers):
            q, k, v = split_heads(layer.qkv(rms_norm(x, layer.input_norm, eps)), self.shape.layer, layer)
            pool.write(self.first_layer + i, slots, rotate(k, cos, sin), v)
            keys, values = pool.layer(self.first_layer + i)
            mixed = paged_attention(
                rotate(q, cos, sin), keys, values, table, cu_rows, start,
                causal=self.shape.causal_in(i), window=self.shape.window_of(i),
            )  # fmt: skip
            x = x + layer.output(mixed.flatten(1))
            x = x + layer.down(swiglu(layer.gate_up(rms_norm(x, layer.mlp_norm, eps))))
        return rms_norm(x, self.norm, eps).view(requests, block, -1)

    def draw(
        self, hidden: Tensor, free: Tensor, anchor: Tensor, start: Tensor, sampling: Sampling, *, rule: str,
        depth: Tensor,
    ) -> Draft:  # fmt: skip
        """The sequential head over hidden [R, G, D]: tokens and confidences of the first depth[r] slots.

        A slot runs for the requests that want it and no others. `depth` lies on the host: where all of it is equal,
        nothing here waits for the device.
        """
        requests, block = hidden.shape[:2]
        counts: list[int] = depth.tolist()
        most = max(counts)
        base = self._base(hidden, counts)
        tokens = anchor.new_zeros(requests, block)
        confidence = hidden.new_zeros(requests, block, dtype=torch.float32)
        laws = base.new_zeros(base.shape, dtype=torch.float32) if rule == "residual" else None
        state, event = hidden.new_zeros(requests, max(self.shape.rank, 1)), event_of(sampling.temperature, rule)
        for j in range(most):
            rows = _rows([r for r, count in enumerate(counts) if count > j], requests, hidden.device)
            previous = anchor[rows] if j == 0 else tokens[rows, j - 1]
            h, mine, position = hidden[rows, j], sampling.rows(rows), start[rows] + j + 1
            logits, e, state[rows] = self._slot(h, base[rows, j], previous, state[rows])
            features = None
            if laws is not None:
                laws[rows, j] = law = distribution(logits, mine)
                features = None if self.events is None else law_features(logits, mine)
                drawn = inverse_cdf(law, keyed_uniforms(mine, position, Purpose.DRAFT))
                tokens[rows, j] = self.vocabulary[drawn]
            elif self.events is None:
                tokens[rows, j] = coupled_choice(logits, mine, position, self.vocabulary)
            else:
                tokens[rows, j], features = coupled_draw(logits, mine, position, self.vocabulary)
            if self.events is not None and features is not None:
                confidence[rows, j] = self.events((h, features) if e is None else (h, e, features), event[rows])
            else:
                confidence[rows, j] = self._confidence(h, e)
        drafted = _on_device(depth, counts, hidden.device)
        return Draft(tokens=tokens, confidence=confidence, free=free, depth=drafted, probabilities=laws)

    def _base(self, hidden: Tensor, counts: list[int]) -> Tensor:
        """Base logits [R, max(counts), V'] of hidden [R, G, D]; slots past counts[r] are not computed."""
        requests, most = hidden.shape[0], max(counts)
        flat = hidden[:, :most].flatten(0, 1)
        wanted = _rows([r * most + j for r, count in enumerate(counts) for j in range(count)], len(flat), hidden.device)
        if isinstance(wanted, slice):
            return self.unembed(flat).view(requests, most, self.vocabulary.shape[0])
        base = hidden.new_empty(len(flat), self.vocabulary.shape[0])
        base[wanted] = self.unembed(flat[wanted])
        return base.view(requests, most, self.vocabulary.shape[0])

    def _slot(self, h: Tensor, base: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """One slot of n requests: logits [n, V'], W1[previous] [n, r], next state. h [n, D], previous ids [n]."""
        if self.bias is None:
            return base, None, state
        e = self.sequential["markov_w1.weight"][previous]
        feature, state = head_feature(self.shape.head, self.sequential, e, h, state)
        return base + self.bias(feature), e, state

    def _confidence_free(self, hidden: Tensor, event: Tensor) -> Tensor:
        """Token-free logits [R, G] for the events [R]; even odds without such a head."""
        if self.events_free is not None:
            return self.events_free((hidden,), event[:, None].expand(hidden.shape[:2]))
        if self.confidence_free is None:
            return hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
        return F.linear(hidden, *self.confidence_free).squeeze(-1).float()

    def _confidence(self, h: Tensor, e: Tensor | None) -> Tensor:
        """Logit [n] that the slot's draft passes if the ones before it did; 0 (even odds) without a confidence head."""
        if self.confidence is None:
            return h.new_zeros(h.shape[0], dtype=torch.float32)
        x = torch.cat([h, e], dim=-1) if self.shape.confidence_with_token and e is not None else h
        return F.linear(x, *self.confidence).squeeze(-1).float()

    @torch.inference_mode()
    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Context keys and values of every row of a target pass, into the rows' own slots.

        Rows that end up rejected are written too: they lie past the committed length, where nobody reads, and the next
        pass over those positions overwrites them.
        """
        context = rms_norm(self.fc(taps), self.hidden_norm, self.shape.layer.norm_eps)
        slots, cos, sin = pool.slots(batch), self.cos[batch.positions], self.sin[batch.positions]
        width = self.shape.layer.head_width
        for i, layer in enumerate(self.layers):
            k, v = self.context_kv[i](context).view(context.shape[0], -1, width).chunk(2, dim=1)
            assert layer.k_norm is not None
            k = rms_norm(k, layer.k_norm, self.shape.layer.norm_eps)
            pool.write(self.first_layer + i, slots, rotate(k, cos, sin), v)


def _linear(weights: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor] | None:
    weight = weights.get(name + ".weight")
    return None if weight is None else (weight, weights[name + ".bias"])


def _rows(wanted: list[int], count: int, device: torch.device) -> Tensor | slice:
    """An index of the rows `wanted` out of `count`; all of them need none."""
    return slice(None) if len(wanted) == count else torch.tensor(wanted, dtype=torch.int64, device=device)


def _on_device(depth: Tensor, counts: list[int], device: torch.device) -> Tensor:
    """`depth` beside the drafts; a fill where all are equal, because a copy from the host cannot be captured."""
    return torch.full_like(depth, counts[0], device=device) if len(set(counts)) == 1 else depth.to(device)
