"""Spec of FLamby's Fed-ISIC2019: options, reading of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

Files of the release, as FLamby's scripts write them::

    ISIC_2019_Training_Input_preprocessed/ISIC_0024306.jpg    resized so that the shorter edge has 224 pixels, and with
                                                              constant colours, by FLamby's resize_images.py
    train_test_split                                          of fed_isic2019/dataset_creation_scripts: image, target,
                                                              center, fold, ...; without ending
    ISIC_2019_Training_Metadata.csv                           image, age_approx, sex, anatom_site_general, lesion_id

Each image is cropped at the centre, as FLamby does with test images. FLamby crops training images at random positions;
here this is left to a run's augmentation (with a larger ``size``).

FLamby splits by image: images of one lesion may be in training and in test. Each image therefore counts as a patient of
its own, and the data list states this. With ``groups="lesion"`` the images of one lesion have one ``subject_id``. A
partition that keeps FLamby's split then has to allow lesions in both splits.

Prepared data set: ``images.npy`` (N, H, W, 3), uint8; each record has ``label``, ``subject_id`` and ``centre``, and
with the metadata table also ``age``, ``sex`` and ``localization``. The splits are FLamby's.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.options import HeightWidth, OneOf, Positional
from medfl.data.ingest.published_splits import PublishedSplits, find_table, read_splits, unlike_published
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec, folder_or_top
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.rgb import read_rgb
from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.flamby_isic2019 import RECORDS

CITATION = (
    "Tschandl et al., Scientific Data 5:180161 (2018); Codella et al., arXiv:1710.05006; Combalia et al., "
    "arXiv:1908.02288; as prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and Benchmarks"
)
"""Publications that users of the data are asked to cite."""

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
"""Names of the classes (diagnoses), in the order of FLamby's numbers."""

OFFICIAL_COUNTS = {
    "bcn": (9930, 2483),
    "vidir_molemax": (3163, 791),
    "vidir_modern": (2691, 672),
    "rosendahl": (1807, 452),
    "msk": (655, 164),
    "vienna_dias": (351, 88),
}
"""Maps each centre, in the order of FLamby's numbers, to its numbers of training and test images."""

IMAGE_FOLDER = "ISIC_2019_Training_Input_preprocessed"
"""Name of the release's image folder."""

SPLIT_TABLE = "train_test_split"
"""Name of FLamby's table of splits."""

METADATA_TABLE = "ISIC_2019_Training_Metadata.csv"
"""Name of the table of metadata: age, sex, body site and lesion of each image."""

KEPT_COLUMNS = {"age_approx": "age", "sex": "sex", "anatom_site_general": "localization"}
"""Maps each column of `METADATA_TABLE` that is kept to its name in the data list."""

GROUPINGS = ("image", "lesion")
"""Choices of `FlambyISIC2019.groups`. ``image``: each image counts as a patient of its own; ``lesion``: the images of
one lesion stay together in a partition."""

NO_FILE = "there is no image file"
"""Exclusion reason of a row of the table."""


@dataclass(frozen=True)
class Isic2019Files:
    """Files of a Fed-ISIC2019 release.

    Attributes:
        images: Folder of the images.
        split: Table of splits.
        metadata: Table of metadata; None if it is missing.
    """

    images: Path
    split: Path
    metadata: Path | None


class _Isic2019Inputs(NamedTuple):
    """Inputs of `FlambyISIC2019.datalist` that `plan_reading` collects; lists have an entry for each row.

    Attributes:
        published: Table of splits.
        labels: Class number of each image.
        metadata: Metadata of each image, without label, subject and centre.
        lesions: Name of each image's lesion.
        differences: Differences from FLamby's numbers of images, one sentence each.
    """

    published: PublishedSplits
    labels: list[int]
    metadata: list[dict[str, Any]]
    lesions: list[str]
    differences: list[str]


class FlambyISIC2019(ImageSpec):
    """FLamby's Fed-ISIC2019: skin lesions of eight classes at six centres, resized by scripts. Nothing is downloaded.

    The test images are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test official
    --server-test none.

    Source: ISIC 2019 challenge, as prepared by FLamby. Licence: CC BY-NC 4.0.
    """

    dataset = "flamby_isic2019"
    """Name of the data set, as users type it."""
    unreadable = "option require_complete"
    """Treatment of missing or unreadable images: exclude them, unless the user sets ``require_complete``."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Annotated[Path, Positional()]
    """The folder that FLamby's scripts download to, with the images that they resized."""
    splits: Path | None = None
    """FLamby's table train_test_split, if it is not in --source."""
    size: HeightWidth = (200, 200)
    """Size of the centre crop of each image in pixels: 200, or 200x224 (HxW)."""
    groups: Annotated[str, OneOf(GROUPINGS)] = "image"
    """Images that stay together in a partition: those of one lesion (lesion), which FLamby's split separates; or each
    image on its own (image), as FLamby splits."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_isic2019`` or ``flamby_isic2019`` in `top`, whichever exists
            first, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_isic2019", cls.dataset)}

    def find(self) -> Isic2019Files:
        """Find the image folder and the tables of the release."""
        if not (self.source / IMAGE_FOLDER).is_dir():
            raise DataError(
                "missing_folder",
                f"expected the folder {IMAGE_FOLDER} in {self.source}, found none. Run download_isic.py and "
                "resize_images.py of FLamby's fed_isic2019, and give the folder that they wrote to.",
                path=self.source / IMAGE_FOLDER,
            )
        split = find_table(
            self.source, SPLIT_TABLE, self.splits, " from FLamby's fed_isic2019/dataset_creation_scripts"
        )
        metadata = self.source / METADATA_TABLE
        if self.groups == "lesion" and not metadata.is_file():
            raise DataError(
                "missing_file",
                f"expected {METADATA_TABLE} in {self.source}, which names lesions, missing. Leave out --groups.",
                path=metadata,
            )
        return Isic2019Files(self.source / IMAGE_FOLDER, split, metadata if metadata.is_file() else None)

    def plan_reading(self, files: Isic2019Files, say: Say) -> ReadPlan:
        """Plan to read all images of the table that have a file."""
        published = read_splits(files.split, "image", "center", "fold", list(OFFICIAL_COUNTS))
        labels = _labels(published.table)
        facts, lesions = _read_metadata(files.metadata, published)
        differences = unlike_published(published.sites, published.splits, OFFICIAL_COUNTS, "images")
        for sentence in differences:
            say(f"warning: {sentence}")
        if self.groups == "image":
            say(
                "note: each image counts as a patient of its own, as FLamby splits: a lesion may be in training and "
                "in test"
            )
        paths = [files.images / f"{name}.jpg" for name in published.names]
        places = [place for place, path in enumerate(paths) if path.is_file()]
        if not places:
            raise DataError(
                "no_images",
                f"none of the {len(paths)} images of {files.split} is in {files.images}. Give another one.",
                path=files.images,
                table=files.split,
                expected=len(paths),
            )
        return ReadPlan(
            items=[paths[place] for place in places],
            places=places,
            files=_as_list,
            load=partial(read_centre_crop, size=self.size),
            shape=(*self.size, 3),
            recipe={"data set": self.dataset, "size": self.size},
            cells=lambda place: (published.table.numbers[place],),
            columns=("table_row",),
            missing=dict.fromkeys(sorted(set(range(len(paths))) - set(places)), NO_FILE),
            release=_Isic2019Inputs(
                published=published, labels=labels, metadata=facts, lesions=lesions, differences=differences
            ),
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label, metadata and split for each image that was read."""
        inputs: _Isic2019Inputs = outcome.plan.release
        published, labels, metadata = inputs.published, inputs.labels, inputs.metadata
        groups = inputs.lesions if self.groups == "lesion" else list(map(str, published.table.numbers))
        subjects = number_subjects([groups[place] for place in outcome.kept])
        records: list[CaseRecord] = [
            make_record(
                {"label": labels[place], "subject_id": subject, "centre": published.sites[place], **metadata[place]}
            )
            for place, subject in zip(outcome.kept, subjects, strict=True)
        ]
        return self.make_datalist(
            CLASSES,
            RECORDS[0].modality,
            records,
            [published.splits[place] for place in outcome.kept],
            groups=self.groups,
            deviations=inputs.differences,
            exclusions=exclusions(Counter(outcome.reasons.values())),
        )


def read_centre_crop(path: Path, size: tuple[int, int]) -> LoadedItem:
    """Read an image and crop its centre; an odd surplus row or column is cut at the end.

    Args:
        path: Image file.
        size: Height and width of the crop in pixels.

    Returns:
        Row of the array, shape (H, W, 3), uint8.

    Raises:
        DataError: If the file can't be read, or the image is smaller than the crop.
    """
    pixels = read_rgb(path)
    top, left = ((full - edge) // 2 for full, edge in zip(pixels.shape[:2], size, strict=True))
    if min(top, left) < 0:
        raise DataError(
            "image_too_small",
            "the image is smaller than the size asked for: give a smaller --size",
            expected=size,
            found=pixels.shape[:2],
        )
    return LoadedItem(np.ascontiguousarray(pixels[top : top + size[0], left : left + size[1]]))


def _as_list(path: Path) -> list[Path]:
    """Return the files of an item: a list of its one path."""
    return [path]


def _labels(table: CsvTable) -> list[int]:
    """Return the class number of each row; raise DataError for an unknown one."""
    known = {str(label): label for label in range(len(CLASSES))}
    words = table.column("target")
    wrong = [number for number, word in zip(table.numbers, words, strict=True) if word not in known]
    if wrong:
        raise DataError(
            "wrong_label",
            f"expected 0 to {len(CLASSES) - 1} in 'target' of {table.path}, found other values in {row_list(wrong)}. "
            "Take the table as published.",
            path=table.path,
            column="target",
            rows=wrong,
        )
    return [known[word] for word in words]


def _read_metadata(path: Path | None, published: PublishedSplits) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the metadata table: age, sex, site of the body and lesion of each image.

    Args:
        path: The table, or None.
        published: Table of splits, whose rows are the images.

    Returns:
        Metadata of each image, and the name of its lesion. An image whose lesion is unknown counts as a lesion of its
        own.
    """
    rows: dict[str, dict[str, str]] = {}
    if path is not None:
        table = read_table(path)
        table.require(["image", "lesion_id", *KEPT_COLUMNS])
        rows = dict(zip(table.column("image"), table.rows, strict=True))
    own = [rows.get(name, {}) for name in published.names]
    lesions = [row.get("lesion_id") or name for row, name in zip(own, published.names, strict=True)]
    if path is None:
        return [{} for _ in own], lesions
    facts: list[dict[str, Any]] = [
        {key: row.get(column) or None for column, key in KEPT_COLUMNS.items()} for row in own
    ]
    try:
        return [fact | {"age": fact["age"] and float(fact["age"])} for fact in facts], lesions
    except ValueError:
        raise DataError(
            "invalid_value",
            f"expected numbers in 'age_approx' of {path}, got a text. Take the table as it was.",
            path=path,
            column="age_approx",
        ) from None
