"""Writes docs/metrics.md from the declared columns."""

from pathlib import Path

from dsbench.views.explain import document

if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "metrics.md").write_text(document(), encoding="utf-8")
