"""The chain drafter: every draft of an engine's run against a dense forward written a second time, and what is refused.

The reference is plain fp64 torch over whole sequences with an explicit mask: target layers and chain layer alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from engine_runs import make_requests, run
from tiny import tiny_mtp, tiny_mtp_shape, tiny_mtp_weights, tiny_shape, tiny_target, tiny_target_weights, write_mtp

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.drafters.mtp import MtpDrafter
from dsbench.runtime.sampling import Purpose, Sampling, inverse_cdf, keyed_uniforms

HOT = 3.0  # laws flat enough that rounds end with every number of accepted drafts


def norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turn(x, theta):
    """Rotary embedding of x [n, heads, E] at positions 0..n-1, as a product of complex numbers."""
    n, _, width = x.shape
    angle = torch.arange(n).double()[:, None] * theta ** (-torch.arange(0, width, 2).double() / width)
    spun = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([spun.real, spun.imag], dim=-1)


def decoder_layer(x, w, prefix, shape):
    """One causal layer over rows 0..n-1, x [n, D]."""
    n, width, eps = x.shape[0], shape.head_width, shape.norm_eps
    h = norm(x, w[prefix + "input_layernorm.weight"], eps)
    q, k, v = (
        (h @ w[prefix + f"self_attn.{name}_proj.weight"].T).view(n, heads, width)
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
    )
    if shape.qk_norm:
        q, k = (norm(y, w[prefix + f"self_attn.{s}_norm.weight"], eps) for y, s in ((q, "q"), (k, "k")))
    q, k = turn(q, shape.rope_theta), turn(k, shape.rope_theta)
    k, v = (y.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for y in (k, v))
    scores = torch.einsum("qhe,khe->hqk", q, k) / width**0.5
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
    mixed = torch.einsum("hqk,khe->qhe", scores.softmax(-1), v).reshape(n, -1)
    x = x + mixed @ w[prefix + "self_attn.o_proj.weight"].T
    h = norm(x, w[prefix + "post_attention_layernorm.weight"], eps)
    gate, up = (h @ w[prefix + f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return x + (gate / (1 + (-gate).exp()) * up) @ w[prefix + "mlp.down_proj.weight"].T


class Reference:
    """The chain over whole texts. `vocab`: size of the draft vocabulary."""

    def __init__(self, vocab: int) -> None:
        self.target = {k: x.double() for k, x in tiny_target_weights().items()}
        self.shape = tiny_mtp_shape(vocab=vocab).layer
        self.weights = {k: x.double() for k, x in tiny_mtp_weights(tiny_mtp_shape(vocab=vocab)).items()}
        self.ids = self.weights["draft_vocab_ids"].long() if vocab < 64 else torch.arange(64)

    def states(self, ids):
        """The target's hidden states [n, D] after its final norm."""
        shape, x = tiny_shape(), self.target["model.embed_tokens.weight"][ids]
        for i in range(shape.layers):
            x = decoder_layer(x, self.target, f"model.layers.{i}.", shape)
        return norm(x, self.target["model.norm.weight"], shape.norm_eps)

    def chain(self, text, drafts):
        """Logits [V'] and confidence logit of each step after `text` (its last token the anchor), along `drafts`."""
        w, head = self.weights, self.target["model.embed_tokens.weight"]  # tied
        previous = torch.cat([torch.zeros(1, 32).double(), self.states(text[:-1])])
        ids, steps = list(text), []
        for token in drafts:
            embedded = norm(head[ids], w["embed_norm.weight"], self.shape.norm_eps)
            rows = torch.cat([previous, embedded], dim=-1) @ w["fc.weight"].T
            m = norm(decoder_layer(rows, w, "layers.0.", self.shape), w["norm.weight"], self.shape.norm_eps)[-1]
            confidence = w["confidence_head.proj.weight"][0] @ m + w["confidence_head.proj.bias"][0]
            steps.append((head[self.ids] @ m, confidence))
            previous, ids = torch.cat([previous, m[None]]), [*ids, token]
        return steps


@dataclass
class Round:
    texts: list[list[int]]
    sampling: Sampling
    draft: Draft


def recorded(drafter: MtpDrafter, requests, depths=None) -> list[Round]:
    """Files what the drafter proposes for `requests`, told apart by their seeds.

    `depths` (round, request id) -> depth: what is filed goes so deep; the run goes on with drafts of the arm's depth.
    """
    rounds: list[Round] = []
    propose, by_seed = drafter.propose, {r.sampling.seed: r for r in requests}

    def filed(rows, sampling, pool, *, rule, depth):
        live = [by_seed[seed] for seed in sampling.seed.tolist()]
        assert rows.start.tolist() == [r.committed for r in live]
        kept = sampling.rows(torch.arange(len(live)))  # the slots move on
        texts, own = [r.prompt_ids + r.output for r in live], depth
        if depths is not None:
            wanted = torch.tensor([depths(len(rounds), r.id) for r in live])
            own = lambda free: wanted  # noqa: E731
        draft = propose(rows, sampling, pool, rule=rule, depth=own)
        rounds.append(Round(texts, kept, draft))
        return draft if depths is None else propose(rows, sampling, pool, rule=rule, depth=depth)

    drafter.propose = filed
    return rounds


def compare(rounds: list[Round], reference: Reference) -> int:
    """Each drafted slot's law, confidence and token against the reference; returns how many were compared."""
    compared = 0
    for r in rounds:
        for row, text in enumerate(r.texts):
            depth = int(r.draft.depth[row])
            tokens = r.draft.tokens[row].tolist()
            mine = r.sampling.rows(torch.tensor([row]))
            for j, (logits, confidence) in enumerate(reference.chain(text, tokens[:depth])):
                law = r.draft.probabilities[row, j]
                assert (law.log() - (logits / HOT).log_softmax(-1)).abs().max() < 1e-4, (len(text), j)
                assert abs(r.draft.confidence[row, j] - confidence) < 1e-4
                u = keyed_uniforms(mine, torch.tensor([len(text) + j]), Purpose.DRAFT)
                assert tokens[j] == int(reference.ids[inverse_cdf(law[None], u)])
                compared += 1
            if depth:
                assert r.draft.token_free[row, 0] == r.draft.confidence[row, 0]
            assert not r.draft.token_free[row, 1:].any(), "nothing is known of later slots before they are run"
            assert not any(tokens[depth:]) and not r.draft.confidence[row, max(depth, 1) :].any()
    return compared


@pytest.mark.parametrize("vocab", [64, 16])
def test_every_draft_of_a_run_equals_a_dense_forward(vocab):
    """Prompts in chunks of 7 rows over pages of 4; rounds that accept none, some and all of three drafts."""
    drafter = tiny_mtp(tiny_target(), vocab=vocab)
    requests = make_requests(4, temperature=HOT)
    rounds = recorded(drafter, requests)
    engine = run("mtp:3", requests, batch=3, rule="residual", drafter=drafter)
    assert {r.accepted for r in engine.rounds} == {0, 1, 2, 3}
    assert compare(rounds, Reference(vocab)) == 3 * len(engine.rounds)


def test_ragged_depths_stop_each_chain_at_its_own():
    drafter = tiny_mtp(tiny_target())
    requests = make_requests(4, temperature=HOT)
    rounds = recorded(drafter, requests, depths=lambda number, request: (number + request) % 4)
    run("mtp:3", requests, batch=4, rule="block", drafter=drafter)
    drafted = [d for r in rounds for d in r.draft.depth.tolist()]
    assert set(drafted) == {0, 1, 2, 3}
    assert any(len(set(r.draft.depth.tolist())) > 2 for r in rounds)
    assert compare(rounds, Reference(64)) == sum(drafted)


@pytest.mark.parametrize("temperature", [0.0, 1.0, HOT])
def test_coupled_mtp_writes_the_text_of_plain_decoding(temperature):
    wanted = make_requests(5, temperature=temperature)
    run("none", wanted, batch=5)
    for mode in ("mtp:1", "mtp:3"):
        requests = make_requests(5, temperature=temperature)
        engine = run(mode, requests, batch=3)
        assert [r.output for r in requests] == [r.output for r in wanted]
        steps = int(mode[-1])
        limit = {r.id: len(r.output) for r in requests}
        assert all(r.verified == min(steps, limit[r.request] - r.output_index - 1) for r in engine.rounds)
        assert all(len(r.drafts) == steps for r in engine.rounds)
        assert all(s.tier == s.requests * (steps + 1) for s in engine.steps)
        assert temperature < 1 or any(r.accepted == steps for r in engine.rounds), "nothing was ever accepted"


def test_a_chain_may_be_longer_than_it_was_trained():
    drafter = tiny_mtp(tiny_target(), block=5)
    requests = make_requests(2, temperature=HOT, max_tokens=12)
    rounds = recorded(drafter, requests)
    engine = run("mtp:5", requests, batch=2, rule="residual", drafter=drafter)
    assert compare(rounds, Reference(64)) == 5 * len(engine.rounds)


@pytest.mark.parametrize("vocab", [64, 16])
def test_a_checkpoint_survives_the_disk(vocab, tmp_path):
    target = tiny_target()
    loaded = load_drafter(write_mtp(tmp_path / "chain", vocab=vocab), target)
    assert isinstance(loaded, MtpDrafter) and loaded.block == 3 and len(loaded.digest) == 16
    both = []
    for drafter in (loaded, tiny_mtp(target, vocab=vocab)):
        requests = make_requests(2, max_tokens=8)
        rounds = recorded(drafter, requests)
        run("mtp:3", requests, batch=2, target=target, drafter=drafter)
        both.append([r.draft for r in rounds])
    for mine, other in zip(*both, strict=True):
        assert torch.equal(mine.tokens, other.tokens)
        torch.testing.assert_close(mine.confidence, other.confidence, atol=1e-5, rtol=0)  # weights may lie unaligned


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"lacks": "block_size"}, UsageError, "lacks the field block_size"),
        ({"lacks": "head_dim"}, UsageError, "lacks the field head_dim"),
        ({"block_size": 0}, UsageError, "block_size must be >= 1"),
        ({"hidden_size": "wide"}, UsageError, "hidden_size must be an integer, got 'wide'"),
        ({"num_hidden_layers": 2}, EnvironmentRefused, "num_hidden_layers = 2"),
        ({"hidden_size": 31}, EnvironmentRefused, "hidden_size = 31 must be even"),
        ({"rope_scaling": {"rope_type": "yarn"}}, EnvironmentRefused, "yarn"),
        ({"lacks": "fc.weight"}, UsageError, "lacks the tensor fc.weight"),
        ({"lacks": "confidence_head.proj.bias"}, UsageError, "confidence_head.proj.bias"),
        ({"lacks": "layers.0.self_attn.q_norm.weight"}, UsageError, "layers.0.self_attn.q_norm.weight"),
        ({"hidden_size": 64}, UsageError, "fc.weight has shape"),
        ({"intermediate_size": 40}, UsageError, "mlp.gate_proj.weight has shape"),
        ({"vocab": 16, "lacks": "draft_vocab_ids"}, UsageError, "draft_vocab_ids"),
        ({"vocab": 16, "draft_vocab_size": 8}, UsageError, "draft_vocab_ids has shape"),
        ({"vocab": 16, "vocab_size": 32}, UsageError, "draft_vocab_ids reach outside"),
        ({"hidden_act": "x"}, EnvironmentRefused, "hidden_act = 'x'"),
        ({"attention_bias": True}, EnvironmentRefused, "attention_bias = True"),
        ({"enable_confidence_head": "x"}, UsageError, "enable_confidence_head must be true or false"),
        ({"block_size": 1.5}, UsageError, "block_size must be an integer, got 1.5"),
        ({"block_size": 65}, UsageError, "block_size must be <= 64"),
        ({"num_attention_heads": math.inf}, UsageError, "num_attention_heads must be an integer"),
        ({"vocab_size": 10**30}, UsageError, "vocab_size must be <= "),
        ({"rms_norm_eps": 0}, UsageError, "rms_norm_eps must be above 0 and finite"),
        ({"rope_theta": math.nan}, UsageError, "rope_theta must be above 0 and finite"),
        ({"architectures": 5}, UsageError, "architectures must be a list of names, got 5"),
        ({"architectures": ["DsbenchMTP", 5]}, UsageError, "architectures must be a list of names"),
        ({"num_target_layers": 5}, EnvironmentRefused, "num_target_layers is 5, the target's 4"),
        ({"holds": {"extra.weight": torch.ones(3)}}, UsageError, "holds the tensor extra.weight"),
        ({"holds": {"norm.weight": torch.full((32,), math.nan)}}, UsageError, "norm.weight holds a NaN"),
        ({"holds": {"norm.weight": torch.ones(32).int()}}, UsageError, "norm.weight holds int32"),
        (
            {"vocab": 16, "holds": {"draft_vocab_ids": torch.zeros(16).int()}},
            UsageError,
            "draft_vocab_ids must increase",
        ),
        ({"vocab_size": 128, "draft_vocab_size": 128}, EnvironmentRefused, "vocab_size is 128, the target's 64"),
        ({"target_digest": "0123"}, EnvironmentRefused, "trained for target 0123"),
    ],
)
def test_a_checkpoint_that_misfits_is_refused_by_name(changes, error, words, tmp_path):
    folder = write_mtp(tmp_path / "chain", **changes)
    with pytest.raises(error) as caught:
        load_drafter(folder, tiny_target())
    assert words in caught.value.message and "\n" not in caught.value.message
