"""The ids of a training configuration that a federation builds: every other one has no effect in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medfl.bundle.adopt.cases import Cases
from medfl.bundle.adopt.config import Config, references_of
from medfl.bundle.adopt.parts import Parts
from medfl.errors import SettingsError

LOADER = ("collate_fn", "batch_size")
"""Arguments of the training loader that a federation takes."""

DATASET = ("data", "transform")
"""Arguments of a data set that a federation takes."""

RUN = ("bundle_root", "dataset_dir", "device", "seed", "imports", "_meta_", "_requires_", "initialize")
"""Top-level ids that a run sets or MONAI itself reads."""


@dataclass(frozen=True)
class Used:
    """The ids of a configuration that a federation builds.

    Attributes:
        ids: Ids that are built, with all that is below them.
        replaced: Ids below those that a run puts something else in place of.
    """

    ids: frozenset[str]
    replaced: frozenset[str]

    @classmethod
    def of(cls, adopted: Mapping[str, Any]) -> Used:
        """Return what ``adopted`` of a ``federate.json`` says.

        Raises:
            SettingsError: If the bundle was adopted by an older version.
        """
        if "used" not in adopted:
            raise SettingsError(
                "outdated_adoption",
                "the bundle was adopted by an older version: expected 'adopted#used' in its configs/federate.json, the "
                "ids that a run builds. Adopt it again.",
                id="adopted#used",
            )
        return cls(frozenset(adopted["used"]), frozenset(adopted["replaced"]))

    def has_effect(self, id_: str) -> bool:
        """True if another value of an id, or of a part of it, changes what a federation builds."""
        if _is_replaced(id_, self.ids, self.replaced):
            return any(_is_within(used, id_) for used in self.ids)
        return any(_is_within(id_, used) or _is_within(used, id_) for used in self.ids)


def read_used(configs: Collection[Config], parts: Parts, cases: Cases) -> Used:
    """Follow all references from the parts that a run builds.

    Args:
        configs: The training configuration, and the same with ``evaluate`` laid over it.
        parts: The parts of the training configuration.
        cases: Where a site's cases enter.
    """
    replaced, roots = frozenset(_replaced(parts, cases)), {*RUN, *_built(parts, cases)}
    ids: set[str] = set()
    for config in configs:
        waiting = list(roots)
        seen: set[str] = set()
        while waiting:
            id_ = waiting.pop()
            if id_ not in config or id_ in seen or _is_replaced(id_, roots, replaced):
                continue
            seen.add(id_)
            for place, text in config.texts(id_):
                if not _is_replaced(place, {*roots, id_}, replaced):
                    waiting += [end for name in references_of(place, text) for end in (name, config.follow(name))]
        ids |= seen
    return Used(frozenset(ids), replaced)


def _built(parts: Parts, cases: Cases) -> Iterator[str]:
    """The ids that a run asks the configuration for."""
    ids = parts.ids()
    containers = ("trainer", "train_dataset", "train_dataloader", "train_handlers", "val_handlers", "val_dataset")
    left_out = ("train_postprocessing", "train_key_metric", "network")
    yield from (id_ for name, id_ in ids.items() if id_ is not None and name not in (*containers, *left_out))
    if parts.train_dataloader:
        yield from (f"{parts.train_dataloader}#{name}" for name in LOADER)
    for dataset in filter(None, (parts.train_dataset, parts.val_dataset)):
        names = ("",) if cases.mode == "dataset_dir" else DATASET
        yield from (f"{dataset}#{name}" if name else dataset for name in names)
    yield from filter(None, (cases.train, cases.validation, cases.test, *cases.list_files))


def _replaced(parts: Parts, cases: Cases) -> Iterator[str]:
    if parts.evaluator:
        yield from (f"{parts.evaluator}#{name}" for name in ("network", "val_handlers"))
    if parts.val_handlers:
        yield parts.val_handlers
    if parts.val_dataloader:
        yield f"{parts.val_dataloader}#num_workers"
    if cases.mode != "dataset_dir":
        yield from filter(None, (parts.train_dataset, parts.val_dataset))


def _is_replaced(id_: str, built: Collection[str], replaced: Collection[str]) -> bool:
    """True if the innermost of the given ids around an id is one that a run puts something else in place of."""
    inner = max((len(other) for other in replaced if _is_within(id_, other)), default=-1)
    return inner > max((len(other) for other in built if _is_within(id_, other)), default=-1)


def unused_ids(config: Config, used: Used, content: Mapping[str, object], known: Collection[str]) -> Iterator[str]:
    """Yield the ids that have no effect, the outermost of each; ids that are described elsewhere are passed over.

    Args:
        config: The training configuration.
        used: What has an effect.
        content: Ids at the top to their values.
        known: Ids that are described elsewhere, with all below them.
    """
    waiting = [name for name in reversed([*content]) if name not in (*RUN, "run", "finalize")]
    while waiting:
        id_ = waiting.pop()
        value = config.get(id_)
        if any(_is_within(id_, other) for other in (*used.ids, *known)):
            continue
        below = any(_is_within(other, id_) for other in (*used.ids, *known))
        if below and isinstance(value, Mapping):
            waiting += [f"{id_}#{name}" for name in reversed([*value])]
        else:
            yield id_


def lost_steps(config: Config, parts: Parts) -> list[SettingsError]:
    """Return errors for the steps of ``initialize`` or ``run`` that change the network or the optimiser.

    They can't be left out. A run builds these anew for each site and each training, so what such a step does would be
    lost.
    """
    touched = {id_ for id_ in (parts.network, parts.trained, parts.optimizer, "network") if id_}
    engines = {id_ for id_ in (parts.trainer, parts.evaluator) if id_}
    problems = []
    for sequence in ("initialize", "run"):
        for place, text in config.texts(sequence):
            reached: set[str] = set()
            waiting = references_of(place, text)
            while waiting:
                id_ = waiting.pop()
                if id_ in reached or any(_is_within(id_, engine) for engine in engines):
                    continue
                reached.add(id_)
                waiting += config.references(id_)
            if conflicts := sorted(reached & touched):
                message = (
                    f"'{place}' ({text}) works on '{conflicts[0]}': expected a step that leaves network and optimiser "
                    f"as they are, for a run builds its own. Do it in the expression at '{parts.trained}'"
                )
                problems.append(SettingsError("lost_step", message, id=place, step=text, conflict=conflicts[0]))
    return problems


def _is_within(id_: str, other: str) -> bool:
    """True if an id is another one or lies below it."""
    return id_ == other or id_.startswith(f"{other}#")
