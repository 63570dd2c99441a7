"""Sweeps with arrivals and lengths on a tiny model: cells beside each other, records, commands, refusals."""

from __future__ import annotations

import json

import pytest
from command import dsbench, refused, sweep_flags, write_drafter
from replays import record

from dsbench.analysis.summary import summary_frame
from dsbench.results.acceptance_trace import load_trace
from dsbench.results.store import RunStore
from dsbench.workloads.lengths import head_start, parse_lengths


def run_of(home, flags, name="run"):
    done = dsbench(*flags, home=home)
    assert done.returncode == 0, done.stderr
    return done, RunStore(home / name)


def test_open_and_closed_cells_stand_beside_each_other(model, tmp_path):  # noqa: F811
    drafter = write_drafter(tmp_path / "drafter")
    flags = sweep_flags(
        model,
        tmp_path,
        drafter=str(drafter),
        mode="none,static",
        batch="2",
        requests="5",
        burstiness="0.5",
        request_rate="closed,20,400",
        slo="ttft:10s,e2e:20s",
        input_len="5:9",
        output_len="2=1,6=1",
        repeats="2",
    )
    done, store = run_of(tmp_path, flags)
    cells = {(c.cell.mode, c.cell.rate): c for c in store.cells()}
    assert cells.keys() == {(mode, rate) for mode in ("none", "static") for rate in (0, 20, 400)}
    tables = {key: stored.table("requests") for key, stored in cells.items()}
    lengths = {}
    for (mode, rate), done_requests in tables.items():
        own = done_requests[done_requests["measured"]]
        assert len(own) == 10 and own["prompt_tokens"].between(5, 9).all() and own["output_tokens"].max() <= 6
        assert {"arrived", "ttft", "tpot", "e2e", "itl_p50", "itl_p95", "itl_p99", "itl_max"} <= set(own.columns)
        assert own["e2e"].to_numpy() == pytest.approx((own["finished"] - own["arrived"]).to_numpy())
        came = done_requests.sort_values(["rep", "request"])
        assert (came["admitted"] >= came["arrived"]).all()
        stored = cells[mode, rate]
        if rate:
            assert stored.cell.arrivals == "gamma 0.5" and "gamma 0.5 arrivals" in done.stdout
            assert stored.summary["offered_rate"] > 0 and stored.summary["drift"] is None
            waits = own["admitted"] - own["arrived"]
            assert stored.summary["queue_wait"] == pytest.approx(waits.mean())
        else:
            assert stored.cell.arrivals == "" and (own["arrived"] == own["admitted"]).all()
        for _, row in came[came["measured"] | (rate > 0)].iterrows():  # the closed loop's first ones are under way
            lengths.setdefault(int(row["request"]), set()).add((row["prompt_tokens"], row["output_tokens"]))
    assert all(len(found) == 1 for found in lengths.values()), "a request is as long in every arm, at every load"
    assert len(set.union(*lengths.values())) > 3
    gaps = {}
    for (mode, rate), table in tables.items():
        if rate:
            for rep, one in table[table["measured"]].sort_values("request").groupby("rep"):
                gaps.setdefault(rep, {})[mode, rate] = one["arrived"].diff().dropna().to_numpy() * rate
    for of_rate in gaps.values():
        first, *others = of_rate.values()
        for other in others:
            assert other == pytest.approx(first, abs=1e-6), "one pattern in every arm, stretched by the rate"
    assert gaps[0]["none", 20] != pytest.approx(gaps[1]["none", 20], rel=0.01), "each repeat has its own"
    shown = dsbench("show", "run", home=tmp_path).stdout
    assert "400/s" in shown and "goodput" in shown and "100%" in shown
    found = json.loads(dsbench("slo", "run", "--json", home=tmp_path).stdout)
    assert {(row["arm"], row["limit"], row["load"]) for row in found} == {
        ("none", None, 2.0),
        ("static", None, 2.0),
        ("none", 2, 400.0),
        ("static", 2, 400.0),
    }
    frame = summary_frame(store)
    assert len(frame) == 6 and (frame["goodput"] == 1).all()
    assert frame.loc[frame["rate"] > 0, "vs_none"].isna().all() and frame.loc[frame["rate"] == 0, "vs_none"].any()


def test_heads_start_evenly():
    assert [head_start(64, i, 8) for i in range(8)] == [8, 16, 24, 32, 40, 48, 56, 64]
    assert [head_start(3, i, 8) for i in range(8)] == [1, 1, 2, 2, 2, 3, 3, 3] and head_start(7, 0, 1) == 7


def test_first_requests_are_as_far_on_as_if_they_had_come_before(model, tmp_path):  # noqa: F811
    """The measured ones are the same either way."""
    tables = {}
    for start in ("together", "spread"):
        flags = sweep_flags(model, tmp_path, batch="4", requests="8", max_tokens="12", start=start, out=start)
        _, store = run_of(tmp_path, flags, start)
        (stored,) = store.cells()
        assert stored.cell.start == start
        tables[start] = stored.table("requests").set_index("request").sort_index()
    whole, part = (tables[start]["output_tokens"] for start in ("together", "spread"))
    assert part[:4].tolist() == [head_start(whole[i], i, 4) for i in range(4)] != whole[:4].tolist()
    measured = part.index[tables["spread"]["measured"]]
    assert len(measured) == 8 and part[measured].tolist() == whole[measured].tolist()
    refused(dsbench("compare", "together", "spread", home=tmp_path), 6, "start: together", "--allow")
    wrong = sweep_flags(model, tmp_path, batch="4", requests="8", max_tokens="12", start="together", out="spread")
    refused(dsbench(*wrong, "--resume", home=tmp_path), 2, "start: 'spread', here 'together'")


def test_recorded_arrivals_bring_their_lengths_and_a_resume_runs_nothing_again(model, tmp_path):  # noqa: F811
    traffic = tmp_path / "t.csv"
    rows = [f"{0.01 * i},{6 + i % 3},{2 + i % 4}" for i in range(8)]
    traffic.write_text("seconds,prompt_tokens,output_tokens\n" + "\n".join(rows))
    flags = sweep_flags(model, tmp_path, arrivals=str(traffic), requests="6", batch="2")
    _, store = run_of(tmp_path, flags)
    (stored,) = store.cells()
    assert stored.cell.arrivals.startswith("t.csv (") and stored.cell.rate == pytest.approx(7 / 0.07)
    done = stored.table("requests").sort_values("request")
    assert done["prompt_tokens"].tolist() == [6 + i % 3 for i in done["request"]]
    assert (done["output_tokens"] <= [2 + i % 4 for i in done["request"]]).all()
    measured = done[done["measured"]]
    assert measured["request"].tolist() == [1, 2, 3, 4, 5, 6]
    assert measured["arrived"].diff()[1:].tolist() == pytest.approx([0.01] * 5)
    stamp = (stored.folder / "rep-0" / "steps.parquet").stat().st_mtime_ns
    again = dsbench(*flags, "--resume", home=tmp_path)
    assert again.returncode == 0 and (stored.folder / "rep-0" / "steps.parquet").stat().st_mtime_ns == stamp
    refused(dsbench("frontier", "run", home=tmp_path), 2, "open loop alone", "dsbench slo")
    plan = dsbench(*flags, "--dry-run", home=tmp_path)
    assert plan.returncode == 0 and "t.csv (" in plan.stdout and "(6 measured)" in plan.stdout


def test_a_trace_is_replayed_as_requests_come(model, tmp_path, request):  # noqa: F811
    assert record(model, tmp_path).returncode == 0
    trace = load_trace(tmp_path / "t.parquet")
    request.getfixturevalue("shape")
    flags = ["sweep", "--target", "shape:tiny", "--drafter", str(tmp_path / "drafter"), "--trace", "t.parquet"]
    flags += ["--workload", "p", "--max-tokens", "12", "--batch", "2", "--requests", "6", "--repeats", "1", "--mode"]
    flags += ["static", "--request-rate", "100", "--input-len", "9", "--output-len", "4:11", "--out", "run"]
    done, store = run_of(tmp_path, flags)
    assert "REPLAYED ACCEPTANCE" in done.stdout
    (stored,) = store.cells()
    requests, rounds, law = stored.table("requests"), stored.table("rounds"), parse_lengths("4:11", "output")
    for _, row in requests.iterrows():
        recorded = trace.rows[row["request"] % 6]
        limit = min(law.of(row["request"], "output\x000"), len(recorded.output))
        assert (row["prompt_tokens"], row["output_tokens"]) == (9, limit)
        for _, one in rounds[rounds["request"] == row["request"]].iterrows():
            match = min(int(recorded.drafts.match[one["output_index"] - 1]), one["window"])
            assert one["accepted"] == min(match, one["delivered"]), "the trace's own matches, however long the prompt"


def test_a_sweep_refuses_bad_traffic_before_it_writes_anything(model, tmp_path):  # noqa: F811
    def run(**changes):
        return dsbench(*sweep_flags(model, tmp_path, **changes), home=tmp_path)

    backwards = tmp_path / "back.csv"
    backwards.write_text("seconds\n2\n1\n")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    refused(run(request_rate="-2"), 2, "must be finite and above 0", "--request-rate 2,4,8")
    refused(run(request_rate="2", burstiness="0"), 2, "burstiness must be >= 0.01", "1 is Poisson")
    refused(run(arrivals=str(backwards)), 2, "back.csv:3", "sort the file")
    refused(run(arrivals=str(empty)), 2, "no row in the file")
    refused(run(arrivals="nowhere.csv"), 2, "no such file")
    refused(run(arrivals=str(tmp_path)), 2, "is a .csv or a .jsonl file")
    refused(run(slo="ttfft:1s"), 2, "did you mean ttft?")
    refused(run(slo="ttft:200"), 2, "give the time in us, ms or s")
    refused(run(output_len="9"), 2, "longer than max-tokens 6", "--max-tokens 9")
    refused(run(mode="compact:utility=2"), 2, "must lie in 0..1")
    assert not (tmp_path / "run").exists()
    refused(run(input_len="400"), 2, "prompts of 400 tokens", "at most 250")
    assert not (tmp_path / "run" / "run.json").exists()
