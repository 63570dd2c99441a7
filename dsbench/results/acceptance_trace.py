"""A recorded trace: texts of a real model and what was drafted at every anchor of them; one parquet file. No torch.

Columns: name, workload, prompt_tokens, prompt (ids), output (ids); and, for the anchors output[0] .. output[n - 2] in
turn, match, censored, logits and free (anchors x G, row after row). The metadata's key `dsbench` holds kind, schema,
block, event and provenance as JSON. Logits are stored in half precision.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dsbench.errors import UsageError
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey, Head, Quality
from dsbench.profiles.files import strings
from dsbench.runtime.draft_trace import DraftTrace

KIND, SCHEMA, KEY = "trace", 1, b"dsbench"
HINT = "record one with: dsbench record-trace"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRow:
    """One recorded request. Raises ValueError where its parts disagree."""

    name: str
    workload: str
    prompt: tuple[int, ...]  # ids
    output: tuple[int, ...]  # ids of the canonical text
    drafts: DraftTrace

    def __post_init__(self) -> None:
        if not self.prompt or not self.output or min(*self.prompt, *self.output) < 0:
            raise ValueError(f"{self.name}: prompt and output must hold ids >= 0")
        if len(self.drafts.match) != len(self.output) - 1:
            raise ValueError(f"{self.name}: {len(self.output)} output tokens, {len(self.drafts.match)} anchors")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Recorded requests of one target, drafter and event. Raises ValueError where they disagree."""

    block: int  # G
    event: EventKey
    provenance: dict[str, str]  # target, drafter, calibrated (yes or no), workloads, seed, device, date, ...
    rows: tuple[TraceRow, ...]
    digest: str = ""  # of the file it came from
    rescaled: str = ""  # in words: the published acceptance it was rescaled to

    def __post_init__(self) -> None:
        keys = [(row.workload, row.name) for row in self.rows]
        if not keys or len(set(keys)) < len(keys):
            raise ValueError("it holds no request" if not keys else "it holds a request twice")
        if any(row.drafts.block != self.block for row in self.rows):
            raise ValueError(f"a request was drafted with another block than {self.block}")

    @property
    def label(self) -> str:
        """Where acceptance comes from, in words."""
        source = f"replayed from {self.provenance.get('target', 'an unnamed target')} (trace {self.digest[:8]})"
        return source + (f", rescaled to {self.rescaled}" if self.rescaled else "")

    @property
    def calibrated(self) -> bool:
        """Whether the confidences mean what they say; after rescaling they do, since matches are drawn from them."""
        return bool(self.rescaled) or self.provenance.get("calibrated") == "yes"

    def calibrations(self) -> CalibrationSet:
        """Maps that change nothing, with the trace's own acceptance as the prior of a request without history."""
        match = np.concatenate([row.drafts.match for row in self.rows])
        left = np.concatenate([row.drafts.left for row in self.rows])
        prior: list[float] = []
        for depth in range(1, self.block + 1):
            seen = (match >= depth - 1) & (left >= depth)
            prior.append(float((match[seen] >= depth).mean()) if seen.any() else 0.5)
        heads: tuple[Head, ...] = ("conditioned", "free")
        nothing = Quality(conditional=(), prefix=())
        return CalibrationSet(
            entries=tuple(
                Calibration(
                    method="identity",
                    head=head,
                    event=self.event,
                    scale=(1.0,) * self.block,
                    offset=(0.0,) * self.block,
                    prior=tuple(prior),
                    n=len(match),
                    scored_on="fit",
                    before=nothing,
                    after=nothing,
                )
                for head in heads
            )
        )


def save_trace(trace: Trace, path: Path) -> None:
    """Writes the file whole or not at all."""
    drafts = [row.drafts for row in trace.rows]
    table = pa.table(
        {
            "name": [row.name for row in trace.rows],
            "workload": [row.workload for row in trace.rows],
            "prompt_tokens": pa.array([len(row.prompt) for row in trace.rows], pa.int32()),
            "prompt": _lists([row.prompt for row in trace.rows], np.int32),
            "output": _lists([row.output for row in trace.rows], np.int32),
            "match": _lists([d.match for d in drafts], np.int8),
            "censored": _lists([d.censored for d in drafts], np.bool_),
            "logits": _lists([d.logits.ravel() for d in drafts], np.float16),
            "free": _lists([d.token_free.ravel() for d in drafts], np.float16),
        }
    )
    head = {
        "kind": KIND,
        "schema": SCHEMA,
        "block": trace.block,
        "event": asdict(trace.event),
        "provenance": trace.provenance,
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        pq.write_table(table.replace_schema_metadata({KEY: json.dumps(head)}), draft, compression="zstd")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _lists(parts: list[Any], kind: Any) -> Any:
    """A column of lists of one plain type."""
    arrays = [np.asarray(part, kind) for part in parts]
    offsets = np.cumsum([0, *(len(a) for a in arrays)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(arrays)))


def load_trace(path: Path) -> Trace:
    """Reads a file of `save_trace`. Raises UsageError with a hint if it is missing, damaged, or another thing."""
    if path.is_dir():
        raise UsageError(f"cannot read the trace {path}: it is a folder", hint=HINT)
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UsageError(f"cannot read the trace {path}: it does not exist", hint=HINT) from None
    except (OSError, pa.ArrowException) as problem:
        raise UsageError(f"{path} is not a trace: {problem}", hint=HINT) from None
    try:
        head = json.loads((table.schema.metadata or {})[KEY])
        kind, schema = head["kind"], head["schema"]
    except (KeyError, TypeError, ValueError):
        kind, schema = None, None
    if kind != KIND:
        raise UsageError(f"{path} is not a trace: its metadata do not say so", hint=HINT)
    if schema != SCHEMA:
        raise UsageError(f"{path} has schema {schema!r}; this dsbench reads schema {SCHEMA}", hint=HINT)
    try:
        return _trace(table, head, hashlib.sha256(path.read_bytes()).hexdigest()[:16])
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(f"{path} is a damaged trace: {problem}", hint=HINT) from None


def _trace(table: Any, head: dict[str, Any], digest: str) -> Trace:
    block = int(head["block"])
    names, workloads = (table[column].to_pylist() for column in ("name", "workload"))
    prompt, output, match, logits, free = (
        [np.asarray(cell.values) for cell in table[column]]
        for column in ("prompt", "output", "match", "logits", "free")
    )
    rows = tuple(
        TraceRow(
            name=names[i],
            workload=workloads[i],
            prompt=tuple(prompt[i].tolist()),
            output=tuple(output[i].tolist()),
            drafts=DraftTrace(
                match=match[i],
                logits=logits[i].astype(np.float32).reshape(-1, block),
                token_free=free[i].astype(np.float32).reshape(-1, block),
            ),
        )
        for i in range(len(names))
    )
    event = EventKey(**head["event"])
    return Trace(block=block, event=event, provenance=strings(head["provenance"]), rows=rows, digest=digest)
