"""``medfl prep`` on the command line."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from medfl.data.datalists import read_datalist
from medfl.data.sites import load_sites
from medfl.objectives import Multiclass


@pytest.fixture
def command(tmp_path):
    """Write twelve images of six patients and return the arguments of the command."""
    images = tmp_path / "images"
    images.mkdir()
    lines = ["file;finding;who;where;age"]
    for number in range(12):
        pixels = np.full((12, 12), 20 * number, np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.png")
        lines.append(f"{number};{'yes' if number % 4 < 2 else 'no'};P{number // 2};{'ab'[number // 6]};{40 + number}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(lines))
    columns = ("--image-column", "file", "--target", "finding", "--group-column", "who")
    return ("prep", "folder", images, "--table", table, *columns, "--workers", 1, "--out", tmp_path / "P")


def test_from_files_to_sites(medfl, command, tmp_path):
    extra = ("--site-column", "where", "--keep-column", "age", "--size", "8x6", "--name", "own", "--licence", "ours")
    status, out, err = medfl(*command, *extra)
    assert status == 0, err
    assert out.splitlines() == [
        f"{tmp_path / 'P'}: 12 training, 0 validation, 0 test images of 2 classes",
        "  0 no: 6",
        "  1 yes: 6",
    ]
    licence, need = err.splitlines()
    assert licence == "own: licence ours"
    assert need.startswith("note: needs 576 bytes on the disk of --out, which has ")
    assert np.load(tmp_path / "P" / "images.npy").shape == (12, 8, 6)
    assert read_datalist(tmp_path / "P").splits["training"][7] == {
        "image": 7,
        "label": 0,
        "subject_id": "subject-000004",
        "site": "b",
        "age": "47",
    }
    status, _, err = medfl("partition", tmp_path / "P", "--out", tmp_path / "D", "--sites", 2, "--test-fraction", 0)
    assert status == 0, err
    sites = load_sites(tmp_path / "D", Multiclass(2))
    assert sum(len(site.train) for site in sites.values()) == 12


def test_mistakes_end_with_a_message_and_status_2(medfl, command, tmp_path):
    (tmp_path / "images" / "3.png").write_bytes(b"")
    for extra, message in (
        (("--size", "8by6"), "expected a size like 224, 224x160 or 64x64x32, got '8by6'"),
        (("--size", "8", "--site-column", "were"), "Did you mean 'where'?"),
        (("--size", "8"), "1 of 12 images can't be read"),
    ):
        status, _, err = medfl(*command, *extra)
        assert status == 2, err
        assert message in err
        assert "Traceback" not in err
        assert not (tmp_path / "P").exists()
    status, out, err = medfl(*command, "--size", "8", "--skip-unreadable")
    assert status == 0, err
    assert "11 training" in out
    assert "1 of 12 images can't be read and were left out" in err
    assert (tmp_path / "P" / "quarantine.csv").read_text().splitlines()[1].startswith("5,")


def test_a_mirror_without_a_download_is_refused(medfl, tmp_path):
    words = ("prep", "medmnist", "--source", tmp_path, "--flag", "breastmnist", "--out", tmp_path / "P")
    status, _, err = medfl(*words, "--url", "http://localhost")
    assert status == 2
    assert "give --download as well" in err


@pytest.fixture
def source(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for part, size in (("train", 200), ("val", 8), ("test", 40)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 8, 8, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size) % 8).astype(np.uint8)[:, None]
    folder = tmp_path / "downloads"
    folder.mkdir()
    np.savez(folder / "bloodmnist.npz", **arrays)
    return folder


def test_a_download_becomes_a_pooled_data_set(medfl, source, tmp_path):
    command = ("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    status, out, err = medfl(*command)
    assert status == 0, err
    assert "200 training, 8 validation, 40 test images of 8 classes" in out
    assert err.startswith("bloodmnist: licence CC BY 4.0"), "the licence comes first"
    assert "warning: bloodmnist.npz: 200/8/40 images" in err
    assert {split: len(part) for split, part in read_datalist(tmp_path / "P").splits.items()} == {
        "training": 200,
        "validation": 8,
        "test": 40,
    }
    status, _, err = medfl(*command)
    assert status == 2
    assert "--force" in err


def test_every_data_set_has_a_command(medfl):
    import re
    from pathlib import Path

    status, out, _ = medfl("prep", "--help")
    assert status == 0
    listed = re.findall(r"^  (\w+)  ", out.split("Commands:")[1], flags=re.MULTILINE)
    folders = {path.parent.name for path in (Path(__file__).parents[2] / "data_prep").glob("*/__init__.py")}
    assert set(listed) == folders | {"acevedo", "bodzas", "matek", "folder", "table"}
    assert (listed[0], *listed[-2:]) == ("medmnist", "folder", "table"), "the ready-made one first, one's own last"
