"""Spec of CelebA: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read) and `datalist` (describe the rows
of the array).

The label is one of 40 attributes of each face. If the release contains ``identity_CelebA.txt``, images of one person
have one ``subject_id`` and one ``identity``. `medfl partition` then keeps each person's images together, or makes a
site of each person with ``--scheme by_site --column identity``, as LEAF does (with 5 images or more of each person).
Persons get running numbers: no file name and no number of the release is kept.

Prepared data set: ``images.npy`` (N, H, W, 3), uint8; each record has ``label`` (0 or 1), ``subject_id`` and, with the
table of persons, ``identity``. The splits are the official ones, or all images are in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from medfl.data.datalists import SPLITS, Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.options import HeightWidth, OneOf
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec, folder_or_top
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.celeba import RECORDS
from medfl_datasets.celeba.files import (
    IDENTITY,
    IMAGE_FOLDER_PREFIX,
    OFFICIAL_IMAGE_SIZE,
    PARTITION,
    CelebaFiles,
    find_files,
    read_face,
)
from medfl_datasets.celeba.tables import AttributeColumn, lookup_images, read_attribute, read_identities, read_splits

CITATION = "Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766"
"""Publication that users of the data are asked to cite."""

OFFICIAL_IMAGES, OFFICIAL_PERSONS, OFFICIAL_ATTRIBUTES = 202_599, 10_177, 40
"""Published numbers of images (`OFFICIAL_IMAGES`), persons (`OFFICIAL_PERSONS`) and attributes
(`OFFICIAL_ATTRIBUTES`)."""

SPLIT_OPTIONS = ("auto", "official", "none")
"""Choices of `CelebA.split`. ``auto``: the official split if its table exists; ``official``: always the official split;
``none``: all images in training."""

NO_FILE = "there is no image file"
"""Exclusion reason of an image that the table lists but that has no file."""

TOO_FEW_IMAGES = "there are too few images of the person"
"""Exclusion reason of an image whose person has fewer images than `CelebA.min_images`."""

NO_IDENTITY_WARNING = (
    f"there is no {IDENTITY}.txt: each image counts as a person of its own, and images of one person may be at several "
    "sites and in several splits"
)
"""Warning if there is no table of persons."""


@dataclass(frozen=True)
class _CelebaTables:
    """Content of the tables; the lists have an entry for each image of the attribute table.

    Attributes:
        attribute: Column of the chosen attribute.
        persons: Person in each image; None without the table of persons.
        splits: Split of each image.
    """

    attribute: AttributeColumn
    persons: list[str] | None
    splits: list[str]


class _CelebaInputs(NamedTuple):
    """Inputs of `CelebA.datalist` that `CelebA.plan_reading` collects.

    Attributes:
        tables: Content of the tables.
        differences: Differences from the official release, one sentence each; `CelebA.datalist` adds to them.
        warnings: Warnings for the data list.
    """

    tables: _CelebaTables
    differences: list[str]
    warnings: list[str]


class CelebA(ImageSpec):
    """CelebA: faces with any of 40 attributes as label. Nothing is downloaded.

    With identity_CelebA.txt images of a person stay together, and medfl partition --scheme by_site --column identity
    makes a site of each. Missing and unreadable images are left out and listed in quarantine.csv.

    Source: Liu et al., ICCV 2015, arXiv:1411.7766. Licence: non-commercial research only, no redistribution.
    """

    dataset = "celeba"
    """Name of the data set, as users type it."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder of img_align_celeba and list_attr_celeba."""
    attribute: str = "Smiling"
    """Attribute to use as label, for example Smiling or Eyeglasses."""
    size: HeightWidth = (64, 64)
    """Height and width of the images in the array: 64, or 218x178 (HxW)."""
    crop: bool = False
    """Crop the largest centred square first."""
    split: Annotated[str, OneOf(SPLIT_OPTIONS)] = "auto"
    """Split: official; none (all images in training); auto (official if list_eval_partition exists)."""
    min_images: int = Field(1, ge=1)
    """Leave out persons with fewer images (needs identity_CelebA.txt)."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``celeba`` in `top` if that exists, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, cls.dataset)}

    def find(self) -> CelebaFiles:
        """Find the images and tables of the release."""
        return find_files(self.source)

    def plan_reading(self, files: CelebaFiles, say: Say) -> ReadPlan:
        """Plan to read all images of the table that have a file and whose person has enough images."""
        release = _read_tables(files, self.attribute, self.split, self.min_images)
        warnings = [] if release.persons else [NO_IDENTITY_WARNING]
        differences = _deviations(release)
        for sentence in [*differences, *warnings]:
            say(f"warning: {sentence}")
        places, missing = _select_images(release, files, self.min_images, say)
        return ReadPlan(
            items=[files.images[release.attribute.images[place]] for place in places],
            places=places,
            files=lambda path: [path],
            load=partial(read_face, size=self.size, crop=self.crop),
            shape=(*self.size, 3),
            recipe={"data set": "celeba", "size": self.size, "crop": self.crop},
            cells=lambda place: (release.attribute.lines[place],),
            columns=("table_line",),
            missing=missing,
            unlisted=frozenset([TOO_FEW_IMAGES]),
            release=_CelebaInputs(tables=release, differences=differences, warnings=warnings),
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label, person and split for each image that was read."""
        inputs: _CelebaInputs = outcome.plan.release
        release, differences = inputs.tables, inputs.differences
        sizes = sum(facts["size"] != OFFICIAL_IMAGE_SIZE for facts in outcome.facts)
        if sizes:
            differences.append(
                f"{sizes} of {len(outcome.kept)} images do not have the {OFFICIAL_IMAGE_SIZE[0]} x "
                f"{OFFICIAL_IMAGE_SIZE[1]} pixels of CelebA"
            )
            say(f"warning: {differences[-1]}")
        classes = [f"no {release.attribute.name}", release.attribute.name]
        return self.make_datalist(
            classes,
            "photographs of faces",
            _records(release, classes, outcome.kept),
            [release.splits[place] for place in outcome.kept],
            exclusions=exclusions(Counter(outcome.reasons.values())),
            deviations=differences,
            warnings=inputs.warnings,
        )


def _read_tables(files: CelebaFiles, attribute: str, split: str, min_images: int) -> _CelebaTables:
    """Read the attribute, persons and splits; raise DataError if a table that the options need is missing."""
    column = read_attribute(files.attributes, attribute)
    if split == "official" and files.partition is None:
        raise DataError(
            "missing_file",
            f"expected {PARTITION}.txt or {PARTITION}.csv for the official split, found none. Put it beside the "
            "folder of images, or leave out --split.",
            file=f"{PARTITION}.txt",
            setting="split",
        )
    if min_images > 1 and files.identity is None:
        raise DataError(
            "missing_file",
            f"expected {IDENTITY}.txt to count the images of each person, found none. Put it beside the folder of "
            "images, or leave out --min-images.",
            file=f"{IDENTITY}.txt",
            setting="min_images",
        )
    persons, splits = None, [SPLITS[0]] * len(column.images)
    if files.identity is not None:
        persons = lookup_images(read_identities(files.identity), column.images, files.identity)
    if files.partition is not None and split != "none":
        splits = lookup_images(read_splits(files.partition), column.images, files.partition)
    return _CelebaTables(column, persons, splits)


def _deviations(release: _CelebaTables) -> list[str]:
    """Describe the differences from the official release, one sentence each."""
    sentences = []
    if len(release.attribute.images) != OFFICIAL_IMAGES:
        sentences.append(f"the table has {len(release.attribute.images)} images; CelebA has {OFFICIAL_IMAGES}")
    if release.attribute.known != OFFICIAL_ATTRIBUTES:
        sentences.append(f"the table has {release.attribute.known} attributes; CelebA has {OFFICIAL_ATTRIBUTES}")
    if release.persons is not None and len(set(release.persons)) != OFFICIAL_PERSONS:
        sentences.append(f"there are {len(set(release.persons))} persons; CelebA has {OFFICIAL_PERSONS}")
    return sentences


def _select_images(
    release: _CelebaTables, files: CelebaFiles, min_images: int, say: Say
) -> tuple[list[int], dict[int, str]]:
    """Select the images to read, and report image files without a row.

    Returns:
        Indices in the table of the images to read, and a mapping from the index of each excluded image to the reason.

    Raises:
        DataError: If no image has a file, or no person has enough images.
    """
    images = release.attribute.images
    surplus = len(files.images.keys() - set(images))
    if surplus:
        say(f"note: {surplus} image files are in no row of {files.attributes.name}: they are skipped")
    reasons = {place: NO_FILE for place, image in enumerate(images) if image not in files.images}
    if len(reasons) == len(images):
        raise DataError(
            "no_images",
            f"none of the {len(images)} images of {files.attributes} has a file. The table and the images do not "
            f"belong together: give the folder that holds {IMAGE_FOLDER_PREFIX} and the table of one release.",
            path=files.attributes,
            expected=len(images),
        )
    there = [place for place in range(len(images)) if place not in reasons]
    if release.persons is None or min_images == 1:
        return there, reasons
    counts = Counter(release.persons[place] for place in there)
    kept = [place for place in there if counts[release.persons[place]] >= min_images]
    few = sum(count < min_images for count in counts.values())
    say(f"note: {len(there) - len(kept)} images of {few} persons with fewer than {min_images} are left out")
    if not kept:
        raise DataError(
            "too_few_images",
            f"no person has {min_images} images or more, the most are {max(counts.values())}. Give a smaller "
            "--min-images.",
            minimum=min_images,
            found=max(counts.values()),
        )
    return kept, reasons | dict.fromkeys(set(there) - set(kept), TOO_FEW_IMAGES)


def _records(release: _CelebaTables, classes: Sequence[str], kept: Sequence[int]) -> list[CaseRecord]:
    """Build the record of each row of the array; row n is the image at index ``kept[n]`` of the table."""
    labels = [release.attribute.present[place] for place in kept]
    empty_classes = [text for label, text in enumerate(classes) if label not in labels]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no image is left of the class '{empty_classes[0]}'. Give more images, or another --attribute.",
            classes=empty_classes,
        )
    persons = [str(place) if release.persons is None else release.persons[place] for place in kept]
    records: list[CaseRecord] = []
    for label, subject in zip(labels, number_subjects(persons), strict=True):
        identity = {} if release.persons is None else {"identity": subject.replace("subject", "identity")}
        records.append(make_record({"label": label, "subject_id": subject, **identity}))
    return records
