"""The architectures that load, each with its class's own defaults for absent fields and the traits of its layers.

Defaults are those of the configuration classes of transformers, where a null or absent field takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsbench.runtime.targets.config_fields import Fields
from dsbench.runtime.targets.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Defaults of an architecture's config, and its layers' traits."""

    traits: Callable[[Fields], Traits] = lambda fields: Traits()
    qk_norm: bool = False
    context: int
    theta: float = 10_000.0
    local_theta: float | None = None  # of sliding layers, where they have a rotary embedding of their own
    eps: float = 1e-6
    tied: bool = False
    kv_heads: int | None = None  # None: as many as query heads
    head_width: int | None = None  # None: hidden size / heads
    activation: str = "silu"
    activation_field: str = "hidden_act"
    windows: str = "none"  # which layers slide: none, all, last, even, pattern, listed
    window: int | None = None
    partial: bool = False  # whether partial_rotary_factor is this class's


def _llama(fields: Fields) -> Traits:
    attention = fields.flag("attention_bias", False)
    return Traits(qkv_bias=attention, output_bias=attention, mlp_bias=fields.flag("mlp_bias", False))


def _attention_biased(fields: Fields) -> Traits:
    attention = fields.flag("attention_bias", False)
    return Traits(qkv_bias=attention, output_bias=attention)


def _qwen2(fields: Fields) -> Traits:
    """Query, key and value have biases, whatever the config says; published ones have no field for it."""
    return Traits(qkv_bias=True)


def _gemma(fields: Fields) -> Traits:
    hidden = fields.whole("hidden_size")
    return replace(_attention_biased(fields), wide_gains=True, gain_offset=1.0, embed_scale=hidden**0.5)


def _gemma3(fields: Fields) -> Traits:
    return replace(
        _gemma(fields),
        norms="both",
        score_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        score_cap=fields.optional("attn_logit_softcapping"),
        logit_cap=fields.optional("final_logit_softcapping"),
    )


def _gemma2(fields: Fields) -> Traits:
    """Absent caps are the class's; a null switches one off."""
    traits = _gemma3(fields)
    return replace(
        traits,
        score_cap=traits.score_cap if "attn_logit_softcapping" in fields.config else 50.0,
        logit_cap=traits.logit_cap if "final_logit_softcapping" in fields.config else 30.0,
    )


def _olmo2(fields: Fields) -> Traits:
    return replace(_attention_biased(fields), norms="after", whole_qk_norm=True, wide_gains=True)


def _granite(fields: Fields) -> Traits:
    return replace(
        _llama(fields),
        embed_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        score_scale=fields.number("attention_multiplier", 1.0),
        logit_scale=fields.number("logits_scaling", 1.0),
    )


def architectures() -> dict[str, Architecture]:
    """By the name that `architectures` of a config.json gives."""
    gemma2 = Architecture(
        traits=_gemma2,
        context=8192,
        tied=True,
        kv_heads=4,
        head_width=256,
        activation="gelu_pytorch_tanh",
        activation_field="hidden_activation",
        windows="even",
        window=4096,
    )
    return {
        "LlamaForCausalLM": Architecture(traits=_llama, context=2048),
        "MistralForCausalLM": Architecture(context=131_072, kv_heads=8, windows="all", window=4096),
        "Qwen2ForCausalLM": Architecture(traits=_qwen2, context=32_768, kv_heads=32, windows="last", window=4096),
        "Qwen3ForCausalLM": Architecture(
            traits=_attention_biased,
            qk_norm=True,
            context=32_768,
            kv_heads=32,
            head_width=128,
            windows="last",
            window=4096,
        ),
        "SmolLM3ForCausalLM": Architecture(
            traits=_llama, context=32_768, theta=2e6, tied=True, kv_heads=4, windows="listed"
        ),
        "Phi3ForCausalLM": Architecture(
            traits=lambda fields: Traits(packed=True), context=4096, eps=1e-5, windows="all", partial=True
        ),
        "GemmaForCausalLM": Architecture(
            traits=_gemma, context=8192, tied=True, kv_heads=16, head_width=256, activation="gelu_pytorch_tanh"
        ),
        "Gemma2ForCausalLM": gemma2,
        "Gemma3ForCausalLM": replace(
            gemma2, traits=_gemma3, context=131_072, qk_norm=True, theta=1e6, local_theta=1e4, windows="pattern"
        ),
        "Olmo2ForCausalLM": Architecture(traits=_olmo2, context=2048, eps=1e-5),
        "GraniteForCausalLM": Architecture(traits=_granite, context=2048),
    }
