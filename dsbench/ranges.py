"""The grammars of the command line: ranges `1,2,4`, `1:8`, `16:64:8`, `1:256:x2` and unions. No torch."""

from __future__ import annotations

from pathlib import Path

from dsbench.errors import UsageError

RANGED = ("static", "mtp")  # modes that take a number
MIX = "mix:"  # begins a mix of workloads
MOST = 1_000_000  # of anything that a range counts
GRAMMAR = "e.g. 1,2,4  1:8  16:64:8  1:256:x2"
CPU_BATCHES, GPU_BATCHES = "1:16:x2", "1:256:x2"


def parse_range(text: str, *, what: str = "range") -> tuple[int, ...]:
    """Increasing distinct integers >= 1. Raises UsageError for anything else."""
    found: set[int] = set()
    for part in text.split(","):
        found.update(_part(part.strip(), text, what))
    return tuple(sorted(found))


def parse_batches(text: str, *, on_gpu: bool) -> tuple[int, ...]:
    """Batch sizes, as `parse_range`; those that are usual on such a machine where `text` is empty."""
    return parse_range(text or (GPU_BATCHES if on_gpu else CPU_BATCHES), what="batch")


def parse_modes(text: str) -> tuple[str, ...]:
    """Names of arms, each once, in order; `static:1:7` and `mtp:1:3` are one arm for each number of the range.

    Raises UsageError for a range that is none; whether an arm exists is not asked here.
    """
    names: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        head, _, detail = part.partition(":")
        ranged = head in RANGED and ":" in detail
        names += [f"{head}:{k}" for k in parse_range(detail, what=f"mode {head}")] if ranged else [part]
    return tuple(dict.fromkeys(names))


def _part(part: str, text: str, what: str) -> list[int]:
    pieces = part.split(":")
    if len(pieces) == 1:
        return [_number(part, text, what)]
    if len(pieces) > 3:
        raise UsageError(f"{what} {text!r}: {part!r} has too many colons", hint=GRAMMAR)
    first, last = _number(pieces[0], text, what), _number(pieces[1], text, what)
    if first > last:
        raise UsageError(f"{what} {text!r}: {part!r} runs backwards", hint=GRAMMAR)
    step = pieces[2] if len(pieces) == 3 else "1"
    if not step.startswith("x"):
        return list(range(first, last + 1, _number(step, text, what)))
    factor = _number(step[1:], text, what)
    if factor < 2:
        raise UsageError(f"{what} {text!r}: a factor must be >= 2", hint=GRAMMAR)
    values = [first]
    while values[-1] * factor <= last:
        values.append(values[-1] * factor)
    return values


def _number(text: str, entry: str, what: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{what} {entry!r}: {text!r} is not an integer", hint=GRAMMAR)
    value = int(text[: len(str(MOST)) + 1])  # more digits are refused, and not read
    if value < 1:
        raise UsageError(f"{what} {entry!r}: must be >= 1", hint=GRAMMAR)
    if len(text) > len(str(MOST)) or value > MOST:
        raise UsageError(f"{what} {entry[:40]!r}: must be <= {MOST}", hint=GRAMMAR)
    return value


def split_workloads(text: str) -> list[str]:
    """`math,mix:chat=1,poetry=1` -> ["math", "mix:chat=1,poetry=1"]: commas belong to a mix while parts hold `=`.

    A comma in the name of a file that exists belongs to the name.
    """
    names: list[str] = []
    for part in filter(None, split_files(text)):
        if names and names[-1].startswith(MIX) and "=" in part and not part.startswith(MIX):
            names[-1] += "," + part
        else:
            names.append(part)
    if not names:
        raise UsageError("no workload given", hint="e.g. --workload math,chat,poetry")
    return names


def split_files(text: str) -> list[str]:
    """Parts between commas, blanks around them left out; the longest that names a file is one part."""
    pieces = text.split(",")
    found: list[str] = []
    while pieces:
        joined = [",".join(pieces[:n]).strip() for n in range(len(pieces), 1, -1)]
        part = next((name for name in joined if _is_file(name)), pieces[0].strip())
        del pieces[: part.count(",") + 1]
        found.append(part)
    return found


def _is_file(part: str) -> bool:
    """Of a part as it is, or of a mix's member with its weight."""
    member = part.removeprefix(MIX)
    names = (part, member, member.rpartition("=")[0])
    return any(name.lower().endswith(".jsonl") and Path(name).expanduser().is_file() for name in names)
