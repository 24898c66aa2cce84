"""What a membership attack is made on, with which images, and what the attacker learns from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from medfl.contract import Model
from medfl.data.pooled import Pooled, TensorData, labels_of
from medfl.errors import DataError, SettingsError
from medfl.privacy.released import as_seen
from medfl.types import Dataset
from medfl_attacks.membership.shadow import check_shadow_set, matched
from medfl_attacks.open_run import OpenedRun

logger = logging.getLogger(__name__)

Targets = Literal["global", "sites"]
ShadowSet = Literal["shared", "validation", "none"]

KEPT = "kept"
"""In place of a round: all rounds whose models the run kept."""


@dataclass(frozen=True)
class Target:
    """A model under attack.

    Attributes:
        name: ``global`` or ``sites``.
        site: Whose model it is; empty for the server's.
        model: Images as networks see them in, logits out.
        network: Name of its network in the task.
        members: What it was trained on.
        others: Test images.
        round: After which the model was kept; None for the last one.
    """

    name: str
    site: str
    model: nn.Module
    network: str
    members: Dataset
    others: Dataset
    round: int | None = None


# ---- what is attacked


def find_targets(run: OpenedRun, kind: Targets | None = None, round_: int | str | None = None) -> list[Target]:
    """The models under attack, with the images that they are judged on.

    Args:
        run: The run.
        kind: Whose models; None means the server's where there is one.
        round_: Of the server's models that were kept, which one, or `KEPT` for all; None means the last model.

    Raises:
        SettingsError: If the run has no global model and that was asked for.
        DataError: If there are no members or no test images.
        StoreError: If the model of a round was not kept.
    """
    if round_ is not None and kind == "sites":
        raise SettingsError(
            "incompatible_settings",
            "Of rounds the server's models are kept, no site's: leave out --round or --targets sites.",
            settings=("round", "targets"),
        )
    models = _global_models(run, round_) if kind != "sites" else {}
    if not models and kind == "global":
        raise SettingsError(
            "no_global_model",
            f"method '{run.name}' has no global model: every site has its own. Use --targets sites.",
            method=run.name,
        )
    parts = [data for _, data in sorted(run.sites.items())]
    members = pooled([data.train for data in parts])
    others = pooled([data.test for data in parts] + ([] if run.global_test is None else [run.global_test]))
    targets = [
        Target("global", "", run.predictor(model, f"round {kept}"), model.network, members, others, kept)
        for kept, model in models.items()
    ] or [
        Target("sites", name, run.predictor(model, name), model.network, run.sites[name].train, run.sites[name].test)
        for name, model in run.site_models().items()
    ]
    enough = [target for target in targets if _pairs(target) >= 2]
    if left := [target.site for target in targets if target.site and target not in enough]:
        logger.warning("Left out, too few training and test images of the same classes: %s.", ", ".join(left))
    if not enough:
        raise DataError(
            "too_few_images",
            f"expected at least 2 training images and 2 test images of the same classes in the run in '{run.folder}', "
            "got fewer: there is nobody to tell members from. Partition the data with test images.",
            minimum=2,
            path=run.folder,
        )
    return enough


def _global_models(run: OpenedRun, round_: int | str | None) -> dict[int | None, Model]:
    """Round to the server's model, None standing for the last one; empty for a method without one."""
    if round_ is None:
        model = run.global_model()
        return {} if model is None else {None: model}
    rounds = run.viewer.kept_rounds() if round_ == KEPT else [int(round_)]
    if not rounds:
        raise SettingsError(
            "no_kept_rounds",
            f"The run in '{run.folder}' kept no model of an earlier round. Run it with the setting 'keep_rounds', or "
            "leave out --round.",
            path=run.folder,
        )
    models = {number: run.global_model(number) for number in rounds}
    return {number: model for number, model in models.items() if model is not None}


def _pairs(target: Target) -> int:
    rows, _ = matched(labels_of(target.members), labels_of(target.others), torch.Generator().manual_seed(0))
    return len(rows)


def pooled(parts: Sequence[Dataset]) -> Dataset:
    """Several data sets as one."""
    held = [part for part in parts if len(part)]
    return Pooled(held) if held else TensorData(torch.empty(0), torch.empty(0, dtype=torch.int64))


# ---- what the attacker knows


def shadow_set(run: OpenedRun, kind: ShadowSet | None = None) -> tuple[ShadowSet, Dataset | None]:
    """The images of the shadow network, and what they are.

    Without a wish they are what the run released, as its networks saw it (of several copies of an image, their mean by
    precision), else the validation images; if these are too few there is no shadow network, and a warning says so.

    Raises:
        SettingsError: If there are none of the kind that is asked for, or too few.
    """
    if kind == "none":
        return "none", None
    released = run.released() if kind == "shared" or (kind is None and run.has_state) else None
    if released is not None and run.task.scale is not None:
        seen = as_seen(released.images, released.releases[0], run.task.scale)
        data = TensorData(seen, released.labels.to(torch.int64))
        check_shadow_set(data, "images that the run's sites shared")
        return "shared", data
    if kind == "shared":
        raise SettingsError(
            "no_released_images",
            f"the run in '{run.folder}' (method '{run.name}') has released no images that a shadow network could be "
            "trained on. Use --shadow validation.",
            path=run.folder,
            method=run.name,
        )
    validation = pooled([part.val for _, part in sorted(run.sites.items())])
    try:
        check_shadow_set(validation, "the sites' validation images")
    except SettingsError as error:
        if kind is not None:
            raise
        logger.warning("No shadow network, only the threshold of the loss: %s", error)
        return "none", None
    return "validation", validation
