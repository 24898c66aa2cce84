"""Spec of FLamby's Fed-KiTS19: options, cases and metadata of the prepared data set.

`medfl prep` turns a release (the files that the publisher distributes) into a prepared data set. It calls the methods
of the spec in this order: `find` (find the files) and `volumes` (list the cases to read, with their metadata). The base
class does the rest.

Files of the repository kits19, after its get_imaging, and FLamby's table of splits::

    data/case_00000/imaging.nii.gz
    data/case_00000/segmentation.nii.gz    0 background, 1 kidney, 2 tumour
    thresholded_sites.csv                  of FLamby's fed_kits19/metadata: case_ids, site_ids, train_test_split, ...

The table has the cases of sites with ten or more cases. FLamby prepares them with nnU-Net, whose plans depend on
its version. Here the cases get the spacing and the window of the method that won the challenge.

Prepared data set: arrays of volumes and masks; each record has ``subject_id`` and ``centre`` (the site), but no file
name. The splits are FLamby's, and each case is a patient of its own.

Sources: Ogier du Terrail et al., FLamby, NeurIPS 2022 Datasets and Benchmarks, and its code for this data set; Isensee
and Maier-Hein, An attempt at beating the 3D U-Net, arXiv:1908.02182 (spacing and window).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from medfl.data.ingest.options import Positional, Spacing
from medfl.data.ingest.published_splits import PublishedSplits, find_table, read_splits, unlike_published
from medfl.data.ingest.spec import folder_or_top
from medfl.data.ingest.volume_spec import VolumeListing, VolumeSpec
from medfl.data.ingest.volumes import VolumeFiles
from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.flamby_kits19 import RECORDS

CITATION = (
    "Heller et al., The KiTS19 challenge data, arXiv:1904.00445; as prepared for FLamby: Ogier du Terrail et al., "
    "NeurIPS 2022 Datasets and Benchmarks"
)
"""Publications that users of the data are asked to cite."""

OFFICIAL_COUNTS = {
    "site_0": (9, 3),
    "site_1": (11, 3),
    "site_2": (9, 3),
    "site_3": (9, 3),
    "site_4": (12, 4),
    "site_5": (24, 6),
}
"""Maps each site to FLamby's numbers of training and test cases; the release does not name the sites."""

SPLIT_TABLE = "thresholded_sites.csv"
"""FLamby's table of splits."""

IMAGE_FILE, MASK_FILE = "imaging.nii.gz", "segmentation.nii.gz"
"""File names in a case's folder: `IMAGE_FILE` of the volume, `MASK_FILE` of the mask."""

STRUCTURES = ("background", "kidney", "tumour")
"""Names of the mask values 0, 1 and 2."""


class FlambyKiTS19(VolumeSpec):
    """FLamby's Fed-KiTS19: kidneys and their tumours in CT of six sites. Nothing is downloaded.

    The test cases are FLamby's. Create its sites with medfl partition --scheme by_site --column centre --test official
    --server-test none.

    Source: Heller et al., arXiv:1904.00445, as prepared by FLamby. Licence: CC BY-NC-SA 4.0.
    """

    dataset = "flamby_kits19"
    """Name of the data set, as users type it."""
    terms = RECORDS[0].licence
    """Terms of use, which the user sees before reading starts and the data list states."""
    citation = CITATION
    """Publications to cite, which the user sees before reading starts and the data list states."""
    listing = SPLIT_TABLE
    """Name of the file that lists the cases, for messages."""
    numbered = "table row"
    """Word that precedes case numbers in messages; also the name of their column in ``quarantine.csv``."""

    source: Annotated[Path, Positional()]
    """The folder kits19 or its subfolder data, which contains the folders case_00000 and so on."""
    spacing: Spacing = (1.62, 1.62, 3.22)
    """Voxel edges in millimetres to which all volumes are resampled, for example 2x2x4. The axes run from left to
    right, from back to front, and from feet to head."""
    window: str | None = "112.5,383"
    """Window in Hounsfield units that is mapped to [0, 1]: its name, or LEVEL,WIDTH. The default is -79 to 304."""
    splits: Path | None = None
    """FLamby's table thresholded_sites.csv, if it is not in --source."""

    @classmethod
    def locate(cls, top: Path, options: Mapping[str, Any]) -> dict[str, Path]:
        """Find the release for a study (a file that lists data sets, methods and seeds) that names no path to it.

        Args:
            top: Source folder of the study, which contains the downloaded releases.
            options: Options of the data set in the study file.

        Returns:
            ``{"source": folder}``. The folder is ``fed_kits19``, ``flamby_kits19`` or ``kits19`` in `top`, whichever
            exists first, otherwise `top` itself.
        """
        return {"source": folder_or_top(top, "fed_kits19", cls.dataset, "kits19")}

    def find(self) -> PublishedSplits:
        """Read the release's table of splits."""
        path = find_table(self.source, SPLIT_TABLE, self.splits, " from FLamby's fed_kits19/metadata")
        return read_splits(path, "case_ids", "site_ids", "train_test_split", list(OFFICIAL_COUNTS))

    def volumes(self, files: PublishedSplits, say: Say) -> VolumeListing:
        """List the cases to read: those of the table. Raise DataError if none has a folder."""
        differences = unlike_published(files.sites, files.splits, OFFICIAL_COUNTS, "cases")
        for sentence in differences:
            say(f"warning: {sentence}")
        folders = {path.parent.name: path.parent for path in sorted(self.source.rglob(IMAGE_FILE))}
        surplus = len(folders.keys() - set(files.names))
        if surplus:
            say(f"note: {surplus} cases are in no row of {SPLIT_TABLE}: they are skipped")
        if not folders.keys() & set(files.names):
            raise DataError(
                "no_images",
                f"expected folders case_00000, ... with {IMAGE_FILE} in {self.source}, found none of {SPLIT_TABLE}. "
                "Give the folder kits19, after its get_imaging.",
                path=self.source,
                table=SPLIT_TABLE,
            )
        paths = [folders.get(name, self.source / name) for name in files.names]
        return VolumeListing(
            [VolumeFiles(path / IMAGE_FILE, path / MASK_FILE) for path in paths],
            files.table.numbers,
            files.names,
            [{"centre": site} for site in files.sites],
            STRUCTURES,
            [RECORDS[0].modality],
            splits=files.splits,
            extra={"deviations": differences},
        )
