"""The regions of an atlas are numbered from 1 in the order of its codes; 0 is no region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.readers.volumes import SpatialGrid
from medfl.errors import DataError
from medfl_datasets.abide.atlas import PREPARED_ATLAS, PlacedAtlas, write_atlas
from medfl_datasets.abide.regions import load_regions

REGION_TABLE = np.zeros((4, 4, 4), dtype=np.int32)
REGION_TABLE[0], REGION_TABLE[1], REGION_TABLE[2] = 7, 2001, 30


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Write the folder of a site whose atlas has the regions 7, 30 and 2001."""
    np.save(tmp_path / "images.npy", np.zeros((2, 4, 4, 4), dtype=np.float32))
    write_atlas(tmp_path, PlacedAtlas("", REGION_TABLE, {7: "", 30: "", 2001: ""}, SpatialGrid((4, 4, 4), np.eye(4))))
    splits = {"training": make_records(range(2), [0, 1], "maps"), "validation": [], "test": []}
    write_datalist(tmp_path, Datalist("maps", "images.npy", 2, licence="CC0 1.0", splits=splits))
    return tmp_path


def test_regions_have_numbers_from_1_in_the_order_of_their_codes(site):
    regions = load_regions(site)
    assert regions is not None
    assert [regions[plane].unique().tolist() for plane in range(4)] == [[1], [3], [2], [0]]


def test_a_data_set_may_have_no_atlas_or_one_of_another_shape(site):
    np.save(site / "images.npy", np.zeros((2, 4, 4, 5), dtype=np.float32))
    with refused(DataError, "wrong_shape", expected=[4, 4, 5], found=[4, 4, 4]):
        load_regions(site)
    (site / PREPARED_ATLAS).unlink()
    assert load_regions(site) is None
