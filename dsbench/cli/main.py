"""The command line: parse, call one function (cli_*.py), map errors to one line and an exit code. Torch loads late."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from dsbench import __version__
from dsbench.cli.drafters import drafters_app
from dsbench.cli.machine import machine_app
from dsbench.cli.results import results_app
from dsbench.cli.run import run_app
from dsbench.cli.simulate import simulate_app
from dsbench.errors import DsbenchError

INTERRUPTED = 130
GOES_ON = {  # what to do after an interrupt; the other commands keep nothing
    "sweep": "the same command with --resume goes on",
    "train": "the same command goes on",
    "drafters": "the same command goes on",
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="How far should speculative drafts be verified, on this machine, with this model and this traffic?",
)
for part in (machine_app, run_app, drafters_app, results_app, simulate_app):
    app.add_typer(part)


def main() -> None:
    """Entry point: runs the app; every DsbenchError becomes one line, a hint and its exit code."""
    os.environ.setdefault("NUMBA_THREADING_LAYER", "omp")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show ends no command
    try:
        code = app(standalone_mode=False)
    except DsbenchError as error:
        code = _complain(error.message, error.hint, error.exit_code)
    except typer.Exit as leave:
        code = leave.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except SystemExit as leave:  # as rich leaves where nobody reads on
        if not isinstance(leave.__context__, BrokenPipeError):
            raise
        code = 0
    except OSError as problem:  # a full disk, a file that vanished: whatever the checks before could not see
        code = _complain(f"{problem.filename or 'a file'}: {problem.strerror or problem}", "", 2)
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own errors; typer may carry its own copy of click
            raise
        code = _complain(error.format_message(), "see --help", 2)
    if code == INTERRUPTED:  # some versions of typer raise it, others return it
        _complain("interrupted", GOES_ON.get("".join(sys.argv[1:2]), ""), code)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, hint: str, code: int) -> int:
    print(f"dsbench: {' '.join(message.split())}" + (f" ({hint})" if hint else ""), file=sys.stderr)
    return code


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False) -> None:
    pass
