"""Number problems for drafter training: other stories, names and phrasings than `prompts_math.py`.

Answers are whole numbers here too. Nothing of the evaluation sets may be copied into this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dsbench.workloads.rng import Rng, fill

EACH = 22
PEOPLE = ("Ada", "Ben", "Clara", "Dev", "Elif", "Finn", "Gita", "Hugo", "Isla", "Jonas", "Kira", "Leo", "Mona", "Otto")

PATTERNS: tuple[tuple[str, Callable[[Rng], Mapping[str, int]]], ...] = (
    (
        "There were {a} candles in {p}'s drawer. A power cut used up {b} of them, after which {p} bought {c} packets "
        "of {e}. What is the number of candles now?",
        lambda d: {"a": d.between(20, 50), "b": d.between(3, 18), "c": d.between(2, 6), "e": d.between(4, 12)},
    ),
    (
        "If one kilogram of coffee beans makes {a} cups, and the office drinks {b} cups every working day, how many "
        "kilograms are used in {c} working days?",
        lambda d: {"a": (a := d.between(10, 16) * 10), "b": a // 2, "c": 2 * d.between(2, 12)},
    ),
    (
        "{p} climbs a tower of {a} steps, rests after every {b} steps, and doesn't rest at the top. How many rests are "
        "there?",
        lambda d: {"b": (b := d.between(12, 40)), "a": b * d.between(4, 11)},
    ),
    (
        "Tickets for the aquarium are {a} euros for grown-ups and {b} euros for kids. A party of {c} grown-ups and {e} "
        "kids has a coupon worth {f} euros. Work out what they owe.",
        lambda d: {
            "a": d.between(11, 24),
            "b": d.between(4, 9),
            "c": d.between(2, 6),
            "e": d.between(3, 9),
            "f": d.between(5, 20),
        },
    ),
    (
        "Compute {a} + {b} x {c} and then divide by {e}. Show each step.",
        lambda d: {
            "b": (b := d.between(3, 19)),
            "c": (c := d.between(4, 15)),
            "e": (e := d.between(2, 9)),
            "a": e * d.between(12, 30) - b * c % e,
        },
    ),
    (
        "Solve for x: {a}x - {b} = {c}.",
        lambda d: {"a": (a := d.between(3, 15)), "b": (b := d.between(2, 40)), "c": a * d.between(4, 20) - b},
    ),
    (
        "A snail moves {a} centimetres up a wall by day and slips {b} centimetres down by night. On which day does it "
        "get to the top of a wall that is {c} centimetres high?",
        lambda d: {"b": (b := d.between(5, 20)), "a": b + d.between(8, 30), "c": d.between(150, 400)},
    ),
    (
        "{p}'s phone battery loses {a} percent per hour of video. It is at {b} percent now. How many full hours of "
        "video can be watched before it falls under {c} percent?",
        lambda d: {"a": d.between(7, 14), "b": d.between(70, 100), "c": d.between(5, 20)},
    ),
    (
        "What is {a} percent of {b}? Explain your reasoning briefly.",
        lambda d: {"a": 5 * d.between(1, 19), "b": 20 * d.between(3, 60)},
    ),
    (
        "Parking is {a} dollars for the first hour and {b} dollars for each hour after that. {p} stayed for {c} hours. "
        "Find the fee.",
        lambda d: {"a": d.between(4, 9), "b": d.between(2, 3), "c": d.between(3, 11)},
    ),
    (
        "Three boxes weigh {a} kg, {b} kg and {c} kg. A fourth makes the average {e} kg. How heavy is the fourth?",
        lambda d: {"a": d.between(10, 20), "b": d.between(10, 20), "c": d.between(10, 20), "e": d.between(20, 30)},
    ),
    (
        "A recipe for {a} people calls for {b} grams of rice. {p} is cooking for {c} people. How much rice should be "
        "weighed out?",
        lambda d: {"a": (a := d.between(3, 6)), "b": 20 * a * d.between(3, 5), "c": d.between(7, 15)},
    ),
    (
        "The perimeter of a square field is {a} metres. Find its area, then the area of a field twice as wide and "
        "equally long.",
        lambda d: {"a": 4 * d.between(11, 90)},
    ),
    (
        "{p} and {q} share {a} marbles so that {p} receives {b} for every one that {q} receives. What does each have?",
        lambda d: {"b": (b := d.between(2, 8)), "a": (b + 1) * d.between(6, 24)},
    ),
    (
        "A cyclist covers {a} kilometres in {b} hours. At the same speed, how long would {c} kilometres take?",
        lambda d: {"b": (b := d.between(2, 5)), "a": (speed := d.between(14, 28)) * b, "c": speed * d.between(6, 9)},
    ),
    (
        "The temperature was {a} degrees at dawn, rose by {b} degrees until midday and dropped by {c} degrees until "
        "midnight. What did the thermometer show at midnight?",
        lambda d: {"a": d.between(1, 12), "b": d.between(6, 17), "c": d.between(8, 25)},
    ),
    (
        "In a tournament every one of {a} teams meets every other team {b} times. What is the number of matches?",
        lambda d: {"a": d.between(5, 20), "b": d.between(1, 4) + 1},
    ),
    (
        "{p} put {a} euros in the bank at {b} percent simple interest a year. How much interest is that in {c} years?",
        lambda d: {"a": 100 * d.between(4, 50), "b": d.between(2, 7), "c": d.between(2, 9)},
    ),
    (
        "A clock gains {a} seconds every hour. It is right at noon. By how many minutes is it fast {b} hours later?",
        lambda d: {"a": 5 * d.between(1, 6), "b": 12 * d.between(1, 9)},
    ),
    (
        "List the factors of {a} and of {b}, and find the greatest number that divides both.",
        lambda d: {"a": 6 * d.between(4, 16), "b": 4 * d.between(5, 18)},
    ),
    (
        "Out of {a} light bulbs in a delivery, {b} percent are broken. {p} sends back the broken ones and keeps the "
        "remainder. How many does {p} keep?",
        lambda d: {"a": 100 * d.between(2, 12), "b": d.between(2, 15)},
    ),
    (
        "Continue the sequence {a}, {b}, {c}, ... by two terms and describe its rule.",
        lambda d: {"a": (a := d.between(2, 30)), "b": a + (step := d.between(3, 14)), "c": a + 2 * step},
    ),
    (
        "A tailor needs {a} metres of cloth for a shirt and {b} for a dress. From a roll of {c} metres, {e} shirts are "
        "made first. How many dresses can be cut from what is left over?",
        lambda d: {"a": d.between(2, 3), "b": d.between(4, 6), "c": d.between(50, 90), "e": d.between(4, 12)},
    ),
    (
        "{p} types {a} words per minute and {q} types {b}. Working at the same time, how long do they need for a "
        "manuscript of {c} words?",
        lambda d: {"a": (a := d.between(35, 60)), "b": (b := d.between(40, 75)), "c": (a + b) * d.between(12, 60)},
    ),
    (
        "How many minutes are there between {a}:{b} in the morning and {c}:{e} in the afternoon?",
        lambda d: {"a": d.between(7, 11), "b": d.between(10, 59), "c": d.between(1, 6), "e": d.between(10, 59)},
    ),
    (
        "A spinner has {a} equal sectors, {b} of them gold. If it is spun {c} times, how often would you expect gold?",
        lambda d: {"a": (a := d.between(5, 12)), "b": d.between(1, 3) + 1, "c": a * d.between(4, 20)},
    ),
)
TEMPLATES = tuple(text for text, _ in PATTERNS)


def _ask(text: str, numbers: Callable[[Rng], Mapping[str, int]], rng: Rng) -> str:
    first, second = rng.sample(PEOPLE, 2)
    return text.format(p=first, q=second, **numbers(rng))


def prompts() -> tuple[str, ...]:
    """The 572 problems, always the same, grouped by pattern."""
    return fill("training-math", [partial(_ask, text, numbers) for text, numbers in PATTERNS], EACH)
