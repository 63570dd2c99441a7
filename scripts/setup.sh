#!/usr/bin/env bash
# Makes .venv and installs dsbench into it, once: again only if pyproject.toml or the constraints changed.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/.installed-$(cat pyproject.toml constraints-cpu.txt | cksum | tr -d ' ')
[ -e "$stamp" ] && exit 0

for python in "${PYTHON:-}" python3.13 python3.12 python3.11 python3; do
  if [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 &&
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
    found=$python
    break
  fi
done
[ -n "${found:-}" ] || { echo "dsbench needs Python 3.11 to 3.13; none was found (set PYTHON)" >&2; exit 6; }

flags=() constraints=(--constraint constraints-cpu.txt)
if "$found" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  flags=(--system-site-packages) constraints=() # a torch that drives this GPU is kept
fi
[ -x .venv/bin/python ] || "$found" -m venv "${flags[@]}" .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check "${constraints[@]}" --editable ".[dev]"
rm -f .venv/.installed-*
touch "$stamp"
