"""CBIS-DDSM: missing, repeated and damaged files, and files that identify a patient."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from cbis_more import copied, edit
from dicom_maker import cut, make_dicom, without_preamble
from prepare_specs import prepare_spec
from pydicom import dcmread
from refusals import refused

from medfl.cli.main import main
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import Exclusion
from medfl_datasets.cbis_ddsm.release import read_release
from medfl_datasets.cbis_ddsm.selection import select_images
from medfl_datasets.cbis_ddsm.spec import NO_FILE, CbisDdsm
from medfl_datasets.cbis_ddsm.synthetic import film_pixels, mask_pixels, nbia_folder, write_release
from medfl_datasets.cbis_ddsm.tables import TABLES


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("cbis"))


@pytest.fixture
def release(made, tmp_path):
    return copied(made, tmp_path / "T")


def films(release, crop=False):
    """Return the images in the order of the tables, each with its files."""
    tree, lesions = read_release(release)
    chosen = select_images(lesions, crop).images
    return [(image, tree.find(image.lesions[0].crop if crop else image.lesions[0].image)) for image in chosen]


def prepared(release, out, *, check="strip", **more):
    lines: list[str] = []
    options = {"size": (6, 4), "deidentify_check": check, **more}
    datalist = prepare_spec(CbisDdsm, release, out, workers=1, say=lines.append, **options)
    return datalist, lines


def quarantine(out) -> list[tuple[str, str, str]]:
    if not (out / "quarantine.csv").exists():
        return []
    with (out / "quarantine.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["image", "table_rows", "reason"]
    return [tuple(row) for row in rows]


def test_rows_without_files_are_counted_and_named(release, tmp_path):
    (_, [first]), (image, [second]) = films(release)[1:3]
    shutil.rmtree(first.parents[2])
    second.unlink()
    datalist, lines = prepared(release, tmp_path / "P")
    assert "warning: 2 of 12 images of the tables have no file" in lines
    assert quarantine(tmp_path / "P") == [
        ("P_00001 LEFT MLO", "mass_train 3", NO_FILE),
        ("P_00002 RIGHT CC", "mass_train 4, mass_train 5", NO_FILE),
    ]
    assert len(np.load(tmp_path / "P" / "images.npy")) == 10
    assert Exclusion(reason=NO_FILE, count=2) in datalist.exclusions
    assert "warning: 2 images were left out: see quarantine.csv" in lines
    assert image.patient == "P_00002"


def test_files_without_rows_are_counted_and_named(release, tmp_path):
    _, [film] = films(release)[0]
    other = release / "CBIS-DDSM" / "Mass-Test_P_09999_LEFT_CC" / "10-04-2016-DDSM-NA-12345" / "1.0-x-54321"
    other.mkdir(parents=True)
    shutil.copy(film, other)
    (release / "Secret Sally").mkdir()
    shutil.copy(film, release / "Secret Sally" / "scan.dcm")
    datalist, lines = prepared(release, tmp_path / "P")
    notes = [line for line in lines if "are in no row" in line]
    assert notes == [
        "note: 2 image files are in no row of the tables (Mass-Test_P_09999_LEFT_CC; 1 in other folders)",
    ]
    assert sum(map(len, datalist.splits.values())) == 12
    assert quarantine(tmp_path / "P") == []


def test_a_series_that_is_there_twice(release, tmp_path):
    """Check that a series downloaded twice counts once, and that two different images under one UID are excluded."""
    chosen = films(release)
    for place in (0, 1):
        image, [film] = chosen[place]
        again = release / "manifest-2" / nbia_folder(image.lesions[0].image, "full mammogram images")
        again.mkdir(parents=True)
        shutil.copy(film, again)
    make_dicom(again / film.name, film_pixels(77), SeriesInstanceUID=image.lesions[0].image.series, Modality="MG")
    datalist, _ = prepared(release, tmp_path / "P")
    ((name, _, reason),) = quarantine(tmp_path / "P")
    assert name == "P_00001 LEFT MLO"
    assert reason.startswith("its series holds 2 different images, expected one")
    assert sum(map(len, datalist.splits.values())) == 11


def test_bad_files_are_left_out_each_with_its_reason(release, tmp_path):
    chosen = [files[0] for _, files in films(release)]
    cut(chosen[0], 0.6)
    cut(chosen[1], 0.02)
    edit(chosen[2], RescaleSlope="0")
    edit(chosen[3], Modality="CT")
    edit(chosen[5], SeriesInstanceUID="1.2.3.4.5")
    edit(chosen[6], Rows=65535, Columns=65535)
    without_preamble(chosen[7])
    chosen[11].write_text("Secret Sally")
    _, lines = prepared(release, tmp_path / "P")
    reasons = {name: reason for name, _, reason in quarantine(tmp_path / "P")}
    expected = {
        "P_00001 LEFT CC": "cut short: it holds",
        "P_00001 LEFT MLO": "cut short",
        "P_00002 RIGHT CC": "slope that is finite and not 0",
        "P_00003 RIGHT MLO": "got CT",
        "P_00006 LEFT CC": "belongs to another series",
        "P_00007 RIGHT MLO": "states 65535 x 65535",
        "P_00010 RIGHT CC": "no DICOM file",
    }
    assert sorted(reasons) == sorted(expected)
    assert all(part in reasons[name] for name, part in expected.items())
    assert len(np.load(tmp_path / "P" / "images.npy")) == 5
    assert not any("sally" in line.lower() for line in [*lines, *reasons.values()])


def test_a_lesion_without_its_crop(release, tmp_path):
    (_, files), (_, others) = films(release, crop=True)[:2]
    for path in (*files, *others):
        if np.unique(dcmread(path).pixel_array).size > 2:
            path.unlink()
    for path in others:
        path.unlink(missing_ok=True)
    prepared(release, tmp_path / "P", view="crop")
    reasons = [(name, reason[:34]) for name, _, reason in quarantine(tmp_path / "P")]
    assert reasons == [
        ("P_00001 LEFT CC mass 1", "only the mask of the lesion exists"),
        ("P_00001 LEFT MLO mass 1", NO_FILE[:34]),
    ]


def test_what_films_are_for_is_reported_and_a_mixture_warned_of(release, tmp_path):
    _, lines = prepared(release, tmp_path / "P")
    assert "note: presentation intent (DICOM): 12 not said" in lines
    chosen = [files[0] for _, files in films(release)]
    edit(chosen[1], PresentationIntentType="FOR PROCESSING")
    datalist, lines = prepared(release, tmp_path / "Q")
    counted = "1 FOR PROCESSING, 11 not said"
    assert f"note: presentation intent (DICOM): {counted}" in lines
    assert datalist.warnings[0].startswith(f"the files have several presentation intents ({counted}): ")
    kinds = {record["image"]: record["presentation_intent"] for part in datalist.splits.values() for record in part}
    assert kinds == {row: "FOR PROCESSING" if row == 1 else "not said" for row in range(12)}


def test_names_birth_dates_and_burned_in_text(release, tmp_path):
    chosen = [files[0] for _, files in films(release)]
    edit(chosen[0], PatientName="Secret^Sally", PatientBirthDate="19500101")
    edit(chosen[1], BurnedInAnnotation="YES")
    datalist, lines = prepared(release, tmp_path / "P")
    assert "warning: the headers of 1 images may identify the patient; nothing of them was kept" in lines
    assert any(
        line.startswith("warning: the headers of 1 images state that names or similar text are burned")
        for line in lines
    )
    assert [record["image"] for record in datalist.splits["training"] if "burned_in" in record] == [1]
    _, refused = prepared(release, tmp_path / "Q", check="refuse")
    reasons = {name: reason for name, _, reason in quarantine(tmp_path / "Q")}
    assert reasons.keys() == {"P_00001 LEFT CC", "P_00001 LEFT MLO"}
    assert "(PatientBirthDate, PatientName, StudyDate)" in reasons["P_00001 LEFT CC"]
    assert "burned into its pixels" in reasons["P_00001 LEFT MLO"]
    for place in (tmp_path / "P", tmp_path / "Q"):
        content = b"".join(path.read_bytes() for path in place.iterdir())
        assert not any(word in content for word in (b"Sally", b"1950", b"20160720", b"07-20-2016"))
    assert not any("Sally" in line or "1950" in line for line in [*lines, *refused])


def test_an_interruption_costs_nothing_that_was_done(release, tmp_path, monkeypatch):
    from medfl.data.readers import mammogram_image

    real, calls = mammogram_image.read_dicom, []

    def stopped(path, **options):
        calls.append(path)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(path, **options)

    monkeypatch.setattr(mammogram_image, "read_dicom", stopped)
    with pytest.raises(KeyboardInterrupt):
        prepared(release, tmp_path / "P")
    assert not (tmp_path / "P").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".P.unfinished", "T"]
    content = (tmp_path / ".P.unfinished" / "journal.jsonl").read_text()
    assert "P_0" not in content
    _, lines = prepared(release, tmp_path / "P")
    assert "note: an earlier call was interrupted: 7 of 12 images are done, the rest follows" in lines
    assert len(calls) == 8 + 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["P", "T"]
    prepared(release, tmp_path / "Q")
    np.testing.assert_array_equal(np.load(tmp_path / "P" / "images.npy"), np.load(tmp_path / "Q" / "images.npy"))


def test_folders_that_are_not_the_data_set(made, release, tmp_path):
    out = tmp_path / "P"
    with refused(DataError, "missing_folder", path=str(tmp_path / "nowhere")):
        prepared(tmp_path / "nowhere", out)
    (tmp_path / "empty").mkdir()
    with refused(DataError, "missing_file", folder=str(tmp_path / "empty"), files=list(TABLES.values())):
        prepared(tmp_path / "empty", out)
    with refused(DataError, "no_images", path=str(tmp_path / "empty"), expected=12, found=0):
        prepared(tmp_path / "empty", out, tables=made / "csv")
    (release / "csv" / TABLES["calc", "test"]).unlink()
    with refused(DataError, "missing_file", folder=str(release), files=[TABLES["calc", "test"]]):
        prepared(release, out)
    prepared(release, out, abnormality="mass")


def test_nothing_readable_of_a_class(release, tmp_path):
    tree, lesions = read_release(release)
    for image in select_images(lesions, crop=False).images:
        for lesion in image.lesions if image.label(three=False) else ():
            for path in tree.find(lesion.image):
                path.unlink(missing_ok=True)
    reasons = {NO_FILE: 6}
    with refused(DataError, "class_without_images", classes=["malignant"], reasons=reasons):
        prepared(release, tmp_path / "P")
    assert not (tmp_path / "P").exists()


def test_masks_only(release, tmp_path):
    for _, files in films(release, crop=True):
        for path in files:
            make_dicom(path, mask_pixels())
    with refused(DataError, "no_readable_image", count=14, total=14) as error:
        prepared(release, tmp_path / "P", view="crop")
    assert "14 x only the mask of the lesion" in str(error.value)


def test_options_that_are_unknown(made, tmp_path):
    for option, what, choice in (
        ("view", "view", "roi"),
        ("abnormality", "abnormality", "mas"),
        ("check", "deidentify check", "striped"),
    ):
        with refused(SettingsError, "unknown_choice", what=what, choice=choice):
            prepared(made, tmp_path / "P", **{option: choice})
    with pytest.raises(SystemExit) as end:
        main(["prep", "cbis_ddsm", "--source", str(made), "--out", str(tmp_path / "P"), "--size", "8x8x8"])
    assert end.value.code == 2
