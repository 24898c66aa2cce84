"""Attackers in a simulated federation: sites that train on wrong data, or reply with something else than they trained.

The setting `poison` names them. Nothing of it exists outside a simulation: no server can set it at a site, and only the
carrier that has all sites on this machine changes replies. It stands in ``run.json`` and on the report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from scipy.stats import norm

from medfl.carriers.local import LocalCarrier
from medfl.contract import Method, Replies
from medfl.core.carrier import Answer
from medfl.core.site import Splits
from medfl.data.pooled import labels_of, patients_of
from medfl.errors import SettingsError
from medfl.methods.aggregation import mean_update
from medfl.settings import Settings, Strict, read_settings
from medfl.task import Task
from medfl.types import MODEL, Dataset, Tensors, Visited
from medfl.utils.rng import make_generator
from medfl.utils.wire import prefixed, select

logger = logging.getLogger(__name__)

ON_DATA = ("label_flip", "backdoor")
"""Attacks on an attacker's training images; the others are on its replies."""

WEAK = 0.3
"""Standard deviations below which ALIE hardly moves anything."""


class Poison(Strict):
    """What the attackers do; all of them do the same.

    Attributes:
        attack: ``label_flip`` calls class y of C classes C - 1 - y, or `source` `target`; ``backdoor`` puts a bright
            square into a corner and calls the image `target` (Gu, Dolan-Gavitt, Garg, arXiv 1708.06733);
            ``sign_flip`` replies with -scale times the update, ``scaling`` with scale times it (Bagdasaryan et al.,
            AISTATS 2020), ``free_rider`` with zeros; ``alie`` with the mean of the honest less z of their standard
            deviations (Baruch, Baruch, Goldberg, NeurIPS 2019).
        sites: Names of the attackers.
        rate: Share of an attacker's training images that are changed.
        source: Class whose images ``label_flip`` changes; None is all, then y becomes C - 1 - y.
        target: Class that they are called.
        patch: Pixels along each side of the square.
        scale: Of ``sign_flip`` and ``scaling``.
        z: Of ``alie``; None is the largest for which a majority can still look farther out: `alie_z`.
    """

    attack: Literal["label_flip", "backdoor", "sign_flip", "scaling", "free_rider", "alie"]
    sites: tuple[str, ...] = Field(min_length=1)
    rate: float = Field(1.0, gt=0, le=1)
    source: int | None = Field(None, ge=0)
    target: int = Field(0, ge=0)
    patch: int = Field(3, ge=1)
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)
    z: float | None = Field(None, ge=0, allow_inf_nan=False)


def read_poison(settings: Settings, method: Method, task: Task, sites: Mapping[str, Splits]) -> Poison | None:
    """The attackers of a run; None without any.

    Raises:
        SettingsError: If the setting is not valid, or the attack is not possible with these sites, task and method.
    """
    if not settings.poison:
        return None
    poison = read_settings(Poison, settings.poison, "the setting 'poison'")
    if unknown := sorted(set(poison.sites) - set(sites)):
        raise SettingsError(f"'poison.sites' names sites that are not there: {unknown}. Sites: {sorted(sites)}.")
    if method.pools_data:
        raise SettingsError("'poison' needs sites that train themselves, and this method pools their data.")
    classes, data = len(task.objective.titles), [sites[name].train for name in poison.sites]
    if poison.attack in ON_DATA:
        if any(train.class_labels is None or isinstance(train, Visited) for train in data):
            raise SettingsError(f"The attack '{poison.attack}' needs images in an array, each of a class.")
        if max(poison.target, poison.source or 0) >= classes:
            raise SettingsError(f"'poison.target' and 'poison.source' are classes from 0 to {classes - 1}.")
        if poison.attack == "backdoor" and (task.scale is None or min(task.scale.shape[1:], default=0) < poison.patch):
            raise SettingsError(f"The attack 'backdoor' needs images that a square of {poison.patch} pixels fits into.")
    elif method.sends.get(MODEL) != "update":
        raise SettingsError(f"The attack '{poison.attack}' is on updates of a model, and this method sends none.")
    logger.warning("POISONED simulation: attack '%s' at %s.", poison.attack, ", ".join(sorted(poison.sites)))
    return poison


# ---- data


def poisoned_sites(sites: Mapping[str, Splits], poison: Poison, task: Task, seed: int) -> dict[str, Splits]:
    """The sites, with wrong training data at the attackers; validation and test images stay as they are."""
    return {
        name: replace(data, train=PoisonedData(data.train, poison, task, make_generator(seed, "poison", name)))
        if name in poison.sites and poison.attack in ON_DATA and len(data.train)
        else data
        for name, data in sites.items()
    }


class PoisonedData:
    """An attacker's training images: wrong labels, and for a backdoor a bright square in the last corner."""

    def __init__(self, data: Dataset, poison: Poison, task: Task, generator: torch.Generator) -> None:
        self._data, self._patch, self._scale = data, poison.patch, task.scale
        labels = labels_of(data).clone()
        flips = poison.attack == "label_flip" and poison.source is not None
        rows = (labels == poison.source).nonzero().flatten() if flips else torch.arange(len(labels))
        rows = rows[torch.randperm(len(rows), generator=generator)[: round(poison.rate * len(rows))]]
        mirrored = poison.attack == "label_flip" and poison.source is None
        labels[rows] = len(task.objective.titles) - 1 - labels[rows] if mirrored else poison.target
        self.class_labels, self.patients = labels, patients_of(data)
        self._stamped = torch.zeros(len(labels), dtype=torch.bool)
        self._stamped[rows] = poison.attack == "backdoor"

    def __len__(self) -> int:
        return len(self._data)

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs with the square where it belongs, and wrong targets."""
        inputs, _ = self._data.batch(rows)
        stamped = self._stamped[rows]
        if self._scale is not None and stamped.any():
            inputs = inputs.clone()
            bright = self._scale.seen(torch.ones_like(inputs))
            corner = (..., *[slice(-self._patch, None)] * (inputs.dim() - 2))
            inputs[corner] = torch.where(stamped.reshape(-1, *[1] * (inputs.dim() - 1)), bright[corner], inputs[corner])
        return inputs, self.targets(rows)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Wrong targets."""
        true = self._data.targets(rows)
        return self.class_labels[rows].to(true.dtype).reshape(true.shape)


# ---- replies


class PoisonedCarrier(LocalCarrier):
    """Attackers reply with something else than they trained: changed behind their filters, before it is folded."""

    def __init__(self, poison: Poison, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._poison = poison

    def replies(self, answers: list[Answer], missing: list[str]) -> Replies:
        """The replies, with the attackers' changed."""
        return PoisonedReplies(super().replies(answers, missing), self._poison)


class PoisonedReplies:
    """Replies of a step in which some sites are attackers. Sites' sizes and facts stay as they are."""

    def __init__(self, replies: Replies, poison: Poison) -> None:
        self._replies, self._poison = replies, poison
        self.meta, self.missing = replies.meta, replies.missing

    def __len__(self) -> int:
        return len(self._replies)

    def __iter__(self) -> Iterator[tuple[str, Tensors]]:
        agreed = self._agreed() if self._poison.attack == "alie" else {}
        for site, tensors in self._replies:
            if site not in self._poison.sites:
                yield site, tensors
                continue
            floats = {name: x for name, x in select(tensors, MODEL).items() if x.is_floating_point()}
            yield site, tensors | prefixed({name: self._changed(name, x, agreed) for name, x in floats.items()}, MODEL)

    def _changed(self, name: str, update: torch.Tensor, agreed: Tensors) -> torch.Tensor:
        if self._poison.attack == "alie":
            return agreed[name].to(update.dtype) if name in agreed else update
        factor = {"sign_flip": -self._poison.scale, "scaling": self._poison.scale, "free_rider": 0.0}
        return update * factor[self._poison.attack]

    def _agreed(self) -> Tensors:
        """What all attackers reply under ALIE: they know all honest replies."""
        honest = [site for site in self.meta if site not in self._poison.sites]
        if len(honest) < 2:
            return {}
        z = alie_z(len(self.meta), len(self.meta) - len(honest)) if self._poison.z is None else self._poison.z
        if z < WEAK:
            logger.warning("ALIE with z = %.2f is next to no attack: choose poison.z, or more attackers.", z)
        mean = mean_update(self._replies, dict.fromkeys(honest, 1 / len(honest)))
        squares = {name: torch.zeros_like(x) for name, x in mean.items() if x.is_floating_point()}
        for site, tensors in self._replies:
            for name, x in select(tensors, MODEL).items() if site in honest else ():
                if name in squares:
                    squares[name] += (x.double() - mean[name]).square()
        return {name: mean[name] - z * (total / (len(honest) - 1)).sqrt() for name, total in squares.items()}


def alie_z(sites: int, attackers: int) -> float:
    """ALIE's z: so many honest replies are farther out that with them attackers are a majority; at least 0.

    Phi^-1((n - m - s) / (n - m)) with s = floor(n / 2) + 1 - m of n sites with m attackers (Baruch et al., section 3).
    """
    supporters = sites // 2 + 1 - attackers
    share = (sites - attackers - supporters) / (sites - attackers)
    return max(0.0, float(norm.ppf(min(share, 1 - 1e-9))))
