"""Find the image files, and the DICOM series, that the cells of a table name."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from medfl.data.readers.dicom_series import ImageSource, source_files
from medfl.data.readers.image_reading import DEFAULT_READING, SeriesChoice
from medfl.data.readers.images import IMAGE_SUFFIXES
from medfl.data.readers.quiet import quiet_decoders
from medfl.data.readers.series_folder import UID_PATTERN, FoundSeries, choose_series, find_series
from medfl.data.table import row_list
from medfl.errors import DataError


class ImageFolder:
    """Image files of a folder, found by their relative path with or without file extension.

    A DICOM series is found by the relative path of the folder of its slices, or by its SeriesInstanceUID,
    StudyInstanceUID, AccessionNumber or PatientID, wherever its files are.

    Args:
        path: Path of the folder.
        choice: Conditions for the one series of a folder or study.

    Attributes:
        path: Absolute path of the folder.

    Raises:
        DataError: If there is no such folder.
    """

    def __init__(self, path: Path, choice: SeriesChoice = DEFAULT_READING.series) -> None:
        if not path.is_dir():
            raise DataError(
                "missing_folder",
                f"expected a folder of images at {path}, there is none. Give the folder that holds them.",
                path=path,
            )
        self.path = Path(os.path.abspath(path))
        self._choice = choice

    def find(self, names: Sequence[str], numbers: Sequence[int]) -> list[ImageSource | DataError]:
        """Return one existing file or DICOM series for each name, each file once.

        Args:
            names: Paths relative to the folder, or absolute paths inside it; the file extension may be omitted. A path
                of a folder, a UID, an accession number and a patient ID stand for a DICOM series.
            numbers: Table row of each name, for messages.

        Returns:
            The source of each image, or the reason why no single series fits its name.

        Raises:
            DataError: If a path leads out of the folder, no file or several files match a name, two rows name the same
                file, or some names are PatientIDs and others AccessionNumbers.
        """
        paths = [Path(os.path.normpath(self.path / name.replace("\\", "/"))) for name in names]
        outside = [number for number, path in zip(numbers, paths, strict=True) if self.path not in path.parents]
        if outside:
            raise DataError(
                "path_outside_folder",
                f"expected paths inside the folder {self.path}, {len(outside)} of {len(names)} lead out of it: "
                f"{row_list(outside)}. Write them relative to the folder.",
                path=self.path,
                rows=outside,
                total=len(names),
            )
        with quiet_decoders():
            candidates = [self._candidates(name.strip(), path) for name, path in zip(names, paths, strict=True)]
        _check_one_identifier([name.strip() for name in names], candidates, numbers)
        matches = [
            [] if series is not None else [path] if os.path.isfile(path) else self._similar_files(path)  # noqa: PTH113
            for path, series in zip(paths, candidates, strict=True)
        ]
        self._check_matches(
            [files if series is None else [self.path] for files, series in zip(matches, candidates, strict=True)],
            numbers,
        )
        sources = [
            files[0] if series is None else self._chosen(series)
            for files, series in zip(matches, candidates, strict=True)
        ]
        self._check_unique(sources, numbers)
        return sources

    def _candidates(self, name: str, path: Path) -> list[FoundSeries] | DataError | None:
        """Return the series that a cell may mean, or the reason why they can't be read; None if it names no series."""
        if os.path.isfile(path):  # noqa: PTH113  (a pathlib object raises if a cell is too long for a path)
            return None
        try:
            if os.path.isdir(path):  # noqa: PTH112
                return find_series(path)
        except DataError as error:
            return error
        if self._similar_files(path) and not UID_PATTERN.fullmatch(name):
            return None
        if isinstance(self._series, DataError):
            return self._series
        return [series for series in self._series if series.has_name(name)] or None

    def _chosen(self, candidates: list[FoundSeries] | DataError) -> ImageSource | DataError:
        """Return the series that fulfils the conditions, or the reason why there is not exactly one."""
        if isinstance(candidates, DataError):
            return candidates
        try:
            return choose_series(candidates, self._choice).source()
        except DataError as error:
            return error

    @cached_property
    def _series(self) -> list[FoundSeries] | DataError:
        """All DICOM series of the folder, or the reason why they can't be read."""
        try:
            return find_series(self.path)
        except DataError as error:
            return error

    def _similar_files(self, path: Path) -> list[Path]:
        """Return the image files whose path is the given one, but for the extension or the form of accented letters.

        A letter with an accent is one character in most tables, and two in the file names of macOS.
        """
        return self._by_name.get(unicodedata.normalize("NFC", str(path)), [])

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        """Maps each path in normal form, with and without extension, to the image files with that path."""
        paths = defaultdict(list)
        for folder, _, names in os.walk(self.path):
            for name in names:
                ending = next((end for end in IMAGE_SUFFIXES if name.lower().endswith(end)), None)
                path = Path(folder, name)
                if ending and os.path.isfile(path):  # noqa: PTH113  (no pipe, whose opening would not end)
                    whole = unicodedata.normalize("NFC", str(path))
                    paths[whole].append(path)
                    paths[whole[: -len(ending)]].append(path)
        return paths

    def _check_matches(self, matches: list[list[Path]], numbers: Sequence[int]) -> None:
        missing = [number for number, paths in zip(numbers, matches, strict=True) if not paths]
        if missing:
            raise DataError(
                "missing_image",
                f"{len(missing)} of {len(matches)} images are not in the folder {self.path}: {row_list(missing)}. The "
                "image column must hold paths relative to the folder, of files or of folders with the slices of a "
                "DICOM series, or a SeriesInstanceUID, StudyInstanceUID, AccessionNumber or PatientID; an ending may "
                f"be left out if it is one of {', '.join(IMAGE_SUFFIXES)}.",
                path=self.path,
                rows=missing,
                total=len(matches),
            )
        several = [number for number, paths in zip(numbers, matches, strict=True) if len(paths) > 1]
        if several:
            raise DataError(
                "ambiguous_file",
                f"{len(several)} of {len(matches)} names without ending fit more than one image file of {self.path}: "
                f"{row_list(several)}. Write them with their ending.",
                path=self.path,
                rows=several,
                total=len(matches),
            )

    def _check_unique(self, sources: list[ImageSource | DataError], numbers: Sequence[int]) -> None:
        files = [source for source in sources if not isinstance(source, DataError)]
        real = [
            None if isinstance(source, DataError) else sorted(source_files(source))[0].resolve() for source in sources
        ]
        counts = Counter(real)
        duplicates = [
            number for number, path in zip(numbers, real, strict=True) if path is not None and counts[path] > 1
        ]
        if duplicates:
            raise DataError(
                "duplicate_row",
                f"expected one row for each image, {len(duplicates)} of {len(files)} rows name an image that another "
                f"row names too: {row_list(duplicates)}. Keep one row of each image.",
                rows=duplicates,
                total=len(files),
            )


def _check_one_identifier(
    names: Sequence[str], candidates: Sequence[list[FoundSeries] | DataError | None], numbers: Sequence[int]
) -> None:
    """Raise if some names are PatientIDs and others AccessionNumbers: the same number may be both, of two patients."""
    unexplained: dict[str, list[int]] = {"patient": [], "accession": []}
    for name, series, number in zip(names, candidates, numbers, strict=True):
        named = [candidate for candidate in series if candidate.has_name(name)] if isinstance(series, list) else []
        for kind, rows in unexplained.items():
            if not all(name in (match.uid, match.study, getattr(match, kind)) for match in named):
                rows.append(number)
    if all(unexplained.values()):
        rows = min(unexplained.values(), key=len)
        raise DataError(
            "mixed_identifiers",
            f"expected either PatientIDs or AccessionNumbers in the image column, got both: {row_list(rows)} name "
            "series by another one than most rows, which may be of another patient. Name them by UID or folder.",
            rows=rows,
        )
