"""White blood cells: Acevedo-20, Matek-19 and Bodzas-23."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cells import check_pixels, exclusions, listed, records
from PIL import Image
from prepare_specs import prepare_spec

from medfl.data.datalists import read_datalist
from medfl_datasets.bloodcells import acevedo, bodzas, matek
from medfl_datasets.bloodcells.split import select_test_images
from medfl_datasets.bloodcells.synthetic import ACEVEDO, BODZAS, MATEK, write_acevedo, write_bodzas, write_matek

HOW = {"size": 12, "workers": 1}
PAPER_TRAIN = {
    **{"BA": 974, "EO": 2493, "ERB": 1240, "LY": 971, "MO": 1136},
    **{"MMY": 812, "MY": 909, "PMY": 473, "BNE": 1306, "SNE": 1316},
}


def paper_names():
    """Return the file names of the whole release, as published."""
    tree = {folder: [] for folder in sorted(acevedo.FOLDERS)}
    for folder, codes in acevedo.FOLDERS.items():
        for code in codes:
            tree[folder] += [f"{code}_{number}.jpg" for number in range(acevedo.RELEASE.published[code])]
    tree["neutrophil"].insert(0, ".DS_169665.jpg")
    return tree


@pytest.fixture(scope="module")
def whole():
    """List the whole release by its file names."""
    return acevedo.cells_of(paper_names(), Path("release"))


@pytest.mark.parametrize("copies", [0, 16])
def test_the_papers_preset_gives_its_numbers_for_the_whole_release(whole, copies):
    assert len(whole.cells) == 17092
    assert list(whole.skipped.values()) == [1]
    assert acevedo.RELEASE.deviation(whole.cells) is None
    classes = acevedo.LABEL_MAPS["subclass"].sources["acevedo"]
    codes = [cell.code for cell in whole.cells if classes[cell.code] is not None]
    units = list(range(len(codes)))
    for pair in range(copies):
        units[1 + 2 * pair] = units[2 * pair]
    for code in ("BNE", "EO")[: 2 * bool(copies)]:  # the pair in two classes
        units[codes.index(code) + 40] = -1
    test_images = select_test_images(codes, units, 0.2, 0)
    train = Counter(code for code, test in zip(codes, test_images, strict=True) if not test)
    assert train == PAPER_TRAIN
    assert (sum(train.values()), sum(test_images)) == (11630, 2913)
    sides = [{unit for unit, test in zip(units, test_images, strict=True) if test is side} for side in (True, False)]
    assert not sides[0] & sides[1]
    others = select_test_images(codes, units, 0.2, 1)
    assert test_images != others, "another seed tests other images"
    assert sum(others) == 2913


def test_a_split_does_not_depend_on_other_classes():
    alone = select_test_images(["a"] * 10, range(10), 0.3, 0)
    assert select_test_images(["a"] * 10 + ["b"] * 7, range(17), 0.3, 0)[:10] == alone
    assert sum(alone) == 3
    assert select_test_images(["a"] * 10, range(10), 0, 0) == [False] * 10
    assert select_test_images(["a"] * 4, [1, 1, 1, 1], 0.5, 0) == [False] * 4, "copies stay together"
    assert select_test_images(["a"], [1], 0.5, 0) == [False], "one image is left to train on"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """Write Acevedo-20 with one copy in the same class and one in another class."""
    top = write_acevedo(tmp_path_factory.mktemp("acevedo"))
    shutil.copy(top / "basophil" / "BA_100001.jpg", top / "basophil" / "BA_200000.jpg")
    shutil.copy(top / "neutrophil" / "BNE_100002.jpg", top / "eosinophil" / "EO_200000.jpg")
    return top


def test_acevedo_by_class_without_copies(copied, tmp_path):
    lines: list[str] = []
    prepare_spec(acevedo.Acevedo, copied.parent, tmp_path / "P", **HOW, say=lines.append)
    datalist = read_datalist(tmp_path / "P")
    empty_classes = {"BA_200000.jpg", "BNE_100002.jpg", "EO_200000.jpg"}
    files = [path for path in listed(copied, ".jpg") if path.name not in empty_classes]
    check_pixels(tmp_path / "P", files)
    entries = records(datalist)
    assert list(datalist.labels.values()) == sorted(acevedo.FOLDERS)
    assert [datalist.labels[str(record["label"])] for record in entries] == [path.parent.name for path in files]
    assert [record["cell"] for record in entries] == [path.name.split("_")[0] for path in files]
    assert len({record["subject_id"] for record in entries}) == len(entries)
    train = Counter(record["label"] for record in entries if record["split"] == "training")
    assert train == {
        label: max(1, int(0.8 * count)) for label, count in Counter(record["label"] for record in entries).items()
    }
    assert exclusions(datalist) == {
        "a stray file whose name begins with a dot": 1,
        "a byte-identical copy of another image of its class": 1,
        "a byte-identical copy of an image of another class": 2,
    }
    total = sum(ACEVEDO.values())
    assert lines[:2] == [f"acevedo: licence {acevedo.RELEASE.licence}", f"Please cite: {acevedo.RELEASE.citation}"]
    assert any(f"note: {total + 2} images before, {total - 1} after" in line for line in lines)
    assert any("does not state which cells are of one patient" in line for line in lines)
    assert any("the release has 17092 images" in line for line in lines)
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]


def test_the_papers_preset_keeps_copies_on_one_side(copied, tmp_path):
    datalist = prepare_spec(acevedo.Acevedo, copied, tmp_path / "P", **HOW, preset="paper")
    entries = records(datalist)
    kinds = [code for code in ACEVEDO if code not in ("IG", "NEUTROPHIL", "PLATELET")]
    assert Counter(r["cell"] for r in entries) == {code: ACEVEDO[code] for code in kinds} | {"BA": 6, "EO": 7}
    assert (datalist.name, datalist.num_classes, datalist.extra["copies"]) == ("acevedo-subclass", 10, "kept")
    counts = Counter(record["subject_id"] for record in entries)
    copies = [record for record in entries if counts[record["subject_id"]] > 1]
    assert sorted(record["cell"] for record in copies) == ["BA", "BA", "BNE", "EO"]
    assert {record["split"] for record in copies} == {"training"}
    assert exclusions(datalist)["PLATELET of acevedo, which has no class"] == 1
    eight = prepare_spec(acevedo.Acevedo, copied, tmp_path / "Q", **HOW, preset="paper", labels="class")
    assert (eight.name, eight.num_classes, len(records(eight))) == ("acevedo", 8, sum(ACEVEDO.values()) + 2)


def test_matek(tmp_path):
    top = write_matek(tmp_path)
    shutil.move(top / "annotations.dat", tmp_path)  # the Cancer Imaging Archive offers it apart
    datalist = prepare_spec(matek.Matek, top, tmp_path / "P", **HOW)
    files = listed(top, ".tiff")
    check_pixels(tmp_path / "P", files)
    first = np.load(tmp_path / "P" / "images.npy")[0]
    np.testing.assert_array_equal(first, np.asarray(Image.open(files[0]))[..., :3], "colours as they are, no alpha")
    entries = records(datalist)
    assert [record["cell"] for record in entries] == [path.parent.name for path in files]
    assert datalist.labels[str(entries[-1]["label"])] == "promyelocyte"
    assert datalist.num_classes == len(MATEK) == 15
    later = [{key: record[key] for key in ("second", "third") if key in record} for record in entries]
    assert [entry for entry in later if entry] == [{"second": "MON"}, {"second": "MON"}, {"third": "MYO"}]
    assert datalist.licence == "matek: CC BY 3.0"


def test_bodzas(tmp_path):
    top = write_bodzas(tmp_path)
    (top / "Neutrophile Band" / "Thumbs.db").write_bytes(b"")
    datalist = prepare_spec(bodzas.Bodzas, top, tmp_path / "P", **HOW)
    files = listed(top, ".bmp")
    assert len({path.name for path in files}) == max(BODZAS.values()), "names begin anew in each class"
    check_pixels(tmp_path / "P", files)
    classes = [datalist.labels[str(record["label"])] for record in records(datalist)]
    assert classes == [path.parent.name.lower().replace("phile", "phil") for path in files]
    assert exclusions(datalist) == {"a file without the ending of an image": 1}


@pytest.mark.parametrize(
    ("folder", "known"),
    [
        ("BASOPHILE", "basophil"),
        ("Eosinophils", "eosinophil"),
        ("neutrophil segment", "neutrophil segment"),
        ("Neutrophile_Segmented", "neutrophil segment"),
        ("band neutrophils", "neutrophil band"),
        ("Erythroblast", "normoblast"),
        ("platelet", None),
        ("", None),
    ],
)
def test_folders_of_bodzas_by_other_names(folder, known):
    assert bodzas.class_of(folder) == known


def test_real_images(tmp_path):
    source = Path(os.environ.get("MEDFL_DATA", "nowhere"), "acevedo")
    if not source.is_dir():
        pytest.skip("needs real images in the folder acevedo of the one that MEDFL_DATA names")
    lines: list[str] = []
    datalist = prepare_spec(acevedo.Acevedo, source, tmp_path / "P", size=24, workers=1, say=lines.append)
    assert set(Counter(record["label"] for record in records(datalist)).values()) == {40}
    assert {split: len(part) for split, part in datalist.splits.items()} == {
        **{"training": 8 * 32, "validation": 0, "test": 8 * 8}
    }
    assert exclusions(datalist) == {
        "a stray file whose name begins with a dot": 1,
        "a byte-identical copy of an image of another class": 2,
    }
    assert any("note: 322 images before, 320 after" in line for line in lines)
    assert Counter(cell.code for cell in acevedo.find(source).cells) == {
        **{"BA": 40, "EO": 41, "ERB": 40, "IG": 3, "LY": 40, "MO": 40, "MMY": 10, "MY": 22, "PMY": 5},
        **{"BNE": 17, "SNE": 24, "PLATELET": 40},
    }
