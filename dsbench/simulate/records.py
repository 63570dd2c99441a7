"""A simulated round as rows of the engine's tables: the columns that a measured run has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsbench.runtime.arm import Arm
from dsbench.runtime.request import prompt_name
from dsbench.simulate.choose import Choice, Pace
from dsbench.simulate.requests import Script, Seat

UNSEEN = -1
HANDED = 1e-9  # seconds between what the host reads of one round: first tokens, its record, who ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of a round. `start`: when it began, `end`: when the device was done with it."""

    start: float
    end: float
    prefill: float
    draft: float
    verify: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What a round brought a seat: its row in the round, output tokens before it, tokens delivered."""

    seat: Seat
    row: int
    before: int
    tokens: int


def step_row(
    number: int,
    arm: Arm,
    pace: Pace,
    choice: Choice,
    spent: Spent,
    came: Sequence[Delivered],
    *,
    tier: int,
    context: int,
    extrapolated: bool,
) -> dict[str, Any]:
    """Who waits for each phase stamps a round's start; else it is stamped when the host reads it."""
    live, seated = len(came), len(choice.window)
    granted = sum(int(choice.window[d.row]) for d in came)
    rows = live + sum(int(choice.sent[d.row]) for d in came)
    useful = rows if arm.commit == "window" and pace.waits else live + granted
    return {
        "step": number,
        "start": spent.start if pace.waits else spent.end - HANDED,
        "requests": live,
        "budget": granted,
        "rows": rows,
        "tier": tier,
        "padding": max(0, tier - useful),
        "misses": 0,
        "compiles": 0,
        "context": context,
        "delivered": sum(d.tokens for d in came),
        "draft_seconds": spent.draft,
        "plan_seconds": 0.0,
        "pack_seconds": 0.0,
        "verify_seconds": spent.verify,
        "accept_seconds": 0.0,
        "commit_seconds": 0.0,
        "seconds": (0.0 if pace.waits else spent.prefill) + spent.draft + spent.verify,
        "predicted_seconds": float("nan"),
        "confidence_age": choice.age,
        "priors": choice.priors,
        "extrapolated": extrapolated,
        "flips": 0,
        "zombies": seated - live,
        "prefill_seconds": 0.0 if pace.waits else spent.prefill,
        "idle_seconds": 0.0,
        "host_seconds": 0.0,
        "fallback": "",
        "occupied": seated,
    }


def round_row(number: int, block: int, choice: Choice, came: Delivered) -> dict[str, Any]:
    script, window, depth = came.seat.script, int(choice.window[came.row]), int(choice.depth[came.row])
    return {
        "step": number,
        "request": script.id,
        "workload": script.workload,
        "position": script.prompt_tokens + came.before - 1,
        "output_index": came.before,
        "window": window,
        "verified": int(choice.sent[came.row]),
        "accepted": came.tokens - 1,
        "delivered": came.tokens,
        "ceiling": ceiling(script, came.before, depth, block),
        "flips": 0,
        "drafts": [0] * depth,
        "logits": [],
        "token_free_logits": [],
        "name": prompt_name(script.name),
    }


def ceiling(script: Script, before: int, depth: int, block: int) -> int:
    """Tokens had the whole block been verified, as `measure.later_ceiling` judges it against the text that came."""
    match = int(script.match[before - 1]) if block else 0
    text = script.room - before
    if match >= text and depth > text:
        return UNSEEN
    if match < depth:
        return match + 1
    return block + 1 if depth == block else UNSEEN


def request_row(seat: Seat, *, first: float, finished: float) -> dict[str, Any]:
    script = seat.script
    return {
        "request": script.id,
        "name": prompt_name(script.name),
        "workload": script.workload,
        "prompt_tokens": script.prompt_tokens,
        "output_tokens": script.room,
        "rounds": len(seat.past),
        "admitted": seat.admitted,
        "first_token": first,
        "finished": finished,
        "finish_reason": "length",
        "repetition": script.repetition,
    }
