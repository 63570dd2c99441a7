"""`sweep`: arms x batch sizes x loads x workloads, interleaved in random order, stored repeat by repeat, resumable."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dsbench.deploy.deployment import pick_device
from dsbench.errors import IncompleteRun, UsageError
from dsbench.profiles.contract import check_contract
from dsbench.results.store import RunStore
from dsbench.sweep.bench import EngineBench
from dsbench.sweep.launch import LocalLauncher, PoolLauncher
from dsbench.sweep.launch_ray import RayWorkers
from dsbench.sweep.order import Launcher, Point, Watcher, left_out_text, missing, run_missing
from dsbench.sweep.plan import Setting, SweepPlan
from dsbench.within import deadline_of
from dsbench.writing import note

ENCODING_HINT = "name another --out; a template that writes the date is pinned by its own --template-arg"
FIXED = (  # settings that a resumed run must share, besides its contract
    "accept",
    "temperature",
    "top_k",
    "top_p",
    "lag",
    "draft",
    "text",
    "start",
    "seed",
    "max_tokens",
    "requests",
    "input_len",
    "output_len",
)


def run_sweep(
    plan: SweepPlan,
    store: RunStore,
    sources: Mapping[str, str],
    progress: Callable[[int], AbstractContextManager[Watcher]],
    notice: Callable[[str], None],
) -> None:
    """Runs what is missing of the plan, and writes the run's summary.

    Raises EnvironmentRefused or UsageError, naming what differs, for a run begun with other settings; IncompleteRun
    where workers died too often.
    """
    until = deadline_of(plan.config.within)
    if until.given and plan.config.launcher != "local":
        raise UsageError("--within is kept by the local launcher alone", hint="leave --within or --launcher out")
    recorded = store.read_run() if store.exists else None
    if recorded is not None:
        check_settings(recorded, plan, store.folder)
    launcher, setting, close = _launcher(plan, store.folder, notice)
    try:
        body = run_body(plan, setting, dict(sources))
        if recorded is not None:
            _go_on_with(recorded, body, f"the run in {store.folder}")
        counts = f"{len(plan.arms)} arms, {len(plan.batches)} batch sizes, {len(plan.workloads)} workloads"
        counts += f", {len(plan.traffic.loads)} loads" if len(plan.traffic.loads) > 1 else ""
        notice(f"{plan.passes} passes: {counts}")
        points = points_of(plan, setting, body["code"])
        with progress(missing(store, points, plan.config.repeats)) as watcher:
            given_up, left_out = run_missing(
                store,
                points,
                body,
                launcher,
                watcher,
                repeats=plan.config.repeats,
                seed=plan.config.seed,
                blocks=setting.blocks,
                deadline=until,
            )
    finally:
        close()
    if left_out:
        notice(f"left out for --within {plan.config.within}: {left_out_text(left_out)} (--resume runs them)")
    if given_up:
        raise IncompleteRun(f"{len(given_up)} repeats lost their workers every time", hint="--resume tries them again")


def points_of(plan: SweepPlan, setting: Setting, code: str) -> list[Point]:
    """The arms of each (workload, batch size, load), with the folders of their cells."""
    places = itertools.product(plan.workloads, plan.batches, plan.traffic.loads)
    cells = [[plan.cell(arm, batch, load, w, setting) for arm in plan.arms] for w, batch, load in places]
    return [[(cell.key(setting.contracts[cell.mode], code), cell) for cell in point] for point in cells]


def _launcher(
    plan: SweepPlan, folder: Path, notice: Callable[[str], None]
) -> tuple[Launcher, Setting, Callable[[], None]]:
    """The launcher of the plan, the setting it measures on, and a call that releases it."""
    if plan.config.launcher == "local":
        bench = EngineBench(plan, folder, notice)
        return LocalLauncher(bench), bench.describe(), bench.close
    config, wanted = plan.config, plan.config.workers or 1
    on_gpu = pick_device(config).type == "cuda"
    pool = RayWorkers(
        EngineBench, (plan, folder.resolve(), note), gpus=int(on_gpu), cpus=max(1, config.threads), local=wanted
    )
    count = config.workers or max(1, pool.gpus())
    return PoolLauncher(pool, count), pool.describe(), pool.close


def check_settings(recorded: Mapping[str, Any], plan: SweepPlan, folder: Path) -> None:
    """Refuses to go on with a run under other settings. Raises UsageError naming the first that differs.

    Arms, batch sizes, workloads and repeats may be added; what is in the contract is compared there.
    """
    if any(name not in recorded for name in ("config", "contract", "labels", "workloads", "date")):
        raise UsageError(f"{folder / 'run.json'} does not say its settings", hint="name another --out")
    config, was = asdict(plan.config), {"start": "together"} | recorded["config"]
    wrong = [
        f"{name.replace('_', '-')}: {was[name]!r}, here {config[name]!r}"
        for name in FIXED
        if name in was and was[name] != config[name]
    ]
    prompts = {w["name"]: w["digest"] for w in recorded["workloads"]}
    wrong += [f"the prompts of {w.name}" for w in plan.workloads if prompts.get(w.name, w.digest) != w.digest]
    if wrong:
        raise UsageError(
            f"the run in {folder} was begun with other settings: {'; '.join(wrong)}",
            hint="give its settings again, or name another --out",
        )


def _go_on_with(recorded: dict[str, Any], body: dict[str, Any], what: str) -> None:
    """Refuses a run of another contract or acceptance; chain drafters are compared where both have one, and kept."""
    check_contract(recorded["contract"], body["contract"], what=what, hint="name another --out")
    was, now = ({"acceptance": run["labels"].get("replayed") or "its own"} for run in (recorded, body))
    check_contract(was, now, what=what, hint="name another --out")
    if recorded.get("encoding") is not None:
        check_contract(recorded["encoding"], body["encoding"], what=what, hint=ENCODING_HINT)
    chain = recorded.get("mtp_contract")
    if chain is not None and body["mtp_contract"] is not None:
        check_contract(chain, body["mtp_contract"], what=f"{what} (its mtp arms)", hint="name another --out")
    body["mtp_contract"] = body["mtp_contract"] or chain
    body["memory"] = recorded.get("memory")
    body["environments"] = _environments(recorded, body["environment"])
    body["environment"] = recorded["environment"]
    body["workloads"] += [w for w in recorded["workloads"] if w["name"] not in {v["name"] for v in body["workloads"]}]
    body["date"], body["resumed"] = recorded["date"], [*recorded.get("resumed", []), body["date"]]


def _environments(recorded: Mapping[str, Any], now: Mapping[str, str]) -> list[Mapping[str, str]]:
    """All that the run was measured in, each once; another revision of the repository is none of another."""
    known = list(recorded.get("environments") or [recorded["environment"]])

    def facts(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name != "revision"}

    return known if facts(now) in map(facts, known) else [*known, now]


def run_body(plan: SweepPlan, setting: Setting, sources: dict[str, str]) -> dict[str, Any]:
    """The content of run.json: the resolved configuration, where each value came from, machine, contract, labels."""
    trace = plan.trace
    return {
        "config": asdict(replace(plan.config, cost=plan.config.cost or "")),
        "sources": sources,
        "environment": setting.environment,
        "contract": setting.contract,
        "mtp_contract": next((setting.contracts[a.name] for a in plan.arms if a.drafter == "mtp"), None),
        "code": setting.code,
        "encoding": {"chat template": setting.template, "tokenizer": setting.tokenizer},
        "labels": {
            "random_weights": setting.random_weights,
            "target": setting.target,
            "target_note": "quantised weights, dequantised once" if setting.target == "smollm2-135m" else "",
            "rule": plan.config.accept,
            "temperature": plan.config.temperature,
            "text": "pinned" if plan.pinned else "free",
            "replayed": plan.acceptance,
            "calibrated": setting.calibrated,
            "executor": setting.contract["executor"],
        },
        "workloads": [
            {"name": w.name, "source": w.source, "licence": w.licence, "digest": w.digest} for w in plan.workloads
        ],
        "cost_table": {"digest": setting.cost, "provenance": setting.provenance} if setting.cost else None,
        "trace": None if trace is None else {"digest": trace.digest, "provenance": trace.provenance},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
