"""Built-in set `math`: word problems whose numbers fit together, so that every answer is a whole, positive number.

The most predictable of the open-ended sets: a solution repeats the problem's words and follows few patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dsbench.workloads.rng import Rng, fill

EACH = 31
# fmt: off
NAMES = (
    "Aisha", "Bjorn", "Carmen", "Dmitri", "Esther", "Farid", "Greta", "Hiro", "Ines", "Jakub", "Keziah", "Lars",
    "Mariam", "Nikhil", "Odette", "Pavel", "Quentin", "Rosa", "Samir", "Tamsin", "Umberto", "Vera", "Wanjiru",
    "Xiomara", "Yusuf", "Zofia", "Anders", "Beatriz", "Cormac", "Delphine", "Emeka", "Freya", "Goran", "Helga",
    "Ivo", "Jamila", "Kofi", "Ludmila", "Mateo", "Noor",
)
# fmt: on

Numbers = Callable[[Rng], Mapping[str, int]]
STORIES: tuple[tuple[str, Numbers], ...] = (
    (
        "{n} packs {a} crates of pears with {b} pears in each crate. Then {c} pears turn out to be bruised and are "
        "thrown away. How many good pears are left?",
        lambda d: {"a": d.between(4, 18), "b": d.between(12, 40), "c": d.between(3, 40)},
    ),
    (
        "A ferry carries {a} cars on each crossing and makes {b} crossings a day. On {c} days of the month it does not "
        "sail because of storms. If the month has 30 days, how many cars can it carry that month?",
        lambda d: {"a": d.between(15, 60), "b": d.between(4, 12), "c": d.between(2, 9)},
    ),
    (
        "{n} earns ${a} an hour and works {b} hours a week. {m} earns ${c} more an hour but works only {e} hours a "
        "week. Together, how much do they earn in a week?",
        lambda d: {"a": d.between(14, 32), "b": d.between(30, 40), "c": d.between(2, 9), "e": d.between(12, 28)},
    ),
    (
        "A library lends {a} books on Monday, twice as many on Tuesday, and {b} fewer on Wednesday than on Tuesday. "
        "How many books does it lend over the three days?",
        lambda d: {"a": d.between(40, 180), "b": d.between(5, 38)},
    ),
    (
        "{n} bakes {a} trays of rolls. Each tray holds {b} rolls, and a bag is filled with {c} rolls. How many full "
        "bags can {n} make?",
        lambda d: {"c": (c := d.between(4, 9)), "b": c * d.between(2, 5), "a": d.between(3, 14)},
    ),
    (
        "A water tank holds {t} litres. A pump fills it at {a} litres a minute while a leak loses {b} litres a minute. "
        "If the tank starts empty, how many minutes pass until it is full?",
        lambda d: {"b": (b := d.between(2, 9)), "a": (a := b + d.between(5, 20)), "t": (a - b) * d.between(20, 90)},
    ),
    (
        "{n} is {a} years old. {m} is three times as old. In how many years will {m} be exactly twice as old as {n}?",
        lambda d: {"a": d.between(4, 19)},
    ),
    (
        "A bus leaves the depot with {a} passengers. At the first stop {b} get off and {c} get on; at the second stop "
        "half of those on board get off. How many passengers remain?",
        lambda d: {
            "b": (b := d.between(3, 14)),
            "c": (c := d.between(4, 20)),
            "a": 2 * d.between(14, 25) + (b + c) % 2,
        },
    ),
    (
        "{n} plants tulips in {a} rows of {b} and daffodils in {c} rows of {e}. A bulb costs {p} cents whatever its "
        "kind. How many cents do all the bulbs cost?",
        lambda d: {
            "a": d.between(4, 11),
            "b": d.between(6, 15),
            "c": d.between(3, 9),
            "e": d.between(5, 14),
            "p": d.between(15, 60),
        },
    ),
    (
        "A shop sells a coat for ${p}. In the winter sale it takes {q}% off. {n} also has a voucher for ${v}. How much "
        "does {n} pay for the coat?",
        lambda d: {"p": 20 * d.between(5, 14), "q": 5 * d.between(2, 8), "v": d.between(3, 18)},
    ),
    (
        "Two trains leave the same station in opposite directions, one at {a} km/h and the other at {b} km/h. How far "
        "apart are they after {h} hours?",
        lambda d: {"a": d.between(60, 120), "b": d.between(70, 150), "h": d.between(2, 7)},
    ),
    (
        "{n} reads {a} pages of a novel every weekday and {b} pages on each day of the weekend. The novel has {t} "
        "pages. How many whole weeks does {n} need to finish it?",
        lambda d: {"a": (a := d.between(8, 25)), "b": (b := d.between(20, 45)), "t": (5 * a + 2 * b) * d.between(2, 6)},
    ),
    (
        "A school orders {a} boxes of pencils with {b} pencils in each. The pencils are shared equally among {c} "
        "classes. How many pencils does each class get?",
        lambda d: {"c": (c := d.between(3, 12)), "a": c * d.between(2, 5), "b": d.between(10, 36)},
    ),
    (
        "{n} saves ${a} in January and each month afterwards saves ${b} more than the month before. How much has {n} "
        "saved in total by the end of {mo}?",
        lambda d: {"a": d.between(15, 80), "b": d.between(3, 20), "mo": d.between(4, 8)},
    ),
    (
        "A rectangular garden is {a} metres long and {b} metres wide. {n} puts a fence around it that costs ${c} a "
        "metre and leaves a gap of {g} metres for a gate. What does the fence cost?",
        lambda d: {"a": d.between(14, 40), "b": d.between(6, 13), "c": d.between(5, 24), "g": d.between(2, 4)},
    ),
    (
        "In a choir of {t} singers, one third sing soprano and a quarter sing alto. The others are split equally "
        "between tenor and bass. How many singers sing bass?",
        lambda d: {"t": 24 * d.between(1, 40)},
    ),
    (
        "{n} has {a} stamps. {m} has {b} times as many, and gives {c} of them to {n}. How many more stamps does {m} "
        "then have than {n}?",
        lambda d: {"a": d.between(30, 90), "b": d.between(3, 6), "c": d.between(5, 24)},
    ),
    (
        "A printer produces {a} pages a minute in colour and {b} pages a minute in black. {n} prints {x} colour pages "
        "first and then {y} black pages. How many minutes does the whole job take?",
        lambda d: {
            "a": (a := d.between(6, 15)),
            "b": (b := d.between(18, 40)),
            "x": a * d.between(3, 9),
            "y": b * d.between(2, 8),
        },
    ),
    (
        "A farmer has {a} hens. Each lays {b} eggs a week. The farmer's family eats {c} eggs a week and the rest is "
        "sold by the dozen. How many dozens are sold in a week?",
        lambda d: {
            "a": (a := d.between(20, 60)),
            "b": (b := d.between(4, 6)),
            "c": a * b % 12 + 12 * d.between(0, 3) or 12,
        },
    ),
    (
        "{n} runs {a} laps of a {b}-metre track on each of {c} days. {m} runs {e} kilometres in total. How many metres "
        "farther than {m} does {n} run?",
        lambda d: {"a": d.between(10, 16), "b": 400, "c": d.between(4, 7), "e": d.between(5, 14)},
    ),
    (
        "A theatre has {r} rows of {s} seats. For the evening show {q}% of the seats are sold at ${p} each. How much "
        "money is taken?",
        lambda d: {
            "r": 10 * d.between(2, 5),
            "s": 2 * d.between(8, 18),
            "q": 5 * d.between(8, 19),
            "p": d.between(9, 30),
        },
    ),
    (
        "{n} mixes paint from {a} parts blue and {b} parts yellow. To get {t} litres of green paint, how many litres "
        "of blue does {n} need?",
        lambda d: {"a": (a := d.between(2, 7)), "b": (b := a + d.between(1, 6)), "t": (a + b) * d.between(3, 12)},
    ),
    (
        "A phone plan costs ${f} a month plus {p} cents for every message beyond the first {k}. {n} sends {x} messages "
        "in one month. How many cents is the bill?",
        lambda d: {
            "k": (k := 10 * d.between(5, 20)),
            "f": d.between(8, 30),
            "p": d.between(3, 12),
            "x": k + d.between(15, 90),
        },
    ),
    (
        "{n} cuts a ribbon of {t} centimetres into two pieces so that one piece is {k} centimetres longer than the "
        "other. How long is the shorter piece?",
        lambda d: {"k": (k := d.between(6, 40)), "t": k + 2 * d.between(20, 120)},
    ),
    (
        "At a charity run {a} adults pay ${p} each and {b} children pay ${q} each. The organisers spend ${x} on water "
        "and medals. How much is left for the charity?",
        lambda d: {
            "a": d.between(60, 180),
            "b": d.between(30, 90),
            "p": d.between(12, 25),
            "q": d.between(4, 10),
            "x": d.between(120, 600),
        },
    ),
    (
        "A lift can carry {w} kilograms. {n} must bring up {k} sacks of cement at {s} kilograms each, and {n} weighs "
        "{b} kilograms and always rides along. How many trips up are needed?",
        lambda d: {"w": d.between(280, 420), "k": d.between(25, 60), "s": d.between(20, 35), "b": d.between(55, 95)},
    ),
    (
        "The sum of three consecutive whole numbers is {t}. {n} multiplies the largest by {k}. What does {n} get?",
        lambda d: {"t": 3 * d.between(12, 150), "k": d.between(2, 9)},
    ),
    (
        "{n} drives {a} kilometres to the coast. The car uses {u} litres of petrol for every 100 kilometres, and a "
        "litre costs {p} cents. How many cents does the petrol for the drive there and back cost?",
        lambda d: {"a": 50 * d.between(2, 11), "u": d.between(4, 9), "p": d.between(140, 210)},
    ),
    (
        "A jar holds red, green and white marbles. There are {a} red ones, {k} times as many green ones as red ones, "
        "and {w} fewer white ones than green ones. How many marbles are in the jar?",
        lambda d: {"a": d.between(9, 30), "k": d.between(2, 5), "w": d.between(3, 17)},
    ),
    (
        "{n} can paint a fence in {a} hours, and {m} needs {b} hours for the same fence. They want to paint {f} such "
        "fences together. How many hours does it take?",
        lambda d: {
            "a": (pair := d.pick(((3, 6, 2), (4, 12, 3), (6, 12, 4), (5, 20, 4), (10, 15, 6), (6, 30, 5), (8, 24, 6))))[
                0
            ],
            "b": pair[1],
            "f": d.between(2, 9),
        },
    ),
    (
        "A class of {t} pupils votes on a trip. {a} more pupils vote for the museum than for the zoo, and {z} pupils "
        "do not vote. How many pupils vote for the museum?",
        lambda d: {"a": (a := d.between(2, 9)), "z": (z := d.between(2, 6)), "t": a + z + 2 * d.between(6, 11)},
    ),
    (
        "{n} buys {a} notebooks at ${p} each and {b} pens at ${q} each and pays with a ${t} note. How much change does "
        "{n} get?",
        lambda d: {"a": d.between(2, 7), "p": d.between(2, 6), "b": d.between(3, 9), "q": d.between(1, 4), "t": 100},
    ),
    (
        "A colony of bacteria doubles every {h} hours. At noon there are {a} of them. How many are there {k} hours "
        "later?",
        lambda d: {"h": (h := d.between(2, 6)), "a": 10 * d.between(3, 50), "k": h * d.between(3, 6)},
    ),
    (
        "{n}'s average over {k} tests is {a} points. What must {n} score in the next test to bring the average up to "
        "{b} points?",
        lambda d: {"k": (k := d.between(3, 6)), "a": (a := d.between(68, 84)), "b": a + d.between(1, 15 // (k + 1))},
    ),
)
TEMPLATES = tuple(text for text, _ in STORIES)
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August")


def _tell(text: str, numbers: Numbers, rng: Rng) -> str:
    first, second = rng.sample(NAMES, 2)
    values: dict[str, object] = dict(numbers(rng))
    if "mo" in values:
        values["mo"] = MONTHS[int(str(values["mo"])) - 1]
    return text.format(n=first, m=second, **values)


def prompts() -> tuple[str, ...]:
    """The 1,054 problems, always the same, grouped by story."""
    return fill("math", [partial(_tell, text, numbers) for text, numbers in STORIES], EACH)
