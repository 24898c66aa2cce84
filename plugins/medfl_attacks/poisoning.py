"""What attackers in a simulation reached: how good models still are at the honest sites, and how often attackers get
the answer that they want.

Models are judged on test images of honest sites, and the server's model on the server's test images, too. What is
wanted of an image follows from the attack itself: that the model calls it, changed as the attacker would, what the
attacker would. Success is the share of such answers among the images that the attacker calls something else than they
are. A model without attackers has a success as well, by its ordinary errors: that is what to compare with. Attacks on
replies want nothing but harm.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from medfl.data.pooled import joined, labels_of, patients_of
from medfl.engine.adversaries.adversary import DataAdversary
from medfl.engine.adversaries.simulation import AttackedData, Attackers, read_attackers
from medfl.errors import DataError, SettingsError
from medfl.training.predict import logits
from medfl.types import GLOBAL, Dataset, Meta
from medfl_attacks.attack_files import Interval, PoisoningFile, PoisoningResult, results_path
from medfl_attacks.open_run import OpenedRun
from medfl_report.statistics import wilson_over_patients

NAME = "poisoning"

EXAMPLE = {"attack": "label_flip", "sites": ["site-1"]}

NONE = "none"
"""In place of the attack where nobody attacks."""


@dataclass(frozen=True)
class PoisoningOptions:
    """What is looked for.

    Attributes:
        adversaries: Attacks to look for in a run without adversaries, in the form of the setting `adversaries`: a JSON
            object, or a list of them. A run with adversaries is measured by its own.
    """

    adversaries: str | None = None

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> list[Meta]:
        """The objects.

        Raises:
            SettingsError: If the text holds none.
        """
        try:
            value = json.loads(self.adversaries or "[]")
        except ValueError:
            value = None
        values = [value] if isinstance(value, dict) else value
        if not isinstance(values, list) or not all(isinstance(item, dict) and item for item in values):
            raise SettingsError(
                "invalid_json",
                f"expected adversaries as JSON, such as {json.dumps(EXAMPLE)}, or a list of such objects; got "
                f"{self.adversaries!r}.",
                setting="adversaries",
                found=self.adversaries,
            )
        return values


@dataclass(frozen=True)
class Judged:
    """A model and the test images that it is judged on.

    Attributes:
        holder: Name of the site that has them, or `GLOBAL` for the server.
        model: In evaluation mode.
        test: At least one image.
    """

    participant: str
    model: nn.Module
    test: Dataset


def run_poisoning(
    run: OpenedRun, options: PoisoningOptions | None = None, out: Path | None = None
) -> list[PoisoningResult]:
    """Judge a run and write ``attacks/poisoning.json`` in its folder.

    Args:
        run: The run.
        options: What to look for.
        out: Folder to write to; None means ``attacks`` in the run folder.

    Returns:
        A result for each attack that is looked for; without any a result of how good the models are.

    Raises:
        SettingsError: If an attack to look for is not valid, or not possible on the run's task.
        PluginError: If it is unknown.
        DataError: If no honest site has test images.
        StoreError: If something can't be read or written.
    """
    options = options or PoisoningOptions()
    own = read_attackers(run.settings.adversaries, run.registry)
    wanted = [own] if own else [read_attackers(setting, run.registry) for setting in options.settings()]
    results = [judge(run, attackers) for attackers in wanted or [None]]
    used = asdict(options) | {"device": run.task.device}
    PoisoningFile(options=used, results=tuple(results)).write(results_path(run.folder, NAME, out))
    return results


def judge(run: OpenedRun, attackers: Attackers | None) -> PoisoningResult:
    """Measure the models' accuracy and the attackers' success; raises the errors of `run_poisoning`."""
    bad = () if attackers is None else attackers.sites
    if unknown := sorted(set(bad) - set(run.sites)):
        raise SettingsError(
            "unknown_site",
            f"'adversaries.sites' names sites that are not there: {unknown}. Sites: {sorted(run.sites)}.",
            setting="adversaries.sites",
            sites=unknown,
        )
    parts = _parts(run, bad)
    right = {part.participant: _answers(run, part.model, part.test) == labels_of(part.test) for part in parts}
    at_sites = {name: share for name, share in right.items() if name != GLOBAL}
    row: Meta = {
        "target": "global" if run.global_model() is not None else "personal",
        "attack": NONE if attackers is None else attackers.attack,
        "attackers": len(bad),
        "sites": len(run.sites),
        **_share("accuracy", list(right.values()), parts),
        "images": sum(map(len, right.values())),
        "interval_over": "images" if all(patients_of(part.test) is None for part in parts) else "patients",
    }
    if at_sites:
        worst = min(sorted(at_sites), key=lambda name: float(at_sites[name].double().mean()))
        site = [part for part in parts if part.participant == worst]
        row |= {"worst_site": worst, **_share("worst_accuracy", [at_sites[worst]], site)}
    if attackers is not None and isinstance(attackers.adversary, DataAdversary):
        row |= _success(run, attackers.adversary, parts)
    return PoisoningResult(**row)


def _parts(run: OpenedRun, bad: Sequence[str]) -> list[Judged]:
    """Each model with the images that it is judged on."""
    tests = {name: run.sites[name].test for name in sorted(run.sites) if name not in bad and len(run.sites[name].test)}
    common = run.global_model()
    if common is None:
        own = run.site_models()
        parts = [Judged(name, run.predictor(own[name], name), test) for name, test in tests.items() if name in own]
    else:
        held = {} if run.global_test is None else {GLOBAL: run.global_test}
        parts = [Judged(name, run.predictor(common), test) for name, test in (tests | held).items()]
    if not parts:
        raise DataError(
            "no_images",
            f"expected test images at honest sites of the run in '{run.folder}', or at its server, got none: nobody "
            "can tell how good its models are. Partition the data with test images.",
            split="test",
            path=run.folder,
        )
    return parts


def _answers(run: OpenedRun, model: nn.Module, data: Dataset) -> torch.Tensor:
    """The class that a model calls each image, (n,), int64; -1 where its outputs are not finite."""
    outputs = logits(model, data, run.settings, run.task.device)
    return torch.where(outputs.isfinite().all(dim=1), outputs.argmax(dim=1), -1)


def _success(run: OpenedRun, adversary: DataAdversary, parts: Sequence[Judged]) -> Meta:
    """How often models answer what the attacker would, of the images that it calls something else than they are."""
    adversary.check(len(run.task.objective.titles), run.task.scale)
    every = adversary.model_copy(update={"rate": 1.0})
    classes, generator = len(run.task.objective.titles), torch.Generator()
    gained, chosen = [], []
    for part in parts:
        data = AttackedData(part.test, every, classes, run.task.scale, generator)
        rows = labels_of(data) != labels_of(part.test)
        gained.append((_answers(run, part.model, data) == labels_of(data))[rows])
        chosen.append(rows)
    if not sum(map(len, gained)):
        return {}
    return _share("success", gained, parts, chosen) | {"wanted_images": sum(map(len, gained))}


def _share(
    name: str, hits: Sequence[torch.Tensor], parts: Sequence[Judged], chosen: Sequence[torch.Tensor] | None = None
) -> Meta:
    """A share over the images of several sites, and its 95 % interval over patients.

    Args:
        name: What to call it.
        hits: Of each part, whether each image counts, (n,), bool.
        parts: The images.
        chosen: Of each part, which of its images `hits` are of, (n,), bool; None means all.
    """
    known = [patients_of(part.test) for part in parts]
    if chosen is not None:
        known = [who if who is None else who[rows] for who, rows in zip(known, chosen, strict=True)]
    several = [(part, who) for part, who in zip(hits, known, strict=True) if len(part)]
    patients = joined([who for _, who in several], [len(part) for part, _ in several])
    flat = torch.cat([part for part, _ in several])
    return {name: float(flat.double().mean()), f"{name}_interval": wilson_over_patients(flat, patients)}


def plain_line(result: PoisoningResult) -> str:
    """Return a result in one line."""
    who = f"{result.attackers} of {result.sites} sites attack ({result.attack})" if result.attackers else "no attackers"
    accuracy = _with_interval(result.accuracy, result.accuracy_interval)
    parts = [f"{who}: accuracy {accuracy} over {result.interval_over}, {result.images} images"]
    if result.worst_site is not None:
        worst = _with_interval(result.worst_accuracy, result.worst_accuracy_interval)
        parts.append(f"worst honest site {result.worst_site} {worst}")
    if result.success is not None:
        success = _with_interval(result.success, result.success_interval)
        parts.append(f"success {success} of {result.wanted_images} images")
    return "; ".join(parts)


def _with_interval(value: float | None, interval: Interval | None) -> str:
    assert value is not None
    assert interval is not None
    low, high = interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"
