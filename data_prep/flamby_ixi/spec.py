"""FLamby's Fed-IXI: IXI Tiny's volumes and FLamby's table of splits in, a pooled data set of volumes and masks out.

::

    7kd5wj7v7p-3/IXI_sample/IXI002-Guys-0828/T1/*.nii.gz       83 x 44 x 55 voxels
    7kd5wj7v7p-3/IXI_sample/IXI002-Guys-0828/label/*.nii.gz    its mask: 1 is brain
    metadata_tiny.csv                                          of FLamby's fed_ixi/metadata: Patient ID, Manufacturer, Split

Volumes are not turned. As in FLamby's code each is resized to 48 x 60 x 48 voxels, each of which has the mean of those
that it covers (MONAI's ``area``), and then scaled to mean 0 and standard deviation 1; a voxel of the mask is brain where
all that it covers is. The hospital is kept as ``centre``. No name of a file is kept.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks; its code of that data set.
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
from medfl.ingest.choice import Choice, Outcome, exclusions, rows_to_mend
from medfl.ingest.labels import number_subjects
from medfl.ingest.masks import STRATA, about_empty, masked_row, take_apart, with_masks
from medfl.ingest.options import Positional, read_edges
from medfl.ingest.published_splits import PublishedSplits, find_table, read_splits, unlike_published
from medfl.ingest.spec import ImageSpec, folder_or_top
from pydantic import BeforeValidator

from medfl.data.datalists import Datalist
from medfl.data.readers.dicom_header import decoding
from medfl.errors import DataError, SettingsError
from medfl.ingest.volumes import Case
from medfl.ingest.workers import LoadedItem
from medfl.records.datalist import CaseRecord, make_record
from medfl.utils.text import Say
from medfl_datasets.flamby_ixi import RECORDS

CITATION = (
    "IXI, https://brain-development.org/ixi-dataset/; IXI Tiny: Pérez-García, Sparks and Ourselin, TorchIO, "
    "doi:10.48550/arXiv.2003.04696; as prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and "
    "Benchmarks"
)
"""What users of the data are asked to cite."""

OFFICIAL = {"Guys": (249, 62), "HH": (145, 36), "IOP": (59, 15)}
"""Hospital, in the order of FLamby's numbers, to its training and test volumes."""

VOLUMES, SPLIT = "IXI_sample", "metadata_tiny.csv"
"""Names in the release."""

STRUCTURES = ("background", "brain")
"""What the numbers in a mask mean."""

NO_FILE = "there is not one volume and one mask"
"""Why a row of the table is left out."""

_SUBJECT = re.compile(r"IXI(\d{3})-([A-Za-z]+)-\d+")


@dataclass(frozen=True)
class Release:
    """The files.

    Attributes:
        subjects: Folder of each subject by the number in its name.
        hospitals: Hospital of each subject, by the same number, from the same name.
        split: The table of splits.
    """

    subjects: dict[int, Path]
    hospitals: dict[int, str]
    split: Path


class FlambyIXI(ImageSpec):
    """FLamby's Fed-IXI (IXI Tiny): the brain in T1 volumes of three hospitals. Nothing is downloaded.

    The test volumes are FLamby's. Its sites come from medfl partition --scheme by_site --column centre
    --test official --global-test none.
    """

    dataset = "flamby_ixi"
    unreadable = "option skip_unreadable"
    item = "volume"
    terms = RECORDS[0].licence
    citation = CITATION

    source: Annotated[Path, Positional()]
    """The folder that FLamby's script downloads to: IXI_sample is in it, or in a folder in it."""
    splits: Path | None = None
    """FLamby's table metadata_tiny.csv, if it is not in --source."""
    size: Annotated[tuple[int, ...], BeforeValidator(read_edges)] = (48, 60, 48)
    """Of the volumes in the array; FLamby's by default."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """FLamby's name of the folder, the data set's, or the source folder itself."""
        return {"source": folder_or_top(top, "fed_ixi", cls.dataset)}

    def find(self) -> Release:
        """The folders of the subjects, and the table."""
        folders = [path for path in [self.source, *sorted(self.source.rglob(VOLUMES))] if path.name == VOLUMES]
        if len(folders) != 1:
            raise DataError(
                "wrong_folder_count",
                f"expected one folder {VOLUMES} in {self.source}, there are {len(folders)}. Unpack IXI Tiny there, as "
                "download.py of FLamby's fed_ixi does.",
                path=self.source,
                name=VOLUMES,
                expected=1,
                found=len(folders),
            )
        split = find_table(self.source, SPLIT, self.splits, " from FLamby's fed_ixi/metadata")
        named = [(match, path) for path in sorted(folders[0].iterdir()) if (match := _SUBJECT.fullmatch(path.name))]
        subjects = {int(match[1]): path for match, path in named}
        if len(subjects) < len(named):
            raise DataError(
                "duplicate_folder",
                f"expected one folder for each subject in {folders[0]}, some have two. Unpack it again.",
                path=folders[0],
            )
        return Release(subjects, {int(match[1]): match[2] for match, _ in named}, split)

    def choose(self, files: Release, say: Say) -> Choice:
        """All subjects of the table that have a volume and a mask."""
        if len(self.size) != 3:
            raise SettingsError(
                "setting_out_of_range",
                f"expected 3 numbers for --size, got {self.size}.",
                setting="size",
                count=3,
                found=self.size,
            )
        published = read_splits(files.split, "Patient ID", "Manufacturer", "Split", list(OFFICIAL))
        cases, missing = _cases(files, published)
        unlike = unlike_published(published.sites, published.splits, OFFICIAL, "volumes")
        for sentence in unlike:
            say(f"warning: {sentence}")
        surplus = len(files.subjects) - len(cases) - len(missing)
        if surplus > 0:
            say(f"note: {surplus} subjects are in no row of {SPLIT}: they are passed over")
        return Choice(
            items=list(cases.values()),
            places=list(cases),
            files=Case.files,
            load=partial(read_resized, size=self.size),
            shape=(*self.size, 2),
            dtype=np.float32,
            recipe={"data set": self.dataset, "size": self.size},
            cells=lambda place: (published.table.numbers[place],),
            columns=("table_row",),
            missing=missing,
            release=(published, unlike),
        )

    def incomplete(self, outcome: Outcome) -> str:
        """Which rows can't be read."""
        published, _ = outcome.choice.release
        return rows_to_mend(outcome.reasons, len(published.names), published.table.numbers.__getitem__)

    def datalist(self, outcome: Outcome, say: Say) -> Datalist:
        """The data list of what was read."""
        published, unlike = outcome.choice.release
        spacings = {tuple(fact.pop("spacing")) for fact in outcome.facts}
        if len(spacings) > 1:
            say("note: the volumes are of several spacings: distances will be in voxels")
        subjects = number_subjects(published.names)
        records: list[CaseRecord] = [
            make_record({"subject_id": subjects[place], "centre": published.sites[place], **facts})
            for place, facts in zip(outcome.kept, outcome.facts, strict=True)
        ]
        made = self.make_datalist(
            STRATA,
            RECORDS[0].modality,
            records,
            [published.splits[place] for place in outcome.kept],
            deviations=unlike,
            intensities="each volume: mean 0, SD 1",
            exclusions=exclusions(Counter(outcome.reasons.values())),
        )
        for line in about_empty(made):
            say(line)
        return with_masks(made, STRUCTURES, spacings.pop() if len(spacings) == 1 else None)

    def finish(self, folder: Path, outcome: Outcome, datalist: Datalist) -> None:
        """Take volumes and masks apart."""
        take_apart(folder)


def read_resized(case: Case, size: tuple[int, ...]) -> LoadedItem:
    """Read a volume and its mask as FLamby does.

    Args:
        case: The files.
        size: Of the result in voxels.

    Returns:
        (*size, 2), float32, the mask last; which structures it holds, and the spacing in millimetres.

    Raises:
        DataError: If a file can't be read, both are of unlike shapes, voxels are not finite, or all are alike.
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
                raise DataError("unsupported_file", "a file is no volume of three axes", axes=3)
            values.append(np.asarray(head.dataobj, dtype=np.float32))
        if path == case.image:
            edges = np.linalg.norm(head.affine[:3, :3], axis=0) * np.array(head.shape) / np.array(size)
    image, mask = values
    if image.shape != mask.shape:
        raise DataError(
            "wrong_shape",
            "the mask is of another size than its image. Unpack both again.",
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


def _cases(files: Release, published: PublishedSplits) -> tuple[dict[int, Case], dict[int, str]]:
    """The files of each row by its place, and why others have none.

    Raises:
        DataError: If the name of a folder tells another hospital than the table.
    """
    cases: dict[int, Case] = {}
    missing: dict[int, str] = {}
    for place, (name, site) in enumerate(zip(published.names, published.sites, strict=True)):
        number = int(name) if name.isdecimal() else -1
        folder = files.subjects.get(number)
        if folder is not None and files.hospitals[number] != site:
            raise DataError(
                "contradicting_site",
                f"table row {published.table.numbers[place]} of {published.table.path} tells another hospital than the "
                "name of that subject's folder. Take the table as published.",
                path=published.table.path,
                row=published.table.numbers[place],
            )
        images, masks = (sorted(folder.glob(f"{part}/*.nii.gz")) if folder else [] for part in ("T1", "label"))
        if len(images) == len(masks) == 1:
            cases[place] = Case(images[0], masks[0])
        else:
            missing[place] = NO_FILE
    return cases, missing
