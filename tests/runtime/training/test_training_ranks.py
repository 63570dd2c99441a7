"""Two processes train as one: shares, gradients, parameters, data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_tools import random_data

from dsbench.runtime.training.ranks import Ranks
from dsbench.runtime.training.token_data import TRAIN


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two gloo ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    script = Path(__file__).parents[2] / "support" / "ranks_worker.py"
    shared = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, script, folder], env=shared | {"RANK": str(i)}, stderr=subprocess.PIPE)
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=60)[1].decode() for process in started]
    finally:  # one that waits for a rank that is gone waits long
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)[-4000:]
    return [torch.load(folder / f"rank{i}.pt", weights_only=False) for i in range(2)]


def test_what_was_shared_comes_together_in_order(two):
    assert [r["mine"] for r in two] == [[0, 2, 4, 6], [1, 3, 5]]
    assert [r["together"] for r in two] == [list(range(7))] * 2
    assert [r["agreed"] for r in two] == [0.5, 0.5]
    alone = Ranks()
    assert alone.share([3, 1]) == alone.together([3, 1]) == [3, 1] and alone.agree(2.5) == 2.5 and alone.first


def test_each_rank_holds_its_half_of_the_training_text_and_all_of_the_rest(two):
    data = random_data(40)
    train = int((data.split == TRAIN).sum())
    assert [r["sequences"] for r in two] == [-(-train // 2), train // 2]
    goals = sum(int(n) for n, s in zip(data.lengths, data.split, strict=True) if s != TRAIN)
    assert sum(len(r["text"]) for r in two) == len(data.ids) + goals


def test_the_gradient_of_two_is_the_mean_of_their_own(two):
    assert sum(bool((a != b).any()) for a, b in zip(two[0]["alone"], two[1]["alone"], strict=True)) > 20
    for i, (a, b) in enumerate(zip(two[0]["alone"], two[1]["alone"], strict=True)):
        for r in two:
            torch.testing.assert_close(r["added"][i], (a + b) / 2, atol=1e-6, rtol=1e-4)


def test_parameters_start_and_stay_equal(two):
    for name in ("first", "last"):
        assert all(torch.equal(a, b) for a, b in zip(two[0][name], two[1][name], strict=True)), name
    assert any((a != b).any() for a, b in zip(two[0]["first"], two[0]["last"], strict=True))
    assert [r["log"][-1]["step"] for r in two] == [5, 5]
    assert two[0]["log"][-1]["tau"] == two[1]["log"][-1]["tau"]  # of one drafter on one validation set


def test_states_of_different_steps_are_refused_by_all(two):
    assert all("different steps" in r["refused"] for r in two)


def test_both_obtain_the_same_data(two):
    assert two[0]["data"] == two[1]["data"] and len(two[0]["data"][2]) > 5
