"""Spec of LC25000: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

The 25,000 images are copies of 1,250 tiles that the authors rotated and flipped. No file name tells which images are
copies of one tile, so a random split puts copies of most test images into training. A perceptual hash finds the copies
(`medfl_datasets.lc25000.copies`) and gives them one ``subject_id``, so that no partition separates them. The release
does not state which tiles belong to one patient.

Prepared data set: ``images.npy`` (N, size, size, 3), uint8; each record has ``label``, ``subject_id`` and ``organ``,
but no file name. All images are in the training split, because the release has no other; `medfl partition` holds out
test sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.options import OneOf
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec, folder_or_top
from medfl.errors import DataError, check_choice
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.lc25000 import RECORDS
from medfl_datasets.lc25000.copies import group_copies
from medfl_datasets.lc25000.files import (
    CLASSES,
    OFFICIAL_IMAGE_SIZE,
    OFFICIAL_IMAGES_PER_CLASS,
    Lc25000Files,
    decode_thumbnail,
    find_files,
    read_tile,
)

CITATION = (
    "Borkowski, Bui, Thomas, Wilson, DeLand and Mastorides, Lung and Colon Cancer Histopathological Image Dataset "
    "(LC25000), arXiv:1912.12142 (2019)"
)
"""Publication that users of the data are asked to cite."""

ORGANS = ("both", "lung", "colon")
"""Choices of `LC25000.organ`: all five classes (``both``), the three of the lung, or the two of the colon."""

GROUPINGS = ("hash", "none")
"""Choices of `LC25000.groups`. ``hash``: keep the copies that the perceptual hash finds together; ``none``: treat each
image as independent."""

LARGE_GROUP_SIZE = 100
"""Number of images above which a group of copies causes a warning; the release has 20 copies of a tile on average."""

COPIES_WARNING = (
    "the images are copies of about 1250 tiles, turned and flipped by the authors, and tiles of one patient are not "
    "marked: scores on test images from this release are too high"
)
"""Warning about the copies, always given."""

UNDETECTED_COPIES_WARNING = "copies of a tile that the hash does not find may be in training and in the test set"
"""Warning about the splits if copies were searched: the search may miss some."""
NO_SEARCH_WARNING = "copies were not looked for (groups: none), and most test images will have copies in training"
"""Warning about the splits if copies were not searched."""


class LC25000(ImageSpec):
    """LC25000: lung and colon tissue, benign or cancer. Nothing is downloaded.

    The images are rotated and flipped copies of 1250 tiles; file names do not tell which are copies of one tile. Copies
    that a hash finds stay together, and the number of groups is reported. An interrupted run continues with the same
    command.

    Source: Borkowski et al., arXiv:1912.12142. Licence: see the release; its authors offer it to researchers for free.
    """

    dataset = "lc25000"
    """Name of the data set, as users type it."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder lung_colon_image_set, or the one that contains it."""
    size: int = Field(224, ge=1)
    """Height and width of the images in the array."""
    organ: Annotated[str, OneOf(ORGANS)] = "both"
    """Organ: both (five classes), lung (three) or colon (two)."""
    groups: Annotated[str, OneOf(GROUPINGS)] = "hash"
    """Images that stay together: hash (copies of a tile that the hash finds) or none (copies get separated)."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``lc25000`` in `top` if that exists, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, cls.dataset)}

    def title(self) -> str:
        """Return the name of the prepared data set, with the organ if only one is used."""
        return "lc25000" if self.organ == "both" else f"lc25000-{self.organ}"

    def find(self) -> Lc25000Files:
        """Find the image files of the chosen classes."""
        return find_files(self.source, classes_of(self.organ))

    def plan_reading(self, files: Lc25000Files, say: Say) -> ReadPlan:
        """Plan to read all images of the chosen classes. Indices of excluded files precede those of the images."""
        warnings = [COPIES_WARNING, UNDETECTED_COPIES_WARNING if self.groups == "hash" else NO_SEARCH_WARNING]
        for sentence in warnings:
            say(f"warning: {sentence}")
        if files.surplus:
            say(f"note: {files.surplus} files are not images of the release: they are skipped")
        first = len(files.quarantined)
        names = [name for name, _ in files.quarantined]
        names += [f"{folder}/{path.name}" for folder, path in zip(files.folders, files.paths, strict=True)]
        return ReadPlan(
            items=files.paths,
            places=range(first, len(names)),
            files=lambda path: [path],
            load=partial(read_tile, size=self.size),
            shape=(self.size, self.size, 3),
            recipe={"data set": "lc25000", "size": self.size},
            cells=lambda place: (names[place],),
            columns=("image",),
            missing={place: reason for place, (_, reason) in enumerate(files.quarantined)},
            release=(files, warnings),
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list of the images that were read; the copies of a tile have one ``subject_id``."""
        files, warnings = outcome.plan.release
        classes = classes_of(self.organ)
        kept_folders = [files.folders[place - len(files.quarantined)] for place in outcome.kept]
        differences = _deviations(kept_folders, classes, outcome)
        groups, group_warnings = _group_rows(kept_folders, outcome, self.groups, say)
        for sentence in [*differences, *group_warnings]:
            say(f"warning: {sentence}")
        records: list[CaseRecord] = [
            make_record({"label": classes.index(key), "subject_id": subject, "organ": CLASSES[key].organ})
            for key, subject in zip(kept_folders, number_subjects(groups), strict=True)
        ]
        return self.make_datalist(
            [CLASSES[key].text for key in classes],
            "histology, light microscopy",
            records,
            exclusions=exclusions(Counter(outcome.reasons.values())),
            groups=self.groups,
            deviations=differences,
            warnings=[*warnings, *group_warnings],
        )


def classes_of(organ: str) -> list[str]:
    """Return the classes of an organ, keys of `medfl_datasets.lc25000.files.CLASSES`.

    Args:
        organ: One of `ORGANS`.

    Raises:
        SettingsError: If the organ is unknown.
    """
    check_choice("organ", organ, ORGANS)
    return [key for key, tissue in CLASSES.items() if organ in ("both", tissue.organ)]


def _deviations(kept_folders: Sequence[str], classes: Sequence[str], outcome: ReadOutcome) -> list[str]:
    """Describe the differences from the official release, one sentence each.

    Raises:
        DataError: If a class has no image.
    """
    counts = Counter(kept_folders)
    empty_classes = [key for key in classes if not counts[key]]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no readable image is left of the classes {', '.join(empty_classes)}. Unpack LC25000 again.",
            classes=empty_classes,
        )
    sentences = []
    differences = [f"{key} {counts[key]}" for key in classes if counts[key] != OFFICIAL_IMAGES_PER_CLASS]
    if differences:
        sentences.append(
            f"LC25000 has {OFFICIAL_IMAGES_PER_CLASS} images of each class; found {', '.join(differences)}"
        )
    sizes = sum(facts["size"] != OFFICIAL_IMAGE_SIZE for facts in outcome.facts)
    if sizes:
        sentences.append(
            f"{sizes} of {len(kept_folders)} images do not have the {OFFICIAL_IMAGE_SIZE[0]} x "
            f"{OFFICIAL_IMAGE_SIZE[1]} pixels of LC25000"
        )
    return sentences


def _group_rows(
    kept_folders: Sequence[str], outcome: ReadOutcome, groups: str, say: Say
) -> tuple[list[str], list[str]]:
    """Assign each row of the array to a group of copies, and report the groups.

    Returns:
        Name of each row's group, and warnings about the groups.
    """
    if groups == "none":
        return [str(row) for row in range(len(kept_folders))], []
    names, blank = [""] * len(kept_folders), 0
    for key in sorted(set(kept_folders)):
        rows = [row for row, folder in enumerate(kept_folders) if folder == key]
        say(f"note: looking for copies among {len(rows)} images of {CLASSES[key].text}")
        copies = group_copies(np.stack([decode_thumbnail(outcome.facts[row]["grey"]) for row in rows]))
        blank += int(copies.blank.sum())
        for row, number in zip(rows, copies.numbers.tolist(), strict=True):
            names[row] = f"{key} {number}"
    sizes = sorted(Counter(names).values())
    say(
        f"note: {len(sizes)} groups of copies among {len(kept_folders)} images: {sizes[0]} to {sizes[-1]} images in "
        f"a group, {median(sizes):g} in the median; {sizes.count(1)} groups have one image. LC25000 was made of 250 "
        "tiles a class."
    )
    return names, _group_warnings(sizes, blank)


def _group_warnings(sizes: Sequence[int], blank: int) -> list[str]:
    """Return warnings about suspicious groups of copies.

    Args:
        sizes: Number of images in each group.
        blank: Number of images with a blank centre.
    """
    warnings = []
    if blank:
        warnings.append(
            f"{blank} images are blank in the middle: their copies can't be found, so each is a group of its own"
        )
    large = [size for size in sizes if size > LARGE_GROUP_SIZE]
    if large:
        warnings.append(
            f"{len(large)} groups have more than {LARGE_GROUP_SIZE} images: different tiles that look alike may be "
            "in one group. Copies stay together, but check the classes of each site"
        )
    return warnings
