"""Everything about a study that can be refused before any run starts."""

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
from medfl_studies.jobs import Job
from medfl_studies.schema import DataSet, Study

SOURCE_VARIABLE = "MEDFL_DATA"
"""Environment variable: the source folder, where none is given."""


def find_source(folder: Path | None) -> Path | None:
    """The source folder: the one that is given, else the one of the environment, else None.

    Raises:
        DataError: If it is no folder.
    """
    named = os.environ.get(SOURCE_VARIABLE)
    source = folder if folder is not None else Path(named) if named else None
    if source is not None and not source.is_dir():
        raise DataError(
            "missing_folder",
            f"expected a folder of data at '{source}', there is none. Give another --source.",
            path=source,
        )
    return None if source is None else source.absolute()


def check_rows(study: Study, registry: Registry) -> None:
    """Build every method once, and read every setting.

    Raises:
        SettingsError: If a method, its settings or a setting of the run is unknown or not valid; naming the row.
    """
    from medfl.objectives import check_metrics
    from medfl.settings import Settings, read_settings

    check_metrics(study.metrics)
    for name, row in study.rows.items():
        try:
            registry.make_method(row.method, row.method_args)
            for data in study.data.values():
                settings = study.settings | data.options | row.settings
                known = {key: value for key, value in settings.items() if key in Settings.model_fields}
                read_settings(Settings, {"rounds": 1} | known, "the run")
        except MedflError as error:
            raise SettingsError(error.code, f"row '{name}': {error}", **error.fields | {"row": name}) from None


def check_attacks(study: Study) -> None:
    """Read the options of every attack.

    Raises:
        SettingsError: If one is unknown or out of range; naming the attack.
    """
    for kind, attack in study.attacks.items():
        options = _attack_options(kind)
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


def _attack_options(kind: str) -> type:
    """The class of the options of an attack; imported now, with all of the attack."""
    if kind == "membership":
        from medfl_attacks.membership.attack import MembershipOptions

        return MembershipOptions
    if kind == "poison":
        from medfl_attacks.poisoning import PoisonOptions

        return PoisonOptions
    from medfl_attacks.inversion.attack import InversionOptions

    return InversionOptions


def check_options(bundle: Path, jobs: list[Job]) -> None:
    """Refuse options that the bundle does not have.

    Raises:
        SettingsError: Naming them and the nearest known ones.
    """
    from monai.bundle import ConfigParser

    from medfl.bundle.option_checks import check_options as check
    from medfl.workflow import STOCK_OPTIONS

    parser = ConfigParser()
    parser.read_config([str(file) for file in run_files(bundle)])
    for job in {(job.data, job.row): job for job in jobs}.values():
        options = {name: value for name, value in job.options.items() if name not in STOCK_OPTIONS}
        try:
            check(parser, options)
        except SettingsError as error:
            raise error.reworded(f"row '{job.row}' on '{job.data}': {error}") from None


def make_plan(name: str, data: DataSet, seed: int, registry: Registry, fold: int | None = None) -> PartitionPlan:
    """The plan of a partition: fields of `PartitionPlan`, and options of its scheme.

    Args:
        name: Of the data set.
        data: A data set with a partition.
        seed: Used where the partition names none.
        registry: Knows the schemes.
        fold: The fold that is the test set, where the partition names none; None where there are no folds.

    Raises:
        PluginError: If the scheme is unknown.
        SettingsError: If a key belongs to neither, or the plan is not possible.
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


def difference(plan: PartitionPlan, settings: PartitionSettings) -> str | None:
    """Return the first difference between a plan and the settings of an existing partition, or None.

    Settings that had no effect on the partition, and those that the plan leaves open, are not compared.

    Args:
        plan: The plan.
        settings: Settings of the partition that had an effect.
    """
    before = settings.to_json()
    for key, value in json.loads(json.dumps(dataclasses.asdict(plan))).items():
        if value is not None and before[key] is not None and before[key] != value:
            return f"{key} was {before[key]!r}, now {value!r}"
    return None
