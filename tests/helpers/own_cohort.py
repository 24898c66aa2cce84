"""Prepare a hospital's own files. Names and identifiers here are secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.datalists import Datalist, read_datalist
from medfl.data.ingest.columns.labels import TableColumns
from medfl.data.ingest.folder_spec import FolderSpec
from medfl.data.ingest.folder_synthetic import write_release
from medfl.data.ingest.prepare import prepare as prepare_dataset
from medfl.settings import read_settings

SOME = TableColumns("file", "diagnosis")
ALL = TableColumns("file", "diagnosis", "patient", "hospital", "part", ("sex",))


def make_own(folder: Path) -> tuple[Path, Path]:
    """Write four images and their table; gives the folder of images and the table."""
    write_release(folder)
    return folder / "images", folder / "labels.csv"


def prepare(
    images: Path,
    table: Path,
    columns: TableColumns,
    size: Sequence[int],
    out: Path,
    *,
    skip_unreadable: bool = False,
    reading: Mapping[str, bool] | None = None,
    **options: Any,
) -> Datalist:
    """Prepare them in this process; takes options of the data set and of `medfl.data.ingest.prepare.prepare`."""
    frame = {key: options.pop(key) for key in ("force", "say") if key in options}
    named = {
        "image_column": columns.image,
        "target": columns.target,
        "group_column": columns.group,
        "site_column": columns.site,
        "split_column": columns.split,
        "keep_column": columns.keep or None,
    }
    values = {"images": images, "table": table, "size": size, **named, **(reading or {}), **options}
    spec = read_settings(FolderSpec, values, where="the test")
    return prepare_dataset(spec, out, workers=1, require_complete=not skip_unreadable, **frame)


def prepared(own, out, columns=SOME, size=(10, 15), **options):
    datalist = prepare(*own, columns, size, out, **options)
    assert datalist == read_datalist(out)
    return np.load(out / "images.npy"), datalist
