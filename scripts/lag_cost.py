"""Prints what old confidences cost, simulated: python scripts/lag_cost.py TRACE TABLE [--batch 1:256:x2]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dsbench.errors import DsbenchError
from dsbench.intervals import Interval
from dsbench.lag_cost import lag_costs
from dsbench.profiles.cost import load_cost_table
from dsbench.ranges import parse_range
from dsbench.trace import load_trace

SOURCES = ((1, False), (2, False), (3, False), (0, True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help="of `dsbench record-trace`")
    parser.add_argument("table", type=Path, help="of `dsbench profile-cost`")
    parser.add_argument("--batch", default="1:256:x2", help="requests at once, as in `dsbench sweep`")
    asked = parser.parse_args()
    try:
        show(asked.trace, asked.table, asked.batch)
    except DsbenchError as problem:
        print(f"lag_cost: {problem.message}" + (f" ({problem.hint})" if problem.hint else ""), file=sys.stderr)
        sys.exit(problem.exit_code)


def show(trace_file: Path, table_file: Path, batch: str) -> None:
    batches, trace, table = parse_range(batch, what="batch"), load_trace(trace_file), load_cost_table(table_file)
    where = f"{table.contract.get('target', '?')} on {table.contract.get('device', '?')}"
    print(f"SIMULATED: acceptance {trace.label}; times of {where}, by its cost table.")
    print("Throughput over that of foresight, which knows a round's confidences before it drafts; and over that of the")
    print("engine's lag 0, which drafts, waits for them and then chooses its rows, waiting free. 95% over prompts.")
    print(f"{'':<31} {'over foresight':<45} over lag 0")
    late = f"{'budget late':<22} {'and seats late':<22}"
    print(f"{'workload':<9} {'R':>4} {'confidences':<15} {late} {late}   tau  base tau")
    workloads = list(dict.fromkeys(row.workload for row in trace.rows))
    for found in lag_costs(trace, table, workloads=workloads, batches=batches, sources=SOURCES):
        source = "free, own round" if found.free else f"{found.age} rounds old"
        print(
            f"{found.workload:<9} {found.batch:>4} {source:<15} {_text(found.budget):<22} {_text(found.whole):<22}"
            f" {_text(found.budget_waiting):<22} {_text(found.whole_waiting):<22}"
            f" {found.tau:5.2f} {found.base_tau:9.2f}",
            flush=True,
        )


def _text(ratio: Interval) -> str:
    spread = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.value:.3f}{spread}"


if __name__ == "__main__":
    main()
