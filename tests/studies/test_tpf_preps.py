"""LC25000 and CelebA, prepared by a study."""

from __future__ import annotations

import celeba_maker  # noqa: E402
import lc25000_maker  # noqa: E402
import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from medfl.data.datalists import read_datalist
from medfl.errors import DataError
from medfl.studies.preps import Prep


def prep(**values):
    return TypeAdapter(Prep).validate_python({"size": 8, **values})


@pytest.fixture
def source(tmp_path):
    """A study's source folder with both releases, each in a folder of its name."""
    lc25000_maker.make_release(tmp_path / "source" / "lc25000")
    celeba_maker.make_release(tmp_path / "source" / "celeba")
    return tmp_path / "source"


def test_both_are_found_by_their_names_and_prepared_as_told(source, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.ingest.pipeline.core_count", lambda: 1)
    wanted = {
        "lc25000": {"organ": "lung", "groups": "none"},
        "celeba": {"attribute": "Male", "crop": True, "split": "none", "min_images": 3},
    }
    for name, values in wanted.items():
        chosen = prep(dataset=name, **values)
        assert chosen.find(source) == source / name
        assert chosen.find(source / name) == source / name
        chosen.make(source, tmp_path / name, lambda _: None)
    tissue, faces = (read_datalist(tmp_path / name) for name in wanted)
    assert (tissue.name, tissue.num_classes, tissue.extra["groups"]) == ("lc25000-lung", 3, "none")
    assert (faces.labels["1"], len(faces.splits["training"])) == ("Male", 6)
    assert np.load(tmp_path / "celeba" / "images.npy").shape == (6, 8, 8, 3)


def test_what_is_not_there_or_not_known_is_told_before_anything_is_made(source):
    with pytest.raises(DataError, match="lung_scc are missing"):
        prep(dataset="lc25000").find(source / "celeba")
    with pytest.raises(DataError, match="expected the table list_attr_celeba"):
        prep(dataset="celeba").find(source / "lc25000")
    for wrong in ({"dataset": "lc25000", "organ": "liver"}, {"dataset": "celeba", "groups": "hash"}):
        with pytest.raises(ValidationError):
            prep(**wrong)
