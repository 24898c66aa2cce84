"""Find the DICOM series in a folder whose files no one renamed or sorted, and choose the series of a study.

Files are recognised by their first bytes, so that they need no file name suffix. Files that are no images in space,
such as reports, plans, segmentations and DICOMDIR, are passed over.

Descriptions and identifiers of series are compared but never written or shown. Error messages list series by number,
modality, plane, number of slices and spacing.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from medfl.data.readers.dicom_header import damaged_file_error, decoding, is_dicom, read_elements, unopenable_file_error
from medfl.data.readers.dicom_series import ImageSource, SeriesFiles, SlicePlane, plane_of, planes_of
from medfl.data.readers.image_reading import SeriesChoice
from medfl.errors import DataError

UID_PATTERN = re.compile(r"[0-9]+(\.[0-9]+){2,}")
"""Pattern of a DICOM identifier (UID) in a table; UIDs below ``2.25``, as ``medfl pacs`` writes them, have two dots."""

STORE_FILES, UNREVIEWED_FOLDERS = frozenset({"store.json", "journal.jsonl"}), ("quarantine", "incoming")
"""Files of a store of ``medfl pacs``, and its folders whose series must not enter a data set."""

MAX_LISTED = 12
"""Maximum number of series that an error message lists."""

_OTHER_OBJECTS = ("SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "RTIMAGE", "REG", "PR", "KO", "SR", "DOC")
"""Modalities of DICOM objects that are no images of a patient."""

_DICOMDIR = "1.2.840.10008.1.3.10"
"""SOP class UID of a directory of DICOM files."""

_TAGS = (
    "SeriesInstanceUID",
    "StudyInstanceUID",
    "SeriesDescription",
    "PatientID",
    "AccessionNumber",
    "Modality",
    "Rows",
    "Columns",
    "NumberOfFrames",
    "ImagePositionPatient",
    "ImageOrientationPatient",
    "PixelSpacing",
    "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
)
"""Keywords of the elements that are read of each file."""


@dataclass(frozen=True)
class FoundSeries:
    """A DICOM series in a folder.

    Attributes:
        paths: Files in the order of their names.
        uid: SeriesInstanceUID, or empty.
        study: StudyInstanceUID, or empty.
        patient: PatientID, or empty. It must not be shown.
        accession: AccessionNumber, or empty. It must not be shown.
        modality: Modality, or ``unknown``.
        plane: Plane of the slices, ``mixed``, or ``unknown`` if the files do not state it.
        slices: Number of slices.
        spacing: Distance between rows, columns and slices in millimetres; None if it is unknown.
        description: SeriesDescription. It may contain a person's name and must not be shown.
    """

    paths: tuple[Path, ...]
    uid: str = field(repr=False)
    study: str = field(repr=False)
    patient: str = field(repr=False)
    accession: str = field(repr=False)
    modality: str
    plane: str
    slices: int
    spacing: tuple[float, float, float] | None
    description: str = field(repr=False)

    def has_name(self, name: str) -> bool:
        """Return True if a cell of a table names the series, its study or its patient."""
        return bool(name) and name in (self.uid, self.study, self.accession, self.patient)

    def source(self) -> ImageSource:
        """Return the source of the series' image: its file if there is one, otherwise its files."""
        return self.paths[0] if len(self.paths) == 1 else SeriesFiles(self.paths)

    def describe(self) -> str:
        """Return modality, plane, slices and spacing in words."""
        spacing = "" if self.spacing is None else f" of {'x'.join(f'{edge:.3g}' for edge in self.spacing)} mm"
        return f"{self.modality} {self.plane}, {self.slices} slice{'s' * (self.slices != 1)}{spacing}"


@dataclass(frozen=True)
class _SeriesFile:
    """A file with the series that it belongs to; without frames if it contains no image."""

    path: Path
    series: str
    study: str
    modality: str
    description: str
    patient: str
    accession: str
    planes: tuple[SlicePlane, ...] | None
    frames: int


def find_series(folder: Path) -> list[FoundSeries]:
    """Return the DICOM series in a folder, at any depth, in the order of their first files.

    Args:
        folder: Folder to search. Hidden files and links to folders are passed over, and in a store of ``medfl pacs``
            the series that wait for a review or are incomplete.

    Raises:
        DataError: If a DICOM file is damaged or can't be opened, because a series could lack a slice.
    """
    by_series: dict[tuple[str, str], list[_SeriesFile]] = defaultdict(list)
    for top, folders, names in os.walk(folder, onerror=_refuse_folder):
        unusable = UNREVIEWED_FOLDERS if STORE_FILES.issubset(names) else ()
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in unusable)
        for name in sorted(names):
            if name.startswith("."):
                continue
            try:
                file = _series_file(Path(top, name))
            except DataError as error:
                if error.code == "unreadable_file":  # its size may be unreadable, too
                    raise
                raise _with_size(error, Path(top, name)) from None
            if file is not None:
                by_series[file.study, file.series or str(file.path)].append(file)
    cut = [files for files in by_series.values() if len({file.frames > 0 for file in files}) > 1]
    if cut:
        raise _with_size(damaged_file_error(EOFError()), next(file.path for file in cut[0] if not file.frames))
    return [_found_series(files) for files in by_series.values() if files[0].frames]


def choose_series(series: Sequence[FoundSeries], choice: SeriesChoice) -> FoundSeries:
    """Return the one series that fulfils the conditions.

    Args:
        series: Series of one study.
        choice: Conditions.

    Raises:
        DataError: If no series or several series fulfil them; the message lists the series by number.
    """
    fitting = [candidate for candidate in series if fits(candidate, choice)]
    if len(fitting) == 1:
        return fitting[0]
    if not series:
        raise DataError(
            "no_series",
            "expected a folder with DICOM images, found none. Name the file of the image, or the folder of its slices.",
        )
    shown = fitting or series
    listed = "; ".join(f"{number}: {candidate.describe()}" for number, candidate in enumerate(shown[:MAX_LISTED], 1))
    more = f"; and {len(shown) - MAX_LISTED} more" if len(shown) > MAX_LISTED else ""
    if fitting:
        raise DataError(
            "ambiguous_series",
            f"expected one DICOM series, {len(fitting)} fit ({listed}{more}). Choose with --plane, --series-modality "
            "or --series-description, or name the folder, AccessionNumber or SeriesInstanceUID of one series",
            count=len(fitting),
            candidates=[candidate.describe() for candidate in shown],
        )
    raise DataError(
        "no_series",
        f"expected a DICOM series that fits --plane, --series-modality and --series-description, got {listed}{more}",
        candidates=[candidate.describe() for candidate in shown],
    )


def fits(series: FoundSeries, choice: SeriesChoice) -> bool:
    """Return True if a series fulfils the conditions of a choice."""
    return (
        choice.plane in ("", series.plane)
        and choice.modality in ("", series.modality)
        and re.search(choice.description, series.description, re.IGNORECASE) is not None
    )


def _refuse_folder(error: OSError) -> None:
    """Raise the DataError for a folder that can't be opened."""
    raise unopenable_file_error(error) from None


def _with_size(error: DataError, path: Path) -> DataError:
    """Return the error for a file of a folder, with the size by which users find the file, as it is not named."""
    size = path.lstat().st_size
    return DataError(
        error.code,
        f"{error} The file has {size} bytes: find it with find FOLDER -size {size}c. Without it, a series may lack a "
        "slice.",
        **error.fields,
        size=size,
    )


def _series_file(path: Path) -> _SeriesFile | None:
    """Return the series of a file; None if the file is no DICOM image.

    Raises:
        DataError: If the file can't be opened, or is damaged. A file without content, or that is no DICOM file, counts
            as damaged if its name is that of a slice.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            head = file.read(132)
    except OSError as error:
        raise unopenable_file_error(error) from None
    if not is_dicom(head):
        ending = path.suffix.lower()
        if ending == ".dcm" or (not head and (not ending or ending[1:].isdigit())):
            raise damaged_file_error(EOFError())
        return None
    header = read_elements(path, pixels=False, tags=_TAGS)
    with decoding():
        modality = str(header.get("Modality") or "")
        frames = int(header.get("NumberOfFrames") or 1)
        media = str(header.file_meta.get("MediaStorageSOPClassUID") or "")
        texts = [str(header.get(name) or "").strip() for name in _TAGS[:5]]
    if modality in _OTHER_OBJECTS or media == _DICOMDIR:
        return None
    series, study, description, patient, accession = texts
    if "Rows" not in header and not series:
        raise damaged_file_error(EOFError())
    if "Rows" not in header:
        frames, planes = 0, None
    else:
        try:
            planes = tuple(planes_of(path, header))
        except DataError:
            planes = None
    shown = modality if re.fullmatch("[A-Z]{2,4}", modality) else "unknown"
    return _SeriesFile(path, series, study, shown, description, patient, accession, planes, frames)


def _found_series(files: Sequence[_SeriesFile]) -> FoundSeries:
    """Return the series of its files."""
    first = files[0]
    planes = [plane for file in files for plane in file.planes or ()]
    names = {plane_of(plane.normal) for plane in planes} or {"unknown"}
    return FoundSeries(
        paths=tuple(file.path for file in files),
        uid=first.series,
        study=first.study,
        patient=first.patient,
        accession=first.accession,
        modality=first.modality,
        plane=next(iter(names)) if len(names) == 1 else "mixed",
        slices=sum(file.frames for file in files),
        spacing=_usual_spacing(planes),
        description=first.description,
    )


def _usual_spacing(planes: Sequence[SlicePlane]) -> tuple[float, float, float] | None:
    """Return the pixel spacing of the first slice and the usual distance of neighbouring slices, or None."""
    if len(planes) < 2:
        return None
    normal = planes[0].normal
    distances = np.diff(sorted(float(plane.position @ normal) for plane in planes))
    return (*planes[0].spacing, float(np.median(distances)))
