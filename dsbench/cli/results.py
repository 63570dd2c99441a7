"""The commands that read results: plot, show, report, waterfall, frontier, compare, noise and the like. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

results_app = typer.Typer()


@results_app.command("plot")
def plot_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures; default: RUN/plots.")] = None,
) -> None:
    """Draw a run: frontier, verify budgets, waterfalls, cost fit against raw cells, predicted step time."""
    from dsbench.results.store import RunStore
    from dsbench.views.cost import draw_cost_of
    from dsbench.views.plots import draw_all
    from dsbench.views.waterfall import draw_run

    store, folder = RunStore(run), out or run / "plots"
    for path in (*draw_all(store, folder), *draw_run(store, folder), *draw_cost_of(store, folder)):
        print(path)


@results_app.command("show")
def show_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    short: Annotated[bool, typer.Option("--short/--wide", help="One table of 80 columns; all there is.")] = False,
) -> None:
    """Print a run's table."""
    from dsbench.views.short import print_short
    from dsbench.views.show import print_summary

    (print_short if short else print_summary)(run)


@results_app.command("slo")
def slo_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    slo: Annotated[str, typer.Option(help="e.g. ttft:200ms,tpot:20ms; default: the run's own.")] = "",
    share: Annotated[float, typer.Option(help="Share of requests that must meet it.")] = 0.95,
    json_out: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """Say how many requests at a time, or a second, an SLO allows each arm; loads that did not run are no data."""
    from dsbench.views.slo import show_slo

    show_slo(run, slo=slo, share=share, as_json=json_out)


@results_app.command("report")
def report_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    out: Annotated[Path | None, typer.Option(help="File; default: RUN/report.html, or stdout for Markdown.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown, e.g. for a pull request.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Report what is there of an unfinished run.")] = False,
) -> None:
    """Write a run as one HTML file that needs no network: headline, pictures, tables with their data, conditions."""
    from dsbench.views.report import write_report

    write_report(run, out=out, markdown=markdown, partial=partial)


@results_app.command("waterfall")
def waterfall_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    source: Annotated[str, typer.Option("--from", help="Arm to start from.")] = "static",
    target: Annotated[str, typer.Option("--to", help="Arm to arrive at.")] = "compact",
    workload: Annotated[str, typer.Option(help="Workloads; default: all of the run.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes; default: all of the run.")] = "",
    plots: Annotated[Path | None, typer.Option(help="Folder for the picture.")] = None,
    json_out: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """Say where one arm's gain over another comes from, in ms a token; the parts add up to the whole."""
    from dsbench.views.waterfall import show_waterfall

    show_waterfall(run, source=source, target=target, workload=workload, batch=batch, as_json=json_out, plots=plots)


@results_app.command("frontier")
def frontier_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    arm: Annotated[str, typer.Option(help="Arm whose gains are printed.")] = "compact",
    base: Annotated[str, typer.Option(help="Arm it is compared with at equal service, and overtakes or not.")] = "none",
    workload: Annotated[str, typer.Option(help="Workloads; default: all of the run.")] = "",
) -> None:
    """Say who dominates, what is gained at equal throughput and at equal speed, and where an arm overtakes another."""
    from dsbench.views.frontier.section import show_frontier

    show_frontier(run, arm=arm, base=base, workload=workload)


@results_app.command("break-even")
def break_even_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")] = Path("runs/latest"),
    workload: Annotated[str, typer.Option(help="Workloads; default: all of the run.")] = "",
    batch: Annotated[str, typer.Option(help="Batch sizes; default: all of the run.")] = "",
    json_out: Annotated[bool, typer.Option("--json", help="A JSON list on stdout.")] = False,
) -> None:
    """Say what a round of drafting costs and saves in ms, and what acceptance it would take to break even."""
    from dsbench.views.break_even import show_break_even

    show_break_even(run, workload=workload, batch=batch, as_json=json_out)


@results_app.command("compare")
def compare_command(
    a: Annotated[str, typer.Argument(help="RUN, or RUN:MODE for one arm of it.")],
    b: Annotated[str, typer.Argument(help="What is compared with A: RUN or RUN:MODE.")],
    band: Annotated[float | None, typer.Option(help="Noise band, e.g. 0.02; else this machine's A/A band.")] = None,
    allow: Annotated[str, typer.Option(help="Fields that may differ, e.g. executor,drafter.")] = "",
    json_out: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Say cell by cell whether B is faster or slower than A beyond noise.

    Exit 0: no cell can be slower beyond noise; 3: one is; 4: that cannot be told; 6: not comparable.
    """
    from dsbench.analysis.compare import as_json, compare
    from dsbench.errors import Inconclusive, RegressionFound
    from dsbench.runtime.targets.catalogue import default_home
    from dsbench.views.compare import report, summary

    found = compare(a, b, home=default_home(), allow=[f.strip() for f in allow.split(",")], band=band)
    if json_out:
        print(json.dumps(as_json(found) | {"summary": summary(found)}, indent=2))
    else:
        print("\n".join(report(found)))
    if found.exit_code == RegressionFound.exit_code:
        raise RegressionFound(summary(found))
    if found.exit_code == Inconclusive.exit_code:
        raise Inconclusive(summary(found), hint="more repeats make it clearer")
    if not json_out:
        print(summary(found))


@results_app.command("noise")
def noise_command(
    runs: Annotated[list[Path], typer.Argument(help="A/A runs: one of two repeats or more, or several of one thing.")],
) -> None:
    """Measure this machine's noise bands from A/A runs and keep them for `compare`."""
    from dsbench.analysis.compare import measure_bands
    from dsbench.analysis.noise_band import save_bands
    from dsbench.runtime.targets.catalogue import default_home
    from dsbench.views.compare import band_line

    bands, contract = measure_bands(runs)
    path = save_bands(default_home(), contract, bands)
    for band in bands:
        print(band_line(band))
    print(f"noise bands: {path}")


@results_app.command("explain")
def explain_command(
    name: Annotated[str | None, typer.Argument(help="A metric; without it, all of them in a line each.")] = None,
) -> None:
    """Say what a metric means: formula, unit, and how other tools define it."""
    from dsbench.views.explain import explain, listing

    print(explain(name) if name else listing())
