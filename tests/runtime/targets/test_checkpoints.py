"""Tensors of a target's checkpoint: used, known to be of no use, or refused by name; quantised ones dequantised."""

from __future__ import annotations

import json

import pytest
import torch
from published import change_config, loaded, prompt, run_logits, save_tiny, tiny_config
from safetensors.torch import load_file, save_file

from dsbench.errors import EnvironmentRefused, UsageError

Q = "model.layers.1.self_attn.q_proj"


def stored(folder):
    return load_file(folder / "model.safetensors")


def rewrite(folder, put=None, drop=()):
    weights = {k: v for k, v in stored(folder).items() if k not in drop} | (put or {})
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")


@pytest.fixture
def llama(tmp_path):
    save_tiny(tmp_path, tiny_config("llama", hidden_size=64, intermediate_size=128, head_dim=16))
    return tmp_path


INVENTED = [
    ({Q + ".bias": torch.zeros(64)}, EnvironmentRefused, "q_proj.bias"),
    ({"model.layers.4.mlp.up_proj.weight": torch.zeros(128, 64)}, EnvironmentRefused, "layers.4"),
    ({"model.vision.weight": torch.zeros(3)}, EnvironmentRefused, "vision"),
    ({Q + ".weight": torch.zeros(63, 64)}, UsageError, r"q_proj.*\[63, 64\].*\[64, 64\]"),
    ({Q + ".weight": torch.zeros(64, 64, dtype=torch.int8)}, EnvironmentRefused, "q_proj.*I8"),
    ({Q + ".weight": torch.zeros(64, 64).to(torch.float8_e4m3fn)}, EnvironmentRefused, "q_proj.*F8_E4M3"),
    ({Q + ".weight_scale_inv": torch.ones(1, 1)}, EnvironmentRefused, "weight_scale_inv"),
    ({Q + ".weight": torch.full((64, 64), float("nan"))}, UsageError, "q_proj.*finite"),
    ({"model.norm.weight": torch.full((64,), float("inf"))}, UsageError, "model.norm.*finite"),
]


@pytest.mark.parametrize(("put", "error", "named"), INVENTED, ids=lambda x: x if isinstance(x, str) else "")
def test_a_tensor_that_nobody_reads_or_that_is_no_weight_is_refused_by_name(llama, put, error, named):
    rewrite(llama, put)
    with pytest.raises(error, match=named) as raised:
        loaded(llama)
    assert "\n" not in str(raised.value)


def test_a_tensor_that_lacks_is_named(llama):
    rewrite(llama, drop=(Q + ".weight",))
    with pytest.raises(UsageError, match="lacks the tensor " + Q):
        loaded(llama)


def test_weights_too_large_for_the_dtype_asked_for_are_refused(llama):
    from dsbench.runtime.targets.config import read_config, shape_from_config
    from dsbench.runtime.targets.weights import read_target_weights

    rewrite(llama, {Q + ".weight": torch.full((64, 64), 1e5)})
    shape = shape_from_config(read_config(llama), "x")
    with pytest.raises(UsageError, match="q_proj.*float16"):
        read_target_weights(llama, shape, None, torch.device("cpu"), torch.float16)


def test_buffers_of_older_versions_are_passed_over(llama):
    wanted = run_logits(loaded(llama), prompt(96), ())
    rewrite(llama, {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(4)})
    assert torch.equal(run_logits(loaded(llama), prompt(96), ()), wanted)


def test_a_head_beside_tied_embeddings_must_be_the_embedding(tmp_path):
    save_tiny(tmp_path, tiny_config("llama", tie_word_embeddings=True))
    wanted = run_logits(loaded(tmp_path), prompt(96), ())
    table = stored(tmp_path)["model.embed_tokens.weight"]
    rewrite(tmp_path, {"lm_head.weight": table.clone()})
    assert torch.equal(run_logits(loaded(tmp_path), prompt(96), ()), wanted)
    rewrite(tmp_path, {"lm_head.weight": table + 1e-3})
    with pytest.raises(EnvironmentRefused, match="lm_head"):
        loaded(tmp_path)


def linear_maps(folder):
    return {k.removesuffix(".weight"): v for k, v in stored(folder).items() if "_proj." in k}


def nibbles(values, order=range(8)):
    """[..., 8] numbers of 4 bits -> int32 words [...]; number order[i] lies in bits 4 i to 4 i + 3."""
    words = sum(values[..., o].to(torch.int64) << (4 * i) for i, o in enumerate(order))
    return (words - ((words >> 31) << 32)).to(torch.int32)


def grouped(weight, group=16):
    """4-bit numbers [N, K], scales and zeros [N, K / g] of a weight, and the weight that they stand for."""
    rows = weight.view(weight.shape[0], -1, group)
    low, high = rows.amin(-1), rows.amax(-1)
    scale = ((high - low) / 15).half()
    zero = (-low / scale.float()).round().clamp(1, 15)
    q = (rows / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15)
    return q.flatten(1), scale, zero, ((q - zero[..., None]) * scale.float()[..., None]).flatten(1)


def fp8_blocks(weight):
    """A scale a block of 24 x 40 numbers, so that the last blocks are cut off."""
    scale = torch.empty(-(-weight.shape[0] // 24), -(-weight.shape[1] // 40))
    q, bare = torch.empty_like(weight).to(torch.float8_e4m3fn), torch.empty_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(24 * i, 24 * i + 24), slice(40 * j, 40 * j + 40)
            scale[i, j] = weight[at].abs().max() / 448
            q[at] = (weight[at] / scale[i, j]).to(torch.float8_e4m3fn)
            bare[at] = q[at].float() * scale[i, j]
    return {"weight": q, "weight_scale_inv": scale}, bare


def fp8_rows(weight):
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    q = (weight / scale.float()).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale}, q.float() * scale.float()


def fp8_whole(weight):
    scale = weight.abs().max() / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale.reshape(1), "input_scale": torch.ones(1)}, q.float() * scale


def int8_rows(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    q = (weight / scale).round().to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def int8_bitsandbytes(weight):
    most = weight.abs().amax(1)
    q = (weight / most[:, None] * 127).round().to(torch.int8)
    return {"weight": q, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}, (
        q.float() * most[:, None] / 127
    )


def packed_int4(weight):
    scale = (weight.view(len(weight), -1, 16).abs().amax(-1) / 7).bfloat16()
    wide = scale.float().repeat_interleave(16, 1)
    q = (weight / wide).round().clamp(-8, 7)
    parts = {"weight_packed": nibbles((q + 8).view(len(q), -1, 8)), "weight_scale": scale}
    return parts | {"weight_shape": torch.tensor(weight.shape)}, q * wide


def awq(weight):
    q, scale, zero, bare = grouped(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "qweight": nibbles(q.T.reshape(q.shape[1], -1, 8), order),
        "qzeros": nibbles(zero.T.reshape(zero.shape[1], -1, 8), order),
        "scales": scale.T,
    }
    return parts, bare


def gptq(weight, *, less=1):
    """With inputs in another order than their groups', as activation order makes them."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(5))
    q, scale, zero, bare = grouped(weight[:, order])
    back = order.argsort()
    group = torch.arange(weight.shape[1]).div(16, rounding_mode="floor")
    parts = {
        "qweight": nibbles(q[:, back].T.reshape(-1, 8, len(q)).transpose(1, 2)),
        "qzeros": nibbles((zero.T - less).reshape(zero.shape[1], -1, 8)),
        "scales": scale.T,
        "g_idx": group[back].int(),
        "bias": torch.zeros(len(weight)),
    }
    return parts, bare[:, back]


def compressed(form, **weights):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
FORMATS = {
    "fp8-blocks": (FP8 | {"weight_block_size": [24, 40]}, fp8_blocks),
    "fp8-whole": (FP8, fp8_whole),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, fp8_rows),
    "compressed-fp8": (compressed("float-quantized", num_bits=8, type="float", strategy="channel"), fp8_rows),
    "compressed-int8": (compressed("int-quantized", num_bits=8, type="int", strategy="channel"), int8_rows),
    "compressed-int4": (compressed("pack-quantized", num_bits=4, type="int", strategy="group"), packed_int4),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, int8_bitsandbytes),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, gptq),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, less=0),
    ),
}


@pytest.mark.parametrize("form", FORMATS)
def test_a_quantised_checkpoint_is_its_dequantised_self(llama, form):
    said, quantise = FORMATS[form]
    exact, packed = {}, {}
    for stem, weight in linear_maps(llama).items():
        parts, exact[stem + ".weight"] = quantise(weight)
        packed |= {f"{stem}.{suffix}": tensor for suffix, tensor in parts.items()}
    unquantised = run_logits(loaded(llama), prompt(96), ())
    rewrite(llama, exact)
    wanted = run_logits(loaded(llama), prompt(96), ())
    rewrite(llama, packed, drop=tuple(exact.keys() - packed.keys()))
    with pytest.raises((EnvironmentRefused, UsageError)):
        loaded(llama)
    change_config(llama, {"quantization_config": said})
    made = run_logits(loaded(llama), prompt(96), ())
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)
    assert (made - unquantised).abs().max() > 1e-3


REFUSED = [
    ({"quant_method": "hqq"}, "hqq"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "4bit"),
    ({"quant_method": "gptq", "bits": 3}, "3 bits"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "gemv"),
    (compressed("pack-quantized", num_bits=4, type="int", strategy="group") | {"config_groups": {}}, "0 groups"),
    (compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group"), "tensor_group"),
    ({}, "quant_method"),
]


@pytest.mark.parametrize(("said", "named"), REFUSED, ids=str)
def test_a_format_that_is_not_dequantised_is_refused_by_name(llama, said, named):
    change_config(llama, {"quantization_config": said})
    with pytest.raises(EnvironmentRefused, match=named) as raised:
        loaded(llama)
    assert "\n" not in str(raised.value)


def test_parts_that_do_not_fit_each_other_are_named(llama):
    said, quantise = FORMATS["fp8-blocks"]
    parts, _ = quantise(stored(llama)[Q + ".weight"])
    change_config(llama, {"quantization_config": said})
    rewrite(llama, {Q + ".weight": parts["weight"], Q + ".weight_scale_inv": torch.ones(1, 7)})
    with pytest.raises(UsageError, match=Q):
        loaded(llama)


def test_shards_are_read_together(tmp_path):
    config = tiny_config("llama")
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    save_tiny(tmp_path / "one", config)
    save_tiny(tmp_path / "many", config, shard="10KB")
    held = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert len(set(held["weight_map"].values())) > 3
    one, many = (run_logits(loaded(tmp_path / name), prompt(96), ()) for name in ("one", "many"))
    assert torch.equal(one, many)
