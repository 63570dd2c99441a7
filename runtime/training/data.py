"""Training text of a drafter: prompts (the caller's and the target's own) and the target's answers.

The target's own prompts are its completions of an empty user turn (after Magpie, arXiv 2406.08464).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.errors import UsageError
from dsbench.runtime.targets.load import LoadedTarget
from dsbench.runtime.targets.tokenizer import ChatTokenizer
from dsbench.runtime.training.generate import Log, generate
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.ranks import Ranks
from dsbench.runtime.training.token_data import (
    SPLITS,
    TRAIN,
    VALIDATION_MIXED,
    VALIDATION_T1,
    TokenData,
    load_data,
    save_data,
)

MIX = ((1.0, 0.5), (0.7, 0.15), (0.0, 0.35))  # temperature, share of the answers
REPEATS = (1.0, 1.0, 0.7, 0.0, 0.0)  # each prompt of the caller is answered at these temperatures
PROMPT_TOKENS = (5, 160)  # of the target's own prompts
OPENED = 0.6  # share of those that start with one of the caller's openers
MOST_REPETITION = 0.95  # of 4-grams; greedy text loops, and a drafter of it has to, but not on one token
PLACE = "\u241f"  # stands for the user's words in a rendered chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to make."""

    prompt: tuple[int, ...]
    temperature: float
    split: int


def obtain_data(
    options: TrainOptions, target: LoadedTarget, prompts: Sequence[str], openers: Sequence[str], log: Log, ranks: Ranks
) -> TokenData:
    """The options' data file if it exists, else new data, saved there. Raises as `load_data` does."""
    path = options.data_path
    if path is not None and path.exists():
        data = load_data(path, digest=target.model.digest, vocab=target.model.shape.vocab)
        log({"stage": "data", "read": str(path), "sequences": len(data)})
        return data
    data = build_data(options, target, prompts, openers, log, ranks)
    if path is not None and ranks.first:
        save_data(data, path)
    return data


def build_data(
    options: TrainOptions, target: LoadedTarget, prompts: Sequence[str], openers: Sequence[str], log: Log, ranks: Ranks
) -> TokenData:
    if target.tokenizer is None or not target.eos:
        raise UsageError(f"target {target.name} has no tokenizer or no end token", hint="train on a real model")
    if options.width > target.model.shape.context:
        raise UsageError(f"text of {options.width} tokens does not fit the target's {target.model.shape.context}")
    longest = options.width - options.max_tokens // 4
    asked = [tuple(target.tokenizer.encode_chat([("user", text)])) for text in dict.fromkeys(prompts)]
    asked = [ids for ids in asked if len(ids) <= longest]
    share = min(len(REPEATS) * len(asked), options.sequences // 6)
    wanted = options.sequences - share + 2 * options.validation
    own = own_prompts(options, target, target.tokenizer, openers, wanted, log, ranks)
    jobs = plan_jobs(asked, own, options)
    mine = ranks.share(jobs)
    answers = ranks.together(
        generate(
            target.model,
            [j.prompt for j in mine],
            [j.temperature for j in mine],
            eos=target.eos,
            limit=options.max_tokens,
            width=options.width,
            seed=_seed(options.seed + 1, ranks),
            batch=options.decode_batch,
            log=log,
            stage="answers",
        )
    )
    data = assemble(jobs, answers, options, target.model.digest)
    log({"stage": "data", **data.meta})
    return data


def own_prompts(
    options: TrainOptions,
    target: LoadedTarget,
    tokenizer: ChatTokenizer,
    openers: Sequence[str],
    wanted: int,
    log: Log,
    ranks: Ranks,
) -> list[tuple[int, ...]]:
    """Up to `wanted` unique user turns that the target writes, as full prompts; OPENED of them continue an opener.

    About three of four draws are usable.
    """
    before, after = tokenizer.chat([("user", PLACE)]).split(PLACE)
    low, high = PROMPT_TOKENS
    raw = math.ceil(wanted / 0.7)
    opened = round(raw * OPENED) if openers else 0
    starts = [openers[i % len(openers)] if i < opened else "" for i in range(raw)]
    starts = [starts[i] for i in np.random.default_rng(options.seed).permutation(raw)]
    prefixes = {start: tokenizer.encode(before + start) for start in set(starts)}
    longest = max(len(prefix) for prefix in prefixes.values())
    mine = ranks.share(starts)
    turns = ranks.together(
        generate(
            target.model,
            [prefixes[s] for s in mine],
            [1.0] * len(mine),
            eos=target.eos,
            limit=high + 1,
            width=longest + high + 1,
            seed=_seed(options.seed, ranks),
            batch=options.decode_batch,
            log=log,
            stage="prompts",
        )
    )
    texts: dict[str, None] = {}
    for start, turn in zip(starts, turns, strict=True):
        if turn[-1] in target.eos and low <= len(turn) - 1 <= high:
            text = (start + tokenizer.decode(turn[:-1].tolist())).strip()
            if text and "\ufffd" not in text:
                texts[text] = None
    found = [tuple(tokenizer.encode(before + text + after)) for text in texts]
    found = [ids for ids in found if len(ids) <= options.width - options.max_tokens // 4][:wanted]
    log({"stage": "prompts", "drawn": raw, "unique": len(texts), "kept": len(found)})
    if not found:
        raise UsageError(f"target {target.name} wrote no usable prompt in {raw} draws", hint="is it a chat model?")
    return found


def _seed(seed: int, ranks: Ranks) -> int:
    """The seed of this rank's generation: no two ranks draw the same noise."""
    return seed + 1_000_003 * ranks.index


def plan_jobs(asked: Sequence[tuple[int, ...]], own: Sequence[tuple[int, ...]], options: TrainOptions) -> list[Job]:
    """Training jobs and two validation sets on prompts of their own: at T = 1, and in the training mix."""
    rng = np.random.default_rng(options.seed)
    pools = [[pool[i] for i in rng.permutation(len(pool))] for pool in (asked, own)]
    jobs: list[Job] = []
    of_caller = min(len(asked) // 8, options.validation // 8)  # of the caller's prompts, in each set
    for split in (VALIDATION_T1, VALIDATION_MIXED):
        rest = min(options.validation - of_caller, len(own) // 8)
        chosen = [pools[0].pop() for _ in range(of_caller)] + [pools[1].pop() for _ in range(rest)]
        warmth = [1.0] * len(chosen) if split == VALIDATION_T1 else _mixed(len(chosen), rng)
        jobs += [Job(prompt=p, temperature=t, split=split) for p, t in zip(chosen, warmth, strict=True)]
    train = [Job(prompt=p, temperature=t, split=TRAIN) for t in REPEATS for p in pools[0]]
    train = [train[i] for i in rng.permutation(len(train))[: options.sequences // 6]]
    quota = {t: max(0, round(share * options.sequences)) for t, share in MIX}
    for job in train:
        quota[job.temperature] = max(0, quota[job.temperature] - 1)
    temperatures = rng.permutation([t for t, left in quota.items() for _ in range(left)])
    pool = pools[1] or pools[0]
    for i, t in enumerate(temperatures[: options.sequences - len(train)]):
        train.append(Job(prompt=pool[i % len(pool)], temperature=float(t), split=TRAIN))
    return jobs + train


def _mixed(n: int, rng: np.random.Generator) -> list[float]:
    return [float(t) for t in rng.choice([t for t, _ in MIX], size=n, p=[share for _, share in MIX])]


def assemble(jobs: Sequence[Job], answers: Sequence[np.ndarray], options: TrainOptions, digest: str) -> TokenData:
    """Drops answers that loop or are shorter than a block, and counts what it dropped."""
    kept = [i for i, a in enumerate(answers) if len(a) > options.block and repetition(a) <= MOST_REPETITION]
    sequences = [np.concatenate([np.asarray(jobs[i].prompt, np.int32), answers[i]]) for i in kept]
    short = sum(len(a) <= options.block for a in answers)
    split = np.array([jobs[i].split for i in kept], np.int8)
    meta = {
        "target_digest": digest,
        "seed": options.seed,
        "sequences": {name: int((split == s).sum()) for s, name in enumerate(SPLITS)},
        "tokens": int(sum(len(s) for s in sequences)),
        "answer_tokens": int(sum(len(answers[i]) for i in kept)),
        "dropped_short": int(short),
        "dropped_looping": len(answers) - len(kept) - int(short),
    }
    return TokenData(
        ids=np.concatenate(sequences) if sequences else np.empty(0, np.int32),
        starts=np.cumsum([0] + [len(s) for s in sequences]).astype(np.int64),
        prompt=np.array([len(jobs[i].prompt) for i in kept], np.int32),
        temperature=np.array([jobs[i].temperature for i in kept], np.float32),
        split=split,
        meta=meta,
    )


def repetition(tokens: np.ndarray) -> float:
    """Share of a text's 4-grams that occurred in it before."""
    if len(tokens) < 4:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(tokens, 4)
    return 1 - len({g.tobytes() for g in grams}) / len(grams)


def draft_vocabulary(data: TokenData, size: int, vocab: int, eos: frozenset[int]) -> np.ndarray:
    """The `size` ids most frequent in the training answers, end tokens included, ascending int32."""
    size = min(size, vocab)
    owner = np.repeat(np.arange(len(data)), data.lengths)
    within = np.arange(len(data.ids)) - data.starts[owner]
    counts = np.bincount(data.ids[(within >= data.prompt[owner]) & (data.split[owner] == TRAIN)], minlength=vocab)
    counts[list(eos)] = counts.sum() + 1
    return np.sort(np.argsort(-counts, kind="stable")[:size]).astype(np.int32)
