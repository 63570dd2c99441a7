"""A drafter in plain torch over one dense mask, from config and tensors alone: nothing of dsbench is used here.

Shapes: S context rows, G block rows, D hidden, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import torch


def normed(x, gain, eps):
    return gain * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotated(x, positions, theta):
    """x [n, heads, E] turned by position, as complex numbers of its two halves."""
    half = x.shape[-1] // 2
    angle = positions.double()[:, None] * theta ** (-torch.arange(half).double() / half)
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    y = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat([y.real, y.imag], -1).float()


class DenseDrafter:
    """`sizes`: plain field -> value; `attention`: (window or None, causal) of each layer, written out by the test."""

    def __init__(self, sizes, attention, tensors, target):
        self.sizes, self.attention, self.w = sizes, attention, tensors
        self.embedding = tensors.get("embed_tokens.weight", target.embedding)
        self.unembedding = tensors.get("lm_head.weight", target.head)
        if "draft_vocab_ids" in tensors and self.unembedding.shape[0] == sizes["vocab_size"]:
            self.unembedding = self.unembedding[tensors["draft_vocab_ids"].long()]
        mask = sizes.get("mask_token_id")
        self.mask = tensors["mask_embedding"] if mask is None else self.embedding[mask]

    def visible(self, layer, s):
        """[G, S + G]: the context and the block's own rows, position by position."""
        window, causal = self.attention[layer]
        g = self.sizes["block_size"]
        query, key = torch.arange(s, s + g)[:, None], torch.arange(s + g)[None]
        seen = torch.ones(g, s + g, dtype=torch.bool)
        if causal:
            seen &= key <= query
        if window is not None:
            seen &= (query - key < window) & (key - query < window)
        return seen

    def hidden(self, taps, anchor):
        """[G, D] of the block after S = len(taps) committed tokens; taps [S, m D]."""
        z, s, g = self.sizes, taps.shape[0], self.sizes["block_size"]
        eps, h, k, e = z["rms_norm_eps"], z["num_attention_heads"], z["num_key_value_heads"], z["head_dim"]
        context = normed(taps @ self.w["fc.weight"].T, self.w["hidden_norm.weight"], eps)
        x = torch.stack([self.embedding[anchor]] + [self.mask] * (g - 1))
        places = torch.arange(s + g)
        for i in range(z["num_hidden_layers"]):
            w = {n.removeprefix(f"layers.{i}."): t for n, t in self.w.items() if n.startswith(f"layers.{i}.")}
            y = normed(x, w["input_layernorm.weight"], eps)
            rows = torch.cat([context, y])
            q = normed((y @ w["self_attn.q_proj.weight"].T).view(g, h, e), w["self_attn.q_norm.weight"], eps)
            keys = normed((rows @ w["self_attn.k_proj.weight"].T).view(-1, k, e), w["self_attn.k_norm.weight"], eps)
            values = (rows @ w["self_attn.v_proj.weight"].T).view(-1, k, e)
            q, keys = rotated(q, places[s:], z["rope_theta"]), rotated(keys, places, z["rope_theta"])
            seen, mixed = self.visible(i, s), []
            for head in range(h):
                scores = q[:, head] @ keys[:, head * k // h].T / e**0.5
                mixed.append(torch.where(seen, scores, float("-inf")).softmax(-1) @ values[:, head * k // h])
            x = x + torch.cat(mixed, -1) @ w["self_attn.o_proj.weight"].T
            y = normed(x, w["post_attention_layernorm.weight"], eps)
            gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
            x = x + (gate * gate.sigmoid() * up) @ w["mlp.down_proj.weight"].T
        return normed(x, self.w["norm.weight"], eps)

    def slots(self, hidden, previous):
        """Logits [G, V'] and confidence logits [G], slot k after the token previous[k]."""
        rank, kind = self.sizes["markov_rank"], self.sizes.get("markov_head_type", "vanilla")
        w = {n.removeprefix("markov_head."): t for n, t in self.w.items()}
        logits, confidence, state = [], [], torch.zeros(rank)
        for h, token in zip(hidden, previous, strict=True):
            row, seen = self.unembedding @ h, h
            if rank:
                e = w["markov_w1.weight"][token]
                feature = e
                if kind == "gated":
                    feature = (w["gate_proj.weight"] @ torch.cat([h, e]) + w["gate_proj.bias"]).sigmoid() * e
                if kind == "rnn":
                    z = w["joint_proj.weight"] @ torch.cat([state, e, h]) + w["joint_proj.bias"]
                    g = z[:rank].sigmoid()
                    state = g * state + (1 - g) * z[rank : 2 * rank].tanh()
                    feature = z[2 * rank :].tanh()
                row = row + w["markov_w2.weight"] @ feature
                if self.sizes.get("confidence_head_with_markov", True):
                    seen = torch.cat([h, e])
            logits.append(row)
            if self.sizes.get("enable_confidence_head"):
                confidence.append(w["confidence_head.proj.weight"][0] @ seen + w["confidence_head.proj.bias"][0])
            else:
                confidence.append(torch.zeros(()))
        return torch.stack(logits), torch.stack(confidence)
