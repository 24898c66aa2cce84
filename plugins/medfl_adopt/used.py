"""The ids of a training configuration that a federation builds: every other one has no effect in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from medfl.bundle.adopted import Used, is_replaced, is_within
from medfl.errors import SettingsError
from medfl_adopt.cases import Cases
from medfl_adopt.config import Config, references_of
from medfl_adopt.parts import Parts

LOADER = ("collate_fn", "batch_size")
"""Arguments of the training loader that a federation takes."""

DATASET = ("data", "transform")
"""Arguments of a data set that a federation takes."""

RUN = ("bundle_root", "dataset_dir", "device", "seed", "imports", "_meta_", "_requires_", "initialize")
"""Top-level ids that a run sets or MONAI itself reads."""


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
            if id_ not in config or id_ in seen or is_replaced(id_, roots, replaced):
                continue
            seen.add(id_)
            for place, text in config.texts(id_):
                if not is_replaced(place, {*roots, id_}, replaced):
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
        if any(is_within(id_, other) for other in (*used.ids, *known)):
            continue
        below = any(is_within(other, id_) for other in (*used.ids, *known))
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
                if id_ in reached or any(is_within(id_, engine) for engine in engines):
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
