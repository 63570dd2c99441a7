"""Lengths of prompts and answers: fixed, a range, weighted choices, log-normal, or recorded.

A request's lengths depend on its place in the queue and the seed alone, so they are the same in every arm, at every
batch size and every load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Literal

from dsbench.errors import UsageError
from dsbench.runtime.request import Request
from dsbench.workloads.recorded import FILES, MOST, read_recorded
from dsbench.workloads.rng import uniform

Part = Literal["prompt", "output"]
GRAMMAR = "e.g. 128  64:512  64=3,512=1  lognormal:128:0.6  FILE.csv"
LOGNORMAL = "lognormal:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of lengths in tokens. `most`: the upper bound; None where there is none.

    kind "range": bounds[0]..bounds[1], equally likely; "choice": `values` by `weights`; "lognormal": median bounds[0],
    sigma of the log bounds[1]; "recorded": `values` in turn.
    """

    name: str
    kind: Literal["range", "choice", "lognormal", "recorded"]
    bounds: tuple[float, float] = (0.0, 0.0)
    values: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    @property
    def most(self) -> int | None:
        if self.kind == "lognormal":
            return None
        return int(self.bounds[1]) if self.kind == "range" else max(self.values)

    def of(self, number: int, seed: str) -> int:
        """The length of request `number` of the queue, at least 1."""
        if self.kind == "recorded":
            return self.values[number % len(self.values)]
        u = uniform(f"length\0{seed}", number)
        if self.kind == "range":
            low, high = self.bounds
            return int(low + math.floor(u * (high - low + 1)))
        if self.kind == "lognormal":
            median, sigma = self.bounds
            return max(1, round(median * math.exp(min(sigma * NormalDist().inv_cdf(u), 50.0))))
        left = u * sum(self.weights)
        for value, weight in zip(self.values, self.weights, strict=True):
            left -= weight
            if left < 0:
                return value
        return self.values[-1]


def parse_lengths(text: str, part: Part) -> Lengths | None:
    """The distribution that `text` names, None for "". `part` names the column of a file. Raises UsageError."""
    text = text.strip()
    if not text:
        return None
    if text.lower().endswith(FILES):
        path = Path(text).expanduser()
        recorded = read_recorded(path)
        values = recorded.prompt_tokens if part == "prompt" else recorded.output_tokens
        if values is None:
            raise UsageError(f"{path}: no {part} lengths in it", hint=f"it needs a column `{part}_tokens`")
        return recorded_lengths(values, f"{recorded.name} ({recorded.digest})")
    if text.startswith(LOGNORMAL):
        median, _, sigma = text.removeprefix(LOGNORMAL).partition(":")
        bounds = (float(_integer(median, text, part)), _positive(sigma, text, part))
        return Lengths(name=text, kind="lognormal", bounds=bounds)
    if "=" in text:
        pairs = [piece.strip().partition("=") for piece in text.split(",")]
        values = tuple(_integer(value, text, part) for value, _, _ in pairs)
        weights = tuple(_positive(weight, text, part) for _, _, weight in pairs)
        return Lengths(name=text, kind="choice", values=values, weights=weights)
    low, colon, high = text.partition(":")
    first = _integer(low, text, part)
    last = _integer(high, text, part) if colon else first
    if last < first:
        raise UsageError(f"{part} length {text!r} runs backwards", hint=GRAMMAR)
    return Lengths(name=text, kind="range", bounds=(float(first), float(last)))


def recorded_lengths(values: Sequence[int], name: str) -> Lengths:
    """The recorded lengths in order, repeated from the first."""
    return Lengths(name=name, kind="recorded", values=tuple(values))


def with_lengths(
    queue: Sequence[Request], prompt: Lengths | None, output: Lengths | None, *, seed: str, longest: int
) -> list[Request]:
    """The queue with its prompts cut or filled up to their lengths, and answers that end at theirs at the latest.

    A longer prompt is padded in front with the ends of the prompts before it in the queue, repeated where they are too
    few; a shorter one keeps its end; none exceeds `longest`. An answer never exceeds the request's own limit, and may
    end before its length.
    """
    before: list[int] = []
    done = []
    for request in queue:
        ids, sampling = request.prompt_ids, request.sampling
        if prompt is not None:
            wanted = min(prompt.of(request.id, f"prompt\0{seed}"), longest)
            filler = before + ids
            while len(filler) < wanted:
                filler = filler + filler
            before = (before + ids)[-MOST:]
            ids = filler[-wanted:]
        if output is not None:
            limit = min(output.of(request.id, f"output\0{seed}"), sampling.max_tokens)
            sampling = replace(sampling, max_tokens=limit)
        done.append(replace(request, prompt_ids=list(ids), sampling=sampling))
    return done


def _integer(text: str, spec: str, part: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(MOST)) or not 1 <= int(text) <= MOST:
        raise UsageError(f"{part} length {spec!r}: {text!r} is no integer in 1..{MOST}", hint=GRAMMAR)
    return int(text)


def _positive(text: str, spec: str, part: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{part} length {spec!r}: {text!r} is no number above 0", hint=GRAMMAR)
    return value


def head_start(tokens: int, place: int, batch: int) -> int:
    """Tokens left to the request at `place` of a `batch` admitted together, as if it had been admitted earlier.

    Ends are spread evenly over a text's length. Otherwise requests of one length that begin together end together in an
    arm without drafts, and their prompts run a batch at a time, unlike steady traffic.
    """
    return -(-tokens * (place + 1) // batch)


def under_way(request: Request, place: int, batch: int) -> Request:
    """The request with as much left to write as if it had come before, at its place of a full batch."""
    text, sampling = request.canonical, request.sampling
    whole = sampling.max_tokens if text is None else min(sampling.max_tokens, len(text))
    left = head_start(whole, place, batch)
    return replace(
        request,
        canonical=None if text is None else text[:left],
        sampling=replace(sampling, max_tokens=min(sampling.max_tokens, left)),
    )
