"""Typed fields of a target's config.json, and the refusal of a field that nobody has read. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError

# what a config.json may hold without changing what the model computes: metadata, training, generation defaults
METADATA = """
_attn_implementation _attn_implementation_autoset _flash_attn_2_enabled _name_or_path _sliding_window_pattern
architectures attention_dropout attn_implementation auto_map bad_words_ids begin_suppress_tokens bos_token_id
cache_implementation chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty
do_sample dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
finetuning_task forced_bos_token_id forced_eos_token_id full_attn_mod hidden_dropout id2label initializer_range
interpolate_factor is_llama_config label2id length_penalty max_length min_length model_type name_or_path
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
output_scores pad_token_id prefix pretraining_tp problem_type pruned_heads remove_invalid_values repetition_penalty
resid_pdrop return_dict return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature
tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config transformers_version
typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
NO_EFFECT = frozenset(METADATA.split())
MOST = 1 << 24  # of any size: more is a damaged file


class Fields:
    """Reads a config's fields by type and remembers which were read; null counts as absent."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config, self.name = config, name
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        self._read.add(key)
        return self.config.get(key)

    def whole(self, key: str, default: int | None = None, *, most: int = MOST) -> int:
        """An integer in 1..most. Raises UsageError if it is no such number, or absent without a default."""
        value = self.get(key)
        if value is None and default is None:
            raise UsageError(f"{self.name}: config.json lacks the field {key}")
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.wrong(key, f"an integer in 1..{most}", value)
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(key, "a number above 0", value)
        return float(value)

    def optional(self, key: str) -> float | None:
        """A finite number above 0, or None."""
        return None if self.get(key) is None else self.number(key, 0.0)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return dict(value or {})

    def wrong(self, key: str, wanted: str, value: Any) -> UsageError:
        return UsageError(f"{self.name}: config field {key} must be {wanted}, got {value!r}")

    def refuse_rest(self) -> None:
        """Raises EnvironmentRefused naming a field that was not read, is not off and not known to have no effect."""
        for key, value in self.config.items():
            off = value is None or value is False
            if not off and key not in self._read and key not in NO_EFFECT:
                raise EnvironmentRefused(
                    f"{self.name}: config field {key} = {value!r:.80} is not known to this architecture",
                    hint="it may change what the model computes; remove it from config.json if it does not",
                )
