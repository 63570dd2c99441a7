"""From an engine's records to the three tables of a repeat: steps, rounds, requests. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsbench.results.latency import with_latencies
from dsbench.results.store import records_frame
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.records import UNSEEN, RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request, prompt_name

if TYPE_CHECKING:
    import pandas as pd


def tables_of(
    engine: Engine, requests: Sequence[Request], wanted: frozenset[int], rule: str, came: Sequence[float] | None
) -> dict[str, pd.DataFrame]:
    """The records as tables. came: when each request came by the schedule; None: when it took its slot."""
    by_id = {r.id: r for r in requests}
    recorded = engine.rounds
    steps = records_frame(engine.steps, StepRecord)
    rounds = records_frame(recorded, RoundRecord)
    rounds["ceiling"] = [later_ceiling(r, by_id[r.request], rule) for r in recorded]
    rounds["name"] = [prompt_of(by_id[i]) for i in rounds["request"]]
    rounds["measured"] = rounds["request"].isin(wanted)
    done = records_frame(engine.finished, RequestRecord)
    done["name"] = [prompt_of(by_id[i]) for i in done["request"]]
    done["measured"] = done["request"].isin(wanted)
    done["repetition"] = [repetition(by_id[i].output) for i in done["request"]]
    schedule = {} if came is None else {r.id: at for r, at in zip(requests, came, strict=True)}
    done["arrived"] = [schedule.get(i, at) for i, at in zip(done["request"], done["admitted"], strict=True)]
    return {"steps": steps, "rounds": rounds, "requests": with_latencies(done, rounds, steps)}


def prompt_of(request: Request) -> str:
    """The prompt's name without the replica number: replicas share a prompt, and intervals resample prompts."""
    return prompt_name(request.name)


def later_ceiling(record: RoundRecord, request: Request, rule: str) -> int:
    """The round's ceiling, judged against the text that came, where the verify pass could not see it.

    Exact under the coupled rule: the text does not depend on what was verified. A round whose drafts equal the text up
    to where the text ends, or to where the sequential head stopped short of the block, stays UNSEEN.
    """
    if record.ceiling != UNSEEN or rule != "coupled":
        return record.ceiling
    block = len(record.token_free_logits)
    future = request.output[record.output_index :]
    for depth, draft in enumerate(record.drafts):
        if depth >= len(future):
            return UNSEEN
        if draft != future[depth]:
            return depth + 1
    return block + 1 if len(record.drafts) == block else UNSEEN


def repetition(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the output's n-grams that occurred before in it: looping text flatters acceptance."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
