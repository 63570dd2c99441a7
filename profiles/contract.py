"""Contracts: the conditions a file was measured under, compared with the current ones.

A contract maps field names (target hash, drafter hash, dtype, G, device, threads) to strings. Owns the comparison and
its refusal; gathering the fields is the caller's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsbench.errors import EnvironmentRefused

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field on which two contracts disagree; a side that lacks the field reads `(absent)`."""

    field: str
    recorded: str
    current: str

    def __str__(self) -> str:
        return f"{self.field}: recorded {self.recorded}, here {self.current}"


def differences(
    recorded: Mapping[str, str], current: Mapping[str, str], *, fields: Iterable[str] | None = None
) -> tuple[Difference, ...]:
    """The fields that differ, in name order. `fields` limits the comparison; by default every field of either side."""
    names = sorted(set(recorded) | set(current)) if fields is None else sorted(set(fields))
    pairs = [(name, recorded.get(name, ABSENT), current.get(name, ABSENT)) for name in names]
    return tuple(Difference(field=name, recorded=old, current=new) for name, old, new in pairs if old != new)


def check_contract(
    recorded: Mapping[str, str],
    current: Mapping[str, str],
    *,
    what: str,
    fields: Iterable[str] | None = None,
    may_differ: Mapping[str, str] | None = None,
    hint: str = "",
) -> tuple[str, ...]:
    """Refuse `what` when its contract does not fit; return a note for each field that differs and may.

    `may_differ` maps a field that may differ to the note on what that means. Raises EnvironmentRefused naming every
    other field that differs, with its recorded and its current value.
    """
    allowed = may_differ or {}
    found = differences(recorded, current, fields=fields)
    refused = [difference for difference in found if difference.field not in allowed]
    if refused:
        raise EnvironmentRefused(f"{what} does not fit: " + "; ".join(map(str, refused)), hint=hint)
    return tuple(f"{difference} ({allowed[difference.field]})" for difference in found)
