"""Recorded acceptance on random weights: a trace decides what is accepted; target and drafter run at their true cost.

The engine commits the trace's text and uses its drafts, so the timed work is real. Flips have no meaning and are
recorded as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles.calibration import EventKey
from dsbench.profiles.contract import check_contract
from dsbench.ranges import MIX
from dsbench.results.acceptance_trace import HINT, Trace, TraceRow, load_trace
from dsbench.runtime.arm import Arm
from dsbench.runtime.request import Request, SamplingParams, request_seed
from dsbench.runtime.targets.catalogue import SHAPE_PREFIX
from dsbench.settings import RunConfig
from dsbench.workloads.workload import Prompt, Workload, digest_of, mix
from dsbench.writing import note

if TYPE_CHECKING:
    from dsbench.deploy.deployment import Deployment


def open_trace(config: RunConfig, arms: Sequence[Arm]) -> Trace | None:
    """The trace that a sweep replays, rescaled where that is asked; None for a target with trained weights.

    Raises UsageError for what cannot be replayed.
    """
    shape = config.target.startswith(SHAPE_PREFIX)
    if not config.trace:
        if config.acceptance:
            raise UsageError("--acceptance rescales a trace, and none is given", hint="give --trace FILE")
        if shape:
            raise UsageError(
                f"target {config.target} has no tokenizer, so it cannot run text",
                hint="give --trace FILE to replay recorded acceptance on it; profile-cost runs it too",
            )
        return None
    if not shape:
        raise UsageError(
            f"target {config.target} has acceptance of its own: a trace drives random weights only",
            hint="leave --trace out, or give --target shape:NAME",
        )
    if config.accept != "coupled":
        raise UsageError(f"a trace holds matches under the coupled rule, not {config.accept}", hint="--accept coupled")
    if config.text != "pinned":
        raise UsageError("a trace is replayed on its own text", hint="--text pinned")
    refuse_chains(arms)
    return matching_trace(config)


def refuse_chains(arms: Sequence[Arm]) -> None:
    """Raises UsageError for an arm whose drafts no trace holds."""
    chain = next((arm.name for arm in arms if arm.drafter == "mtp"), None)
    if chain:
        raise UsageError(f"mode {chain} drafts with a chain, which no trace records", hint="leave it out")


def matching_trace(config: RunConfig) -> Trace:
    """The trace of `config`, rescaled where that is asked. Raises UsageError if it is of other sampling."""
    trace = load_trace(Path(config.trace))
    asked = EventKey(rule="coupled", temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    if trace.event.canonical != asked.canonical:
        raise UsageError(
            f"{config.trace} was recorded under: {trace.event}; asked for: {asked}", hint="use the trace's own sampling"
        )
    if not config.acceptance:
        return trace
    from dsbench.deploy.rescale import rescaled

    return rescaled(trace, config.acceptance)


def say_short(trace: Trace, config: RunConfig) -> None:
    """Tells the user where the trace's answers end before those asked for."""
    held = max(len(row.output) for row in trace.rows)
    if held < config.max_tokens:
        note(f"answers end with the trace, after {held} tokens at most, not after the {config.max_tokens} asked for")


def refuse_unlike(trace: Trace, run: Mapping[str, Any], what: str) -> None:
    """Raises EnvironmentRefused naming what a measured run has of its own: another rule, text, trace, target, drafter,
    template or tokenizer than the trace. What either of them does not say is not compared."""
    labels, contract = (run.get(key) or {} for key in ("labels", "contract"))
    theirs = {name: labels.get(name) for name in ("rule", "text", "temperature")}
    mine: dict[str, Any] = {"rule": "coupled", "text": "pinned", "temperature": trace.event.temperature}
    if run.get("trace"):
        theirs |= {"trace": run["trace"].get("digest"), "acceptance": labels.get("replayed")}
        mine |= {"trace": trace.digest, "acceptance": trace.label}
    else:
        encoding, facts = run.get("encoding") or {}, trace.provenance
        theirs |= {name: contract.get(name) for name in ("target", "drafter")}
        theirs |= {name: encoding.get(name) for name in ("chat template", "tokenizer")}
        mine |= {"target": facts.get("target_digest"), "drafter": facts.get("drafter")}
        mine |= {"chat template": facts.get("template"), "tokenizer": facts.get("tokenizer")}
    said = [name for name in mine if mine[name] not in (None, "") and theirs[name] not in (None, "")]
    check_contract(
        {name: str(theirs[name]) for name in said},
        {name: str(mine[name]) for name in said},
        what=what,
        hint="record a trace of what was measured, with `dsbench record-trace`",
    )


def trace_workload(trace: Trace, spec: str) -> Workload:
    """The trace's requests of a workload, or of a mix of them, in the order they were recorded in."""
    if spec.startswith(MIX):
        return mix(spec, lambda member: trace_workload(trace, member))
    prompts = tuple(Prompt(id=r.name, workload=r.workload, messages=()) for r in trace.rows if r.workload == spec)
    if not prompts:
        held = ", ".join(dict.fromkeys(row.workload for row in trace.rows))
        raise UsageError(f"the trace holds no workload {spec!r}", hint=f"it holds: {held}")
    return Workload(
        name=spec,
        prompts=prompts,
        source=f"trace {trace.digest[:8]}",
        licence="as the recorded prompts",
        digest=digest_of(prompts),
    )


def replaying(trace: Trace, deployment: Deployment) -> Deployment:
    """The deployment with the trace's confidences in place of a calibration. Raises EnvironmentRefused for a misfit."""
    block = deployment.drafter.block
    if block not in (0, trace.block):  # 0: a run of arm none alone
        raise EnvironmentRefused(
            f"the trace was drafted in blocks of {trace.block}, this drafter's hold {block}", hint=HINT
        )
    return replace(deployment, calibrations=trace.calibrations())


def replay_queue(
    trace: Trace, workload: Workload, config: RunConfig, deployment: Deployment, size: int
) -> list[Request]:
    """`size` requests of the trace, in order and then again, each with its text pinned; ids modulo the vocabulary.

    Those that leave no room for `max_tokens` in the context are skipped; raises UsageError if none is left.
    """
    shape = deployment.target.model.shape
    by_key = {(row.workload, row.name): row for row in trace.rows}
    rows = [by_key[p.workload, p.id] for p in workload.prompts]
    rows = [row for row in rows if len(row.prompt) + config.max_tokens <= shape.context]
    if not rows:
        raise UsageError(f"no prompt of {workload.name} fits the context of {shape.context} tokens")
    return [replay_request(number, *divmod(number, len(rows)), rows, config, shape.vocab) for number in range(size)]


def replay_request(
    number: int, replica: int, at: int, rows: Sequence[TraceRow], config: RunConfig, vocab: int
) -> Request:
    """Request `number`, the replica of a row, with its text pinned and its drafts to be replayed."""
    row = rows[at]
    text = [i % vocab for i in row.output]
    sampling = SamplingParams(
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        ignore_eos=True,
        max_tokens=min(config.max_tokens, len(text)),
        seed=request_seed(config.seed, row.workload, row.name, replica),
    )
    return Request(
        id=number,
        name=row.name if replica == 0 else f"{row.name}#{replica}",
        workload=row.workload,
        prompt_ids=[i % vocab for i in row.prompt],
        sampling=sampling,
        canonical=text,
        trace=row.drafts,
    )
