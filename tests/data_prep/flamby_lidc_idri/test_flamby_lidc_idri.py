"""Fed-LIDC-IDRI: FLamby's scans, manufacturers and splits on one grid, and input that is refused."""

from __future__ import annotations

import nibabel
import numpy as np
import pandas as pd
import pytest
from prepare_specs import prepare_spec
from refusals import refused

from medfl.errors import DataError
from medfl.objectives import Segmentation
from medfl_datasets.flamby_lidc_idri.spec import IMAGE_FILE, MASK_FILE, OFFICIAL_COUNTS, SPLIT_TABLE, FlambyLidcIdri
from medfl_datasets.flamby_lidc_idri.synthetic import write_release


def test_scans_manufacturers_and_splits_are_flambys(tmp_path):
    release = write_release(tmp_path / "in")
    lines: list[str] = []
    datalist = prepare_spec(FlambyLidcIdri, release, tmp_path / "out", workers=1, spacing="1x1x1", say=lines.append)
    images, masks = np.load(tmp_path / "out" / "images.npy"), np.load(tmp_path / "out" / "masks.npy")
    table = pd.read_csv(release / SPLIT_TABLE)[1:]  # the first row has no scan
    own = {record["image"]: (record, split) for split, part in datalist.splits.items() for record in part}
    assert len(own) == len(table) == 8
    for place, line in enumerate(table.itertuples()):
        record, split = own[place]
        assert record["centre"] == list(OFFICIAL_COUNTS)[line.Manufacturer]
        assert split == {"train": "training", "test": "test"}[line.Split]
        scan, mask = (
            nibabel.load(release / line.SeriesInstanceUID / name).get_fdata() for name in (IMAGE_FILE, MASK_FILE)
        )
        assert masks[place].sum() == mask.sum()
        expected = (np.clip(scan, -1024, 600) + 1024) / 1624
        assert images[place][masks[place] == 1].sum() == pytest.approx(expected[mask == 1].sum(), rel=1e-5)
    assert datalist.goal == Segmentation(2, spacing=(1.0, 1.0, 1.0))
    assert datalist.counts()["training"] == {"0": 1, "1": 3}
    assert any("1 scans of metadata.csv are not there" in line for line in lines)
    assert "SECRET" not in "".join(lines) + (tmp_path / "out" / "datalist.json").read_text()


def test_a_scan_that_the_table_does_not_know_is_passed_over_and_none_is_refused(tmp_path):
    release = write_release(tmp_path / "in")
    table = pd.read_csv(release / SPLIT_TABLE)
    table[:-1].to_csv(release / SPLIT_TABLE, index=False)
    lines: list[str] = []
    datalist = prepare_spec(FlambyLidcIdri, release, tmp_path / "out", workers=1, say=lines.append)
    assert sum(map(len, datalist.splits.values())) == 7
    assert any("1 scans are in no row" in line for line in lines)
    assert datalist.goal.spacing == (2.0, 2.0, 2.0)
    table[:1].to_csv(release / SPLIT_TABLE, index=False)
    with refused(DataError, "no_images", path=str(release), table=SPLIT_TABLE):
        prepare_spec(FlambyLidcIdri, release, tmp_path / "none")
