"""Layouts of other people's block drafters against the dense-mask forward: drafts are what their code drafts."""

from __future__ import annotations

import pytest
import torch
from dense_drafter import DenseDrafter
from drafter_round import Round
from engine_runs import make_requests
from released import SIZES, tensors_of, write
from tiny import tiny_target

from dsbench.errors import UsageError
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.loop.build import eager_engine
from dsbench.runtime.loop.drive import run_closed_loop

EVERYWHERE = [(None, False)] * 3
LAYER = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
)


def three_rounds(drafter, reference, target, width, embedded=None):
    text = Round(drafter, target, width, embedded)
    text.observe([20, 1], [0, 0])
    text.observe([13, 9], [4, 3])
    text.check(reference)
    text.observe([6, 3], [0, 1])
    text.check(reference)


def authors_dflash(**changes):
    """The config of DFlash's authors: block_size counts the anchor, whose row proposes nothing."""
    dropped = ("target_layer_ids", "mask_token_id", "markov_rank", "markov_head_type", "enable_confidence_head")
    bare = {k: v for k, v in SIZES.items() if k not in (*dropped, "confidence_head_with_markov")}
    nested = {"target_layer_ids": [0, 2], "mask_token_id": 63}
    return bare | {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "dflash_config": nested} | changes


def test_the_authors_dflash_block_starts_at_its_anchor(tmp_path):
    sizes, target = SIZES | {"markov_rank": 0, "enable_confidence_head": False}, tiny_target()
    tensors = tensors_of(sizes, False)
    theirs = load_drafter(write(tmp_path / "a", authors_dflash(), tensors), target)
    assert theirs.block == 4  # of five rows the anchor's proposes nothing
    three_rounds(theirs, DenseDrafter(sizes, EVERYWHERE, tensors, target), target, 64)
    ours = load_drafter(write(tmp_path / "b", sizes | {"architectures": ["Qwen3DSparkModel"]}, tensors), target)
    assert ours.block == 5


def speculators(kind, sizes, **changes):
    """A config as `speculators` writes it: layer ids one more, sizes of layers apart."""
    layer = {k: sizes[k] for k in LAYER} | {"model_type": "qwen3", "rope_parameters": {"rope_theta": 3e4}}
    heads = ("markov_rank", "markov_head_type", "confidence_head_with_markov", "enable_confidence_head")
    bare = {k: sizes[k] for k in ("block_size", "mask_token_id", *(heads if kind == "dspark" else ()))}
    return bare | {
        "speculators_model_type": kind,
        "architectures": ["DSparkSpeculator" if kind == "dspark" else "DFlashSpeculator"],
        "transformer_layer_config": layer,
        "aux_hidden_state_layer_ids": [i + 1 for i in sizes["target_layer_ids"]],
        "draft_vocab_size": sizes.get("draft_vocab_size", sizes["vocab_size"]),
        "speculators_config": {"algorithm": kind},
        **changes,
    }


def relative(tensors, vocab):
    """A reduced vocabulary as theirs: offsets of the ids, and who is there."""
    ids = tensors["draft_vocab_ids"].long()
    rest = {k: t for k, t in tensors.items() if k != "draft_vocab_ids"}
    there = torch.zeros(vocab, dtype=torch.bool)
    there[ids] = True
    return rest | {"d2t": ids - torch.arange(len(ids)), "t2d": there, "verifier_norm.weight": torch.ones(32)}


@pytest.mark.parametrize(
    ("kind", "changed", "block"),
    [
        ("dspark", {}, 5),
        ("dspark", {"sample_from_anchor": False}, 4),
        ("dflash", {}, 4),
        ("dflash", {"sample_from_anchor": True}, 5),
    ],
)
def test_a_speculators_checkpoint_drafts_as_the_dense_forward(kind, changed, block, tmp_path):
    sizes, target = SIZES | {"draft_vocab_size": 20}, tiny_target()
    if kind == "dflash":
        sizes |= {"markov_rank": 0, "enable_confidence_head": False}
    tensors = tensors_of(sizes, False)
    config = speculators(kind, sizes, **changed)
    drafter = load_drafter(write(tmp_path / "d", config, relative(tensors, 64)), target)
    assert drafter.block == block and drafter.taps == (0, 2)
    three_rounds(drafter, DenseDrafter(sizes, EVERYWHERE, tensors, target), target, 64)


def test_a_vocabulary_whose_two_halves_disagree_is_refused(tmp_path):
    sizes = SIZES | {"draft_vocab_size": 20}
    tensors = relative(tensors_of(sizes, False), 64)
    tensors["d2t"] = tensors["d2t"] + torch.arange(20)  # absolute, as other formats have it
    with pytest.raises(UsageError, match="d2t and t2d name different ids"):
        load_drafter(write(tmp_path / "d", speculators("dspark", sizes), tensors), tiny_target())


def test_the_embedding_is_a_tap(tmp_path):
    sizes, target = SIZES | {"target_layer_ids": [-1, 2]}, tiny_target()
    tensors = tensors_of(sizes, True)
    drafter = load_drafter(write(tmp_path / "d", sizes, tensors), target)
    reference = DenseDrafter(sizes, EVERYWHERE, tensors, target)
    assert drafter.taps == (2,)
    three_rounds(drafter, reference, target, 32, embedded=target.embedding)


@pytest.mark.parametrize("name", ["none", "static", "static:2"])
def test_arms_of_the_authors_layout_write_one_text(name, tmp_path):
    sizes, target = SIZES | {"markov_rank": 0, "enable_confidence_head": False}, tiny_target()
    drafter = load_drafter(write(tmp_path / "a", authors_dflash(), tensors_of(sizes, False)), target)
    bare, mine = make_requests(5, vocab=64, max_tokens=40), make_requests(5, vocab=64, max_tokens=40)
    for requests, mode in ((bare, "none"), (mine, name)):
        arm = parse_arm(mode)
        engine = eager_engine(target, drafter, arm, EngineConfig(page=4), requests, slots=3, tokens=5 * 120)
        run_closed_loop(engine, requests, concurrency=3)
    assert [r.output for r in mine] == [r.output for r in bare]
