"""Membership inference on a finished run: how well can an attacker recognise the training images of a trained model?

An opened run is a finished run with everything that an attack needs, such as data, method and models. A target is one
attacked model with its members and non-members.

Members are training images of the sites, as stored, without augmentation. Non-members are test images. Both groups
contain equally many images of each class. Two attacks use the same images:

* ``loss_threshold``: an image with a smaller loss is more likely a member. The threshold is the mean loss of the
  members, which the authors assume the attacker knows (Yeom et al., "Privacy risk in machine learning", CSF 2018).
* ``shadow_topk``: the attacker trains a shadow network on other images, and learns from its outputs how the outputs for
  training images differ (`medfl_attacks.membership.shadow`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from medfl.data.pooled import labels_of
from medfl.errors import DataError, SettingsError
from medfl.training.predict import logits
from medfl.types import Dataset, Meta
from medfl.utils.rng import make_generator
from medfl_attacks.attack_files import AttackedRun, MembershipFile, MembershipResult, results_path
from medfl_attacks.membership.membership_page import ATTACK_NAMES, model_name, write_membership_page
from medfl_attacks.membership.metrics import AttackScores, measure_attack
from medfl_attacks.membership.shadow import (
    SelectedRows,
    TrainedShadowAttack,
    count_epochs,
    match_classes,
    train_shadow_attack,
)
from medfl_attacks.membership.targets import (
    ALL_KEPT_ROUNDS,
    MembershipTarget,
    ShadowSet,
    TargetKind,
    choose_shadow_set,
    find_targets,
)
from medfl_attacks.open_run import OpenedRun

ATTACK_NAME = "membership"
"""Name of this kind of attack; it selects the results file (a key of `medfl_attacks.attack_files.ATTACK_FILES`)."""


@dataclass(frozen=True)
class MembershipOptions:
    """Options of the membership attack: the attacked models and the attacker's knowledge.

    Attributes:
        targets: ``global``: the server's model, attacked with the images of all sites. ``sites``: the model of each
            site, attacked with the site's own images. None means ``global`` if the method has a global model, else
            ``sites``.
        shadow: Images that the shadow network is trained on. ``shared``: images that the run released. ``validation``:
            the sites' validation images. ``none``: no shadow-model attack. None means the first of these that is
            available.
        images: Largest number of members, and of non-members; None means all.
        shadow_epochs: Training epochs of the shadow network; None means as many as the attacked model had.
        round: Round after which the server kept the attacked global model (setting `keep_rounds`), or ``kept`` for the
            models of all kept rounds; None means the last model.
        seed: Seed of the selection of images and of the shadow network.
    """

    targets: TargetKind | None = None
    shadow: ShadowSet | None = None
    images: int | None = None
    shadow_epochs: int | None = None
    round: int | str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("images", 2), ("shadow_epochs", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise SettingsError(
                    "setting_out_of_range",
                    f"expected {name} >= {least}, got {value}.",
                    setting=name,
                    minimum=least,
                    found=value,
                )
        if self.round not in (None, ALL_KEPT_ROUNDS) and not (isinstance(self.round, int) and self.round >= 1):
            raise SettingsError(
                "setting_out_of_range",
                f"expected a round >= 1, or '{ALL_KEPT_ROUNDS}' for all rounds whose models the run kept, got "
                f"{self.round!r}.",
                setting="round",
                minimum=1,
                found=self.round,
            )


def run_membership(
    run: OpenedRun,
    options: MembershipOptions | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[MembershipResult]:
    """Attack a run, and write ``membership.json`` and ``membership.html``.

    Args:
        run: The opened run; only its folder ``attacks`` is written.
        options: Options of the attack; None means the defaults.
        out: Folder to write to; None means ``attacks`` in the run folder.
        progress: Callback that receives the number of finished training steps of the shadow networks, and the total.

    Returns:
        A result for each target and attack.

    Raises:
        SettingsError: If the run lacks images or models that an option requests.
        DataError: If there are too few images.
        StoreError: If a file can't be read or written.
    """
    options = options or MembershipOptions()
    targets = find_targets(run, options.targets, options.round)
    source, data = choose_shadow_set(run, options.shadow)
    needed = sorted({_shadow_key(run, target, options) for target in targets}) if data is not None else []
    attacks: dict[tuple[str, int], TrainedShadowAttack] = {}
    steps, done = sum(epochs for _, epochs in needed) * _steps_per_epoch(run, data), 0

    def report_step() -> None:
        nonlocal done
        done += 1
        progress(done, max(steps, done))

    for network, epochs in needed:
        assert data is not None
        clip = run.method.gradient_clip
        attacks[network, epochs] = train_shadow_attack(
            run.task, run.settings, data, epochs, options.seed, network, clip, after_batch=report_step
        )
    results = [
        row
        for target in targets
        for row in attack_model(run, target, attacks.get(_shadow_key(run, target, options)), options)
    ]
    lengths = {epochs for _, epochs in needed}
    used = vars(options) | {"targets": targets[0].name, "shadow": source}
    used |= {"shadow_epochs": lengths.pop() if len(lengths) == 1 else options.shadow_epochs}
    record = MembershipFile(
        options=used | {"device": run.task.device},
        results=tuple(results),
        run=AttackedRun(method=run.name, seed=run.settings.seed, rounds=run.settings.rounds),
        classes=run.task.objective.classes,
        shadow=tuple(shadow.to_record(network) for (network, _), shadow in attacks.items()),
    )
    path = results_path(run.folder, ATTACK_NAME, out)
    record.write(path)
    write_membership_page(record, path.with_suffix(".html"))
    return results


def _shadow_key(run: OpenedRun, target: MembershipTarget, options: MembershipOptions) -> tuple[str, int]:
    """Return the network name and the number of epochs of a target's shadow network."""
    settings = run.settings if target.round is None else run.settings.model_copy(update={"rounds": target.round})
    return target.network, options.shadow_epochs or count_epochs(settings, _mean_training_images(run))


def _mean_training_images(run: OpenedRun) -> float:
    """Return the mean number of training images of the sites that have any."""
    sizes = [len(part.train) for part in run.sites.values() if len(part.train)]
    return sum(sizes) / max(len(sizes), 1)


def _steps_per_epoch(run: OpenedRun, data: Dataset | None) -> int:
    """Return the approximate number of training steps in an epoch over half of the shadow set."""
    return 0 if data is None else -(-len(data) // (2 * run.settings.batch_size))


# ---- the attacks


def attack_model(
    run: OpenedRun, target: MembershipTarget, shadow: TrainedShadowAttack | None, options: MembershipOptions
) -> list[MembershipResult]:
    """Run both attacks (loss threshold and shadow model) on one model, on the same images.

    Args:
        run: The run, for its settings and device.
        target: The attacked model with its members and non-members.
        shadow: The trained shadow-model attack; None leaves it out.
        options: Number of images, and the seed.

    Returns:
        A result for each attack.

    Raises:
        DataError: If an output of the model is not finite.
    """
    stream = make_generator(options.seed, "members", target.site)
    rows = match_classes(labels_of(target.members), labels_of(target.others), stream, options.images)
    groups = [SelectedRows(data, chosen) for data, chosen in zip((target.members, target.others), rows, strict=True)]
    outputs_by_group = [logits(target.model, group, run.settings, run.task.device) for group in groups]
    if not all(bool(outputs.isfinite().all()) for outputs in outputs_by_group):
        whose = f"the model of {target.site}" if target.site else "the global model"
        raise DataError(
            "not_finite",
            f"expected finite outputs of {whose} of the run in '{run.folder}', got NaN or infinity: the run diverged. "
            "Attack a run that did not diverge.",
            site=target.site,
            path=run.folder,
        )
    losses = [image_losses(outputs, group.labels) for outputs, group in zip(outputs_by_group, groups, strict=True)]
    accuracies = [
        float((outputs.argmax(dim=1) == group.labels).double().mean())
        for outputs, group in zip(outputs_by_group, groups, strict=True)
    ]
    common_fields: Meta = {"target": target.name, "site": target.site or None, "round": target.round}
    common_fields |= {"accuracy_members": accuracies[0], "accuracy_non_members": accuracies[1]}
    known = [None if group.patients is None else group.patients.numpy() for group in groups]
    patients = known[0], known[1]
    threshold = AttackScores(-losses[0].numpy(), -losses[1].numpy(), -float(losses[0].mean()), patients)
    results = [MembershipResult(attack="loss_threshold", **common_fields, **dict(measure_attack(threshold)))]
    if shadow is not None:
        scores = [shadow.scores(outputs).numpy() for outputs in outputs_by_group]
        measures = measure_attack(AttackScores(scores[0], scores[1], 0.0, patients))
        results.append(MembershipResult(attack="shadow_topk", **common_fields, **dict(measures)))
    return results


def image_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each image without class weights, (n,), float64.

    Args:
        outputs: Logits, (n, C), for n images and C classes.
        labels: Labels, (n,), int64.
    """
    return nn.functional.cross_entropy(outputs.double(), labels, reduction="none")


def format_result(result: MembershipResult) -> str:
    """Format a result as one printed line."""
    target = f"model of {result.site}" if result.site else model_name(result)
    low, high = result.auc_interval
    return (
        f"{target}, {ATTACK_NAMES[result.attack]}: AUC {result.auc:.3f} (95 % CI over {result.interval_over} {low:.3f} "
        f"to {high:.3f}), TPR {result.tpr_at_1_fpr:.3f} at 1 % FPR, balanced recall {result.recall_balanced:.3f}; at "
        f"the attack's own threshold recall {result.recall:.3f}, accuracy {result.accuracy:.3f}; "
        f"{result.members} members, {result.non_members} non-members"
    )
