"""FLamby's Fed-Heart-Disease: the UCI files of four hospitals in, a pooled data set of vectors out.

Each complete row of a hospital becomes a vector of 13 numbers and a label: heart disease, or none. The split into
training and test rows is FLamby's to the row (`medfl_datasets.flamby_heart.split`), and so is the scale. The hospital
is kept as ``centre``, and the sex of the patient. The files name no patient: each row counts as one of its own.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks; its code of that data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from medfl.ingest.array_file import new_array
from medfl.ingest.checkpoint import ARRAY
from medfl.ingest.choice import exclusions
from medfl.ingest.options import Choose
from medfl.ingest.published_splits import unlike_published
from medfl.ingest.spec import WholeSpec, folder_or_top

from medfl.data.arrays import FEATURES
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import written_whole
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.flamby_heart import RECORDS
from medfl_datasets.flamby_heart.files import SEX, Hospital, features, find_files, read_hospital
from medfl_datasets.flamby_heart.split import rows_for_tests

CITATION = (
    "Janosi, Steinbrunn, Pfisterer and Detrano, Heart Disease, UCI Machine Learning Repository (1989), "
    "doi:10.24432/C52P4X; as prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and Benchmarks"
)
"""What users of the data are asked to cite."""

SCALES = ("centre", "pooled", "mixed", "none")
"""Whose training rows the features are standardised by: the hospital's own, all, or nobody's. Mixed: of training rows
all, of test rows the hospital's own. That is how FLamby's pooled model was trained and then scored at the sites; its
published accuracy of .735 is that, and the same model has about .81 where test rows are scaled as it was trained."""

OFFICIAL = {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
"""Hospital to training and test rows of FLamby."""

INCOMPLETE = "a number of the row is missing"
"""Why a row is left out."""

TINY = 1e-9
"""FLamby adds it to each standard deviation."""


class FlambyHeart(WholeSpec):
    """FLamby's Fed-Heart-Disease: heart disease or none, by 13 numbers, at four hospitals. Nothing is downloaded.

    The test rows are FLamby's. Its sites come from medfl partition --scheme by_site --column
    centre --test official --global-test none --allow-leak pixels. (Two patients of one hospital have the same numbers.)
    """

    dataset = "flamby_heart"
    parallel = False
    item = "row"

    source: Path
    """The folder of the four files processed.NAME.data of the UCI Heart Disease data."""
    scale: Annotated[str, Choose(SCALES)] = "centre"
    """Standardise by the training rows of each centre (as FLamby's sites do), pooled, mixed (as it scores its pooled
    model: training rows by all, test rows by their centre), or none."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """FLamby's name of the folder, the data set's, or the source folder itself."""
        return {"source": folder_or_top(top, "fed_heart_disease", cls.dataset)}

    def look(self) -> object:
        """The four files."""
        return find_files(self.source)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
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
        tests = {name: rows_for_tests(hospital.labels) for name, hospital in hospitals.items()}
        centres = [name for name, test in tests.items() for _ in test]
        splits = ["test" if held else "training" for test in tests.values() for held in test]
        unlike = unlike_published(centres, splits, OFFICIAL, "rows")
        for sentence in unlike:
            say(f"warning: {sentence}")
        say("note: the files do not say who a patient is: each row counts as a patient of its own")
        names, numbers = features(hospitals)
        vectors = np.concatenate(list(_scaled(numbers, tests, self.scale).values())).astype(np.float32)
        datalist = Datalist(
            name="flamby_heart" if self.scale == "centre" else f"flamby_heart-{self.scale}",
            image_array=ARRAY,
            num_classes=2,
            labels={"0": "no heart disease", "1": "heart disease"},
            objective={"name": "binary"},
            modality=RECORDS[0].modality,
            licence=RECORDS[0].licence,
            splits=_records(hospitals, tests),
            extra={
                FEATURES: names,
                "citation": CITATION,
                "deviations": unlike,
            },
            exclusions=exclusions({INCOMPLETE: sum(h.incomplete for h in hospitals.values())}),
        )
        with written_whole(out, force) as folder:
            with new_array(folder / ARRAY, vectors.shape, vectors.dtype) as array:
                array.write(0, vectors)
                array.flush()
            write_datalist(folder, datalist)
        return datalist


def _scaled(numbers: Mapping[str, np.ndarray], tests: Mapping[str, np.ndarray], scale: str) -> dict[str, np.ndarray]:
    """Features less their mean over training rows, divided by their standard deviation (of a sample) there."""
    if scale == "none":
        return dict(numbers)
    everybody = np.concatenate([rows[~tests[name]] for name, rows in numbers.items()])
    scaled = {}
    for name, rows in numbers.items():
        own, shared = _standardised(rows, rows[~tests[name]]), _standardised(rows, everybody)
        mixed = np.where(tests[name][:, None], own, shared)
        scaled[name] = {"centre": own, "pooled": shared, "mixed": mixed}[scale]
    return scaled


def _standardised(rows: np.ndarray, trained: np.ndarray) -> np.ndarray:
    return (rows - trained.mean(axis=0)) / (trained.std(axis=0, ddof=1) + TINY)


def _records(hospitals: Mapping[str, Hospital], tests: Mapping[str, np.ndarray]) -> dict[str, list[CaseRecord]]:
    splits: dict[str, list[CaseRecord]] = {"training": [], "test": []}
    row = 0
    for name, hospital in hospitals.items():
        for numbers, label, test in zip(hospital.numbers, hospital.labels.tolist(), tests[name], strict=True):
            sex = "male" if numbers[SEX] == 1 else "female"
            record: CaseRecord = {"image": row, "label": label, "subject_id": f"{row:04d}", "centre": name, "sex": sex}
            splits["test" if test else "training"].append(record)
            row += 1
    return splits
