"""Reads prompts from JSON lines in the shapes that public sets use. Names and licences of sets are in pull.py.

Accepted rows: `question` (GSM8K), `prompt` (text or messages), `turns` (MT-Bench: the first one), `conversations`
(ShareGPT: the first human turn), `messages` (OpenAI: up to the last user message).
"""

from __future__ import annotations

import json
from pathlib import Path

from dsbench.errors import UsageError
from dsbench.workloads.lines import numbered_lines, read_text

Content = str | tuple[str, ...]  # a text, or the texts of its parts
Messages = tuple[tuple[str, Content], ...]  # (role, content) pairs
SHAPES = "each line is an object with `prompt`, `question`, `turns`, `conversations` or `messages`"
ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


class _BadRow(Exception):
    """What is wrong with a row, before the file and the line are known."""


def read_messages(path: Path) -> tuple[tuple[int, Messages], ...]:
    """The line number and the messages of every row, in file order; a row's messages end with a user message.

    Blank lines are skipped. UsageError: the file is missing, unreadable or empty, a line is no JSON, a row has none of
    the accepted shapes.
    """
    rows = tuple(
        (number, _messages_at(path, number, line)) for number, line in numbered_lines(read_text(path, ".jsonl"))
    )
    if not rows:
        raise UsageError(f"{path}: no prompts in the file", hint=SHAPES)
    return rows


def _messages_at(path: Path, number: int, line: str) -> Messages:
    try:
        return _row_messages(json.loads(line))
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise UsageError(f"{path}:{number}: not JSON ({reason})", hint="one JSON object a line") from None
    except _BadRow as error:
        raise UsageError(f"{path}:{number}: {error}", hint=SHAPES) from None


def _row_messages(row: object) -> Messages:
    if not isinstance(row, dict):
        raise _BadRow(f"a row must be an object, not {type(row).__name__}")
    if "messages" in row:
        return _dialogue(row["messages"], "messages")
    if "conversations" in row:
        return _first_human(row["conversations"])
    if "turns" in row:
        return _first_turn(row["turns"])
    if "prompt" in row:
        prompt = row["prompt"]
        return _dialogue(prompt, "prompt") if isinstance(prompt, list) else _user(prompt, "prompt")
    if "question" in row:
        return _user(row["question"], "question")
    keys = ", ".join(sorted(map(str, row))[:6]) or "none"
    raise _BadRow(f"row of unknown shape (keys: {keys})")


def _user(content: object, field: str) -> Messages:
    return (("user", _text(content, field)),)


def _text(content: object, field: str) -> Content:
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        parts = tuple(str(part.get("text", "")) for part in content)
        whole = _text("".join(parts), field)
        return parts if len(parts) > 1 else whole
    if not isinstance(content, str):
        raise _BadRow(f"`{field}` must hold text, not {type(content).__name__}")
    if any("\ud800" <= c <= "\udfff" for c in content):
        raise _BadRow(f"`{field}` holds half of a surrogate pair")
    if not content.strip():
        raise _BadRow(f"`{field}` is empty")
    return content


def _turns(value: object, field: str, role_key: str, text_key: str) -> list[tuple[str, object]]:
    if not isinstance(value, list):
        raise _BadRow(f"`{field}` must be a list, not {type(value).__name__}")
    turns: list[tuple[str, object]] = []
    for turn in value:
        role = turn.get(role_key) if isinstance(turn, dict) else None
        if not isinstance(role, str) or role not in ROLES or text_key not in turn:
            raise _BadRow(f"`{field}` has a turn without a known `{role_key}` and a `{text_key}`")
        turns.append((ROLES[role], turn[text_key]))
    return turns


def _dialogue(value: object, field: str) -> Messages:
    turns = _turns(value, field, "role", "content")
    while turns and turns[-1][0] != "user":
        turns.pop()
    if not turns:
        raise _BadRow(f"`{field}` has no user message")
    return tuple((role, _text(content, field)) for role, content in turns)


def _first_human(value: object) -> Messages:
    for role, content in _turns(value, "conversations", "from", "value"):
        if role == "user":
            return _user(content, "conversations")
    raise _BadRow("`conversations` has no human turn")


def _first_turn(value: object) -> Messages:
    if not isinstance(value, list) or not value:
        raise _BadRow("`turns` must be a list with at least one turn")
    return _user(value[0], "turns")
