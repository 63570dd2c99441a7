"""What installs is what the folders hold: a wheel's modules and data, and links that lead where they say."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("kernels", "profiles", "runtime", "workloads")


def test_links_lead_to_the_folders():
    for name in FOLDERS:
        link = ROOT / "dsbench" / name
        assert link.is_symlink() and link.readlink() == Path("..") / name


def test_every_package_folder_is_listed_and_maps_to_itself():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    linked = [path.parent for name in FOLDERS for path in (ROOT / name).rglob("__init__.py")]
    found = {"dsbench"} | {f"dsbench.{path.parent.name}" for path in (ROOT / "dsbench").glob("*/__init__.py")}
    found |= {"dsbench." + ".".join(path.relative_to(ROOT).parts) for path in linked}
    assert set(setuptools["packages"]) == found
    for package, folder in setuptools["package-dir"].items():
        assert package == "dsbench." + folder.replace("/", ".")


def test_the_built_package_holds_every_module_and_the_drafter(tmp_path):
    """Runs setuptools' build step on a copy; needs no network."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignore = shutil.ignore_patterns("__pycache__", *FOLDERS)
    shutil.copytree(ROOT / "dsbench", source / "dsbench", ignore=ignore)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from setuptools import setup; setup()"
    done = subprocess.run(
        [sys.executable, "-c", code, "-q", "build", "--build-lib", str(tmp_path / "lib")],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    built = {p.relative_to(tmp_path / "lib") for p in (tmp_path / "lib").rglob("*.py")}
    own = (p for part in ("*.py", "*/*.py") for p in (ROOT / "dsbench").glob(part))
    wanted = {p.relative_to(ROOT) for p in own if not (p.parent.is_symlink())}
    wanted |= {Path("dsbench") / p.relative_to(ROOT) for name in FOLDERS for p in (ROOT / name).rglob("*.py")}
    assert built == wanted
    shipped = tmp_path / "lib" / "dsbench" / "profiles" / "smollm2-135m" / "dspark"
    assert {p.name for p in shipped.iterdir()} >= {"config.json", "calibration.json", "model.safetensors.index.json"}
