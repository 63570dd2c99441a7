"""Arrival processes against their laws, recorded traffic, lengths; and what is refused, in one line with a hint."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import gamma, kstest
from virtual_engine import toy_requests

from dsbench.errors import UsageError
from dsbench.settings import RunConfig
from dsbench.sweep.traffic import measured_of, plan_traffic, warming
from dsbench.workloads.arrivals import Arrivals, parse_arrivals
from dsbench.workloads.lengths import Lengths, parse_lengths, with_lengths
from dsbench.workloads.recorded import read_recorded
from dsbench.workloads.rng import uniform


def load(rate=2.0, burstiness=1.0):
    return Arrivals(name="x", rate=rate, burstiness=burstiness)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_follow_the_gamma_law(burstiness):
    times = np.array(load(rate=8.0, burstiness=burstiness).seconds(4000, "intervals"))
    waits = np.diff(times, prepend=0.0)
    assert (waits >= 0).all()
    assert kstest(waits, gamma(burstiness, scale=1 / (burstiness * 8.0)).cdf).pvalue > 0.01
    assert waits.mean() == pytest.approx(1 / 8, rel=0.1)
    assert waits.var() / waits.mean() ** 2 == pytest.approx(1 / burstiness, rel=0.15)


def test_requests_of_a_poisson_process_come_independently_of_each_other():
    """Counts in windows have variance = mean; bursts have more, an even stream less; intervals are not correlated."""
    spread = {}
    for burstiness in (0.25, 1.0, 4.0):
        times = np.array(load(rate=5.0, burstiness=burstiness).seconds(6000, "s"))
        counts = np.histogram(times, np.arange(0, times[-1] - 2, 2.0))[0]
        spread[burstiness] = counts.var() / counts.mean()
        waits = np.diff(times)
        assert abs(np.corrcoef(waits[:-1], waits[1:])[0, 1]) < 0.04
    assert spread[1.0] == pytest.approx(1, abs=0.12) and spread[0.25] > 2 and spread[4.0] < 0.5


def test_a_seed_gives_one_sequence_and_a_rate_only_stretches_it():
    assert load().seconds(50, "a") == load().seconds(50, "a") == load().seconds(80, "a")[:50]
    assert load().seconds(50, "a") != load().seconds(50, "b")
    assert load(rate=4.0).seconds(50, "a") == pytest.approx([s / 2 for s in load(rate=2.0).seconds(50, "a")])
    exponential = np.cumsum([-math.log1p(-uniform("arrival\0a", i)) / 2.0 for i in range(50)])
    assert load().seconds(50, "a") == pytest.approx(exponential.tolist())
    assert load(burstiness=math.inf).seconds(4, "a") == [0, 0.5, 1.0, 1.5]


def test_the_uniforms_are_uniform():
    values = [uniform("key", i) for i in range(4000)]
    assert 0 < min(values) < max(values) < 1 and kstest(values, "uniform").pvalue > 0.01


def test_rates_are_parsed_and_named():
    loads, recorded = parse_arrivals("2, closed,4.5", burstiness="", file="")
    assert recorded is None and [x and (x.name, x.rate) for x in loads] == [("Poisson", 2), None, ("Poisson", 4.5)]
    assert parse_arrivals("", burstiness="", file="")[0] == (None,)
    assert parse_arrivals("3", burstiness="0.5", file="")[0][0].name == "gamma 0.5"
    assert parse_arrivals("3", burstiness="inf", file="")[0][0].name == "constant"


def test_recorded_traffic_is_read_in_both_forms_and_stretched(tmp_path):
    table, lines = tmp_path / "a.csv", tmp_path / "a.jsonl"
    table.write_text("seconds, prompt_tokens, output_tokens, note\n10.5,30,5,x\n11,40,6,\n12.5,50,7,y\n")
    lines.write_text(
        '{"timestamp": 10500, "input_length": 30, "output_length": 5}\n\n'
        '{"timestamp": 11000, "input_length": 40, "output_length": 6, "hash_ids": [1]}\n'
        '{"timestamp": 12500, "input_length": 50, "output_length": 7}\n'
    )
    for path in (table, lines):
        found = read_recorded(path)
        assert found.seconds == pytest.approx((0, 0.5, 2)) and found.prompt_tokens == (30, 40, 50)
        assert found.output_tokens == (5, 6, 7)
    (own,), _ = parse_arrivals("", burstiness="", file=str(table))
    assert own.rate == 1.0 and own.seconds(9, "any") == [0, 0.5, 2]
    (fast, slow), _ = parse_arrivals("2,0.5", burstiness="", file=str(table))
    assert fast.seconds(3, "") == [0, 0.25, 1] and slow.seconds(2, "") == [0, 1]
    assert fast.name == slow.name == own.name and own.name.startswith("a.csv (")
    traffic = plan_traffic(RunConfig(arrivals=str(table), requests=2, max_tokens=8))
    assert [traffic.prompt.of(i, "") for i in range(4)] == [30, 40, 50, 30]
    assert [traffic.output.of(i, "") for i in range(3)] == [5, 6, 7]
    assert plan_traffic(RunConfig(arrivals=str(table), requests=2, output_len="3")).output.of(1, "") == 3


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "no row"),
        ("a.csv", "seconds\n", "no row"),
        ("a.jsonl", "\n\n", "no row"),
        ("a.csv", "seconds\n1\n3\n2\n", "a.csv:4: it arrives at 2 s, before the row above (3 s)"),
        ("a.csv", "seconds\n-1\n", "a.csv:2: seconds must be a number >= 0"),
        ("a.csv", "seconds\nnan\n", "a.csv:2: seconds must be a number >= 0"),
        ("a.csv", "seconds,output_tokens\n1,4\n2\n", "a.csv:3: output_tokens must be an integer"),
        ("a.csv", "seconds,output_tokens\n1,4.5\n", "a.csv:2: output_tokens must be an integer"),
        ("a.csv", "seconds,prompt_tokens\n1,0\n", "a.csv:2: prompt_tokens must be an integer in 1.."),
        ("a.csv", "when\n1\n", "no column of it is known (it has: when)"),
        ("a.csv", "prompt_tokens\n1\n", "no arrival times"),
        ("a.csv", "seconds\n1\n1\n", "all requests arrive at once"),
        ("a.jsonl", '{"seconds": 1}\n{"seconds": ', "a.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: a row must be an object"),
        ("a.jsonl", '{"seconds": true}\n', "a.jsonl:1: seconds must be a number >= 0"),
        ("a.jsonl", '{"seconds": "1e999"}\n', "a.jsonl:1: seconds must be a number >= 0"),
        ("a.txt", "1\n", "is a .csv or a .jsonl file"),
        (None, "", "no such file"),
    ],
)
def test_bad_files_are_refused_with_the_line(name, text, words, tmp_path):
    path = tmp_path / (name or "absent.csv")
    if name:
        path.write_text(text)
    with pytest.raises(UsageError) as refused:
        parse_arrivals("", burstiness="", file=str(path))
    assert words in refused.value.message and refused.value.hint and "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"request_rate": "-1"}, "must be finite and above 0, got -1"),
        ({"request_rate": "0"}, "must be finite and above 0"),
        ({"request_rate": "2,inf"}, "must be finite and above 0"),
        ({"request_rate": "nan"}, "must be finite and above 0"),
        ({"request_rate": "2,,4"}, "'' is no number"),
        ({"request_rate": "fast"}, "'fast' is no number"),
        ({"request_rate": "2", "burstiness": "0"}, "burstiness must be >= 0.01"),
        ({"request_rate": "2", "burstiness": "nan"}, "burstiness must be >= 0.01"),
        ({"request_rate": "2", "burstiness": "bursty"}, "burstiness must be >= 0.01, got bursty"),
        ({"burstiness": "0.5"}, "--burstiness needs a rate"),
        ({"output_len": "100"}, "answers of 100 tokens are longer than max-tokens 64"),
        ({"output_len": "0"}, "'0' is no integer"),
        ({"output_len": "9:3"}, "runs backwards"),
        ({"output_len": "5=1,6"}, "'' is no number above 0"),
        ({"input_len": "5=-1"}, "'-1' is no number above 0"),
        ({"input_len": "lognormal:50"}, "'' is no number above 0"),
        ({"input_len": "normal:50:2"}, "'normal' is no integer"),
        ({"slo": "ttft"}, "'ttft' is not metric:time"),
    ],
)
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(UsageError) as refused:
        plan_traffic(RunConfig(**changes))
    assert words in refused.value.message and refused.value.hint and "\n" not in refused.value.message


def test_a_file_too_short_for_what_is_measured_says_what_fits(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("seconds\n" + "\n".join(str(i) for i in range(11)))
    with pytest.raises(UsageError) as refused:
        plan_traffic(RunConfig(arrivals=str(path), requests=16))
    assert "holds 11 arrivals; 16 measured requests and 4 before" in refused.value.message
    assert refused.value.hint == "--requests 9" and 9 + warming(9) == 11
    (own,) = plan_traffic(RunConfig(arrivals=str(path), requests=9)).loads
    assert measured_of(own, 4, 9) == (range(2, 11), 11)
    assert measured_of(None, 4, 9) == (range(4, 13), 4 + 9 + 6) and measured_of(None, 16, 9)[0] == range(16, 32)
    assert measured_of(load(), 4, 9) == (range(2, 11), 2 + 9 + 6)


def test_lengths_follow_their_laws():
    n = 4000
    ranged = [parse_lengths("3:6", "output").of(i, "s") for i in range(n)]
    assert set(ranged) == {3, 4, 5, 6} and np.bincount(ranged)[3:].min() > 0.9 * n / 4
    chosen = [parse_lengths("64=3,512=1", "output").of(i, "s") for i in range(n)]
    assert set(chosen) == {64, 512} and chosen.count(64) / n == pytest.approx(0.75, abs=0.03)
    logs = np.log([parse_lengths("lognormal:2000:0.5", "prompt").of(i, "s") for i in range(n)])
    assert np.median(logs) == pytest.approx(math.log(2000), abs=0.03) and logs.std() == pytest.approx(0.5, rel=0.05)
    assert parse_lengths("7", "prompt").of(3, "s") == 7 and parse_lengths("", "prompt") is None
    assert [parse_lengths(t, "prompt").most for t in ("7", "3:6", "64=3,512=1", "lognormal:9:1")] == [7, 6, 512, None]
    assert ranged[:50] == [parse_lengths("3:6", "output").of(i, "s") for i in range(50)]
    assert ranged[:50] != [parse_lengths("3:6", "output").of(i, "t") for i in range(50)]


def prompts_of(queue):
    return [r.prompt_ids for r in queue]


def test_prompts_are_cut_and_filled_to_length_whatever_follows_in_the_queue():
    queue = [replace(r, prompt_ids=[10 * r.id + j for j in range(3)]) for r in toy_requests([9] * 6)]
    law = Lengths(name="x", kind="recorded", values=(2, 5, 8))
    made = with_lengths(queue, law, None, seed="0", longest=100)
    assert prompts_of(made)[0] == [1, 2] and prompts_of(made)[1] == [1, 2, 10, 11, 12]
    assert prompts_of(made)[2] == [1, 2, 10, 11, 12, 20, 21, 22]
    assert prompts_of(with_lengths(queue[:3], law, None, seed="0", longest=100)) == prompts_of(made)[:3]
    first = with_lengths(queue, Lengths(name="x", kind="range", bounds=(7, 7)), None, seed="0", longest=100)[0]
    assert first.prompt_ids == [2, 0, 1, 2, 0, 1, 2], "with nobody before it, its own over and over"
    assert {len(p) for p in prompts_of(with_lengths(queue, law, None, seed="0", longest=4))} == {2, 4}
    assert prompts_of(queue)[0] == [0, 1, 2], "the queue itself is left as it was"


def test_answers_end_at_their_length_and_never_later_than_before():
    law = parse_lengths("4:40", "output")
    made = with_lengths(toy_requests([20] * 200), None, law, seed="1", longest=100)
    limits = [r.sampling.max_tokens for r in made]
    assert min(limits) == 4 and max(limits) == 20
    assert limits == [min(20, law.of(i, "output\x001")) for i in range(200)]
    assert [r.sampling.seed for r in made] == list(range(200))
