"""Data of a study: find, prepare and partition them before the first run.

A release is a data set as its authors publish it; the source folder holds the user's downloads. Preparing a release
gives a pooled data set. Partitioning a pooled data set gives a folder for each site. An adopted bundle is a stock MONAI
bundle for which ``medfl adopt`` wrote a federation file.

Each folder is written completely or not at all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from medfl.bundle.adopted import site_folders
from medfl.data.datalists import DATALIST_FILE
from medfl.data.ingest.prepare import prepare
from medfl.data.ingest.spec import DatasetSpec
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.engine.runs.records import describe_repetition
from medfl.errors import DataError, StoreError
from medfl.plugins import Registry
from medfl.records.partition import Partition
from medfl.utils.text import Say
from medfl_report.sections.class_counts_figure import draw_partition
from medfl_studies.checks import SOURCE_VARIABLE, find_plan_difference, make_plan
from medfl_studies.jobs import dataset_dir, drops_public_duplicates, public_dir
from medfl_studies.preparation import (
    PreparationSpec,
    locate_release,
    option_defaults,
    resolve_preparation,
    with_image_size,
)
from medfl_studies.records.study_files import PoolPreparation
from medfl_studies.schema import DataSet, Study, slug


def check_data(study: Study, source: Path | None, out: Path, registry: Registry, adopted: bool = False) -> None:
    """Check that everything `make_data` needs exists. Nothing is written.

    Args:
        study: The study.
        source: Folder of the source data, or None.
        out: Output folder of the study.
        registry: Registry with the data sets and partition schemes.
        adopted: Whether the bundle is adopted. The sites of an adopted bundle have no medfl data lists.

    Raises:
        DataError: If data are missing.
        SettingsError: If an option is not valid, or a partition is not possible.
        PluginError: If a data set or a scheme is unknown.
        StoreError: If an existing pooled data set or partition was made with other settings.
    """
    for name, data in study.data.items():
        if data.partition is not None:
            for seed, fold in study.repetitions(data):
                _has_partition(
                    dataset_dir(out, source, name, data, seed, fold), _make_plan(out, name, data, seed, registry, fold)
                )
        if data.prep is None and data.partition is None and adopted:
            site_folders(_require_source(name, source) / str(data.folder))
        elif data.prep is None:
            _find_data_folder(name, data, source)
        else:
            _check_prep(
                name, with_image_size(data.prep, data.size, registry), source, _pool_folder(out, name), registry
            )
        if data.public is not None:
            _check_prep(
                name, with_image_size(data.public, data.size, registry), source, public_dir(out, name), registry
            )


def make_data(study: Study, source: Path | None, out: Path, registry: Registry, say: Say) -> None:
    """Prepare and partition the data sets that don't exist yet.

    Args:
        study: A study that `check_data` accepted.
        source: Folder of the source data.
        out: Output folder of the study.
        registry: Registry with the data sets and partition schemes.
        say: Callback that receives a line for each step, licences and warnings.
    """
    for name, data in study.data.items():
        if data.public is not None:
            _ensure_pool(
                name, with_image_size(data.public, data.size, registry), source, public_dir(out, name), registry, say
            )
        if data.partition is None:
            continue
        if data.prep is not None:
            pool = _ensure_pool(
                name, with_image_size(data.prep, data.size, registry), source, _pool_folder(out, name), registry, say
            )
        else:
            pool = _find_data_folder(name, data, source)
        for seed, fold in study.repetitions(data):
            place, plan = (
                dataset_dir(out, source, name, data, seed, fold),
                _make_plan(out, name, data, seed, registry, fold),
            )
            if not _has_partition(place, plan):
                say(f"partition: {plan.scheme} of {name}, {describe_repetition(plan.seed, fold)} -> {place}")
                draw_partition(place, partition(pool, place, plan, registry.partition(plan.scheme)))
                for warning in Partition.read(place / Partition.NAME).warnings:
                    say(f"warning: {warning}")


def _make_plan(out: Path, name: str, data: DataSet, seed: int, registry: Registry, fold: int | None) -> PartitionPlan:
    """Return the plan of a partition, with the public data that are compared with the private data."""
    plan = make_plan(name, data, seed, registry, fold)
    return replace(plan, public=str(public_dir(out, name))) if drops_public_duplicates(data) else plan


def find_release(name: str, prep: PreparationSpec, source: Path | None, registry: Registry) -> DatasetSpec:
    """Return a data set with its options and the location of its release.

    Raises:
        DataError: If the release is not in the source folder, or there is no source folder.
        PluginError: If the data set is unknown.
        SettingsError: If an option is unknown or not valid.
    """
    return locate_release(prep, _require_source(name, source), registry)


def _check_prep(name: str, prep: PreparationSpec, source: Path | None, pool: Path, registry: Registry) -> None:
    """Check the options of a preparation, and the pooled data set if it exists or the release if it doesn't."""
    wanted = resolve_preparation(prep, registry)
    if not (pool / DATALIST_FILE).is_file():
        find_release(name, prep, source, registry).check_release()
    else:
        _check_existing_pool(pool, wanted, registry)


def _ensure_pool(
    name: str, prep: PreparationSpec, source: Path | None, pool: Path, registry: Registry, say: Say
) -> Path:
    """Return the folder of the pooled data set; prepare it first if it does not exist."""
    wanted = resolve_preparation(prep, registry)
    if not (pool / DATALIST_FILE).is_file():
        options = "".join(f", {key} {value}" for key, value in wanted.options.items() if value is not None)
        say(f"prep: dataset {wanted.dataset}{options} -> {pool}")
        spec = find_release(name, prep, source, registry)
        pool.parent.mkdir(parents=True, exist_ok=True)
        wanted.write(pool.with_name(PoolPreparation.NAME))
        prepare(spec, pool, say=say)
    else:
        _check_existing_pool(pool, wanted, registry)
    return pool


def _check_existing_pool(pool: Path, wanted: PoolPreparation, registry: Registry) -> None:
    """Raise StoreError if a pooled data set was prepared with other options; without a record of them, do nothing.

    An option that its record does not contain had its default value: a data set may get new options.
    """
    path, kind = pool.with_name(PoolPreparation.NAME), registry.dataset(wanted.dataset)
    if not path.is_file():
        return
    before = PoolPreparation.read(path)
    now = {"dataset": wanted.dataset, **wanted.options}
    earlier = {**option_defaults(kind), "dataset": before.dataset, **before.options}
    changed = [key for key in now if earlier.get(key) != now[key]]
    if changed:
        differences = ", ".join(f"{key} was {earlier.get(key)}, now {now[key]}" for key in changed)
        raise StoreError(
            "other_preparation",
            f"The pooled data set '{pool}' was prepared with other options: {differences}. Choose another folder with "
            "--out.",
            path=pool,
            expected={key: now[key] for key in changed},
            found={key: earlier.get(key) for key in changed},
        )


def _pool_folder(out: Path, name: str) -> Path:
    """Return the folder of a pooled data set."""
    return out / "data" / slug(name) / "pooled"


def _find_data_folder(name: str, data: DataSet, source: Path | None) -> Path:
    """Return a data set's folder in the source folder; raise DataError if it contains no data.

    The folder contains a pooled data set if the study partitions it, else a folder for each site.
    """
    assert data.folder is not None  # the schema: either 'prep' or 'folder'
    folder = _require_source(name, source) / data.folder
    pattern = "*/" + DATALIST_FILE if data.partition is None else DATALIST_FILE
    if not any(folder.glob(pattern)):
        kind = "a partitioned data set (site folders)" if data.partition is None else "a pooled data set"
        raise DataError(
            "missing_dataset",
            f"Data set '{name}': expected {kind} in '{folder}', found no '{pattern}'. Correct 'folder' in the study, "
            "or give another --source.",
            dataset=name,
            path=folder,
            expected=pattern,
        )
    return folder


def _require_source(name: str, source: Path | None) -> Path:
    """Return the source folder; raise DataError without one."""
    if source is None:
        raise DataError(
            "missing_setting",
            f"Data set '{name}' needs a folder of source data: give it with --source, or in the environment variable "
            f"{SOURCE_VARIABLE}.",
            setting="source",
            dataset=name,
        )
    return source


def _has_partition(place: Path, plan: PartitionPlan) -> bool:
    """Return whether a partition exists.

    Raises:
        DataError: If the file of the partition is damaged.
        StoreError: If the partition was made with other settings.
    """
    made = Partition.find(place)
    if made is None:
        return False
    changed_setting = find_plan_difference(plan, made.settings)
    if changed_setting:
        raise StoreError(
            "other_partition",
            f"The partition '{place}' was made with other settings: {changed_setting}. Choose another folder with "
            "--out, or undo the change of the study.",
            path=place,
            difference=changed_setting,
        )
    return True
