"""The loss kernel: by Triton's interpreter here, on a CUDA device where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_equals_its_reference_by_the_interpreter():
    """In a process of its own: the interpreter is chosen as triton is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    script = ROOT / "tests" / "support" / "draft_loss_interpreted.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout == "12 agree", done.stderr[-3000:]
