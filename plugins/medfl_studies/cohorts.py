"""A study's data: found, prepared and partitioned before the first run. Each folder is written whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from medfl.ingest.prepare import prepare
from medfl.ingest.spec import DatasetSpec

from medfl.bundle.adopted import site_folders
from medfl.data.datalists import FILE
from medfl.engine.runs.records import repetition
from medfl.errors import DataError, StoreError
from medfl.partition.partition import partition
from medfl.partition.plan import PartitionPlan
from medfl.plugins import Registry
from medfl.records.partition import Partition
from medfl.utils.text import Say
from medfl_report.sections.holdings import draw_partition
from medfl_studies.checks import SOURCE_VARIABLE, difference, make_plan
from medfl_studies.jobs import dataset_dir, drops_public, public_dir
from medfl_studies.preps import Prep, option_defaults, preparation_of, release_of, sized
from medfl_studies.records.study_files import PoolPreparation
from medfl_studies.schema import DataSet, Study, slug


def check_data(study: Study, source: Path | None, out: Path, registry: Registry, adopted: bool = False) -> None:
    """Look for everything that `make_data` will need; nothing is written.

    Args:
        study: The study.
        source: Folder of the data as they are, or None.
        out: Folder of the study.
        registry: Knows the schemes.
        adopted: Whether sites have files as a stock bundle says, and no lists of medfl's.

    Raises:
        DataError: If data are missing.
        SettingsError: If a partition is not possible.
        PluginError: If a scheme is unknown.
        StoreError: If a partition that is there was made in another way.
    """
    for name, data in study.data.items():
        if data.partition is not None:
            for seed, fold in study.repetitions(data):
                _is_there(
                    dataset_dir(out, source, name, data, seed, fold), _plan(out, name, data, seed, registry, fold)
                )
        if data.prep is None and data.partition is None and adopted:
            site_folders(_source(name, source) / str(data.folder))
        elif data.prep is None:
            _folder(name, data, source)
        else:
            _check_prep(name, sized(data.prep, data.size, registry), source, _pool(out, name), registry)
        if data.public is not None:
            _check_prep(name, sized(data.public, data.size, registry), source, public_dir(out, name), registry)


def make_data(study: Study, source: Path | None, out: Path, registry: Registry, say: Say) -> None:
    """Prepare and partition what is not there yet.

    Args:
        study: A study that `check_data` let pass.
        source: Folder of the data as they are.
        out: Folder of the study.
        registry: Knows the schemes.
        say: Gets a line for each step, licences and warnings.
    """
    for name, data in study.data.items():
        if data.public is not None:
            _prepared(name, sized(data.public, data.size, registry), source, public_dir(out, name), registry, say)
        if data.partition is None:
            continue
        if data.prep is not None:
            pool = _prepared(name, sized(data.prep, data.size, registry), source, _pool(out, name), registry, say)
        else:
            pool = _folder(name, data, source)
        for seed, fold in study.repetitions(data):
            place, plan = dataset_dir(out, source, name, data, seed, fold), _plan(out, name, data, seed, registry, fold)
            if not _is_there(place, plan):
                say(f"partition: {plan.scheme} of {name}, {repetition(plan.seed, fold)} -> {place}")
                draw_partition(place, partition(pool, place, plan, registry.partition(plan.scheme)))
                for warning in Partition.read(place / Partition.NAME).warnings:
                    say(f"warning: {warning}")


def _plan(out: Path, name: str, data: DataSet, seed: int, registry: Registry, fold: int | None) -> PartitionPlan:
    """The plan of a partition, with the public data that it compares with the private ones."""
    plan = make_plan(name, data, seed, registry, fold)
    return replace(plan, public=str(public_dir(out, name))) if drops_public(data) else plan


def find_release(name: str, prep: Prep, source: Path | None, registry: Registry) -> DatasetSpec:
    """A data set with its options and its release.

    Raises:
        DataError: If it is not in the source folder, or there is no source folder.
        PluginError: If there is no such data set.
        SettingsError: If an option is unknown or impossible.
    """
    return release_of(prep, _source(name, source), registry)


def _check_prep(name: str, prep: Prep, source: Path | None, pool: Path, registry: Registry) -> None:
    """Check the options, and look for the release unless the pooled data set is there."""
    preparation_of(prep, registry)
    if not (pool / FILE).is_file():
        find_release(name, prep, source, registry).look()


def _prepared(name: str, prep: Prep, source: Path | None, pool: Path, registry: Registry, say: Say) -> Path:
    """The pooled data set, prepared now if it is not there yet."""
    wanted, path = preparation_of(prep, registry), pool.with_name(PoolPreparation.NAME)
    if not (pool / FILE).is_file():
        options = "".join(f", {key} {value}" for key, value in wanted.options.items() if value is not None)
        say(f"prep: dataset {wanted.dataset}{options} -> {pool}")
        spec = find_release(name, prep, source, registry)
        pool.parent.mkdir(parents=True, exist_ok=True)
        wanted.write(path)
        prepare(spec, pool, say=say)
    elif path.is_file():
        _check_preparation(pool, PoolPreparation.read(path), wanted, registry.dataset(prep.dataset))
    return pool


def _check_preparation(pool: Path, before: PoolPreparation, wanted: PoolPreparation, kind: type[DatasetSpec]) -> None:
    """Refuse a pooled data set that was prepared in another way.

    An option that its record does not name had its default: a data set may get a new option.
    """
    now = {"dataset": wanted.dataset, **wanted.options}
    earlier = {**option_defaults(kind), "dataset": before.dataset, **before.options}
    changed = [key for key in now if earlier.get(key) != now[key]]
    if changed:
        differences = ", ".join(f"{key} was {earlier.get(key)}, now {now[key]}" for key in changed)
        raise StoreError(
            "other_preparation",
            f"'{pool}' was prepared in another way: {differences}. Give another --out.",
            path=pool,
            expected={key: now[key] for key in changed},
            found={key: earlier.get(key) for key in changed},
        )


def _pool(out: Path, name: str) -> Path:
    return out / "data" / slug(name) / "pooled"


def _folder(name: str, data: DataSet, source: Path | None) -> Path:
    """A folder of the source: pooled if the data set is to be partitioned, else one folder for each site."""
    assert data.folder is not None  # the schema: either 'prep' or 'folder'
    folder = _source(name, source) / data.folder
    pattern = "*/" + FILE if data.partition is None else FILE
    if not any(folder.glob(pattern)):
        kind = "a partitioned data set (site folders)" if data.partition is None else "a pooled data set"
        raise DataError(
            "missing_dataset",
            f"data set '{name}': expected {kind} at '{folder}', there is no '{pattern}'. "
            "Correct 'folder' in the study, or give another --source.",
            dataset=name,
            path=folder,
            expected=pattern,
        )
    return folder


def _source(name: str, source: Path | None) -> Path:
    if source is None:
        raise DataError(
            "missing_setting",
            f"data set '{name}' needs a folder of data: give it as --source, or name it in the environment "
            f"variable {SOURCE_VARIABLE}.",
            setting="source",
            dataset=name,
        )
    return source


def _is_there(place: Path, plan: PartitionPlan) -> bool:
    """Whether a partition is there.

    Raises:
        DataError: If its file is damaged.
        StoreError: If it was made in another way.
    """
    made = Partition.find(place)
    if made is None:
        return False
    unlike = difference(plan, made.settings)
    if unlike:
        raise StoreError(
            "other_partition",
            f"the partition '{place}' was made in another way: {unlike}. Give another --out, or the study as it was.",
            path=place,
            difference=unlike,
        )
    return True
