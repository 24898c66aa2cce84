"""Measure the effect of poisoning attacks in a simulated run: accuracy at the honest sites and attack success rate.

The models are evaluated on the test images of the honest sites; the server's model also on the server's test images. A
data attack defines which class its attackers want for an image: the attack itself changes the image and assigns the
class. The success rate is the share of images that the model assigns to that class, among the images whose true class
is another one. A model without attackers also has a success rate, because of its ordinary errors; it is the baseline.
Attacks on replies have no wanted class and no success rate.

An opened run is a finished run with everything that an attack needs, such as data, method and models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from medfl.data.pooled import concatenate_patients, labels_of, patients_of
from medfl.engine.adversaries.adversary import DataAdversary
from medfl.engine.adversaries.simulation import AttackedData, Attackers, read_attackers
from medfl.errors import DataError, SettingsError
from medfl.training.predict import logits
from medfl.types import GLOBAL, Dataset, Meta
from medfl_attacks.attack_files import Interval, PoisoningFile, PoisoningResult, results_path
from medfl_attacks.open_run import OpenedRun
from medfl_report.statistics import wilson_over_patients

ATTACK_NAME = "poisoning"
"""Name of this kind of attack; it selects the results file (a key of `medfl_attacks.attack_files.ATTACK_FILES`)."""

EXAMPLE_ADVERSARIES = {"attack": "label_flip", "sites": ["site-1"]}
"""Example of the setting `adversaries` for error messages."""

NO_ATTACK = "none"
"""Value of the field ``attack`` in the result of a run without attackers."""


@dataclass(frozen=True)
class PoisoningOptions:
    """Options of `medfl attack poisoning`.

    Attributes:
        adversaries: Attacks to measure in a run without adversaries, as the text of the setting `adversaries`: a JSON
            object with the keys ``attack``, ``sites`` and options of the attack, or a list of objects. For a run with
            adversaries only the effect of its own attack is measured.
    """

    adversaries: str | None = None

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> list[Meta]:
        """Parse the adversaries and return them as a list of objects.

        Raises:
            SettingsError: If the text is not a JSON object or a list of non-empty objects.
        """
        try:
            value = json.loads(self.adversaries or "[]")
        except ValueError:
            value = None
        values = [value] if isinstance(value, dict) else value
        if not isinstance(values, list) or not all(isinstance(item, dict) and item for item in values):
            raise SettingsError(
                "invalid_json",
                f"expected adversaries as a JSON object, such as {json.dumps(EXAMPLE_ADVERSARIES)}, or a list; got "
                f"{self.adversaries!r}.",
                setting="adversaries",
                found=self.adversaries,
            )
        return values


@dataclass(frozen=True)
class EvaluatedModel:
    """A model and the test images that it is evaluated on.

    Attributes:
        participant: Name of the site that holds the images, or `GLOBAL` for the server.
        model: Network in evaluation mode.
        test: Test set with at least one image.
    """

    participant: str
    model: nn.Module
    test: Dataset


def run_poisoning(
    run: OpenedRun, options: PoisoningOptions | None = None, out: Path | None = None
) -> list[PoisoningResult]:
    """Evaluate the models of a run and write ``attacks/poisoning.json`` in the run folder.

    Args:
        run: The run.
        options: Attacks to measure.
        out: Folder to write to; None means ``attacks`` in the run folder.

    Returns:
        A result for each attack; without attacks one result with the accuracy of the models.

    Raises:
        SettingsError: If an attack is not valid, or not possible on the run's task.
        PluginError: If an attack is unknown.
        DataError: If neither an honest site nor the server has test images.
        StoreError: If a file can't be read or written.
    """
    options = options or PoisoningOptions()
    own = read_attackers(run.settings.adversaries, run.registry)
    wanted = [own] if own else [read_attackers(setting, run.registry) for setting in options.settings()]
    results = [measure_poisoning(run, attackers) for attackers in wanted or [None]]
    used = asdict(options) | {"device": run.task.device}
    PoisoningFile(options=used, results=tuple(results)).write(results_path(run.folder, ATTACK_NAME, out))
    return results


def measure_poisoning(run: OpenedRun, attackers: Attackers | None) -> PoisoningResult:
    """Measure the accuracy of the models and the success rate of the attackers.

    Args:
        run: The run.
        attackers: Attack to measure, or None for a run without attackers.

    Raises:
        SettingsError: If the attack names an unknown site or is not possible on the run's task.
        DataError: If neither an honest site nor the server has test images.
    """
    bad = () if attackers is None else attackers.sites
    if unknown := sorted(set(bad) - set(run.sites)):
        raise SettingsError(
            "unknown_site",
            f"'adversaries.sites' names sites that the run does not have: {unknown}. Sites of the run: "
            f"{sorted(run.sites)}.",
            setting="adversaries.sites",
            sites=unknown,
        )
    parts = _models_to_evaluate(run, bad)
    right = {part.participant: _predict_classes(run, part.model, part.test) == labels_of(part.test) for part in parts}
    at_sites = {name: share for name, share in right.items() if name != GLOBAL}
    row: Meta = {
        "target": "global" if run.global_model() is not None else "personal",
        "attack": NO_ATTACK if attackers is None else attackers.attack,
        "attackers": len(bad),
        "sites": len(run.sites),
        **_share_with_interval("accuracy", list(right.values()), parts),
        "images": sum(map(len, right.values())),
        "interval_over": "images" if all(patients_of(part.test) is None for part in parts) else "patients",
    }
    if at_sites:
        worst = min(sorted(at_sites), key=lambda name: float(at_sites[name].double().mean()))
        site = [part for part in parts if part.participant == worst]
        row |= {"worst_site": worst, **_share_with_interval("worst_accuracy", [at_sites[worst]], site)}
    if attackers is not None and isinstance(attackers.adversary, DataAdversary):
        row |= _measure_success(run, attackers.adversary, parts)
    return PoisoningResult(**row)


def _models_to_evaluate(run: OpenedRun, bad: Sequence[str]) -> list[EvaluatedModel]:
    """Return each model to evaluate with its test images; raise DataError if there are no test images."""
    tests = {name: run.sites[name].test for name in sorted(run.sites) if name not in bad and len(run.sites[name].test)}
    common = run.global_model()
    if common is None:
        own = run.site_models()
        parts = [
            EvaluatedModel(name, run.predictor(own[name], name), test) for name, test in tests.items() if name in own
        ]
    else:
        held = {} if run.server_test is None else {GLOBAL: run.server_test}
        parts = [EvaluatedModel(name, run.predictor(common), test) for name, test in (tests | held).items()]
    if not parts:
        raise DataError(
            "no_images",
            f"expected test images at honest sites of the run in '{run.folder}', or at its server, got none: the "
            "accuracy of its models can't be measured. Partition the data with test images.",
            split="test",
            path=run.folder,
        )
    return parts


def _predict_classes(run: OpenedRun, model: nn.Module, data: Dataset) -> torch.Tensor:
    """Return the class that a model predicts for each image, (n,), int64.

    The class is -1 if an output of the image is not finite.
    """
    outputs = logits(model, data, run.settings, run.task.device)
    return torch.where(outputs.isfinite().all(dim=1), outputs.argmax(dim=1), -1)


def _measure_success(run: OpenedRun, adversary: DataAdversary, parts: Sequence[EvaluatedModel]) -> Meta:
    """Return the attack success rate with its interval and its number of images.

    The dictionary is empty if no image has a wrong wanted class.
    """
    adversary.check(len(run.task.objective.titles), run.task.scale)
    every = adversary.model_copy(update={"rate": 1.0})
    classes, generator = len(run.task.objective.titles), torch.Generator()
    gained, chosen = [], []
    for part in parts:
        data = AttackedData(part.test, every, classes, run.task.scale, generator)
        rows = labels_of(data) != labels_of(part.test)
        gained.append((_predict_classes(run, part.model, data) == labels_of(data))[rows])
        chosen.append(rows)
    if not sum(map(len, gained)):
        return {}
    return _share_with_interval("success", gained, parts, chosen) | {"wanted_images": sum(map(len, gained))}


def _share_with_interval(
    name: str,
    hits: Sequence[torch.Tensor],
    parts: Sequence[EvaluatedModel],
    chosen: Sequence[torch.Tensor] | None = None,
) -> Meta:
    """Compute a share over the images of several participants, and its 95 % confidence interval over patients.

    Args:
        name: Key of the share; the key of the interval adds ``_interval``.
        hits: For each participant, whether each image counts, (n,), bool.
        parts: The models and test images, one for each participant.
        chosen: For each participant, a mask of the test images that `hits` refers to, (n,), bool; None means all
            images.

    Returns:
        Dictionary with the keys `name` and ``<name>_interval``.
    """
    known = [patients_of(part.test) for part in parts]
    if chosen is not None:
        known = [who if who is None else who[rows] for who, rows in zip(known, chosen, strict=True)]
    several = [(part, who) for part, who in zip(hits, known, strict=True) if len(part)]
    patients = concatenate_patients([who for _, who in several], [len(part) for part, _ in several])
    flat = torch.cat([part for part, _ in several])
    return {name: float(flat.double().mean()), f"{name}_interval": wilson_over_patients(flat, patients)}


def format_result(result: PoisoningResult) -> str:
    """Format a result as one printed line."""
    attackers = f"{result.attackers} of {result.sites} sites attack" if result.attackers else "no attackers"
    who = f"{attackers} ({result.attack})" if result.attackers else attackers
    accuracy = _format_with_interval(result.accuracy, result.accuracy_interval)
    parts = [f"{who}: accuracy {accuracy}, 95 % CI over {result.interval_over}; {result.images} test images"]
    if result.worst_site is not None:
        worst = _format_with_interval(result.worst_accuracy, result.worst_accuracy_interval)
        parts.append(f"worst honest site {result.worst_site} {worst}")
    if result.success is not None:
        success = _format_with_interval(result.success, result.success_interval)
        parts.append(f"attack success rate {success} on {result.wanted_images} images")
    return "; ".join(parts)


def _format_with_interval(value: float | None, interval: Interval | None) -> str:
    """Format a share and its 95 % confidence interval."""
    assert value is not None
    assert interval is not None
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"
