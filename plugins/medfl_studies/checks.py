"""Checks of a study that can fail before any run starts.

The source folder holds the user's data: releases as downloaded, pooled data sets, or partitioned data sets.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from pathlib import Path

from medfl.data.partition.plan import PartitionPlan
from medfl.engine.runs.provenance import run_files
from medfl.errors import DataError, MedflError, SettingsError, did_you_mean
from medfl.plugins import Registry
from medfl.records.partition import PartitionSettings
from medfl_studies.jobs import RunJob
from medfl_studies.schema import DataSet, Study

SOURCE_VARIABLE = "MEDFL_DATA"
"""Environment variable with the default source folder."""


def find_source(folder: Path | None) -> Path | None:
    """Return the given source folder, else the folder in the environment variable, else None.

    Raises:
        DataError: If the source folder does not exist or is not a folder.
    """
    named = os.environ.get(SOURCE_VARIABLE)
    source = folder if folder is not None else Path(named) if named else None
    if source is not None and not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected the source folder at '{source}', found none. Give another --source.",
            path=source,
        )
    return None if source is None else source.absolute()


def check_rows(study: Study, registry: Registry) -> None:
    """Check the rows of a study: build every method once, and validate every setting.

    Raises:
        SettingsError: If a method, its settings or a setting of the run is unknown or not valid; the message names the
            row.
    """
    from medfl.objectives import check_metrics
    from medfl.settings import Settings, read_settings

    check_metrics(study.metrics)
    for name, row in study.rows.items():
        try:
            for version in [row, *map(row.changed, row.splits.values())]:
                registry.make_method(row.method, version.method_args)
                for data in study.data.values():
                    settings = study.settings | data.options | version.settings
                    known = {key: value for key, value in settings.items() if key in Settings.model_fields}
                    read_settings(Settings, {"rounds": 1} | known, "the run")
        except MedflError as error:
            raise SettingsError(error.code, f"row '{name}': {error}", **error.fields | {"row": name}) from None


def check_attacks(study: Study, registry: Registry) -> None:
    """Check the name and the options of every attack of a study.

    Raises:
        PluginError: If an attack is unknown or can't be imported.
        SettingsError: If an option is unknown or out of range; the message names the attack.
    """
    for kind, attack in study.attacks.items():
        options = registry.attack_options(kind)
        known = [field.name for field in dataclasses.fields(options)] + ["device"]
        values = {name.replace("-", "_"): value for name, value in attack.options.items()}
        for name in values:
            if name not in known:
                raise SettingsError(
                    "unknown_setting",
                    f"'attacks.{kind}.options': unknown option '{name}'. {did_you_mean(name, known)}",
                    name=name,
                    place=f"attacks.{kind}.options",
                )
        try:
            options(**{name: value for name, value in values.items() if name != "device"})
        except MedflError as error:
            fields = error.fields | {"attack": kind}
            raise SettingsError(error.code, f"'attacks.{kind}.options': {error}", **fields) from None


def check_options(bundle: Path, jobs: list[RunJob]) -> None:
    """Check that the bundle has all options of the runs.

    Raises:
        SettingsError: If the bundle lacks an option; the message names the option and the nearest known option.
    """
    from medfl.bundle.option_checks import check_options as check
    from medfl.networks.bundle_parser import make_parser
    from medfl.workflow import STOCK_OPTIONS

    parser = make_parser()
    parser.read_config([str(file) for file in run_files(bundle)])
    for job in {(job.data, job.row): job for job in jobs}.values():
        options = {name: value for name, value in job.options.items() if name not in STOCK_OPTIONS}
        try:
            check(parser, options)
        except SettingsError as error:
            raise error.reworded(f"row '{job.row}' on '{job.data}': {error}") from None


def make_plan(name: str, data: DataSet, seed: int, registry: Registry, fold: int | None = None) -> PartitionPlan:
    """Build the plan that divides a pooled data set among sites.

    The study file gives the plan as fields of `PartitionPlan` and options of the partition scheme.

    Args:
        name: Name of the data set.
        data: A data set with a partition.
        seed: Seed, unless the partition gives one.
        registry: Registry with the partition schemes.
        fold: Fold that serves as the test set, unless the partition gives one; None without folds.

    Raises:
        PluginError: If the scheme is unknown.
        SettingsError: If a key is neither a field nor an option, or the plan is not possible.
    """
    values = dict(data.partition or {})
    scheme = registry.partition(values["scheme"])
    fields = {field.name for field in dataclasses.fields(PartitionPlan)} - {"options"}
    options = set(inspect.signature(scheme).parameters) - {"labels", "sites", "values", "rng"}
    for key in values:
        if key not in fields | options:
            raise SettingsError(
                "unknown_setting",
                f"'data.{name}.partition': unknown key '{key}'. {did_you_mean(key, fields | options)}",
                name=key,
                place=f"data.{name}.partition",
            )
    plain = {key: value for key, value in values.items() if key in fields}
    scheme_options = {key: value for key, value in values.items() if key not in fields}
    drawn = {"seed": seed} | ({} if fold is None else {"fold": fold})
    try:
        return PartitionPlan(**(drawn | plain), options=scheme_options)
    except MedflError as error:
        raise SettingsError(error.code, f"'data.{name}.partition': {error}", **error.fields) from None
    except TypeError as error:
        raise SettingsError("wrong_setting_type", f"'data.{name}.partition': {error}", dataset=name) from None


def find_plan_difference(plan: PartitionPlan, settings: PartitionSettings) -> str | None:
    """Return the first difference between a plan and the settings of an existing partition, or None.

    Settings that had no effect on the partition, and settings that the plan leaves open, are not compared.

    Args:
        plan: The plan.
        settings: Settings of the partition that had an effect.
    """
    before = settings.to_json()
    for key, value in json.loads(json.dumps(dataclasses.asdict(plan))).items():
        if value is not None and before[key] is not None and before[key] != value:
            return f"{key} was {before[key]!r}, now {value!r}"
    return None
