"""`RunConfig`: what to run. Each value comes from a flag, the environment, dsbench.toml or a default, in that order."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from dsbench.errors import UsageError

FILE = "dsbench.toml"
PATHS = ("target", "drafter", "mtp_drafter", "trace", "arrivals", "cost", "calibration", "out")
LISTS = ("workload", "input_len", "output_len")  # hold paths among other things, whose readers replace `~`
PREFIX = "DSBENCH_"
MOST = 1_000_000  # of requests and repeats
MOST_THREADS = 4096
MOST_LAG = 64
SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
SEEDS = 1 << 32  # what is derived from a seed, by a rank or a step, still fits every generator


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Settings of generate, sweep, profile-cost and calibrate. Empty text means: chosen for this machine."""

    target: str = "smollm2-135m"
    drafter: str = ""  # a checkpoint folder; "" = the one that ships for the target
    mtp_drafter: str = ""  # a chain checkpoint, for mtp:K; "" = the one that ships for the target
    device: str = ""  # cpu or cuda; "" = cuda where there is one
    dtype: str = ""  # float32 or bfloat16; "" = bfloat16 where the device has it
    numerics: str = "fast"  # exact: the target's logits of a row have the same bits whatever runs beside it
    threads: int = 0  # CPU threads; 0 = as torch finds them
    executor: str = ""  # overlap, graphs (wait after each phase) or eager; "" = overlap on a GPU, a CPU is eager
    mode: str = "none,static,compact,cap-accept"
    batch: str = ""  # range of batch sizes; "" = 1:16:x2 on a CPU, 1:256:x2 on a GPU
    workload: str = "math,chat,poetry"
    template_arg: str = ""  # name=value,... for the chat template, e.g. enable_thinking=false
    parse_special: bool = False  # control tokens in a prompt's text are control tokens, not text
    accept: str = "coupled"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    lag: int = -1  # -1 = 0 under coupled, 2 under residual and block
    draft: str = "planned"  # full: compact's sequential head fills the block, so that its ceiling is exact
    text: str = "pinned"
    start: str = "spread"  # the closed loop's first requests are as far on as if they had come before; or together
    trace: str = ""  # a recorded trace, whose acceptance a shape target replays
    acceptance: str = ""  # a published acceptance that the trace is rescaled to; "" = as it was recorded
    seed: int = 0
    max_tokens: int = 64
    requests: int = 16  # measured requests a cell, at least; a cell takes no fewer than its batch size
    request_rate: str = ""  # requests a second of the open loop, `closed` among them; "" = closed, or the file's own
    burstiness: str = ""  # of the intervals: "" or 1 Poisson, below 1 in bursts, inf a steady beat
    arrivals: str = ""  # a file of recorded arrivals
    input_len: str = ""  # prompt lengths; "" = as the prompts are, or as recorded with the arrivals
    output_len: str = ""  # answer lengths, max_tokens at most
    slo: str = ""  # e.g. ttft:200ms,tpot:20ms: what show and summary.csv count goodput against
    repeats: int = 2
    cost: str = ""  # a cost table; "" = this machine's, measured if there is none
    cost_error: float = 0.1  # median error on held-out shapes, from which on a cost table is refused
    calibration: str = ""  # a calibration file; "" = the drafter's own
    out: str = "runs/latest"
    within: str = ""  # how long it may take, e.g. 4m; what does not fit is left out, and said
    launcher: str = "local"  # ray: cells are spread over its workers, one device each
    workers: int = 0  # of a launcher; 0 = as many as it has GPUs, or one

    def __post_init__(self) -> None:
        if self.numerics not in ("exact", "fast"):
            raise UsageError(f"unknown numerics {self.numerics!r}", hint="exact or fast")
        if self.executor not in ("", "overlap", "graphs", "eager"):
            raise UsageError(f"unknown executor {self.executor!r}", hint="overlap, graphs or eager")
        if self.launcher not in ("local", "ray"):
            raise UsageError(f"unknown launcher {self.launcher!r}", hint="local or ray")
        if self.workers < 0 or (self.workers > 1 and self.launcher == "local"):
            raise UsageError(f"workers must be >= 0, and 0 or 1 with the local launcher, got {self.workers}")
        if self.text not in ("pinned", "free"):
            raise UsageError(f"unknown text {self.text!r}", hint="pinned or free")
        if self.start not in ("spread", "together"):
            raise UsageError(f"unknown start {self.start!r}", hint="spread or together")
        for name in ("max_tokens", "requests", "repeats"):
            value, most = getattr(self, name), math.inf if name == "max_tokens" else MOST  # the context bounds a text
            if not 1 <= value <= most:
                bound = ">= 1" if value < 1 else f"<= {MOST}"
                raise UsageError(f"{name.replace('_', '-')} must be {bound}, got {value}")
        if not -1 <= self.lag <= MOST_LAG:
            raise UsageError(f"lag must lie in 0..{MOST_LAG}, or be -1 for the rule's own, got {self.lag}")
        if not 0 <= self.seed < SEEDS:
            raise UsageError(f"seed must lie in 0..{SEEDS - 1}, got {self.seed}")
        if self.threads < 0:
            raise UsageError(f"threads must be >= 0 (0 = all), got {self.threads}")
        if self.threads > MOST_THREADS:
            raise UsageError(f"threads must be <= {MOST_THREADS}, got {self.threads}")
        if self.device not in ("", "cpu", "cuda"):
            raise UsageError(f"unknown device {self.device!r}", hint="cpu or cuda")
        if self.dtype not in ("", "float32", "bfloat16"):
            raise UsageError(f"unknown dtype {self.dtype!r}", hint="float32 or bfloat16")

    @property
    def budget_lag(self) -> int:
        """`lag`, or the acceptance rule's default where none is given."""
        return self.lag if self.lag >= 0 else (0 if self.accept == "coupled" else 2)


def resolve(flags: Mapping[str, Any], *, folder: Path | None = None) -> tuple[RunConfig, dict[str, str]]:
    """The configuration and where each value came from. `flags` with value None were not given.

    Raises UsageError for an unknown key in dsbench.toml or the environment, or a value of the wrong type anywhere.
    """
    file = _read_file((folder or Path.cwd()) / FILE)
    types = get_type_hints(RunConfig)
    strange = sorted(k for k in os.environ if k.startswith(PREFIX) and k not in _variables())
    if strange:
        raise UsageError(
            f"unknown environment variable {strange[0]}", hint="DSBENCH_<NAME> is a flag of `dsbench sweep`"
        )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field in fields(RunConfig):
        name = field.name
        variable = PREFIX + name.upper()
        if flags.get(name) is not None:
            values[name], sources[name] = flags[name], "flag"
        elif variable in os.environ:
            values[name], sources[name] = _typed(os.environ[variable], types[name], variable), f"environment {variable}"
        elif name in file:
            values[name], sources[name] = _typed(file[name], types[name], f"{FILE}: {name}"), FILE
        else:
            sources[name] = "default"
    for name in {*PATHS, *LISTS} & values.keys():
        values[name] = expanded(values[name], sources[name], home=name in PATHS)
    return RunConfig(**values), sources


def expanded(text: str, source: str, *, home: bool = True) -> str:
    """The text with `$VARIABLE`, and `~` where `home`, replaced as a shell would have; a file's own name stands.

    Raises UsageError for a variable that is not set.
    """
    if Path(text).exists():
        return text
    full = os.path.expandvars(os.path.expanduser(text) if home else text)
    unset = re.search(r"\$(\w+|\{\w+\})", full)
    if unset:
        raise UsageError(f"{source}: {text!r} names the variable {unset[0]}, which is not set")
    return full


def _variables() -> set[str]:
    """The environment variables that are settings; the home folder is not one."""
    return {PREFIX + field.name.upper() for field in fields(RunConfig)} | {PREFIX + "HOME"}


def _read_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        body = {k.replace("-", "_"): v for k, v in tomllib.loads(path.read_text(encoding="utf-8-sig")).items()}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}") from None
    unknown = sorted(set(body) - {f.name for f in fields(RunConfig)})
    if unknown:
        raise UsageError(f"{path}: unknown key {unknown[0]!r}", hint="the keys are the long flags of `dsbench sweep`")
    return body


def _typed(value: Any, kind: type, where: str) -> Any:
    """A value of the file or the environment as `kind`; numbers, lists and tables in the words that a flag takes."""
    if kind is bool and isinstance(value, str) and value.lower() in SWITCH:
        return SWITCH[value.lower()]
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    words = _words(value) if kind is str else value if isinstance(value, str) and kind is not bool else None
    if words is not None:
        try:
            return kind(words)
        except ValueError:
            pass
    raise UsageError(f"{where} must be of type {kind.__name__}, got {value!r}")


def _words(value: Any) -> str | None:
    """None for what no flag can say."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value) if isinstance(value, int) else f"{value:.12g}"
    if isinstance(value, list):
        parts = [_words(one) for one in value]
        return None if None in parts else ",".join(map(str, parts))
    if isinstance(value, dict):
        return ",".join(f"{name}={one if isinstance(one, str) else json.dumps(one)}" for name, one in value.items())
    return None
