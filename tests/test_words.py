"""The project uses the words of its field: retired names must not come back, in code, comments or documents."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("dsbench", "runtime", "kernels", "profiles", "workloads", "scripts", "tests", "docs")

# Folders that still hold retired words. To be emptied.
PENDING: tuple[str, ...] = (
    "dsbench/cli",
    "dsbench/deploy/profile_cost.py",
    "dsbench/results",
    "dsbench/views",
    "runtime/targets",
    "tests/analysis",
    "tests/cli",
    "tests/deploy",
    "tests/results",
    "tests/runtime/loop",
    "tests/runtime/policy",
    "tests/simulate",
    "tests/support",
    "tests/views",
)

# Retired word -> what to say instead. Matched as a part of an identifier (`seat` also in `SeatShape`) and as an English
# word, in any case.
RETIRED = {
    "seat": "slot",
    "seats": "slots",
    "seating": "slot",
    "seated": "slots",
    "sitting": "running request",
    "newcomer": "admitted request",
    "newcomers": "admitted requests",
    "landed": "completed round",
    "steering": "policy",
    "chooser": "policy",
    "heeds": "stops_at_eos",
    "foresee": "oracle",
    "foresees": "oracle",
    "foreseen": "oracle",
    "foresight": "oracle",
    "dice": "rng",
    "crew": "launcher",
    "staff": "workers",
    "hire": "add",
    "hires": "starts",
    "hired": "added",
    "ledger": "memory",
    "relay": "history",
}
# Parts of identifiers only: as English words they are in order.
RETIRED_NAMES = {
    "stay": "occupancy",
    "stays": "occupancy",
    "told": "known",
    "course": "plan",
    "flight": "round in flight",
    "plain": "no-draft, unfiltered, unfused or reference",
}

# Text written for models to read or taken from elsewhere, where words mean what they mean in English.
TEXTS = re.compile(r"workloads/(passages|prompts|training)_?\w*\.py$")
ALLOWED = {
    "tests/test_words.py": set(RETIRED),  # this list
    "profiles/cost.py": {"plain"},  # the old names of fields in shipped files
    "profiles/samples.py": {"plain"},
}


def parts(name: str) -> set[str]:
    """The lower-case words of an identifier: `_SeatShape.to_seat2` -> {seat, shape, to}."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.replace("in_flight", ""))}


def found_in(path: Path) -> list[str]:
    """Retired words of a file, as `line: word (instead)`."""
    lines: list[str] = []
    if path.suffix == ".md":
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            lines += [f"{number}: {word} ({RETIRED[word]})" for word in sorted(parts(line) & set(RETIRED))]
        return lines
    names = RETIRED | RETIRED_NAMES
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            sentence = token.string.startswith("test_")  # names of tests are English
            known = names if token.type == tokenize.NAME and not sentence else RETIRED
            lines += [f"{token.start[0]}: {word} ({known[word]})" for word in sorted(parts(token.string) & set(known))]
    return lines


def sources() -> list[Path]:
    """Python and Markdown files of the project; the links dsbench/<folder> -> ../<folder> are not followed."""
    found = [ROOT / "README.md"]
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md") and "__pycache__" not in p.parts]
    linked = {p for p in (ROOT / "dsbench").iterdir() if p.is_symlink()}
    return sorted(p for p in found if not linked & set(p.parents))


def test_retired_words_are_gone():
    wrong = []
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(PENDING) or TEXTS.match(name):
            continue
        allowed = ALLOWED.get(name, set())
        wrong += [f"{name}:{entry}" for entry in found_in(path) if entry.split()[1] not in allowed]
    assert not wrong, f"{len(wrong)} retired words:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SeatShape = made.to_seat\n", ["seat", "seat"]),
        ("# the newcomers' rows\n", ["newcomers"]),
        ('"""Where a request sits, in seats."""\n', ["seats"]),
        ("x = told\n# as told\n", ["told"]),
        ("staffing = 1  # a plain copy, of course\n", []),
    ],
)
def test_the_search_finds_names_and_words(text, words, tmp_path):
    path = tmp_path / "source.py"
    path.write_text(text)
    assert [entry.split()[1] for entry in found_in(path)] == words
