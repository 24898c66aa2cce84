"""Model inversion: what images an attacker can make of what a run gives away.

Three things are attacked. ``shared``: images of some kind that sites sent each other; whoever took part has them, and
the generator that made them (He et al., ACSAC 2019). ``update``: what a site would send for a batch of few images with
the run's last model, in one step: a worst case, for a round has many (Geiping et al., NeurIPS 2020). ``model``: the
global model alone (Fredrikson et al., CCS 2015).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from medfl.data.pooled import Pooled, labels_of
from medfl.errors import DataError, SettingsError, check_choice
from medfl.task import Scale
from medfl.types import Dataset
from medfl.utils.rng import make_generator
from medfl_attacks.attack_files import InversionFile, InversionResult, results_path
from medfl_attacks.inversion import targets
from medfl_attacks.inversion.decoder import STEPS
from medfl_attacks.inversion.gradient import SMOOTHNESS
from medfl_attacks.inversion.page import write_page
from medfl_attacks.open_run import OpenedRun
from medfl_attacks.results import Attacked, Target
from medfl_report.rasters import balanced

NAME = "inversion"

Against = Literal["all", "shared", "update", "model"]

AUXILIARY_NUMBERS = 1 << 25
"""Numbers in the attacker's own images at most (128 MB)."""


@dataclass(frozen=True)
class InversionOptions:
    """What is attacked, and how hard.

    Attributes:
        against: ``shared``, ``update``, ``model``, or ``all`` that the run allows.
        images: Images that are attacked, as evenly over the classes as can be, >= 1; of updates, which take long,
            those of four at most. Against a model its classes are attacked.
        batch: Images in the batch whose update is attacked, >= 1.
        steps: Steps of each gradient descent and of the training of a decoder, >= 1.
        smoothness: Weight of the total variation, >= 0; against noised items it is at least what suits the noise.
        seed: Of the choice of images, the starts and the noise that the attack draws.
    """

    against: Against = "all"
    images: int = 16
    batch: int = 1
    steps: int = 300
    smoothness: float = SMOOTHNESS
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("target of an inversion attack", self.against, get_args(Against))
        for name, least in (("images", 1), ("batch", 1), ("steps", 1), ("smoothness", 0), ("seed", 0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise SettingsError(
                    "setting_out_of_range",
                    f"expected {name} >= {least} and finite, got {value}.",
                    setting=name,
                    minimum=least,
                    found=value,
                )


def run_inversion(
    opened: OpenedRun,
    folder: Path,
    options: InversionOptions | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> list[InversionResult]:
    """Attack a run and write ``attacks/inversion.json`` and ``attacks/inversion.html`` in its folder.

    Args:
        opened: The run.
        folder: Its folder.
        options: What to attack.
        show: Called with the steps that are done, and all.

    Returns:
        The results.

    Raises:
        SettingsError: If the run does not allow what is to be attacked, or the task does not know its images' scale.
        DataError: If no site has training images.
        StoreError: If the files can't be written.
    """
    options = options or InversionOptions()
    attacked = attack(opened, options, show)
    results = [result for target in attacked for result in target.results()]
    notes = tuple(note for result in attacked for note in result.notes)
    path = results_path(folder, NAME)
    InversionFile(options=dataclasses.asdict(options), results=tuple(results), notes=notes).write(path)
    write_page(path.with_suffix(".html"), opened.name, opened.settings.seed, attacked)
    return results


def attack(
    opened: OpenedRun, options: InversionOptions, show: Callable[[int, int], None] = lambda done, total: None
) -> list[Attacked]:
    """What the attacks find, target by target; arguments and errors as in `run_inversion`."""
    chosen = _chosen(opened, options.against)
    knowledge = _knowledge(opened, options)
    update_steps = options.steps * targets.updates(len(knowledge.truth), options.batch)[0]
    costs = {"shared": 4 * options.steps + 2 * STEPS, "update": update_steps, "model": options.steps}
    total, done = sum(costs[target] for target in chosen), 0

    def tick() -> None:
        nonlocal done
        done += 1
        show(min(done, total), total)

    knowledge = dataclasses.replace(knowledge, tick=tick)
    attacks = {
        "shared": targets.against_shared,
        "update": targets.against_update,
        "model": targets.against_model,
    }
    results = [attacks[target](opened, knowledge) for target in chosen]
    show(total, total)
    return results


def _chosen(opened: OpenedRun, against: Against) -> list[Target]:
    """What is attacked; a target that was asked for by name must be there."""
    refusals = {target: refusal(opened, target) for target in get_args(Target)}
    if against != "all" and (error := refusals[against]) is not None:
        raise error
    allowed: list[Target] = [target for target in get_args(Target) if refusals[target] is None]
    if not allowed:
        raise SettingsError(
            "no_attack_target",
            "There is nothing to invert in this run. " + " ".join(map(str, refusals.values())),
            method=opened.name,
        )
    return allowed if against == "all" else [against]


def refusal(opened: OpenedRun, target: Target) -> SettingsError | None:
    """Return the error that says why a run does not allow an attack, and what to do; None if it does."""
    method, fields = opened.method, {"target": target, "method": opened.name}
    if target == "shared":
        released = opened.released()
        if released is not None and len(released.images):
            return None
        return SettingsError(
            "no_released_images",
            f"The sites of this run have shared no images: method '{opened.name}' sends none, or the run ended before "
            "any was sent. Attack a run of a method that shares images (fedfed, fedtpf), or choose another target.",
            **fields,
        )
    if opened.global_model() is None:
        return SettingsError(
            "no_global_model",
            f"Method '{opened.name}' has no global model, from which an attack on target '{target}' starts. Choose "
            "another target or method.",
            **fields,
        )
    kinds = set(method.sends.values())
    if target == "update" and ("pooled_data" in method.needs or not kinds & {"update", "weights"}):
        return SettingsError(
            "no_site_updates",
            f"The sites of this run send no updates: method '{opened.name}' needs none. Choose another target.",
            **fields,
        )
    return None


def _knowledge(opened: OpenedRun, options: InversionOptions) -> targets.Knowledge:
    """The images under attack, and what the attacker has beside what was given away."""
    scale = opened.task.scale
    if scale is None:
        raise SettingsError(
            "missing_scale",
            "expected a task that knows the scale of its images, for attacks compare images in [0, 1]; this one does "
            "not. Give the task a `scale`.",
        )
    training = Pooled([opened.sites[name].train for name in sorted(opened.sites)])
    if not len(training):
        raise DataError(
            "no_images", "expected sites with training images to attack, got none. Give sites data.", split="train"
        )
    order = torch.randperm(len(training), generator=make_generator(options.seed, NAME, "images"))
    rows = order[balanced(labels_of(training)[order].tolist(), options.images)]
    rows = rows[labels_of(training)[rows].argsort(stable=True)]
    return targets.Knowledge(
        truth=targets.raw_images(training, rows, scale).to(opened.task.device),
        labels=labels_of(training)[rows].to(opened.task.device),
        own=_own_images(opened, scale, options.seed),
        training=training,
        batch=options.batch,
        steps=options.steps,
        smoothness=options.smoothness,
        seed=options.seed,
    )


def _own_images(opened: OpenedRun, scale: Scale, seed: int) -> torch.Tensor:
    """The attacker's own images, (N, C, *spatial): the sites' validation images stand for them. N may be 0."""
    parts: list[Dataset] = [opened.sites[name].val for name in sorted(opened.sites) if len(opened.sites[name].val)]
    if not parts:
        return torch.empty(0, *scale.shape, device=opened.task.device)
    validation = Pooled(parts)
    most = max(1, AUXILIARY_NUMBERS // math.prod(scale.shape))
    rows = torch.randperm(len(validation), generator=make_generator(seed, NAME, "own"))[:most]
    return targets.raw_images(validation, rows, scale).to(opened.task.device)
