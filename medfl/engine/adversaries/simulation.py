"""Attackers in a simulated federation: sites that train on poisoned data, or that send poisoned replies.

The setting ``adversaries`` names the attackers and their attack (`medfl_attacks.adversaries`). Attackers exist in
simulations only: no server can turn a site into an attacker, and only the local backend, which runs all sites on this
machine, changes replies. ``run.json`` and the report show the attack. Attackers keep their validation images, but their
test images are in no score.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pydantic import Field

from medfl.contract import Method, Replies, Request, State
from medfl.data.pooled import EmptyDataset, labels_of, patients_of
from medfl.engine.adversaries.adversary import AttackerKnowledge, DataAdversary, ReplyAdversary
from medfl.engine.backend import Evaluation, SiteResult, StepResult
from medfl.engine.backends.local import LocalBackend
from medfl.engine.site import Splits
from medfl.engine.store import StepNumbers, Store
from medfl.errors import PluginError, SettingsError
from medfl.plugins import Registry
from medfl.settings import Settings, StrictModel, participant_count, read_settings
from medfl.task import ImageScale, Task
from medfl.toolkit.robust.rule import probability_of_more_attackers
from medfl.types import MODEL_PREFIX, Dataset, Tensors, is_augmenting
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

RECEIVED, CHANGE = "received/", "change/"
"""Prefixes of the names of tensors that attackers store at a step.

`RECEIVED`: the model in the attackers' request. `CHANGE`: the difference of this model from the model that they
received before it.
"""


class _AttackSetting(StrictModel):
    """Part of the setting ``adversaries`` that all attacks have.

    Attributes:
        attack: Name of the attack (`medfl list adversaries`).
        sites: Names of the attackers.
    """

    attack: str
    sites: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Attackers:
    """Attackers of a simulation, and their attack.

    Attributes:
        attack: Name of the attack.
        sites: Names of the attackers, sorted; at least one.
        adversary: The attack, which is the same for all attackers.
    """

    attack: str
    sites: tuple[str, ...]
    adversary: DataAdversary | ReplyAdversary


def read_attackers(setting: Mapping[str, Any], registry: Registry) -> Attackers | None:
    """Read the setting ``adversaries``, and return the attackers that it names, or None if the setting is empty.

    Args:
        setting: Value of the setting: ``attack``, ``sites``, and the options of the attack.
        registry: Registry with the attacks of all plugins.

    Raises:
        PluginError: If the attack is unknown, or its class is not an attack.
        SettingsError: If an option is unknown or not valid.
    """
    if not setting:
        return None
    common = {name: value for name, value in setting.items() if name in _AttackSetting.model_fields}
    attackers = read_settings(_AttackSetting, common, "the setting 'adversaries'")
    kind = registry.adversary(attackers.attack)
    if not (isinstance(kind, type) and issubclass(kind, DataAdversary | ReplyAdversary)):
        raise PluginError(
            "wrong_type",
            f"expected the attack '{attackers.attack}' to be a class derived from DataAdversary or ReplyAdversary of "
            f"medfl.engine.adversaries.adversary; got {kind!r}.",
            name=attackers.attack,
            found=repr(kind),
        )
    options = {name: value for name, value in setting.items() if name not in common}
    where = f"the attack '{attackers.attack}' (setting 'adversaries')"
    adversary = read_settings(kind, options, where, also=_AttackSetting.model_fields)
    return Attackers(attackers.attack, tuple(sorted(set(attackers.sites))), adversary)


def check_attackers(
    attackers: Attackers, settings: Settings, method: Method, task: Task, sites: Mapping[str, Splits]
) -> None:
    """Check that an attack is possible with the sites, task and method of a run, and log a warning about the attack.

    Args:
        attackers: The attackers.
        settings: Settings of the run.
        method: The method.
        task: The learning problem.
        sites: Maps each site to its splits.

    Raises:
        SettingsError: If the attack is not possible.
    """
    attack, adversary = attackers.attack, attackers.adversary
    if unknown := sorted(set(attackers.sites) - set(sites)):
        raise SettingsError(
            "unknown_site",
            f"'adversaries.sites' names sites that the run does not have: {unknown}. Sites: {sorted(sites)}.",
            sites=unknown,
            setting="adversaries.sites",
        )
    if "pooled_data" in method.needs:
        raise SettingsError(
            "method_not_supported",
            "'adversaries' needs sites that train themselves, but this method pools their data.",
            feature="adversaries",
        )
    if isinstance(adversary, DataAdversary):
        data = [sites[name].train for name in attackers.sites]
        if any(train.class_labels is None or is_augmenting(train) for train in data):
            raise SettingsError(
                "data_not_supported",
                f"The attack '{attack}' needs images in an array, each with a class.",
                feature="adversaries",
                attack=attack,
            )
        adversary.check(len(task.objective.titles), task.scale)
    elif method.sends.get(MODEL_PREFIX) != "update" or method.filters():
        raise SettingsError(
            "method_not_supported",
            f"The attack '{attack}' changes updates of a model, but this method sends no updates, or encodes them.",
            feature="adversaries",
            attack=attack,
        )
    candidates = [name for name, data in sites.items() if len(data.train)]
    count = len(set(candidates) & set(attackers.sites))
    if isinstance(adversary, ReplyAdversary):
        adversary.check(len(candidates), count)
    logger.warning("POISONED simulation: attack '%s' at %s.", attack, ", ".join(attackers.sites))
    drawn = participant_count(len(candidates), settings.fraction)
    if settings.robust is not None and (
        chance := probability_of_more_attackers(len(candidates), count, drawn, settings.robust.f)
    ):
        logger.warning(
            "In a round, more than f = %d of the %d drawn sites are attackers with probability %.4f.",
            settings.robust.f,
            drawn,
            chance,
        )


# ---- data


def attacked_sites(sites: Mapping[str, Splits], attackers: Attackers, task: Task, seed: int) -> dict[str, Splits]:
    """Return the data of all sites, in which attackers have no test images.

    If the attack is a `DataAdversary`, attackers also have poisoned training data.

    Args:
        sites: Maps each site to its splits.
        attackers: The attackers.
        task: The learning problem.
        seed: Seed of the run, from which the poisoned images are drawn.
    """
    generator, attacked = make_generator(seed, "poison"), dict(sites)
    for name in attackers.sites:
        data, adversary = sites[name], attackers.adversary
        train = data.train
        if isinstance(adversary, DataAdversary) and len(train):
            train = AttackedData(train, adversary, len(task.objective.titles), task.scale, generator)
        attacked[name] = replace(data, train=train, test=EmptyDataset(), shared=None)
    return attacked


class AttackedData:
    """Training images of an attacker. Some of them have wrong labels and changed pixels.

    Args:
        data: Original images, each with a class.
        adversary: The attack.
        classes: Number of classes.
        scale: Normalisation of the images, or None if it is not known.
        generator: Generator that draws the images to poison.

    Attributes:
        class_labels: Label of each image after the attack, shape (n,), int64.
        patients: Number of the patient of each image, or None if the patients are not known.
    """

    def __init__(
        self,
        data: Dataset,
        adversary: DataAdversary,
        classes: int,
        scale: ImageScale | None,
        generator: torch.Generator,
    ) -> None:
        self._data, self._adversary, self._scale = data, adversary, scale
        labels = labels_of(data)
        rows = adversary.touches(labels).nonzero().flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)[: round(adversary.rate * len(rows))]]
        self._changed = torch.zeros(len(labels), dtype=torch.bool)
        self._changed[rows] = True
        self._labels = torch.where(self._changed, adversary.label(labels, classes), labels)
        self.class_labels: torch.Tensor | None = self._labels
        self.patients = patients_of(data)

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images and targets of some rows, with the changes of the attack.

        Args:
            rows: Numbers of the images, shape (B,), int64.

        Returns:
            Images, shape (B, C, *spatial), as a network receives them, and targets, shape (B, ...).
        """
        inputs, _ = self._data.batch(rows)
        changed = self._changed[rows]
        if changed.any():
            inputs = inputs.clone()
            inputs[changed] = self._adversary.change(inputs[changed], self._scale)
        return inputs, self.targets(rows)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets of some rows, with the changes of the attack.

        Args:
            rows: Numbers of the images, shape (B,), int64.
        """
        true = self._data.targets(rows)
        return self._labels[rows].to(true.dtype).reshape(true.shape)


# ---- replies


class AttackedBackend(LocalBackend):
    """Local backend that changes the replies of attackers after the sites' filters and before aggregation.

    Args:
        attackers: The attackers.
        seed: Seed of the run.
        memory: Store in which the attackers keep the models that they received.
        **options: Arguments of `LocalBackend`.
    """

    def __init__(self, attackers: Attackers, seed: int, memory: Store, **options: Any) -> None:
        super().__init__(**options)
        self._attackers, self._seed, self._memory = attackers, seed, memory
        self._round = 0

    def step(
        self,
        step: int,
        round_: int,
        requests: list[Request],
        evaluation: Evaluation | None = None,
        keep: StepNumbers = (),
    ) -> StepResult:
        """Execute the requests of a step, and evaluate an earlier round meanwhile.

        Before that, the attackers store the model that they received.

        Args:
            step: Number of the step.
            round_: Round that the step belongs to.
            requests: Requests, at most one for each site.
            evaluation: Round to score, or None.
            keep: Numbers of earlier steps whose states the sites must not delete.
        """
        self._round = round_  # a continued run has the same rounds and may have other step numbers
        if isinstance(self._attackers.adversary, ReplyAdversary) and self._attackers.adversary.remembers:
            self._remember(step, requests)
        return super().step(step, round_, requests, evaluation, keep)

    def replies(self, results: list[SiteResult], missing: list[str]) -> Replies:
        """Return the replies that belong to results without a refusal, in which the replies of attackers are changed.

        Args:
            results: Results of the sites that replied.
            missing: Names of the sites that received a request and sent no usable reply.
        """
        replies = super().replies(results, missing)
        if not isinstance(self._attackers.adversary, ReplyAdversary) or not results:
            return replies
        step, last_change = results[0].step, Tensors()
        if self._memory.path(step).exists():
            last_change = select(self._memory.load(step).tensors, CHANGE)
        return AttackedReplies(replies, self._attackers, self._seed, self._round, last_change)

    def _remember(self, step: int, requests: list[Request]) -> None:
        """Store the model in the attackers' request, and its change, unless the step is stored.

        A repeated step thus finds the same model.
        """
        models = [select(request.tensors, MODEL_PREFIX) for request in requests if request.to in self._attackers.sites]
        if not any(models) or self._memory.path(step).exists():
            return
        received = {name: x for name, x in next(filter(None, models)).items() if x.is_floating_point()}
        before = self._memory.latest(before=step)
        last = select(before.tensors, RECEIVED) if before is not None else {}
        change = {name: x.double() - last[name].double() for name, x in received.items() if name in last}
        self._memory.save(step, State(), {}, prefixed(received, RECEIVED) | prefixed(change, CHANGE))


class AttackedReplies:
    """Replies of a step, in which the updates of attackers are changed. The metadata stay unchanged.

    Iteration yields (site, tensors). Repeated iteration gives the same tensors.

    Args:
        replies: Original replies.
        attackers: The attackers.
        seed: Seed of the run. Seed and round decide the random numbers of the attackers.
        round_: Round of the replies.
        last_change: Change of the server's model between the last two requests to attackers; None if not needed.

    Attributes:
        meta: Maps each site to the metadata of its reply.
        missing: Sites that received a request and sent no usable reply.
    """

    def __init__(
        self, replies: Replies, attackers: Attackers, seed: int, round_: int, last_change: Tensors | None = None
    ) -> None:
        self._replies, self._attackers, self._seed, self._round = replies, attackers, seed, round_
        self._last_change = last_change or {}
        self.meta, self.missing = replies.meta, replies.missing

    def __len__(self) -> int:
        return len(self._replies)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        generator, adversary = make_generator(self._seed, "poison", self._round), self._attackers.adversary
        for site, tensors in self._replies:
            updates = {name: x for name, x in select(tensors, MODEL_PREFIX).items() if x.is_floating_point()}
            if site in self._attackers.sites and updates and isinstance(adversary, ReplyAdversary):
                changed = adversary.reply(updates, self._knowledge, generator)
                tensors = tensors | prefixed(
                    {name: x.to(updates[name].dtype) for name, x in changed.items()}, MODEL_PREFIX
                )
            yield site, tensors

    @cached_property
    def _knowledge(self) -> AttackerKnowledge:
        present = tuple(site for site in self._attackers.sites if site in self.meta)
        return AttackerKnowledge(self._replies, present, self._last_change)
