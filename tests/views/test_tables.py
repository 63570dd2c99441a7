"""One table, three ways to write it, and how numbers are written everywhere."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from dsbench.analysis.versus import Versus
from dsbench.stats.intervals import Interval
from dsbench.views.numbers import bounds, ends, interval_of, number, percent, reach, span, with_ends
from dsbench.views.tables import Table, as_csv, on_terminal

WIDE, BARE = Interval(1.5, 1.25, 2.0, 9), Interval(3.0, None, None, 1)
FASTER = Versus(base="static:2", ratio=WIDE, word="FASTER")
TABLE = Table(
    name="t",
    caption="A table",
    heads=("workload", "R", "arm", "saved", "over"),
    rows=(
        ("chat", 1, "none", 0.25, None),
        ("chat", 1, "static", WIDE, FASTER),
        ("chat", 8, "none", -1.0, "no data"),
        ("m[ath]", 8, "none", BARE, FASTER),
    ),
    place=2,
    signed=frozenset({"saved"}),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (1.2345, "1.23"),
        (12.345, "12.3"),
        (123.45, "123"),
        (12345.6, "12,346"),
        (-0.0001, "0.000"),
        (7, "7"),
        (12345, "12,345"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (None, "–"),
    ],
)
def test_numbers_have_about_three_figures(value, text):
    assert number(value) == text


def test_signs_stand_before_what_is_not_zero():
    assert [number(v, sign=True) for v in (1.5, -1.5, 0.0, -0.0001, 3)] == ["+1.50", "-1.50", "0.000", "0.000", "+3"]
    assert (percent(0.1234, 1, sign=True), percent(None), percent(0.5)) == ("+12.3%", "–", "50%")


def test_intervals_in_words():
    assert ends(WIDE, between="..") == "1.25..2.00" and ends(BARE, none="no interval") == "no interval"
    assert with_ends(WIDE) == "1.50 [1.25, 2.00]" and with_ends(BARE, none=", alone") == "3.00, alone"
    assert bounds(WIDE, "+.1f") == "[+1.2, +2.0]" and bounds(BARE, ".1f") == "(n = 1)"
    assert reach([WIDE, BARE]) == [[0.25, 0.0], [0.5, 0.0]] and with_ends(None) == "–"
    assert span([3, 1, 2]) == "1 to 3" and span([4, 4]) == "4"
    assert interval_of({"value": 1.5, "low": 1.25, "high": 2.0, "n": 9}) == WIDE and interval_of(None) is None


def drawn(table, **options):
    text = io.StringIO()
    Console(file=text, width=80).print(on_terminal(table, **options))
    return text.getvalue().splitlines()


def test_a_terminal_writes_a_place_once_and_draws_a_line_below_it():
    lines = drawn(TABLE, title="of [a] run", notes=["a [note]"], loud="SIMULATED")
    assert sum("chat" in line for line in lines) == 2, "once a workload and R"
    assert sum(set(line.strip()) == {"─"} for line in lines) == 2 + 3
    body = "\n".join(lines)
    for part in (
        "m[ath]",
        "of [a] run",
        "a [note]",
        "SIMULATED",
        "+0.250",
        "-1.00",
        "+1.50",
        "1.50 FASTER",
        "static:2",
    ):
        assert part in body
    assert "1.25..2.00" in body and "±" not in body
    half = Table(name="t", caption="", heads=TABLE.heads, rows=TABLE.rows, half=True)
    assert "±0.375" in "\n".join(drawn(half))


def test_a_line_of_text_holds_the_whole_value():
    assert TABLE.text(WIDE, 3) == "+1.50 [1.25, 2.00]" and TABLE.text(WIDE, 4) == "1.50 [1.25, 2.00]"
    assert TABLE.text(FASTER, 4) == "1.50 [1.25, 2.00] FASTER, static:2"


def test_a_csv_has_a_column_a_number_and_full_precision():
    heads, *rows = csv.reader(io.StringIO(as_csv(TABLE)))
    assert heads[3:] == ["saved", "saved_low", "saved_high", "over", "over_low", "over_high", "over_word", "over_over"]
    assert rows[1][3:] == ["1.5", "1.25", "2.0", "1.5", "1.25", "2.0", "FASTER", "static:2"]
    assert rows[2][3:] == ["-1.0", "", "", "no data", "", "", "", ""]
