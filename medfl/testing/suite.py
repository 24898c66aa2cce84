"""Runner of the conformance suite, and helpers of its checks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, folders
from medfl.training.devices import pick_device
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal

CHECKS: dict[str, Callable[[Case], None]] = {}
"""Checks of the conformance suite by name, in the order of execution."""


def check_method(
    name: str,
    *,
    plugins: Sequence[str | Path] = (),
    args: dict[str, Any] | None = None,
    checks: Collection[str] | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "cpu",
) -> None:
    """Run all checks on a method and report all failures.

    On the CPU, hides GPUs that the process has not used yet, by setting ``CUDA_VISIBLE_DEVICES``: the checks train
    before they fork processes, which torch does not support if a GPU is visible. On a GPU, the checks leave out runs
    with several workers.

    Args:
        name: Name of the method, as in ``medfl list methods``.
        plugins: Plugin files to load first.
        args: Settings of the method; None uses its defaults.
        checks: Names of the checks to run, as in `CHECKS`; None runs all.
        settings: Settings of the runs that differ from the suite's, for example ``robust``.
        device: Device of the runs, ``cpu`` or ``cuda:N``.

    Raises:
        ValueError: If there is no check of that name.
        SettingsError: If a GPU is requested but there is none.
        PluginError: If the method is unknown or ambiguous, or its class can't be imported.
        AssertionError: If a check fails; the message has all failures.
    """
    unknown = set(checks or ()) - set(CHECKS)
    if unknown:
        raise ValueError(f"unknown checks {sorted(unknown)}, there are {sorted(CHECKS)}")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    device = pick_device(device)
    registry = load_plugins(files=list(plugins))
    registry.method_class(name)  # report an unknown name once, not for each check
    logger = logging.getLogger("medfl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    failures = []
    titles = [title for title in CHECKS if checks is None or title in checks]
    try:
        with folders(1) as (home,):
            home.mkdir()
            case = Case(registry, name, args or {}, settings or {}, home, device)
            for title in titles:
                try:
                    CHECKS[title](case)
                except Exception as error:  # all failures are reported below
                    failures.append(f"{title}: {type(error).__name__}: {error}")
    finally:
        logger.setLevel(level)
    if failures:
        listed = "\n- ".join(failures)
        raise AssertionError(f"Method '{name}' fails {len(failures)} of {len(titles)} checks:\n- {listed}")


def promise(check: Callable[[Case], None]) -> Callable[[Case], None]:
    """Register a check in the suite under its name. Use it as a decorator."""
    CHECKS[check.__name__] = check
    return check


def expect(condition: bool, message: str) -> None:
    """Raise an AssertionError with a message if a condition is false."""
    if not condition:
        raise AssertionError(message)


def same(left: dict[str, Tensors], right: dict[str, Tensors], what: str) -> None:
    """Raise an AssertionError unless two sets of models have the same keys and the same bits.

    Args:
        left: Tensors of each model.
        right: Tensors of each model, to compare with.
        what: Description of the comparison, for the message.
    """
    expect(left.keys() == right.keys(), f"{what}: models {sorted(left)} against {sorted(right)}")
    unlike = [key for key in left if not tensors_equal(left[key], right[key])]
    expect(not unlike, f"{what}: other bits in {unlike}")


def finite(models: dict[str, Tensors], what: str) -> None:
    """Raise an AssertionError, with the description `what`, unless all floating tensors of the models are finite."""
    bad = [k for k, m in models.items() for t in m.values() if t.is_floating_point() and not torch.isfinite(t).all()]
    expect(not bad, f"{what}: not finite in {sorted(set(bad))}")
