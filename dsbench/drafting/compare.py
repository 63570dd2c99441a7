"""`drafters`: several drafters over the same prompts, the full block verified; paired differences, draft times.

Resumable: the file in `out` is written after each drafter, event and workload; a later call runs the rest.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsbench.deploy.deployment import Deployment, deploy, environment, sources_digest
from dsbench.drafting.card import read_card, write_card
from dsbench.drafting.draft_time import check_room, draft_times
from dsbench.drafting.results_file import FILE, Cell, Comparison, DrafterEntry, load_comparison, unique_names
from dsbench.drafting.rollouts import ARM, check_workloads, prompt_counts, requests_digest, roll_out, rollout_requests
from dsbench.errors import UsageError
from dsbench.profiles.calibration import EventKey
from dsbench.profiles.events import parse_events
from dsbench.ranges import parse_range, split_workloads
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.request import Request
from dsbench.runtime.targets.weights import folder_digest
from dsbench.settings import RunConfig
from dsbench.writing import check_writable, note


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftersPlan:
    """What to run. `prompts` a workload and event; `batches` to time at, none of them if empty."""

    workloads: tuple[str, ...]
    events: tuple[EventKey, ...]
    prompts: int
    max_tokens: int
    batch: int
    seed: int
    batches: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.batch < 1 or self.prompts < 1 or self.max_tokens < 2:
            raise UsageError("drafters needs --batch >= 1, --prompts >= 1 and --max-tokens >= 2")
        check_workloads(self.workloads)


def drafters(
    config: RunConfig,
    folders: Sequence[Path],
    names: Sequence[str],
    *,
    out: Path,
    batch: int,
    prompts: int,
    events: str,
    time: str | None,
    cards: bool,
    show: Callable[[Comparison, Path], Sequence[Path]],
) -> None:
    """Compares, then calls `show`. `time`: a range of batch sizes, or nothing; `show` returns its files."""
    plan = DraftersPlan(
        workloads=tuple(split_workloads(config.workload)),
        events=parse_events(events),
        prompts=prompts,
        max_tokens=config.max_tokens,
        batch=batch,
        seed=config.seed,
        batches=parse_range(time, what="time") if time else (),
    )
    check_folders(folders, names)
    check_writable(out)
    for folder in folders if cards else ():
        read_card(folder)
        check_writable(folder)
    comparison = compare(deploy(config, need_drafter=False), folders, names, plan, out, note)
    for path in (out / FILE, *show(comparison, out)):
        print(path)
    for folder in folders if cards else ():
        entry = comparison.find(folder_digest(folder))
        assert entry is not None
        print(write_card(folder, comparison, entry))


def check_folders(folders: Sequence[Path], names: Sequence[str]) -> None:
    """Raises UsageError for no folder, a missing one, one named twice, or names that do not go with them."""
    for at, folder in enumerate(folders):
        if not (folder / "config.json").is_file():
            missing = "holds no config.json" if folder.is_dir() else "does not exist"
            raise UsageError(f"drafter folder {folder} {missing}")
        if folder.resolve() in [other.resolve() for other in folders[:at]]:
            raise UsageError(f"drafter folder {folder} is named twice")
    if names and len(names) != len(folders):
        raise UsageError(f"{len(names)} names for {len(folders)} drafters", hint="give --name once a folder, in order")
    if len(set(names)) < len(names) or not all(names):
        raise UsageError("drafters need distinct names")


def with_drafter(deployment: Deployment, folder: Path) -> Deployment:
    """The same target with the drafter of a checkpoint folder; no calibration: nothing is trimmed here."""
    drafter = load_drafter(folder, deployment.target.model)
    contract = deployment.contract | {"drafter": drafter.digest, "block": str(drafter.block)}
    return replace(deployment, drafter=drafter, calibrations=None, contract=contract)


def compare(
    target: Deployment,
    folders: Sequence[Path],
    names: Sequence[str],
    plan: DraftersPlan,
    out: Path,
    notice: Callable[[str], None],
) -> Comparison:
    """Runs what `out` does not hold yet; everything is checked before anything runs."""
    deployments = [with_drafter(target, folder) for folder in folders]
    digests = [d.drafter.digest for d in deployments]
    for at, digest in enumerate(digests):
        if digest in digests[:at]:
            raise UsageError(f"{folders[digests.index(digest)]} and {folders[at]} hold the same drafter")
    path = out / FILE
    found = load_comparison(path) if path.exists() else Comparison(conditions=conditions(target, plan))
    found.require(conditions(target, plan))
    entries = register(found, folders, names, deployments)
    for workload in plan.workloads:
        _requests(target, workload, plan.events[0], plan)
    if plan.batches:
        check_room(deployments, max(plan.batches))
    for event in plan.events:
        for deployment, entry in zip(deployments, entries, strict=True):
            if _run_event(deployment, entry, event, plan, notice):
                found.save(path)
    if plan.batches:
        for entry, times in zip(entries, draft_times(deployments, plan.batches, plan.seed, notice), strict=True):
            entry.times = [t for t in entry.times if t.batch not in plan.batches] + times
    found.save(path, results=True)
    return found


def conditions(target: Deployment, plan: DraftersPlan) -> dict[str, str]:
    """What drafters must share to be compared."""
    return {
        "target": target.contract["target"],
        "target_name": target.target.name,
        "dtype": target.contract["dtype"],
        "numerics": target.contract["numerics"],
        "device": target.contract["device"],
        "arm": ARM,
        "batch": str(plan.batch),
        "prompts": str(plan.prompts),
        "max_tokens": str(plan.max_tokens),
        "seed": str(plan.seed),
    }


def register(
    found: Comparison, folders: Sequence[Path], names: Sequence[str], deployments: Sequence[Deployment]
) -> list[DrafterEntry]:
    """The drafters' entries in the file, new ones after those that are there; drafters are identified by their digest.

    Where two or more are named, they come first, in their order: the first named is the one that is paired.
    """
    mine = {d.drafter.digest for d in deployments}
    rest = [d for d in found.drafters if d.digest not in mine]
    fresh = unique_names(folders, [d.name for d in rest])
    entries: list[DrafterEntry] = []
    for at, (folder, deployment) in enumerate(zip(folders, deployments, strict=True)):
        drafter = deployment.drafter
        old = found.find(drafter.digest)
        name = names[at] if names else old.name if old is not None else fresh[at]
        if name in [d.name for d in [*rest, *entries]]:
            raise UsageError(f"two drafters are named {name}", hint="give --name once a folder")
        entry = old or DrafterEntry(name=name, folder=str(folder), digest=drafter.digest, block=drafter.block)
        entry.name, entry.folder = name, str(folder)
        entries.append(entry)
    if len(entries) > 1:
        found.drafters = [*entries, *rest]
    elif found.find(entries[0].digest) is None:
        found.drafters = [*rest, *entries]
    return entries


def _requests(deployment: Deployment, workload: str, event: EventKey, plan: DraftersPlan) -> list[Request]:
    """As `rollout_requests`."""
    return rollout_requests(
        deployment, workload, event, prompts=plan.prompts, max_tokens=plan.max_tokens, seed=plan.seed
    )


def _run_event(
    deployment: Deployment, entry: DrafterEntry, event: EventKey, plan: DraftersPlan, notice: Callable[[str], None]
) -> bool:
    """Runs the missing workloads in one queue; returns whether there were any."""
    sources = sources_digest()
    missing: dict[str, list[Request]] = {}
    for workload in plan.workloads:
        requests = _requests(deployment, workload, event, plan)
        kept = entry.cell(event, workload)
        if kept is not None and kept.prompts_digest == requests_digest(requests):
            older = kept.environment.get("sources") != sources
            notice(f"{entry.name}, {event}, {workload}: kept" + (", though other sources made it" if older else ""))
        else:
            missing[workload] = requests
    begin = datetime.datetime.now(datetime.UTC)
    digests = {workload: requests_digest(requests) for workload, requests in missing.items()}
    facts = environment(deployment.device) | {"date": begin.isoformat(timespec="seconds"), "sources": sources}
    for workload, rollouts in (roll_out(deployment, missing, event, plan.batch) if missing else {}).items():
        counts = tuple(prompt_counts(rollout, workload, deployment.drafter.block) for rollout in rollouts)
        entry.put(
            Cell(event=event, workload=workload, prompts_digest=digests[workload], environment=facts, counts=counts)
        )
        rounds, delivered = sum(p.rounds for p in counts), sum(p.delivered for p in counts)
        notice(f"{entry.name}, {event}, {workload}: {delivered} tokens in {rounds} rounds")
    return bool(missing)
