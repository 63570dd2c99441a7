"""The Triton kernels without a GPU: Triton reads TRITON_INTERPRET when it is imported, hence a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "support" / "triton_cases.py"


@pytest.mark.slow  # a minute: a process of its own, and the interpreter is slow
def test_kernels_under_the_interpreter_equal_their_references():
    pytest.importorskip("triton")
    here = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(CASES), "-n", "auto", "-p", "no:cacheprovider", "-o", "filterwarnings="],
        env=here | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
