"""The tokenizer of a GGUF file -> tokenizer.json and tokenizer_config.json, for kinds whose rules are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError

CONTROL, USER_DEFINED = 3, 4  # GGUF token types: control tokens, and others that no merge makes
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
ENDINGS, REST = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # pre-tokenizer -> how text is split before merges; None: GPT-2's own
    "llama-bpe": rf"{ENDINGS}|{WORDS}|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{ENDINGS}|{WORDS}|\p{{N}}|{REST}",
    "smollm": None,
    "gpt-2": None,
}
SAME = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


def write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Writes both files from the GGUF's tokens and merges, the chat template with them.

    Raises EnvironmentRefused for a kind that is not known, UsageError naming a key that lacks or is damaged.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), str(fields.get("tokenizer.ggml.pre"))
    pre = SAME.get(pre, pre)
    if kind != "gpt2" or pre not in PATTERNS:
        known = ", ".join(f"gpt2/{name}" for name in PATTERNS)
        raise EnvironmentRefused(f"tokenizer {kind}/{pre} of this GGUF is not supported", hint=f"supported: {known}")
    try:
        tokens = [str(token) for token in fields["tokenizer.ggml.tokens"]]
        types = [int(t) for t in fields["tokenizer.ggml.token_type"]]
        merges = [pair_of(str(merge)) for merge in fields["tokenizer.ggml.merges"]]
    except KeyError as missing:
        raise UsageError(f"this GGUF lacks the key {missing.args[0]}") from None
    if len(types) != len(tokens):
        raise UsageError(f"this GGUF has {len(tokens)} tokens and {len(types)} token types")
    try:
        _tokenizer(pre, tokens, types, merges).save(str(folder / "tokenizer.json"))
    except Exception as problem:  # tokenizers raises bare Exception for merges of what is no token
        raise UsageError(f"the tokenizer of this GGUF is damaged: {problem}") from None
    named = {f"{name}_token": fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    extra = {
        "chat_template": fields.get("tokenizer.chat_template"),
        **{name: None if i is None else tokens[int(i)] for name, i in named.items()},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(extra, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def pair_of(merge: str) -> tuple[str, str]:
    """The two parts of a merge. Raises UsageError for anything else."""
    parts = merge.split(" ")
    if len(parts) != 2:
        raise UsageError(f"this GGUF has a merge that is no pair: {merge!r:.40}")
    return parts[0], parts[1]


def _tokenizer(pre: str, tokens: list[str], types: list[int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    whole = pre == "llama-bpe"  # a word that is a token is that token, whatever its merges
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=whole))
    pattern = PATTERNS[pre]
    if pattern is not None:
        first: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated")]
    else:
        first = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, bytes_of])
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    others = [t for t, kind in zip(tokens, types, strict=True) if kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in others])
    return tokenizer
