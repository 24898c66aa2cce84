"""A small made-up ABIDE I for tests, prepared in this process, and ways to spoil it."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import nibabel
import numpy as np
from prepare_specs import prepare_spec

from medfl.data.datalists import Datalist
from medfl.data.table import read_table
from medfl_datasets.abide.files import MapSelection
from medfl_datasets.abide.spec import Abide
from medfl_datasets.abide.synthetic import write_release
from medfl_datasets.abide.tables import PHENOTYPE_FILE

TWO = MapSelection(("reho", "lfcd"))
"""The derivatives of the made-up release."""

CENTRES = ("LEUVEN_1", "LEUVEN_2", "UCLA_1", "UM_1", "NYU")


def make_release(folder: Path) -> Path:
    """Twenty subjects of five centres, in four regions; four of each centre are used."""
    return write_release(folder, per_centre=4, centres=CENTRES, derivatives=TWO.derivatives, size=12)


def prepare(source: Path, out: Path, maps: MapSelection = TWO, **options: object) -> Datalist:
    """Prepare some maps in this process."""
    which = {"derivatives": maps.derivatives, "pipeline": maps.pipeline, "strategy": maps.strategy}
    return prepare_spec(Abide, source, out, **{"workers": 1, **which} | options)


def copied(made: Path, to: Path) -> Path:
    return Path(shutil.copytree(made, to))


def used_rows(release: Path) -> list[dict[str, str]]:
    """The rows of the phenotypic file whose subjects are used; ``table_row`` is added."""
    table = read_table(release / PHENOTYPE_FILE)
    rows = [row | {"table_row": str(number)} for number, row in zip(table.numbers, table.rows, strict=True)]
    return [row for row in rows if row["FILE_ID"] != "no_filename" and row["qc_func_rater_3"] == "OK"]


def map_of(release: Path, place: int, derivative: str = "reho") -> tuple[int, Path]:
    """Table row and map of one of the subjects that are used."""
    row = used_rows(release)[place]
    return int(row["table_row"]), release / TWO.folder(derivative) / f"{row['FILE_ID']}_{derivative}.nii.gz"


def rewrite_table(release: Path, change) -> None:
    """Change the rows of the phenotypic file that are used, each by a function of the row and its place."""
    table = read_table(release / PHENOTYPE_FILE)
    used = {int(row["table_row"]): place for place, row in enumerate(used_rows(release))}
    rows = [
        change(dict(row), used[number]) if number in used else row
        for number, row in zip(table.numbers, table.rows, strict=True)
    ]
    with (release / PHENOTYPE_FILE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def save(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine)
    image.set_sform(image.affine, code="mni")
    nibabel.save(image, path)
    return path


def changed(path: Path, change=lambda values: values, affine: np.ndarray | None = None) -> None:
    """Write a map again, with other values or another affine."""
    image = nibabel.load(path)
    save(path, change(np.asarray(image.dataobj).copy()), image.affine if affine is None else affine)
