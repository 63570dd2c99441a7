"""Lets tests import the helpers beside them, and keeps tiny tensors on one thread: a second one costs more."""

import sys
from pathlib import Path

import numba
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread(request):
    """Tests on the real model (`slow`) keep all threads."""
    if request.node.get_closest_marker("slow"):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
