"""Results of attacks on a run, in ``attacks/<kind>.json`` of the run folder; one class for each kind of attack."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import JsonValue

from medfl.hooks import ATTACKS_FOLDER
from medfl.records.record import FileRecord, Record

Interval = tuple[float, float]
"""Lower and upper end of a 95 % interval."""

Unit = Literal["images", "patients"]
"""Unit over which an interval is computed."""


class Histogram(Record):
    """Histogram of the scores of members and of others.

    Attributes:
        edges: Edges of the bins.
        members: Number of members in each bin.
        non_members: Number of others in each bin.
    """

    edges: tuple[float, ...]
    members: tuple[int, ...]
    non_members: tuple[int, ...]


class MembershipMeasures(Record):
    """Measures of how well an attack tells members from others.

    Attributes:
        members: Number of members.
        non_members: Number of others.
        auc: Area under the ROC curve.
        auc_interval: Interval of `auc`.
        interval_over: Unit of the interval.
        tpr_at_1_fpr: Share of members found at 1 % false alarms.
        recall: Share of members found by the attack's own threshold.
        false_alarms: Share of others called members by the attack's own threshold.
        accuracy: Balanced accuracy of the attack's own threshold.
        recall_balanced: Share of members found when as many images are called members as there are.
        roc: Points of the ROC curve: false alarms and members found.
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
        target: ``global`` for the server's model, ``sites`` for a site's own.
        attack: Name of the attack.
        site: Name of the site, or None for the server's model.
        round: Round after which the server kept the model, or None for the last model.
        accuracy_members: Accuracy of the attacked model on the members.
        accuracy_non_members: Accuracy of the attacked model on the others.
    """

    target: Literal["global", "sites"]
    attack: Literal["loss_threshold", "shadow_topk"]
    site: str | None = None
    round: int | None = None
    accuracy_members: float
    accuracy_non_members: float


class InversionResult(Record):
    """The result of one inversion attack: means over the images, and the best image.

    Attributes:
        target: Attacked information: ``shared`` images, the ``update`` of a site, or the ``model``.
        attack: Name of the attack.
        item: Item that the attack started from; for a model, what its images are compared with.
        images: Number of images.
        converged: Number of images at which an iteration converged, or None for other attacks.
        mse: Mean squared error.
        psnr: Peak signal-to-noise ratio in decibels.
        ssim: Structural similarity.
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
    """The result of a poisoning attack on a run, at its honest sites and its server.

    Attributes:
        target: ``global`` for the server's model, ``personal`` for the sites' own.
        attack: Name of the attack, or ``none``.
        attackers: Number of attacking sites.
        sites: Number of sites.
        images: Number of test images.
        interval_over: Unit of the intervals.
        accuracy: Accuracy on all test images.
        accuracy_interval: Interval of `accuracy`.
        worst_site: Honest site with the smallest accuracy, or None without test images at sites.
        worst_accuracy: Accuracy at that site.
        worst_accuracy_interval: Interval of `worst_accuracy`.
        success: Share of images that get the answer that the attackers want, or None if they want no answer.
        success_interval: Interval of `success`.
        wanted_images: Number of images to which the attackers want a wrong answer.
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
"""The result of an attack of any kind."""


class AttackedRun(Record):
    """The run that was attacked.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        rounds: Number of rounds.
    """

    method: str
    seed: int
    rounds: int


class ShadowNetwork(Record):
    """A shadow network that the attacker trained.

    Attributes:
        network: Name of the network.
        members: Number of images that it was trained on.
        non_members: Number of images that it was not trained on.
        epochs: Number of epochs.
        highest: Number of the highest probabilities that the attack uses.
        accuracy_members: Accuracy on the images that it was trained on.
        accuracy_non_members: Accuracy on the others.
    """

    network: str
    members: int
    non_members: int
    epochs: int
    highest: int
    accuracy_members: float
    accuracy_non_members: float


class AttackFile(FileRecord):
    """The results of an attack.

    Attributes:
        options: Options of the command by name, as they were used.
    """

    options: dict[str, JsonValue]


class MembershipFile(AttackFile):
    """The results of membership attacks.

    Attributes:
        results: Result for each target and attack.
        run: The run.
        classes: Number of classes.
        shadow: Shadow networks of the attacker.
    """

    NAME: ClassVar[str] = "membership.json"
    REPAIR: ClassVar[str] = "Attack again: medfl attack membership."

    attack: Literal["membership"] = "membership"
    results: tuple[MembershipResult, ...]
    run: AttackedRun
    classes: int
    shadow: tuple[ShadowNetwork, ...]


class InversionFile(AttackFile):
    """The results of inversion attacks.

    Attributes:
        results: Result for each target, attack and item.
        notes: Sentences about what was left out or assumed.
    """

    NAME: ClassVar[str] = "inversion.json"
    REPAIR: ClassVar[str] = "Attack again: medfl attack inversion."

    attack: Literal["inversion"] = "inversion"
    results: tuple[InversionResult, ...]
    notes: tuple[str, ...] = ()


class PoisoningFile(AttackFile):
    """The results of poisoning attacks.

    Attributes:
        results: Result for each attack.
    """

    NAME: ClassVar[str] = "poisoning.json"
    REPAIR: ClassVar[str] = "Attack again: medfl attack poisoning."

    attack: Literal["poisoning"] = "poisoning"
    results: tuple[PoisoningResult, ...]


FILES: dict[str, type[MembershipFile] | type[InversionFile] | type[PoisoningFile]] = {
    "membership": MembershipFile,
    "inversion": InversionFile,
    "poisoning": PoisoningFile,
}
"""Maps each kind of attack to the class of its file."""


def results_path(run: Path, attack: str, out: Path | None = None) -> Path:
    """Return the path of an attack's JSON file; its page has the same name and ends with ``.html``.

    Args:
        run: The run folder.
        attack: Kind of the attack, a key of `FILES`.
        out: The folder to write to; None means `ATTACKS_FOLDER` in the run folder.
    """
    return (run / ATTACKS_FOLDER if out is None else out) / FILES[attack].NAME


def read_results(run: Path, attack: str) -> MembershipFile | InversionFile | PoisoningFile | None:
    """Return the results of an attack on a run, or None if there are none.

    Args:
        run: The run folder.
        attack: Kind of the attack, a key of `FILES`.

    Raises:
        StoreError: If the file is damaged, or of another version.
    """
    path = results_path(run, attack)
    return FILES[attack].read(path) if path.is_file() else None
