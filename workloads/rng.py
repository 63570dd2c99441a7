"""Reproducible random choices for prompts, arrivals and lengths: equal on every machine and Python version.

Counter-based (BLAKE2b of a key and a counter), because the methods of `random.Random` may change between versions.
Must not be used for sampling tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Rng:
    """A stream of choices that depends on `key` alone."""

    __slots__ = ("_count", "_key")

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def between(self, low: int, high: int) -> int:
        """An integer in low..high, both included."""
        assert low <= high, f"empty range {low}..{high}"
        digest = hashlib.blake2b(f"{self._key}\0{self._count}".encode(), digest_size=8).digest()
        self._count += 1
        return low + int.from_bytes(digest, "big") % (high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of `items`."""
        return items[self.between(0, len(items) - 1)]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different positions of `items`, in random order."""
        left = list(items)
        return [left.pop(self.between(0, len(left) - 1)) for _ in range(count)]


def uniform(key: str, number: int) -> float:
    """A number in (0, 1) with 52 random bits; depends on the key and the number alone."""
    digest = hashlib.blake2b(f"{key}\0{number}".encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / 2**52


def shuffled(items: Iterable[T], key: Callable[[T], str], seed: int) -> list[T]:
    """`items` in the order of a keyed hash: an item's place depends on its own key and `seed` only."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed}\0{key(item)}".encode()).digest())


def fill(key: str, draws: Sequence[Callable[[Rng], str]], each: int) -> tuple[str, ...]:
    """`each` distinct texts of every function in `draws`, in that order.

    Raises AssertionError where a function does not give `each` distinct texts.
    """
    texts: dict[str, None] = {}
    for number, draw in enumerate(draws):
        wanted = len(texts) + each
        for attempt in range(20 * each):
            if len(texts) == wanted:
                break
            texts.setdefault(draw(Rng(f"{key}\0{number}\0{attempt}")))
        assert len(texts) == wanted, f"{key}: draw {number} gave {len(texts) - wanted + each} of {each} texts"
    return tuple(texts)
