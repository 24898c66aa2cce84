"""Methods whose trainings write checkpoints, and the others, which the guide lists.

That a training continues from its checkpoint with the same bits is checked for each method by the conformance suite.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_harness import Child
from quick_settings import QUICK

from medfl.engine.site import SiteRunner
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, bits, scores
from medfl.testing.suite import same
from medfl.training.checkpoints import TrainingCheckpoint, TrainingPosition
from medfl.training.loop import PlainSteps

REGISTRY = load_plugins()
NAMES = sorted(REGISTRY.methods)
GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def names_in_guide() -> set[str]:
    """Return the methods that the guide's paragraph on killed runs names."""
    (paragraph,) = re.findall(r"\*\*A killed run\*\*.*?\n\n", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return {word.lower() for word in re.findall(r"\w+", paragraph)} & set(NAMES)


FAST = {"fedavg", "pfedme"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in NAMES])
def test_each_optimiser_step_at_a_site_is_in_a_checkpoint_or_the_guide_names_the_method(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    is_at_site = False

    def counted(kind: type, function: str) -> None:
        plain = getattr(kind, function)

        def count(*args: Any) -> Any:
            calls[function] += is_at_site
            return plain(*args)

        monkeypatch.setattr(kind, function, count)

    execute = SiteRunner._execute

    def execute_at_site(*args: Any) -> Any:
        nonlocal is_at_site
        is_at_site = True
        try:
            return execute(*args)
        finally:
            is_at_site = False

    monkeypatch.setattr(SiteRunner, "_execute", execute_at_site)
    counted(PlainSteps, "step")
    counted(TrainingCheckpoint, "save_if_due")
    Case(REGISTRY, name, dict(QUICK.get(name, {}))).run(tmp_path, rounds=2, checkpoint_minutes=0)
    assert calls["step"] > 0
    assert (calls["save_if_due"] == calls["step"]) == (name not in names_in_guide())


# ---- kills at random moments

KILLS = 3
"""Number of kills of a run."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "ditto" else pytest.mark.slow) for name in NAMES]
)
def test_killed_at_random_batches_within_steps(name: str, tmp_path: Path) -> None:
    """SIGKILL before random batches. Every third batch has a checkpoint, so kills lose up to two batches."""
    case, moments = Case(REGISTRY, name, dict(QUICK.get(name, {}))), random.Random(name)
    step, save = PlainSteps.step, TrainingCheckpoint.save_if_due

    def save_every_third(checkpoint: TrainingCheckpoint, position: TrainingPosition, *loss: Any) -> None:
        if position.number % 3 == 0:
            save(checkpoint, position, *loss)

    def run_until_killed(batches: int) -> None:
        count = 0

        def step_or_die(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count == batches:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*args)

        PlainSteps.step, TrainingCheckpoint.save_if_due = step_or_die, save_every_third  # type: ignore[method-assign]
        case.run(tmp_path / "killed", rounds=2, steps=10, checkpoint_minutes=0)

    whole = case.run(tmp_path / "whole", rounds=2, steps=10)
    ends = [Child(partial(run_until_killed, moments.randint(2, 16))).end() for _ in range(KILLS)]
    assert ends == ["killed"] * KILLS
    result = case.run(tmp_path / "killed", rounds=2, steps=10, checkpoint_minutes=0)
    same(bits(result), bits(whole), "killed at random batches")
    assert scores(tmp_path / "killed") == scores(tmp_path / "whole")
