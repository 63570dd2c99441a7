"""Records of a decode step, of a request in it, and of a finished request. Counters are integers; no torch."""

from __future__ import annotations

from dataclasses import dataclass

from dsbench.runtime.request import Request

UNSEEN = -1  # what the arm cannot see


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One decode step. `seconds` runs from the end of the previous round to the end of this one.

    Phases lie between CUDA events; those of an eager round are each closed by a device synchronisation.
    """

    step: int
    start: float  # when it was read, seconds since the engine was made
    requests: int  # R
    budget: int  # K, drafts granted
    rows: int  # M, rows of requests that the target ran
    tier: int  # rows of the executed shape; those beyond M are filler
    padding: int  # filler rows: tier - (budget + R)
    compiles: int  # kernels compiled during the step
    context: int  # S
    delivered: int  # tokens emitted by the step
    seconds: float  # from the end of the round before to the end of this one
    predicted_seconds: float  # nan without a cost table
    confidence_age: int  # steps since the oldest of its requests' own confidences behind the budget; 0: none
    priors: int  # requests whose budget came from a prior
    extrapolated: bool  # the plan's shape lay outside the cost table's box
    flips: int  # emitted tokens where the pass's own choice differs from the pinned text; 0 where a trace is replayed
    draft_seconds: float = 0.0
    plan_seconds: float = 0.0
    pack_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    commit_seconds: float = 0.0
    misses: int = 0  # passes that no captured graph fitted: none, since captured devices take what fits
    zombies: int = (
        0  # rows, drafts included, of slots whose request had ended, unknown to the round or not yet replaced
    )
    occupied: int = 0  # slots with a request: R, and those whose request had ended
    prefill_seconds: float = 0.0  # of prompts that ran before the round; part of `seconds`
    idle_seconds: float = 0.0  # of the device before the round's first work, and between prompts and draft
    host_seconds: float = 0.0  # the host took to launch the round, while the device worked on earlier ones
    read: float = 0.0  # when the host had its tokens, seconds since the engine was made
    fallback: str = ""  # what failed by the time the round was read; windows are fixed since


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One request in one step. -1 where the arm cannot see the value."""

    step: int
    request: int
    workload: str
    position: int  # committed tokens before the round: the anchor's position
    output_index: int  # output tokens before the round
    window: int  # drafts that could be committed
    verified: int  # drafts sent to the target
    accepted: int
    delivered: int
    ceiling: int
    flips: int
    drafts: tuple[int, ...]
    logits: tuple[float, ...]  # raw conditioned confidence logits
    token_free_logits: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request. Seconds since the engine was made."""

    request: int
    name: str
    workload: str
    prompt_tokens: int
    output_tokens: int
    rounds: int
    admitted: float  # when it took its slot
    first_token: float  # nan where none came
    finished: float
    finish_reason: str

    @classmethod
    def of(cls, request: Request, admitted: float, first_token: float, finished: float) -> RequestRecord:
        return cls(
            request=request.id,
            name=request.name,
            workload=request.workload,
            rounds=request.rounds,
            prompt_tokens=len(request.prompt_ids),
            output_tokens=len(request.output),
            admitted=admitted,
            first_token=first_token if request.output else float("nan"),
            finished=finished,
            finish_reason=str(request.finish_reason),
        )
