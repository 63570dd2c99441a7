"""config.json of a target -> its shape. Every field is used, known to have no effect, or refused by name. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.architectures import Architecture, architectures
from dsbench.runtime.targets.config_fields import Fields
from dsbench.runtime.targets.rotary import Rope, RopeFields, no_rope, rope_of
from dsbench.runtime.targets.shape import ModelShape

FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
MOST_LAYERS, MOST_HEADS, MOST_WIDTH, MOST_CONTEXT = 1024, 4096, 4096, 1 << 25


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Raises EnvironmentRefused or UsageError, naming the field, for what this runtime does not compute."""
    fields = Fields(config, name)
    kind = _architecture(fields)
    heads = fields.whole("num_attention_heads", most=MOST_HEADS)
    hidden = fields.whole("hidden_size")
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    shape = ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        mlp=fields.whole("intermediate_size"),
        heads=heads,
        kv_heads=_kv_heads(fields, kind, heads),
        head_width=_head_width(fields, kind, hidden, heads),
        vocab=fields.whole("vocab_size"),
        context=fields.whole("max_position_embeddings", kind.context, most=MOST_CONTEXT),
        rope_theta=kind.theta,
        norm_eps=fields.number("rms_norm_eps", kind.eps),
        tied=fields.flag("tie_word_embeddings", kind.tied),
        qk_norm=kind.qk_norm,
        traits=replace(kind.traits(fields), activation=_activation(fields, kind)),
    )
    shape = _with_rotary(shape, fields, kind)
    fields.get("quantization_config")  # for the reader of the weights
    fields.refuse_rest()
    return shape


def _architecture(fields: Fields) -> Architecture:
    named, known = fields.get("architectures"), architectures()
    name = named[0] if isinstance(named, list) and named else "?"
    if name not in known:
        raise EnvironmentRefused(
            f"{fields.name}: architecture {name} is not supported", hint=f"supported: {', '.join(known)}"
        )
    return known[name]


def _kv_heads(fields: Fields, kind: Architecture, heads: int) -> int:
    """Absent: the class's default; null: as many as query heads."""
    absent = "num_key_value_heads" not in fields.config
    count = fields.whole("num_key_value_heads", (kind.kv_heads if absent else None) or heads, most=MOST_HEADS)
    if heads % count:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}", count)
    return count


def _head_width(fields: Fields, kind: Architecture, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is None and kind.head_width is None and hidden % heads:
        raise fields.wrong("hidden_size", f"a multiple of num_attention_heads = {heads} without a head_dim", hidden)
    width = fields.whole("head_dim", kind.head_width or hidden // heads, most=MOST_WIDTH)
    if width % 2:  # the rotary embedding turns pairs
        raise fields.wrong("head_dim", "even", width)
    return width


def _activation(fields: Fields, kind: Architecture) -> str:
    if kind.activation_field != "hidden_act":
        fields.get("hidden_act")  # of these classes' configs, read by nobody
    said = fields.get(kind.activation_field) or kind.activation
    if said == "gelu" and kind.activation == "gelu_pytorch_tanh":
        said = kind.activation  # the first Gemma's configs say so, and mean the other
    if said not in ACTIVATIONS:
        raise EnvironmentRefused(f"{fields.name}: config field {kind.activation_field} = {said!r} is not supported")
    return ACTIVATIONS[said]


def _with_rotary(shape: ModelShape, fields: Fields, kind: Architecture) -> ModelShape:
    """The shape with its windows, rotary embeddings and the context that they serve."""
    full, local, context = _ropes(shape, fields, kind)
    kinds, window = _layer_kinds(fields, kind, shape.layers)
    sliding = [layer == SLIDING for layer in kinds]
    seen = window if window is not None and window < context else None
    windows = tuple(seen if slides else None for slides in sliding)
    without = _layers_without_rope(fields, kind, shape.layers)
    still = no_rope(shape.head_width)
    ropes = tuple(
        still if i in without else local if local is not None and slides else full for i, slides in enumerate(sliding)
    )
    theta, plain = _plain_theta(fields, kind), all(rope == ropes[0] for rope in ropes)
    unscaled = Rope(frequencies=tuple(theta ** (-2 * i / shape.head_width) for i in range(shape.head_width // 2)))
    turned = sum(f != 0 for f in full.frequencies) * 2
    traits = replace(
        shape.traits,
        windows=windows if any(windows) else (),
        ropes=() if plain and ropes[0] == unscaled else ropes,
        turned=turned if turned < shape.head_width else None,
    )
    return replace(shape, rope_theta=theta, context=context, traits=traits)


def _plain_theta(fields: Fields, kind: Architecture) -> float:
    nested = fields.config.get("rope_parameters") or fields.config.get("rope_scaling") or {}
    said = nested.get(FULL, nested) if isinstance(nested.get(FULL, nested), dict) else nested
    theta = said.get("rope_theta") or fields.config.get("rope_theta")
    return kind.theta if theta is None else float(theta)


def _ropes(shape: ModelShape, fields: Fields, kind: Architecture) -> tuple[Rope, Rope | None, int]:
    """Of full layers, of sliding ones where they have their own, and the context served."""
    parameters, scaling = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    nested = scaling or parameters
    by_layer = FULL in nested or SLIDING in nested
    if by_layer and kind.local_theta is None:
        raise EnvironmentRefused(f"{fields.name}: rope_parameters by kind of layer are not known to this architecture")
    outer = {}
    if kind.partial or fields.get("partial_rotary_factor") not in (None, 1, 1.0):
        outer["partial_rotary_factor"] = fields.get("partial_rotary_factor")
    if outer.get("partial_rotary_factor") is not None and not kind.partial:
        raise EnvironmentRefused(f"{fields.name}: config field partial_rotary_factor is not known to this architecture")
    original = fields.get("original_max_position_embeddings")
    original = None if original is None else fields.whole("original_max_position_embeddings", most=MOST_CONTEXT)

    def made(params: Any, theta: float) -> tuple[Rope, int]:
        if not isinstance(params, dict):
            raise fields.wrong("rope_parameters", "an object of objects", params)
        if "partial_rotary_factor" in params and not kind.partial and params["partial_rotary_factor"] not in (None, 1):
            raise EnvironmentRefused(f"{fields.name}: rope_parameters.partial_rotary_factor is not known here")
        if kind.partial and params.get("type") == "yarn":
            params = {**params, "type": "longrope"}
        return rope_of(
            RopeFields(
                params={**outer, **params},
                name=fields.name,
                theta=theta,
                width=shape.head_width,
                context=shape.context,
                original=original,
            )
        )

    full, context = made(nested.get(FULL, {}) if by_layer else nested, fields.number("rope_theta", kind.theta))
    if kind.local_theta is None:
        return full, None, context
    base = fields.number("rope_local_base_freq", kind.local_theta)
    local, _ = made(nested.get(SLIDING, {}) if by_layer else {}, base)
    return full, local, context


def _layer_kinds(fields: Fields, kind: Architecture, layers: int) -> tuple[list[str], int | None]:
    """full_attention or sliding_attention of each layer, and the window of the sliding ones (None: no window)."""
    listed, default = fields.get("layer_types"), [FULL] * layers
    if fields.get("use_bidirectional_attention"):
        raise EnvironmentRefused(f"{fields.name}: use_bidirectional_attention is not supported")
    window: int | None = None
    if kind.windows != "none":
        absent = "sliding_window" not in fields.config
        window = None if fields.get("sliding_window") is None else fields.whole("sliding_window", most=MOST_CONTEXT)
        window = kind.window if absent else window
        switched = kind.windows in ("last", "listed") and not fields.flag("use_sliding_window", False)
        window = None if switched else window
    if window is not None:
        first = fields.whole("max_window_layers", 28) if kind.windows == "last" else 0
        pattern = fields.whole("sliding_window_pattern", 6) if kind.windows == "pattern" else 2
        sliding = {
            "all": set(range(layers)),
            "last": set(range(first, layers)),
            "even": set(range(0, layers, 2)),
            "pattern": {i for i in range(layers) if (i + 1) % pattern},
            "listed": _layers_without_rope(fields, kind, layers),
        }[kind.windows]
        default = [SLIDING if i in sliding else FULL for i in range(layers)]
    for key in ("max_window_layers", "sliding_window_pattern", "use_sliding_window"):
        if kind.windows != "none":
            fields.get(key)
    kinds = default if listed is None else listed
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        raise fields.wrong("layer_types", f"{layers} times {FULL} or {SLIDING}", listed)
    if kind.windows in ("none", "all") and kinds != default:
        raise EnvironmentRefused(f"{fields.name}: config field layer_types is not known to this architecture")
    return kinds, window


def _layers_without_rope(fields: Fields, kind: Architecture, layers: int) -> set[int]:
    """SmolLM3: `no_rope_layers` holds 0 for a layer without; absent, each `no_rope_layer_interval`-th is."""
    if kind.windows != "listed":
        return set()
    interval = fields.whole("no_rope_layer_interval", 4)
    said = fields.get("no_rope_layers")
    turned = [int((i + 1) % interval != 0) for i in range(layers)] if said is None else said
    if not isinstance(turned, list) or len(turned) != layers or not set(turned) <= {0, 1}:
        raise fields.wrong("no_rope_layers", f"{layers} times 0 or 1", said)
    return {i for i, turns in enumerate(turned) if not turns}


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder. Raises UsageError if it is absent or not JSON."""
    return read_object(folder / "config.json", absent=f"{folder} holds no config.json")


def read_object(path: Path, *, absent: str) -> dict[str, Any]:
    """The JSON object of a file. Raises UsageError with `absent` if there is none, or if it is something else."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(absent, hint="a Hugging Face model folder is expected") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} is not a JSON object")
    return loaded


def stop_ids(folder: Path, config: Mapping[str, Any], vocab: int) -> frozenset[int]:
    """Ends of sequence that config.json and generation_config.json name, together. Raises UsageError for no id."""
    path = folder / "generation_config.json"
    others = read_object(path, absent="") if path.exists() else {}
    found: set[int] = set()
    for where, said in (("config.json", config.get("eos_token_id")), (path.name, others.get("eos_token_id"))):
        for one in said if isinstance(said, list) else [] if said is None else [said]:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < vocab:
                raise UsageError(f"{folder}: eos_token_id of {where} must name ids below {vocab}, got {said!r}")
            found.add(one)
    return frozenset(found)
