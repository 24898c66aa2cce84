"""White blood cells: what is left out and listed, and what is refused."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
import yaml
from cells import cell
from PIL import Image
from prepare_specs import prepare_spec

from medfl.data.datalists import read_datalist
from medfl.errors import DataError, SettingsError
from medfl.ingest.prepare import prepare as prepare_dataset
from medfl.settings import read_settings
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.files import read_cell
from medfl_datasets.bloodcells.labels import SHIPPED, read_label_map
from medfl_datasets.bloodcells.phantom import write_acevedo, write_bodzas, write_matek
from medfl_datasets.bloodcells.spec import BloodCells

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
        "BA_9.jpg": "the file is no image of the kind that the end of its name says",
        "EO_1.jpg": "the name does not begin with a kind of cell of its folder",
    }.items():
        assert reason in reasons[f"acevedo/basophil/{name}"]
    datalist = read_datalist(tmp_path / "P")
    assert len(np.load(tmp_path / "P" / "images.npy")) == sum(map(len, datalist.splits.values()))
    assert {entry["reason"] for entry in datalist.extra["exclusions"]} > set(reasons.values())
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
        "matek/MYO/MYO_0003": "the image is not there",
    }
    assert len(np.load(tmp_path / "P" / "images.npy")) == 17


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("BAS/BAS_0009.tiff BAS nan", r"expected a path, a label and two later annotations in line 19 of .* 3 entries"),
        ("BAS/BAS_0009.tiff BSA nan nan", r"unknown label 'BSA' in line 19 of .*Did you mean 'BAS'"),
        ("BAS/BAS_0001.tiff BAS nan nan", r"line 19 of .* is about the same image as an earlier one"),
        ("\udcff", r"could not read .*annotations.dat as text"),
        (None, r"expected annotations.dat of Matek-19 in .* or one folder above, there is none"),
    ],
)
def test_a_table_that_is_wrong_or_not_there(tmp_path, line, message):
    top = write_matek(tmp_path)
    table = top / "annotations.dat"
    if line is None:
        table.unlink()
    else:
        with table.open("a", errors="surrogateescape") as file:
            file.write(line + "\n")
    with pytest.raises(DataError, match=message):
        prepare_spec(matek.Matek, top, tmp_path / "P", **HOW)
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize("name", SPECS)
def test_folders_that_are_wrong_or_not_there(tmp_path, name):
    top, out = WRITE[name](tmp_path), tmp_path / "P"
    class_folder = sorted(folder for folder in top.iterdir() if folder.is_dir())[1]
    with pytest.raises(DataError, match=r"is the folder of one class of .*Give the folder that holds it"):
        prepare_spec(SPECS[name], class_folder, out, **HOW)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected folders of classes of .* or one folder below, there are none"):
        prepare_spec(SPECS[name], tmp_path / "empty", out, **HOW)
    with pytest.raises(DataError, match=r"expected the folder of .*nowhere, there is none"):
        prepare_spec(SPECS[name], tmp_path / "nowhere", out, **HOW)
    cell(top / "basofil" / "0.bmp")
    with pytest.raises(DataError, match="the folder 'basofil' is no class of"):
        prepare_spec(SPECS[name], top, out, **HOW)
    shutil.rmtree(top / "basofil")
    for path in class_folder.iterdir():
        path.unlink()
    (class_folder / "notes.txt").write_text("none")
    with pytest.raises(DataError, match=f"there is no image in the folder '{class_folder.name}'"):
        prepare_spec(SPECS[name], top, out, **HOW)
    shutil.rmtree(class_folder)
    with pytest.raises(DataError, match="lacks the folders of the classes"):
        prepare_spec(SPECS[name], top, out, **HOW)
    assert not out.exists()
    (top / "__MACOSX").mkdir()
    with pytest.raises(DataError, match="lacks the folders of the classes"):
        prepare_spec(SPECS[name], top, out, **HOW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "papper"}, "unknown preset 'papper'. Did you mean 'paper'"),
        ({"labels": "klass"}, "unknown labels 'klass'. Did you mean 'class'"),
    ],
)
def test_unknown_choices(tmp_path, options, message):
    with pytest.raises(SettingsError, match=message):
        prepare_spec(acevedo.Acevedo, tmp_path, tmp_path / "P", **HOW, **options)


@pytest.mark.parametrize("options", [{"size": 0}, {"test_share": 1.0}, {"test_share": -0.1}])
def test_impossible_sizes_and_shares(options):
    with pytest.raises(SettingsError, match=r"expected 0 <= test share < 1, got|'size': expected a whole number"):
        read_settings(bodzas.Bodzas, {"source": "nowhere", **options}, where="the test")


def changed(folder, change):
    """A copy of the shipped label map with a change."""
    content = yaml.safe_load(SHIPPED.read_text())
    change(content)
    path = folder / "map.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda map_: map_["sources"]["bodzas"].pop("normoblast"), "lacks these kinds of cells of bodzas: normoblast"),
        (lambda map_: map_["sources"]["bodzas"].update(band=None), "names 'band', no kind of cell of bodzas"),
        (lambda map_: map_["sources"].pop("bodzas"), "says nothing of bodzas"),
        (lambda map_: map_["classes"].remove("basophil"), "lacks 'basophil', which a kind of cell belongs to"),
        (lambda map_: map_["classes"].append("mast cell"), "no kind of cell that belongs to the classes mast cell"),
        (lambda map_: map_["classes"].append("basophil"), "a class stands twice"),
        (lambda map_: map_.update(source={}), "unknown option 'source'. Did you mean 'sources'"),
        (lambda map_: map_["sources"]["bodzas"].update(basophil=3), r"sources.bodzas.basophil"),
    ],
)
def test_label_maps_that_are_wrong(tmp_path, change, message):
    folders = {"bodzas": write_bodzas(tmp_path)}
    with pytest.raises(SettingsError, match=message):
        pooled(tmp_path / "P", **folders, label_map=changed(tmp_path, change))
    assert not (tmp_path / "P").exists()


def test_files_that_are_no_label_map(tmp_path):
    path = tmp_path / "map.yaml"
    with pytest.raises(SettingsError, match=r"expected a label map at .*map\.yaml"):
        read_label_map(path)
    path.write_text("classes: [a, b]\nclasses: [b, a]\n")
    with pytest.raises(SettingsError, match="the key 'classes' stands twice"):
        read_label_map(path)


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
    left_out = {entry["reason"]: entry["count"] for entry in datalist.extra["exclusions"]}
    assert left_out["neutrophil segment of bodzas, which has no class"] == 3
    with pytest.raises(SettingsError, match="unknown option 'bodsas'. Did you mean 'bodzas'"):
        pooled(tmp_path / "Q", bodsas=folders["bodzas"])
