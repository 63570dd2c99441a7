"""Sampling many answers from a dense target: a static cache, graphs on CUDA, finished rows compacted away.

Prompts are taken in order of length, so that a wave of rows shares its positions nearly; every CHUNK steps the
finished rows leave and the rest close up. Needs no pages and knows nothing of drafters.
Shapes: n live rows (padded), W cache width, K key-value heads, E head width, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.rope import rotate
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.training.forward import masked_attention, norm, padded_forward, split_heads
from dsbench.runtime.training.memory import free_memory

CHUNK = 32  # steps between two checks for finished rows
BUCKET = 64  # cache lengths are rounded up to this, one graph each
PREFILL_TOKENS = 65_536  # a prefill pass
LOG_EVERY = 10.0  # seconds between two lines of the log within a wave
SHARE = {"cuda": 0.7, "cpu": 0.5}  # of free memory, for caches and logits; a CPU's passes need some of the rest

Log = Callable[[dict[str, Any]], None]


@torch.inference_mode()
def generate(
    target: DecoderTarget,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    eos: frozenset[int],
    limit: int,
    width: int,
    seed: int,
    batch: int,
    log: Log,
    stage: str = "generate",
) -> list[np.ndarray]:
    """New tokens (int32, EOS included where reached) per prompt: at most `limit`, and prompt plus answer <= `width`.

    Temperature 0 is greedy. Seeds torch's default generators, which CUDA graphs draw from.
    """
    assert len(prompts) == len(temperatures), "one temperature a prompt"
    assert all(0 < len(p) < width for p in prompts), f"prompts must hold 1..{width - 1} tokens"
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    decoder = Decoder(target, eos, fitting_batch(target, min(batch, len(prompts)), width), width, limit)
    answers: list[np.ndarray] = [np.empty(0, np.int32)] * len(prompts)
    began, logged, done, tokens = time.perf_counter(), 0.0, 0, 0
    log({"stage": stage, "done": 0, "of": len(order), "together": decoder.batch})
    for first in range(0, len(order), decoder.batch):
        wave = order[first : first + decoder.batch]
        decoder.start([prompts[i] for i in wave], [temperatures[i] for i in wave])
        for finished in decoder.run():
            for owner, answer in finished:
                answers[wave[owner]] = answer
                tokens += len(answer)
            done, now = done + len(finished), time.perf_counter() - began
            if done == first + len(wave) or now - logged >= LOG_EVERY:
                logged = now
                log({"stage": stage, "done": done, "of": len(order), "tokens": tokens, "seconds": round(now, 2)})
    return answers


def fitting_batch(target: DecoderTarget, batch: int, width: int) -> int:
    """`batch`, or the rows whose cache and logits fit into a SHARE of the device's free memory; at least one."""
    shape, size = target.shape, target.dtype.itemsize
    row = 2 * shape.layers * shape.kv_heads * shape.head_width * size * width + 16 * shape.vocab
    rows = int(SHARE[target.device.type] * free_memory(target.device)) // row
    return max(1, min(batch, rows))


class Decoder:
    """One wave of rows in a static cache. `start` fills it, `run` yields each row's answer once it is done."""

    def __init__(self, target: DecoderTarget, eos: frozenset[int], batch: int, width: int, limit: int) -> None:
        shape, device = target.shape, target.device
        self.target, self.batch, self.width, self.limit = target, batch, width, limit
        self.quantum = 512 if device.type == "cuda" else 1
        room = -(-width // BUCKET) * BUCKET  # masks span full buckets: attention needs aligned ones
        size = (shape.layers, batch, shape.kv_heads, room, shape.head_width)
        self.keys = torch.zeros(size, dtype=target.dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.eos = torch.tensor(sorted(eos), dtype=torch.int64, device=device)

        def row(dtype: torch.dtype) -> Tensor:
            return torch.zeros(batch, dtype=dtype, device=device)

        self.token, self.position, self.count = row(torch.int64), row(torch.int64), row(torch.int64)
        self.allowed, self.owner, self.done = row(torch.int64), row(torch.int64), row(torch.bool)
        self.scale, self.noise = row(torch.float32), row(torch.float32)  # 1 / temperature; 0 where greedy
        self.out = torch.zeros(
            batch, limit + 1, dtype=torch.int64, device=device
        )  # the last column takes done rows' writes
        self.rows = torch.arange(batch, device=device)
        self.columns = torch.arange(room, device=device)
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def start(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float]) -> None:
        n, device = len(prompts), self.target.device
        lengths = torch.tensor([len(p) for p in prompts], device=device)
        warmth = torch.tensor(temperatures, dtype=torch.float32, device=device)
        self.done.fill_(True)
        self.done[:n] = False
        self.count.zero_()
        self.owner[:n] = self.rows[:n]
        self.position[:n] = lengths - 1
        self.token[:n] = torch.tensor([p[-1] for p in prompts], device=device)
        self.allowed[:n] = (self.width - lengths).clamp(max=self.limit)
        self.scale[:n] = torch.where(warmth > 0, 1 / warmth, 1.0)
        self.noise[:n] = (warmth > 0).float()
        self._prefill(prompts)

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Keys and values of full prompts; the first step feeds the last prompt token again, overwriting its entry."""
        longest = max(len(p) for p in prompts)
        padded = np.zeros((len(prompts), longest), np.int64)
        for i, prompt in enumerate(prompts):
            padded[i, : len(prompt)] = prompt
        chunk = max(1, PREFILL_TOKENS // longest)
        for first in range(0, len(prompts), chunk):
            ids = torch.from_numpy(padded[first : first + chunk]).to(self.target.device)
            last = first + ids.shape[0]

            def keep(layer: int, k: Tensor, v: Tensor, first: int = first, last: int = last) -> None:
                self.keys[layer, first:last, :, :longest] = k
                self.values[layer, first:last, :, :longest] = v

            padded_forward(self.target, ids, keep=keep)

    def run(self) -> Iterator[list[tuple[int, np.ndarray]]]:
        """(index in the wave, answer) of the rows that finished in each CHUNK of steps, maybe none, until all have."""
        live = int((~self.done).sum())
        n = self._padded(live)
        while live:
            reach = int(self.position[:live].max()) + CHUNK
            bucket = min(self.keys.shape[3], -(-reach // BUCKET) * BUCKET)
            with masked_attention(self.target.device):
                self._steps(n, bucket)
            yield self._harvest(live)
            live, n = self._compact(live, n)

    def _padded(self, live: int) -> int:
        return min(self.batch, -(-live // self.quantum) * self.quantum)

    def _steps(self, n: int, bucket: int) -> None:
        if self.memory is None:
            for _ in range(CHUNK):
                self._step(n, bucket)
            return
        left = CHUNK
        if (n, bucket) not in self.graphs:
            self._step(n, bucket)  # a real step, and the warm-up that a capture needs
            left -= 1
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.memory):
                self._step(n, bucket)
            self.graphs[n, bucket] = graph
        graph = self.graphs[n, bucket]
        for _ in range(left):
            graph.replay()

    def _harvest(self, live: int) -> list[tuple[int, np.ndarray]]:
        gone = self.done[:live].nonzero().squeeze(1)
        owner, count = self.owner[gone].tolist(), self.count[gone].tolist()
        out = self.out[gone].to(torch.int32).cpu().numpy()
        return [(o, out[i, :c].copy()) for i, (o, c) in enumerate(zip(owner, count, strict=True))]

    def _compact(self, live: int, n: int) -> tuple[int, int]:
        """Compacts the unfinished rows; returns their number and its padded size."""
        going = (~self.done[:live]).nonzero().squeeze(1)
        left = going.shape[0]
        if left == live:
            return live, n
        for row in (self.token, self.position, self.count, self.allowed, self.owner, self.scale, self.noise, self.out):
            row[:left] = row[going]
        self.done[:left] = False
        self.done[left:] = True
        if left:
            used = min(self.width, int(self.position[:left].max()) + 1)
            for layer in range(self.target.shape.layers):
                self.keys[layer, :left, :, :used] = self.keys[layer, :, :, :used][going]
                self.values[layer, :left, :, :used] = self.values[layer, :, :, :used][going]
        return left, self._padded(left)

    def _step(self, n: int, bucket: int) -> None:
        """One token for rows 0..n-1, all on the device: no synchronisation, so that it can be captured."""
        target, shape = self.target, self.target.shape
        rows, position, done = self.rows[:n], self.position[:n], self.done[:n]
        cos, sin = target.cos[position], target.sin[position]
        hidden = (self.columns[:bucket] > position[:, None])[:, None, None]  # [n, 1, 1, bucket]
        bias = torch.zeros(n, 1, shape.heads // shape.kv_heads, bucket, dtype=target.dtype, device=target.device)
        bias = bias.masked_fill(hidden, float("-inf"))
        x = target.embedding[self.token[:n]]
        for index, layer in enumerate(target.layers):
            q, k, v = split_heads(F.linear(norm(x, layer.input_norm, shape.norm_eps), layer.qkv.weight), shape, layer)
            keys, values = self.keys[index], self.values[index]
            keys[rows, :, position] = rotate(k, cos, sin)
            values[rows, :, position] = v
            q = rotate(q, cos, sin).view(n, shape.kv_heads, -1, shape.head_width)  # the group's queries as rows
            mixed = F.scaled_dot_product_attention(q, keys[:n, :, :bucket], values[:n, :, :bucket], attn_mask=bias)
            x = torch.addmm(x, mixed.reshape(n, -1), layer.output.weight.t())
            gate, up = F.linear(norm(x, layer.mlp_norm, shape.norm_eps), layer.gate_up.weight).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.weight.t())
        logits = F.linear(norm(x, target.norm, shape.norm_eps), target.head)
        chosen = _choose(logits, self.scale[:n], self.noise[:n])
        column = self.count[:n].masked_fill(done, self.limit)
        self.out[:n].scatter_(1, column[:, None], chosen[:, None])
        live = ~done
        self.token[:n].copy_(torch.where(live, chosen, self.token[:n]))
        self.count[:n].add_(live)
        position.add_(live)
        over = (chosen[:, None] == self.eos).any(dim=1) | (self.count[:n] >= self.allowed[:n])
        done.logical_or_(over)


def _choose(logits: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """A token [n] per row by the Gumbel trick: argmax of logits [n, V] * scale - noise * log(Exp(1) draw), in fp32."""
    draw = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).exponential_()
    draw = draw.clamp_(min=1e-30).log_()  # a draw of 0 would make a NaN of the greedy rows' zero weight
    return torch.addcmul(draw.mul_(-noise[:, None]), logits.float(), scale[:, None]).argmax(dim=-1)
