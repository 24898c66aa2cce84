"""Split a bundle's own list of cases into site folders with lists and links to files.

Such a list is a JSON file in the format of the Medical Segmentation Decathlon, which an adopted bundle reads itself. An
adopted bundle is a stock MONAI bundle to which ``medfl adopt`` added the configuration of a federation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from medfl.data.datalists import entry_text
from medfl.data.folders import atomic_folder, check_output_folder
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.schemes import Scheme, assign_units, check_column, needs_column
from medfl.data.partition.units import column_entries, find_units, majority_by_unit
from medfl.errors import DataError, SettingsError
from medfl.records.partition import CasePartition
from medfl.utils.files import write_json

BundleCase = dict[str, Any]
"""Case of a bundle's own list, whose keys and values the bundle chooses."""

SCHEMES_WITHOUT_LABELS = ("iid",)
"""Names of the schemes that need no class labels. Schemes that use a column need none either."""

SUBJECT_KEYS = ("subject_id", "patient_id", "patient", "subject")
"""Keys that may contain the subject of a case; the first one present is used."""


def partition_cases(source: Path, out: Path, plan: PartitionPlan, scheme: Scheme) -> dict[str, dict[str, int]]:
    """Split the cases of a list into sites and write a folder for each site.

    Cases of one patient (`SUBJECT_KEYS`) and cases that share a file stay together, across all sections of the list. A
    site's folder contains a list of the same name with the site's cases in their sections, all other entries of the
    list, and a link to each file under the same relative path. It is therefore what a bundle expects under
    ``dataset_dir``.

    Args:
        source: JSON file: an object whose sections (``training``, ``validation``, ...) are lists of cases. A case has
            files under keys, relative to the file's folder. A section that lists files without keys, such as
            Decathlon's ``test``, becomes empty.
        out: Folder to write; it is written completely or not at all.
        plan: Settings of the partition; only scheme, number of sites, seed, options and column are used.
        scheme: Function that `plan.scheme` names.

    Returns:
        Maps each site to a mapping from section to its number of cases.

    Raises:
        DataError: If the list can't be read, names files that do not exist or are outside of its folder, or `out` is
            not empty.
        SettingsError: If the scheme needs class labels and the cases have none, or does not accept an option.
    """
    check_output_folder(out, force=False, inputs=[source])
    content = _read_list(source)
    sections = {key: value for key, value in content.items() if _is_section(value)}
    placed = [(section, case) for section, cases in sections.items() for case in cases]
    if not placed:
        raise DataError(
            "no_cases",
            f"'{source}' lists no cases: expected a section such as 'training', a list of objects.",
            path=source,
        )
    cases = [case for _, case in placed]
    files = _files_of_cases(cases, source.parent)
    owner, names = _assign_cases(cases, files, plan, scheme)
    counts = {name: dict.fromkeys(sections, 0) for name in names}
    with atomic_folder(out) as folder:
        for number, name in enumerate(names):
            positions = np.flatnonzero(owner == number).tolist()
            for position in positions:
                counts[name][placed[position][0]] += 1
            site_sections = {
                section: [case for part, case in (placed[k] for k in positions) if part == section]
                for section in sections
            }
            others = {
                key: [] if _is_file_list(value) else value for key, value in content.items() if key not in sections
            }
            (folder / name).mkdir()
            write_json(folder / name / source.name, others | site_sections)
            _link_files(
                {path for position in positions for path in files[position]}, source.parent, folder / name, out / name
            )
        partition = CasePartition(
            case_list=source.name,
            scheme=plan.scheme,
            options=plan.json_options(),
            column=plan.column,
            seed=plan.seed,
            cases=counts,
        )
        (folder / CasePartition.NAME).write_bytes(partition.to_bytes())
    return counts


def _read_list(source: Path) -> dict[str, Any]:
    """Return the parsed list.

    Raises:
        DataError: If the file can't be read, or is no JSON object.
    """
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            "invalid_json",
            f"'{source}' can't be read as JSON ({type(error).__name__}): expected a list of cases.",
            path=source,
            cause=type(error).__name__,
        ) from None
    if not isinstance(content, dict):
        raise DataError(
            "wrong_type",
            f"'{source}': expected an object with sections such as 'training', got a {type(content).__name__}.",
            path=source,
            found=type(content).__name__,
        )
    return content


def _is_section(value: Any) -> bool:
    """Return True for a non-empty list of objects, which is a section of cases."""
    return isinstance(value, list) and bool(value) and all(isinstance(case, dict) for case in value)


def _is_file_list(value: Any) -> bool:
    """Return True if a section lists files without keys. Such cases can't be assigned to a site."""
    return isinstance(value, list) and any(isinstance(name, str) and "/" in name for name in value)


def _files_of_cases(cases: Sequence[BundleCase], base: Path) -> list[list[str]]:
    """Return the files of each case.

    A key names files if, in any case, its value is a path of an existing file. The values of these keys are the files.

    Raises:
        DataError: If no case names a file, or a file is missing or outside of the list's folder.
    """
    keys = {key for case in cases for key, name in _text_entries(case) if _is_inside(name) and (base / name).exists()}
    if not keys:
        raise DataError(
            "no_listed_files",
            f"no case names a file that is in '{base}': expected paths relative to the list's folder.",
            path=base,
        )
    files = [[name for key, name in _text_entries(case) if key in keys] for case in cases]
    outside = sum(not _is_inside(name) for names in files for name in names)
    missing = sum(_is_inside(name) and not (base / name).exists() for names in files for name in names)
    if outside or missing:
        raise DataError(
            "missing_file",
            f"of the files that the cases name under {', '.join(sorted(keys))}, {missing} do not exist and {outside} "
            f"are outside of '{base}'. Expected all of them there; correct the list or the folder.",
            path=base,
            keys=keys,
            missing=missing,
            outside=outside,
        )
    return files


def _text_entries(case: BundleCase) -> Iterator[tuple[str, str]]:
    """Yield each (key, text) of a case, including the texts in lists."""
    for key, value in case.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text:
                yield key, text


def _is_inside(name: str) -> bool:
    """Return True if a path is relative and stays in the folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _assign_cases(
    cases: Sequence[BundleCase], files: Sequence[Sequence[str]], plan: PartitionPlan, scheme: Scheme
) -> tuple[np.ndarray, list[str]]:
    """Assign the cases to sites.

    Returns:
        Site number of each case, shape (n,), -1 for no site; and the names of the sites.
    """
    check_column(scheme, plan)
    subjects = [next((text for key in SUBJECT_KEYS if (text := entry_text(case, key))), None) for case in cases]
    entries = [(row, name) for row, names in enumerate(files) for name in names or [""]]
    joined = find_units(
        [row for row, _ in entries],
        [str(PurePosixPath(name)) if name else None for _, name in entries],
        [subjects[row] for row, _ in entries],
    )
    units = joined[np.unique([row for row, _ in entries], return_index=True)[1]]
    values = (
        majority_by_unit(units, column_entries(cases, plan.column)) if needs_column(scheme) and plan.column else None
    )
    parts = assign_units(scheme, majority_by_unit(units, _class_labels(cases, plan, scheme)), values, plan)
    owner = np.full(units.max() + 1, -1, dtype=np.int64)
    for number, positions in enumerate(parts.values()):
        owner[positions] = number
    return owner[units], list(parts)


def _class_labels(cases: Sequence[BundleCase], plan: PartitionPlan, scheme: Scheme) -> np.ndarray:
    """Return the class of each case, shape (n,), int64; zeros if there are no labels and the scheme needs none."""
    labels = [case.get("label") for case in cases]
    if all(isinstance(label, int) for label in labels):
        return np.array(labels, dtype=np.int64)
    if plan.scheme not in SCHEMES_WITHOUT_LABELS and not needs_column(scheme):
        raise SettingsError(
            "missing_label",
            f"partition '{plan.scheme}' uses class labels, and the cases of this list have none: expected 'label' to "
            "be an integer in each. Use iid, or by_site with --column.",
            scheme=plan.scheme,
        )
    return np.zeros(len(cases), dtype=np.int64)


def _link_files(names: set[str], base: Path, folder: Path, final: Path) -> None:
    """Create a relative link to each file in a site's folder, so that both folders can be moved together.

    Args:
        names: Paths of the files, relative to `base`.
        base: Folder of the original files.
        folder: Temporary folder of the site, where the links are created.
        final: Folder of the site after the rename, which the links must fit.
    """
    for name in sorted(names):
        place = folder / name
        if place.is_symlink():  # the same file under another spelling
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        target = (base / name).resolve()
        place.symlink_to(os.path.relpath(target, (final / name).parent.resolve()))
