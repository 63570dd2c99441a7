"""Rotary embeddings as configs describe them: rope_parameters or rope_scaling -> a frequency per pair. No torch.

Kinds: default, linear, llama3, yarn, longrope (its short factors: the context is then limited to the original one).
Legend: E head width; pair i of a head turns by frequency[i] radians a position; a frequency of 0 does not turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError

NO_EFFECT = {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"}  # but for yarn's
KNOWN = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor", "original_max_position_embeddings", *NO_EFFECT},
    "longrope": {
        "factor",
        "attention_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
        "original_max_position_embeddings",
    },
}
EVERYWHERE = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Frequencies of the E/2 pairs of a head. cos and sin of the turned ones are multiplied by `scale`."""

    frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeFields:
    """What a config says of one rotary embedding: its object, and sizes that stand beside it."""

    params: Mapping[str, Any]
    name: str  # of the model, for refusals
    theta: float  # where `params` has none
    width: int
    context: int
    original: int | None  # original_max_position_embeddings of the config itself

    def number(self, key: str, default: float | None = None) -> float:
        """A finite positive number. Raises UsageError naming the field."""
        value = self.params.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"{self.name}: rope_parameters.{key} must be a number above 0, got {value!r}")
        return float(value)

    @property
    def original_context(self) -> float:
        return float(self.original or self.number("original_max_position_embeddings", self.context))


def no_rope(width: int) -> Rope:
    """Of a layer whose queries and keys are not turned."""
    return Rope(frequencies=(0.0,) * (width // 2))


def rope_of(fields: RopeFields) -> tuple[Rope, int]:
    """The rotary embedding, and the context that it serves. Raises EnvironmentRefused naming what is not known."""
    params, name = fields.params, fields.name
    kind = str(params.get("rope_type") or params.get("type") or "default")
    kind = "longrope" if kind == "su" else kind
    if kind not in KNOWN:
        known = ", ".join(KNOWN)
        raise EnvironmentRefused(f"{name}: rope_type {kind!r} is not supported", hint=f"supported: {known}")
    for key, value in params.items():
        if value is not None and key not in KNOWN[kind] | EVERYWHERE:
            raise EnvironmentRefused(f"{name}: rope_parameters.{key} = {value!r} is not known for rope_type {kind!r}")
    share = fields.number("partial_rotary_factor", 1.0)
    turned = int(fields.width * share)
    if share > 1 or turned % 2:
        raise UsageError(f"{name}: partial_rotary_factor = {share} of a head of {fields.width} is no even number <= it")
    theta = fields.number("rope_theta", fields.theta)
    plain = [theta ** (-2 * i / turned) for i in range(turned // 2)]
    frequencies, scale, context = _scaled(kind, plain, theta, turned, fields)
    return Rope(frequencies=(*frequencies, *[0.0] * (fields.width // 2 - len(plain))), scale=scale), context


def _scaled(
    kind: str, plain: list[float], theta: float, turned: int, fields: RopeFields
) -> tuple[list[float], float, int]:
    """Frequencies, scale and context of a kind, from the unscaled frequencies of the turned pairs."""
    context = fields.context
    if kind == "linear":
        factor = fields.number("factor")
        return [f / factor for f in plain], 1.0, context
    if kind == "llama3":
        return _llama3(plain, fields), 1.0, context
    if kind == "yarn":
        return *_yarn(plain, theta, turned, fields), context
    if kind == "longrope":
        original = int(fields.original_context)
        return *_longrope(plain, original, fields), min(context, original)
    return plain, 1.0, context


def _llama3(plain: list[float], fields: RopeFields) -> list[float]:
    """Long waves are stretched by `factor`, short ones kept, those between blended."""
    factor, original = fields.number("factor"), fields.original_context
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if low >= high:
        raise UsageError(f"{fields.name}: rope_parameters.low_freq_factor must be below high_freq_factor")
    out = []
    for f in plain:
        blend = min(1.0, max(0.0, (original * f / (2 * math.pi) - low) / (high - low)))
        out.append((1 - blend) * f / factor + blend * f)
    return out


def _yarn(plain: list[float], theta: float, turned: int, fields: RopeFields) -> tuple[list[float], float]:
    """arXiv 2309.00071: pairs between beta_fast and beta_slow turns within the original context are blended."""
    original = fields.original_context
    factor = fields.number("factor", fields.context / original)

    def pair_of(turns: float) -> float:
        return turned * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(fields.number("beta_fast", 32)), pair_of(fields.number("beta_slow", 1))
    if fields.params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    high += 0.001 if low == high else 0
    out = []
    for i, f in enumerate(plain):
        stretched = min(1.0, max(0.0, (i - low) / (high - low)))
        out.append(f / factor * stretched + f * (1 - stretched))
    return out, _yarn_scale(factor, fields)


def _yarn_scale(factor: float, fields: RopeFields) -> float:
    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if fields.params.get("attention_factor") is not None:
        return fields.number("attention_factor")
    if fields.params.get("mscale") and fields.params.get("mscale_all_dim"):
        return scale(fields.number("mscale")) / scale(fields.number("mscale_all_dim"))
    return scale(1.0)


def _longrope(plain: list[float], original: int, fields: RopeFields) -> tuple[list[float], float]:
    """Short factors: those of contexts up to the original one."""
    short = fields.params.get("short_factor")
    good = isinstance(short, list) and len(short) == len(plain)
    if not good or not all(isinstance(s, int | float) and 0 < s < math.inf for s in short or []):
        raise UsageError(f"{fields.name}: rope_parameters.short_factor must hold {len(plain)} numbers above 0")
    assert isinstance(short, list)
    factor = fields.number("factor", fields.context / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return [f / s for f, s in zip(plain, short, strict=True)], fields.number("attention_factor", default)
