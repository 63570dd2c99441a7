"""Training text: what the target writes and asks itself, the mix of jobs, the file."""

from __future__ import annotations

import copy
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from letters import LETTERS, Letters  # noqa: F401
from scipy.stats import chisquare
from training_tools import CPU, EOS, OPTIONS, SHAPE, VOCAB, pool_of, quiet, random_data, run_rows, toy_target

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.training import memory
from dsbench.runtime.training.data import OPENED, draft_vocabulary, obtain_data, own_prompts, plan_jobs, repetition
from dsbench.runtime.training.features import make_features
from dsbench.runtime.training.forward import padded_forward
from dsbench.runtime.training.generate import Decoder, fitting_batch, generate
from dsbench.runtime.training.ranks import Ranks
from dsbench.runtime.training.token_data import TRAIN, VALIDATION_MIXED, VALIDATION_T1, load_data, save_data

FIELDS = ("ids", "starts", "prompt", "temperature", "split")


def full_logits(ids: list[int]) -> torch.Tensor:
    """Logits [S, V] by the runtime's own forward over a pool, one sequence."""
    return run_rows(pool_of(), ids)[0]


def test_greedy_generation_is_the_argmax_of_plain_forwards():
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, VOCAB, n).tolist() for n in (9, 2, 5, 14, 5)]
    answers = generate(
        toy_target(), prompts, [0.0] * 5, eos=EOS, limit=70, width=80, seed=0, batch=3, log=quiet
    )  # two waves, compaction, several buckets
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == min(70, 80 - len(prompt)) or answer[-1] == 2
        logits = full_logits(prompt + answer.tolist())
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer.tolist()


def test_rows_that_only_pad_the_batch_disturb_nothing(monkeypatch):
    """On CUDA batch sizes are rounded up, so rows that are through ride along: here by 4, past the cache's end."""
    ends = frozenset(range(0, VOCAB, 5))
    prompts = [[3 + i, 50 - i, 7] for i in range(7)]
    settings = {"eos": ends, "limit": 120, "width": 128, "seed": 0, "log": quiet}
    alone = [generate(toy_target(), [p], [0.0], batch=1, **settings)[0] for p in prompts]
    assert len({len(a) for a in alone}) > 2
    monkeypatch.setattr(Decoder, "_padded", lambda self, live: min(self.batch, -(-live // 4) * 4))
    together = generate(toy_target(), prompts, [0.0] * 7, batch=6, **settings)
    assert [a.tolist() for a in together] == [a.tolist() for a in alone]


def test_sampled_tokens_follow_the_targets_law_and_stop_at_the_end_token():
    prompt, n = [5, 6, 7], 2000
    answers = generate(toy_target(), [prompt] * n, [0.7] * n, eos=EOS, limit=1, width=8, seed=4, batch=n, log=quiet)
    law = (full_logits(prompt)[-1].double() / 0.7).softmax(-1)
    seen = torch.bincount(torch.tensor([a[0] for a in answers]), minlength=VOCAB)
    rare = law * n < 5
    drawn, wanted = ([*x[~rare].tolist(), x[rare].sum().item()] for x in (seen, law * n))
    assert len(drawn) > 20 and chisquare(drawn, wanted).pvalue > 1e-3
    ends = frozenset(range(0, VOCAB, 7))
    texts = generate(toy_target(), [prompt] * 64, [1.0] * 64, eos=ends, limit=50, width=64, seed=4, batch=64, log=quiet)
    assert all(all(t % 7 for t in a[:-1]) and (a[-1] % 7 == 0 or len(a) == 50) for a in texts)
    assert len({len(a) for a in texts}) > 5


def test_padding_does_not_reach_real_rows():
    ids = torch.tensor([[4, 5, 6, 0, 0], [7, 8, 9, 10, 11]])
    padded, _ = padded_forward(toy_target(), ids)
    alone, _ = padded_forward(toy_target(), ids[:1, :3])
    torch.testing.assert_close(padded[0, :3], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("openers", [["Why", "A box", "Sum"], []])
def test_own_prompts_go_on_from_the_openers_in_their_share(openers, monkeypatch):
    asked: list[str] = []

    def turns(model, prompts, temperatures, **settings):
        """Usable turns but for every fifth prompt: no end, too short, no text, a repeated one, too long."""
        assert set(temperatures) == {1.0} and all(len(p) < settings["width"] for p in prompts)
        asked.extend(Letters().decode(p) for p in prompts)
        bad = ["a turn without an end", "ab\0", "\x1fno text\0", "always this one\0", "x" * 100 + "\0"]
        texts = [bad[i // 5 % 5] if i % 5 == 0 else f" it is number {i}?\0" for i in range(len(prompts))]
        return [np.array([2 if c == "\0" else 0 if c == "\x1f" else ord(c) - 29 for c in t], np.int32) for t in texts]

    monkeypatch.setattr("dsbench.runtime.training.data.generate", turns)
    options = replace(OPTIONS, width=100, max_tokens=40)
    found = [Letters().decode(p) for p in own_prompts(options, LETTERS, Letters(), openers, 70, quiet, Ranks())]
    starts = Counter(text.removeprefix("[u]") for text in asked)
    assert len(asked) == 100 and all(text.startswith("[u]") for text in asked)
    if openers:
        assert sum(starts[o] for o in openers) == round(100 * OPENED) and starts[""] == 100 - round(100 * OPENED)
        assert max(starts[o] for o in openers) - min(starts[o] for o in openers) <= 1
        assert "[u]" in asked[:10] != ["[u]"] * 10, "openers are to be mixed with the rest"
    usable = [i for i in range(100) if i % 5]
    wanted = [f"{asked[i].removeprefix('[u]')} it is number {i}?".strip() for i in usable]
    kept = [t.removeprefix("[u]").removesuffix("[a]") for t in found]
    assert all(text == f"[u]{k}[a]" for text, k in zip(found, kept, strict=True))
    again = [k for k in kept if k.endswith("always this one")]
    assert len(again) == len(set(again)) >= 1
    assert [k for k in kept if k not in again] == wanted[: 70 - len(again)] and len(kept) == 70


def test_jobs_keep_the_mix_and_the_validation_prompts_apart():
    options = replace(OPTIONS, sequences=2000, validation=100)
    asked, own = [(1, i) for i in range(150)], [(2, i) for i in range(2000)]
    jobs = plan_jobs(asked, own, options)
    by_split = {s: [j for j in jobs if j.split == s] for s in (TRAIN, VALIDATION_T1, VALIDATION_MIXED)}
    prompts = {s: {j.prompt for j in js} for s, js in by_split.items()}
    assert not prompts[TRAIN] & prompts[VALIDATION_T1] and not prompts[TRAIN] & prompts[VALIDATION_MIXED]
    assert not prompts[VALIDATION_T1] & prompts[VALIDATION_MIXED]
    assert [len(by_split[s]) for s in (TRAIN, VALIDATION_T1, VALIDATION_MIXED)] == [2000, 100, 100]
    assert {j.temperature for j in by_split[VALIDATION_T1]} == {1.0}
    assert {j.temperature for j in by_split[VALIDATION_MIXED]} == {1.0, 0.7, 0.0}
    assert Counter(j.temperature for j in by_split[TRAIN]) == {1.0: 1000, 0.7: 300, 0.0: 700}
    caller = [j for j in by_split[TRAIN] if j.prompt[0] == 1]
    assert len(caller) == 2000 // 6 and len({j.prompt for j in caller}) > 120
    assert jobs == plan_jobs(asked, own, options) != plan_jobs(asked, own, replace(options, seed=6))


def test_data_is_generated_once_and_then_read_from_its_file(tmp_path, monkeypatch):
    """The whole way with a target that writes: prompts, answers, file."""
    planned = []
    monkeypatch.setattr(
        "dsbench.runtime.training.data.plan_jobs", lambda asked, *rest: planned.append(asked) or plan_jobs(asked, *rest)
    )
    options = replace(OPTIONS, sequences=18, validation=4, max_tokens=12, width=200, data_path=tmp_path / "x" / "d.npz")
    ends = frozenset(range(0, VOCAB, 9))
    writing = replace(LETTERS, eos=ends)
    log: list[dict[str, object]] = []
    made = obtain_data(options, writing, ["What?", "What?", "Why then?"], ["Sum", "Tell"], log.append, Ranks())
    assert [Letters().decode(p) for p in planned[0]] == ["[u]What?[a]", "[u]Why then?[a]"]
    assert list(dict.fromkeys(r["stage"] for r in log)) == ["prompts", "answers", "data"]
    assert set(made.split) <= {TRAIN, VALIDATION_T1, VALIDATION_MIXED} and len(made) > 5
    assert made.meta["target_digest"] == "toy-digest" and made.meta["sequences"]["train"] == (made.split == TRAIN).sum()
    texts = [Letters().decode(made.ids[a : a + p]) for a, p in zip(made.starts, made.prompt, strict=False)]
    assert all(t.startswith("[u]") and t.endswith("[a]") for t in texts)
    back = obtain_data(options, writing, [], [], log.append, Ranks())
    assert all(np.array_equal(getattr(made, f), getattr(back, f)) for f in FIELDS) and "read" in log[-1]
    assert [p.name for p in options.data_path.parent.iterdir()] == ["d.npz"]
    other = copy.copy(toy_target())
    other.digest = "another"
    with pytest.raises(EnvironmentRefused, match="toy-digest"):
        obtain_data(options, replace(writing, model=other), [], [], quiet, Ranks())
    with pytest.raises(UsageError, match="no tokenizer"):
        obtain_data(replace(options, data_path=None), replace(writing, tokenizer=None), [], [], quiet, Ranks())


def test_data_survives_its_file_and_a_choice_of_it_keeps_the_order_asked_for(tmp_path):
    data = random_data(30)
    save_data(data, tmp_path / "d.npz")
    back = load_data(tmp_path / "d.npz", digest="toy-digest", vocab=VOCAB)
    for name in FIELDS:
        assert np.array_equal(getattr(data, name), getattr(back, name)), name
    assert back.meta == data.meta and [p.name for p in tmp_path.iterdir()] == ["d.npz"]
    chosen = [7, 2, 29, 11]
    some = data.only(np.array(chosen))
    assert len(some) == 4 and some.starts[-1] == len(some.ids)
    for i, j in enumerate(chosen):
        assert np.array_equal(some.answer(i), data.answer(j)) and some.temperature[i] == data.temperature[j]
        whole = data.ids[data.starts[j] : data.starts[j + 1]]
        assert np.array_equal(some.ids[some.starts[i] : some.starts[i + 1]], whole) and some.split[i] == data.split[j]
    assert len(data.only(np.empty(0, np.int64))) == 0


def test_the_draft_vocabulary_is_the_most_frequent_of_the_training_answers():
    data = random_data(30)
    counts = Counter(t for i in range(len(data)) if data.split[i] == TRAIN for t in data.answer(i).tolist())
    ids = draft_vocabulary(data, 20, VOCAB, frozenset({96}))
    assert 96 in ids and len(ids) == 20 and list(ids) == sorted(ids)
    assert min(counts[i] for i in ids if i != 96) >= max(counts[i] for i in range(VOCAB) if i not in ids)


def test_repetition_counts_four_grams_seen_before():
    assert repetition(np.arange(20, dtype=np.int32)) == 0
    assert repetition(np.array([1, 2, 3, 4] * 5, np.int32)) == pytest.approx(1 - 4 / 17)


def test_rows_that_decode_together_are_as_many_as_fit_into_a_share_of_the_memory(monkeypatch):
    free = "dsbench.runtime.training.generate.free_memory"
    row = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_width * 4 * 100 + 16 * VOCAB
    monkeypatch.setattr(free, lambda device: 2 * 50 * row)
    assert [fitting_batch(toy_target(), n, 100) for n in (1, 49, 50, 51, 4096)] == [1, 49, 50, 50, 50]
    monkeypatch.setattr(free, lambda device: 0)
    assert fitting_batch(toy_target(), 4096, 100) == 1


def test_free_memory_is_known_or_guessed_on_every_machine(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal:   9 kB\nMemAvailable:   1234 kB\n")
    assert memory.free_memory(CPU) == 1234 * 1024
    for text in ("", "MemAvailable:\n", "MemAvailable: many kB\n", "no colon\n"):
        meminfo.write_text(text)
        monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 3, "SC_PAGE_SIZE": 10}.__getitem__)
        assert memory.free_memory(CPU) == 30

    def unknown(name: str) -> int:
        raise ValueError(name)

    meminfo.unlink()
    monkeypatch.setattr(os, "sysconf", unknown)
    assert memory.free_memory(CPU) == memory.UNKNOWN


def test_features_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr("dsbench.runtime.training.features.free_memory", lambda device: 1000)
    with pytest.raises(EnvironmentRefused, match="features of"):
        make_features(toy_target(), random_data(9), (0, 2), quiet)


def test_a_wave_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr("dsbench.runtime.training.generate.LOG_EVERY", 0.0)
    log: list[dict[str, object]] = []
    generate(
        toy_target(),
        [[3, 4], [5, 6]],
        [1.0, 0.0],
        eos=frozenset(),
        limit=100,
        width=104,
        seed=0,
        batch=2,
        log=log.append,
    )
    assert [r["done"] for r in log] == [0, 0, 0, 0, 2] and log[-1]["tokens"] == 200


def test_a_target_too_short_for_the_text_is_refused():
    with pytest.raises(UsageError, match="does not fit the target's 256"):
        obtain_data(replace(OPTIONS, width=300), LETTERS, ["Why?"], [], quiet, Ranks())


def test_a_file_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    def full(stream, **arrays):
        stream.write(b"half")
        raise OSError("no space")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="no space"):
        save_data(random_data(9), tmp_path / "d.npz")
    assert not list(tmp_path.iterdir())
