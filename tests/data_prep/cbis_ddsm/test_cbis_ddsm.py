"""CBIS-DDSM in every layout of the release: each image gets its own pixels, label and split."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cbis_more import copied, edit, lesions_of, write_metadata
from dicom_maker import COMPRESSED
from prepare_specs import prepare_spec
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from medfl.cli.main import main
from medfl.data.datalists import SPLITS, read_datalist
from medfl.data.readers.mammograms import breast_box, to_row
from medfl.records.datalist import Exclusion
from medfl_datasets.cbis_ddsm.release import read_release
from medfl_datasets.cbis_ddsm.selection import PATIENT_IN_TEST_PART, select_images
from medfl_datasets.cbis_ddsm.spec import CbisDdsm
from medfl_datasets.cbis_ddsm.synthetic import (
    FILM_SHAPE,
    LAYOUTS,
    ROWS,
    film_pixels,
    lesion_pixels,
    nbia_folder,
    write_tables,
    write_tree,
)
from medfl_datasets.cbis_ddsm.tables import LESION_KINDS

SYNTAXES = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, *COMPRESSED)
SMALL = {"size": (18, 12)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Write a release with synthetic tables, and return the pixels of each series."""
    top = tmp_path_factory.mktemp("cbis")
    places = write_tree(top / "release", lesions_of(write_tables(top / "csv")), syntaxes=SYNTAXES)
    return top, places


@pytest.fixture
def release(made, tmp_path):
    """Copy the release for a test that modifies it."""
    return copied(made[0], tmp_path / "copy")


def prepared(top, out, *, tables=None, options=SMALL, workers=1, **more):
    datalist = prepare_spec(CbisDdsm, top, out, tables=tables, workers=workers, **options, **more)
    return np.load(out / "images.npy"), datalist


def records(datalist):
    return {record["image"]: record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])}


def wanted(lesions, view):
    return select_images(lesions, view == "crop").images


def test_whole_images(made, tmp_path):
    top, places = made
    lines: list[str] = []
    images, datalist = prepared(top, tmp_path / "P", say=lines.append)
    assert datalist == read_datalist(tmp_path / "P")
    assert lines[0].startswith("cbis_ddsm: licence CC BY 3.0")
    assert lines[1].startswith("Please cite: Sawyer-Lee")
    assert "note: 2 images show malignant and other lesions: they count as malignant" in lines
    assert (images.dtype, images.shape) == (np.uint16, (12, 18, 12))
    by_row = records(datalist)
    for row, image in enumerate(wanted(lesions_of(top / "csv"), "full")):
        first = image.lesions[0]
        np.testing.assert_array_equal(images[row], to_row(film_pixels(places[first.image]), (18, 12)))
        malignant = any(lesion.pathology == "MALIGNANT" for lesion in image.lesions)
        kinds = "+".join(dict.fromkeys(LESION_KINDS[lesion.kind] for lesion in image.lesions))
        assert by_row[row] == {
            "image": row,
            "label": int(malignant),
            "subject_id": first.patient,
            "laterality": first.side.lower(),
            "view": first.view,
            "abnormality": kinds,
            "density": first.density,
            "split": image.split,
        }
    assert Counter(record["split"] for record in by_row.values()) == {"training": 8, "test": 4}
    assert datalist.labels == {"0": "benign", "1": "malignant"}
    assert datalist.exclusions == (Exclusion(reason=PATIENT_IN_TEST_PART, count=1),)
    assert "P_00004" not in {record["subject_id"] for record in datalist.splits["training"]}
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]


def test_the_film_of_a_mass_and_a_calcification_is_one_image(made, tmp_path):
    _, datalist = prepared(made[0], tmp_path / "P")
    (film,) = [record for record in datalist.splits["training"] if record["subject_id"] == "P_00005"]
    assert (film["label"], film["abnormality"]) == (1, "mass+calcification")


@pytest.mark.parametrize("swapped", ["none", "all", "some"])
def test_the_crop_is_distinguished_from_its_mask_by_content(made, tmp_path, swapped):
    lesions = lesions_of(made[0] / "csv")
    how = {"none": lambda place: False, "all": lambda place: True, "some": lambda place: place % 3 == 0}[swapped]
    places = write_tree(tmp_path / "T", lesions, swapped=how)
    images, datalist = prepared(tmp_path / "T", tmp_path / "P", tables=made[0] / "csv", view="crop")
    chosen = wanted(lesions, "crop")
    assert len(images) == len(chosen) == sum(len(rows) for rows in ROWS.values()) - 1
    for row, image in enumerate(chosen):
        pixels = lesion_pixels(places[image.lesions[0].crop])
        np.testing.assert_array_equal(images[row], to_row(pixels, (18, 12)))
        record = records(datalist)[row]
        assert (record["label"], record["lesion"]) == (
            int(image.lesions[0].pathology == "MALIGNANT"),
            image.lesions[0].number,
        )
    assert datalist.name == "cbis_ddsm-crop"


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("view", ["full", "crop"])
def test_every_layout_gives_the_same_images(made, tmp_path, layout, view):
    lesions = lesions_of(made[0] / "csv")
    write_tree(tmp_path / "T", lesions, layout)
    images, datalist = prepared(tmp_path / "T", tmp_path / "P", tables=made[0] / "csv", view=view)
    expected, other = prepared(made[0], tmp_path / "Q", view=view)
    assert datalist == other
    if layout == "kaggle":  # 8 bits and JPEG
        assert np.abs(images.astype(int) - expected).mean() < 0.02 * 65535
    else:
        np.testing.assert_array_equal(images, expected)


def test_metadata_leads_to_folders_that_no_rule_finds(made, tmp_path):
    lesions = lesions_of(made[0] / "csv")
    places = write_tree(tmp_path / "T", lesions)
    folders = {}
    for number, series in enumerate(places):
        full = any(lesion.image == series for lesion in lesions)
        old = next(
            path for path in [nbia_folder(series, text) for text in NAMES[full]] if (tmp_path / "T" / path).is_dir()
        )
        folders[series] = Path("moved", f"box {number}")
        (tmp_path / "T" / "moved").mkdir(exist_ok=True)
        os.rename(tmp_path / "T" / old, tmp_path / "T" / folders[series])
    write_metadata(tmp_path / "T", folders)
    images, _ = prepared(tmp_path / "T", tmp_path / "P", tables=made[0] / "csv")
    np.testing.assert_array_equal(images, prepared(made[0], tmp_path / "Q")[0])


NAMES = {True: ["full mammogram images"], False: ["ROI mask images", "cropped images"]}


def test_three_classes_and_one_kind_of_lesion(made, tmp_path):
    _, datalist = prepared(made[0], tmp_path / "P", three_classes=True)
    assert datalist.labels == {"0": "benign without callback", "1": "benign", "2": "malignant"}
    assert datalist.counts()["training"] == {"0": 3, "1": 1, "2": 4}
    _, masses = prepared(made[0], tmp_path / "M", abnormality="mass")
    assert {record["abnormality"] for record in records(masses).values()} == {"mass"}
    assert "P_00004" in {record["subject_id"] for record in masses.splits["training"]}, "masses alone do not leak"
    assert masses.exclusions == ()


def test_right_breasts_are_mirrored_on_request(made, tmp_path):
    plain, datalist = prepared(made[0], tmp_path / "P")
    aligned, other = prepared(made[0], tmp_path / "Q", options=SMALL | {"align": True})
    for row, record in records(datalist).items():
        expected = plain[row][:, ::-1] if record["laterality"] == "right" else plain[row]
        np.testing.assert_array_equal(aligned[row], expected)
    assert other.extra["reading"] == {"crop_breast": False, "align": True, "voi": False}


def test_the_breast_is_cut_out_of_whole_images_only(made, tmp_path):
    pytest.importorskip("skimage")
    cropping = SMALL | {"crop_breast": True}
    images, _ = prepared(made[0], tmp_path / "P", options=cropping)
    pixels = film_pixels(0)
    rows, columns = breast_box(pixels)
    assert (rows, columns) != (slice(0, FILM_SHAPE[0]), slice(0, FILM_SHAPE[1]))
    assert (images[0] != to_row(pixels, (18, 12))).any()
    np.testing.assert_array_equal(images[0], to_row(pixels, (18, 12), crop=True))
    crops, _ = prepared(made[0], tmp_path / "C", options=cropping, view="crop")
    np.testing.assert_array_equal(crops, prepared(made[0], tmp_path / "D", view="crop")[0])


def test_dark_and_light_exchanged(release, made, tmp_path):
    tree, lesions = read_release(release)
    (path,) = tree.find(lesions[0].image)
    edit(path, PhotometricInterpretation="MONOCHROME1")
    images, _ = prepared(release, tmp_path / "P")
    np.testing.assert_array_equal(images[0], to_row(film_pixels(0), (18, 12), inverted=True))
    np.testing.assert_array_equal(images[1:], prepared(made[0], tmp_path / "Q")[0][1:])


def test_the_whole_way_on_the_command_line(made, tmp_path, capsys):
    words = ["prep", "cbis_ddsm", "--source", made[0], "--out", tmp_path / "P", "--size", "18x12", "--workers", "2"]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    assert printed.out.splitlines()[0].endswith("8 training, 0 validation, 4 test images of 2 classes")
    np.testing.assert_array_equal(np.load(tmp_path / "P" / "images.npy"), prepared(made[0], tmp_path / "Q")[0])
    for path in (tmp_path / "P" / "datalist.json", tmp_path / "P" / "images.npy"):
        assert b"1.3.6.1.4.1" not in path.read_bytes(), "no UIDs either"


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_real_tables_and_forty_images_in_each_transfer_syntax(tmp_path, syntax):
    """Check the real case descriptions, with synthetic pixels for some of their lesions."""
    real = Path(os.environ.get("MEDFL_DATA", "nowhere"), "cbis_ddsm")
    if not real.is_dir():
        pytest.skip("needs the case descriptions in $MEDFL_DATA/cbis_ddsm")
    lesions = lesions_of(real)
    apart = [lesion for lesion in lesions if lesion.crop != lesion.mask][:6]
    some = [*lesions[:12], *apart, *lesions[1400:1410], *lesions[1800:1810], *lesions[-10:]]
    places = write_tree(tmp_path / "T", some, syntaxes=[syntax])
    lines: list[str] = []
    images, datalist = prepared(tmp_path / "T", tmp_path / "P", tables=real, view="crop", say=lines.append)
    chosen = [image for image in wanted(lesions, "crop") if image.lesions[0] in some]
    assert len(images) == len(chosen) > 40
    for row, image in enumerate(chosen):
        lesion = image.lesions[0]
        np.testing.assert_array_equal(images[row], to_row(lesion_pixels(places[lesion.crop]), (18, 12)))
        assert records(datalist)[row]["subject_id"] == lesion.patient
    missing = 2781 + 704 - len(chosen)
    assert f"warning: {missing} of 3485 images of the tables have no file" in lines
    assert any(line.startswith("note: 31 patients are in the training part of one kind") for line in lines)
    assert len((tmp_path / "P" / "quarantine.csv").read_text().splitlines()) == 1 + missing
    assert not any(line.startswith("warning: mass") for line in lines), "the tables have the published sizes"
