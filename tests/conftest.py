"""Lets tests import the helpers beside them, and keeps tiny tensors on one thread: a second one costs more."""

import os
import sys
from pathlib import Path

import numba
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))
pytest_plugins = ["command", "drafter_runs", "replays"]  # their fixtures are everybody's
os.environ["DSBENCH_COST_ERROR"] = "9"  # steps of tiny models are too short to time well beside other tests
THREADS = torch.get_num_threads()


@pytest.fixture
def unpainted(monkeypatch):
    """Pictures are made up to the painting, half a second each: a file then holds its picture's texts, a line each."""
    from matplotlib.text import Text

    def save(figure, path, **_):
        Path(path).write_text("\n".join(text.get_text() for text in figure.findobj(Text)))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)


@pytest.hookimpl(tryfirst=True)  # before the fixtures of a module, which are the work of many tests
def pytest_runtest_setup(item):
    """Tests on the real model (`slow`) keep all threads."""
    slow = item.get_closest_marker("slow") is not None
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS if slow else 1)
    torch.set_num_threads(THREADS if slow else 1)  # last: numba sets torch's too as it starts its own
