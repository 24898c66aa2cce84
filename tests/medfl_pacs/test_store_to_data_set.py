"""Test that `medfl prep folder` reads a store that `medfl pacs` wrote, by folders and by UIDs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from dicomweb_server import DicomwebServer, serving_dicomweb
from pacs_images import ROOT, SECRETS, Corpus, content_of, plain_instance

from medfl.data.datalists import read_datalist

for package in ("dicomweb_client", "dicomanonymizer"):
    pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")


@pytest.mark.parametrize("column", ["folder", "series", "study"])
def test_a_store_becomes_a_data_set(medfl, tmp_path: Path, column: str):
    store, labels, out = tmp_path / "store", tmp_path / "labels.csv", tmp_path / "P"
    with serving_dicomweb(DicomwebServer(Corpus(patients=4, series=1, instances=3).content())) as server:
        words = ("pacs", "dicomweb", server.url, "--query", "StudyDate=20200101-20201231")
        status, _, err = medfl(*words, "--out", store, "--key", tmp_path / "key")
        assert status == 0, err
    with (store / "images.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with labels.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "diagnosis"])
        writer.writeheader()
        writer.writerows(row | {"diagnosis": "ab"[number % 2]} for number, row in enumerate(rows))

    words = ("prep", "folder", store, "--table", labels, "--image-column", column, "--target", "class:diagnosis")
    status, _, err = medfl(*words, "--group-column", "patient", "--size", "16x16x6", "--workers", 1, "--out", out)
    assert status == 0, err
    datalist = read_datalist(out)
    records = datalist.splits["training"]
    assert [record["label"] for record in records] == [0, 1, 0, 1]
    assert len({record["subject_id"] for record in records}) == 4
    assert np.load(out / "images.npy").shape == (4, 16, 16, 6)
    assert datalist.extra["spacing"] == [0.75, 0.5, 1.25]  # three slices every 2.5 mm become six
    written = json.dumps(records) + (out / "datalist.json").read_text() + err
    assert not [text for text in (*SECRETS, ROOT, *(row["patient"] for row in rows)) if text in written]


def test_suv_of_philips_can_be_computed_from_a_store(medfl, tmp_path: Path):
    store, out, contents, pixels = tmp_path / "store", tmp_path / "P", {}, []
    for place in Corpus(patients=2, series=1, instances=6).places:
        slice_ = plain_instance(place, "PT")
        slice_.Units, slice_.DecayCorrection, slice_.CorrectedImage = "CNTS", "START", ["ATTN", "DECY"]
        slice_.private_block(0x7053, "Philips PET Private Group", create=True).add_new(0x00, "DS", "0.002")
        contents[place] = content_of(slice_)
        pixels.append(slice_.pixel_array)
    with serving_dicomweb(DicomwebServer(contents)) as server:
        words = ("pacs", "dicomweb", server.url, "--query", "Modality=PT", "--out", store, "--key", tmp_path / "key")
        assert medfl(*words)[0] == 0
    with (store / "images.csv").open(newline="") as file:
        folders = [row["folder"] for row in csv.DictReader(file)]
    (tmp_path / "labels.csv").write_text(f"folder,age\n{folders[0]},61\n{folders[1]},72\n")
    words = ("prep", "folder", store, "--table", tmp_path / "labels.csv", "--image-column", "folder")
    target = ("--target", "number:age", "--scale", "suv", "--size", "16x16x6", "--workers", 1, "--out", out)
    status, _, err = medfl(*words, *target)
    assert status == 0, err
    suv = np.stack(pixels).reshape(2, 6, 16, 16) * 0.002
    expected = np.clip(suv / 20, 0, 1).transpose(0, 3, 2, 1)[:, ::-1, ::-1]  # of SUV 20, the value is 1
    volumes = np.load(out / "images.npy")
    order, expected_order = (array.mean(axis=(1, 2, 3)).argsort() for array in (volumes, expected))
    np.testing.assert_allclose(volumes[order], expected[expected_order], atol=1e-3)
