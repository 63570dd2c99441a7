"""Fields of a drafter's config.json under their published spellings, and refusals that name the field."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError

FULL, SLIDING = "full_attention", "sliding_attention"
NESTED = ("dspark_config", "dflash_config")
FIXED = {"hidden_act": "silu", "attention_bias": False}  # other values do not run
ARCHITECTURE = re.compile(r"(Qwen3)?(DSpark|DFlash)(Model|DraftModel|Speculator)")
MOST_BLOCK, MOST_LAYERS = 64, 256
MAX_WINDOW_LAYERS = 28  # transformers' default: the first so many layers are full


class Fields:
    """Reads `key`, or `dspark_<key>`, from the config with its nested objects laid over it; null counts as absent."""

    def __init__(self, config: Mapping[str, Any], name: str, kind: str = "DSpark or DFlash") -> None:
        self.name, self.kind = name, kind
        self.flat = dict(config)
        for key in NESTED:
            nested = config.get(key) or {}
            if not isinstance(nested, Mapping):
                raise self.wrong(key, "an object")
            self.flat |= nested

    def get(self, key: str) -> Any:
        for candidate in (key, "dspark_" + key):
            if self.flat.get(candidate) is not None:
                return self.flat[candidate]
        return None

    def wrong(self, key: str, wanted: str) -> UsageError:
        return UsageError(f"{self.name}: config field {key} must be {wanted}, got {self.get(key)!r}")

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise UsageError(f"{self.name}: config.json lacks the field {key}", hint=f"is this a {self.kind} drafter?")
        return value

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1) -> int:
        value = self.need(key) if default is None else self.get(key)
        if value is None:
            assert default is not None
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(key, "an integer")
        if value < least:
            raise self.wrong(key, f">= {least}")
        if value > most:
            raise self.wrong(key, f"<= {most}")
        return value

    def number(self, key: str) -> float:
        """Above 0 and finite."""
        value = self.need(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, "a number")
        if not 0 < value <= sys.float_info.max:
            raise self.wrong(key, "above 0 and finite")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def layer_ids(self, key: str) -> tuple[int, ...]:
        """Taps are concatenated in the order of the target's layers, so they must be named in it."""
        value = self.need(key)
        if not isinstance(value, list) or not value or any(type(i) is not int for i in value):
            raise self.wrong(key, "a list of layer numbers")
        if value != sorted(set(value)):
            raise self.wrong(key, "ascending")
        return tuple(value)


def check_fixed(fields: Fields) -> None:
    """Raises EnvironmentRefused naming a field that asks for what no drafter here does."""
    for key, wanted in FIXED.items():
        if fields.get(key) not in (None, wanted):
            raise EnvironmentRefused(f"{fields.name}: config field {key} = {fields.get(key)!r} is not supported")


def samples_from_anchor(fields: Fields) -> bool:
    """Whether the anchor's row is the first draft's, else it proposes nothing and the block holds a draft less.

    `sample_from_anchor`, or what the named architecture does: DSpark's do, those of DFlash's authors do not. Raises
    EnvironmentRefused for an architecture that is neither.
    """
    names = fields.get("architectures") or ["Qwen3DSparkModel"]
    found = next(filter(None, map(ARCHITECTURE.fullmatch, names)), None)
    if found is None:
        raise EnvironmentRefused(
            f"{fields.name}: config field architectures = {names} is not supported",
            hint="a block drafter is a Qwen3DSparkModel or a DFlashDraftModel; a chain goes to --mtp-drafter",
        )
    return fields.flag("sample_from_anchor", found[2] == "DSpark")


def rotary_base(fields: Fields) -> float:
    """`rope_theta`, from `rope_parameters` or flat. It must be there: no drafter has transformers' default."""
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise fields.wrong("rope_parameters", "an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise EnvironmentRefused(f"{fields.name}: rope_type {kind!r} is not supported", hint="only the default is")
    return Fields({**fields.flat, **rope}, fields.name, fields.kind).number("rope_theta")


def layer_attention(fields: Fields, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window (None: full) and causality within the block of each layer.

    Windows as in transformers' Qwen3 config: `layer_types` says which layers slide by `sliding_window`; without it,
    `use_sliding_window` makes those from `max_window_layers` on slide, and a null window none. Causality as vLLM's
    DFlash drafters (qwen3_dflash.py): `is_causal`, or `causal` in the nested object, holds for every layer; else the
    layers that `layer_types` lets slide are causal (z-lab's drafters with windows), and the full ones are not.
    `use_swa` with `swa_window_size` (MiMo) makes every layer slide, not causal.
    """
    kinds = _kinds(fields, layers)
    everywhere = fields.flag("use_swa", False) and SLIDING not in kinds
    key = "sliding_window" if fields.get("swa_window_size") is None else "swa_window_size"
    sliding = [everywhere or kind == SLIDING for kind in kinds]
    window = fields.integer(key) if any(sliding) else None
    default = [kind == SLIDING for kind in kinds]
    fixed = fields.flag("is_causal", fields.flag("causal", False))
    said = fields.get("is_causal") is not None or fields.get("causal") is not None
    causal = [fixed] * layers if said else default
    return tuple(window if slides else None for slides in sliding), tuple(causal)


def _kinds(fields: Fields, layers: int) -> list[str]:
    """`layer_types`, or what transformers makes of its absence."""
    kinds = fields.get("layer_types")
    if kinds is None or kinds == []:
        slides = fields.flag("use_sliding_window", False) and fields.get("sliding_window") is not None
        first = fields.integer("max_window_layers", MAX_WINDOW_LAYERS, least=0) if slides else layers
        return [FULL if i < first else SLIDING for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers} names, one a layer")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise EnvironmentRefused(
                f"{fields.name}: config field layer_types holds {kind!r}, only {FULL} and {SLIDING} run"
            )
    if SLIDING in kinds and not fields.flag("use_sliding_window", True):
        raise UsageError(f"{fields.name}: config field use_sliding_window is false, but layer_types holds {SLIDING}")
    return kinds
