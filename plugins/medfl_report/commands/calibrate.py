"""``medfl calibrate``: choose thresholds, recalibration and prediction sets of exported models on validation images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.errors import DataError, MedflError, SettingsError
from medfl.utils.formats import count

if TYPE_CHECKING:
    from medfl_report.calibration.choose import CalibrationChoices, RecalibrationKind
    from medfl_report.predictions import PredictionSet

RULES = ("youden", "sensitivity", "cost", "none")
"""Rules of the option ``--rule``."""

RECALIBRATIONS = ("temperature", "isotonic", "linear", "none")
"""Values of the option ``--recalibrate``."""


@dataclass(frozen=True)
class BundleData:
    """An exported bundle, and the folders of the data on whose validation images it is calibrated.

    Attributes:
        name: Name of the bundle in messages.
        folder: Folder of the bundle.
        site_folders: Maps each site to the folder of its data list.
        digests: Maps sites to the digest of their data in the run; empty if unknown.
        predictions: Maps each site to the file with the model's predictions for its test images.
    """

    name: str
    folder: Path
    site_folders: dict[str, Path]
    digests: dict[str, str]
    predictions: dict[str, Path]


def command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|BUNDLE", help="Folder of a finished run, or one exported bundle.", show_default=False
        ),
    ],
    site: Annotated[
        list[str] | None,
        typer.Option(help="Site whose bundle is calibrated; repeat for several.", show_default="all bundles"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the sites' data.", show_default="the run's data folder"),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help=f"Rule of the threshold: {', '.join(RULES)}.", show_default="youden for two classes"),
    ] = None,
    sensitivity: Annotated[
        float | None, typer.Option(help="Smallest sensitivity of the threshold.", show_default=False)
    ] = None,
    cost_false_negative: Annotated[
        float | None,
        typer.Option(help="Cost of a false negative, relative to that of a false positive.", show_default=False),
    ] = None,
    class_name: Annotated[
        str | None,
        typer.Option("--class", help="Class that the threshold is for.", show_default="the second of two"),
    ] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            help=f"Recalibration: {', '.join(RECALIBRATIONS)}.",
            show_default="temperature, linear for numbers and risks",
        ),
    ] = None,
    coverage: Annotated[float, typer.Option(help="Coverage of prediction sets; 0 for no sets.")] = 0.9,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Choose thresholds, recalibration and prediction sets on validation images, and write them into bundles.

    Each site's bundle is calibrated on the validation images of that site, the global bundle on those of all sites. The
    bundle's inference.json then writes recalibrated predictions, decisions at the threshold, and prediction sets. The
    command prints how they perform on the test images, which no choice uses. A site with too few validation patients
    for a choice is refused.
    The command runs the code of the bundle, so calibrate only bundles that you trust (`medfl check-bundle`).

    Example: medfl calibrate runs/fedavg --sensitivity 0.95
    """
    load(plugin, no_plugin)
    choices = make_choices(rule, sensitivity, cost_false_negative, class_name, recalibrate, coverage)
    refusals: dict[str, MedflError] = {}
    for bundle in find_bundle_data(path, site, data):
        try:
            calibrate_bundle(bundle, choices)
        except DataError as error:
            refusals[bundle.name] = error
    if refusals:
        lines = "\n".join(f"- {name}: {error}" for name, error in refusals.items())
        raise DataError(
            "not_calibrated",
            f"{count(len(refusals), 'bundle')} could not be calibrated, and nothing changed there:\n{lines}",
            bundles=list(refusals),
            codes=[error.code for error in refusals.values()],
        )


def make_choices(
    rule: str | None,
    sensitivity: float | None,
    cost_false_negative: float | None,
    class_name: str | None,
    recalibrate: str | None,
    coverage: float,
) -> CalibrationChoices:
    """Return the choices that the options of the command name.

    Args:
        rule: One of `RULES`; None for the rule of the other options, or the default.
        sensitivity: Smallest sensitivity; implies the rule ``sensitivity``.
        cost_false_negative: Cost of a false negative; implies the rule ``cost``.
        class_name: Class that the threshold is for.
        recalibrate: One of `RECALIBRATIONS`; None for the default of the objective.
        coverage: Coverage of prediction sets; 0 for none.

    Raises:
        SettingsError: If a value is unknown or out of range, or options contradict each other.
    """
    from medfl_report.calibration.choose import CalibrationChoices
    from medfl_report.calibration.thresholds import ThresholdRule

    kind: RecalibrationKind | None = _checked("recalibrate", recalibrate, RECALIBRATIONS)  # type: ignore[assignment]
    _checked("rule", rule, RULES)
    if rule == "none" and (sensitivity, cost_false_negative, class_name) != (None, None, None):
        raise SettingsError(
            "conflicting_settings",
            "--rule none chooses no threshold, so --sensitivity, --cost-false-negative and --class have no meaning. "
            "Leave them out.",
            rule=rule,
        )
    name = rule or ("sensitivity" if sensitivity is not None else "cost" if cost_false_negative is not None else None)
    return CalibrationChoices(
        rule=None if name in (None, "none") else ThresholdRule(name, sensitivity, cost_false_negative),  # type: ignore[arg-type]
        has_threshold=name != "none",
        class_name=class_name,
        recalibration=kind,
        coverage=coverage or None,
    )


def _checked(option: str, value: str | None, known: tuple[str, ...]) -> str | None:
    """Return the value of an option; raise if it is not known."""
    if value is not None and value not in known:
        raise SettingsError(
            "unknown_choice",
            f"expected --{option} to be one of {', '.join(known)}, got '{value}'.",
            what=option,
            choice=value,
        )
    return value


def find_bundle_data(path: Path, sites: list[str] | None, data: Path | None) -> list[BundleData]:
    """Return the bundles to calibrate: the one at `path`, or those of a run.

    Args:
        path: Folder of an exported bundle, or of a run.
        sites: Names of sites; None for all bundles of a run, with the global one.
        data: Folder of the sites' data; None for the data folder of the run.

    Raises:
        SettingsError: If a site is unknown, or the folder of the data is.
        DataError: If there is no data list.
        StoreError: If the run is not over.
    """
    from medfl.engine.runs.records import PREDICTIONS, read_run
    from medfl.errors import did_you_mean
    from medfl_report.calibration.validation_predictions import find_site_folder
    from medfl_report.cards.run_bundles import find_bundles, read_bundle_config

    is_run = (path / "run.json").is_file()
    run = read_run(path) if is_run else None
    folder = data if data is not None or run is None else run.data_folder
    if folder is None:
        raise SettingsError(
            "missing_data",
            f"'{path}' does not name the folder of its data. Give the folder with the validation images with --data.",
            path=path,
        )
    if run is None:
        site = str(read_bundle_config(path, "train.json").get("site") or path.name)
        predictions = {site: path / PREDICTIONS} if (path / PREDICTIONS).is_file() else {}
        return [BundleData(site, path, {site: find_site_folder(folder, site)}, {}, predictions)]
    bundles = find_bundles(run)
    names = {bundle.site or "global" for bundle in bundles}
    for wanted in sites or ():
        if wanted not in names:
            raise SettingsError(
                "unknown_site",
                f"no bundle of '{wanted}' in '{path}'. {did_you_mean(wanted, sorted(names))}",
                site=wanted,
            )
    return [
        BundleData(
            name=bundle.site or "global",
            folder=bundle.folder,
            site_folders={
                name: find_site_folder(folder, name) for name in ([bundle.site] if bundle.site else map(str, run.sites))
            },
            digests=dict(run.run.provenance.data.sites),
            predictions=dict(bundle.predictions),
        )
        for bundle in bundles
        if sites is None or (bundle.site or "global") in sites
    ]


def calibrate_bundle(bundle: BundleData, choices: CalibrationChoices) -> None:
    """Calibrate a bundle on validation images, write the calibration, and print its performance on test images.

    Args:
        bundle: The bundle and its data.
        choices: What to choose.

    Raises:
        SettingsError: If the bundle or a choice is not supported.
        DataError: If there are too few validation patients.
        StoreError: If a file can't be read or written.
    """
    from medfl_report.calibration.calibration_words import evaluation_words
    from medfl_report.calibration.choose import choose_calibration, recalibration_kind
    from medfl_report.calibration.evaluation import evaluate_calibration
    from medfl_report.calibration.validation_predictions import (
        predict_validation,
        read_exported_model,
        write_calibration,
    )
    from medfl_report.cards.run_bundles import read_test_predictions
    from medfl_report.predictions import pooled

    model = read_exported_model(bundle.folder)
    recalibration_kind(model.objective, choices)  # refuses an unsupported objective before it predicts
    predicted: dict[str, PredictionSet] = {
        site: predict_validation(model, folder, bundle.digests.get(site))
        for site, folder in bundle.site_folders.items()
    }
    used = {site: part for site, part in predicted.items() if len(part.rows)}
    if not used:
        raise DataError(
            "no_predictions",
            "there are no validation images. Partition with --val-fraction, or --folds, and train again: choices on "
            "training images would be too optimistic, and choices on test images would spoil the test.",
            sites=list(predicted),
        )
    validation = pooled(used) or next(iter(used.values()))
    calibration = choose_calibration(validation, choices, model.weights_digest, list(used), model.names)
    path = write_calibration(model, calibration)
    typer.echo(f"{path}: chosen on {validation.patient_count or len(validation.rows)} validation patients")
    for site, tested in read_test_predictions(bundle.predictions, model.objective).items():
        typer.echo(f"  test images of {site}: {evaluation_words(evaluate_calibration(site, calibration, tested))}")
