"""Attackers in a simulated federation: sites that train on wrong data, or reply with something else than they trained.

The setting `adversaries` names them, and what they do (`medfl_attacks.adversaries`). Nothing of it exists outside a
simulation: no server can set it at a site, and only the carrier that has all sites on this machine changes replies. It
stands in ``run.json`` and on the report. Attackers keep their validation images; no test image of theirs is in any
score.
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
from medfl.data.pooled import Empty, labels_of, patients_of
from medfl.engine.adversaries.adversary import DataAdversary, Knowledge, ReplyAdversary
from medfl.engine.backend import Evaluation, SiteResult, StepResult
from medfl.engine.backends.local import LocalBackend
from medfl.engine.site import Splits
from medfl.engine.store import Steps, Store
from medfl.errors import PluginError, SettingsError
from medfl.plugins import Registry
from medfl.settings import Settings, Strict, participants, read_settings
from medfl.task import Scale, Task
from medfl.toolkit.robust.rule import chance_of_more
from medfl.types import MODEL, Dataset, Tensors, Visited
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

RECEIVED, CHANGE = "received/", "change/"
"""What attackers note at a step: the model that came with an order, and how it differs from the one before."""


class _Who(Strict):
    """The part of the setting that all attacks have.

    Attributes:
        attack: Name of the attack (`medfl list adversaries`).
        sites: Names of the attackers.
    """

    attack: str
    sites: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Attackers:
    """Who attacks in a simulation, and how.

    Attributes:
        attack: Name of the attack.
        sites: Names of the attackers, sorted; at least one.
        adversary: Change of the attackers' data or replies.
    """

    attack: str
    sites: tuple[str, ...]
    adversary: DataAdversary | ReplyAdversary


def read_attackers(setting: Mapping[str, Any], registry: Registry) -> Attackers | None:
    """The attackers that the setting `adversaries` names; None without any.

    Args:
        setting: ``attack``, ``sites``, and the settings of the attack.
        registry: Knows the attacks.

    Raises:
        PluginError: If the attack is unknown or none.
        SettingsError: If a setting is unknown or not valid.
    """
    if not setting:
        return None
    common = {name: value for name, value in setting.items() if name in _Who.model_fields}
    who = read_settings(_Who, common, "the setting 'adversaries'")
    kind = registry.adversary(who.attack)
    if not (isinstance(kind, type) and issubclass(kind, DataAdversary | ReplyAdversary)):
        raise PluginError(
            "wrong_type",
            f"expected the adversary '{who.attack}' to be a class derived from DataAdversary or ReplyAdversary of "
            f"medfl.engine.adversaries.adversary; got {kind!r}.",
            name=who.attack,
            found=repr(kind),
        )
    own = {name: value for name, value in setting.items() if name not in common}
    adversary = read_settings(kind, own, f"the attack '{who.attack}' (setting 'adversaries')", also=_Who.model_fields)
    return Attackers(who.attack, tuple(sorted(set(who.sites))), adversary)


def check_attackers(
    attackers: Attackers, settings: Settings, method: Method, task: Task, sites: Mapping[str, Splits]
) -> None:
    """Refuse an attack that is not possible with these sites, task and method, and say that there is one.

    Raises:
        SettingsError: Naming what was expected.
    """
    attack, adversary = attackers.attack, attackers.adversary
    if unknown := sorted(set(attackers.sites) - set(sites)):
        raise SettingsError(
            "unknown_site",
            f"'adversaries.sites' names sites that are not there: {unknown}. Sites: {sorted(sites)}.",
            sites=unknown,
            setting="adversaries.sites",
        )
    if "pooled_data" in method.needs:
        raise SettingsError(
            "method_not_supported",
            "'adversaries' needs sites that train themselves, and this method pools their data.",
            feature="adversaries",
        )
    if isinstance(adversary, DataAdversary):
        data = [sites[name].train for name in attackers.sites]
        if any(train.class_labels is None or isinstance(train, Visited) for train in data):
            raise SettingsError(
                "data_not_supported",
                f"The attack '{attack}' needs images in an array, each of a class.",
                feature="adversaries",
                attack=attack,
            )
        adversary.check(len(task.objective.titles), task.scale)
    elif method.sends.get(MODEL) != "update" or method.filters():
        raise SettingsError(
            "method_not_supported",
            f"The attack '{attack}' is on updates of a model, and this method sends none, or sends them encoded.",
            feature="adversaries",
            attack=attack,
        )
    candidates = [name for name, data in sites.items() if len(data.train)]
    bad = len(set(candidates) & set(attackers.sites))
    if isinstance(adversary, ReplyAdversary):
        adversary.check(len(candidates), bad)
    logger.warning("POISONED simulation: attack '%s' at %s.", attack, ", ".join(attackers.sites))
    drawn = participants(len(candidates), settings.fraction)
    if settings.robust is not None and (chance := chance_of_more(len(candidates), bad, drawn, settings.robust.f)):
        logger.warning(
            "In a round more than f = %d of the %d sites that are drawn attack with probability %.4f.",
            settings.robust.f,
            drawn,
            chance,
        )


# ---- data


def attacked_sites(sites: Mapping[str, Splits], attackers: Attackers, task: Task, seed: int) -> dict[str, Splits]:
    """The sites; attackers have no test images and, if that is the attack, wrong training data."""
    generator, attacked = make_generator(seed, "poison"), dict(sites)
    for name in attackers.sites:
        data, adversary = sites[name], attackers.adversary
        train = data.train
        if isinstance(adversary, DataAdversary) and len(train):
            train = AttackedData(train, adversary, len(task.objective.titles), task.scale, generator)
        attacked[name] = replace(data, train=train, test=Empty(), shared=None)
    return attacked


class AttackedData:
    """An attacker's training images: some are changed, and called something else.

    Args:
        data: The images as they are, each of a class.
        adversary: Change of the attackers' data.
        classes: How many classes there are.
        scale: Of the images.
        generator: Draws which images are changed.
    """

    def __init__(
        self, data: Dataset, adversary: DataAdversary, classes: int, scale: Scale | None, generator: torch.Generator
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
        """Inputs, changed where that is the attack, and wrong targets."""
        inputs, _ = self._data.batch(rows)
        changed = self._changed[rows]
        if changed.any():
            inputs = inputs.clone()
            inputs[changed] = self._adversary.change(inputs[changed], self._scale)
        return inputs, self.targets(rows)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Wrong targets."""
        true = self._data.targets(rows)
        return self._labels[rows].to(true.dtype).reshape(true.shape)


# ---- replies


class AttackedBackend(LocalBackend):
    """Attackers reply with something else than they trained: changed behind their filters, before it is folded.

    Args:
        attackers: Who they are; they change their replies.
        seed: The run's.
        memory: Where they note what they received.
        **options: Arguments of `LocalBackend`.
    """

    def __init__(self, attackers: Attackers, seed: int, memory: Store, **options: Any) -> None:
        super().__init__(**options)
        self._attackers, self._seed, self._memory = attackers, seed, memory
        self._round = 0

    def step(
        self, step: int, round_: int, requests: list[Request], evaluation: Evaluation | None = None, keep: Steps = ()
    ) -> StepResult:
        """Run a step. Attackers that need it record the model they receive."""
        self._round = round_  # a run that is continued has the same rounds, and other numbers of steps
        if isinstance(self._attackers.adversary, ReplyAdversary) and self._attackers.adversary.remembers:
            self._remember(step, requests)
        return super().step(step, round_, requests, evaluation, keep)

    def replies(self, results: list[SiteResult], missing: list[str]) -> Replies:
        """The replies, with the attackers' changed."""
        replies = super().replies(results, missing)
        if not isinstance(self._attackers.adversary, ReplyAdversary) or not results:
            return replies
        step, known = results[0].step, Tensors()
        if self._memory.path(step).exists():
            known = select(self._memory.load(step).tensors, CHANGE)
        return AttackedReplies(replies, self._attackers, self._seed, self._round, known)

    def _remember(self, step: int, requests: list[Request]) -> None:
        """The model that came, and its change; once, so that a step that is done again finds the same."""
        models = [select(request.tensors, MODEL) for request in requests if request.to in self._attackers.sites]
        if not any(models) or self._memory.path(step).exists():
            return
        received = {name: x for name, x in next(filter(None, models)).items() if x.is_floating_point()}
        before = self._memory.latest(before=step)
        last = select(before.tensors, RECEIVED) if before is not None else {}
        change = {name: x.double() - last[name].double() for name, x in received.items() if name in last}
        self._memory.save(step, State(), {}, prefixed(received, RECEIVED) | prefixed(change, CHANGE))


class AttackedReplies:
    """Replies of a step in which some sites are attackers. Sites' sizes and facts stay as they are.

    Args:
        replies: As they were sent.
        attackers: Who they are, and how they change a reply.
        seed: The run's.
        round_: Their round; with the seed it decides what attackers draw, however often replies are read.
        last_change: As in `medfl.engine.adversaries.adversary.Knowledge`.
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
            updates = {name: x for name, x in select(tensors, MODEL).items() if x.is_floating_point()}
            if site in self._attackers.sites and updates and isinstance(adversary, ReplyAdversary):
                changed = adversary.reply(updates, self._knowledge, generator)
                tensors = tensors | prefixed({name: x.to(updates[name].dtype) for name, x in changed.items()}, MODEL)
            yield site, tensors

    @cached_property
    def _knowledge(self) -> Knowledge:
        present = tuple(site for site in self._attackers.sites if site in self.meta)
        return Knowledge(self._replies, present, self._last_change)
