"""Find the ids of a training configuration that a federation builds. All other ids have no effect in a run.

An id is the path of an entry in a bundle's configuration, such as ``train#trainer``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from medfl.bundle.adopted import UsedIds, is_replaced, is_within
from medfl.errors import SettingsError
from medfl_adopt.cases import CaseLayout
from medfl_adopt.config import BundleConfig, find_references
from medfl_adopt.parts import PartIds

USED_LOADER_ARGUMENTS = ("collate_fn", "batch_size")
"""Arguments of the training loader that a federation uses."""

USED_DATASET_ARGUMENTS = ("data", "transform")
"""Arguments of a data set that a federation uses."""

RUN_IDS = ("bundle_root", "dataset_dir", "device", "seed", "imports", "_meta_", "_requires_", "initialize")
"""Top-level ids that a run sets, or that MONAI itself reads."""


def find_used_ids(configs: Collection[BundleConfig], parts: PartIds, cases: CaseLayout) -> UsedIds:
    """Return all ids that affect a run: the parts that a run builds, and the ids to which their references lead.

    Args:
        configs: The training configuration, and the training configuration overlaid with ``evaluate``.
        parts: Ids of the parts of the training configuration.
        cases: Ids and files that define a site's cases.
    """
    replaced, roots = frozenset(_replaced_ids(parts, cases)), {*RUN_IDS, *_built_ids(parts, cases)}
    ids: set[str] = set()
    for config in configs:
        waiting = list(roots)
        seen: set[str] = set()
        while waiting:
            id_ = waiting.pop()
            if id_ not in config or id_ in seen or is_replaced(id_, roots, replaced):
                continue
            seen.add(id_)
            for place, text in config.iterate_texts(id_):
                if not is_replaced(place, {*roots, id_}, replaced):
                    waiting += [end for name in find_references(place, text) for end in (name, config.follow(name))]
        ids |= seen
    return UsedIds(frozenset(ids), replaced)


def _built_ids(parts: PartIds, cases: CaseLayout) -> Iterator[str]:
    """Yield the ids that a run builds directly."""
    ids = parts.ids()
    containers = ("trainer", "train_dataset", "train_dataloader", "train_handlers", "val_handlers", "val_dataset")
    left_out = ("train_postprocessing", "train_key_metric", "network")
    yield from (id_ for name, id_ in ids.items() if id_ is not None and name not in (*containers, *left_out))
    if parts.train_dataloader:
        yield from (f"{parts.train_dataloader}#{name}" for name in USED_LOADER_ARGUMENTS)
    for dataset in filter(None, (parts.train_dataset, parts.val_dataset)):
        names = ("",) if cases.mode == "dataset_dir" else USED_DATASET_ARGUMENTS
        yield from (f"{dataset}#{name}" if name else dataset for name in names)
    yield from filter(None, (cases.train, cases.validation, cases.test, *cases.list_files))


def _replaced_ids(parts: PartIds, cases: CaseLayout) -> Iterator[str]:
    """Yield the ids that a run replaces."""
    if parts.evaluator:
        yield from (f"{parts.evaluator}#{name}" for name in ("network", "val_handlers"))
    if parts.val_handlers:
        yield parts.val_handlers
    if parts.val_dataloader:
        yield f"{parts.val_dataloader}#num_workers"
    if cases.mode != "dataset_dir":
        yield from filter(None, (parts.train_dataset, parts.val_dataset))


def find_unused_ids(
    config: BundleConfig, used: UsedIds, content: Mapping[str, object], known: Collection[str]
) -> Iterator[str]:
    """Yield the ids that have no effect in a run. If all of an entry has no effect, only the entry's own id is yielded.

    Args:
        config: The training configuration.
        used: Ids that have an effect.
        content: Top-level ids with their values.
        known: Ids that are described elsewhere; they and all ids below them are skipped.
    """
    waiting = [name for name in reversed([*content]) if name not in (*RUN_IDS, "run", "finalize")]
    while waiting:
        id_ = waiting.pop()
        value = config.get(id_)
        if any(is_within(id_, other) for other in (*used.ids, *known)):
            continue
        below = any(is_within(other, id_) for other in (*used.ids, *known))
        if below and isinstance(value, Mapping):
            waiting += [f"{id_}#{name}" for name in reversed([*value])]
        else:
            yield id_


def find_lost_steps(config: BundleConfig, parts: PartIds) -> list[SettingsError]:
    """Return an error for each step of ``initialize`` or ``run`` that changes the network or the optimizer.

    Such a step can't be ignored, but its effect would be lost: a run builds network and optimizer again for each site
    and each training.
    """
    touched = {id_ for id_ in (parts.network, parts.trained, parts.optimizer, "network") if id_}
    engines = {id_ for id_ in (parts.trainer, parts.evaluator) if id_}
    problems = []
    for sequence in ("initialize", "run"):
        for place, text in config.iterate_texts(sequence):
            reached: set[str] = set()
            waiting = find_references(place, text)
            while waiting:
                id_ = waiting.pop()
                if id_ in reached or any(is_within(id_, engine) for engine in engines):
                    continue
                reached.add(id_)
                waiting += config.references(id_)
            if conflicts := sorted(reached & touched):
                message = (
                    f"'{place}' ({text}) changes '{conflicts[0]}': expected a step that changes neither network nor "
                    f"optimizer, because a run builds its own. Make the change in the expression at '{parts.trained}'"
                )
                problems.append(SettingsError("lost_step", message, id=place, step=text, conflict=conflicts[0]))
    return problems
