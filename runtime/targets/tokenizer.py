"""Text to ids and back, and the chat template. The engine never sees text; it sees what this makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dsbench.errors import UsageError


class ChatTokenizer:
    """tokenizer.json of a model folder, with the chat template of its tokenizer_config.json."""

    def __init__(self, folder: Path) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.exists():
            raise UsageError(f"{folder} holds no tokenizer.json", hint="this target can only run shapes, not text")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            extra = json.loads((folder / "tokenizer_config.json").read_text())
        except Exception as problem:  # tokenizers raises bare Exception for a garbled file
            raise UsageError(f"the tokenizer of {folder} cannot be read: {problem}") from None
        template = extra.get("chat_template") or _template_file(folder)
        if template is None:
            raise UsageError(f"{folder} has no chat template", hint="tokenizer_config.json lacks chat_template")
        self._template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)
        self._names = {key: _token_text(extra.get(key)) for key in ("bos_token", "eos_token")}

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The prompt text of (role, content) turns, ending where the assistant is to speak."""
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(self._template.render(messages=turns, add_generation_prompt=True, **self._names))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode(self.chat(messages))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, control tokens left out; bytes that are no UTF-8 yet become U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _template_file(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    return path.read_text() if path.exists() else None


def _token_text(token: object) -> str:
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return str(token or "")
