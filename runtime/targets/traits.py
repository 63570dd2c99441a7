"""How decoder layers differ from Llama's and Qwen3's. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dsbench.runtime.targets.rotary import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The defaults are those of Llama."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    packed: bool = False  # the checkpoint holds qkv_proj and gate_up_proj (Phi-3)
    norms: str = "before"  # a norm "before" attention and MLP, "after" them, or "both"
    whole_qk_norm: bool = False  # one norm over all query heads, one over all key heads (OLMo-2)
    wide_gains: bool = False  # gains of norms act in fp32, before the result is rounded (Gemma, OLMo-2)
    gain_offset: float = 0.0  # the checkpoint holds gains less this (Gemma: 1)
    activation: str = "silu"  # of the MLP's gate; or "gelu_tanh"
    windows: tuple[int | None, ...] = ()  # sliding window of each layer; empty: all see the whole context
    ropes: tuple[Rope, ...] = ()  # of each layer; empty: the unscaled one of the shape's rope_theta
    turned: int | None = None  # dimensions of a head that turn; None: all
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add
    score_scale: float | None = None  # of query times key; None: head width ** -0.5
    score_cap: float | None = None  # s -> cap * tanh(s / cap) before the softmax
    logit_scale: float = 1.0  # logits are divided by it
    logit_cap: float | None = None  # as score_cap, of logits

    @property
    def fusable(self) -> bool:
        """Whether the fused layer computes this one: only rotary tables and windows may differ from Llama's."""
        return not set(self.differing) - {"ropes", "turned", "score_scale", "packed", "windows"}

    @property
    def trainable(self) -> bool:
        """Whether training's own forward pass computes this one: one rotary table for all layers, else as Llama."""
        return not set(self.differing) - {"ropes"} and len(set(self.ropes)) <= 1

    @property
    def differing(self) -> list[str]:
        """Names of the fields that are not Llama's."""
        plain = Traits()
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
