"""The runner of the conformance suite, and what its checks share."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, folders
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal

CHECKS: dict[str, Callable[[Case], None]] = {}
"""Name to check, in the order in which they run."""


def check_method(
    name: str,
    *,
    plugins: Sequence[str | Path] = (),
    args: dict[str, Any] | None = None,
    checks: Collection[str] | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run every check on a method and report all failures.

    GPUs that the process has not used yet are hidden from it: the checks train before they fork processes, which torch
    can't where a GPU is in sight.

    Args:
        name: The method, as in ``medfl list methods``.
        plugins: Plugin files to load first.
        args: Settings of the method; its defaults otherwise.
        checks: Names of those to run, as in `CHECKS`; all otherwise.
        settings: Settings of the runs that differ from the suite's, for example ``robust``.

    Raises:
        ValueError: If there is no check of that name.
        PluginError: If the method is unknown or ambiguous, or its class can't be imported.
        AssertionError: Naming each promise that is not kept, and how that showed.
    """
    unknown = set(checks or ()) - set(CHECKS)
    if unknown:
        raise ValueError(f"unknown checks {sorted(unknown)}, there are {sorted(CHECKS)}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    registry = load_plugins(files=list(plugins))
    registry.method_class(name)  # an unknown name is one error, and not one for each check
    logger = logging.getLogger("medfl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    failures = []
    try:
        with folders(1) as (home,):
            home.mkdir()
            case = Case(registry, name, args or {}, settings or {}, home)
            for title in (title for title in CHECKS if checks is None or title in checks):
                try:
                    CHECKS[title](case)
                except Exception as error:  # every failure is reported below, none is lost
                    failures.append(f"{title}: {type(error).__name__}: {error}")
    finally:
        logger.setLevel(level)
    if failures:
        raise AssertionError(f"Method '{name}' breaks {len(failures)} promises:\n- " + "\n- ".join(failures))


def promise(check: Callable[[Case], None]) -> Callable[[Case], None]:
    """Add a check to the suite under its name."""
    CHECKS[check.__name__] = check
    return check


def expect(condition: bool, message: str) -> None:
    """Fail with a message."""
    if not condition:
        raise AssertionError(message)


def same(left: dict[str, Tensors], right: dict[str, Tensors], what: str) -> None:
    """Fail unless both hold the same models with the same bits."""
    expect(left.keys() == right.keys(), f"{what}: models {sorted(left)} against {sorted(right)}")
    unlike = [key for key in left if not tensors_equal(left[key], right[key])]
    expect(not unlike, f"{what}: other bits in {unlike}")


def finite(models: dict[str, Tensors], what: str) -> None:
    """Fail unless all floating tensors are finite."""
    bad = [k for k, m in models.items() for t in m.values() if t.is_floating_point() and not torch.isfinite(t).all()]
    expect(not bad, f"{what}: not finite in {sorted(set(bad))}")
