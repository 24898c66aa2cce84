"""Spec of FLamby's Fed-Heart-Disease: options and preparation of the data set of feature vectors.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `check_release` (check the files) and `make` (write the data set).

Prepared data set: one array (N, 13), float32, a vector for each complete row; each record has ``label`` (heart disease
or none), ``subject_id``, ``centre`` (the hospital) and ``sex``. Training and test rows are exactly FLamby's
(`medfl_datasets.flamby_heart.split`), and so is the scaling. The files contain no patient identifiers, so each row
counts as a patient of its own.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from medfl.data.arrays import FEATURES
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import atomic_folder
from medfl.data.ingest.array_file import new_array
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.options import OneOf
from medfl.data.ingest.published_splits import unlike_published
from medfl.data.ingest.read_plan import exclusions
from medfl.data.ingest.spec import WholeSpec, folder_or_top
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.flamby_heart import RECORDS
from medfl_datasets.flamby_heart.files import SEX_COLUMN, Hospital, build_features, find_files, read_hospital
from medfl_datasets.flamby_heart.split import select_test_rows

CITATION = (
    "Janosi, Steinbrunn, Pfisterer and Detrano, Heart Disease, UCI Machine Learning Repository (1989), "
    "doi:10.24432/C52P4X; as prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and Benchmarks"
)
"""Publications that users of the data are asked to cite."""

SCALES = ("centre", "pooled", "mixed", "none")
"""Choices of `FlambyHeart.scale`: the training rows whose mean and standard deviation standardise the features.

- ``centre``: the training rows of the same hospital.
- ``pooled``: the training rows of all hospitals.
- ``mixed``: for training rows, the training rows of all hospitals; for test rows, those of the same hospital. FLamby
  trained and scored its pooled model in this way and published an accuracy of .735. The same model has about .81 if
  test rows are scaled like the training rows.
- ``none``: the features are not standardised.
"""

OFFICIAL_COUNTS = {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
"""Maps each hospital to FLamby's numbers of training and test rows."""

INCOMPLETE_ROW = "a number of the row is missing"
"""Exclusion reason: the row has a missing number."""

STD_OFFSET = 1e-9
"""Value that FLamby adds to each standard deviation before dividing by it."""


class FlambyHeart(WholeSpec):
    """FLamby's Fed-Heart-Disease: heart disease or none, by 13 numbers, at four hospitals. Nothing is downloaded.

    The test rows are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test official
    --server-test none --allow-leak pixels. (Two patients of one hospital have the same numbers.)

    Source: UCI Machine Learning Repository, doi:10.24432/C52P4X, as prepared by FLamby. Licence: CC BY 4.0.
    """

    dataset = "flamby_heart"
    """Name of the data set, as users type it."""
    parallel = False
    """Whether several processes can read the release."""
    item = "row"
    """Name of one item that is read, in the singular, for messages."""

    source: Path
    """The folder of the four files processed.NAME.data of the UCI Heart Disease data."""
    scale: Annotated[str, OneOf(SCALES)] = "centre"
    """Standardise the features by training rows of: centre (the same hospital, as FLamby's sites do), pooled (all
    hospitals), mixed (all hospitals for training rows, the same hospital for test rows, as FLamby scores its pooled
    model); none does not standardise."""

    @classmethod
    def pools_statistics(cls, options: Mapping[str, Any]) -> bool:
        """Return whether the features are standardised by rows of several hospitals.

        Args:
            options: Options of the data set in the study file.
        """
        return options.get("scale", "centre") in ("pooled", "mixed")

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_heart_disease`` or ``flamby_heart`` in `top`, whichever exists
            first, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_heart_disease", cls.dataset)}

    def check_release(self) -> object:
        """Check the release by finding the four files; raise DataError if one is missing."""
        return find_files(self.source)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Read the four files and write the prepared data set to `out`.

        Args:
            out: Output folder; it is written completely or not at all.
            force: Whether an existing data set may be replaced.
            workers: Unused, because one process reads the small files.
            require_complete: Unused.
            say: Receives licence, citation and warnings, one line each.
        """
        say(f"{self.dataset}: licence {RECORDS[0].licence}")
        say(f"Please cite: {CITATION}")
        hospitals = {name: read_hospital(path) for name, path in find_files(self.source).items()}
        few = [name for name, hospital in hospitals.items() if len(hospital.labels) < 3]
        if few:
            raise DataError(
                "too_few_rows",
                f"expected at least three complete rows at each hospital, {', '.join(few)} has fewer.",
                hospitals=few,
                minimum=3,
            )
        tests = {name: select_test_rows(hospital.labels) for name, hospital in hospitals.items()}
        centres = [name for name, test in tests.items() for _ in test]
        splits = ["test" if held else "training" for test in tests.values() for held in test]
        differences = unlike_published(centres, splits, OFFICIAL_COUNTS, "rows")
        for sentence in differences:
            say(f"warning: {sentence}")
        say("note: the files contain no patient identifiers: each row counts as a patient of its own")
        names, numbers = build_features(hospitals)
        vectors = np.concatenate(list(_scale_features(numbers, tests, self.scale).values())).astype(np.float32)
        datalist = Datalist(
            name="flamby_heart" if self.scale == "centre" else f"flamby_heart-{self.scale}",
            image_array=ARRAY_FILE,
            num_classes=2,
            labels={"0": "no heart disease", "1": "heart disease"},
            objective={"name": "binary"},
            modality=RECORDS[0].modality,
            licence=RECORDS[0].licence,
            splits=_records(hospitals, tests),
            extra={
                FEATURES: names,
                "citation": CITATION,
                "deviations": differences,
            },
            exclusions=exclusions({INCOMPLETE_ROW: sum(h.incomplete for h in hospitals.values())}),
        )
        with atomic_folder(out, force) as folder:
            with new_array(folder / ARRAY_FILE, vectors.shape, vectors.dtype) as array:
                array.write(0, vectors)
                array.flush()
            write_datalist(folder, datalist)
        return datalist


def _scale_features(
    numbers: Mapping[str, np.ndarray], tests: Mapping[str, np.ndarray], scale: str
) -> dict[str, np.ndarray]:
    """Standardise the features: subtract the mean of training rows, divide by their sample standard deviation.

    Args:
        numbers: Maps each hospital to its features (n, F).
        tests: Maps each hospital to its test rows (n,), bool.
        scale: One of `SCALES`.

    Returns:
        Maps each hospital to its scaled features (n, F).
    """
    if scale == "none":
        return dict(numbers)
    all_training_rows = np.concatenate([rows[~tests[name]] for name, rows in numbers.items()])
    scaled = {}
    for name, rows in numbers.items():
        own, shared = _standardise(rows, rows[~tests[name]]), _standardise(rows, all_training_rows)
        mixed = np.where(tests[name][:, None], own, shared)
        scaled[name] = {"centre": own, "pooled": shared, "mixed": mixed}[scale]
    return scaled


def _standardise(rows: np.ndarray, training_rows: np.ndarray) -> np.ndarray:
    """Standardise `rows` by the mean and sample standard deviation of the rows `training_rows`."""
    return (rows - training_rows.mean(axis=0)) / (training_rows.std(axis=0, ddof=1) + STD_OFFSET)


def _records(hospitals: Mapping[str, Hospital], tests: Mapping[str, np.ndarray]) -> dict[str, list[CaseRecord]]:
    """Build the records of the training and test split; record n of all hospitals in turn is row n of the array."""
    splits: dict[str, list[CaseRecord]] = {"training": [], "test": []}
    row = 0
    for name, hospital in hospitals.items():
        for numbers, label, test in zip(hospital.numbers, hospital.labels.tolist(), tests[name], strict=True):
            sex = "male" if numbers[SEX_COLUMN] == 1 else "female"
            record: CaseRecord = {"image": row, "label": label, "subject_id": f"{row:04d}", "centre": name, "sex": sex}
            splits["test" if test else "training"].append(record)
            row += 1
    return splits
