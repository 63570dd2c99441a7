"""Loads a prompt set by name and shuffles it by seed.

A spec is a built-in name, a pulled real set, a path to a .jsonl file, or `mix:math=1,chat=1`. The order depends on the
prompts' ids and the seed alone, so it is the same on every machine and every Python.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from dsbench.errors import UsageError
from dsbench.ranges import MIX, split_files
from dsbench.workloads import prompts_chat, prompts_code, prompts_longtext, prompts_math, prompts_poetry
from dsbench.workloads.jsonl import Messages, read_messages
from dsbench.workloads.lines import file_text
from dsbench.workloads.pull import REAL_SETS, is_pulled, pulled_path
from dsbench.workloads.rng import shuffled

BUILT_IN: Mapping[str, Callable[[], tuple[str, ...]]] = MappingProxyType(
    {
        "math": prompts_math.prompts,
        "chat": prompts_chat.prompts,
        "code": prompts_code.prompts,
        "poetry": prompts_poetry.prompts,
        "longtext": prompts_longtext.prompts,
    }
)
MIX_HINT = "a mix is mix:NAME=WEIGHT,NAME=WEIGHT with weights above zero, for example mix:math=2,chat=1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. `messages` are (role, content) pairs and end with a user message."""

    id: str
    workload: str
    messages: Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Prompts in their shuffled order.

    `digest` is the SHA-256 of the prompts in the set's own order: it does not depend on the seed. Of a mix it covers
    the members' digests and weights.
    """

    name: str
    prompts: tuple[Prompt, ...]
    source: str
    licence: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One row of the table of known sets; `state` is "built-in", "pulled" or "not pulled"."""

    name: str
    prompts: int
    source: str
    licence: str
    state: str


def load_workload(spec: str, *, seed: int, home: Path) -> Workload:
    """The workload that `spec` names, shuffled by `seed`; pulled sets lie under `home`.

    UsageError: an unknown name, a set not pulled yet, a missing or malformed file, a mix that makes no sense.
    """
    if spec.startswith(MIX):
        return mix(spec, lambda member: load_workload(member, seed=seed, home=home))
    if spec in BUILT_IN:
        texts = BUILT_IN[spec]()
        width = len(str(len(texts)))
        prompts = tuple(
            Prompt(id=f"{spec}-{number:0{width}d}", workload=spec, messages=(("user", text),))
            for number, text in enumerate(texts, start=1)
        )
        return _ordered(spec, prompts, seed, source="written for dsbench", licence="Apache-2.0")
    if spec in REAL_SETS:
        real = REAL_SETS[spec]
        path = pulled_path(spec, home=home)
        if not is_pulled(spec, home=home):
            state = f"was changed after it was pulled ({path})" if path.exists() else "is not pulled yet"
            raise UsageError(f"workload {spec} {state}", hint=f"run `dsbench workloads pull {spec}`")
        prompts = _from_file(path, spec)
        return _ordered(spec, prompts, seed, source=real.source, licence=real.licence)
    if is_file(spec):
        path = Path(spec).expanduser()
        name = file_text(path.stem)
        return _ordered(
            name, _from_file(path, name), seed, source=f"file {file_text(path.name)}", licence="not declared"
        )
    raise _unknown(spec)


def is_file(spec: str) -> bool:
    """Whether a spec is a file of prompts, not a set's name."""
    return spec.lower().endswith(".jsonl")


def catalogue(*, home: Path) -> list[CatalogueEntry]:
    """Every known set, built-in ones first; a set that is not pulled states the size it will have."""
    entries = [
        CatalogueEntry(
            name=name, prompts=len(prompts()), source="written for dsbench", licence="Apache-2.0", state="built-in"
        )
        for name, prompts in BUILT_IN.items()
    ]
    for name, real in REAL_SETS.items():
        state = "pulled" if is_pulled(name, home=home) else "not pulled"
        entries.append(
            CatalogueEntry(name=name, prompts=real.count, source=real.source, licence=real.licence, state=state)
        )
    return entries


def digest_of(prompts: Iterable[Prompt]) -> str:
    """SHA-256 of ids, workloads and messages, in the order given."""
    digest = hashlib.sha256()
    for prompt in prompts:
        row = [prompt.id, prompt.workload, [list(message) for message in prompt.messages]]
        digest.update(json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def interleave(weights: Mapping[str, Fraction], sizes: Mapping[str, int]) -> list[str]:
    """Order of a mix's members by smooth weighted round robin, until the next in turn is exhausted.

    Members are spread evenly, and exactly in proportion over a cycle; ties go to the one named first.
    """
    credit = dict.fromkeys(weights, Fraction(0))
    left = dict(sizes)
    total = sum(weights.values(), Fraction(0))
    turns: list[str] = []
    while True:
        for name, weight in weights.items():
            credit[name] += weight
        chosen = max(credit, key=lambda name: credit[name])
        if left[chosen] == 0:
            return turns
        credit[chosen] -= total
        left[chosen] -= 1
        turns.append(chosen)


def _ordered(name: str, prompts: tuple[Prompt, ...], seed: int, *, source: str, licence: str) -> Workload:
    order = tuple(shuffled(prompts, lambda prompt: prompt.id, seed))
    return Workload(name=name, prompts=order, source=source, licence=licence, digest=digest_of(prompts))


def _from_file(path: Path, workload: str) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(id=f"{workload}-{line:05d}", workload=workload, messages=messages)
        for line, messages in read_messages(path)
    )


def _unknown(spec: str) -> UsageError:
    known = [*BUILT_IN, *REAL_SETS]
    close = difflib.get_close_matches(spec, known, n=3, cutoff=0.5)
    if close:
        return UsageError(f"unknown workload {spec!r}", hint=f"did you mean {' or '.join(close)}?")
    return UsageError(f"unknown workload {spec!r}", hint=f"known: {', '.join(known)}, a .jsonl file, or mix:...")


def mix(spec: str, load: Callable[[str], Workload]) -> Workload:
    """The mix that `spec` names, of members loaded by `load`. Raises UsageError for an invalid mix."""
    weights: dict[str, Fraction] = {}
    members: dict[str, Workload] = {}
    for part in split_files(spec.removeprefix(MIX)):
        member, weight = _mix_part(part)
        workload = load(member)
        if workload.name in members:
            raise UsageError(f"bad mix: {workload.name} is named twice", hint=MIX_HINT)
        members[workload.name] = workload
        weights[workload.name] = weight
    queues = {name: iter(workload.prompts) for name, workload in members.items()}
    turns = interleave(weights, {name: len(workload.prompts) for name, workload in members.items()})
    prompts = tuple(next(queues[name]) for name in turns)
    identity = "".join(f"{name}={weights[name]} {workload.digest}\n" for name, workload in members.items())
    return Workload(
        name=MIX + ",".join(f"{name}={float(weight):.12g}" for name, weight in weights.items()),
        prompts=prompts,
        source="; ".join(dict.fromkeys(workload.source for workload in members.values())),
        licence="; ".join(dict.fromkeys(workload.licence for workload in members.values())),
        digest=hashlib.sha256(identity.encode()).hexdigest(),
    )


def _mix_part(part: str) -> tuple[str, Fraction]:
    member, equals, number = part.strip().rpartition("=")
    if not equals or not member:
        raise UsageError(f"bad mix: {part.strip()!r} is not NAME=WEIGHT", hint=MIX_HINT)
    if member.startswith(MIX):
        raise UsageError("bad mix: a mix cannot hold another mix", hint=MIX_HINT)
    try:
        finite = math.isfinite(float(number))
    except ValueError:
        finite = False
    if not finite:
        raise UsageError(f"bad mix: weight {number!r} of {member} is not a number", hint=MIX_HINT)
    weight = Fraction(number)
    if weight <= 0:
        raise UsageError(f"bad mix: weight {number} of {member} is not above zero", hint=MIX_HINT)
    return member, weight
