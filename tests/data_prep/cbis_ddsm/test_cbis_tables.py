"""Case descriptions of CBIS-DDSM: published counts of the real tables, and special cases in synthetic ones."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from cbis_more import lesions_of, write_headers
from refusals import refused

from medfl.errors import DataError
from medfl_datasets.cbis_ddsm.files import list_files
from medfl_datasets.cbis_ddsm.release import find_image_files, read_release
from medfl_datasets.cbis_ddsm.selection import select_images
from medfl_datasets.cbis_ddsm.synthetic import LAYOUTS, ROWS, write_tables
from medfl_datasets.cbis_ddsm.tables import OFFICIAL_ROWS, TABLES, Lesion, Series, deviations, read_tables

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "cbis_ddsm")
real_tables = pytest.mark.skipif(not REAL.is_dir(), reason="needs the case descriptions in $MEDFL_DATA/cbis_ddsm")


@pytest.fixture(scope="module")
def lesions():
    return lesions_of(REAL)


@real_tables
def test_the_published_rows(lesions):
    """Check rows, pathologies and image identities against counts of the released tables."""
    assert Counter((lesion.kind, lesion.split) for lesion in lesions) == OFFICIAL_ROWS
    counts = Counter((lesion.kind, lesion.split, lesion.pathology[:8]) for lesion in lesions)
    for kind, split, malignant, benign in (
        ("mass", "train", 637, 577 + 104),
        ("mass", "test", 147, 194 + 37),
        ("calc", "train", 544, 528 + 474),
        ("calc", "test", 129, 130 + 67),
    ):
        assert (counts[kind, split, "MALIGNAN"], counts[kind, split, "BENIGN"] + counts[kind, split, "BENIGN_W"]) == (
            malignant,
            benign,
        )
    views = {split: {lesion.breast_view for lesion in lesions if lesion.split == split} for split in ("train", "test")}
    assert (len(views["train"]), len(views["test"])) == (2420, 641)
    assert (len(views["train"] | views["test"]), len(views["train"] & views["test"])) == (3032, 29)
    patients = {part: {lesion.patient for lesion in lesions if lesion.split == part} for part in views}
    assert (len(patients["train"]), len(patients["test"])) == (1248, 349)
    assert (len(patients["train"] & patients["test"]), len(patients["train"] | patients["test"])) == (31, 1566)
    assert len({lesion.image for lesion in lesions}) == 3103
    apart = Counter((lesion.kind, lesion.split) for lesion in lesions if lesion.crop != lesion.mask)
    assert apart == {("mass", "train"): 92, ("mass", "test"): 11, ("calc", "train"): 1}
    assert Counter(lesion.density for lesion in lesions)[0] == 2
    assert deviations(lesions) == []


@real_tables
def test_no_patient_is_in_training_and_test(lesions):
    full, crop = select_images(lesions, crop=False), select_images(lesions, crop=True)
    for choice, training, test in ((full, 2356, 641), (crop, 2781, 704)):
        assert Counter(image.split for image in choice.images) == {"training": training, "test": test}
        trained = {image.patient for image in choice.images if image.split == "training"}
        assert not trained & {image.patient for image in choice.images if image.split == "test"}
        assert choice.leaking_patients == 31
    assert full.left_out == 3032 - 2356 - 641
    assert crop.left_out == 2864 - 2781
    for kind in ("mass", "calc"):
        alone = select_images([lesion for lesion in lesions if lesion.kind == kind], crop=False)
        assert (alone.leaking_patients, alone.left_out) == (0, 0), "each kind by itself was split by patient"


@real_tables
def test_the_worst_lesion_of_a_film_counts(lesions):
    parts = [[lesion for lesion in lesions if (lesion.kind, lesion.split) == key] for key in OFFICIAL_ROWS]
    assert [select_images(part, crop=False).mixed for part in parts] == [6, 2, 7, 2]
    choice = select_images(lesions, crop=False)
    for image in choice.images:
        pathologies = {lesion.pathology for lesion in image.lesions}
        assert image.label(three=False) == ("MALIGNANT" in pathologies)
        assert image.label(three=True) == (2 if "MALIGNANT" in pathologies else int("BENIGN" in pathologies))


@real_tables
def test_each_row_of_the_release_finds_its_files(lesions, tmp_path):
    """Check the whole release as headers: 3103 films, 3568 lesions with crop and mask, 104 of them in two series."""
    assert write_headers(tmp_path, lesions) == 3103 + 2 * 3568
    tree, rows = read_release(tmp_path, REAL)
    assert rows == lesions
    full, crops = select_images(lesions, crop=False).images, select_images(lesions, crop=True).images
    films = find_image_files(tree, full)
    assert sorted(films) == list(range(len(full)))
    assert all(len(film.files) == 1 for film in films.values())
    films = find_image_files(tree, crops)
    assert sorted(films) == list(range(len(crops)))
    assert all(len(film.files) == 2 for film in films.values())
    for place, image in enumerate(crops):
        assert {path.parents[2].name for path in films[place].files} == {image.lesions[0].crop.subject}


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "csv")


def test_made_up_tables_are_read_like_real_ones(tables):
    assert all(b'\n"' in (tables / name).read_bytes() for name in TABLES.values()), "line breaks inside quotes"
    lesions = lesions_of(tables)
    read = [
        (int(lesion.patient[2:]), lesion.side, lesion.view, int(lesion.number), lesion.pathology) for lesion in lesions
    ]
    assert read == [row for key in TABLES for row in ROWS[key]]
    assert all(lesion.crop.subject == f"{lesion.image.subject}_{lesion.number}" for lesion in lesions)
    assert [lesion.row for lesion in lesions[:3]] == [2, 3, 4]
    assert len(deviations(lesions)) == 4


def renamed(text: str) -> str:
    """Write a table with other column names, as in rewritten copies."""
    for old, new in (
        ("left or right breast", "side"),
        ("image view", "view"),
        ("abnormality id", "abn_num"),
        (",image file path", ",od_img_path"),
        ("cropped image file path", "od_crop_path"),
        ("ROI mask file path", "mask_path"),
        ("/", "\\"),
        ("N/A", "NA"),
        ("N\\A", "NA"),
    ):
        text = text.replace(old, new)
    return text


def test_rewritten_tables_mean_the_same(tables, tmp_path):
    before = lesions_of(tables)
    for name in TABLES.values():
        path = tables / name
        path.write_text(renamed(path.read_text()))
    assert lesions_of(tables) == before


@pytest.mark.parametrize(
    ("old", "new", "code", "fields"),
    [
        ("pathology", "patology", "missing_column", {"columns": ["pathology"]}),
        ("P_00001", "Secret-Sally", "invalid_value", {"column": "patient_id", "rows": [2, 3], "total": 7}),
        ("LEFT,CC", "LEFT,XCC", "invalid_value", {"column": "image view", "rows": [2, 7, 8], "total": 7}),
        ("BENIGN_WITHOUT_CALLBACK", "MAYBE", "invalid_value", {"column": "pathology", "rows": [6]}),
        ("RIGHT_MLO/", "RIGHT_MLO_", "invalid_value", {"column": "image file path", "rows": [6]}),
    ],
)
def test_cells_that_are_unknown(tables, old, new, code, fields):
    path = tables / TABLES["mass", "train"]
    path.write_text(path.read_text().replace(old, new))
    with refused(DataError, code, path=str(path), **fields) as error:
        read_tables({("mass", "train"): path})
    assert "Sally" not in f"{error.value} {error.value.fields}"


def test_a_uid_that_two_images_share(tables):
    lesions = lesions_of(tables)
    path = tables / TABLES["mass", "test"]
    text = path.read_text()
    own, other = (next(lesion for lesion in lesions if lesion.patient == name) for name in ("P_00006", "P_00001"))
    path.write_text(text.replace(own.crop.series, other.crop.series))
    rows = ["mass_train 2", "mass_test 2"]
    with refused(DataError, "duplicate_series", what="cropped image", rows=rows):
        lesions_of(tables)
    path.write_text(text.replace(own.image.series, other.image.series))
    with refused(DataError, "duplicate_series", what="image", rows=rows):
        lesions_of(tables)


def test_a_breast_without_a_rated_density(tables):
    path = tables / TABLES["mass", "train"]
    path.write_text(path.read_text().replace("P_00001,2", "P_00001,N/A"))
    assert [lesion.density for lesion in read_tables({("mass", "train"): path})][:3] == [0, 0, 3]


def lesion(kind: str, split: str, pathology: str, number: str = "1") -> Lesion:
    """Make a lesion in the left CC film of the first patient, with its own series."""
    place = f"1.2.3.4.{('mass', 'calc').index(kind)}{number}"
    series = [Series(f"{kind}-{part}", "1.2.3.4.5.6", f"{place}.{part}") for part in range(3)]
    return Lesion(kind, split, 2, "P_00001", "LEFT", "CC", number, 3, pathology, *series)


def test_a_film_of_both_official_parts_is_tested_and_has_its_worst_label():
    lesions = [lesion("mass", "train", "BENIGN"), lesion("calc", "test", "MALIGNANT")]
    choice = select_images(lesions, crop=False)
    (film,) = choice.images
    assert (film.split, film.label(three=False), film.label(three=True)) == ("test", 1, 2)
    assert (choice.leaking_patients, choice.left_out, choice.mixed) == (1, 0, 1)
    crops = select_images(lesions, crop=True)
    assert [image.split for image in crops.images] == ["test"], (
        "the lesion in training is of a patient of the test part"
    )
    assert crops.left_out == 1


@pytest.mark.parametrize(("pathology", "two", "three"), [("BENIGN_WITHOUT_CALLBACK", 0, 0), ("BENIGN", 0, 1)])
def test_what_is_not_malignant_is_benign(pathology, two, three):
    (film,) = select_images([lesion("mass", "train", pathology)], crop=False).images
    assert (film.label(three=False), film.label(three=True)) == (two, three)


def test_a_film_is_found_by_its_second_copy(tmp_path):
    lesions = [lesion("mass", "train", "BENIGN"), lesion("calc", "train", "BENIGN")]
    folder = tmp_path / lesions[1].image.series
    folder.mkdir()
    (folder / "1-1.dcm").touch()
    (film,) = find_image_files(list_files(tmp_path), select_images(lesions, crop=False).images).values()
    assert film.files == (folder / "1-1.dcm",)
    assert film.series == (lesions[1].image.series,)


def test_every_layout_is_a_place_of_its_own():
    assert sorted(LAYOUTS) == ["classic", "google", "kaggle", "nbia", "older"]
