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


def own_files(pattern):
    """Files of the package that do not lie behind one of its links."""
    package = ROOT / "dsbench"
    return [path for path in package.rglob(pattern) if path.relative_to(package).parts[0] not in FOLDERS]


def test_every_package_folder_is_listed_and_maps_to_itself():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    linked = [path.parent for name in FOLDERS for path in (ROOT / name).rglob("__init__.py")]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in own_files("__init__.py")}
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
    wanted = {path.relative_to(ROOT) for path in own_files("*.py")}
    wanted |= {Path("dsbench") / p.relative_to(ROOT) for name in FOLDERS for p in (ROOT / name).rglob("*.py")}
    assert built == wanted
    shipped = tmp_path / "lib" / "dsbench" / "profiles" / "smollm2-135m" / "dspark"
    assert {p.name for p in shipped.iterdir()} >= {"config.json", "calibration.json", "model.safetensors.index.json"}
