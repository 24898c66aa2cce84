"""Spec of FLamby's Fed-IXI: options, reading of volumes and data list of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files), `plan_reading` (plan what to read), `datalist` (describe the rows of
the array) and `finish` (change the array or add files).

Files of the release (IXI Tiny) and FLamby's table of splits::

    7kd5wj7v7p-3/IXI_sample/IXI002-Guys-0828/T1/*.nii.gz       83 x 44 x 55 voxels
    7kd5wj7v7p-3/IXI_sample/IXI002-Guys-0828/label/*.nii.gz    its mask: 1 is brain
    metadata_tiny.csv                                          of FLamby's fed_ixi/metadata: Patient ID, Manufacturer,
    Split

Volumes are not reoriented. As in FLamby's code, each volume is resized to 48 x 60 x 48 voxels by averaging (MONAI's
``area`` mode), and then scaled to mean 0 and standard deviation 1. A voxel of the resized mask is brain if all voxels
that it covers are.

Prepared data set: arrays of volumes (N, X, Y, Z), float32, and of brain masks; each record has ``subject_id`` and
``centre`` (the hospital), but no file name. The splits are FLamby's.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set.
"""  # noqa: E501

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from medfl.data.datalists import Datalist
from medfl.data.ingest.columns.labels import number_subjects
from medfl.data.ingest.masks import MASK_STRATA, add_masks, empty_mask_notes, masked_row, separate_masks
from medfl.data.ingest.options import Positional, read_edges
from medfl.data.ingest.published_splits import PublishedSplits, find_table, read_splits, unlike_published
from medfl.data.ingest.read_plan import ReadOutcome, ReadPlan, exclusions, unreadable_rows_message
from medfl.data.ingest.spec import ImageSpec, folder_or_top
from medfl.data.ingest.volumes import VolumeFiles
from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom_header import decoding
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.flamby_ixi import RECORDS

CITATION = (
    "IXI, https://brain-development.org/ixi-dataset/; IXI Tiny: Pérez-García, Sparks and Ourselin, TorchIO, "
    "doi:10.48550/arXiv.2003.04696; as prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and "
    "Benchmarks"
)
"""Publications that users of the data are asked to cite."""

OFFICIAL_COUNTS = {"Guys": (249, 62), "HH": (145, 36), "IOP": (59, 15)}
"""Maps each hospital, in the order of FLamby's numbers, to its numbers of training and test volumes."""

VOLUME_FOLDER, SPLIT_TABLE = "IXI_sample", "metadata_tiny.csv"
"""Names in the release: `VOLUME_FOLDER` of the folder of the volumes, `SPLIT_TABLE` of FLamby's table of splits."""

STRUCTURES = ("background", "brain")
"""Names of the mask values 0 and 1."""

NO_FILE = "the folder does not contain exactly one volume and one mask"
"""Exclusion reason of a table row whose subject lacks a file, or has several."""

_SUBJECT = re.compile(r"IXI(\d{3})-([A-Za-z]+)-\d+")


@dataclass(frozen=True)
class IxiFiles:
    """Files of a Fed-IXI release.

    Attributes:
        subjects: Maps each subject number to the subject's folder; the folder's name contains the number.
        hospitals: Maps each subject number to the hospital that the folder's name contains.
        split: File of the table of splits.
    """

    subjects: dict[int, Path]
    hospitals: dict[int, str]
    split: Path


class FlambyIXI(ImageSpec):
    """FLamby's Fed-IXI (IXI Tiny): the brain in T1 volumes of three hospitals. Nothing is downloaded.

    The test volumes are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test
    official --server-test none.

    Source: https://brain-development.org/ixi-dataset/, as prepared for TorchIO and FLamby. Licence: CC BY-SA 3.0.
    """

    dataset = "flamby_ixi"
    """Name of the data set, as users type it."""
    unreadable = "option skip_unreadable"
    """Treatment of missing or unreadable images: stop, unless the user sets the option ``skip_unreadable``."""
    item = "volume"
    """Name of one item that is read, in the singular, for messages."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""

    source: Annotated[Path, Positional()]
    """The folder that FLamby's script downloads to; IXI_sample is in this folder or one of its subfolders."""
    splits: Path | None = None
    """FLamby's table metadata_tiny.csv, if it is not in --source."""
    size: Annotated[tuple[int, ...], BeforeValidator(read_edges)] = (48, 60, 48)
    """Size of the volumes in the array; FLamby's by default."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_ixi`` or ``flamby_ixi`` in `top`, whichever exists first,
            otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_ixi", cls.dataset)}

    def find(self) -> IxiFiles:
        """Find the folders of the subjects and the table of splits."""
        folders = [
            path for path in [self.source, *sorted(self.source.rglob(VOLUME_FOLDER))] if path.name == VOLUME_FOLDER
        ]
        if len(folders) != 1:
            raise DataError(
                "wrong_folder_count",
                f"expected one folder {VOLUME_FOLDER} in {self.source}, there are {len(folders)}. Unpack IXI Tiny "
                "there, as download.py of FLamby's fed_ixi does.",
                path=self.source,
                name=VOLUME_FOLDER,
                expected=1,
                found=len(folders),
            )
        split = find_table(self.source, SPLIT_TABLE, self.splits, " from FLamby's fed_ixi/metadata")
        named = [(match, path) for path in sorted(folders[0].iterdir()) if (match := _SUBJECT.fullmatch(path.name))]
        subjects = {int(match[1]): path for match, path in named}
        if len(subjects) < len(named):
            raise DataError(
                "duplicate_folder",
                f"expected one folder for each subject in {folders[0]}, some have two. Unpack it again.",
                path=folders[0],
            )
        return IxiFiles(subjects, {int(match[1]): match[2] for match, _ in named}, split)

    def plan_reading(self, files: IxiFiles, say: Say) -> ReadPlan:
        """Plan to read the volumes of all subjects of the table that have one volume and one mask."""
        if len(self.size) != 3:
            raise SettingsError(
                "setting_out_of_range",
                f"expected 3 numbers for --size, got {self.size}.",
                setting="size",
                count=3,
                found=self.size,
            )
        published = read_splits(files.split, "Patient ID", "Manufacturer", "Split", list(OFFICIAL_COUNTS))
        cases, missing = _find_cases(files, published)
        differences = unlike_published(published.sites, published.splits, OFFICIAL_COUNTS, "volumes")
        for sentence in differences:
            say(f"warning: {sentence}")
        surplus = len(files.subjects) - len(cases) - len(missing)
        if surplus > 0:
            say(f"note: {surplus} subjects are in no row of {SPLIT_TABLE}: they are skipped")
        return ReadPlan(
            items=list(cases.values()),
            places=list(cases),
            files=VolumeFiles.files,
            load=partial(read_resized, size=self.size),
            shape=(*self.size, 2),
            dtype=np.float32,
            recipe={"data set": self.dataset, "size": self.size},
            cells=lambda place: (published.table.numbers[place],),
            columns=("table_row",),
            missing=missing,
            release=(published, differences),
        )

    def incomplete_message(self, outcome: ReadOutcome) -> str:
        """Return the error message if the user requires all volumes, but some are missing or unreadable."""
        published, _ = outcome.plan.release
        return unreadable_rows_message(outcome.reasons, len(published.names), published.table.numbers.__getitem__)

    def datalist(self, outcome: ReadOutcome, say: Say) -> Datalist:
        """Build the data list: a record with centre and split for each volume that was read."""
        published, differences = outcome.plan.release
        spacings = {tuple(fact.pop("spacing")) for fact in outcome.facts}
        if len(spacings) > 1:
            say("note: the volumes are of several spacings: distances will be in voxels")
        subjects = number_subjects(published.names)
        records: list[CaseRecord] = [
            make_record({"subject_id": subjects[place], "centre": published.sites[place], **facts})
            for place, facts in zip(outcome.kept, outcome.facts, strict=True)
        ]
        made = self.make_datalist(
            MASK_STRATA,
            RECORDS[0].modality,
            records,
            [published.splits[place] for place in outcome.kept],
            deviations=differences,
            intensities="each volume: mean 0, SD 1",
            exclusions=exclusions(Counter(outcome.reasons.values())),
        )
        for line in empty_mask_notes(made):
            say(line)
        return add_masks(made, STRUCTURES, spacings.pop() if len(spacings) == 1 else None)

    def finish(self, folder: Path, outcome: ReadOutcome, datalist: Datalist) -> None:
        """Split the array in `folder`, in place, into an array of volumes and one of masks."""
        separate_masks(folder)


def read_resized(case: VolumeFiles, size: tuple[int, ...]) -> LoadedItem:
    """Read, resize and normalise a volume and its mask as FLamby does.

    Args:
        case: Files of the volume and the mask.
        size: Size of the result in voxels along each axis.

    Returns:
        Voxels, shape (*size, 2), float32: the volume, then the mask. The metadata name the structures in the mask and
        the ``spacing`` (edges of a voxel) in millimetres.

    Raises:
        DataError: If a file can't be read, if volume and mask have different shapes, or if voxels are not finite or all
            equal.
    """
    import nibabel
    import torch
    from monai.transforms import NormalizeIntensity, Resize  # MONAI takes seconds to import
    from nibabel.spatialimages import SpatialImage

    resize = Resize(size, mode="area")
    values: list[np.ndarray] = []
    for path in case.files():
        with decoding():
            head = nibabel.load(path)
            if not isinstance(head, SpatialImage) or len(head.shape) != 3:
                raise DataError("unsupported_file", "a file is not a volume of three axes", axes=3)
            values.append(np.asarray(head.dataobj, dtype=np.float32))
        if path == case.image:
            edges = np.linalg.norm(head.affine[:3, :3], axis=0) * np.array(head.shape) / np.array(size)
    image, mask = values
    if image.shape != mask.shape:
        raise DataError(
            "wrong_shape",
            "the mask has another size than its image. Unpack both again.",
            what="mask",
            expected=image.shape,
            found=mask.shape,
        )
    if not np.isfinite(image).all() or image.min() == image.max():
        raise DataError("invalid_voxels", "voxels are not finite numbers, or all alike")
    whole = np.asarray(NormalizeIntensity()(resize(torch.from_numpy(image[None]))))[0]
    brain = np.floor(np.asarray(resize(torch.from_numpy(mask[None]))))[0]
    row = masked_row(whole[..., None], brain, len(STRUCTURES))
    return LoadedItem(row.pixels, row.facts | {"spacing": [float(round(edge, 4)) for edge in edges]})


def _find_cases(files: IxiFiles, published: PublishedSplits) -> tuple[dict[int, VolumeFiles], dict[int, str]]:
    """Find the files of each row of the table.

    Returns:
        Maps the index of each readable row to its files, and the index of each other row to the exclusion reason.

    Raises:
        DataError: If a folder's name states another hospital than the table.
    """
    cases: dict[int, VolumeFiles] = {}
    missing: dict[int, str] = {}
    for place, (name, site) in enumerate(zip(published.names, published.sites, strict=True)):
        number = int(name) if name.isdecimal() else -1
        folder = files.subjects.get(number)
        if folder is not None and files.hospitals[number] != site:
            raise DataError(
                "contradicting_site",
                f"table row {published.table.numbers[place]} of {published.table.path} names another hospital than the "
                "name of the subject's folder. Take the table as published.",
                path=published.table.path,
                row=published.table.numbers[place],
            )
        images, masks = (sorted(folder.glob(f"{part}/*.nii.gz")) if folder else [] for part in ("T1", "label"))
        if len(images) == len(masks) == 1:
            cases[place] = VolumeFiles(images[0], masks[0])
        else:
            missing[place] = NO_FILE
    return cases, missing
