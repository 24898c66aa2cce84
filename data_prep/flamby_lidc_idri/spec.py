"""Spec of FLamby's Fed-LIDC-IDRI: options, scans and metadata of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files) and `volumes` (list the cases to read, with their metadata). The base
class does the rest.

Files, as FLamby's download_ct_scans.py writes them, and FLamby's table of splits::

    <SeriesInstanceUID>/patient.nii.gz           1 mm along each axis, Hounsfield units
    <SeriesInstanceUID>/mask_consensus.nii.gz    1 where one radiologist or more drew a nodule
    metadata.csv                                 of FLamby's fed_lidc_idri/metadata: SeriesInstanceUID, Manufacturer,
    Split

Scans of the table without a folder are skipped, because FLamby could not convert some of them. Intensities are clipped
as in FLamby's code. FLamby trains with patches of scans of 384 voxels along each axis. As one array these would need
450 GB, so scans are resampled to 2 mm unless another spacing is given.

Prepared data set: arrays of volumes and masks; each record has ``subject_id`` and ``centre`` (the manufacturer). The
splits are FLamby's. No file name is kept, because it is an identifier. The table does not state which scans belong to
one patient (eight patients have two), so each scan counts as a patient of its own.

Source: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from medfl.data.ingest.options import Positional, Spacing
from medfl.data.ingest.published_splits import PublishedSplits, find_table, read_splits, unlike_published
from medfl.data.ingest.spec import folder_or_top
from medfl.data.ingest.volume_spec import VolumeListing, VolumeSpec
from medfl.data.ingest.volumes import VolumeFiles
from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.flamby_lidc_idri import RECORDS

CITATION = (
    "Armato III et al., Data From LIDC-IDRI, The Cancer Imaging Archive (2015), doi:10.7937/K9/TCIA.2015.LO9QL9SX; as "
    "prepared for FLamby: Ogier du Terrail et al., NeurIPS 2022 Datasets and Benchmarks"
)
"""Publications that users of the data are asked to cite."""

OFFICIAL_COUNTS = {"ge": (530, 131), "philips": (59, 15), "siemens": (164, 41), "toshiba": (55, 14)}
"""Maps each manufacturer, in the order of FLamby's numbers, to its numbers of training and test scans."""

SPLIT_TABLE = "metadata.csv"
"""FLamby's table of splits."""

IMAGE_FILE, MASK_FILE = "patient.nii.gz", "mask_consensus.nii.gz"
"""File names in a scan's folder: `IMAGE_FILE` of the volume, `MASK_FILE` of the mask."""

STRUCTURES = ("background", "nodule")
"""Names of the mask values 0 and 1."""


@dataclass(frozen=True)
class LidcScans:
    """Scans of a Fed-LIDC-IDRI release.

    Attributes:
        published: Content of FLamby's table of splits.
        folders: Maps the name of each scan in the table to its folder.
    """

    published: PublishedSplits
    folders: dict[str, Path]


class FlambyLidcIdri(VolumeSpec):
    """FLamby's Fed-LIDC-IDRI: nodules of the lung in CT of four manufacturers' scanners. Nothing is downloaded.

    The test scans are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test official
    --server-test none.

    Source: Armato III et al., The Cancer Imaging Archive (2015), as prepared by FLamby. Licence: CC BY 3.0.
    """

    dataset = "flamby_lidc_idri"
    """Name of the data set, as users type it."""
    item = "scan"
    """Name of one item that is read, in the singular, for messages."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""
    listing = SPLIT_TABLE
    """Name of the file that lists the cases, for messages."""
    numbered = "table row"
    """Word that precedes case numbers in messages; also the name of their column in ``quarantine.csv``."""

    source: Annotated[Path, Positional()]
    """The folder that FLamby's download_ct_scans.py writes to."""
    spacing: Spacing = (2.0, 2.0, 2.0)
    """Voxel edges in millimetres to which all volumes are resampled, for example 2x2x2; FLamby's are 1x1x1."""
    window: str | None = "-212,1624"
    """Window in Hounsfield units that is mapped to [0, 1]: its name, or LEVEL,WIDTH. The default is -1024 to 600."""
    splits: Path | None = None
    """FLamby's table metadata.csv, if it is not in --source."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_lidc_idri`` or ``flamby_lidc_idri`` in `top`, whichever exists
            first, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_lidc_idri", cls.dataset)}

    def find(self) -> LidcScans:
        """Read the table of splits and find the folders of the scans."""
        path = find_table(self.source, SPLIT_TABLE, self.splits, " from FLamby's fed_lidc_idri/metadata")
        published = read_splits(path, "SeriesInstanceUID", "Manufacturer", "Split", list(OFFICIAL_COUNTS))
        folders = {path.parent.name: path.parent for path in sorted(self.source.rglob(IMAGE_FILE))}
        if not folders.keys() & set(published.names):
            raise DataError(
                "no_images",
                f"expected folders with {IMAGE_FILE}, named as in {SPLIT_TABLE}, in {self.source}, found none. Give "
                "the folder that FLamby's download_ct_scans.py writes to.",
                path=self.source,
                table=SPLIT_TABLE,
            )
        return LidcScans(published, folders)

    def volumes(self, files: LidcScans, say: Say) -> VolumeListing:
        """List the scans to read: those of the table that have a folder."""
        published = files.published
        places = [place for place, name in enumerate(published.names) if name in files.folders]
        sites, splits = ([column[place] for place in places] for column in (published.sites, published.splits))
        differences = unlike_published(sites, splits, OFFICIAL_COUNTS, "scans")
        for sentence in differences:
            say(f"warning: {sentence}")
        for count, what in (
            (len(published.names) - len(places), f"scans of {SPLIT_TABLE} are not there"),
            (len(files.folders) - len(places), f"scans are in no row of {SPLIT_TABLE}"),
        ):
            if count:
                say(f"note: {count} {what}: they are skipped")
        say("note: each scan counts as a patient of its own: the table does not state which scans are of one patient")
        folders = [files.folders[published.names[place]] for place in places]
        return VolumeListing(
            [VolumeFiles(path / IMAGE_FILE, path / MASK_FILE) for path in folders],
            [published.table.numbers[place] for place in places],
            [published.names[place] for place in places],
            [{"centre": site} for site in sites],
            STRUCTURES,
            [RECORDS[0].modality],
            splits=splits,
            extra={"deviations": differences},
        )
