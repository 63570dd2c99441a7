"""Text to ids and back. The engine never sees text; it sees what this makes.

A control token is an added token that is special, or that the chat template writes. In a message it is text: only the
template's own become control tokens, unless `parse_special` says otherwise.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.errors import UsageError
from dsbench.runtime.targets.chat_template import Content, read_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # noncharacters: no text in any language holds one


class ChatTokenizer:
    """tokenizer.json of a model folder, with its chat template.

    `vocab`: rows of the model's embedding, None where they are not known; `arguments` of the template.
    """

    def __init__(
        self,
        folder: Path,
        *,
        arguments: Mapping[str, Any] | None = None,
        parse_special: bool = False,
        vocab: int | None = None,
    ) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise UsageError(f"{folder} holds no tokenizer.json", hint="this target can only run shapes, not text")
        self.folder, self.parse_special, self.vocab = folder, parse_special, vocab
        try:
            self._body = path.read_bytes().decode("utf-8-sig")
            extra = _object(folder / "tokenizer_config.json")
            self._tokenizer = _parsed(self._body)
        except Exception as problem:  # tokenizers raises bare Exception for a garbled file
            reason = " ".join(str(problem).split())
            raise UsageError(f"the tokenizer of {folder} cannot be read: {reason}") from None
        self.template = read_template(folder, extra, arguments or {})

    def configured(self, *, arguments: Mapping[str, Any], parse_special: bool, vocab: int) -> ChatTokenizer:
        """The same tokenizer with other settings."""
        return ChatTokenizer(self.folder, arguments=arguments, parse_special=parse_special, vocab=vocab)

    @property
    def digest(self) -> str:
        """Of what ids depend on, the template aside."""
        text = f"{self._body}\0{self.parse_special}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def chat(self, messages: Sequence[tuple[str, Content]]) -> str:
        """The prompt text of (role, content) turns, ending where the assistant is to speak."""
        return self.template.render(messages)

    def encode(self, text: str) -> list[int]:
        """Control tokens in the text are read as such. Raises UsageError for an id that the model does not have."""
        return self._checked(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Sequence[tuple[str, Content]]) -> list[int]:
        """Ids of the prompt; control tokens in a message are its text unless `parse_special`."""
        texts = [text for _, content in messages for text in ([content] if isinstance(content, str) else content)]
        if self.parse_special or self._written is None or not any(map(self._written.search, texts)):
            return self.encode(self.chat(messages))
        return self._encode_apart(messages, _unused_marks("".join(texts) + self.template.text))

    def _encode_apart(self, messages: Sequence[tuple[str, Content]], marks: tuple[str, str, str]) -> list[int]:
        """The messages' control tokens go through the template between two marks; the rest, which are the template's,
        are then spelled with a third, as a tokenizer expects them that knows no other spelling."""
        written = self._written
        assert written is not None
        opened, closed, spelled = marks

        def marked(text: str) -> str:
            return written.sub(lambda found: opened + found[0] + closed, text)

        def told(found: re.Match[str]) -> str:
            if found[0] in (opened, closed):  # the template cut a message in the middle of a token
                return ""
            return found["user"] if found["user"] is not None else _alias(found[0], spelled)

        turns = [(r, marked(c) if isinstance(c, str) else tuple(map(marked, c))) for r, c in messages]
        pattern = f"{opened}(?P<user>{written.pattern}){closed}|{written.pattern}|{opened}|{closed}"
        text = re.sub(pattern, told, self.chat(turns))
        tokenizer, real = self._renamed(spelled)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return self._checked([real.get(i, i) for i in ids])

    def _renamed(self, mark: str) -> tuple[Tokenizer, dict[int, int]]:
        """A tokenizer whose control tokens are spelled with `mark`, and its ids of them to the true ones."""
        body = json.loads(self._body)
        for token in body["added_tokens"]:
            if token["content"] in self._controls:
                token["content"] = _alias(token["content"], mark)
        renamed = _parsed(json.dumps(body))
        aliases = {text: renamed.token_to_id(_alias(text, mark)) for text in self._controls}
        return renamed, {i: self._controls[text] for text, i in aliases.items() if i is not None}

    @cached_property
    def _controls(self) -> dict[str, int]:
        """Ids of the control tokens by their text; what is blank alone is written as ordinary text too."""
        literals = self.template.literals()
        return {
            token.content: i
            for i, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.content and (token.special or (token.content in literals and not token.content.isspace()))
        }

    @cached_property
    def _written(self) -> re.Pattern[str] | None:
        """Finds control tokens in a text, the longest at a place; None where the tokenizer has none."""
        longest = sorted(self._controls, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest))) if longest else None

    def decode(self, ids: Sequence[int], stops: Sequence[str] = ()) -> str:
        """Text of the ids; bytes that are no UTF-8 yet become U+FFFD.

        Control tokens are left out, but for those that a stop string holds.
        """
        shown = {i: text for text, i in self._controls.items() if any(text in stop for stop in stops)} if stops else {}
        pieces, run = list[str](), list[int]()
        for i in ids:
            if i in shown:
                pieces += [self._plain(run), shown[i]]
                run = []
            else:
                run.append(i)
        return "".join([*pieces, self._plain(run)])

    def _plain(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _checked(self, ids: Sequence[int]) -> list[int]:
        if self.vocab is not None and ids and max(ids) >= self.vocab:
            raise UsageError(
                f"the tokenizer of {self.folder} writes the id {max(ids)}, the model has {self.vocab} tokens",
                hint="are tokenizer.json and the weights of one model?",
            )
        return list(ids)


def _parsed(body: str) -> Tokenizer:
    """Padding and truncation, which a file may carry from its training, would change prompts: they are off."""
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(body)
    made.no_padding()
    made.no_truncation()
    return made


def _object(path: Path) -> dict[str, Any]:
    """tokenizer_config.json, which a folder whose template lies in a file may lack."""
    found = json.loads(path.read_bytes().decode("utf-8-sig")) if path.exists() else {}
    if not isinstance(found, dict):
        raise UsageError(f"{path.name} holds no object")
    return found


def _alias(text: str, mark: str) -> str:
    """A spelling that no text has."""
    return mark + text + mark


def _unused_marks(text: str) -> tuple[str, str, str]:
    free = [mark for mark in MARKS if mark not in text]
    if len(free) < 3:
        raise UsageError("a prompt holds control tokens beside Unicode noncharacters", hint="give --parse-special")
    return free[0], free[1], free[2]
