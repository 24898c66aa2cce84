"""Membership inference: can an attacker who has a trained model tell which images it was trained on?

Members are training images of the sites, as they are in the files; the others are test images; there are equally many
of each class in both groups. Two attacks on the same images:

* ``loss_threshold``: the smaller the loss, the surer a member. The threshold is the mean loss of the members, which its
  authors let the attacker know (Yeom et al., "Privacy risk in machine learning", CSF 2018).
* ``shadow_topk``: `medfl_attacks.membership.shadow`.
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
from medfl_attacks.membership.metrics import Scores, measure
from medfl_attacks.membership.page import ATTACKS, name_of, write_page
from medfl_attacks.membership.shadow import Chosen, ShadowAttack, epochs_of, matched, train_attack
from medfl_attacks.membership.targets import KEPT, ShadowSet, Target, Targets, find_targets, shadow_set
from medfl_attacks.open_run import OpenedRun

NAME = "membership"


@dataclass(frozen=True)
class MembershipOptions:
    """What is attacked, and with what knowledge.

    Attributes:
        targets: ``global``, the server's model, against the images of all sites; ``sites``, each site's own model,
            against its own images. None means the former where there is a global model.
        shadow: Images that the attacker trains the shadow network on: ``shared``, those that the run released;
            ``validation``, the sites' validation images; ``none``, no such attack. None means the first that there is.
        images: Largest number of members, and of others; None means as many as there are.
        shadow_epochs: Passes of the shadow network over its images; None means as many as the attacked model had.
        round: Of the server's models that the run kept (setting `keep_rounds`) the one after this round, or ``kept``
            for each of them; None means the last model.
        seed: Of the images that are drawn and of the shadow network.
    """

    targets: Targets | None = None
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
        if self.round not in (None, KEPT) and not (isinstance(self.round, int) and self.round >= 1):
            raise SettingsError(
                "setting_out_of_range",
                f"expected a round >= 1, or '{KEPT}' for all that the run kept, got {self.round!r}.",
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
        run: The run; only its folder ``attacks`` is written.
        options: See there.
        out: Folder to write to; None means ``attacks`` in the run folder.
        progress: Called with the training steps of shadow networks that are done, and with all of them.

    Returns:
        The results.

    Raises:
        SettingsError: If the run lacks what an option asks for.
        DataError: If there are too few images.
        StoreError: If something can't be read or written.
    """
    options = options or MembershipOptions()
    targets = find_targets(run, options.targets, options.round)
    source, data = shadow_set(run, options.shadow)
    needed = sorted({_shadow_of(run, target, options) for target in targets}) if data is not None else []
    attacks: dict[tuple[str, int], ShadowAttack] = {}
    steps, done = sum(epochs for _, epochs in needed) * _batches(run, data), 0

    def stepped() -> None:
        nonlocal done
        done += 1
        progress(done, max(steps, done))

    for network, epochs in needed:
        assert data is not None
        clip = run.method.gradient_clip
        attacks[network, epochs] = train_attack(
            run.task, run.settings, data, epochs, options.seed, network, clip, after_batch=stepped
        )
    results = [
        row for target in targets for row in attack(run, target, attacks.get(_shadow_of(run, target, options)), options)
    ]
    lengths = {epochs for _, epochs in needed}
    used = vars(options) | {"targets": targets[0].name, "shadow": source}
    used |= {"shadow_epochs": lengths.pop() if len(lengths) == 1 else options.shadow_epochs}
    record = MembershipFile(
        options=used | {"device": run.task.device},
        results=tuple(results),
        run=AttackedRun(method=run.name, seed=run.settings.seed, rounds=run.settings.rounds),
        classes=run.task.objective.classes,
        shadow=tuple(shadow.description(network) for (network, _), shadow in attacks.items()),
    )
    path = results_path(run.folder, NAME, out)
    record.write(path)
    write_page(record, path.with_suffix(".html"))
    return results


def _shadow_of(run: OpenedRun, target: Target, options: MembershipOptions) -> tuple[str, int]:
    """Network and epochs of the shadow of a target: it is trained as long as that was."""
    settings = run.settings if target.round is None else run.settings.model_copy(update={"rounds": target.round})
    return target.network, options.shadow_epochs or epochs_of(settings, _mean_size(run))


def _mean_size(run: OpenedRun) -> float:
    sizes = [len(part.train) for part in run.sites.values() if len(part.train)]
    return sum(sizes) / max(len(sizes), 1)


def _batches(run: OpenedRun, data: Dataset | None) -> int:
    """Steps of an epoch over half of the shadow set, roughly."""
    return 0 if data is None else -(-len(data) // (2 * run.settings.batch_size))


# ---- the attacks


def attack(
    run: OpenedRun, target: Target, shadow: ShadowAttack | None, options: MembershipOptions
) -> list[MembershipResult]:
    """Run both attacks on one model, on the same images.

    Args:
        run: For settings and device.
        target: The model.
        shadow: The trained attack; None leaves it out.
        options: How many images, and the seed.

    Returns:
        A result for each attack.
    """
    stream = make_generator(options.seed, "members", target.site)
    rows = matched(labels_of(target.members), labels_of(target.others), stream, options.images)
    groups = [Chosen(data, chosen) for data, chosen in zip((target.members, target.others), rows, strict=True)]
    answers = [logits(target.model, group, run.settings, run.task.device) for group in groups]
    if not all(bool(answer.isfinite().all()) for answer in answers):
        whose = f"the model of {target.site}" if target.site else "the global model"
        raise DataError(
            "not_finite",
            f"expected finite outputs of {whose} of the run in '{run.folder}', got others: the run diverged. Attack "
            "one that did not.",
            site=target.site,
            path=run.folder,
        )
    losses = [loss_of(answer, group.labels) for answer, group in zip(answers, groups, strict=True)]
    rights = [
        float((answer.argmax(dim=1) == group.labels).double().mean())
        for answer, group in zip(answers, groups, strict=True)
    ]
    about: Meta = {"target": target.name, "site": target.site or None, "round": target.round}
    about |= {"accuracy_members": rights[0], "accuracy_non_members": rights[1]}
    known = [None if group.patients is None else group.patients.numpy() for group in groups]
    patients = known[0], known[1]
    threshold = Scores(-losses[0].numpy(), -losses[1].numpy(), -float(losses[0].mean()), patients)
    results = [MembershipResult(attack="loss_threshold", **about, **dict(measure(threshold)))]
    if shadow is not None:
        scores = [shadow.scores(answer).numpy() for answer in answers]
        measures = measure(Scores(scores[0], scores[1], 0.0, patients))
        results.append(MembershipResult(attack="shadow_topk", **about, **dict(measures)))
    return results


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each image, (n,), float64, from logits (n, C): by the label alone, without class weights."""
    return nn.functional.cross_entropy(outputs.double(), labels, reduction="none")


def plain_line(result: MembershipResult) -> str:
    """Return a result in one line."""
    target = f"model of {result.site}" if result.site else name_of(result)
    low, high = result.auc_interval
    return (
        f"{target}, {ATTACKS[result.attack]}: AUC {result.auc:.3f} ({low:.3f} to {high:.3f} over "
        f"{result.interval_over}), TPR {result.tpr_at_1_fpr:.3f} at 1 % FPR; by its own threshold recall "
        f"{result.recall:.3f}, accuracy {result.accuracy:.3f}; recall {result.recall_balanced:.3f} when half are "
        f"called members; {result.members} members, {result.non_members} others"
    )
