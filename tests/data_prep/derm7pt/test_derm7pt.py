"""Derm7pt: prepared data of valid releases, and input that is refused. File names and notes here are private."""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import SPLITS, read_datalist
from medfl.data.sites import load_sites
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass
from medfl_datasets.derm7pt.spec import Derm7pt
from medfl_datasets.derm7pt.synthetic import write_indexes, write_meta, write_release
from medfl_datasets.derm7pt.tables import read_release

FILES = dict(zip(SPLITS, ("train", "valid", "test"), strict=True))
HEADER = (
    "case_num,diagnosis,seven_point_score,pigment_network,streaks,pigmentation,regression_structures,dots_and_globules,"
    "blue_whitish_veil,vascular_structures,level_of_diagnostic_difficulty,elevation,location,sex,management,clinic,derm,"
    "case_id,notes"
)
PUBLISHED = {
    "training": {"NEV": 256, "MEL": 90, "MISC": 32, "BCC": 19, "SK": 16},
    "validation": {"NEV": 100, "MEL": 61, "MISC": 25, "BCC": 7, "SK": 10},
    "test": {"NEV": 219, "MEL": 101, "MISC": 40, "BCC": 16, "SK": 19},
}
"""Published number of cases of each group in each split."""

OFFICIAL_DIAGNOSES = {
    "BCC": {"basal cell carcinoma"},
    "NEV": {f"{kind} nevus" for kind in ("blue", "clark", "combined", "congenital", "dermal", "recurrent")}
    | {"reed or spitz nevus"},
    "MEL": {"melanoma", "melanoma metastasis"}
    | {f"melanoma ({depth})" for depth in ("in situ", "less than 0.76 mm", "0.76 to 1.5 mm", "more than 1.5 mm")},
    "MISC": {"vascular lesion", "lentigo", "dermatofibroma", "melanosis", "miscellaneous"},
    "SK": {"seborrheic keratosis"},
}
"""Published diagnoses of each group."""


def read_meta(release):
    with (release / "meta" / "meta.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_indexes(release, split):
    return [int(line) for line in (release / "meta" / f"{FILES[split]}_indexes.csv").read_text().split()[1:]]


def prepare(release, out, **options):
    return prepare_spec(Derm7pt, release, out, workers=1, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("derm7pt"))


@pytest.fixture
def release(made, tmp_path):
    """Write a small release that a test may modify."""
    return shutil.copytree(made, tmp_path / "release_v0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Write all 1011 rows of the table, without images."""
    return write_release(tmp_path_factory.mktemp("whole"), PUBLISHED, images=False)


def records(datalist):
    return {record["image"]: record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])}


def test_the_published_counts(whole):
    assert (whole / "meta" / "meta.csv").read_text().splitlines()[0] == HEADER
    release = read_release(whole)
    assert Counter(release.groups) == {"BCC": 42, "NEV": 575, "MEL": 252, "MISC": 97, "SK": 45}
    assert Counter(release.splits) == {"training": 413, "validation": 203, "test": 395}
    pairs = Counter(zip(release.splits, release.groups, strict=True))
    assert all(pairs[split, group] == PUBLISHED[split][group] for split in SPLITS for group in OFFICIAL_DIAGNOSES)
    assert Counter(row["sex"] for row in release.table.rows) == {"female": 522, "male": 489}
    assert sum(release.doubled) == 9
    assert release.deviations() == []


def test_each_diagnosis_goes_to_its_group_and_each_index_to_its_row(whole):
    release = read_release(whole)
    for row, group in zip(read_meta(whole), release.groups, strict=True):
        assert row["diagnosis"] in OFFICIAL_DIAGNOSES[group]
    for split in SPLITS:
        files_by_index = [place for place, name in enumerate(release.splits) if name == split]
        assert files_by_index == sorted(read_indexes(whole, split)), "0 is the first case"


def test_the_whole_way(release, tmp_path):
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", size=8, say=lines.append)
    assert datalist == read_datalist(tmp_path / "P")
    assert lines[0].startswith("derm7pt: licence academic research only; the images may not be redistributed")
    assert lines[1].startswith("Please cite: Kawahara")
    assert sum("licence" in line for line in lines) == 1
    assert any(line.startswith("note: 9 cases have no clinical image") and line.endswith("has them") for line in lines)
    assert datalist.labels == {"0": "BCC", "1": "MEL", "2": "MISC", "3": "NEV", "4": "SK"}
    assert (datalist.name, datalist.modality, datalist.num_classes) == ("derm7pt", "dermoscopy", 5)
    images, by_row = np.load(tmp_path / "P" / "images.npy"), records(datalist)
    assert (images.dtype, images.shape, sorted(by_row)) == (np.uint8, (22, 8, 8, 3), list(range(22)))
    for row, case in enumerate(read_meta(release)):
        assert np.abs(images[row].astype(int) - (200, row * 10, 100)).max() <= 3, "its own image, dermoscopic, in RGB"
        assert case["diagnosis"] in OFFICIAL_DIAGNOSES[datalist.labels[str(by_row[row]["label"])]]
        assert (by_row[row]["sex"], by_row[row]["location"]) == (case["sex"], case["location"])
        assert row in read_indexes(release, by_row[row]["split"])
        assert set(by_row[row]) == {"image", "label", "subject_id", "sex", "location", "split"}
    assert len({record["subject_id"] for record in by_row.values()}) == 22, "each case is a subject"
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]
    assert "secret" not in "".join([*lines, (tmp_path / "P" / "datalist.json").read_text()]).lower()


def test_the_clinical_view_leaves_out_the_nine_cases_without_a_clinical_image(release, tmp_path):
    lines: list[str] = []
    datalist = prepare(release.parent, tmp_path / "P", size=4, view="clinic", say=lines.append)
    images = np.load(tmp_path / "P" / "images.npy")
    assert (len(images), datalist.name, datalist.modality) == (13, "derm7pt-clinic", "clinical photograph")
    for place, row in enumerate(range(9, 22)):
        assert np.abs(images[place].astype(int) - (40, row * 10, 100)).max() <= 3
        assert row in read_indexes(release, records(datalist)[place]["split"])
    assert [entry.count for entry in datalist.exclusions] == [9]
    assert any(line.startswith("note: 9 cases") and line.endswith("leaves them out") for line in lines)


def test_resizing_averages_the_pixels_it_drops(release, tmp_path):
    case = read_meta(release)[0]
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(release / "images" / case["derm"], quality=100, subsampling=0)
    prepare(release, tmp_path / "P", size=8)
    assert np.abs(np.load(tmp_path / "P" / "images.npy")[0].astype(int) - 127).max() <= 12


def test_without_the_official_split_all_cases_are_dealt_to_three_sites_and_tested_in_folds(release, tmp_path, capsys):
    def medfl(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        return printed

    printed = medfl(
        "prep", "derm7pt", "--source", release, "--out", tmp_path / "P", "--size", 4, "--split", "none", "--workers", 1
    )
    assert "22 training, 0 validation, 0 test images of 5 classes" in printed.out
    assert "  3 NEV: 6" in printed.out
    assert printed.err.startswith("derm7pt: licence academic research only")
    folds = ("--test", "k_fold", "--folds", 2, "--server-test", "none")
    skewed = ("--scheme", "dirichlet_class", "--alpha", 1, "--sites", 3, "--min-size", 2)
    medfl("partition", tmp_path / "P", "--out", tmp_path / "D", *skewed, *folds)
    assert sum(len(site.train) + len(site.test) for site in load_sites(tmp_path / "D", Multiclass(5)).values()) == 22
    medfl("partition", tmp_path / "P", "--out", tmp_path / "L", "--scheme", "by_site", "--column", "location", *folds)
    assert sorted(load_sites(tmp_path / "L", Multiclass(5))) == ["back", "head-neck", "upper-limbs"]
    assert {record["sex"] for record in read_datalist(tmp_path / "L" / "back").splits["training"]} == {"female", "male"}


def test_unlike_counts_are_reported(release, tmp_path):
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", size=4, say=lines.append)
    assert (
        "warning: training: 12 cases (BCC 2, MEL 2, MISC 2, NEV 4, SK 2); "
        "the official release has 413 cases (BCC 19, MEL 90, MISC 32, NEV 256, SK 16)"
    ) in lines
    assert len(datalist.extra["deviations"]) == 3
    rows = read_meta(release)
    rows[8]["clinic"] = rows[9]["clinic"]
    write_meta(release, rows)
    assert any(
        "8 cases have the dermoscopic image as clinical" in sentence for sentence in read_release(release).deviations()
    )


def test_unreadable_images(release, tmp_path):
    path = release / "images" / read_meta(release)[12]["clinic"]
    path.write_bytes(path.read_bytes()[:100])
    with refused(DataError, "unreadable_image", count=1, total=13) as error:
        prepare(release, tmp_path / "P", size=4, view="clinic")
    assert re.search(r"table row 14\).*--skip-unreadable", str(error.value))
    assert "secret" not in f"{error.value} {error.value.fields}".lower()
    assert not (tmp_path / "P").exists()
    datalist = prepare(release, tmp_path / "P", size=4, view="clinic", require_complete=False)
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert [row[0] for row in quarantine] == ["table_row", "14"], "the row of meta.csv, though nine rows were left out"
    assert [entry.count for entry in datalist.exclusions] == [9, 1]
    assert len(np.load(tmp_path / "P" / "images.npy")) == 12


def check_refused(release, code, **fields):
    """Check that preparing fails without a private name in the error, and writes nothing. Return the message."""
    out = release.parent / "refused"
    with refused(DataError, code, **fields) as error:
        prepare(release, out, size=4)
    assert "secret" not in f"{error.value} {error.value.fields}".lower()
    assert not out.exists()
    return str(error.value)


def test_a_folder_without_the_table_is_refused(release):
    (release / "meta" / "meta.csv").unlink()
    check_refused(release, "missing_file", path=str(release / "meta" / "meta.csv"))


def test_missing_columns_are_named_and_the_derived_table_is_refused(release):
    rows = read_meta(release)
    write_meta(release, [{key: row[key] for key in row if key not in ("sex", "notes")} for row in rows])
    table = str(release / "meta" / "meta.csv")
    check_refused(release, "missing_column", path=table, columns=["sex", "notes"])
    nine = ("diagnosis", "pigment_network", "streaks", "pigmentation", "regression_structures", "dots_and_globules")
    nine += ("blue_whitish_veil", "vascular_structures", "derm")
    write_meta(release, [{key: row[key].replace(" ", "_") for key in nine} for row in rows])
    missing = [column for column in rows[0] if column not in nine]
    message = check_refused(release, "missing_column", path=table, columns=missing)
    assert "with fewer columns, can't be used" in message


@pytest.mark.parametrize(
    ("column", "value", "code", "fields"),
    [
        ("diagnosis", "clark naevus", "wrong_label", {"column": "diagnosis", "label": "clark naevus", "rows": [5]}),
        ("diagnosis", "", "wrong_label", {"column": "diagnosis", "label": "", "rows": [5]}),
        ("sex", "f", "invalid_value", {"column": "sex", "rows": [5]}),
        ("case_num", "6", "duplicate_row", {"column": "case_num", "rows": [5, 7]}),
        ("derm", "", "missing_value", {"column": "derm", "rows": [5]}),
        ("derm", "../meta/meta.csv", "path_outside_folder", {"rows": [5], "total": 22}),
    ],
)
def test_cells_that_are_refused(release, column, value, code, fields):
    rows = read_meta(release)
    rows[3][column] = value
    write_meta(release, rows)
    message = check_refused(release, code, **fields)
    assert ("Did you mean 'clark nevus'" in message) == (value == "clark naevus")


def test_a_group_without_a_case_is_refused(release):
    rows = read_meta(release)
    for row in rows:
        row["diagnosis"] = row["diagnosis"].replace("seborrheic keratosis", "lentigo")
    write_meta(release, rows)
    check_refused(release, "class_without_images", classes=["SK"])


def test_missing_images_are_refused(release):
    for row in (3, 20):
        (release / "images" / read_meta(release)[row]["derm"]).unlink()
    check_refused(release, "missing_image", path=str(release / "images"), rows=[5, 22], total=22)
    shutil.rmtree(release / "images")
    check_refused(release, "missing_image", path=str(release / "images"), rows=list(range(2, 24)))


def test_names_with_other_capitals_are_reported(release):
    path = release / "images" / read_meta(release)[3]["derm"]
    assert path.suffix == ".JPG"
    path.rename(path.with_suffix(".jpg"))
    if path.is_file():
        pytest.skip("this disk does not tell capitals from small letters")
    check_refused(release, "missing_image", rows=[5], other_capitals=1)


def test_an_index_file_that_is_missing_or_holds_no_indexes(release):
    path = release / "meta" / "valid_indexes.csv"
    path.write_text("indexes\n1\n-2\n3.0\n")
    check_refused(release, "invalid_value", path=str(path), column="indexes", rows=[3, 4])
    path.write_text("1\n2\n3\n")
    check_refused(release, "missing_header", path=str(path), columns=["indexes"])
    path.unlink()
    check_refused(release, "missing_file", path=str(path))


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda indexes: [*indexes[:-1], 22], {"outside": {"valid_indexes.csv": 1}, "in_none": 1}),
        (lambda indexes: [*indexes, indexes[0]], {"repeated": {"valid_indexes.csv": 1}, "in_none": 0}),
        (lambda indexes: indexes[1:], {"outside": {}, "repeated": {}, "in_several": 0, "in_none": 1}),
    ],
    ids=["out of range", "twice", "too few"],
)
def test_index_files_that_do_not_name_each_case_once(release, change, fields):
    write_indexes(release, "validation", change(read_indexes(release, "validation")))
    check_refused(release, "wrong_indexes", path=str(release / "meta"), cases=22, **fields)


def test_a_case_in_two_splits_is_refused(release):
    write_indexes(release, "validation", [*read_indexes(release, "validation"), read_indexes(release, "test")[0]])
    check_refused(release, "wrong_indexes", cases=22, outside={}, repeated={}, in_several=1, in_none=0)


@pytest.mark.parametrize("splits", [SPLITS, ("validation",)])
def test_index_files_that_count_from_one(release, splits):
    for split in splits:
        write_indexes(release, split, [index + 1 for index in read_indexes(release, split)])
    names = [f"{FILES[split]}_indexes.csv" for split in splits]
    check_refused(release, "indexes_from_one", path=str(release / "meta"), files=names)


def test_settings_that_are_refused(release, tmp_path):
    with refused(SettingsError, "unknown_choice", what="view", choice="clinical"):
        prepare(release, tmp_path / "P", view="clinical")
    with refused(SettingsError, "unknown_choice", what="split", choice="folds"):
        prepare(release, tmp_path / "P", split="folds")
    with refused(SettingsError, "setting_out_of_range", settings=["size"]):
        prepare(release, tmp_path / "P", size=0)
