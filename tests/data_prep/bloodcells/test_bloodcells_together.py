"""White blood cells of three releases as one task, and the commands."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
from cells import check_pixels, exclusions, listed, records

from medfl.cli.main import main
from medfl.data.ingest.prepare import prepare as prepare_dataset
from medfl.data.sites import load_sites
from medfl.objectives import Multiclass
from medfl_datasets.bloodcells.acevedo import LABEL_MAPS
from medfl_datasets.bloodcells.labels import read_label_map
from medfl_datasets.bloodcells.spec import BloodCells
from medfl_datasets.bloodcells.synthetic import ACEVEDO, BODZAS, MATEK, write_acevedo, write_bodzas, write_matek


def prepare(folders, out, **options):
    return prepare_dataset(BloodCells(**folders, size=12), out, workers=1, **options)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """Write all three releases and return their folders."""
    place = tmp_path_factory.mktemp("three")
    return {"acevedo": write_acevedo(place), "matek": write_matek(place), "bodzas": write_bodzas(place)}


def test_three_releases_have_one_set_of_classes(three, tmp_path):
    datalist = prepare(three, tmp_path / "P")
    entries = records(datalist)
    assert datalist.num_classes == 13
    by_class = Counter((record["source"], datalist.labels[str(record["label"])]) for record in entries)
    assert by_class["acevedo", "basophil"] == 5
    assert by_class["matek", "basophil"] == 2
    assert by_class["bodzas", "basophil"] == 2
    assert by_class["matek", "promyelocyte"] == 2, "bilobed ones, too"
    assert by_class["matek", "myeloblast"] == 3
    assert by_class["bodzas", "erythroblast"] == 1
    assert by_class["bodzas", "segmented neutrophil"] == 3
    assert by_class["acevedo", "myeloblast"] == 0
    sizes = Counter(record["source"] for record in entries)
    assert sizes == {
        "acevedo": sum(ACEVEDO.values()) - 3,
        "matek": sum(MATEK.values()) - 2,
        "bodzas": sum(BODZAS.values()),
    }
    left_out = {name.split(",")[0] for name in exclusions(datalist) if "no class" in name}
    assert left_out == {
        *("IG of acevedo", "NEUTROPHIL of acevedo", "PLATELET of acevedo", "KSC of matek", "LYA of matek")
    }
    kept = [path for name, suffix in (("acevedo", ".jpg"), ("matek", ".tiff")) for path in listed(three[name], suffix)]
    kept = [path for path in kept if not path.name.startswith(("IG", "NEUTROPHIL", "PLATELET", "KSC", "LYA"))]
    check_pixels(tmp_path / "P", kept + listed(three["bodzas"], ".bmp"))
    assert datalist.licence == "acevedo: CC BY 4.0; matek: CC BY 3.0; bodzas: CC BY 4.0"


def test_a_class_has_the_same_number_whatever_releases_there_are(three, tmp_path):
    lines: list[str] = []
    datalist = prepare({"bodzas": three["bodzas"]}, tmp_path / "P", say=lines.append)
    labels = {record["cell"]: record["label"] for record in records(datalist)}
    whole = read_label_map()
    assert labels == {cell: whole.classes.index(name) for cell, name in whole.sources["bodzas"].items()}
    assert datalist.num_classes == len(whole.classes)
    assert any("no image of the classes metamyelocyte, myelocyte, promyelocyte, monoblast" in line for line in lines)


def test_copies_are_found_across_releases(three, tmp_path):
    ours = tmp_path / "bodzas"
    shutil.copytree(three["bodzas"], ours)
    basophil, monocyte = (three["acevedo"] / name for name in ("basophil/BA_100000.jpg", "monocyte/MO_100000.jpg"))
    shutil.copy(basophil, ours / "Basophile" / "7.jpg")
    shutil.copy(monocyte, ours / "Basophile" / "8.jpg")
    datalist = prepare({"bodzas": ours, "acevedo": three["acevedo"]}, tmp_path / "P")
    reasons = exclusions(datalist)
    assert reasons["a byte-identical copy of another image of its class"] == 1
    assert reasons["a byte-identical copy of an image of another class"] == 2
    counts = Counter((record["source"], record["cell"]) for record in records(datalist))
    assert counts["acevedo", "BA"] == ACEVEDO["BA"], "the first of two copies stays"
    assert counts["acevedo", "MO"] == 0
    assert counts["bodzas", "basophil"] == BODZAS["Basophile"]


def test_from_the_commands_to_a_site_for_each_release(three, tmp_path, capsys):
    pool, sites = tmp_path / "P", tmp_path / "D"

    def medfl(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        return end.value.code, capsys.readouterr()

    folders = [part for name, folder in three.items() for part in (f"--{name}", folder)]
    status, printed = medfl(
        "prep", "bloodcells", *folders, "--out", pool, "--size", 8, "--test-share", 0, "--workers", 1
    )
    assert status == 0, printed.err
    total = sum(ACEVEDO.values()) + sum(MATEK.values()) + sum(BODZAS.values()) - 5
    assert printed.out.startswith(f"{pool}: {total} training, 0 validation, 0 test images of 13 classes")
    words = ("--scheme", "by_site", "--column", "source", "--test-fraction", 0, "--val-fraction", 0)
    status, printed = medfl("partition", pool, "--out", sites, *words)
    assert status == 0, printed.err
    loaded = load_sites(sites, Multiclass(13))
    assert {name: len(site.train) for name, site in loaded.items()} == {
        "acevedo": sum(ACEVEDO.values()) - 3,
        "bodzas": sum(BODZAS.values()),
        "matek": sum(MATEK.values()) - 2,
    }
    for name, options in (("acevedo", ("--preset", "paper")), ("matek", ()), ("bodzas", ())):
        words = ("prep", name, "--source", three[name], "--out", tmp_path / name, "--size", 8, "--workers", 1)
        status, printed = medfl(*words, *options)
        assert status == 0, printed.err
    assert len(np.load(tmp_path / "acevedo" / "images.npy")) == sum(ACEVEDO.values()) - 3
    status, printed = medfl("prep", "bloodcells", "--out", tmp_path / "none")
    assert status == 2
    assert "expected a folder of at least one release: acevedo, matek, bodzas" in printed.err


def test_the_test_set_has_its_share_of_each_class_of_each_release(three, tmp_path):
    datalist = prepare_dataset(BloodCells(**three, size=8, test_share=0.5), tmp_path / "P", workers=1)
    sizes = {
        split: Counter((record["source"], record["label"]) for record in datalist.splits[split])
        for split in ("training", "test")
    }
    for cell, count in (sizes["training"] + sizes["test"]).items():
        assert sizes["test"][cell] == count - max(1, count // 2)


def test_sub_classes_have_the_numbers_of_fedsdc():
    assert LABEL_MAPS["subclass"].classes == (
        "basophil",
        "eosinophil",
        "erythroblast",
        "lymphocyte",
        "monocyte",
        "metamyelocyte",
        "myelocyte",
        "promyelocyte",
        "band neutrophil",
        "segmented neutrophil",
    )
