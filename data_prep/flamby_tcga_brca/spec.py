"""FLamby's Fed-TCGA-BRCA: its table of patients with breast cancer in, a pooled data set of vectors out.

Each patient that is in a fold becomes a vector of 39 numbers, as they are in the table, with the days under observation
and whether the patient died. Splits are FLamby's, by its file of folds; the region is kept as ``centre``. No name of a
patient is kept.

Twelve patients have 0 days, and none of them died. A survival time is above 0 here, so they get half a day, which is
before everybody else's first day: Cox's loss and the C-index see the order of times only, and so change by nothing.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks; its code of that data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from medfl.ingest.array_file import new_array
from medfl.ingest.checkpoint import ARRAY
from medfl.ingest.choice import exclusions
from medfl.ingest.labels import number_subjects
from medfl.ingest.published_splits import unlike_published
from medfl.ingest.spec import WholeSpec, folder_or_top

from medfl.data.arrays import FEATURES
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.folders import written_whole
from medfl.records.datalist import CaseRecord
from medfl.utils.text import Say
from medfl_datasets.flamby_tcga_brca import RECORDS
from medfl_datasets.flamby_tcga_brca.files import REGIONS, Patients, find_files, read_patients

CITATION = (
    "The Cancer Genome Atlas, TCGA-BRCA, Genomic Data Commons; as prepared for FLamby: Ogier du Terrail et al., "
    "NeurIPS 2022 Datasets and Benchmarks"
)
"""What users of the data are asked to cite."""

OFFICIAL = dict(zip(REGIONS, ((248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11)), strict=True))
"""Region to training and test patients of FLamby."""

NO_FOLD = "the patient is in no fold"
"""Why a row is left out."""

SHORTEST = 0.5
"""Days in place of 0; whole days are counted, so it is before all others."""


class FlambyTcgaBrca(WholeSpec):
    """FLamby's Fed-TCGA-BRCA: survival with breast cancer, by 39 numbers, in six regions. Nothing is downloaded.

    The splits are FLamby's. Its sites come from medfl partition --scheme by_site --column
    centre --test official --global-test none --allow-leak pixels. (Some patients have the same numbers as others.)
    """

    dataset = "flamby_tcga_brca"
    parallel = False
    item = "row"

    source: Path
    """The folder of brca.csv and train_test_split.csv, as FLamby has them."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """FLamby's name of the folder, the data set's, or the source folder itself."""
        return {"source": folder_or_top(top, "fed_tcga_brca", cls.dataset)}

    def look(self) -> object:
        """Both files."""
        return find_files(self.source)

    def make(self, out: Path, *, force: bool, workers: int | None, require_complete: bool, say: Say) -> Datalist:
        """Write the pooled data set."""
        say(f"{self.dataset}: licence {RECORDS[0].licence}")
        say(f"Please cite: {CITATION}")
        patients = read_patients(self.source)
        unlike = unlike_published(patients.regions, patients.splits, OFFICIAL, "patients")
        for sentence in unlike:
            say(f"warning: {sentence}")
        datalist = Datalist(
            name=self.dataset,
            image_array=ARRAY,
            num_classes=2,
            labels={"0": "cut short", "1": "died"},
            objective={"name": "survival"},
            modality=RECORDS[0].modality,
            licence=RECORDS[0].licence,
            splits=_records(patients),
            extra={
                FEATURES: patients.columns,
                "citation": CITATION,
                "deviations": unlike,
            },
            exclusions=exclusions({NO_FOLD: patients.unused}),
        )
        with written_whole(out, force) as folder:
            with new_array(folder / ARRAY, patients.features.shape, patients.features.dtype) as array:
                array.write(0, patients.features)
                array.flush()
            write_datalist(folder, datalist)
        return datalist


def _records(patients: Patients) -> dict[str, list[CaseRecord]]:
    splits: dict[str, list[CaseRecord]] = {"training": [], "test": []}
    times = np.maximum(patients.times, SHORTEST).tolist()
    subjects = number_subjects(patients.names)
    for row, (time, event, region, split, subject) in enumerate(
        zip(times, patients.events.tolist(), patients.regions, patients.splits, subjects, strict=True)
    ):
        target = [time, float(event)]
        splits[split].append({"image": row, "target": target, "subject_id": subject, "centre": region})
    return splits
