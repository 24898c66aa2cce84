"""White blood cells: exclusions that are listed, and input that is refused."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
import yaml
from cells import cell
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare as prepare_dataset
from medfl.errors import DataError, SettingsError
from medfl.settings import read_settings
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.files import read_cell
from medfl_datasets.bloodcells.labels import DEFAULT_LABEL_MAP, read_label_map
from medfl_datasets.bloodcells.spec import BloodCells
from medfl_datasets.bloodcells.synthetic import write_acevedo, write_bodzas, write_matek

HOW = {"size": 4, "workers": 1}
SPECS = {"acevedo": acevedo.Acevedo, "matek": matek.Matek, "bodzas": bodzas.Bodzas}
WRITE = {"acevedo": write_acevedo, "matek": write_matek, "bodzas": write_bodzas}


def pooled(out, **options):
    """Prepare several releases."""
    return prepare_dataset(read_settings(BloodCells, {"size": 4, **options}, where="the test"), out, workers=1)


def quarantine(pool):
    rows = list(csv.reader((pool / "quarantine.csv").open()))
    assert rows[0] == ["image", "reason"]
    return dict(rows[1:])


def test_images_of_odd_kinds(tmp_path):
    top = write_acevedo(tmp_path)
    odd = top / "basophil"
    cell(odd / "BA_1.png", mode="RGBA")
    cell(odd / "BA_2.png", mode="L")
    cell(odd / "BA_3.tif", mode="CMYK")
    Image.open(cell(odd / "BA_4.png")).convert("P").save(odd / "BA_4.png")
    Image.fromarray(np.arange(144, dtype=np.uint16).reshape(12, 12) * 400).save(odd / "BA_5.png")
    cell(odd / "BA_6.png", (1, 1))
    cell(odd / "BA_7.png", (1, 40))
    whole = cell(odd / "BA_8.jpg", (40, 40)).read_bytes()
    (odd / "BA_8.jpg").write_bytes(whole[: len(whole) // 2])
    (odd / "BA_9.jpg").write_bytes(b"")
    cell(odd / "EO_1.jpg")
    prepare_spec(acevedo.Acevedo, top, tmp_path / "P", **HOW)
    reasons = quarantine(tmp_path / "P")
    assert {name.removeprefix("acevedo/basophil/").split(".")[0] for name in reasons} == {
        *("BA_5", "BA_6", "BA_7", "BA_8", "BA_9", "EO_1")
    }
    for name, reason in {
        "BA_5.png": "expected an image of 8 bits a channel, got more",
        "BA_6.png": "expected 8 pixels or more along each edge, got 1",
        "BA_7.png": "expected 8 pixels or more along each edge, got 1",
        "BA_8.jpg": "the image file is damaged",
        "BA_9.jpg": "the file is not an image of the kind that its extension states",
        "EO_1.jpg": "the name does not start with a cell type of its folder",
    }.items():
        assert reason in reasons[f"acevedo/basophil/{name}"]
    datalist = read_datalist(tmp_path / "P")
    assert len(np.load(tmp_path / "P" / "images.npy")) == sum(map(len, datalist.splits.values()))
    assert {entry.reason for entry in datalist.exclusions} > set(reasons.values())
    grey = read_cell(odd / "BA_2.png", 12).pixels
    assert (grey == np.asarray(Image.open(odd / "BA_2.png"))[..., None]).all(), "grey is repeated"
    for name in ("BA_1.png", "BA_4.png"):
        expected = np.asarray(Image.open(odd / name).convert("RGB"))
        np.testing.assert_array_equal(read_cell(odd / name, 12).pixels, expected)


def test_images_and_annotations_that_do_not_fit(tmp_path):
    top = write_matek(tmp_path)
    (top / "MYO" / "MYO_0003.tiff").unlink()
    cell(top / "MYO" / "MYO_0009.tiff")
    cell(top / "BAS" / "BAS_0009.tiff")
    with (top / "annotations.dat").open("a") as file:
        file.write("\nBAS/BAS_0009.tiff EOS nan nan\n")
    prepare_spec(matek.Matek, tmp_path, tmp_path / "P", **HOW)
    assert quarantine(tmp_path / "P") == {
        "matek/MYO/MYO_0009.tiff": "annotations.dat has no line for the image",
        "matek/BAS/BAS_0009.tiff": "annotations.dat says EOS, the folder BAS",
        "matek/MYO/MYO_0003": "the image has no file",
    }
    assert len(np.load(tmp_path / "P" / "images.npy")) == 17


@pytest.mark.parametrize(
    ("line", "code", "fields"),
    [
        ("BAS/BAS_0009.tiff BAS nan", "wrong_cell_count", {"line": 19, "expected": 4, "found": 3}),
        ("BAS/BAS_0009.tiff BSA nan nan", "wrong_label", {"line": 19, "label": "BSA"}),
        ("BAS/BAS_0001.tiff BAS nan nan", "duplicate_row", {"line": 19}),
        ("\udcff", "unreadable_file", {"cause": "UnicodeDecodeError"}),
        (None, "missing_file", {}),
    ],
)
def test_a_table_that_is_wrong_or_not_there(tmp_path, line, code, fields):
    top = write_matek(tmp_path)
    table = top / "annotations.dat"
    if line is None:
        table.unlink()
    else:
        with table.open("a", errors="surrogateescape") as file:
            file.write(line + "\n")
    with refused(DataError, code, path=str(table), **fields):
        prepare_spec(matek.Matek, top, tmp_path / "P", **HOW)
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize("name", SPECS)
def test_folders_that_are_wrong_or_not_there(tmp_path, name):
    top, out = WRITE[name](tmp_path), tmp_path / "P"
    class_folder = sorted(folder for folder in top.iterdir() if folder.is_dir())[1]
    with refused(DataError, "folder_of_one_class", path=str(class_folder)):
        prepare_spec(SPECS[name], class_folder, out, **HOW)
    (tmp_path / "empty").mkdir()
    with refused(DataError, "missing_class_folder", path=str(tmp_path / "empty")):
        prepare_spec(SPECS[name], tmp_path / "empty", out, **HOW)
    with refused(DataError, "missing_folder", path=str(tmp_path / "nowhere")):
        prepare_spec(SPECS[name], tmp_path / "nowhere", out, **HOW)
    cell(top / "basofil" / "0.bmp")
    with refused(DataError, "unknown_class_folder", release=name, folder="basofil"):
        prepare_spec(SPECS[name], top, out, **HOW)
    shutil.rmtree(top / "basofil")
    for path in class_folder.iterdir():
        path.unlink()
    (class_folder / "notes.txt").write_text("none")
    with refused(DataError, "no_images", release=name, folder=class_folder.name):
        prepare_spec(SPECS[name], top, out, **HOW)
    shutil.rmtree(class_folder)
    with refused(DataError, "missing_class_folder", release=name):
        prepare_spec(SPECS[name], top, out, **HOW)
    assert not out.exists()
    (top / "__MACOSX").mkdir()
    with refused(DataError, "missing_class_folder", release=name):
        prepare_spec(SPECS[name], top, out, **HOW)


@pytest.mark.parametrize(
    ("what", "choice"),
    [("preset", "papper"), ("labels", "klass")],
)
def test_unknown_choices(tmp_path, what, choice):
    with refused(SettingsError, "unknown_choice", what=what, choice=choice):
        prepare_spec(acevedo.Acevedo, tmp_path, tmp_path / "P", **HOW, **{what: choice})


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"size": 0}, {"settings": ["size"]}),
        ({"test_share": 1.0}, {"setting": "test_share", "found": 1.0}),
        ({"test_share": -0.1}, {"setting": "test_share", "found": -0.1}),
    ],
)
def test_impossible_sizes_and_shares(options, fields):
    with refused(SettingsError, "setting_out_of_range", **fields):
        read_settings(bodzas.Bodzas, {"source": "nowhere", **options}, where="the test")


def changed(folder, change):
    """Write a copy of medfl's label map with a change."""
    content = yaml.safe_load(DEFAULT_LABEL_MAP.read_text())
    change(content)
    path = folder / "map.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (
            lambda map_: map_["sources"]["bodzas"].pop("normoblast"),
            "missing_cell_type",
            {"release": "bodzas", "cell_types": ["normoblast"]},
        ),
        (
            lambda map_: map_["sources"]["bodzas"].update(band=None),
            "unknown_cell_type",
            {"release": "bodzas", "cell_type": "band"},
        ),
        (lambda map_: map_["sources"].pop("bodzas"), "missing_release", {"release": "bodzas"}),
        (lambda map_: map_["classes"].remove("basophil"), "unknown_class", {"name": "basophil"}),
        (lambda map_: map_["classes"].append("mast cell"), "unused_class", {"classes": ["mast cell"]}),
        (lambda map_: map_["classes"].append("basophil"), "duplicate_class", {}),
        (lambda map_: map_.update(source={}), "unknown_setting", {"settings": ["source"]}),
        (
            lambda map_: map_["sources"]["bodzas"].update(basophil=3),
            "wrong_setting_type",
            {"settings": ["sources.bodzas.basophil"]},
        ),
    ],
)
def test_label_maps_that_are_wrong(tmp_path, change, code, fields):
    folders = {"bodzas": write_bodzas(tmp_path)}
    with refused(SettingsError, code, **fields):
        pooled(tmp_path / "P", **folders, label_map=changed(tmp_path, change))
    assert not (tmp_path / "P").exists()


def test_files_that_are_no_label_map(tmp_path):
    path = tmp_path / "map.yaml"
    with refused(SettingsError, "unreadable_file", what="label map", path=str(path)):
        read_label_map(path)
    path.write_text("classes: [a, b]\nclasses: [b, a]\n")
    with refused(SettingsError, "invalid_yaml", what="label map", path=str(path)) as error:
        read_label_map(path)
    assert "'classes'" in str(error.value)


def test_a_label_map_of_ones_own_leaves_out_what_is_null(tmp_path):
    folders = {"bodzas": write_bodzas(tmp_path)}
    content = {
        "classes": ["mature", "blast"],
        "sources": {"bodzas": dict.fromkeys(bodzas.PUBLISHED) | {"monocyte": "mature", "myeloblast": "blast"}},
    }
    path = tmp_path / "map.yaml"
    path.write_text(yaml.safe_dump(content))
    datalist = pooled(tmp_path / "P", **folders, label_map=path)
    assert datalist.labels == {"0": "mature", "1": "blast"}
    assert {record["cell"]: record["label"] for record in datalist.splits["training"]} == {
        "monocyte": 0,
        "myeloblast": 1,
    }
    left_out = {entry.reason: entry.count for entry in datalist.exclusions}
    assert left_out["neutrophil segment of bodzas, which has no class"] == 3
    with refused(SettingsError, "unknown_setting", settings=["bodsas"]):
        pooled(tmp_path / "Q", bodsas=folders["bodzas"])
