"""On SmolLM2-135M-Instruct: parity with an independent implementation, the tokenizer, one text in every arm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsbench.deploy.engines import Engines
from dsbench.profiles.cost import Box, CostTable
from dsbench.profiles.curve import Curve
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.catalogue import default_home, model_folder
from dsbench.sweep.generate import build_requests, run_requests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (model_folder("smollm2-135m", default_home()) / "config.json").exists(), reason="run `dsbench models pull`"
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def deployment():
    from dsbench.deploy.deployment import deploy
    from dsbench.settings import RunConfig

    return deploy(RunConfig(dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def reference():
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(model_folder("smollm2-135m", default_home())).eval()


def logits_of(target, ids: list[int]) -> torch.Tensor:
    """All logits of one sequence through pages, in two chunks."""
    shape = target.shape
    layers = ((shape.kv_heads, shape.head_width),) * shape.layers
    pool = StatePool(PoolShape(layers=layers, page=16, pages=40, table=40), target.device, target.dtype, shuffle_seed=3)
    assert pool.open(0, len(ids))
    pool.grow(0, len(ids))
    out = []
    for first, last in ((0, len(ids) // 2), (len(ids) // 2, len(ids))):
        context = torch.tensor([first], dtype=torch.int32)
        cu_rows, index, positions = ragged_positions(context, torch.tensor([last - first]))
        batch = Batch(
            ids=torch.tensor(ids[first:last]),
            positions=positions,
            cu_rows=cu_rows,
            context=context,
            request=index,
            pages=pool.table([0]),
        )
        out.append(target.forward(batch, pool)[0])
    return torch.cat(out)


@torch.inference_mode()
def test_logits_equal_transformers(deployment, reference):
    prompts = ("math", "chat", "code", "poetry")
    for name in prompts:
        request = build_requests(deployment, name, limit=1, seed=1, sampling={"max_tokens": 8}, home=deployment.home)[0]
        expected = reference(torch.tensor([request.prompt_ids])).logits[0]
        assert (logits_of(deployment.target.model, request.prompt_ids) - expected).abs().max() < 1e-3


@torch.inference_mode()
def test_greedy_tokens_equal_transformers_on_16_prompts(deployment, reference):
    requests = [
        r
        for name in ("math", "chat", "code", "poetry")
        for r in build_requests(
            deployment, name, limit=4, seed=1, sampling={"max_tokens": 64, "temperature": 0.0}, home=deployment.home
        )
    ]
    for index, request in enumerate(requests):
        request.id = index
    run_requests(Engines(deployment), parse_arm("none"), EngineConfig(), None, requests, 16)
    for request in requests:
        assert len(request.output) == 64 or request.output[-1] == 2, "a text ends at its limit or its end token"
        read = torch.tensor([request.prompt_ids + request.output[:-1]])
        best = reference(read).logits[0].argmax(-1)  # all steps of a greedy text at once, each after ours before it
        assert request.output == best[len(request.prompt_ids) - 1 :].tolist()


def test_tokenizer_round_trips(deployment):
    tokenizer = deployment.target.tokenizer
    texts = [
        "plain text",
        "  leading and trailing  ",
        "tabs\tand\n\nnewlines \r\n",
        "naïve café — “quotes” … ½ ①②",
        "日本語と中文 العربية",
        "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji",
        "1234567890 3.14159",
        "\u200b\u00a0\ufeff",
        "a" * 300,
        "x=1;y=2&&z|=3<<4",
        "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x ** 2}  # comment\n",
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def a_table() -> CostTable:
    return CostTable(
        bias=0.04,
        alpha=Curve((1, 8), (0.0, 0.01)),
        theta=Curve((1, 64), (0.0, 0.15)),
        tiers=None,
        box=Box(requests=(1, 8), rows=(1, 64), context=(1, 10_000)),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_arm_writes_the_same_text(deployment, temperature):
    """A short form of the closing check (32 prompts): 8 prompts, 20 tokens. fp32 ties are explained, not tolerated."""

    def run(mode: str, batch: int) -> list[list[int]]:
        sampling = {"max_tokens": 20, "temperature": temperature}
        requests = [
            r
            for name in ("math", "poetry")
            for r in build_requests(deployment, name, limit=4, seed=2, sampling=sampling, home=deployment.home)
        ]
        for index, request in enumerate(requests):
            request.id = index
        run_requests(Engines(deployment), parse_arm(mode), EngineConfig(), a_table(), requests, batch)
        return [r.output for r in requests]

    wanted = run("none", 8)
    for mode, batch in (("static", 3), ("compact", 8), ("compact", 1), ("cap-accept", 3), ("no-trim", 8)):
        assert run(mode, batch) == wanted, f"{mode} at batch {batch} wrote another text"


def test_the_shipped_drafter_fits_and_helps(deployment):
    sampling = {"max_tokens": 32, "temperature": 0.0}
    requests = build_requests(deployment, "math", limit=8, seed=3, sampling=sampling, home=deployment.home)
    engine = run_requests(Engines(deployment), parse_arm("static"), EngineConfig(), None, requests, 8)
    tau = sum(r.delivered for r in engine.rounds) / len(engine.rounds)
    assert tau > 1.8, f"accepted length {tau:.2f}"


def test_shipped_files_are_small():
    import dsbench.profiles

    files = list(Path(dsbench.profiles.__path__[0]).resolve().rglob("*.safetensors"))
    assert files and all(f.stat().st_size <= 16 * 2**20 for f in files)
    assert sum(f.stat().st_size for f in files) <= 32 * 2**20
