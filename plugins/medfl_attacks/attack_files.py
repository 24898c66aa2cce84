"""Records of attack results, stored in ``attacks/<kind>.json`` of a run folder; one class for each kind of attack."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import JsonValue

from medfl.hooks import ATTACKS_FOLDER
from medfl.records.record import FileRecord, Record

Interval = tuple[float, float]
"""Lower and upper limit of a 95 % confidence interval."""

Unit = Literal["images", "patients"]
"""Independent unit of a confidence interval: each image, or each patient with all of its images."""


class Histogram(Record):
    """Histogram of an attack's scores for members and non-members.

    Attributes:
        edges: Edges of the bins.
        members: Number of members in each bin.
        non_members: Number of non-members in each bin.
    """

    edges: tuple[float, ...]
    members: tuple[int, ...]
    non_members: tuple[int, ...]


class MembershipMeasures(Record):
    """Measures of how well an attack separates members (training images) from non-members.

    Attributes:
        members: Number of members.
        non_members: Number of non-members.
        auc: Area under the ROC curve.
        auc_interval: 95 % confidence interval of `auc`.
        interval_over: Independent unit of the interval.
        tpr_at_1_fpr: True positive rate (share of members found) at a false positive rate of 1 %.
        recall: Share of members found at the threshold that the attack itself chooses.
        false_alarms: False positive rate at the attack's own threshold: share of non-members classified as members.
        accuracy: Balanced accuracy at the attack's own threshold.
        recall_balanced: Share of members found if exactly as many images are classified as members as there are
            members.
        roc: Points (false positive rate, true positive rate) of the ROC curve.
        histogram: Histogram of the scores.
    """

    members: int
    non_members: int
    auc: float
    auc_interval: Interval
    interval_over: Unit
    tpr_at_1_fpr: float
    recall: float
    false_alarms: float
    accuracy: float
    recall_balanced: float
    roc: tuple[tuple[float, float], ...]
    histogram: Histogram


class MembershipResult(MembershipMeasures):
    """The result of one membership attack on one model.

    Attributes:
        target: ``global`` for the server's model, ``sites`` for the model of a site.
        attack: Name of the attack: `loss_threshold` or `shadow_topk` (shadow model).
        site: Name of the site, or None for the server's model.
        round: Round after which the server kept the model, or None for the last model.
        accuracy_members: Accuracy of the attacked model on the members.
        accuracy_non_members: Accuracy of the attacked model on the non-members.
    """

    target: Literal["global", "sites"]
    attack: Literal["loss_threshold", "shadow_topk"]
    site: str | None = None
    round: int | None = None
    accuracy_members: float
    accuracy_non_members: float


class InversionResult(Record):
    """The result of one inversion attack: mean similarity over the images, and the best value of each measure.

    Attributes:
        target: Attacked information: ``shared`` images, the ``update`` of a site, or the ``model``.
        attack: Name of the attack, such as ``gradient`` or ``decoder``.
        item: Name of the information that the attack started from, such as ``x_p`` (the shared part of an image as it
            was sent) or ``x_s`` (the same part without noise); for attacks on a model, the name of the images that the
            reconstructions are compared with.
        images: Number of images.
        converged: Number of images for which the iteration converged, or None for attacks without an iteration.
        mse: Mean squared error, averaged over the images.
        psnr: Peak signal-to-noise ratio in decibels, averaged over the images.
        ssim: Structural similarity, averaged over the images.
        best_mse: Smallest mean squared error of an image.
        best_psnr: Largest peak signal-to-noise ratio of an image.
        best_ssim: Largest structural similarity of an image.
    """

    target: Literal["shared", "update", "model"]
    attack: str
    item: str
    images: int
    converged: int | None = None
    mse: float
    psnr: float
    ssim: float
    best_mse: float
    best_psnr: float
    best_ssim: float


class PoisoningResult(Record):
    """The effect of a poisoning attack on a run, measured at the honest sites and the server.

    Attributes:
        target: ``global`` for the server's model, ``personal`` for the models of the sites.
        attack: Name of the attack, or ``none``.
        attackers: Number of attacking sites.
        sites: Number of sites.
        images: Number of test images.
        interval_over: Independent unit of the intervals.
        accuracy: Accuracy on all test images.
        accuracy_interval: 95 % confidence interval of `accuracy`.
        worst_site: Honest site with the smallest accuracy, or None if no honest site has test images.
        worst_accuracy: Accuracy at that site.
        worst_accuracy_interval: 95 % confidence interval of `worst_accuracy`.
        success: Attack success rate: share of the `wanted_images` that the model assigns to the class the attackers
            want, or None if the attack has no such class or there are no such images.
        success_interval: 95 % confidence interval of `success`.
        wanted_images: Number of images for which the class that the attackers want is wrong.
    """

    target: Literal["global", "personal"]
    attack: str
    attackers: int
    sites: int
    images: int
    interval_over: Unit
    accuracy: float
    accuracy_interval: Interval
    worst_site: str | None = None
    worst_accuracy: float | None = None
    worst_accuracy_interval: Interval | None = None
    success: float | None = None
    success_interval: Interval | None = None
    wanted_images: int | None = None


AttackResult = MembershipResult | InversionResult | PoisoningResult
"""Result of an attack of any kind."""


class AttackedRun(Record):
    """Identification of the run that was attacked.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        rounds: Number of rounds.
    """

    method: str
    seed: int
    rounds: int


class ShadowNetwork(Record):
    """Description of a shadow network that the attacker trained.

    Attributes:
        network: Name of the network.
        members: Number of images that the shadow network was trained on.
        non_members: Number of images that it was not trained on.
        epochs: Number of epochs.
        highest: Number of highest class probabilities that the attack uses.
        accuracy_members: Accuracy of the shadow network on its members.
        accuracy_non_members: Accuracy of the shadow network on its non-members.
    """

    network: str
    members: int
    non_members: int
    epochs: int
    highest: int
    accuracy_members: float
    accuracy_non_members: float


class AttackFile(FileRecord):
    """Base class of the files with attack results.

    Attributes:
        options: Maps each option of the command to the value that was used.
    """

    options: dict[str, JsonValue]


class MembershipFile(AttackFile):
    """File with the results of membership attacks.

    Attributes:
        attack: Kind of the attack, which tells the classes of attack files apart.
        results: Result for each target and attack.
        run: The run that was attacked.
        classes: Number of classes.
        shadow: Shadow networks that the attacker trained.
    """

    NAME: ClassVar[str] = "membership.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Attack again: medfl attack membership."
    """Advice for a user whose file is damaged; part of the error message."""

    attack: Literal["membership"] = "membership"
    results: tuple[MembershipResult, ...]
    run: AttackedRun
    classes: int
    shadow: tuple[ShadowNetwork, ...]


class InversionFile(AttackFile):
    """File with the results of inversion attacks.

    Attributes:
        attack: Kind of the attack, which tells the classes of attack files apart.
        results: Result for each target, attack and item.
        notes: Sentences about images that were left out and assumptions that were made.
    """

    NAME: ClassVar[str] = "inversion.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Attack again: medfl attack inversion."
    """Advice for a user whose file is damaged; part of the error message."""

    attack: Literal["inversion"] = "inversion"
    results: tuple[InversionResult, ...]
    notes: tuple[str, ...] = ()


class PoisoningFile(AttackFile):
    """File with the measured effects of poisoning attacks.

    Attributes:
        attack: Kind of the attack, which tells the classes of attack files apart.
        results: Result for each attack.
    """

    NAME: ClassVar[str] = "poisoning.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Attack again: medfl attack poisoning."
    """Advice for a user whose file is damaged; part of the error message."""

    attack: Literal["poisoning"] = "poisoning"
    results: tuple[PoisoningResult, ...]


ATTACK_FILES: dict[str, type[MembershipFile] | type[InversionFile] | type[PoisoningFile]] = {
    "membership": MembershipFile,
    "inversion": InversionFile,
    "poisoning": PoisoningFile,
}
"""Maps each kind of attack to the class of its file."""


def results_path(run: Path, attack: str, out: Path | None = None) -> Path:
    """Return the path of an attack's JSON file.

    The HTML page of the attack has the same name with the suffix ``.html``.

    Args:
        run: Run folder.
        attack: Kind of the attack, a key of `ATTACK_FILES`.
        out: Folder to write to; None means `ATTACKS_FOLDER` in the run folder.
    """
    return (run / ATTACKS_FOLDER if out is None else out) / ATTACK_FILES[attack].NAME


def read_results(run: Path, attack: str) -> MembershipFile | InversionFile | PoisoningFile | None:
    """Return the results of an attack on a run, or None if the file does not exist.

    Args:
        run: Run folder.
        attack: Kind of the attack, a key of `ATTACK_FILES`.

    Raises:
        StoreError: If the file is damaged or has another version.
    """
    path = results_path(run, attack)
    return ATTACK_FILES[attack].read(path) if path.is_file() else None
