"""Test preparation of the user's own DICOM files: identifying elements, and nonstandard files."""

from __future__ import annotations

import numpy as np
import pytest
from dicom_maker import make_dicom, without_preamble
from own_cohort import prepare
from refusals import refused

from medfl.data.ingest.columns.labels import TableColumns
from medfl.data.ingest.folder_synthetic import write_table
from medfl.errors import DataError, SettingsError

PIXELS = np.linspace(0, 4095, 48 * 40).astype(np.uint16).reshape(48, 40)
COLUMNS = TableColumns("file", "diagnosis")


@pytest.fixture
def own(tmp_path):
    """Four files; two of them identify the patient."""
    folder = tmp_path / "images"
    folder.mkdir()
    clean = {"PatientIdentityRemoved": "YES", "PatientName": "made-up"}
    for number, tags in enumerate((clean, {}, clean, clean | {"BurnedInAnnotation": "YES"})):
        make_dicom(folder / f"{number}.dcm", PIXELS + number, **tags)
    without_preamble(folder / "2.dcm")
    rows = [(f"{number}.dcm", "ab"[number // 2]) for number in range(4)]
    return folder, write_table(tmp_path / "t.csv", rows, ("file", "diagnosis"))


def test_strip_reads_all_and_keeps_nothing(own, tmp_path):
    datalist = prepare(*own, COLUMNS, (12, 10), tmp_path / "P")
    assert len(datalist.splits["training"]) == 4
    assert b"ecret" not in (tmp_path / "P" / "datalist.json").read_bytes()
    images = np.load(tmp_path / "P" / "images.npy")
    np.testing.assert_allclose(images[2], images[0], atol=1e-6)


def test_refuse_leaves_out_what_may_reveal_who_it_is(own, tmp_path):
    with refused(DataError, "unreadable_image", count=2, total=4) as caught:
        prepare(*own, COLUMNS, (12, 10), tmp_path / "P", deidentify_check="refuse")
    reasons = str(caught.value)
    assert "(PatientID, PatientName)" in reasons
    assert "burned into" in reasons
    lines: list[str] = []
    with refused(SettingsError, "unknown_choice", choice="refuze"):
        prepare(*own, COLUMNS, (12, 10), tmp_path / "P", deidentify_check="refuze")
    options = {"deidentify_check": "refuse", "skip_unreadable": True, "say": lines.append}
    datalist = prepare(*own, COLUMNS, (12, 10), tmp_path / "P", **options)
    assert [record["label"] for record in datalist.splits["training"]] == [0, 1]
    listed = (tmp_path / "P" / "quarantine.csv").read_text()
    assert "Sally" not in listed
    assert listed.count("PatientName") == 1
