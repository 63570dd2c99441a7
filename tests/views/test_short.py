"""`show --short`: every line fits 80 columns and says what summary.csv says."""

from __future__ import annotations

import pytest
from synthetic_run import write_synthetic_run

from dsbench.analysis.summary import summary_frame
from dsbench.views.short import WIDTH, print_short


@pytest.mark.parametrize("label", [{}, {"simulated": True}])
def test_a_run_is_one_narrow_table_a_sentence_and_a_picture(tmp_path, capsys, label):
    mix = "mix:math=1,chat=1,poetry=1"
    modes = ("none", "static", "static:2", "compact")
    store = write_synthetic_run(tmp_path / "run", modes=modes, batches=(1, 64), workloads=(mix,), labels=label)
    (tmp_path / "run" / "plots").mkdir()
    (tmp_path / "run" / "plots" / "frontier.png").touch()
    print_short(tmp_path / "run")
    head, *rest = capsys.readouterr().out.splitlines()
    table, said = rest[:8], " ".join(rest[8:])
    assert max(map(len, [head, *table])) <= WIDTH
    assert [line.split()[1] for line in table] == ["1"] * 4 + ["64"] * 4
    frame = summary_frame(store).set_index(["batch", "mode"])
    for line in table:
        _, batch, arm, rate, *_ = line.split()
        assert float(rate) == pytest.approx(frame.loc[(int(batch), arm.rstrip("!")), "throughput"], abs=0.06)
    ratio = frame.loc[(64, "compact"), "vs_none"]
    assert f"{ratio:.2f} (R = 64)" in said and "times as fast as no drafts" in said and "frontier.png" in said
    assert ("SIMULATED" in said) == bool(label)
