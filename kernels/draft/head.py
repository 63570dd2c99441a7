"""The sequential head of a block drafter and the coupled draws of a block, depth by depth from left to right.

Head: 2607.05147, eq. 4-6. W2 multiplies an r-wide feature of the token before. The part that reads the hidden state
does not depend on drawn tokens, so it is one product for all depths (`hidden_part`); each depth adds its [state; e]
part. Shapes: R requests, G block, n rows of one depth, D hidden, V vocabulary, V' draft vocabulary, r rank, P = 3r for
an rnn head, r for a gated one, 0 for a vanilla one, w for a deep one; w = 4r for a deep head, r for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from dsbench.kernels.draft import head_cpu as draft_head_cpu
from dsbench.kernels.draft.stats import FEATURES, coupled_stats, coupled_stats_reference
from dsbench.kernels.gumbel import gumbel_argmax, ids_at
from dsbench.kernels.linear import Projection

Advance = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Choose = Callable[[Tensor, Tensor | slice, int], Tensor]  # logits [n, V'], their requests, the depth -> ids [n]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The weights of one head, laid out for drafting."""

    kind: str  # vanilla, gated, rnn or deep
    w1: Tensor  # [V, w] e of every token
    w2: Projection  # [V', r]
    of_hidden: Projection | None  # [P, D], with the bias
    of_token: Projection | None  # [3r, 2r] of [state; e], [r, r] of e, [w, w] of the state
    feature: Projection | None = None  # [r, w] of a deep head that is not merged
    tiles: Tensor | None = None  # W2 as the CPU kernel reads it

    @classmethod
    def of(cls, kind: str, weights: Mapping[str, Tensor], table: Tensor) -> Head:
        """From the tensors of a checkpoint, by their names under `markov_head.`, and e of every token [V, w]."""
        of_hidden = of_token = None
        if kind != "vanilla":
            hidden, token, bias = split_weights(kind, weights)
            of_hidden, of_token = Projection(hidden.contiguous(), bias), Projection(token.contiguous())
        w2 = Projection(weights["markov_w2.weight"])
        feature = Projection(weights["feature_proj.weight"]) if kind == "deep" else None
        head = cls(
            kind=kind,
            w1=table,
            w2=w2,
            of_hidden=of_hidden,
            of_token=of_token,
            feature=feature,
            tiles=draft_head_cpu.tiles_of(w2.weight),
        )
        return head.merged() if head.fused else head

    def merged(self) -> Head:
        """The same head with feature_proj inside W2 [V', w]: more to read, one product less to wait for."""
        if self.feature is None:
            return self
        w2 = self.w2.weight.float() @ self.feature.weight.float()
        return replace(self, w2=Projection(w2.to(self.w2.weight.dtype)), feature=None, tiles=None)

    @property
    def fused(self) -> bool:
        """Whether a kernel makes its steps: on CUDA."""
        return self.w1.device.type == "cuda"

    def hidden_part(self, hidden: Tensor) -> Tensor:
        """What the hidden states [R, G, D] give to the projection: [R, G, P]."""
        return hidden[..., :0] if self.of_hidden is None else self.of_hidden(hidden)

    def advance(self, part: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Feature [n, r] of a depth and the state [n, w] after it; part [n, P], previous ids [n], state [n, w].

        On CUDA one launch, in fp32 between what it reads and what it writes.
        """
        if self.fused:
            return _triton().advance(self, part, previous, state)  # type: ignore[no-any-return]
        return self.unfused_advance(part, previous, state)

    def unfused_advance(self, part: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """As `advance`, in torch on any device."""
        e = self.w1[previous]
        if self.of_token is None:
            return e, state
        feature, state = gates(self.kind, part + self.of_token(token_inputs(self.kind, e, state)), e, state)
        return (feature if self.feature is None else self.feature(feature)), state


def split_weights(kind: str, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Columns of the projection that read the hidden state [P, D], those of [state; e] or e, and the bias [P]."""
    if kind == "gated":
        weight, bias = weights["gate_proj.weight"], weights["gate_proj.bias"]
        d = weight.shape[1] - weight.shape[0]
        return weight[:, :d], weight[:, d:], bias
    if kind == "deep":
        return weights["hidden_proj.weight"], weights["state_proj.weight"], weights["hidden_proj.bias"]
    weight, bias = weights["joint_proj.weight"], weights["joint_proj.bias"]
    tokens = 2 * (weight.shape[0] // 3)
    return weight[:, tokens:], weight[:, :tokens], bias


def token_inputs(kind: str, e: Tensor, state: Tensor) -> Tensor:
    """What the columns of the token read: [state; e] [n, 2r], e [n, r] without a state, or a deep head's state."""
    if kind == "deep":
        return state
    return torch.cat([state, e], dim=-1) if kind == "rnn" else e


def gates(kind: str, z: Tensor, e: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Feature and next state [n, r] of the projection z [n, P]; a gated head leaves the state as it was."""
    if kind == "gated":
        return torch.sigmoid(z) * e, state
    if kind == "deep":
        u = silu(z + e)
        return u, u
    g, c, o = z.chunk(3, dim=-1)
    g = torch.sigmoid(g)
    return torch.tanh(o), g * state + (1 - g) * torch.tanh(c)


def walk(
    head: Head,
    base: Tensor,
    part: Tensor,
    anchor: Tensor,
    counts: Sequence[int],
    choose: Choose,
    advance: Advance | None = None,
) -> Tensor:
    """Ids [R, n] that `choose` draws depth by depth; n = max(counts). A depth runs only for the requests that want it.

    base [R, n, V'], part [R, >= n, P], anchor [R]; counts[r] depths of request r. `advance` defaults to the head's own.
    """
    advance = advance or head.advance
    requests, most = len(counts), max(counts)
    tokens = anchor.new_zeros(requests, most)
    state = base.new_zeros(requests, head.w1.shape[1])
    for j in range(most):
        live = [r for r, count in enumerate(counts) if count > j]
        rows = slice(None) if len(live) == requests else torch.tensor(live, device=anchor.device)
        previous = anchor[rows] if j == 0 else tokens[rows, j - 1]
        feature, state[rows] = advance(part[rows, j], previous, state[rows])
        tokens[rows, j] = choose(base[rows, j] + head.w2(feature), rows, j)
    return tokens


def coupled_block(
    head: Head,
    base: Tensor,
    part: Tensor,
    anchor: Tensor,
    start: Tensor,
    depth: Tensor,
    counts: Sequence[int],
    temperature: Tensor,
    seeds: Tensor,
    ids: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """Ids [R, n] of all depths by the coupled rule and, with `stats`, the features [R, n, 6] of their laws; else zeros.

    As in `walk`; start [R] is the position of the anchor, depth [R] `counts` on the device, temperature fp32 and seeds
    int64 [R], ids [V'] or None as in gumbel.py. On CUDA two launches a depth, without logits in memory; on a CPU in
    fp32 one call for all.
    """
    if head.fused:
        return _triton().coupled_block(  # type: ignore[no-any-return]
            head, base, part, anchor, start, depth, max(counts), temperature, seeds, ids, stats
        )
    if head.tiles is not None:
        return draft_head_cpu.coupled_block(
            head, base, part, anchor, start, depth, max(counts), temperature, seeds, ids, stats
        )
    return coupled_loop(head, base, part, anchor, start, depth, counts, temperature, seeds, ids, stats)


def coupled_loop(
    head: Head,
    base: Tensor,
    part: Tensor,
    anchor: Tensor,
    start: Tensor,
    depth: Tensor,
    counts: Sequence[int],
    temperature: Tensor,
    seeds: Tensor,
    ids: Tensor | None,
    stats: bool,
    *,
    advance: Advance | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `coupled_block`, with one torch op after another at each depth: head step, product, sum, draw.

    With the unfused `advance` it is the baseline that a fused head is timed against.
    """
    features = torch.zeros(len(counts), max(counts), FEATURES, device=base.device) if stats else None

    def choose(logits: Tensor, rows: Tensor | slice, j: int) -> Tensor:
        rest = (temperature[rows], seeds[rows], start[rows] + (j + 1), ids)
        if features is None:
            return ids_at(ids, gumbel_argmax(logits, *rest))
        winner, features[rows, j] = coupled_stats(logits, *rest)
        return ids_at(ids, winner)

    return walk(head, base, part, anchor, counts, choose, advance), features


def coupled_block_reference(
    kind: str,
    weights: Mapping[str, Tensor],
    hidden: Tensor,
    base: Tensor,
    anchor: Tensor,
    start: Tensor,
    depth: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    ids: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Ids and features of `coupled_block`, one depth of one request after another, in fp64, with unsplit products.

    `weights` holds e of every token as markov_w1.weight.
    """
    w = {name: weight.double() for name, weight in weights.items()}
    (requests, most), width = base.shape[:2], w["markov_w1.weight"].shape[1]
    tokens, features = anchor.new_zeros(requests, most), torch.zeros(requests, most, FEATURES)
    for row in range(requests):
        previous, state = anchor[row], w["markov_w1.weight"].new_zeros(width)
        for j in range(int(depth[row])):
            h, e = hidden[row, j].double(), w["markov_w1.weight"][previous]
            feature = e
            if kind == "gated":
                feature = (w["gate_proj.weight"] @ torch.cat([h, e]) + w["gate_proj.bias"]).sigmoid() * e
            elif kind == "rnn":
                g, c, o = (w["joint_proj.weight"] @ torch.cat([state, e, h]) + w["joint_proj.bias"]).chunk(3)
                state, feature = g.sigmoid() * state + (1 - g.sigmoid()) * c.tanh(), o.tanh()
            elif kind == "deep":
                z = w["hidden_proj.weight"] @ h + w["hidden_proj.bias"] + w["state_proj.weight"] @ state + e
                state = z * z.sigmoid()
                feature = w["feature_proj.weight"] @ state
            logits = (base[row, j].double() + w["markov_w2.weight"] @ feature).float()
            at = slice(row, row + 1)
            rest = (temperature[at], seeds[at], start[at] + (j + 1), ids)
            winner, features[row, j] = coupled_stats_reference(logits[None], *rest)
            tokens[row, j] = previous = ids_at(ids, winner[0])
    return tokens, features


def _triton() -> Any:
    from dsbench.kernels.draft import (
        head_triton as draft_head_triton,  # imports triton, which a machine without a GPU need not have
    )

    return draft_head_triton
