"""Test the synthetic CT series of three hospitals: what the tutorial says about them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from medfl.data.readers.dicom_series import read_series
from medfl.data.readers.series_folder import find_series
from medfl.testing.synthetic_series import HOSPITALS, SCANNERS, SyntheticPatient, draw_chest, write_hospitals


def test_series_and_tables(tmp_path):
    write_hospitals(tmp_path, patients=4)
    series_by_hospital = {hospital: find_series(tmp_path / hospital) for hospital in HOSPITALS}
    assert {hospital: len(series) for hospital, series in series_by_hospital.items()} == {
        "north": 5,
        "south": 5,
        "west": 4,
    }
    for hospital, series in series_by_hospital.items():
        with (tmp_path / f"{hospital}.csv").open() as file:
            rows = list(csv.DictReader(file))
        letter = hospital[0].upper()
        assert [row["patient_id"] for row in rows] == [f"{letter}-100{number}" for number in (1, 2, 3)]
        assert {row["hospital"] for row in rows} == {hospital}
        assert {item.patient for item in series} == {f"{letter}-100{number}" for number in (1, 2, 3, 4)}
    assert sorted(item.plane for item in series_by_hospital["north"]) == ["axial"] * 4 + ["coronal"]
    assert {item.slices for item in series_by_hospital["west"]} == {12, 16}, "two scanners"


def test_pixels_and_places_in_space_agree(tmp_path):
    write_hospitals(tmp_path, patients=4)
    series = {item.plane: item for item in find_series(tmp_path / "north") if item.patient == "N-1002"}
    axial, coronal = (read_series(series[plane].paths) for plane in ("axial", "coronal"))
    chest = draw_chest(SyntheticPatient("north", 2, SCANNERS["north"]))
    np.testing.assert_array_equal(axial.values, chest.transpose(2, 1, 0))
    np.testing.assert_array_equal(coronal.values, chest[::-1, ::2].transpose(2, 0, 1))
    assert np.diag(axial.geometry.affine)[:3].tolist() == [-10, -10, 20]


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_a_nodule_is_the_only_difference_and_lies_in_a_lung(hospital, monkeypatch):
    patients = [SyntheticPatient(hospital, number, SCANNERS["north"]) for number in range(1, 25)]
    chests = [draw_chest(patient).astype(int) for patient in patients]
    has_nodule = [patient.has_nodule for patient in patients]
    assert 8 <= sum(has_nodule) <= 16
    monkeypatch.setattr(SyntheticPatient, "has_nodule", False)
    for patient, chest, is_ill in zip(patients, chests, has_nodule, strict=True):
        added = chest - draw_chest(patient)
        assert (added > 600).any() == (added != 0).any() == is_ill
        assert (added > 600).sum() <= 400
