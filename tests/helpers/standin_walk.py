"""Program that runs methods on the stand-in device, and prints the error of each one as JSON; null if there is none.

python standin_walk.py --plugin toy.py fedavg toy
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import standin_device
import torch
from quick_settings import QUICK

from medfl.plugins import Registry, load_plugins
from medfl.testing.cohort import Case, bits
from medfl.types import Tensors

TOLERANCE = 1e-3
"""Maximum difference between the models of the stand-in and of the CPU. Other kernels round differently."""


def problem_of(registry: Registry, name: str, settings: Mapping[str, Any], compares: bool) -> str | None:
    """Run a method on the stand-in, and return its error, or a difference of its models from those of a run on the CPU.

    Args:
        registry: Registry with the method.
        name: Name of the method.
        settings: Settings of the runs.
        compares: Whether the method also runs on the CPU.
    """
    models: list[dict[str, Tensors]] = []
    for device in (standin_device.DEVICE, "cpu") if compares else (standin_device.DEVICE,):
        case = Case(registry, name, dict(QUICK.get(name, {})), {"rounds": 2, **settings}, device=device)
        with tempfile.TemporaryDirectory() as folder:
            try:
                models.append(bits(case.run(Path(folder) / "run")))
            except Exception as error:
                return _describe(error)
    here, there = models[0], models[-1]
    unlike = [
        f"{key}/{tensor}"
        for key in there
        for tensor in there[key]
        if not torch.allclose(here[key][tensor].double(), there[key][tensor].double(), atol=TOLERANCE)
    ]
    return f"other numbers than on the CPU: {', '.join(unlike)}" if unlike else None


def _describe(error: BaseException) -> str:
    """Return the first cause of an error, with its place in medfl or in a plugin file."""
    while error.__cause__ is not None:
        error = error.__cause__
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    places = [frame for frame in places if frame.filename != standin_device.__file__]
    return f"{type(error).__name__}: {error} ({Path(places[-1].filename).name}:{places[-1].lineno})"


def main() -> None:
    """Run the methods that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugin", action="append", default=[], type=Path)
    parser.add_argument("runs", nargs="+", type=json.loads)
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    standin_device.install()
    registry = load_plugins(options.plugin)
    problems = [
        problem_of(registry, run["method"], run.get("settings", {}), run.get("compares", True)) for run in options.runs
    ]
    json.dump(problems, sys.stdout)


if __name__ == "__main__":
    main()
