"""``medfl evaluate``: score a finished model on the data of a site, or on image files with a table of labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from medfl.errors import SettingsError

if TYPE_CHECKING:
    from medfl.records.evaluation import Evaluation


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|RUN", help="Exported bundle, run, or RUN#SITE for a site's model.", show_default=False
        ),
    ],
    dataset_dir: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder of a site, or of several sites; with --table a folder of image files.",
            show_default=False,
        ),
    ],
    split: Annotated[
        Literal["test", "all"], typer.Option(help="Images of a site: its test images, or those of all splits.")
    ] = "test",
    table: Annotated[
        Path | None, typer.Option(help="CSV or TSV file with one row for each image file.", show_default=False)
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Column with the path of the image, relative to FOLDER.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Column with the class, as class:COLUMN or only COLUMN.", show_default=False)
    ] = None,
    group_column: Annotated[str | None, typer.Option(help="Column with the patient.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; by default evaluations/MODEL-at-SITE in the run.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
) -> None:
    """Score a finished model on the data of a site, such as a hospital that did not train it.

    Writes predictions.csv, scores.csv with 95 % intervals over the patients, and evaluation.json. The evaluation is
    external if no image and no patient was in the training, validation or test data of the run; else the output says
    why it is not. A run without a global model is evaluated with the models of all sites: the score is their mean. The
    report and the model card of the run show its evaluations. If `medfl calibrate` has calibrated a model, its rates at
    the threshold and its prediction sets are evaluated, too (operating_points.csv). The command runs the code of the
    bundle, so evaluate only bundles that you trust (`medfl check-bundle`).

    With --table, the images are files: all are predicted, and those that the table labels are scored.

    Example: medfl evaluate runs/fedavg --dataset-dir data/new-hospitals/east
    """
    from medfl_report.evaluation.cases import TableColumns, class_column
    from medfl_report.evaluation.evaluate import evaluate_files, evaluate_sites

    if table is None:
        _refuse_columns({"image_column": image_column, "target": target, "group_column": group_column})
        done = evaluate_sites(model, dataset_dir, out, split, device)
    elif image_column is None or target is None:
        missing = "image_column" if image_column is None else "target"
        raise SettingsError(
            "missing_setting",
            f"--table needs the columns of the image and of the class: give --{missing.replace('_', '-')}.",
            setting=missing,
            needed_by="table",
        )
    else:
        columns = TableColumns(image_column, class_column(target), group_column)
        done = [evaluate_files(model, dataset_dir, table, columns, out)]
    for evaluation in done:
        _show(evaluation)


def _refuse_columns(columns: dict[str, str | None]) -> None:
    """Raise if a column of a table is given without a table."""
    columns_set = [name for name, value in columns.items() if value is not None]
    if columns_set:
        raise SettingsError(
            "incompatible_settings",
            f"--{columns_set[0].replace('_', '-')} names a column of the table in --table, which is missing. Give "
            "--table, or leave the column out.",
            settings=["table", *columns_set],
        )


def _show(evaluation: Evaluation) -> None:
    """Print an evaluation."""
    from medfl.utils.formats import count
    from medfl.utils.text import visible
    from medfl_report.calibration.calibration_words import evaluation_words

    counts = ((evaluation.images, "image"), (evaluation.patients, "patient"))
    known = " of ".join(count(number, noun) for number, noun in counts if number is not None)
    typer.echo(f"{visible(evaluation.model)} at {visible(evaluation.site)}: {known}")
    typer.echo(visible(evaluation.relation.sentence))
    for metric, score in evaluation.scores.items():
        if score is None:
            typer.echo(f"{metric}: not defined for these images")
        else:
            typer.echo(f"{metric}: {score.value:.3f} [{score.low:.3f}, {score.high:.3f}]")
    for model in evaluation.models:
        if model.calibrated is not None:
            typer.echo(f"calibrated {visible(model.name)}: {evaluation_words(model.calibrated)}")
