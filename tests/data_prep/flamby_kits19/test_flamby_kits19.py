"""Fed-KiTS19: FLamby's cases, sites and splits on one grid, and input that is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from prepare_specs import prepare_spec
from refusals import refused

from medfl.data.datalists import Datalist
from medfl.errors import DataError
from medfl.objectives import Segmentation
from medfl_datasets.flamby_kits19.spec import MASK_FILE, SPLIT_TABLE, FlambyKiTS19
from medfl_datasets.flamby_kits19.synthetic import write_release


def prepare(source: Path, out: Path, **options) -> Datalist:
    return prepare_spec(FlambyKiTS19, source, out, **{"workers": 1, "spacing": "2x2x2", "size": "16x16x16"} | options)


def test_cases_sites_and_splits_are_flambys(tmp_path):
    release = write_release(tmp_path / "in")
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "out", spacing="1x1x2", size="24x24x16", say=lines.append)
    table = pd.read_csv(release / SPLIT_TABLE)
    own = {record["image"]: (record, split) for split, part in datalist.splits.items() for record in part}
    for place, line in enumerate(table.itertuples()):
        record, split = own[place]
        assert (record["centre"], split) == (
            f"site_{line.site_ids}",
            {"train": "training", "test": "test"}[line.train_test_split],
        )
    assert len(own) == len(table) == 12
    assert datalist.goal == Segmentation(3, spacing=(1.0, 1.0, 2.0))
    assert any("1 cases are in no row" in line for line in lines)
    assert "site_5: 1 training and 1 test cases, published are 24 and 6" in datalist.extra["deviations"]


def test_slices_become_the_last_axis_and_intensities_the_window(tmp_path):
    """Check that a tumour at the end of the first axis, from head to feet, is at the lower end of the last axis."""
    prepare(write_release(tmp_path / "in"), tmp_path / "out", spacing="1x1x2", size="24x24x16")
    images, masks = np.load(tmp_path / "out" / "images.npy"), np.load(tmp_path / "out" / "masks.npy")
    for image, mask in zip(images, masks, strict=True):
        kidney, tumour = (np.argwhere(mask == number)[:, 2].mean() for number in (1, 2))
        assert tumour < kidney - 1
        assert image[mask == 1].mean() == pytest.approx((180 + 79) / (304 + 79), abs=0.03)


def test_a_case_without_a_mask_stops_the_work_or_is_left_out(tmp_path):
    release = write_release(tmp_path / "in")
    next(release.glob(f"data/*03/{MASK_FILE}")).unlink()
    with refused(DataError, "unreadable_image", count=1, total=12) as error:
        prepare(release, tmp_path / "out")
    assert "table row 5: there is no file of the mask" in str(error.value)
    datalist = prepare(release, tmp_path / "out", require_complete=False)
    table = pd.read_csv(release / SPLIT_TABLE).drop(index=3)
    split_of = {record["image"]: split for split, part in datalist.splits.items() for record in part}
    words = {"training": "train", "test": "test"}
    assert [words[split_of[row]] for row in range(11)] == table.train_test_split.tolist()
    assert list(csv.reader((tmp_path / "out" / "quarantine.csv").open()))[:2] == [
        ["table_row", "reason"],
        ["5", "there is no file of the mask"],
    ]


def test_a_folder_without_cases_is_refused(tmp_path):
    release = write_release(tmp_path / "in")
    (release / "data").rename(tmp_path / "elsewhere")
    with refused(DataError, "no_images", path=str(release), table=SPLIT_TABLE):
        prepare(release, tmp_path / "out")
