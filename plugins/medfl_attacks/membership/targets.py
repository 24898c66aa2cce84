"""Models and images of a membership attack, and the images that the attacker trains a shadow network on.

Members are training images of the attacked model, non-members are test images. A shadow network is a network that the
attacker trains to learn how outputs for training images differ. A kept round is a round whose global model the run
saved (setting ``keep_rounds``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from medfl.contract import Model
from medfl.data.pooled import PooledDataset, TensorData, labels_of
from medfl.errors import DataError, SettingsError
from medfl.privacy.released import normalise_parts
from medfl.types import Dataset
from medfl_attacks.membership.shadow import check_shadow_set, match_classes
from medfl_attacks.open_run import OpenedRun

logger = logging.getLogger(__name__)

TargetKind = Literal["global", "sites"]
"""Kind of attacked models: the server's model (``global``) or the models of the sites (``sites``)."""
ShadowSet = Literal["shared", "validation", "none"]
"""Kind of images that the shadow network is trained on.

* ``shared``: images that the sites sent each other in the run;
* ``validation``: the sites' validation images;
* ``none``: no shadow network is trained.
"""

ALL_KEPT_ROUNDS = "kept"
"""Value of the option `round` that selects all rounds whose models the run kept."""


@dataclass(frozen=True)
class MembershipTarget:
    """A model under attack with its members and non-members.

    Attributes:
        name: ``global`` or ``sites``.
        site: Name of the model's site; empty for the server's model.
        model: Network that maps normalised images to logits.
        network: Name of the network in the task.
        members: Training images of the model.
        others: Test images, which are the non-members.
        round: Round after which the server kept the model; None for the last model.
    """

    name: str
    site: str
    model: nn.Module
    network: str
    members: Dataset
    others: Dataset
    round: int | None = None


# ---- what is attacked


def find_targets(
    run: OpenedRun, kind: TargetKind | None = None, round_: int | str | None = None
) -> list[MembershipTarget]:
    """Return the models under attack with their members and non-members.

    Args:
        run: The run.
        kind: Kind of models; None means the server's model if the method has one, else the models of the sites.
        round_: Round of the kept global model, or `ALL_KEPT_ROUNDS`; None means the last model.

    Raises:
        SettingsError: If the run has no global model, or kept no models, and the options request them.
        DataError: If a class has no members or no test images in all targets.
        StoreError: If the model of the round was not kept.
    """
    if round_ is not None and kind == "sites":
        raise SettingsError(
            "incompatible_settings",
            "Only the server's models of earlier rounds are kept, not those of the sites: leave out --round or "
            "--targets sites.",
            settings=("round", "targets"),
        )
    models = _global_models(run, round_) if kind != "sites" else {}
    if not models and kind == "global":
        raise SettingsError(
            "no_global_model",
            f"Method '{run.name}' has no global model: every site has its own. Use --targets sites.",
            method=run.name,
        )
    parts = [data for _, data in sorted(run.sites.items())]
    members = pool_datasets([data.train for data in parts])
    others = pool_datasets([data.test for data in parts] + ([] if run.server_test is None else [run.server_test]))
    targets = [
        MembershipTarget("global", "", run.predictor(model, f"round {kept}"), model.network, members, others, kept)
        for kept, model in models.items()
    ] or [
        MembershipTarget(
            "sites", name, run.predictor(model, name), model.network, run.sites[name].train, run.sites[name].test
        )
        for name, model in run.site_models().items()
    ]
    enough = [target for target in targets if _count_matched_pairs(target) >= 2]
    if left := [target.site for target in targets if target.site and target not in enough]:
        logger.warning(
            "Sites with too few training and test images of the same classes are left out: %s.", ", ".join(left)
        )
    if not enough:
        raise DataError(
            "too_few_images",
            f"expected at least 2 training images and 2 test images of the same classes in the run in '{run.folder}', "
            "got fewer: an attack needs members and non-members. Partition the data with test images.",
            minimum=2,
            path=run.folder,
        )
    return enough


def _global_models(run: OpenedRun, round_: int | str | None) -> dict[int | None, Model]:
    """Return the selected global models by round; empty if the method has no global model.

    The key None stands for the last model.
    """
    if round_ is None:
        model = run.global_model()
        return {} if model is None else {None: model}
    rounds = run.viewer.kept_rounds() if round_ == ALL_KEPT_ROUNDS else [int(round_)]
    if not rounds:
        raise SettingsError(
            "no_kept_rounds",
            f"The run in '{run.folder}' kept no model of an earlier round. Run again with the setting 'keep_rounds', "
            "or leave out --round.",
            path=run.folder,
        )
    models = {number: run.global_model(number) for number in rounds}
    return {number: model for number, model in models.items() if model is not None}


def _count_matched_pairs(target: MembershipTarget) -> int:
    """Return the number of members that have a non-member of the same class."""
    rows, _ = match_classes(labels_of(target.members), labels_of(target.others), torch.Generator().manual_seed(0))
    return len(rows)


def pool_datasets(parts: Sequence[Dataset]) -> Dataset:
    """Concatenate data sets; empty data sets are skipped."""
    nonempty = [part for part in parts if len(part)]
    return PooledDataset(nonempty) if nonempty else TensorData(torch.empty(0), torch.empty(0, dtype=torch.int64))


# ---- what the attacker knows


def choose_shadow_set(run: OpenedRun, kind: ShadowSet | None = None) -> tuple[ShadowSet, Dataset | None]:
    """Choose the images that the shadow network is trained on.

    By default these are the images that the run released, as its networks received them (the copies of an image are
    averaged with their precisions as weights), else the sites' validation images. If these are too few, no shadow
    network is trained, and a warning is logged.

    Args:
        run: The run.
        kind: ``shared``, ``validation`` or ``none``; None means the default above.

    Returns:
        The kind of the images, and the images, or None for the kind ``none``.

    Raises:
        SettingsError: If the run has no images of the requested kind, or too few.
    """
    if kind == "none":
        return "none", None
    released = run.released() if kind == "shared" or (kind is None and run.has_state) else None
    if released is not None and run.task.scale is not None:
        seen = normalise_parts(released.images, released.releases[0], run.task.scale)
        data = TensorData(seen, released.labels.to(torch.int64))
        check_shadow_set(data, "images that the run's sites shared")
        return "shared", data
    if kind == "shared":
        raise SettingsError(
            "no_released_images",
            f"The run in '{run.folder}' (method '{run.name}') released no images to train a shadow network on. Use "
            "--shadow validation.",
            path=run.folder,
            method=run.name,
        )
    validation = pool_datasets([part.val for _, part in sorted(run.sites.items())])
    try:
        check_shadow_set(validation, "the sites' validation images")
    except SettingsError as error:
        if kind is not None:
            raise
        logger.warning("No shadow network is trained; only the loss threshold attack is run: %s", error)
        return "none", None
    return "validation", validation
