"""The shape of a dense model, and the catalogue of named shapes. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from dsbench.runtime.targets.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder. `qk_norm`: RMS norm of each query and key head before the rotary embedding.

    `traits` says how its layers differ from those of Llama and Qwen3.
    """

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_width: int
    vocab: int
    context: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qk_norm: bool
    traits: Traits = Traits()

    @property
    def parameters(self) -> int:
        """Weights in all, embedding and head counted once if tied."""
        attention = self.hidden * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        embedding = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + embedding


def _qwen3(name: str, layers: int, hidden: int, mlp: int, heads: int, tied: bool) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        mlp=mlp,
        heads=heads,
        kv_heads=8,
        head_width=128,
        vocab=151_936,
        context=40_960,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=tied,
        qk_norm=True,
    )


def catalogue_shapes() -> dict[str, ModelShape]:
    """The shapes that `shape:<name>` accepts: true sizes of public models, for cost work on random weights."""
    smollm2 = ModelShape(
        name="smollm2-135m",
        layers=30,
        hidden=576,
        mlp=1536,
        heads=9,
        kv_heads=3,
        head_width=64,
        vocab=49_152,
        context=8192,
        rope_theta=1e5,
        norm_eps=1e-5,
        tied=True,
        qk_norm=False,
    )
    shapes = [
        smollm2,
        _qwen3("qwen3-0.6b", 28, 1024, 3072, 16, True),
        _qwen3("qwen3-1.7b", 28, 2048, 6144, 16, True),
        _qwen3("qwen3-4b", 36, 2560, 9728, 32, True),
        _qwen3("qwen3-8b", 36, 4096, 12_288, 32, False),
    ]
    return {shape.name: shape for shape in shapes}
