"""Spec of HAM10000: options, choice of images and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read), `datalist` (describe the rows of
the array) and `finish` (change the array or add files).

There are seven diagnoses. Images of one lesion have one ``subject_id``, so that no lesion is in two splits. With
``groups="image"`` each image counts as a lesion of its own, as in papers that split by image; the data list then has a
warning. Lesions get running numbers: no name of a file, image or lesion is kept.

Prepared data set: ``images.npy`` (N, H, W, 3), uint8; each record has ``label``, ``subject_id`` and, if the table
states them, ``age``, ``sex``, ``localization`` and ``dataset``. The last is the collection, a natural site: ``medfl
partition --scheme by_site --column dataset``. With ``masks`` the data set is for segmentation: a second array has the
lesion masks, and records have ``diagnosis`` in place of ``label``. All images are in the training split, because the
release has no other; `medfl partition` holds out test sets.

The table and the files are described in `medfl_datasets.ham10000.tables` and `medfl_datasets.ham10000.files`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.masks import MASK_STRATA, add_masks, empty_mask_notes, separate_masks
from medfl.data.ingest.options import HeightWidth, OneOf
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions
from medfl.data.ingest.spec import ImageSpec
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say, describe_counts
from medfl_datasets.ham10000 import RECORDS
from medfl_datasets.ham10000.files import (
    HamFiles,
    HamImageFiles,
    find_files,
    find_masks,
    read_image_and_mask,
    read_image_or_crop,
)
from medfl_datasets.ham10000.tables import (
    OFFICIAL_CLASS_COUNTS,
    HamMetadata,
    count_images_of_shared_lesions,
    read_metadata,
)

CITATION = (
    "Tschandl, Rosendahl and Kittler, The HAM10000 dataset, a large collection of multi-source dermatoscopic images of "
    "common pigmented skin lesions, Scientific Data 5:180161 (2018), doi:10.1038/sdata.2018.161"
)
"""Publication that users of the data are asked to cite."""

GROUPINGS = ("lesion", "image")
"""Choices of `HAM10000.groups`. ``lesion``: the images of one lesion stay together in a partition; ``image``: each
image is independent."""

PRESETS = {"medfl": "lesion", "paper": "image"}
"""Maps each choice of `HAM10000.preset` to its grouping, one of `GROUPINGS`. The paper of FedSDC has 210 test images,
30 of each class, regardless of the lesion."""

NO_FILE = "there is no image file"
"""Exclusion reason of a table row without an image."""

NO_MASK = "there is no mask of the lesion"
"""Exclusion reason of a table row without a lesion mask, if masks are needed."""


class _HamInputs(NamedTuple):
    """Inputs of `HAM10000.datalist` that `HAM10000.plan_reading` collects.

    Attributes:
        files: Files of the release.
        metadata: Metadata table.
        differences: Differences from the official release, one sentence each.
        warnings: Warnings for the data list.
    """

    files: HamFiles
    metadata: HamMetadata
    differences: list[str]
    warnings: list[str]


class HAM10000(ImageSpec):
    """HAM10000: dermoscopic images of skin lesions in seven classes, from Kaggle or Dataverse. Nothing is downloaded.

    Images of a lesion stay together. Age, sex, localization and dataset are kept, the aspect ratio is not. Missing and
    unreadable images are left out and listed in quarantine.csv.

    Source: Tschandl et al., Scientific Data 5:180161 (2018). Licence: CC BY-NC 4.0.
    """

    dataset = "ham10000"
    """Name of the data set, as users type it."""
    unreadable = "option require_complete"
    """Treatment of missing or unreadable images: exclude them, unless the user sets ``require_complete``."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Path
    """The folder of images and table, as unpacked."""
    metadata: Path | None = None
    """The table, if it is not in --source."""
    size: HeightWidth = (224, 224)
    """Height and width of the images in the array: 224, or 225x300 (HxW)."""
    groups: Annotated[str | None, OneOf(GROUPINGS)] = None
    """Images that stay together in a partition: those of one lesion (lesion), or none (image; a lesion may then be in
    training and test)."""
    preset: Annotated[str, OneOf(PRESETS)] = "medfl"
    """Options to use together. medfl: --groups lesion; paper: --groups image, as in FedSDC's paper."""
    crop_lesion: bool = False
    """Crop the lesion, using the masks of the release."""
    masks: Path | None = None
    """The folder of the lesion masks: prepare for segmentation instead of classification."""

    def title(self) -> str:
        """Return the name of the prepared data set, with a suffix for crops or masks."""
        return "ham10000-crop" if self.crop_lesion else "ham10000-masks" if self.masks else "ham10000"

    def grouping(self) -> str:
        """Return the grouping that `groups` or otherwise the preset states, one of `GROUPINGS`."""
        return self.groups or PRESETS[self.preset]

    def find(self) -> HamFiles:
        """Find the table, the images and the masks of the release."""
        return find_files(self.source, self.metadata)

    def plan_reading(self, files: HamFiles, say: Say) -> ReadPlan:
        """Plan to read all images of the table that have a file, and a mask if masks are needed."""
        metadata = read_metadata(files.table, need_lesions=self.grouping() == "lesion")
        differences = metadata.deviations()
        warnings = _by_image_warnings(metadata) if self.grouping() == "image" else []
        for sentence in [*differences, *warnings]:
            say(f"warning: {sentence}")
        if self.masks is not None:
            if self.crop_lesion:
                raise SettingsError(
                    "incompatible_settings",
                    "--crop-lesion cuts lesions out, and --masks is for whole images: give one of them",
                    settings=("crop_lesion", "masks"),
                )
            files = replace(files, masks=find_masks(self.masks))
        places, image_files, missing = _select_images(metadata, files, self.crop_lesion or self.masks is not None, say)
        return ReadPlan(
            items=image_files,
            places=places,
            files=HamImageFiles.files,
            load=partial(read_image_or_crop if self.masks is None else read_image_and_mask, size=self.size),
            shape=(*self.size, 3 if self.masks is None else 4),
            recipe={"data set": self.title(), "size": self.size},
            cells=lambda place: (metadata.table.numbers[place],),
            columns=("table_row",),
            missing=missing,
            release=_HamInputs(files=files, metadata=metadata, differences=differences, warnings=warnings),
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all images, but some are missing or unreadable."""
        inputs: _HamInputs = outcome.plan.release
        count = len(inputs.metadata.images)
        return (
            f"all images of {inputs.files.table.name} are required, {len(outcome.reasons)} of {count} are "
            f"missing or can't be read: {describe_counts(outcome.reasons)}. Unpack the release again."
        )

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with label or mask, subject and metadata for each image that was read."""
        inputs: _HamInputs = outcome.plan.release
        records = make_records(inputs.metadata, outcome.kept, self.grouping())
        if self.masks is not None:
            named = [{"diagnosis": list(OFFICIAL_CLASS_COUNTS)[record.pop("label")]} for record in records]
            records = [
                make_record({**r, **name, **held}) for r, name, held in zip(records, named, outcome.facts, strict=True)
            ]
        datalist = self.make_datalist(
            list(OFFICIAL_CLASS_COUNTS) if self.masks is None else MASK_STRATA,
            "dermoscopy",
            records,
            groups=self.grouping(),
            exclusions=exclusions(Counter(outcome.reasons.values())),
            deviations=inputs.differences,
            warnings=inputs.warnings,
        )
        if self.masks is None:
            return datalist
        for line in empty_mask_notes(datalist):
            say(line)
        return add_masks(datalist, ("background", "lesion"))

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Split the array in `folder`, in place, into images and masks, if the data set has masks."""
        if self.masks is not None:
            separate_masks(folder)


def _by_image_warnings(metadata: HamMetadata) -> list[str]:
    """Return the warning about images of one lesion that count as different lesions."""
    which = "the table does not state which images are of one lesion"
    if metadata.lesions is not None:
        count = count_images_of_shared_lesions(metadata.lesions)
        which = f"{count} of {len(metadata.images)} images are of lesions with several images"
    return [
        f"each image counts as a lesion of its own (groups: image): {which}, and these may be in training and in the "
        "test set"
    ]


def _select_images(
    metadata: HamMetadata, files: HamFiles, with_mask: bool, say: Say
) -> tuple[list[int], list[HamImageFiles], dict[int, str]]:
    """Select the images to read, and report image files without a row.

    Args:
        metadata: The table.
        files: Files of the release.
        with_mask: Whether an image needs a mask.
        say: Receives notes for the user.

    Returns:
        Indices in the table of the images to read, their files, and a mapping from the index of each excluded row to
        the reason.

    Raises:
        DataError: If no image can be read, or if masks are needed and there are none.
    """
    surplus = len(files.images.keys() - set(metadata.images))
    if surplus:
        say(f"note: {surplus} image files are in no row of {files.table.name}: they are skipped")
    if with_mask and not files.masks:
        raise DataError(
            "no_masks",
            "expected the masks ISIC_0024306_segmentation.png, ... in the folder of --source, found none. Unpack "
            "HAM10000_segmentations_lesion_tschandl.zip there, or leave out --crop-lesion.",
            setting="crop_lesion",
        )
    places: list[int] = []
    image_files: list[HamImageFiles] = []
    missing: dict[int, str] = {}
    for place, name in enumerate(metadata.images):
        if name not in files.images:
            missing[place] = NO_FILE
        elif with_mask and name not in files.masks:
            missing[place] = NO_MASK
        else:
            places.append(place)
            image_files.append(HamImageFiles(files.images[name], files.masks[name] if with_mask else None))
    if not image_files:
        raise DataError(
            "no_images",
            f"none of the {len(metadata.images)} images of {files.table} can be used: {describe_counts(missing)}. The "
            "table and the images do not belong together: give others as --source or --metadata.",
            path=files.table,
            expected=len(metadata.images),
            reasons=dict(Counter(missing.values())),
        )
    return places, image_files, missing


def make_records(metadata: HamMetadata, kept: Sequence[int], groups: str) -> list[CaseRecord]:
    """Build the record of each row of the array.

    Args:
        metadata: The table.
        kept: Table index of the image in each row of the array.
        groups: Images that share a ``subject_id``, one of `GROUPINGS`.

    Raises:
        DataError: If no image of a class is left.
    """
    empty_classes = [
        text
        for label, text in enumerate(OFFICIAL_CLASS_COUNTS)
        if label not in {metadata.labels[place] for place in kept}
    ]
    if empty_classes:
        raise DataError(
            "class_without_images",
            f"no image is left of the classes {', '.join(empty_classes)}. Unpack the release completely.",
            classes=empty_classes,
        )
    lesions = metadata.lesions if groups == "lesion" and metadata.lesions else list(map(str, metadata.table.numbers))
    subjects = number_subjects([lesions[place] for place in kept])
    return [
        make_record({"label": metadata.labels[place], "subject_id": subject, **metadata.facts[place]})
        for place, subject in zip(kept, subjects, strict=True)
    ]
