"""Trained weights for a study's networks: their file is looked for, and a study without it has another name."""

from __future__ import annotations

from pathlib import Path

from medfl.errors import DataError
from medfl_studies.schema import Study

OPTION = "weights"
"""The option of the run that names the file."""

MARK = "random weights"
"""What the names of a study and of its rows end with when the file is not there."""


def find_weights(study: Study, source: Path | None) -> tuple[Study, str]:
    """Look for the file of weights that the study's settings name, in the source folder.

    Args:
        study: The study.
        source: Folder of the data as they are, or None.

    Returns:
        The study with the file's path, and nothing to say; or, without the file, the study with random weights, by
        `Study.without_weights`, under another name and with rows under other names, and a sentence that says so.

    Raises:
        DataError: If the file is not there and the study can't do without it.
    """
    name = study.settings.get(OPTION)
    if name is None:
        return study, ""
    path = Path(name) if source is None else source / name
    if source is not None and path.is_file():
        return study.model_copy(update={"settings": study.settings | {OPTION: str(path.resolve())}}), ""
    if study.without_weights is None:
        raise DataError(
            "missing_file",
            f"expected a file of weights at '{path}', there is none. Put it there, or correct 'weights'.",
            path=path,
        )
    note = (
        f"There is no file of weights '{name}' in the source folder: networks begin with random weights and have other "
        f"options, so these are not the runs of '{study.name}', and everything is called '{MARK}'."
    )
    settings = study.settings | {OPTION: None} | study.without_weights
    changes = {"name": f"{study.name}-{MARK.replace(' ', '-')}", "about": f"{note} {study.about}", "settings": settings}
    return _renamed(study.model_copy(update=changes)), note


def _renamed(study: Study) -> Study:
    """The study with its mark behind the name of every row."""

    def marked(row: str) -> str:
        return f"{row}, {MARK}"

    rows = {
        marked(name): row.model_copy(update={"baseline": None if row.baseline is None else marked(row.baseline)})
        for name, row in study.rows.items()
    }
    claims = [
        claim.model_copy(update={"better": marked(claim.better), "than": marked(claim.than)}) for claim in study.claims
    ]
    data = {
        name: data_set.model_copy(update={"rows": list(map(marked, data_set.rows))})
        for name, data_set in study.data.items()
    }
    attacks = {
        kind: attack.model_copy(update={"rows": list(map(marked, attack.rows))})
        for kind, attack in study.attacks.items()
    }
    return study.model_copy(
        update={
            "rows": rows,
            "baseline": None if study.baseline is None else marked(study.baseline),
            "tune": None if study.tune is None else study.tune.renamed(marked),
            **{"claims": claims, "data": data, "attacks": attacks},
        }
    )
