"""Membership inference: can an attacker who has a trained model tell which images it was trained on?

Members are training images of the sites, as they are in the files; the others are test images; there are equally many
of each class in both groups. Two attacks on the same images:

* ``loss_threshold``: the smaller the loss, the surer a member. The threshold is the mean loss of the members, which its
  authors let the attacker know (Yeom et al., "Privacy risk in machine learning", CSF 2018).
* ``shadow_topk``: `medfl.attacks.shadow`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from medfl import streams
from medfl.attack_results import read_results, write_results
from medfl.attacks.membership_metrics import Scores, measure
from medfl.attacks.membership_page import write_page
from medfl.attacks.opened import OpenedRun
from medfl.attacks.shadow import Chosen, ShadowAttack, check_shadow_set, epochs_of, matched, train_attack
from medfl.contract import Dataset, Meta
from medfl.data.in_memory import TensorData
from medfl.data.pooled import Pooled
from medfl.errors import DataError, SettingsError
from medfl.evaluation import logits
from medfl.released import as_seen

NAME = "membership"

logger = logging.getLogger(__name__)

Targets = Literal["global", "sites"]
ShadowSet = Literal["shared", "validation", "none"]


@dataclass(frozen=True)
class MembershipOptions:
    """What is attacked, and with what knowledge.

    Attributes:
        targets: ``global``, the server's model, against the images of all sites; ``sites``, each site's own model,
            against its own images. None means the former where there is a global model.
        shadow: Images that the attacker trains the shadow network on: ``shared``, those that the run released;
            ``validation``, the sites' validation images; ``none``, no such attack. None means the first that there is.
        images: Largest number of members, and of others; None means as many as there are.
        shadow_epochs: Passes of the shadow network over its images; None means as many as the run has.
        seed: Of the images that are drawn and of the shadow network.
    """

    targets: Targets | None = None
    shadow: ShadowSet | None = None
    images: int | None = None
    shadow_epochs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("images", 2), ("shadow_epochs", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingsError(f"expected {name} >= {least}, got {value}.")


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
    """

    name: str
    site: str
    model: nn.Module
    network: str
    members: Dataset
    others: Dataset


def run_membership(
    run: OpenedRun,
    options: MembershipOptions | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Meta]:
    """Attack a run, and write ``membership.json`` and ``membership.html``.

    Args:
        run: The run; only its folder ``attacks`` is written.
        options: See there.
        out: Folder to write to; None means ``attacks`` in the run folder.
        progress: Called with the training steps of shadow networks that are done, and with all of them.

    Returns:
        The results as in the JSON.

    Raises:
        SettingsError: If the run lacks what an option asks for.
        DataError: If there are too few images.
        StoreError: If something can't be read or written.
    """
    asked = options or MembershipOptions()
    found = find_targets(run, asked.targets)
    source, data = shadow_set(run, asked.shadow)
    epochs = asked.shadow_epochs or epochs_of(run.settings, _mean_size(run))
    networks = sorted({target.network for target in found}) if data is not None else []
    attacks: dict[str, ShadowAttack] = {}
    steps, done = len(networks) * epochs * _batches(run, data), 0

    def stepped() -> None:
        nonlocal done
        done += 1
        progress(done, max(steps, done))

    for network in networks:
        assert data is not None
        clip = getattr(run.method, "gradient_clip", None)
        attacks[network] = train_attack(
            run.task, run.settings, data, epochs, asked.seed, network, clip, after_batch=stepped
        )
    results = [row for target in found for row in attack(run, target, attacks.get(target.network), asked)]
    used = vars(asked) | {"targets": found[0].name, "shadow": source, "shadow_epochs": epochs if networks else None}
    path = write_results(
        run.folder,
        NAME,
        used | {"device": run.task.device},
        results,
        out,
        of={"method": run.name, "seed": run.settings.seed, "rounds": run.settings.rounds},
        classes=run.task.num_classes,
        shadow=[{"network": network} | one.facts() for network, one in attacks.items()],
    )
    write_page(read_results(run.folder, NAME, out) or {}, path.with_suffix(".html"))
    return results


# ---- what is attacked


def find_targets(run: OpenedRun, asked: Targets | None = None) -> list[Target]:
    """The models under attack, with the images that they are judged on.

    Raises:
        SettingsError: If the run has no global model and that was asked for.
        DataError: If there are no members or no test images.
    """
    model = run.global_model() if asked != "sites" else None
    if model is None and asked == "global":
        raise SettingsError(f"method '{run.name}' has no global model: every site has its own. Use --targets sites.")
    if model is not None:
        parts = [data for _, data in sorted(run.sites.items())]
        members = pooled([data.train for data in parts])
        others = pooled([data.test for data in parts] + ([] if run.global_test is None else [run.global_test]))
        found = [Target("global", "", run.predictor(model), model.network, members, others)]
    else:
        found = [
            Target(
                "sites", name, run.predictor(model, name), model.network, run.sites[name].train, run.sites[name].test
            )
            for name, model in run.site_models().items()
        ]
    enough = [target for target in found if _pairs(target) >= 2]
    if left := [target.site for target in found if target.site and target not in enough]:
        logger.warning("Left out, too few training and test images of the same classes: %s.", ", ".join(left))
    if not enough:
        raise DataError(
            f"expected at least 2 training images and 2 test images of the same classes in the run in '{run.folder}', "
            "got fewer: there is nobody to tell members from. Partition the data with test images."
        )
    return enough


def _pairs(target: Target) -> int:
    rows, _ = matched(target.members.labels, target.others.labels, torch.Generator().manual_seed(0))
    return len(rows)


def pooled(parts: Sequence[Dataset]) -> Dataset:
    """Several data sets as one."""
    held = [part for part in parts if len(part)]
    return Pooled(held) if held else TensorData(torch.empty(0), torch.empty(0, dtype=torch.int64))


# ---- what the attacker knows


def shadow_set(run: OpenedRun, asked: ShadowSet | None = None) -> tuple[ShadowSet, Dataset | None]:
    """The images of the shadow network, and what they are.

    Without a wish they are what the run released, else the validation images; if these are too few there is no shadow
    network, and a warning says so.

    Raises:
        SettingsError: If there are none of the kind that is asked for, or too few.
    """
    if asked == "none":
        return "none", None
    released = run.released() if asked == "shared" or (asked is None and run.has_state) else None
    if released is not None and run.task.scale is not None:
        seen = as_seen(released.images, released.releases[0], run.task.scale)
        data = TensorData(seen, released.labels.to(torch.int64))
        check_shadow_set(data, "images that the run's sites shared")
        return "shared", data
    if asked == "shared":
        raise SettingsError(
            f"the run in '{run.folder}' (method '{run.name}') has released no images that a shadow network could be "
            "trained on. Use --shadow validation."
        )
    found = pooled([part.val for _, part in sorted(run.sites.items())])
    try:
        check_shadow_set(found, "the sites' validation images")
    except SettingsError as error:
        if asked is not None:
            raise
        logger.warning("No shadow network, only the threshold of the loss: %s", error)
        return "none", None
    return "validation", found


def _mean_size(run: OpenedRun) -> float:
    sizes = [len(part.train) for part in run.sites.values() if len(part.train)]
    return sum(sizes) / max(len(sizes), 1)


def _batches(run: OpenedRun, data: Dataset | None) -> int:
    """Steps of an epoch over half of the shadow set, roughly."""
    return 0 if data is None else -(-len(data) // (2 * run.settings.batch_size))


# ---- the attacks


def attack(run: OpenedRun, target: Target, shadow: ShadowAttack | None, options: MembershipOptions) -> list[Meta]:
    """Both attacks on one model, on the same images.

    Args:
        run: For settings and device.
        target: The model.
        shadow: The trained attack; None leaves it out.
        options: How many images, and the seed.

    Returns:
        A row for each attack, as in the JSON.
    """
    stream = streams.generator(options.seed, "members", target.site)
    rows = matched(target.members.labels, target.others.labels, stream, options.images)
    groups = [Chosen(data, chosen) for data, chosen in zip((target.members, target.others), rows, strict=True)]
    answers = [logits(target.model, group, run.settings, run.task.device) for group in groups]
    if not all(bool(found.isfinite().all()) for found in answers):
        whose = f"the model of {target.site}" if target.site else "the global model"
        raise DataError(
            f"expected finite outputs of {whose} of the run in '{run.folder}', got others: the run diverged. Attack "
            "one that did not."
        )
    losses = [loss_of(found, group.labels) for found, group in zip(answers, groups, strict=True)]
    rights = [
        float((found.argmax(dim=1) == group.labels).double().mean())
        for found, group in zip(answers, groups, strict=True)
    ]
    about = {"target": target.name, "accuracy_members": rights[0], "accuracy_non_members": rights[1]}
    about |= {"site": target.site} if target.site else {}
    known = [None if group.patients is None else group.patients.numpy() for group in groups]
    patients = known[0], known[1]
    threshold = Scores(-losses[0].numpy(), -losses[1].numpy(), -float(losses[0].mean()), patients)
    found = [about | {"attack": "loss_threshold"} | measure(threshold)]
    if shadow is not None:
        scores = [shadow.scores(one).numpy() for one in answers]
        found.append(about | {"attack": "shadow_topk"} | measure(Scores(scores[0], scores[1], 0.0, patients)))
    return found


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each image, (n,), float64, from logits (n, C): by the label alone, without class weights."""
    return nn.functional.cross_entropy(outputs.double(), labels, reduction="none")


def plain_line(row: Meta) -> str:
    """A result in one line."""
    target = f"model of {row['site']}" if row.get("site") else "global model"
    kind = {"loss_threshold": "loss threshold", "shadow_topk": "shadow model"}[row["attack"]]
    low, high = row["auc_interval"]
    return (
        f"{target}, {kind}: AUC {row['auc']:.3f} ({low:.3f} to {high:.3f} over {row['interval_over']}), TPR "
        f"{row['tpr_at_1_fpr']:.3f} at 1 % FPR; by its own threshold recall {row['recall']:.3f}, accuracy "
        f"{row['accuracy']:.3f}; recall {row['recall_balanced']:.3f} when half are called members; {row['members']} "
        f"members, {row['non_members']} others"
    )
