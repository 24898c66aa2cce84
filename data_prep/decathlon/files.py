"""Read the file list of a task of the Medical Segmentation Decathlon.

::

    dataset.json        {
                          "labels": {"0": "background", "1": "Anterior", ...},
                          "modality": {"0": "MRI"},
                          "training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}, ...]
                        }
    imagesTr/a.nii.gz   a volume; with several modalities, a volume of four axes
    labelsTr/a.nii.gz   its mask, a number of `labels` in each voxel

A folder of a user with the same layout may also contain NRRD and MHA files, a folder with the slices of one DICOM
series in place of a volume, and as mask a DICOM-SEG or RTSTRUCT (``.dcm``), whose segments have the names in `labels`.

The test volumes have no masks and are skipped. Messages number the cases of ``training`` from 1 and contain no file
name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.data.ingest.volumes import IMAGE, LABEL, VolumeFiles
from medfl.data.readers.dicom_series import ImageSource
from medfl.data.readers.image_reading import DEFAULT_READING
from medfl.data.readers.itk_files import ITK_SUFFIXES
from medfl.data.readers.series_folder import choose_series, find_series
from medfl.data.readers.volumes import SUFFIXES
from medfl.errors import DataError
from medfl.utils.text import first_names

TASK_FILE = "dataset.json"
"""File that lists the cases of a task."""


@dataclass(frozen=True)
class DecathlonTask:
    """Content of a task's `TASK_FILE`.

    Attributes:
        cases: Cases with masks, in the order of the list.
        structures: Names of the structures in the masks, by their numbers; the first is the background.
        channels: Names of the image channels (``modality`` in the file).
        licence: Licence stated in the file; empty if none is stated.
        reference: Reference to credit, as stated in the file; empty if none is stated.
        others: Number of test volumes, which have no masks and are skipped.
    """

    cases: list[VolumeFiles]
    structures: list[str]
    channels: list[str]
    licence: str
    reference: str
    others: int


def read_release(source: Path) -> DecathlonTask:
    """Read `TASK_FILE` in a folder.

    Raises:
        DataError: If the file is missing or not in the Decathlon's format, if a case lacks a mask or shares a file with
            another case, or if the labels are not numbered from 0 without gaps.
    """
    path = source / TASK_FILE
    if not path.is_file():
        raise DataError(
            "missing_file",
            f"expected {TASK_FILE} of a task of the Medical Segmentation Decathlon in {source}, found none. Give the "
            "folder of one task, such as Task04_Hippocampus.",
            path=path,
        )
    try:
        values: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError("invalid_json", f"{path} is not valid JSON. Unpack the task again.", path=path) from None
    entries = values.get("training") if isinstance(values, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(
            "no_cases",
            f"expected a list of cases in 'training' of {path}, each with 'image' and 'label'; there is none. (The "
            "dataset.json of nnU-Net has none: list the files.)",
            path=path,
        )
    others = values.get("test", [])
    return DecathlonTask(
        _read_cases(source, entries, path),
        _numbered_names(values.get("labels"), "labels", path, minimum_count=2),
        _numbered_names(values.get("modality", {"0": "not stated"}), "modality", path, minimum_count=1),
        str(values.get("licence") or values.get("license") or ""),
        str(values.get("reference") or ""),
        len(others) if isinstance(others, list) else 0,
    )


def _read_cases(source: Path, entries: Sequence[Any], path: Path) -> list[VolumeFiles]:
    """Return the files of each case in `entries`; raise DataError if a file is not named or named twice."""
    incomplete_cases = [n for n, entry in enumerate(entries, 1) if not (isinstance(entry, dict) and entry.get(IMAGE))]
    incomplete_cases += [n for n, entry in enumerate(entries, 1) if n not in incomplete_cases and not entry.get(LABEL)]
    if incomplete_cases:
        raise DataError(
            "missing_value",
            f"expected 'image' and 'label' in each case of 'training' of {path}, missing in case "
            f"{first_names(incomplete_cases)}. Add the mask, or take the case out of the list.",
            path=path,
            cases=incomplete_cases,
        )
    files = [
        [_path_in_task(source, entry[key], n, path) for key in (IMAGE, LABEL)] for n, entry in enumerate(entries, 1)
    ]
    for column, what in enumerate(("image", "mask")):
        first: dict[Path, int] = {}
        duplicates = [n for n, pair in enumerate(files, 1) if first.setdefault(pair[column], n) != n]
        if duplicates:
            raise DataError(
                "shared_file",
                f"expected one mask for each image in 'training' of {path}, the {what} of case "
                f"{first_names(duplicates)} is also that of an earlier case. Keep one of them.",
                path=path,
                what=what,
                cases=duplicates,
            )
    return [VolumeFiles(_image_source(image, number), mask) for number, (image, mask) in enumerate(files, 1)]


def _image_source(path: Path, number: int) -> ImageSource:
    """Return the source of a volume: its file, or the one DICOM series in its folder."""
    if not path.is_dir():
        return path
    try:
        return choose_series(find_series(path), DEFAULT_READING.series).source()
    except DataError as error:
        raise error.reworded(f"case {number} of 'training': {error}") from None


def _path_in_task(source: Path, name: Any, number: int, path: Path) -> Path:
    """Return the path of a file or folder below the task's folder; raise DataError for any other path."""
    if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise DataError(
            "path_outside_folder",
            f"expected paths of files below the folder of {path} in case {number} of 'training', got another. Correct "
            "the list.",
            path=path,
            case=number,
        )
    suffixes = (*SUFFIXES, *ITK_SUFFIXES, ".dcm")
    if not name.endswith(suffixes) and not (source / name).is_dir():
        raise DataError(
            "unsupported_file",
            f"expected volume files ({', '.join(suffixes)}) or folders of DICOM series in case {number} of "
            f"'training' of {path}, got another ending. Convert the files.",
            path=path,
            case=number,
        )
    return source / name


def _numbered_names(names: Any, key: str, path: Path, minimum_count: int) -> list[str]:
    """Return the values of a dictionary with the keys "0", "1", ... in order; raise DataError for other keys.

    Args:
        names: Dictionary from number (as text) to name.
        key: Name of the dictionary in the file, for messages.
        path: The file, for messages.
        minimum_count: Minimum number of names.
    """
    count = len(names) if isinstance(names, dict) else 0
    if count < minimum_count or set(names) != set(map(str, range(count))):
        raise DataError(
            "wrong_numbering",
            f'expected an object {{"0": name, "1": name, ...}} in \'{key}\' of {path}, with at least '
            f"{minimum_count} names and numbers from 0 without gaps, got another. Correct it.",
            path=path,
            key=key,
            minimum=minimum_count,
        )
    return [str(names[str(number)]) for number in range(count)]
