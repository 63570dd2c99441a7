"""Latencies, speeds per user and goodput by hand; percentiles against numpy; the load that an SLO allows."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
from compare_command import dsbench
from rich.console import Console
from staircase_run import PREFILL, law, write_staircase_run
from synthetic_run import make_cell

from dsbench.analysis.slo import allowed, goodput, goodput_of, meets, parse_slo
from dsbench.analysis.summary import summary_frame
from dsbench.errors import UsageError
from dsbench.results.latency import SPEEDS, latencies, user_speeds
from dsbench.stats.intervals import _weighted_quantiles, quantiles_over
from dsbench.views.explain import explain
from dsbench.views.latency import latency_on_terminal
from dsbench.views.slo import answer, slo_on_terminal


def four():
    """Answers of 101, 101, 501, 501 tokens, first tokens after .2, 3.2, .2, 3.2 s, then one each 10, 10, 20, 20 ms."""
    tokens, ttft = np.array([101, 101, 501, 501]), np.array([0.2, 3.2, 0.2, 3.2])
    later = (tokens - 1) * np.array([0.01, 0.01, 0.02, 0.02])
    return pd.DataFrame(
        {
            "name": [f"p{i}" for i in range(4)],
            "output_tokens": tokens,
            "arrived": 0.0,
            "admitted": [0, 3, 0, 3],
            "first_token": ttft,
            "finished": ttft + later,
            "measured": True,
            "finish_reason": "length",
        }
    )


def test_each_definition_of_speed_per_user_has_a_value_of_its_own():
    """Seconds after the first token: 1, 1, 10, 10; E2E: 1.2, 4.2, 10.2, 13.2, a token 11.9, 41.6, 20.4, 26.3 ms.

    Four requests at a time, all there at 0: 1204 tokens in 13.2 s.
    """
    requests = four()
    seconds = latencies(requests)
    assert seconds["tpot"] == pytest.approx([0.01, 0.01, 0.02, 0.02])
    assert seconds["e2e"] == pytest.approx([1.2, 4.2, 10.2, 13.2])
    found = user_speeds(requests["output_tokens"].to_numpy(float), seconds, throughput=1204 / 13.2, concurrency=4)
    per_token = sorted([1.2 / 101, 4.2 / 101, 10.2 / 501, 13.2 / 501])
    wanted = {
        "user_speed": 1200 / 22,
        "speed_mean_of_rates": (100 + 100 + 50 + 50) / 4,
        "speed_p90_of_rates": 100,
        "speed_by_mean_tpot": 1 / 0.015,
        "speed_by_p90_tpot": 50,
        "speed_e2e_mean_of_rates": (101 / 1.2 + 101 / 4.2 + 501 / 10.2 + 501 / 13.2) / 4,
        "speed_e2e": 1204 / 28.8,
        "speed_by_p90_e2e": 1 / (per_token[2] + 0.7 * (per_token[3] - per_token[2])),
        "speed_by_concurrency": 1204 / 13.2 / 4,
    }
    assert found == pytest.approx(wanted) and tuple(found) == SPEEDS
    values = sorted(wanted.values())
    assert all(b / a > 1.02 for a, b in zip(values, values[1:], strict=False)), "no two of them are alike"


def test_explain_names_each_of_them_and_who_defines_it_so():
    for name in SPEEDS:
        text = explain(name)
        assert text.startswith(f"{name} [tokens/s/user]")
        assert any(tool in text for tool in ("InferenceX", "AIPerf", "GuideLLM", "vLLM")), name
        assert name == "user_speed" or name in explain("per-user speed")


def test_an_answer_of_one_token_has_no_time_per_token():
    requests = four().assign(output_tokens=[1, 101, 501, 501])
    assert np.isnan(latencies(requests)["tpot"][0])
    slo = parse_slo("tpot:15ms,itl:1s")
    with pytest.raises(UsageError, match="kept no times of tokens"):
        meets(requests, slo)
    assert meets(requests.assign(itl_max=[np.nan, 0.5, 0.5, 2]), slo).tolist() == [True, True, False, False]
    assert np.isnan(list(user_speeds(np.ones(1), latencies(requests[:1]), throughput=1, concurrency=1).values())).all()


def test_goodput_counts_requests_and_the_tokens_of_those_alone():
    requests, slo = four(), parse_slo("ttft:1s, tpot:15ms")
    assert meets(requests, slo).tolist() == [True, False, False, False]
    assert meets(requests, parse_slo("e2e:10.3s")).tolist() == [True, True, True, False]
    assert meets(requests.assign(finish_reason="cancelled"), slo).tolist() == [False] * 4
    held = sum(requests["finished"] - requests["admitted"])
    found = goodput(requests, slo, batch=4, open_loop=False, throughput=None)
    assert found["goodput"]["value"] == 1 / 4 and found["goodput"]["n"] == 4
    assert found["goodput_tokens"]["value"] == pytest.approx(4 * 101 / held)
    found = goodput(requests, slo, batch=4, open_loop=True, throughput=90.0)
    assert found["goodput_tokens"]["value"] == pytest.approx(90 * 101 / 1204)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is not metric:time"),
        ("ttft", "not metric:time"),
        ("tfft:200ms", "no metric 'tfft'"),
        ("ttft:200", "give the time in us, ms or s"),
        ("ttft:200min", "give the time in us, ms or s"),
        ("ttft:fast", "'fast' is no time above 0"),
        ("ttft:-5ms", "'-5ms' is no time above 0"),
        ("ttft:0ms", "'0ms' is no time above 0"),
        ("ttft:1s,,tpot:2ms", "'' is not metric:time"),
        ("ttft:1s,TTFT:2s", "names ttft twice"),
    ],
)
def test_a_bad_slo_is_refused(text, words):
    with pytest.raises(UsageError) as refused:
        parse_slo(text)
    assert words in refused.value.message and refused.value.hint


def test_an_slo_is_read_in_any_unit():
    assert dict(parse_slo("ttft:.2s, TPOT: 20 ms,itl:900us,e2el:3s").limits) == pytest.approx(
        {"ttft": 0.2, "tpot": 0.02, "itl": 0.0009, "e2e": 3}
    )
    assert str(parse_slo("ttft:200ms,tpot:1500us")) == "ttft <= 200 ms, tpot <= 1.5 ms"


def test_percentiles_are_numpys_and_their_intervals_those_of_a_plain_bootstrap_over_prompts():
    rng = np.random.default_rng(4)
    owners = np.repeat(np.arange(40), rng.integers(1, 6, 40))
    values = rng.gamma(2.0, 1.0, len(owners)) + owners / 20
    shares = (0.5, 0.95, 0.99)
    found = quantiles_over(values, owners, shares, seed=1)
    assert [f.value for f in found] == pytest.approx(np.quantile(values, shares).tolist())
    groups = [values[owners == i] for i in range(40)]
    drawn = [np.quantile(np.concatenate([groups[i] for i in rng.integers(0, 40, 40)]), shares) for _ in range(3000)]
    for own, column in zip(found, np.transpose(drawn), strict=True):
        low, high = np.quantile(column, [0.025, 0.975])
        assert (own.low, own.high) == pytest.approx((low, high), abs=0.12 * (high - low))
    assert quantiles_over([], [], shares) == [None] * 3
    alone = quantiles_over([3.0, 1.0], [0, 0], shares)
    assert (alone[0].value, alone[0].low) == (2.0, None) and alone[1:] == [None, None]


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 300])
def test_a_resamples_quantile_is_that_of_its_values_side_by_side(count):
    rng = np.random.default_rng(count)
    data = np.sort(rng.integers(0, 9, count).astype(float))  # with ties
    owner = np.r_[np.arange(min(3, count)), rng.integers(0, 3, max(0, count - 3))]
    times = rng.multinomial(3, [1 / 3] * 3, 50)
    times = times[(times[:, owner] > 0).any(1)]  # some value is there
    shares = (0.0, 0.5, 0.95, 1.0)
    wanted = np.transpose([np.quantile(np.repeat(data, row[owner]), shares) for row in times])
    assert _weighted_quantiles(data, times, owner, shares) == pytest.approx(wanted)


LOADS = (1, 4, 8, 16)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "r"
    return write_staircase_run(folder, make_cell, modes=("none", "static:3"), batches=LOADS)


def pace(batch, window):
    """Seconds a token after the first, of the known law."""
    want = law(batch, window)
    return want.rounds * want.step / (want.tokens - 1)


@pytest.mark.parametrize(("mode", "window"), [("none", 0), ("static:3", 3)])
@pytest.mark.parametrize("batch", LOADS)
def test_percentiles_and_goodput_of_a_known_law_equal_their_closed_forms(run, mode, window, batch):
    stored = next(c for c in run.cells() if (c.cell.mode, c.cell.batch) == (mode, batch))
    body, want = stored.summary, law(batch, window)
    after = want.rounds * want.step
    assert body["tpot_p50"]["value"] == pytest.approx(pace(batch, window))
    for share, point in ((0.5, "p50"), (0.95, "p95")):
        if point == "p50" or batch >= 20:
            assert body[f"ttft_{point}"]["value"] == pytest.approx(np.quantile(want.first_token, share))
            assert body[f"e2e_{point}"]["value"] == pytest.approx(np.quantile(np.add(want.first_token, after), share))
    waits = []
    for accepted in (min(match, window) for match in (4, 0, 2) * 3):
        waits += [0.0] * accepted + [want.step]
    assert body["itl_p50"]["n"] == batch * len(waits)
    for share, point in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        found, n = body[f"itl_{point}"], batch * len(waits)
        if share == 0.5 or n >= 1 / (1 - share) - 1e-9:
            assert found["value"] == pytest.approx(np.quantile(waits * batch, share))
        else:
            assert found is None
    limit = batch // 2 * PREFILL + PREFILL / 2
    slo = parse_slo(f"ttft:{limit * 1e3:g}ms")
    share = sum(wait <= limit for wait in want.first_token) / batch
    found = goodput_of(stored, slo)
    assert found["goodput"]["value"] == pytest.approx(share)
    assert (found["goodput_tokens"] or {"value": 0})["value"] == pytest.approx(share * want.throughput)


def test_the_allowed_load_is_the_largest_that_ran_and_never_extrapolated(run):
    """A limit between the paces of two loads allows the lower; above all of them or below, there is no data."""
    cells = run.cells()
    by_load = {load: pace(load, 0) for load in LOADS}
    assert by_load[1] == by_load[4] < by_load[8] < by_load[16], "the law has stairs"
    cases = {
        (by_load[8] + by_load[16]) / 2: (8, 16, "R 8 (R 16 is too much)"),
        by_load[16] * 1.01: (16, None, "R 16 or more: no data above"),
        by_load[1] * 0.99: (None, 1, "none that ran: R 1 is too much"),
    }
    for limit, (load, over, words) in cases.items():
        found = {a.arm: a for a in allowed(cells, parse_slo(f"tpot:{limit * 1e6:.3f}us"), target=0.95)}["none"]
        assert (found.load, found.over, answer(found)) == (load, over, words)
        assert found.loads == LOADS and [s["value"] for s in found.shares] == [by_load[b] <= limit for b in LOADS]


def test_a_load_above_one_that_fails_is_not_allowed(run):
    """The i-th of R first tokens comes after (R - i) x 5 ms: within 11 ms are 1 of 1, 2 of 4, 2 of 8, 2 of 16."""
    slo = parse_slo("ttft:11ms")
    found = allowed(run.cells(), slo, target=0.5)[0]
    assert [s["value"] for s in found.shares] == [1.0, 0.5, 0.25, 0.125]
    assert (found.load, found.over) == (4, 8)


def test_a_share_whose_interval_holds_the_target_is_marked(run):
    """Of 4 prompts at R 4 two are in time: 2 of 4, somewhere from none to all; at R 1 there is one prompt."""
    slo, text = parse_slo("ttft:11ms"), io.StringIO()
    found = allowed(run.cells(), slo, target=0.5)
    assert (found[0].shares[1]["low"], found[0].shares[1]["high"]) == (0, 1)
    Console(file=text, width=140).print(slo_on_terminal("r", {}, slo, found))
    assert "R 1: 100%  R 4: 50% ~  R 8: 25%" in text.getvalue().replace("\N{NO-BREAK SPACE}", " ")
    text = io.StringIO()
    Console(file=text, width=140).print(slo_on_terminal("r", {}, slo, allowed(run.cells(), slo, target=1.0)))
    assert "R 1: 100%  R 4: 50% ~" in text.getvalue().replace("\N{NO-BREAK SPACE}", " ")


def test_the_commands_print_it_and_refuse_in_one_line(run, tmp_path):
    folder = str(run.folder)
    code, out, _ = dsbench("slo", folder, "--slo", "tpot:20ms", "--share", "0.9", home=tmp_path)
    assert code == 0 and "tpot <= 20 ms, met by 90%" in out and "SYNTHETIC" in out and "…" not in out
    code, out, _ = dsbench("slo", folder, "--slo", "tpot:20ms", "--json", home=tmp_path)
    rows = json.loads(out)
    assert {row["arm"] for row in rows} == {"none", "static:3"} and rows[0]["loads"] == list(LOADS)
    for arguments, words in (
        (["--slo", "tpto:20ms"], "did you mean tpot?"),
        ([], "no SLO given"),
        (["--slo", "tpot:20ms", "--share", "1.5"], "must lie in 0..1"),
        (["--slo", "tpot:20ms", "--share", "nan"], "must lie in 0..1"),
    ):
        code, out, err = dsbench("slo", folder, *arguments, home=tmp_path)
        assert code == 2 and words in err and err.count("\n") == 1 and out == ""
    code, out, _ = dsbench("show", folder, home=tmp_path)
    assert code == 0 and "Latencies in ms" in out


def test_a_runs_own_slo_stands_in_the_table_and_the_csv(tmp_path):
    store = write_staircase_run(tmp_path / "r", make_cell, modes=("none",), batches=(4,))
    body = store.read_run()
    store.write_run({k: v for k, v in body.items() if k != "schema"} | {"config": {"slo": "ttft:11ms"}})
    row = summary_frame(store).iloc[0]
    assert row["slo"] == "ttft <= 11 ms" and row["goodput"] == 0.5
    assert row["goodput_tokens"] == pytest.approx(row["throughput"] / 2)
    assert row["speed_by_concurrency"] == pytest.approx(row["throughput"] / 4)
    text = io.StringIO()
    Console(file=text, width=118).print(latency_on_terminal(store))
    assert "50%" in text.getvalue() and "SYNTHETIC" in text.getvalue() and "…" not in text.getvalue()
