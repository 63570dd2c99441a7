"""The drafter's confidence heads by event: what they read, that they anticipate nothing, that they change no draft."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from engine_runs import make_requests, run
from tiny import tiny_drafter, tiny_target
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dsbench.kernels.draft import head as draft_head
from dsbench.kernels.draft.stats import coupled_stats_reference, law_stats_reference
from dsbench.kernels.gumbel import gumbel_argmax_reference
from dsbench.runtime import sampling as sampling_module
from dsbench.runtime.drafters.draft import standing_of
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.drafters.heads import head_feature, token_table
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import Purpose, inverse_cdf, keyed_uniforms, sampling_of

TEMPERATURES = (0.8, 0.0, 1.3, 0.0, 0.6)
GAP = slice(-2, None)  # the columns of g and log(g + 0.1)


def block_requests(temperatures=TEMPERATURES, *, seed: int = 100, rounds: int = 1, **sampling) -> list[Request]:
    return [
        Request(
            id=i,
            name=str(i),
            workload="tiny",
            prompt_ids=[5 * i % 64] * (1 + i % 7),
            rounds=rounds,
            sampling=SamplingParams(temperature=t, seed=seed + i, **sampling),
        )
        for i, t in enumerate(temperatures)
    ]


def block_hidden(count: int = len(TEMPERATURES)) -> torch.Tensor:
    return torch.randn(count, 4, 32, generator=torch.Generator().manual_seed(3))


def propose(drafter, requests, *, rule, depth=None, hidden=None):
    """The drafter's proposal with hidden states [R, 4, 32] in place of its backbone's."""
    hidden = block_hidden(len(requests)) if hidden is None else hidden
    drafter.backbone = lambda *_: hidden
    depth = torch.full((len(requests),), 4) if depth is None else torch.tensor(depth)
    pool = SimpleNamespace(table=lambda _: None)
    rows, sampling = standing_of(requests, pool, hidden.device), sampling_of(requests, hidden.device)
    return drafter.propose(rows, sampling, pool, rule=rule, depth=lambda _: depth)


def slots(drafter: DSparkDrafter, requests: list[Request], depth: list[int], rule: str):
    """The sequential head a second time, one slot of one request after the other: (r, j, h, e, logits, law, token)."""
    for r, (request, h) in enumerate(zip(requests, block_hidden(len(requests)), strict=True)):
        sampling, previous, state = (
            sampling_of([request], h.device),
            request.anchor,
            torch.zeros(1, 32 if drafter.shape.head == "deep" else 8),
        )
        for j in range(depth[r]):
            logits, e = drafter.head @ h[j], torch.empty(0)
            if drafter.shape.head != "none":
                e = token_table(drafter.shape.head, drafter.sequential, drafter.embedding)[previous]
                feature, state = head_feature(drafter.shape.head, drafter.sequential, e[None], h[j : j + 1], state)
                logits = logits + drafter.sequential["markov_w2.weight"] @ feature[0]
            position, t = torch.tensor([request.committed + j + 1]), request.sampling.temperature
            hard = F.one_hot(logits.argmax(), len(logits)).float()
            law = (logits / t).softmax(-1) if t > 0 else hard
            if rule != "coupled":
                drawn = inverse_cdf(law[None], keyed_uniforms(sampling, position, Purpose.DRAFT))
            else:
                args = (sampling.temperature, sampling.seed, position, drafter.vocabulary)
                drawn = gumbel_argmax_reference(logits[None], *args)
            previous = int(drafter.vocabulary[drawn])
            yield r, j, h[j], e, logits, law, previous


@pytest.mark.parametrize("depth", [[4] * 5, [2] * 5, [3, 0, 4, 1, 4], [0] * 5], ids=str)
@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("head", ["none", "vanilla", "rnn", "deep"])
def test_without_event_heads_a_block_is_the_plain_loop_over_its_slots(head, rule, depth):
    drafter = tiny_drafter(tiny_target(), head=head, vocab=32)
    requests = block_requests()
    draft = propose(drafter, requests, rule=rule, depth=depth)
    tokens, confidence = torch.zeros(5, 4, dtype=torch.int64), torch.zeros(5, 4)
    laws = torch.zeros(5, max(depth), 32)
    for r, j, h, e, _, law, token in slots(drafter, requests, depth, rule):
        weight, bias = drafter.confidence
        tokens[r, j], laws[r, j], confidence[r, j] = token, law, weight[0] @ torch.cat([h, e]) + bias[0]
    assert torch.equal(draft.tokens, tokens)
    assert torch.allclose(draft.confidence, confidence, atol=1e-4)
    assert draft.depth.tolist() == depth
    assert (draft.probabilities is None) == (rule == "coupled")
    assert draft.probabilities is None or torch.allclose(draft.probabilities, laws, atol=1e-5)
    weight, bias = drafter.confidence_free
    assert torch.allclose(draft.token_free, block_hidden() @ weight[0] + bias[0], atol=1e-4)


@pytest.mark.parametrize("depth", [[4] * 5, [3, 0, 4, 1, 4]], ids=str)
@pytest.mark.parametrize("rule", ["coupled", "residual", "block"])
@pytest.mark.parametrize("head", ["none", "vanilla", "gated", "deep"])
def test_each_request_reads_the_row_of_its_event(head, rule, depth):
    drafter = tiny_drafter(tiny_target(), head=head, vocab=32, events=True)
    requests = block_requests()
    draft = propose(drafter, requests, rule=rule, depth=depth)
    rows = [0 if t == 0 else ("greedy", "coupled", "residual", "block").index(rule) for t in TEMPERATURES]
    rows = [min(row, 2) for row in rows]  # block reads residual's
    confidence = torch.zeros(5, 4)
    for r, j, h, e, logits, _, token in slots(drafter, requests, depth, rule):
        position = torch.tensor([requests[r].committed + j + 1])
        temperature, seed = torch.tensor([TEMPERATURES[r]]), torch.tensor([requests[r].sampling.seed])
        if rule != "coupled":
            features = law_stats_reference(logits[None], temperature)
        else:
            features = coupled_stats_reference(logits[None], temperature, seed, position, drafter.vocabulary)[1]
        x = torch.cat([h, e, features[0]])
        confidence[r, j] = drafter.events.weight[rows[r]] @ x + drafter.events.bias[rows[r]]
        assert int(draft.tokens[r, j]) == token
    assert torch.allclose(draft.confidence, confidence, atol=1e-3)
    head = drafter.events_free
    free = torch.einsum("rgd,rd->rg", block_hidden(), head.weight[rows]) + head.bias[rows][:, None]
    assert torch.allclose(draft.token_free, free, atol=1e-4)


def test_under_residual_no_confidence_sees_the_token_it_judges():
    drafter = tiny_drafter(tiny_target(), events=True)
    hot, hidden = (0.3,) * 64, block_hidden(64)
    one, two = (propose(drafter, block_requests(hot, rounds=n), rule="residual", hidden=hidden) for n in (1, 2))
    changed = one.tokens != two.tokens
    assert changed[:, 0].sum() > 10
    assert torch.equal(one.confidence[:, 0], two.confidence[:, 0])
    for k in (1, 2, 3):  # the same token before: the same confidence, whatever is drawn; another: another
        same_before = ~changed[:, k - 1]
        assert (changed[:, k] & same_before).sum() > 3
        assert torch.equal(one.confidence[same_before, k], two.confidence[same_before, k])
        assert (one.confidence[~same_before, k] != two.confidence[~same_before, k]).all()


def test_under_coupled_the_confidence_reads_the_perturbed_gap():
    drafter = tiny_drafter(tiny_target(), events=True)
    hot = (1.0,) * 16
    one, two = (propose(drafter, block_requests(hot, seed=s), rule="coupled") for s in (1, 500))
    assert (one.confidence[:, 0] != two.confidence[:, 0]).all()
    drafter.events.weight[:, GAP] = 0
    one, two = (propose(drafter, block_requests(hot, seed=s), rule="coupled") for s in (1, 500))
    assert torch.equal(one.confidence[:, 0], two.confidence[:, 0])


@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_the_law_is_the_one_that_top_k_leaves_but_the_greedy_event_knows_no_top_k(rule):
    drafter = tiny_drafter(tiny_target(), events=True)
    wide = propose(drafter, block_requests(), rule=rule)
    narrow = propose(drafter, block_requests(top_k=2), rule=rule)
    greedy = torch.tensor(TEMPERATURES) == 0
    assert torch.allclose(wide.confidence[greedy], narrow.confidence[greedy], atol=1e-5)  # by other products
    assert (wide.confidence[~greedy, 0] != narrow.confidence[~greedy, 0]).all()


class HostWaits(TorchDispatchMode):
    """Names the ops that would make a host wait for a device, or take numbers from it: none can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        waits = name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::lift_fresh")
        if name in ("aten::index", "aten::index_put_", "aten::index_put"):
            waits = any(index is not None and index.dtype == torch.bool for index in args[1])
        if waits:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_a_block_of_one_depth_is_drawn_without_the_host(rule, events, monkeypatch):
    """With the ops of a GPU, which are the references."""
    references = {
        "gumbel_argmax": gumbel_argmax_reference,
        "coupled_stats": coupled_stats_reference,
        "law_stats": law_stats_reference,
    }
    for name, reference in references.items():
        for module in (sampling_module, draft_head):
            monkeypatch.setattr(module, name, reference, raising=False)
    drafter = tiny_drafter(tiny_target(), head="gated", events=events)
    requests, hidden = block_requests(), block_hidden()
    sampling, free = sampling_of(requests, hidden.device), torch.zeros(5, 4)
    with torch.inference_mode():
        for depth, waits in ((torch.tensor([3] * 5), False), (torch.tensor([1, 2, 3, 4, 4]), True)):
            with HostWaits() as host:
                drafter.draw(hidden, free, *(free[:, 0].long(),) * 2, sampling, rule=rule, depth=depth)
            assert bool(host.seen) == waits, host.seen


@pytest.mark.parametrize(
    ("mode", "rule", "lag"),
    [("compact", "coupled", 0), ("cap-accept", "coupled", 0), ("static", "residual", 0), ("no-trim", "residual", 0)],
)
def test_event_heads_change_no_text(mode, rule, lag):
    """Under residual for windows that weigh no confidence; under coupled for any."""
    target = tiny_target()
    unconditioned, events = make_requests(5, max_tokens=16), make_requests(5, max_tokens=16)
    one = run(mode, unconditioned, batch=3, rule=rule, lag=lag, target=target)
    two = run(mode, events, batch=3, rule=rule, lag=lag, target=target, drafter=tiny_drafter(target, events=True))
    assert [r.output for r in events] == [r.output for r in unconditioned]
    assert (
        two.rounds[0].logits != one.rounds[0].logits
        and two.rounds[0].token_free_logits != one.rounds[0].token_free_logits
    )
