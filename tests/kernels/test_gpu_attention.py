"""Paged attention on a CUDA device at real sizes: numbers, bits, and one captured pass for any lengths."""

from __future__ import annotations

import pytest
import torch
from attention_tools import check_alike, padded, picked

from dsbench.kernels.attention import paged_attention, paged_attention_reference
from dsbench.kernels.check.registry import registry

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

MODELS = [  # head width, query heads a group, key-value heads, tokens a page
    (64, 3, 3, 16),
    (64, 3, 3, 64),
    (128, 4, 8, 64),
    (128, 2, 8, 16),
    (128, 8, 4, 64),
]
LENGTHS = [  # rows, context, causal, window
    ((8, 1, 5, 0, 3, 7), (1000, 17, 255, 0, 2048, 509), True, None),
    ((1,) * 16, tuple(range(0, 3200, 200)), True, None),
    ((300, 8), (700, 40), True, None),
    ((7, 7, 7), (400, 3, 1300), False, 512),
    ((8, 3), (1000, 250), True, 300),
]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What a kernel is to fill starts as NaN."""
    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *size, **kwargs: empty(*size, **kwargs).fill_(float("nan")))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: like(*args, **kwargs).fill_(float("nan")))


def made(model, lengths, dtype=torch.bfloat16):
    (width, group, kv_heads, page), (counts, context, causal, window) = model, lengths
    (op,) = (op for op in registry() if op.name == "paged_attention")
    case = (counts, context, group, kv_heads, width, causal, window)
    x = op.make_inputs(torch.Generator().manual_seed(1), case, page=page)
    x = {name: t.cuda() if isinstance(t, torch.Tensor) else t for name, t in x.items()}
    return x | {name: x[name].to(dtype) for name in ("q", "keys", "values")}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_attention_is_the_reference_and_a_row_has_its_own_bits(model, lengths, monkeypatch):
    x = made(model, lengths)
    bits = check_alike(paged_attention, x)
    torch.testing.assert_close(bits.float(), paged_attention_reference(**x).float(), atol=2e-2, rtol=2e-2)
    for whole_from in (0, 1 << 30):
        monkeypatch.setattr("dsbench.kernels.attention_triton.WHOLE_FROM", whole_from)
        assert torch.equal(paged_attention(**x), bits), "chunks walked, or spread over programs"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("model", MODELS[1:3], ids=str)
def test_bits_in_other_precisions(model, dtype):
    check_alike(paged_attention, made(model, LENGTHS[0], dtype))


@pytest.mark.parametrize("model", MODELS[1:3], ids=str)
def test_a_row_among_very_many_has_the_bits_that_it_has_alone(model):
    """So many that programs walk their chunks; alone a request has a program a chunk."""
    x = made(model, (((8, 1, 3) * 3), (300, 1000, 511, 0, 257, 255, 256, 1100, 5), True, None))
    crowd, rows = picked(x, [(r, 0, n) for r, n in enumerate(x["cu_rows"].diff().tolist())] * 60)
    among = paged_attention(**crowd, most_rows=8)
    assert torch.equal(among, paged_attention(**x, most_rows=8)[rows])
    assert torch.equal(among[:8], paged_attention(**picked(x, [(0, 0, 8)])[0]))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_one_capture_serves_any_lengths(model):
    """Rows and context grow and shrink between replays, and requests leave; nothing of a last replay may remain."""
    x = made(model, ((8,) * 6, (1200, 40, 511, 0, 300, 257), True, None))
    parts = [
        [(r, 0, 8) for r in range(6)],
        [(2, 3, 1)],
        [(5, 0, 8), (0, 7, 1), (3, 0, 2)],
        [(r, r, 1) for r in range(6)],
        [(0, 0, 8), (4, 2, 6)],
    ]
    wanted = []
    for chosen in parts:
        mine, rows = picked(x, chosen)
        wanted.append((padded(mine, 8 - len(chosen), 64 - rows.shape[0]), paged_attention(**mine)))
    live = {name: t.clone() if isinstance(t, torch.Tensor) else t for name, t in wanted[0][0].items()}
    torch.cuda.set_sync_debug_mode("error")
    try:
        paged_attention(**live, most_rows=8)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = paged_attention(**live, most_rows=8)
    for inputs, bits in (*wanted, *wanted[::-1]):
        for name in ("q", "pages", "cu_rows", "context"):
            live[name].copy_(inputs[name])
        graph.replay()
        assert torch.equal(out[: bits.shape[0]], bits)
        assert out[bits.shape[0] :].isnan().all(), "rows of no request were written"
