"""Shared by tests: what drafters tests and others run on."""

from __future__ import annotations

import json
from pathlib import Path

import command
import numpy as np
import pytest

from dsbench.analysis.acceptance import PromptCounts
from dsbench.drafting.results_file import Cell, Comparison, DrafterEntry
from dsbench.profiles.calibration import EventKey

GREEDY, COUPLED = EventKey(rule="coupled", temperature=0.0), EventKey(rule="coupled", temperature=1.0)
model = command.model


def law(chances, *, prompts=60, rounds=40, seed=0, hard=0.25, workload="math"):
    """Prompts whose acceptance at depth k is chances[k] times an ease of the prompt's own, which all laws share."""
    ease = 1 - hard * np.random.default_rng(1).random(prompts)
    found = []
    for p in range(prompts):
        rng = np.random.default_rng([seed, p])
        passed = np.cumprod(rng.random((rounds, len(chances))) < np.array(chances) * ease[p], axis=1)
        reached = np.concatenate([np.ones((rounds, 1), int), passed[:, :-1]], axis=1)
        accepted = int(passed.sum())
        found.append(
            PromptCounts(
                workload=workload,
                name=f"{workload}-{p}",
                rounds=rounds,
                delivered=accepted + rounds,
                accepted=accepted,
                repetition=0.0,
                trials=tuple(reached.sum(0).tolist()),
                passed=tuple(passed.sum(0).tolist()),
            )
        )
    return found


def comparison(*, prompts=60):
    """A block of 3 on math and chat under two events; a chain of 2 the same; a late one on math alone."""
    found = Comparison(
        conditions={"seed": "0", "device": "Virtual GPU", "target_name": "toy", "dtype": "bfloat16", "max_tokens": "64"}
    )
    laws = {"block": ("d1", [0.7, 0.8, 0.8]), "chain": ("d2", [0.7, 0.6]), "late": ("d3", [0.5, 0.5, 0.5])}
    for name, (digest, chances) in laws.items():
        entry = DrafterEntry(name=name, folder=name, digest=digest, block=len(chances))
        for number, event in enumerate((COUPLED, GREEDY)):
            for workload in ("math", "chat") if name != "late" else ("math",):
                own = law(chances, seed=10 * number + len(name), prompts=prompts, workload=workload)
                entry.put(Cell(event=event, workload=workload, prompts_digest="p", environment={}, counts=tuple(own)))
        found.drafters.append(entry)
    return found


@pytest.fixture
def setting(model, tmp_path, unpainted):
    """Two drafters, of 4 and 3 drafts a block, six prompts, and the flags of a short run."""
    block = command.write_drafter(tmp_path / "block")
    chain = command.write_drafter(tmp_path / "chain", block_size=3)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + {i}"}) + "\n" for i in range(6)))
    flags = ["--target", str(model), "--workload", str(prompts), "--prompts", "6", "--max-tokens", "10", "--batch", "3"]
    return block, chain, [*flags, "--events", "coupled@1,residual@1", "--out", str(tmp_path / "out")]


def run(home: Path, *arguments: str | Path) -> command.Done:
    return command.dsbench("drafters", *map(str, arguments), home=home)
