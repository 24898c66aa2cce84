"""Subjects of ABIDE I: counts of the real phenotypic file, and files that are refused."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pytest
from abide_maker import CENTRES, copied, make_release, rewrite_table, used_rows
from refusals import refused

from medfl.errors import DataError, SettingsError
from medfl_datasets.abide.tables import FEDASD_REGIONS, LOW_QUALITY, NO_FILES, PHENOTYPE_FILE, Subject, read_phenotypes

REAL_SITES = {
    "LEUVEN": (26, 30),
    "MAX_MUN": (19, 27),
    "TRINITY": (19, 25),
    "SBL": (12, 14),
    "UCLA": (48, 37),
    "USM": (43, 24),
    "SDSU": (8, 19),
    "STANFORD": (12, 13),
    "OHSU": (12, 13),
    "CALTECH": (5, 10),
    "UM": (47, 73),
    "PITT": (24, 26),
    "CMU": (6, 5),
    "NYU": (74, 98),
    "YALE": (22, 19),
    "KKI": (12, 21),
    "OLIN": (14, 14),
}
"""Numbers of subjects with autism and controls at each site, from FedSKD's table I."""

REAL_REGIONS = {"Europe": (76, 96), "US-West": (128, 116), "US-Middle": (77, 104), "US-East": (122, 152)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("abide") / "R")


@pytest.fixture
def release(made, tmp_path):
    return copied(made, tmp_path / "R")


@pytest.fixture
def real():
    path = Path(os.environ.get("MEDFL_DATA", ".")) / "abide" / PHENOTYPE_FILE
    if "MEDFL_DATA" not in os.environ or not path.is_file():
        pytest.skip(f"needs the real abide/{PHENOTYPE_FILE} in the folder that MEDFL_DATA names")
    return path


def counts(subjects, key):
    counted = Counter((getattr(subject, key), subject.label) for subject in subjects)
    return {name: (counted[name, 1], counted[name, 0]) for name, _ in counted}


def test_the_real_file_gives_the_published_subjects(real):
    cohort = read_phenotypes(real)
    assert counts(cohort.subjects, "centre") == REAL_SITES
    assert counts(cohort.subjects, "site") == REAL_REGIONS
    assert [sum(column) for column in zip(*REAL_SITES.values(), strict=True)] == [403, 468]
    assert cohort.left_out == {NO_FILES: 77, LOW_QUALITY: 1112 - 77 - 871}
    females = Counter((subject.site, subject.label) for subject in cohort.subjects if subject.sex == "female")
    assert {site: (females[site, 1], females[site, 0]) for site in REAL_REGIONS} == {
        "Europe": (6, 5),
        "US-West": (10, 19),
        "US-Middle": (14, 24),
        "US-East": (24, 42),
    }
    assert all(6 < subject.age < 65 for subject in cohort.subjects)
    assert len({subject.subject_id for subject in cohort.subjects}) == 871


def test_the_real_file_by_other_columns(real):
    assert counts(read_phenotypes(real, "SITE_ID").subjects, "site") == REAL_SITES
    eyes = read_phenotypes(real, "EYE_STATUS_AT_SCAN").subjects
    assert {subject.site for subject in eyes} == {"1", "2"}
    with refused(SettingsError, "too_many_sites", column="func_mean_fd", found=870, patients=871):
        read_phenotypes(real, "func_mean_fd")
    with refused(DataError, "missing_value", path=str(real), column="ADOS_TOTAL", total=871):
        read_phenotypes(real, "ADOS_TOTAL")


def test_every_centre_belongs_to_one_region():
    centres = [centre for region in FEDASD_REGIONS.values() for centre in region]
    assert sorted(centres) == sorted(REAL_SITES)
    for region, names in FEDASD_REGIONS.items():
        assert tuple(map(sum, zip(*(REAL_SITES[name] for name in names), strict=True))) == REAL_REGIONS[region]


def test_the_table_codes_autism_by_1_and_controls_by_2(made):
    rows = {row["FILE_ID"]: row for row in used_rows(made)}
    subjects = read_phenotypes(made / PHENOTYPE_FILE).subjects
    assert {subject.label for subject in subjects} == {0, 1}
    for subject in subjects:
        assert subject.label == {"1": 1, "2": 0}[rows[subject.file_id]["DX_GROUP"]]
        assert subject.sex == {"1": "male", "2": "female"}[rows[subject.file_id]["SEX"]]


def test_a_subject_has_the_number_of_the_table_row(made):
    cohort = read_phenotypes(made / PHENOTYPE_FILE)
    lines = (made / PHENOTYPE_FILE).read_text().splitlines()
    for subject in cohort.subjects:
        line = lines[subject.row - 1]
        assert f",{subject.file_id}," in line
        assert subject.subject_id == f"subject-{subject.row:06d}"
    assert cohort.left_out == {NO_FILES: len(CENTRES), LOW_QUALITY: len(CENTRES)}
    assert {subject.centre for subject in cohort.subjects} == {"LEUVEN", "UCLA", "UM", "NYU"}


@pytest.mark.parametrize(
    "column", ["qc_rater_1", "qc_anat_rater_2", "qc_func_rater_2", "qc_anat_rater_3", "qc_func_rater_3"]
)
@pytest.mark.parametrize("word", ["maybe", "fail", "", "ok"])
def test_what_raters_must_say(release, column, word):
    rewrite_table(release, lambda row, place: row | ({column: word} if place == 3 else {}))
    kept = word == "maybe" and column.endswith("rater_2")
    assert len(read_phenotypes(release / PHENOTYPE_FILE).subjects) == len(CENTRES) * 4 - (not kept)


def test_codes_that_a_program_wrote_as_fractions(release):
    before = read_phenotypes(release / PHENOTYPE_FILE)
    rewrite_table(release, lambda row, place: row | {key: f"{row[key]}.0" for key in ("DX_GROUP", "SEX")})
    assert read_phenotypes(release / PHENOTYPE_FILE) == before


@pytest.mark.parametrize("text", ["", "-9999", "-9999.0", "nan", "unknown"])
def test_age_and_sex_may_be_unknown(release, text):
    rewrite_table(release, lambda row, place: row | ({"AGE_AT_SCAN": text, "SEX": text} if place == 0 else {}))
    subjects = read_phenotypes(release / PHENOTYPE_FILE).subjects
    assert (subjects[0].age, subjects[0].sex) == (None, None)
    assert all(subject.age and subject.sex for subject in subjects[1:])


def test_columns_that_are_missing_are_all_named(release):
    rows = used_rows(release)
    with (release / PHENOTYPE_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, ["SITE_ID", "FILE_ID", "SEX", "qc_rater_1"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    missing = ["DX_GROUP", "AGE_AT_SCAN", "qc_anat_rater_2", "qc_func_rater_2", "qc_anat_rater_3", "qc_func_rater_3"]
    with refused(DataError, "missing_column", path=str(release / PHENOTYPE_FILE), columns=missing):
        read_phenotypes(release / PHENOTYPE_FILE)


def at(place, **cells):
    """Change cells of the row of one subject."""
    return lambda row, number: row | (cells if number == place else {})


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (at(2, DX_GROUP="3"), "wrong_label", {"column": "DX_GROUP", "rows": [4], "total": 20}),
        (at(2, SITE_ID=""), "missing_value", {"column": "SITE_ID", "rows": [4]}),
        (at(2, SITE_ID="HOME_2"), "site_without_region", {"sites": ["HOME_2"]}),
        (at(2, FILE_ID="../../etc/x"), "invalid_value", {"column": "FILE_ID", "rows": [4]}),
        (
            lambda row, place: row | {"FILE_ID": "Same_0050001"},
            "duplicate_row",
            {"column": "FILE_ID", "rows": [row for row in range(2, 32) if row % 6 not in (0, 1)], "total": 20},
        ),
        (lambda row, place: row | {"DX_GROUP": "2"}, "too_few_classes", {"minimum": 2, "found": 1}),
        (lambda row, place: row | {"qc_rater_1": "fail"}, "too_few_patients", {"minimum": 1, "found": 0}),
    ],
)
def test_rows_that_are_refused(release, change, code, fields):
    ids = [row["FILE_ID"] for row in used_rows(release)]
    rewrite_table(release, change)
    with refused(DataError, code, path=str(release / PHENOTYPE_FILE), **fields) as error:
        read_phenotypes(release / PHENOTYPE_FILE)
    assert not any(file_id in str(error.value) for file_id in ids)


@pytest.mark.parametrize(
    ("sites", "code", "fields"),
    [
        ("SUB_ID", "identifying_column", {}),
        ("FILE_ID", "identifying_column", {}),
        ("SITE", "unknown_column", {}),
        ("AGE_AT_SCAN", "too_many_sites", {"found": 20, "patients": 20}),
    ],
)
def test_sites_that_are_refused(made, sites, code, fields):
    with refused(SettingsError, code, column=sites, **fields):
        read_phenotypes(made / PHENOTYPE_FILE, sites)


def test_any_other_column_names_sites(made):
    subjects = read_phenotypes(made / PHENOTYPE_FILE, "SEX").subjects
    assert {(subject.site, subject.sex) for subject in subjects} == {("1", "male"), ("2", "female")}
    assert isinstance(subjects[0], Subject)
