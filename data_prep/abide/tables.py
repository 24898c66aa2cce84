"""Read the phenotypic file of ABIDE I from the Preprocessed Connectomes Project (PCP), and select the subjects.

A subject is used if PCP has files and the quality is good: ``qc_rater_1`` is OK, ``qc_anat_rater_2`` and
``qc_func_rater_2`` are OK or maybe, ``qc_anat_rater_3`` and ``qc_func_rater_3`` are OK. These are 871 of the 1112 rows,
403 with autism and 468 without: the selection of nilearn and of most papers since.

The file id, which starts the names of a subject's files, is the only identifier that leaves this module. A subject is
named by the row in the table, which is the same for all options; the public codes (SUB_ID) are dropped.

Sources: Di Martino et al., Molecular Psychiatry 19, 659 (2014); Craddock et al., Frontiers in Neuroinformatics 7
(2013); the four regions: Weng, Cai and Zhou, FedSKD (2025), table I.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.table import CsvTable, read_table, row_list
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.utils.text import MAX_NAMES

PHENOTYPE_FILE = "Phenotypic_V1_0b_preprocessed1.csv"
"""Name of the phenotypic file."""

CLASSES = ("control", "autism")
"""Names of the classes, in the order of the labels."""

QUALITY_CRITERIA = {
    "qc_rater_1": ("OK",),
    "qc_anat_rater_2": ("OK", "maybe"),
    "qc_func_rater_2": ("OK", "maybe"),
    "qc_anat_rater_3": ("OK",),
    "qc_func_rater_3": ("OK",),
}
"""Mapping from each quality column to the accepted values."""

REQUIRED_COLUMNS = ("SITE_ID", "FILE_ID", "DX_GROUP", "AGE_AT_SCAN", "SEX", *QUALITY_CRITERIA)
"""Columns that the phenotypic file must have."""

FEDASD = "fedasd"
"""Value of the option `sites` that makes four sites, the regions in `FEDASD_REGIONS` of the method FedASD."""

FEDASD_REGIONS = {
    "Europe": ("LEUVEN", "MAX_MUN", "TRINITY", "SBL"),
    "US-West": ("UCLA", "USM", "SDSU", "STANFORD", "OHSU", "CALTECH"),
    "US-Middle": ("UM", "PITT", "CMU"),
    "US-East": ("NYU", "YALE", "KKI", "OLIN"),
}
"""Mapping from each of FedASD's four regions to its scanning sites (`SITE_ID` without the number of a part)."""

NO_FILES = "PCP has no files of the subject"
"""Exclusion reason of a subject: there are no maps."""

LOW_QUALITY = "a rater found the quality insufficient, or did not rate it"
"""Exclusion reason of a subject: the scan fails `QUALITY_CRITERIA`."""

_DX = {"1": 1, "2": 0}
"""Mapping from the codes of DX_GROUP to class numbers."""
_SEX = {"1": "male", "2": "female"}
"""Mapping from the codes of SEX to names."""
_MISSING_CELLS = ("", "-9999")
"""Cells that mean a missing value."""
_IDENTIFIERS = ("", "Unnamed: 0", "SUB_ID", "X", "subject", "FILE_ID")
"""Columns that identify a subject."""


@dataclass(frozen=True)
class Subject:
    """Subject of ABIDE I.

    Attributes:
        row: Row in the phenotypic file; the header is row 1.
        file_id: Prefix of the subject's file names.
        label: 0 control, 1 autism.
        site: Site of the federation to which the subject belongs, as the option `sites` decides.
        centre: Scanning site (``SITE_ID``), with the parts of one centre (UM_1, UM_2) merged.
        sex: ``male`` or ``female``; None if unknown.
        age: Age at the scan in years; None if unknown.
    """

    row: int
    file_id: str
    label: int
    site: str
    centre: str
    sex: str | None
    age: float | None

    @property
    def subject_id(self) -> str:
        """Name of the subject in the prepared data set; it contains only the row number, no public code."""
        return f"subject-{self.row:06d}"


@dataclass(frozen=True)
class AbideCohort:
    """Selected subjects.

    Attributes:
        subjects: Subjects, in the order of the table.
        left_out: Mapping from each exclusion reason to its number of subjects.
    """

    subjects: list[Subject]
    left_out: dict[str, int]


def read_phenotypes(path: Path, sites: str = FEDASD) -> AbideCohort:
    """Read the phenotypic file and select the subjects.

    Args:
        path: The phenotypic file.
        sites: Sites of the federation: ``fedasd`` for the four regions, or a column. Parts of one centre in ``SITE_ID``
            are merged; values of other columns are used unchanged.

    Raises:
        DataError: If columns are missing, or cells of selected subjects are empty or unknown.
        SettingsError: If `sites` is neither ``fedasd`` nor a column, or is a column of identifiers.
    """
    table = read_table(path)
    missing = [column for column in REQUIRED_COLUMNS if column not in table.columns]
    if missing:
        names = ", ".join(f"'{column}'" for column in missing)
        raise DataError(
            "missing_column",
            f"expected the columns {names} in {path}, missing. Give PCP's file, {PHENOTYPE_FILE}.",
            path=path,
            columns=missing,
        )
    _check_column(sites, table)
    named = [place for place, row in enumerate(table.rows) if row["FILE_ID"] not in ("no_filename", *_MISSING_CELLS)]
    good = [
        place
        for place in named
        if all(table.rows[place][column] in words for column, words in QUALITY_CRITERIA.items())
    ]
    used = CsvTable(
        path, table.columns, [table.rows[place] for place in good], [table.numbers[place] for place in good]
    )
    _check_rows(used)
    centres = [merge_site_parts(row["SITE_ID"]) for row in used.rows]
    subjects = [
        Subject(
            row=number,
            file_id=row["FILE_ID"],
            label=_DX[_strip_decimals(row["DX_GROUP"])],
            site=site,
            centre=centre,
            sex=_SEX.get(_strip_decimals(row["SEX"])),
            age=_parse_age(row["AGE_AT_SCAN"]),
        )
        for number, row, centre, site in zip(
            used.numbers, used.rows, centres, _federation_sites(used, sites), strict=True
        )
    ]
    return AbideCohort(subjects, {NO_FILES: len(table.rows) - len(named), LOW_QUALITY: len(named) - len(good)})


def merge_site_parts(site_id: str) -> str:
    """Return the name of a scanning site without the number that marks a part of it.

    >>> merge_site_parts("UM_1"), merge_site_parts("MAX_MUN")
    ('UM', 'MAX_MUN')
    """
    return re.sub(r"_\d+$", "", site_id)


def _check_column(sites: str, table: CsvTable) -> None:
    """Raise SettingsError if the column of the sites is unknown or identifies subjects."""
    if sites == FEDASD:
        return
    if sites in _IDENTIFIERS:
        raise SettingsError(
            "identifying_column",
            f"'{sites}' identifies a subject, so it can't name sites. Give another column as --sites.",
            column=sites,
        )
    if sites not in table.columns:
        known = [FEDASD, *(column for column in table.columns if column not in _IDENTIFIERS)]
        raise SettingsError(
            "unknown_column",
            f"expected {FEDASD} or a column of {table.path} as --sites. {did_you_mean(sites, known)}",
            path=table.path,
            column=sites,
        )


def _check_rows(table: CsvTable) -> None:
    """Raise DataError if no subject is selected, or the cells of a selected subject are invalid."""
    if not table.rows:
        raise DataError(
            "too_few_patients",
            f"expected subjects in {table.path}, none has files (FILE_ID) and passed the raters "
            f"({', '.join(QUALITY_CRITERIA)}). Give PCP's file, {PHENOTYPE_FILE}.",
            path=table.path,
            minimum=1,
            found=0,
        )
    ids = Counter(row["FILE_ID"] for row in table.rows)
    _refuse_rows(
        table,
        "invalid_value",
        "FILE_ID",
        [not re.fullmatch(r"\w+", row["FILE_ID"]) for row in table.rows],
        "a name of files",
    )
    _refuse_rows(
        table, "duplicate_row", "FILE_ID", [ids[row["FILE_ID"]] > 1 for row in table.rows], "one row for each subject"
    )
    _refuse_rows(
        table, "missing_value", "SITE_ID", [row["SITE_ID"] in _MISSING_CELLS for row in table.rows], "a scanning site"
    )
    _refuse_rows(
        table, "wrong_label", "DX_GROUP", [_strip_decimals(row["DX_GROUP"]) not in _DX for row in table.rows], "1 or 2"
    )
    if len({_strip_decimals(row["DX_GROUP"]) for row in table.rows}) < 2:
        raise DataError(
            "too_few_classes",
            f"expected subjects with autism and controls in {table.path}, all that are used are of one.",
            path=table.path,
            minimum=2,
            found=1,
        )


def _refuse_rows(table: CsvTable, code: str, column: str, wrong: Sequence[bool], expected: str) -> None:
    """Raise a DataError that names the rows for which `wrong` is True, if there are any."""
    rows = [number for number, is_wrong in zip(table.numbers, wrong, strict=True) if is_wrong]
    if rows:
        raise DataError(
            code,
            f"expected {expected} in the column '{column}' of {table.path}, {len(rows)} of {len(table.rows)} subjects "
            f"that are used have something else: {row_list(rows)}. Correct them, or delete these rows.",
            path=table.path,
            column=column,
            rows=rows,
            total=len(table.rows),
        )


def _federation_sites(table: CsvTable, sites: str) -> list[str]:
    """Return the federation site of each row."""
    if sites == FEDASD:
        region = {centre: name for name, centres in FEDASD_REGIONS.items() for centre in centres}
        names = [region.get(merge_site_parts(row["SITE_ID"]).upper(), "") for row in table.rows]
        strange = sorted({row["SITE_ID"] for row, name in zip(table.rows, names, strict=True) if not name})
        if strange:
            raise DataError(
                "site_without_region",
                f"the four regions of {FEDASD} do not say where {', '.join(strange[:MAX_NAMES])} (SITE_ID in "
                f"{table.path}) belongs. Give a column as --sites, for example --sites SITE_ID.",
                path=table.path,
                sites=strange[:MAX_NAMES],
            )
        return names
    if sites == "SITE_ID":
        return [merge_site_parts(row["SITE_ID"]) for row in table.rows]
    names = [row[sites] for row in table.rows]
    _refuse_rows(table, "missing_value", sites, [value in _MISSING_CELLS for value in names], "a value")
    if len(set(names)) > 2 and 2 * len(set(names)) > len(names):
        raise SettingsError(
            "too_many_sites",
            f"expected several subjects at each site, got {len(set(names))} different values of {len(names)} subjects "
            f"in the column '{sites}': they look like measurements. Give another column as --sites.",
            column=sites,
            found=len(set(names)),
            patients=len(names),
        )
    return names


def _strip_decimals(text: str) -> str:
    """Return a code without a decimal part, which some programs add.

    >>> _strip_decimals("2.0")
    '2'
    """
    return re.sub(r"\.0+$", "", text)


def _parse_age(text: str) -> float | None:
    """Parse an age in years; None if it is not a valid number."""
    try:
        age = float(text)
    except ValueError:
        return None
    return age if 0 <= age < math.inf else None
