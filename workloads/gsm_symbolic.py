"""A script that `pull.py` runs in a process of its own: draws questions from reasoning-gym's gsm_symbolic generators.

Loads three files of the wheel without the package's `__init__`, so none of its dependencies is needed. Arguments: the
wheel, the seed, how many. Prints one JSON row a line.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import types
import zipfile

FAMILIES = (
    *(*range(32), 33, 34, 36, *range(38, 61), 62, 64, *range(66, 74), 75, 78, *range(80, 86), 88, 89),
    *(*range(91, 97), 99),
)  # the templates that the package itself calls usable


def load_generators(wheel: str) -> dict[int, types.FunctionType]:
    """The question generators of the wheel, by template number."""
    folder = "reasoning_gym/arithmetic/gsm_symbolic"
    assert f"{folder}/generators_00_49.py" in zipfile.ZipFile(wheel).namelist(), f"{wheel} has no gsm_symbolic"
    for name, path in (("reasoning_gym", "reasoning_gym"), ("reasoning_gym.symbolic", folder)):
        package = types.ModuleType(name)
        package.__path__ = [f"{wheel}/{path}"]
        sys.modules[name] = package
    sys.path.insert(0, wheel)
    generators: dict[int, types.FunctionType] = {}
    for part in ("generators_00_49", "generators_50_99"):
        module = importlib.import_module(f"reasoning_gym.symbolic.{part}")
        for name, value in vars(module).items():
            if name.startswith("generate_"):
                generators[int(name.removeprefix("generate_"))] = value
    return generators


def main(wheel: str, seed: int, count: int) -> None:
    """Prints `count` distinct questions, the templates taken in turn."""
    generators = load_generators(wheel)
    seen: set[str] = set()
    attempt = 0
    while len(seen) < count:
        family = FAMILIES[attempt % len(FAMILIES)]
        question = generators[family](random.Random(seed + attempt), 1.0)["question"].strip()
        attempt += 1
        if question not in seen:
            seen.add(question)
            print(json.dumps({"id": f"template-{family}", "question": question}, ensure_ascii=True))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
