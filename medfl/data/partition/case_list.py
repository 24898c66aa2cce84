"""Split a bundle's own list of cases (Decathlon JSON) among sites: a folder for each with a list and links."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from medfl.data.datalists import entry_text
from medfl.data.folders import check_free, written_whole
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.schemes import Scheme, check_column, deal, needs_column
from medfl.data.partition.units import column_of, find_units, majority
from medfl.errors import DataError, SettingsError
from medfl.records.partition import CasePartition
from medfl.utils.files import write_json

BundleCase = dict[str, Any]
"""A case of a bundle's own list, whose keys and values the bundle chooses."""

WITHOUT_LABELS = ("iid",)
"""Schemes that need no label of a case, besides those that go by a column."""

SUBJECTS = ("subject_id", "patient_id", "patient", "subject")
"""Columns that say whose a case is; the first one that a case has counts."""


def partition_cases(source: Path, out: Path, plan: PartitionPlan, scheme: Scheme) -> dict[str, dict[str, int]]:
    """Deal the cases of a list to sites.

    Cases of a patient (`SUBJECTS`) and cases that share a file stay together, over all sections of the list. A site's
    folder has a list of the same name with its cases in their sections, all other entries of the list, and a link to
    each file under the same relative path; so it is what a bundle expects under ``dataset_dir``.

    Args:
        source: A JSON file: an object whose sections (``training``, ``validation``, ...) are lists of cases, each with
            files by key, relative to the file's folder. A section without keys, such as Decathlon's ``test``, is left
            empty.
        out: The folder to write; it is written whole or not at all.
        plan: Scheme, number of sites, seed, options and column are read.
        scheme: The function of `plan.scheme`.

    Returns:
        Site to section to number of cases.

    Raises:
        DataError: If the list can't be read, names files that are not there or are outside of its folder, or `out` is
            not free.
        SettingsError: If the scheme goes by classes and the cases have none, or does not take an option.
    """
    check_free(out, force=False, inputs=[source])
    content = _read(source)
    sections = {key: value for key, value in content.items() if _is_section(value)}
    placed = [(section, case) for section, cases in sections.items() for case in cases]
    if not placed:
        raise DataError(
            "no_cases",
            f"'{source}' lists no cases: expected a section such as 'training', a list of objects.",
            path=source,
        )
    cases = [case for _, case in placed]
    files = _files(cases, source.parent)
    owner, names = _owners(cases, files, plan, scheme)
    counts = {name: dict.fromkeys(sections, 0) for name in names}
    with written_whole(out) as folder:
        for number, name in enumerate(names):
            mine = np.flatnonzero(owner == number).tolist()
            for position in mine:
                counts[name][placed[position][0]] += 1
            own = {
                section: [case for part, case in (placed[k] for k in mine) if part == section] for section in sections
            }
            others = {key: [] if _is_names(value) else value for key, value in content.items() if key not in sections}
            (folder / name).mkdir()
            write_json(folder / name / source.name, others | own)
            _link({path for position in mine for path in files[position]}, source.parent, folder / name, out / name)
        made = CasePartition(
            case_list=source.name,
            scheme=plan.scheme,
            options=plan.json_options(),
            column=plan.column,
            seed=plan.seed,
            cases=counts,
        )
        (folder / CasePartition.NAME).write_bytes(made.to_bytes())
    return counts


def _read(source: Path) -> dict[str, Any]:
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
    return isinstance(value, list) and bool(value) and all(isinstance(case, dict) for case in value)


def _is_names(value: Any) -> bool:
    """Whether a section lists files without keys, of cases that can be nobody's."""
    return isinstance(value, list) and any(isinstance(name, str) and "/" in name for name in value)


def _files(cases: Sequence[BundleCase], base: Path) -> list[list[str]]:
    """The files of each case: what stands under a key under which any case names a file that is there.

    Raises:
        DataError: If some of them are not there, or none is named at all, or one is outside of the list's folder.
    """
    keys = {key for case in cases for key, name in _texts(case) if _inside(name) and (base / name).exists()}
    if not keys:
        raise DataError(
            "no_listed_files",
            f"no case names a file that is in '{base}': expected paths relative to the list's folder.",
            path=base,
        )
    files = [[name for key, name in _texts(case) if key in keys] for case in cases]
    outside = sum(not _inside(name) for names in files for name in names)
    missing = sum(_inside(name) and not (base / name).exists() for names in files for name in names)
    if outside or missing:
        raise DataError(
            "missing_file",
            f"of the files that the cases name under {', '.join(sorted(keys))}, {missing} are not there and {outside} "
            f"are not in '{base}'. Expected all of them there; mend the list or the folder.",
            path=base,
            keys=keys,
            missing=missing,
            outside=outside,
        )
    return files


def _texts(case: BundleCase) -> Iterator[tuple[str, str]]:
    for key, value in case.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and text:
                yield key, text


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _owners(
    cases: Sequence[BundleCase], files: Sequence[Sequence[str]], plan: PartitionPlan, scheme: Scheme
) -> tuple[np.ndarray, list[str]]:
    """Number of the site of each case, shape (n,), -1 for none; and the sites' names."""
    check_column(scheme, plan)
    subjects = [next((text for key in SUBJECTS if (text := entry_text(case, key))), None) for case in cases]
    entries = [(row, name) for row, names in enumerate(files) for name in names or [""]]
    joined = find_units(
        [row for row, _ in entries],
        [str(PurePosixPath(name)) if name else None for _, name in entries],
        [subjects[row] for row, _ in entries],
    )
    units = joined[np.unique([row for row, _ in entries], return_index=True)[1]]
    values = majority(units, column_of(cases, plan.column)) if needs_column(scheme) and plan.column else None
    parts = deal(scheme, majority(units, _labels(cases, plan, scheme)), values, plan)
    owner = np.full(units.max() + 1, -1, dtype=np.int64)
    for number, positions in enumerate(parts.values()):
        owner[positions] = number
    return owner[units], list(parts)


def _labels(cases: Sequence[BundleCase], plan: PartitionPlan, scheme: Scheme) -> np.ndarray:
    """The class of each case, shape (n,), int64; zeros where there is none and the scheme needs none."""
    labels = [case.get("label") for case in cases]
    if all(isinstance(label, int) for label in labels):
        return np.array(labels, dtype=np.int64)
    if plan.scheme not in WITHOUT_LABELS and not needs_column(scheme):
        raise SettingsError(
            "missing_label",
            f"partition '{plan.scheme}' goes by classes, and the cases of this list have none: expected 'label' to be "
            "a whole number in each. Use iid, or by_site with --column.",
            scheme=plan.scheme,
        )
    return np.zeros(len(cases), dtype=np.int64)


def _link(names: set[str], base: Path, folder: Path, final: Path) -> None:
    """Put a link to each file into a site's folder, relative, so that both folders can be moved together.

    Args:
        names: Relative paths.
        base: Where the files are.
        folder: The site's, for now.
        final: Where the site's folder will be.
    """
    for name in sorted(names):
        place = folder / name
        if place.is_symlink():  # the same file under another spelling
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        target = (base / name).resolve()
        place.symlink_to(os.path.relpath(target, (final / name).parent.resolve()))
