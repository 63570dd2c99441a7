"""config.json of published models, written from public facts, and how each is taken: loads, or the word refused."""

from __future__ import annotations

from typing import Any

LLAMA3_ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_ROPE |= {"original_max_position_embeddings": 8192}
COMMON = {"torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": True, "initializer_range": 0.02}


def config(name: str, model_type: str, sizes: tuple[int, ...], context: int, **more: Any) -> dict[str, Any]:
    """sizes: layers, hidden, mlp, heads, key-value heads, vocabulary."""
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    made = dict(zip((*keys, "vocab_size"), sizes, strict=True))
    made |= {"architectures": [name], "model_type": model_type, "max_position_embeddings": context}
    return COMMON | made | more


def llama(sizes: tuple[int, ...], context: int, **more: Any) -> dict[str, Any]:
    plain = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "rope_scaling": None,
    }
    return config("LlamaForCausalLM", "llama", sizes, context, **(plain | {"rms_norm_eps": 1e-5} | more))


def qwen2(sizes: tuple[int, ...], context: int, **more: Any) -> dict[str, Any]:
    plain = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False}
    plain |= {"attention_dropout": 0.0, "max_window_layers": sizes[0], "sliding_window": context}
    return config("Qwen2ForCausalLM", "qwen2", sizes, context, **(plain | more))


def qwen3(sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    plain = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "use_sliding_window": False}
    plain |= {"head_dim": 128, "attention_bias": False, "sliding_window": None, "rope_scaling": None}
    return config("Qwen3ForCausalLM", "qwen3", sizes, 40_960, **(plain | {"max_window_layers": sizes[0]} | more))


def mistral(sizes: tuple[int, ...], context: int, **more: Any) -> dict[str, Any]:
    return config(
        "MistralForCausalLM", "mistral", sizes, context, **({"hidden_act": "silu", "rms_norm_eps": 1e-5} | more)
    )


def gemma2(sizes: tuple[int, ...], width: int, scalar: int) -> dict[str, Any]:
    more = {"head_dim": width, "query_pre_attn_scalar": scalar, "sliding_window": 4096, "rope_theta": 10_000.0}
    more |= {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid"}
    more |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
    return config("Gemma2ForCausalLM", "gemma2", sizes, 8192, rms_norm_eps=1e-6, **more)


SHORT = [1.0 + i / 100 for i in range(48)]
PHI_LONG = {"type": "longrope", "short_factor": SHORT, "long_factor": [2 * s for s in SHORT]}
GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125}
GRANITE |= {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
}
GEMMA3 = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512, "sliding_window_pattern": 6}
GEMMA3 |= {
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": None,
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA3 |= {"attn_logit_softcapping": None, "final_logit_softcapping": None, "cache_implementation": "hybrid"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

LOADS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": llama((32, 4096, 11_008, 32, 32, 32_000), 4096),
    "meta-llama/Meta-Llama-3-8B-Instruct": llama((32, 4096, 14_336, 32, 8, 128_256), 8192, rope_theta=5e5),
    "meta-llama/Llama-3.1-8B-Instruct": llama(
        (32, 4096, 14_336, 32, 8, 128_256), 131_072, rope_theta=5e5, rope_scaling=LLAMA3_ROPE | {"factor": 8.0}
    ),
    "meta-llama/Llama-3.2-1B-Instruct": llama(
        (16, 2048, 8192, 32, 8, 128_256),
        131_072,
        rope_theta=5e5,
        head_dim=64,
        tie_word_embeddings=True,
        rope_scaling=LLAMA3_ROPE | {"factor": 32.0},
    ),
    "meta-llama/Llama-3.3-70B-Instruct": llama(
        (80, 8192, 28_672, 64, 8, 128_256), 131_072, rope_theta=5e5, rope_scaling=LLAMA3_ROPE | {"factor": 8.0}
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": llama(
        (32, 4096, 14_336, 32, 8, 128_256), 131_072, rope_theta=5e5, rope_scaling=LLAMA3_ROPE | {"factor": 8.0}
    ),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": llama((22, 2048, 5632, 32, 4, 32_000), 2048, rope_theta=10_000.0),
    "HuggingFaceTB/SmolLM2-135M-Instruct": llama(
        (30, 576, 1536, 9, 3, 49_152),
        8192,
        rope_theta=100_000,
        rope_interleaved=False,
        is_llama_config=True,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": qwen2((24, 896, 4864, 14, 2, 151_936), 32_768, tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B-Instruct": qwen2((28, 3584, 18_944, 28, 4, 152_064), 32_768, sliding_window=131_072),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": qwen2((28, 3584, 18_944, 28, 4, 152_064), 32_768, quantization_config=AWQ),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": qwen2((28, 3584, 18_944, 28, 4, 152_064), 32_768, quantization_config=GPTQ),
    "Qwen/Qwen2.5-Coder-7B-Instruct": qwen2((28, 3584, 18_944, 28, 4, 152_064), 32_768, sliding_window=131_072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": qwen2(
        (28, 3584, 18_944, 28, 4, 152_064), 131_072, rope_theta=10_000, use_mrope=False
    ),
    "Qwen/Qwen3-0.6B": qwen3((28, 1024, 3072, 16, 8, 151_936), tie_word_embeddings=True),
    "Qwen/Qwen3-8B": qwen3((36, 4096, 12_288, 32, 8, 151_936), tie_word_embeddings=False),
    "Qwen/Qwen3-8B-FP8": qwen3((36, 4096, 12_288, 32, 8, 151_936), quantization_config=FP8),
    "mistralai/Mistral-7B-Instruct-v0.1": mistral(
        (32, 4096, 14_336, 32, 8, 32_000), 32_768, rope_theta=10_000.0, sliding_window=4096
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": mistral(
        (32, 4096, 14_336, 32, 8, 32_768), 32_768, rope_theta=1e6, sliding_window=None
    ),
    "mistralai/Mistral-Nemo-Instruct-2407": mistral(
        (40, 5120, 14_336, 32, 8, 131_072), 1_024_000, rope_theta=1e6, sliding_window=None, head_dim=128
    ),
    "HuggingFaceTB/SmolLM3-3B": config(
        "SmolLM3ForCausalLM",
        "smollm3",
        (36, 2048, 11_008, 16, 4, 128_256),
        65_536,
        rope_theta=5e6,
        no_rope_layers=[1, 1, 1, 0] * 9,
        no_rope_layer_interval=4,
        layer_types=["full_attention"] * 36,
        use_sliding_window=False,
        max_window_layers=28,
        rms_norm_eps=1e-6,
    ),
    "microsoft/Phi-3-mini-4k-instruct": config(
        "Phi3ForCausalLM",
        "phi3",
        (32, 3072, 8192, 32, 32, 32_064),
        4096,
        original_max_position_embeddings=4096,
        sliding_window=2047,
        rope_scaling=None,
        rope_theta=10_000.0,
        rms_norm_eps=1e-5,
        embd_pdrop=0.0,
        auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
    ),
    "microsoft/Phi-4-mini-instruct": config(
        "Phi3ForCausalLM",
        "phi3",
        (32, 3072, 8192, 24, 8, 200_064),
        131_072,
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.75,
        sliding_window=262_144,
        rope_scaling=PHI_LONG,
        tie_word_embeddings=True,
        full_attn_mod=1,
        interpolate_factor=1,
        lm_head_bias=False,
        mlp_bias=False,
    ),
    "google/gemma-2-2b-it": gemma2((26, 2304, 9216, 8, 4, 256_000), 256, 256),
    "google/gemma-2-27b-it": gemma2((46, 4608, 36_864, 32, 16, 256_000), 128, 144),
    "google/gemma-3-1b-it": config(
        "Gemma3ForCausalLM", "gemma3_text", (26, 1152, 6912, 4, 1, 262_144), 32_768, rms_norm_eps=1e-6, **GEMMA3
    ),
    "allenai/OLMo-2-1124-7B-Instruct": config(
        "Olmo2ForCausalLM", "olmo2", (32, 4096, 11_008, 32, 32, 100_352), 4096, rope_theta=500_000, rms_norm_eps=1e-6
    ),
    "ibm-granite/granite-3.1-8b-instruct": config(
        "GraniteForCausalLM",
        "granite",
        (40, 4096, 12_800, 32, 8, 49_155),
        131_072,
        logits_scaling=16.0,
        rope_theta=1e7,
        tie_word_embeddings=True,
        **GRANITE,
    ),
}
MOE = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
SIZES = (48, 2048, 6144, 32, 4, 151_936)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Qwen/Qwen3-30B-A3B": (config("Qwen3MoeForCausalLM", "qwen3_moe", SIZES, 40_960, **MOE), "Qwen3MoeForCausalLM"),
    "mistralai/Mixtral-8x7B-v0.1": (config("MixtralForCausalLM", "mixtral", SIZES, 32_768), "MixtralForCausalLM"),
    "openai/gpt-oss-20b": (config("GptOssForCausalLM", "gpt_oss", SIZES, 131_072), "GptOssForCausalLM"),
    "deepseek-ai/DeepSeek-V3": (config("DeepseekV3ForCausalLM", "deepseek_v3", SIZES, 163_840), "DeepseekV3"),
    "google/gemma-3-4b-it": (
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}, "vision_config": {}},
        "Gemma3ForConditionalGeneration",
    ),
    "unsloth/Llama-3.1-8B-Instruct-bnb-4bit": (
        llama((32, 4096, 14_336, 32, 8, 128_256), 131_072)
        | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "4bit",
    ),
}
