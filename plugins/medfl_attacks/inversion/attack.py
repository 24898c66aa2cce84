"""Inversion attacks on a finished run: reconstruct training images from the information that the run reveals.

An opened run is a finished run with everything that an attack needs, such as data, method and models. An item is the
information that one attack starts from, such as an image as it was sent. Total variation measures how much neighbouring
pixels differ; its weight makes reconstructions smooth.

There are three targets. ``shared``: images that the sites sent each other, as in methods with a feature generator.
Every participant has these images and the generator that made them (He et al., ACSAC 2019). ``update``: the update that
a site would send for one step on a small batch, starting from the run's last model. This is a worst case, because the
update of a round averages many images (Geiping et al., NeurIPS 2020). ``model``: the global model alone (Fredrikson et
al., CCS 2015).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from medfl.data.pooled import PooledDataset, labels_of
from medfl.errors import DataError, SettingsError, check_choice
from medfl.task import ImageScale
from medfl.types import Dataset
from medfl.utils.rng import make_generator
from medfl_attacks.attack_files import InversionFile, InversionResult, results_path
from medfl_attacks.inversion import targets
from medfl_attacks.inversion.decoder import FIXED_POINT_STEPS
from medfl_attacks.inversion.gradient import DEFAULT_SMOOTHNESS
from medfl_attacks.inversion.inversion_page import write_inversion_page
from medfl_attacks.inversion.reconstructions import InversionFindings, InversionTarget
from medfl_attacks.open_run import OpenedRun
from medfl_report.rasters import balanced_indices

ATTACK_NAME = "inversion"
"""Name of this kind of attack; it selects the results file (a key of `medfl_attacks.attack_files.ATTACK_FILES`)."""

TargetOption = Literal["all", "shared", "update", "model"]
"""Value of the option `target`: one target, or all that the run allows."""

MAX_AUXILIARY_VALUES = 1 << 25
"""Largest number of values in the attacker's auxiliary images (128 MB of float32)."""


@dataclass(frozen=True)
class InversionOptions:
    """Options of the inversion attack: targets and effort.

    Attributes:
        target: ``shared``, ``update``, ``model``, or ``all`` targets that the run allows.
        images: Number of attacked images, spread as evenly over the classes as possible, >= 1. Attacks on updates take
            long, so at most four updates are attacked. An attack on a model reconstructs each class instead.
        batch: Number of images in the batch of an attacked update, >= 1.
        steps: Steps of each optimization and of the training of a decoder, >= 1.
        smoothness: Weight of the total variation, >= 0. For images that were sent with noise it is at least
            `smoothness_for` the noise.
        seed: Seed of the selection of images, the starting points and the noise of the attack.
    """

    target: TargetOption = "all"
    images: int = 16
    batch: int = 1
    steps: int = 300
    smoothness: float = DEFAULT_SMOOTHNESS
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("target of an inversion attack", self.target, get_args(TargetOption))
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
        opened: The opened run.
        folder: Folder of the run, in which the files are written.
        options: Options of the attack; None means the defaults.
        show: Callback that receives the number of finished steps and the total.

    Returns:
        A result for each target, attack and item.

    Raises:
        SettingsError: If the run does not allow the requested target, or the task has no image scale.
        DataError: If no site has training images.
        StoreError: If the files can't be written.
    """
    options = options or InversionOptions()
    findings = attack_targets(opened, options, show)
    results = [result for target in findings for result in target.results()]
    notes = tuple(note for result in findings for note in result.notes)
    path = results_path(folder, ATTACK_NAME)
    InversionFile(options=dataclasses.asdict(options), results=tuple(results), notes=notes).write(path)
    write_inversion_page(path.with_suffix(".html"), opened.name, opened.settings.seed, findings)
    return results


def attack_targets(
    opened: OpenedRun, options: InversionOptions, show: Callable[[int, int], None] = lambda done, total: None
) -> list[InversionFindings]:
    """Run the attacks and return their findings for each target.

    Nothing is written.

    Args:
        opened: The opened run.
        options: Options of the attack.
        show: Callback that receives the number of finished steps and the total.

    Raises:
        SettingsError: If the run does not allow the requested target, or the task has no image scale.
        DataError: If no site has training images.
    """
    chosen = _targets_to_attack(opened, options.target)
    setup = _prepare_setup(opened, options)
    update_steps = options.steps * targets.plan_updates(len(setup.truth), options.batch)[0]
    costs = {"shared": 4 * options.steps + 2 * FIXED_POINT_STEPS, "update": update_steps, "model": options.steps}
    total, done = sum(costs[target] for target in chosen), 0

    def on_step() -> None:
        nonlocal done
        done += 1
        show(min(done, total), total)

    setup = dataclasses.replace(setup, on_step=on_step)
    attacks = {
        "shared": targets.attack_shared_images,
        "update": targets.attack_updates,
        "model": targets.attack_model,
    }
    results = [attacks[target](opened, setup) for target in chosen]
    show(total, total)
    return results


def _targets_to_attack(opened: OpenedRun, target: TargetOption) -> list[InversionTarget]:
    """Return the targets to attack.

    Raise SettingsError if the run doesn't allow the requested target, or allows none.
    """
    errors_by_target = {target: target_error(opened, target) for target in get_args(InversionTarget)}
    if target != "all" and (error := errors_by_target[target]) is not None:
        raise error
    allowed: list[InversionTarget] = [
        target for target in get_args(InversionTarget) if errors_by_target[target] is None
    ]
    if not allowed:
        raise SettingsError(
            "no_attack_target",
            "This run has no target for an inversion attack. " + " ".join(map(str, errors_by_target.values())),
            method=opened.name,
        )
    return allowed if target == "all" else [target]


def target_error(opened: OpenedRun, target: InversionTarget) -> SettingsError | None:
    """Return the error that explains why a run does not allow a target, or None if it does.

    Args:
        opened: The opened run.
        target: ``shared``, ``update`` or ``model``.
    """
    method, fields = opened.method, {"target": target, "method": opened.name}
    if target == "shared":
        released = opened.released()
        if released is not None and len(released.images):
            return None
        return SettingsError(
            "no_released_images",
            f"The sites of this run shared no images: method '{opened.name}' sends no images, or the run ended before "
            "any image was sent. Attack a run of a method that shares images (fedfed, fedtpf), or choose another "
            "target.",
            **fields,
        )
    if opened.task.scale is not None and opened.task.scale.table_features:
        return SettingsError(
            "table_features_not_supported",
            "The attack reconstructs images, and the cases of this run are images with features of a table. Attack a "
            "run on images only.",
            **fields,
        )
    if opened.global_model() is None:
        return SettingsError(
            "no_global_model",
            f"Method '{opened.name}' has no global model, which an attack on target '{target}' needs. Choose another "
            "target or method.",
            **fields,
        )
    kinds = set(method.sends.values())
    if target == "update" and ("pooled_data" in method.needs or not kinds & {"update", "weights"}):
        return SettingsError(
            "no_site_updates",
            f"The sites of this run send no updates with method '{opened.name}'. Choose another target.",
            **fields,
        )
    return None


def _prepare_setup(opened: OpenedRun, options: InversionOptions) -> targets.InversionSetup:
    """Select the images under attack and collect the attacker's knowledge and settings."""
    scale = opened.task.scale
    if scale is None:
        raise SettingsError(
            "missing_scale",
            "expected a task with the scale of its images, because attacks compare images in [0, 1]; this task has "
            "none. Set the task's `scale`.",
        )
    training = PooledDataset([opened.sites[name].train for name in sorted(opened.sites)])
    if not len(training):
        raise DataError(
            "no_images",
            "expected at least one site with training images, got none. Partition the data with training images.",
            split="train",
        )
    order = torch.randperm(len(training), generator=make_generator(options.seed, ATTACK_NAME, "images"))
    rows = order[balanced_indices(labels_of(training)[order].tolist(), options.images)]
    rows = rows[labels_of(training)[rows].argsort(stable=True)]
    return targets.InversionSetup(
        truth=targets.raw_images(training, rows, scale).to(opened.task.device),
        labels=labels_of(training)[rows].to(opened.task.device),
        auxiliary=_auxiliary_images(opened, scale, options.seed),
        training=training,
        batch=options.batch,
        steps=options.steps,
        smoothness=options.smoothness,
        seed=options.seed,
    )


def _auxiliary_images(opened: OpenedRun, scale: ImageScale, seed: int) -> torch.Tensor:
    """Return the attacker's auxiliary images, (N, C, *spatial), N >= 0.

    The sites' validation images serve as auxiliary images: an attacker could have similar ones from another source.
    """
    parts: list[Dataset] = [opened.sites[name].val for name in sorted(opened.sites) if len(opened.sites[name].val)]
    if not parts:
        return torch.empty(0, *scale.shape, device=opened.task.device)
    validation = PooledDataset(parts)
    most = max(1, MAX_AUXILIARY_VALUES // math.prod(scale.shape))
    rows = torch.randperm(len(validation), generator=make_generator(seed, ATTACK_NAME, "own"))[:most]
    return targets.raw_images(validation, rows, scale).to(opened.task.device)
