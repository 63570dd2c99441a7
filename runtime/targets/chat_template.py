"""Chat templates: the Jinja text of a model folder, rendered as transformers renders it.

A template is a stranger's code: it runs in Jinja's sandbox and sees plain text, numbers and lists alone.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dsbench.errors import UsageError

Content = str | tuple[str, ...]  # a text, or the texts of its parts
CHOOSES = "chat_template"  # the template argument that names one of several templates
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
PROBE = "dsbench-probe"
MOST, MOST_POWER = 1 << 24, 64  # letters of a product, exponent of a power


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant wrote for training; here it prints what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which a product cannot fill the memory either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        sequences = [x for x in (left, right) if isinstance(x, str | list | tuple)]
        counts = [x for x in (left, right) if isinstance(x, int)]
        filled = operator == "*" and sequences and counts and len(sequences[0]) * counts[0] > MOST
        if filled or (operator == "**" and not -MOST_POWER <= right <= MOST_POWER):
            raise jinja2.exceptions.SecurityError(f"a result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """One template with what it is given beside the conversation: special tokens' texts, and the user's arguments.

    `source`: its folder, for messages. `now`: what `strftime_now` writes, the same for all prompts of a run.
    """

    source: str
    text: str
    tokens: Mapping[str, str]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    now: datetime.datetime = field(default_factory=datetime.datetime.now)

    @property
    def digest(self) -> str:
        """Of everything that a rendered prompt depends on; the date is part of it where the template writes one."""
        today = self.now.date().isoformat() if "strftime_now" in self.text else ""
        facts = [self.text, dict(self.tokens), dict(self.arguments), today]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]

    def render(self, messages: Sequence[tuple[str, Content]]) -> str:
        """The prompt text of (role, content) turns, ending where the assistant is to speak.

        Content in parts goes to the template as it is where the template reads parts, else as one text; a text goes as
        one part to a template that reads nothing else. Raises UsageError with the template's own complaint.
        """
        turns = [{"role": role, "content": self._content(content)} for role, content in messages]
        return self._render(turns)

    def check(self) -> None:
        """Raises UsageError for a template that does not parse."""
        assert self._compiled is not None

    def literals(self) -> str:
        """The texts that the template can write by itself, apart from each other."""
        tree = self._environment.parse(self.text)
        found = {node.data for node in tree.find_all(nodes.TemplateData)}
        found |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return "\0".join(sorted(found))

    def _content(self, content: Content) -> object:
        whole = content if isinstance(content, str) else "".join(content)
        parts = [whole] if isinstance(content, str) else list(content)
        if self._reads("text") and (isinstance(content, str) or not self._reads("parts")):
            return whole
        return [{"type": "text", "text": part} for part in parts] if self._reads("parts") else whole

    def _reads(self, kind: str) -> bool:
        return kind in self._forms

    @cached_property
    def _forms(self) -> frozenset[str]:
        """Which forms of content reach the prompt: tried on a message, since a template does not say."""
        forms = {"text": PROBE, "parts": [{"type": "text", "text": PROBE}]}
        return frozenset(kind for kind, content in forms.items() if self._shows(content))

    def _shows(self, content: object) -> bool:
        try:
            rendered = self._render([{"role": "user", "content": content}])
        except UsageError:
            return False
        return PROBE in rendered and "{'" not in rendered  # not a list printed as Python prints it

    def _render(self, turns: Sequence[Mapping[str, object]]) -> str:
        given = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return str(self._compiled.render(**{**given, **self.tokens, **self.arguments}))
        except Exception as problem:  # a template raises what it likes: Jinja's errors, TypeError, RecursionError
            raise UsageError(
                f"the chat template of {self.source} fails: {_one_line(problem)}",
                hint="does it take these roles and these --template-arg?",
            ) from None

    @cached_property
    def _compiled(self) -> jinja2.Template:
        try:
            return self._environment.from_string(self.text)
        except (jinja2.TemplateError, RecursionError, ValueError, OverflowError) as problem:
            raise UsageError(f"the chat template of {self.source} cannot be read: {_one_line(problem)}") from None

    @cached_property
    def _environment(self) -> jinja2.Environment:
        made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        made.filters["tojson"] = _to_json
        made.globals |= {"raise_exception": _raise, "strftime_now": self.now.strftime}
        return made


def read_template(folder: Path, config: Mapping[str, Any], arguments: Mapping[str, Any]) -> ChatTemplate:
    """The template of a model folder: of its files, else of its tokenizer_config.json, given as `config`.

    Of several, the one that the argument `chat_template` names, or "default". Raises UsageError where there is none.
    """
    templates = _files(folder) or _configured(folder, config.get("chat_template"))
    if not templates:
        raise UsageError(f"{folder} has no chat template", hint="tokenizer_config.json lacks chat_template")
    name = str(arguments.get(CHOOSES, "default"))
    if name not in templates:
        raise UsageError(
            f"{folder} has no chat template named {name!r}",
            hint=f"--template-arg {CHOOSES}=NAME with one of: {', '.join(sorted(templates))}",
        )
    given = {key: value for key, value in arguments.items() if key != CHOOSES}
    made = ChatTemplate(source=str(folder), text=templates[name], tokens=special_tokens(config), arguments=given)
    made.check()
    return made


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens that tokenizer_config.json names; what it leaves out is undefined in a template."""
    found = {key: config.get(key) for key in SPECIAL}
    texts = {key: token.get("content") if isinstance(token, dict) else token for key, token in found.items()}
    return {key: str(text) for key, text in texts.items() if text is not None}


def parse_arguments(text: str) -> dict[str, Any]:
    """`name=value,name=value` as template arguments; values are JSON, else text. Raises UsageError naming a bad one."""
    found: dict[str, Any] = {}
    for part in re.split(r",(?=\s*[A-Za-z_]\w*\s*=)", text) if text.strip() else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or name in ("messages", "add_generation_prompt"):
            raise UsageError(f"template argument {part.strip()!r} is not name=value", hint="e.g. enable_thinking=false")
        if name in found:
            raise UsageError(f"template argument {name} is given twice")
        try:
            found[name] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except (ValueError, RecursionError):
            found[name] = value
    return found


def _files(folder: Path) -> dict[str, str]:
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.exists()}
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"a chat template of {folder} cannot be read: {_one_line(problem)}") from None


def _configured(folder: Path, found: object) -> dict[str, str]:
    """A text, or a list of named ones."""
    if found is None or isinstance(found, str):
        return {} if found is None else {"default": found}
    named = found if isinstance(found, list) else [{"name": k, "template": v} for k, v in dict(_object(found)).items()]
    pairs = [(one.get("name"), one.get("template")) for one in named if isinstance(one, dict)]
    if len(pairs) < len(named) or not all(isinstance(part, str) for pair in pairs for part in pair):
        raise UsageError(f"{folder}/tokenizer_config.json: chat_template is neither a text nor a list of named texts")
    return {str(name): str(text) for name, text in pairs}


def _object(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {"": found}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes what HTML would read as markup; a prompt is none."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _one_line(problem: Exception) -> str:
    line = f", line {problem.lineno}" if isinstance(problem, jinja2.TemplateSyntaxError) else ""
    return " ".join(str(problem).split())[:300] + line or type(problem).__name__
