"""Shared by tests: what compare tests and others run on."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

import pytest
from command import parser

from dsbench.cli.main import main


def dsbench(*arguments, home):
    """(exit code, stdout, stderr) of the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(home),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict("os.environ", {"DSBENCH_HOME": str(home / "home")}),
        mock.patch.object(sys, "argv", ["dsbench", *arguments]),
        mock.patch("typer.main.get_command", parser),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()
