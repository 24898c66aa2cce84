"""Pretrained weights of a study's networks.

If the file of weights is missing, a study that allows it runs with random weights. The study and its rows (methods with
settings) then get other names, so that the results are not mistaken for results with pretrained weights.
"""

from __future__ import annotations

from pathlib import Path

from medfl.engine.runs.weights_file import WEIGHTS_SUFFIXES
from medfl.errors import DataError
from medfl.settings import RANDOM_START
from medfl_studies.schema import Study

START_SETTING = "start"
"""Setting of the run that names the weights."""

RANDOM_WEIGHTS_SUFFIX = "random weights"
"""Suffix of the names of a study and its rows if the file of weights is missing."""


def find_weights(study: Study, source: Path | None) -> tuple[Study, str]:
    """Find the file of weights that the study's settings name, in the source folder.

    Other sources of the setting ``start``, such as known weights, stay unchanged.

    Args:
        study: The study.
        source: Folder of the source data, or None.

    Returns:
        The study with the path of the file, and an empty note. Without the file: the study with random weights
            (`Study.without_weights`), under another name and with renamed rows, and a note that explains this.

    Raises:
        DataError: If the file does not exist and the study requires it.
    """
    name = study.settings.get(START_SETTING)
    if name is None or Path(name).suffix not in WEIGHTS_SUFFIXES:
        return study, ""
    path = Path(name) if source is None else source / name
    if source is not None and path.is_file():
        return study.model_copy(update={"settings": study.settings | {START_SETTING: str(path.resolve())}}), ""
    if study.without_weights is None:
        raise DataError(
            "missing_file",
            f"expected a file of weights at '{path}', found none. Put it there, or correct 'start'.",
            path=path,
        )
    note = (
        f"The source folder has no file of weights '{name}': the networks start from random weights and have other "
        f"options, so these are not the runs of '{study.name}'. Study and rows are marked '{RANDOM_WEIGHTS_SUFFIX}'."
    )
    settings = study.settings | {START_SETTING: RANDOM_START} | study.without_weights
    changes = {
        "name": f"{study.name}-{RANDOM_WEIGHTS_SUFFIX.replace(' ', '-')}",
        "about": f"{note} {study.about}",
        "settings": settings,
    }
    return _mark_rows(study.model_copy(update=changes)), note


def _mark_rows(study: Study) -> Study:
    """Return the study with the suffix after the name of every row."""

    def mark_row(row: str) -> str:
        return f"{row}, {RANDOM_WEIGHTS_SUFFIX}"

    rows = {
        mark_row(name): row.model_copy(update={"baseline": None if row.baseline is None else mark_row(row.baseline)})
        for name, row in study.rows.items()
    }
    claims = [
        claim.model_copy(update={"better": mark_row(claim.better), "than": mark_row(claim.than)})
        for claim in study.claims
    ]
    data = {
        name: data_set.model_copy(update={"rows": list(map(mark_row, data_set.rows))})
        for name, data_set in study.data.items()
    }
    attacks = {
        kind: attack.model_copy(update={"rows": list(map(mark_row, attack.rows))})
        for kind, attack in study.attacks.items()
    }
    return study.model_copy(
        update={
            "rows": rows,
            "baseline": None if study.baseline is None else mark_row(study.baseline),
            "tune": None if study.tune is None else study.tune.rename_rows(mark_row),
            **{"claims": claims, "data": data, "attacks": attacks},
        }
    )
