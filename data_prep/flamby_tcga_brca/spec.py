"""Spec of FLamby's Fed-TCGA-BRCA: options and preparation of the data set of feature vectors.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `check_release` (check the files) and `make` (write the data set).

Prepared data set: one array (N, 39), float32, with the table's values of each patient that is in a fold; each record
has ``target`` (days under observation, and 1 if the patient died), ``subject_id`` and ``centre`` (the region), but no
patient name. The splits are FLamby's.

Twelve patients have 0 days and a censored time. medfl requires survival times above 0, so these patients get half a
day. That is less than one day, the shortest other time, so it changes neither Cox's loss nor the C-index, which depend
only on the order of the times.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.arrays import FEATURES
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import atomic_folder
from medfl.data.ingest.array_file import new_array
from medfl.data.ingest.checkpoint import ARRAY_FILE
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.published_splits import unlike_published
from medfl.data.ingest.read_plan import exclusions
from medfl.data.ingest.spec import WholeSpec, folder_or_top
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.flamby_tcga_brca import RECORDS
from medfl_datasets.flamby_tcga_brca.files import REGIONS, BrcaPatients, find_files, read_patients

CITATION = (
    "The Cancer Genome Atlas, TCGA-BRCA, Genomic Data Commons; as prepared for FLamby: Ogier du Terrail et al., "
    "NeurIPS 2022 Datasets and Benchmarks"
)
"""Publications that users of the data are asked to cite."""

OFFICIAL_COUNTS = dict(zip(REGIONS, ((248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11)), strict=True))
"""Maps each region to FLamby's numbers of training and test patients."""

NO_FOLD = "the patient is in no fold"
"""Exclusion reason of a table row: FLamby's table of folds puts the patient neither in training nor in test."""

ZERO_DAYS_REPLACEMENT = 0.5
"""Days that replace a survival time of 0. Times are whole days, so this is shorter than any other time."""


class FlambyTcgaBrca(WholeSpec):
    """FLamby's Fed-TCGA-BRCA: survival with breast cancer, by 39 numbers, in six regions. Nothing is downloaded.

    The splits are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test official
    --server-test none --allow-leak pixels. (Some patients have the same numbers as others.)

    Source: The Cancer Genome Atlas, TCGA-BRCA, as prepared by FLamby. Licence: open-access data under the policies of
    the Genomic Data Commons (GDC): do not attempt to identify anyone.
    """

    dataset = "flamby_tcga_brca"
    """Name of the data set, as users type it."""
    parallel = False
    """Whether several processes can read the release."""
    item = "row"
    """Name of one item that is read, in the singular, for messages."""

    source: Path
    """The folder of brca.csv and train_test_split.csv, as in FLamby's repository."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_tcga_brca`` or ``flamby_tcga_brca`` in `top`, whichever exists
            first, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_tcga_brca", cls.dataset)}

    def check_release(self) -> object:
        """Check the release by finding both files; raise DataError if one is missing."""
        return find_files(self.source)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Read both files and write the prepared data set to `out`.

        Args:
            out: Output folder; it is written completely or not at all.
            force: Whether an existing data set may be replaced.
            workers: Unused, because one process reads the small files.
            require_complete: Unused.
            say: Receives licence, citation and warnings, one line each.
        """
        say(f"{self.dataset}: licence {RECORDS[0].licence}")
        say(f"Please cite: {CITATION}")
        patients = read_patients(self.source)
        differences = unlike_published(patients.regions, patients.splits, OFFICIAL_COUNTS, "patients")
        for sentence in differences:
            say(f"warning: {sentence}")
        datalist = Datalist(
            name=self.dataset,
            image_array=ARRAY_FILE,
            num_classes=2,
            labels={"0": "cut short", "1": "died"},
            objective={"name": "survival"},
            modality=RECORDS[0].modality,
            licence=RECORDS[0].licence,
            splits=_records(patients),
            extra={
                FEATURES: patients.columns,
                "citation": CITATION,
                "deviations": differences,
            },
            exclusions=exclusions({NO_FOLD: patients.unused}),
        )
        with atomic_folder(out, force) as folder:
            with new_array(folder / ARRAY_FILE, patients.features.shape, patients.features.dtype) as array:
                array.write(0, patients.features)
                array.flush()
            write_datalist(folder, datalist)
        return datalist


def _records(patients: BrcaPatients) -> dict[str, list[CaseRecord]]:
    """Build the records of the training and test split; the n-th patient has row n of the array."""
    splits: dict[str, list[CaseRecord]] = {"training": [], "test": []}
    times = np.maximum(patients.times, ZERO_DAYS_REPLACEMENT).tolist()
    subjects = number_subjects(patients.names)
    for row, (time, event, region, split, subject) in enumerate(
        zip(times, patients.events.tolist(), patients.regions, patients.splits, subjects, strict=True)
    ):
        target = [time, float(event)]
        splits[split].append({"image": row, "target": target, "subject_id": subject, "centre": region})
    return splits
