"""Preparation of LC25000 and CelebA by a study."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from study_releases import study_release

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare
from medfl.errors import DataError, SettingsError
from medfl.plugins import load_plugins


@pytest.fixture
def source(tmp_path):
    """Make a source folder with both releases, each in a folder with its name."""
    for name in ("lc25000", "celeba"):
        load_plugins().synthetic(name)(tmp_path / "source" / name)
    return tmp_path / "source"


def test_both_are_found_by_their_names_and_prepared_with_their_options(source, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.data.ingest.pipeline.core_count", lambda: 1)
    wanted = {
        "lc25000": {"organ": "lung", "groups": "none"},
        "celeba": {"attribute": "Male", "crop": True, "split": "none", "min_images": 3},
    }
    for name, values in wanted.items():
        chosen = study_release(source, dataset=name, size=8, **values)
        assert chosen.source == source / name
        assert study_release(source / name, dataset=name, size=8, **values) == chosen
        prepare(chosen, tmp_path / name)
    tissue, faces = (read_datalist(tmp_path / name) for name in wanted)
    assert (tissue.name, tissue.num_classes, tissue.extra["groups"]) == ("lc25000-lung", 3, "none")
    assert (faces.labels["1"], len(faces.splits["training"])) == ("Male", 6)
    assert np.load(tmp_path / "celeba" / "images.npy").shape == (6, 8, 8, 3)


def test_what_is_not_there_or_not_known_is_reported_before_anything_is_made(source):
    with refused(DataError, "missing_class_folder", path=str(source / "celeba")) as caught:
        study_release(source / "celeba", dataset="lc25000")
    assert "lung_scc" in caught.value.fields["classes"]
    with refused(DataError, "missing_file", path=str(source / "lc25000" / "list_attr_celeba.txt")):
        study_release(source / "lc25000", dataset="celeba")
    for wrong in ({"dataset": "lc25000", "organ": "liver"}, {"dataset": "celeba", "groups": "hash"}):
        with pytest.raises(SettingsError):
            study_release(source, **wrong)
