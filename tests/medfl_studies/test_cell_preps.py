"""Releases of white-blood-cell images that a study prepares itself."""

from __future__ import annotations

import shutil

import pytest
from refusals import refused
from study_releases import study_release

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare
from medfl.errors import DataError, SettingsError
from medfl_datasets.bloodcells.labels import DEFAULT_LABEL_MAP
from medfl_datasets.bloodcells.synthetic import ACEVEDO, BODZAS, write_acevedo, write_bodzas, write_matek


@pytest.fixture
def source(tmp_path):
    """Make a source folder with all releases, each in a folder with its name."""
    folder = tmp_path / "source"
    write_acevedo(folder / "acevedo")
    write_matek(folder / "matek")
    write_bodzas(folder)
    return folder


def pooled(source, pool, **values):
    prepare(study_release(source, size=8, **values), pool)
    return read_datalist(pool)


def test_each_release_is_found_by_its_name_and_prepared(source, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.data.ingest.pipeline.core_count", lambda: 1)
    paper = pooled(source, tmp_path / "1", dataset="acevedo", preset="paper")
    assert paper.num_classes == 10
    eight = pooled(source, tmp_path / "2", dataset="acevedo", labels="class", test_share=0)
    assert (eight.num_classes, len(eight.splits["training"])) == (8, sum(ACEVEDO.values()))
    assert pooled(source, tmp_path / "3", dataset="matek").num_classes == 15
    assert pooled(source, tmp_path / "4", dataset="bodzas").num_classes == 9
    shutil.copy(DEFAULT_LABEL_MAP, source / "map.yaml")
    for extra in ({}, {"label_map": "map.yaml"}):
        some = pooled(source, tmp_path / f"5{len(extra)}", dataset="bloodcells", bodzas="bodzas", **extra)
        assert (some.num_classes, sum(map(len, some.splits.values()))) == (13, sum(BODZAS.values()))
    three = study_release(source, dataset="bloodcells")
    folders = {release.name: folder for release, folder in three.releases()}
    assert folders == {name: source / name for name in ("acevedo", "matek", "bodzas")}


def test_what_is_not_there_or_not_known_is_reported_before_anything_is_made(source):
    with refused(DataError, "missing_path", setting="label_map", path=str(source / "other.yaml")):
        study_release(source, dataset="bloodcells", label_map="other.yaml")
    shutil.rmtree(source / "bodzas")
    with refused(DataError, "missing_class_folder", path=str(source)) as caught:
        study_release(source, dataset="bloodcells")
    assert "Bodzas-23" in str(caught.value)
    with refused(DataError, "missing_class_folder", path=str(source / "matek")) as caught:
        study_release(source / "matek", dataset="acevedo")
    assert "Acevedo-20" in str(caught.value)
    for wrong in ({"dataset": "matek", "preset": "paper"}, {"dataset": "bloodcells", "akevedo": "acevedo"}):
        with pytest.raises(SettingsError):
            study_release(source, **wrong)
