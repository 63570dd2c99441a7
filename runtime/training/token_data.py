"""Training text as one array of tokens, and its file, which is checked when it is read.

Shapes: n sequences, N tokens of all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.training.atomic import atomic_file

TRAIN, VALIDATION_T1, VALIDATION_MIXED = 0, 1, 2
SPLITS = ("train", "validation_t1", "validation_mixed")  # their names in the meta
KINDS = {"ids": "iu", "starts": "iu", "prompt": "iu", "temperature": "f", "split": "iu"}  # numpy's letters


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenData:
    """n sequences, prompt and answer, back to back: sequence i is ids[starts[i]:starts[i + 1]]."""

    ids: np.ndarray  # [N] int32
    starts: np.ndarray  # [n + 1] int64
    prompt: np.ndarray  # [n] int32, tokens of the prompt
    temperature: np.ndarray  # [n] float32
    split: np.ndarray  # [n] int8: TRAIN, VALIDATION_T1 or VALIDATION_MIXED
    meta: dict[str, Any]  # target digest, seed, counts

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def only(self, chosen: np.ndarray) -> TokenData:
        """Sequences `chosen` [m], in that order."""
        lengths = self.lengths[chosen]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return TokenData(
            ids=self.ids[np.repeat(self.starts[chosen], lengths) + within],
            starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            prompt=self.prompt[chosen],
            temperature=self.temperature[chosen],
            split=self.split[chosen],
            meta=self.meta,
        )

    def answer(self, index: int) -> np.ndarray:
        return self.ids[self.starts[index] + self.prompt[index] : self.starts[index + 1]]


def save_data(data: TokenData, path: Path) -> None:
    """Writes the file atomically; makes its folder."""
    ids = data.ids.astype(np.uint16) if not len(data.ids) or data.ids.max() < 1 << 16 else data.ids
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial, partial.open("wb") as stream:
        np.savez_compressed(
            stream,
            ids=ids,
            starts=data.starts,
            prompt=data.prompt,
            temperature=data.temperature,
            split=data.split,
            meta=np.array(json.dumps(data.meta)),
        )


def load_data(path: Path, *, digest: str, vocab: int) -> TokenData:
    """The file's text, checked, for the target of this digest, whose ids lie below `vocab`.

    Raises UsageError for a damaged file, EnvironmentRefused for another target's, OSError for one that does not open.
    """
    with path.open("rb") as stream:
        try:
            with np.load(stream) as file:
                arrays = {name: file[name] for name in KINDS}
                meta = json.loads(str(file["meta"]))
        except Exception as problem:  # what zip, zlib, numpy and json raise has no common type
            raise _damaged(path, f"{type(problem).__name__}: {problem}") from None
    fault = _fault(arrays, meta)
    if fault:
        raise _damaged(path, fault)
    if meta["target_digest"] != digest:
        raise EnvironmentRefused(
            f"{path} holds text of target {meta['target_digest']}, not of this one", hint="give another --data"
        )
    ids = arrays["ids"]
    if ids.min() < 0 or ids.max() >= vocab:
        raise _damaged(path, f"ids reach from {ids.min()} to {ids.max()}, the target has 0 to {vocab - 1}")
    return TokenData(
        ids=ids.astype(np.int32),
        starts=arrays["starts"].astype(np.int64),
        prompt=arrays["prompt"].astype(np.int32),
        temperature=arrays["temperature"].astype(np.float32),
        split=arrays["split"].astype(np.int8),
        meta=meta,
    )


def _damaged(path: Path, fault: str) -> UsageError:
    return UsageError(f"{path} is damaged: {fault}", hint="delete it")


def _fault(arrays: dict[str, np.ndarray], meta: Any) -> str:
    """Describes what is wrong with a file's content for any target; empty where nothing is."""
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in KINDS[name]:
            return f"{name} has {array.ndim} dimensions of type {array.dtype}"
    starts, prompt, temperature, n = arrays["starts"], arrays["prompt"], arrays["temperature"], len(arrays["prompt"])
    lengths = {name: len(array) for name, array in arrays.items() if name != "ids"}
    if n == 0 or lengths != {"starts": n + 1, "prompt": n, "temperature": n, "split": n}:
        return f"numbers of sequences that disagree or are 0: {lengths}"
    if starts[0] != 0 or starts[-1] != len(arrays["ids"]) or (starts[1:] <= starts[:-1]).any():
        return f"starts do not ascend from 0 to its {len(arrays['ids'])} tokens"
    if (prompt < 1).any() or (prompt >= np.diff(starts)).any():
        return "a prompt is empty or leaves no answer in its sequence"
    if not np.isfinite(temperature).all() or (temperature < 0).any():
        return "a temperature is negative or not finite"
    if not np.isin(arrays["split"], (TRAIN, VALIDATION_T1, VALIDATION_MIXED)).all():
        return "a sequence belongs to no known split"
    return _meta_fault(meta, len(arrays["ids"]))


def _meta_fault(meta: Any, tokens: int) -> str:
    if not isinstance(meta, dict):
        return f"meta is no object but {type(meta).__name__}"
    if not isinstance(meta.get("target_digest"), str) or not isinstance(meta.get("seed"), int):
        return "meta has no target_digest or no seed"
    if meta.get("tokens") != tokens:
        return f"meta counts {meta.get('tokens')} tokens, it holds {tokens}"
    counts = meta.get("sequences")
    if not isinstance(counts, dict) or not all(isinstance(counts.get(name), int) for name in SPLITS):
        return "meta does not count the sequences of each split"
    return ""
