"""What the commands do once parsed: load, run, print. Progress goes to stderr, results to stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from dsbench.deploy.cost_file import cost_file, cost_path, longest_context, measure_table
from dsbench.deploy.deployment import calibration_path, deploy, known_contract, pick_device
from dsbench.deploy.engines import Engines
from dsbench.errors import DsbenchError, UsageError
from dsbench.machine.pass_table import print_rounds, round_times
from dsbench.profiles.calibration import CalibrationSet, Rule
from dsbench.profiles.calibration_report import report_path
from dsbench.profiles.cost import load_cost_table
from dsbench.profiles.events import parse_events
from dsbench.profiles.regret import guessed_survival, heldout_regret
from dsbench.profiles.samples import load_samples
from dsbench.profiles.trust import require_trust
from dsbench.ranges import parse_batches, parse_range, split_workloads
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.policy.make import refuse_anticipation
from dsbench.runtime.targets.catalogue import SHAPE_PREFIX, default_home
from dsbench.settings import RunConfig
from dsbench.sweep.estimate import GUESS
from dsbench.views.cost import print_fit
from dsbench.views.cost_text import print_doubts, print_regret
from dsbench.views.drafters import print_lengths
from dsbench.views.plan import print_plan
from dsbench.views.reliability import print_report
from dsbench.within import deadline_of
from dsbench.writing import check_writable, file_to_write, note


def profile_cost(config: RunConfig, *, context: str, passes: int, out: Path | None, plots: Path | None) -> None:
    batches = parse_batches(config.batch, on_gpu=pick_device(config).type == "cuda")
    contexts = parse_range(context, what="context")
    if passes < 1:
        raise UsageError(f"passes must be >= 1, got {passes}")
    until = deadline_of(config.within)
    file_to_write(out)
    check_writable(plots)
    deployment = deploy(config)
    longest = longest_context(deployment)
    if contexts[-1] > longest:
        raise UsageError(f"context {contexts[-1]} is too long for this model", hint=f"at most {longest}")
    path = out or cost_path(deployment)
    file_to_write(path)
    table, report = measure_table(deployment, config, batches, contexts, passes, path, until)
    samples = load_samples(path)
    print_rounds(round_times(samples))
    print_fit(report)
    acceptance = acceptance_of(deployment.calibrations, config, deployment.drafter.block)
    print_regret(heldout_regret(samples, table.tiers, guessed_survival(acceptance, seed=config.seed), seed=config.seed))
    print_doubts(table.provenance)
    print(f"cost table: {path}")
    if plots is not None:
        from dsbench.views.cost import draw_cost

        for picture in draw_cost(table, report, plots):
            print(picture)
    require_trust(table, f"the cost table {path}", config.cost_error)


def acceptance_of(calibrations: CalibrationSet | None, config: RunConfig, block: int) -> Sequence[float]:
    """Mean acceptance at each depth [block], by the calibration for the sampling; a guess without one."""
    try:
        if calibrations is not None:
            rule = cast(Rule, config.accept)
            found = calibrations.choose(rule, config.temperature, config.top_k, config.top_p).calibration.prior
            if len(found) == block:
                return found
    except DsbenchError:  # none for this sampling
        pass
    return [GUESS] * block


def sweep(config: RunConfig, sources: dict[str, str], *, resume: bool, dry_run: bool, as_json: bool = False) -> None:
    from dsbench.analysis.summary import summary_frame
    from dsbench.results.store import RunStore
    from dsbench.sweep.estimate import find_estimate
    from dsbench.sweep.live import progress
    from dsbench.sweep.order import writing
    from dsbench.sweep.plan import plan_sweep
    from dsbench.sweep.run import check_settings, run_sweep
    from dsbench.views.show import print_summary

    plan = plan_sweep(config, on_gpu=pick_device(config).type == "cuda", home=default_home())
    folder = Path(config.out)
    if dry_run:
        if resume and (folder / "run.json").exists():
            check_settings(RunStore(folder).read_run(), plan, folder)
        found = find_estimate(plan, known_contract(config), calibration_path(config), default_home())
        print_plan(plan, sources, found)
        return
    with writing(folder, resume=resume, notice=note) as store:
        run_sweep(plan, store, sources, lambda left: progress(plan.modes, plan.batches, total=left), note)
    if as_json:
        print(summary_frame(store).to_json(orient="records", indent=2))
    else:
        print_summary(folder)


def generate(
    config: RunConfig, *, prompts: str, mode: str, batch: int, limit: int | None, stop: tuple[str, ...], as_list: bool
) -> None:
    from dsbench.sweep.generate import as_json, build_requests, run_requests
    from dsbench.workloads.workload import is_file

    arm = parse_arm(mode)
    if batch < 1:
        raise UsageError(f"batch must be >= 1, got {batch}")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be >= 1, got {limit}")
    engine_config = EngineConfig(rule=config.accept, lag=config.budget_lag, draft=config.draft)
    deployment = deploy(config, need_drafter=arm.drafter == "dspark", need_chain=arm.drafter == "mtp")
    deployment.drafter_of(arm)
    sampling = {
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "stop": stop,
        "max_tokens": config.max_tokens,
    }
    count = limit if limit is not None else (0 if is_file(prompts) else 4)
    requests = build_requests(
        deployment, prompts, limit=count, seed=config.seed, sampling=sampling, home=deployment.home
    )
    table = load_cost_table(cost_file(config, deployment)) if arm.planned else None
    engine = run_requests(Engines(deployment), arm, engine_config, table, requests, batch)
    if engine.steps and engine.steps[-1].fallback:
        note(f"whole blocks were verified after a failure: {engine.steps[-1].fallback}")
    answers = as_json(deployment, engine, requests)
    if as_list:
        print(json.dumps(answers, ensure_ascii=False))
        return
    for answer in answers:
        rounds = answer["steps"]
        rate = (len(answer["token_ids"]) - 1) / len(rounds) if rounds else float("nan")
        print(f"--- {answer['id']}  [{answer['finish_reason']}, {rate:.2f} tokens a round]")
        print(answer["text"])


def selftest(config: RunConfig, *, mode: str, batch: str, prompts: int, max_tokens: int, temperatures: str) -> None:
    from dsbench.machine.selftest import Outcome
    from dsbench.machine.selftest import selftest as check

    until = deadline_of(config.within)
    if prompts < 1:
        raise UsageError(f"prompts must be >= 1, got {prompts}")
    modes = [name.strip() for name in mode.split(",")]
    arms = [parse_arm(name) for name in modes]
    batches = parse_range(batch, what="batch")
    heats = [_number(t) for t in temperatures.split(",")]
    engine = EngineConfig(rule=config.accept, lag=config.budget_lag)
    if engine.rule != "coupled" and any(heats):
        raise UsageError(
            f"under the {engine.rule} rule arms write one text at temperature 0 only", hint="give --temperatures 0"
        )
    for arm in arms:
        refuse_anticipation(arm, engine.rule)
    drafters = {arm.drafter for arm in arms}
    dtype = config.dtype or ("" if config.numerics == "exact" else "float32")  # "": the one that is served
    deployment = deploy(replace(config, dtype=dtype), need_drafter="dspark" in drafters, need_chain="mtp" in drafters)
    for arm in arms:
        deployment.drafter_of(arm)
    table = load_cost_table(cost_file(config, deployment)) if any(arm.planned for arm in arms) else None

    def tell(outcome: Outcome) -> None:
        name = f"T={outcome.temperature:g}  batch {outcome.batch:<3} {outcome.mode:<12}"
        print(f"{name} {outcome.same} of {outcome.requests} the same, {outcome.tokens} tokens compared")
        for d in outcome.differences:
            word = "a rounding tie" if d.tie else "NOT EXPLAINED"
            print(f"    {d.prompt} parts at token {d.index}: the two scores differ by {d.gap:.2g}, {word}")

    outcomes, left_out = check(
        deployment,
        table,
        engine,
        modes=modes,
        batches=batches,
        temperatures=heats,
        workloads=split_workloads(config.workload),
        prompts=prompts,
        max_tokens=max_tokens,
        seed=config.seed,
        notice=tell,
        deadline=until,
    )
    every = [d for outcome in outcomes for d in outcome.differences]
    bad = [d for d in every if not d.tie]
    same, tokens = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("same", "tokens"))
    told = f"{same} texts the same, {len(every) - len(bad)} rounding ties, {len(bad)} unexplained"
    if left_out:
        print(f"left out for --within {config.within}: {'; '.join(left_out)}")
    print(f"{told}; {tokens} tokens compared in {deployment.contract['dtype']}, {config.numerics} numerics")
    if bad:
        raise DsbenchError(
            f"{len(bad)} texts differ between arms", hint="this is a bug: a schedule must not change a text"
        )


def calibrate(config: RunConfig, *, out: Path, batch: int, prompts: int, events: str, plots: Path | None) -> None:
    from dsbench.drafting.calibrate import calibrate as fit
    from dsbench.drafting.rollouts import check_workloads
    from dsbench.views.reliability import draw_reliability

    wanted = parse_events(events)
    if batch < 1 or prompts < 2 or config.max_tokens < 2:
        raise UsageError("calibrate needs --batch >= 1, --prompts >= 2 and --max-tokens >= 2")
    workloads = split_workloads(config.workload)
    check_workloads(workloads)
    kept = out.with_name(f"{out.stem}-rounds.parquet")
    for path in (out, report_path(out), kept):
        file_to_write(path)
    check_writable(plots)
    deployment = deploy(config)
    calibrations, report, lengths, rounds = fit(
        deployment,
        workloads=workloads,
        prompts=prompts,
        max_tokens=config.max_tokens,
        batch=batch,
        seed=config.seed,
        events=wanted,
        notice=note,
    )
    calibrations.save(out)
    report.save(report_path(out))
    rounds.to_parquet(kept.with_suffix(".partial"), index=False)
    kept.with_suffix(".partial").replace(kept)
    print_report(report)
    print_lengths(lengths)
    print(f"calibration: {out}, its report: {report_path(out)}, the rounds: {kept}")
    usual = calibration_path(replace(config, calibration=""))
    if usual is not None and usual.resolve() != out.resolve():
        note(f"runs take {usual} by themselves, this one with --calibration {out}")
    for picture in draw_reliability(report, plots) if plots is not None else ():
        print(picture)


def record_trace(config: RunConfig, *, out: Path, prompts: int | None, batch: int) -> None:
    from dsbench.drafting.record_trace import record_trace as record
    from dsbench.results.acceptance_trace import save_trace

    if batch < 1 or (prompts is not None and prompts < 1):
        raise UsageError("record-trace needs --batch >= 1 and --prompts >= 1")
    workloads = split_workloads(config.workload)
    if config.target.startswith(SHAPE_PREFIX):
        raise UsageError(f"target {config.target} has no acceptance to record", hint="record a real target's")
    if config.accept != "coupled":
        raise UsageError("a trace is recorded under the coupled rule", hint="leave --accept out")
    file_to_write(out)
    deployment = deploy(config)
    trace = record(deployment, config, workloads=workloads, prompts=prompts or 0, batch=batch, notice=note)
    save_trace(trace, out)
    anchors = sum(len(row.drafts.match) for row in trace.rows)
    print(f"trace: {out}, {len(trace.rows)} texts, {anchors} anchors, {out.stat().st_size / 2**20:.1f} MiB")


def trace_rounds(config: RunConfig, *, mode: str, batch: int, steps: int, out: Path) -> None:
    from dsbench.deploy.replay import open_trace, replaying
    from dsbench.machine.timeline_run import print_views, queue_of, record_views, run_facts, write

    arm = parse_arm(mode)
    for name, value in (("batch", batch), ("steps", steps)):
        if value < 1:
            raise UsageError(f"{name} must be >= 1, got {value}")
    refuse_anticipation(arm, config.accept)
    if arm.policy == "oracle" and not config.trace:
        raise UsageError("the oracle needs a recorded text", hint="give --trace FILE on a shape target")
    trace = open_trace(config, (arm,)) if config.trace or config.acceptance else None
    check_writable(out)
    engine = EngineConfig(rule=config.accept, lag=config.budget_lag, draft=config.draft)
    config = replace(config, mode=mode, batch=str(batch))
    deployment = deploy(config, need_drafter=arm.drafter == "dspark", need_chain=arm.drafter == "mtp")
    if trace is not None:
        deployment = replaying(trace, deployment)
    deployment.drafter_of(arm)
    table = load_cost_table(cost_file(config, deployment)) if arm.planned else None
    views = record_views(
        deployment,
        arm,
        engine,
        table,
        lambda: queue_of(config, deployment, trace, batch, steps),
        batch=batch,
        rounds=steps,
        notice=note,
    )
    paths = write(views, run_facts(deployment, trace, arm, config, batch, steps), out)
    print_views(views)
    for path in paths:
        print(path)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number") from None
