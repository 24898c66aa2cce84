"""Fed-IXI: FLamby's volumes, masks, hospitals and splits, and input that is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import nibabel
import numpy as np
import pandas as pd
import pytest
import torch
from prepare_specs import prepare_spec
from refusals import refused
from torch.nn.functional import adaptive_avg_pool3d

from medfl.data.datalists import Datalist
from medfl.errors import DataError, SettingsError
from medfl.objectives import Segmentation
from medfl_datasets.flamby_ixi.spec import OFFICIAL_COUNTS, SPLIT_TABLE, VOLUME_FOLDER, FlambyIXI
from medfl_datasets.flamby_ixi.synthetic import write_release

SIZE = (6, 10, 6)


def prepare(source: Path, out: Path, **options) -> Datalist:
    return prepare_spec(FlambyIXI, source, out, **{"workers": 1, "size": SIZE} | options)


def subject(release: Path, number: int) -> Path:
    return next(release.glob(f"*/{VOLUME_FOLDER}/IXI{number:03d}-*"))


def test_volumes_masks_and_splits_are_flambys(tmp_path):
    release = write_release(tmp_path / "in")
    datalist = prepare(release, tmp_path / "out")
    images, masks = np.load(tmp_path / "out" / "images.npy"), np.load(tmp_path / "out" / "masks.npy")
    table = pd.read_csv(release / SPLIT_TABLE)
    assert images.shape == masks.shape == (len(table), *SIZE)
    own = {record["image"]: (record, split) for split, part in datalist.splits.items() for record in part}
    for place, line in enumerate(table.itertuples()):
        folder = subject(release, line[1])
        image, mask = (
            torch.from_numpy(nibabel.load(next((folder / part).iterdir())).get_fdata()) for part in ("T1", "label")
        )
        pooled = adaptive_avg_pool3d(image[None].float(), SIZE)[0]
        expected = (pooled - pooled.mean()) / pooled.std(unbiased=False)
        assert torch.allclose(torch.from_numpy(images[place]), expected, atol=1e-5)
        assert np.array_equal(masks[place], adaptive_avg_pool3d(mask[None], SIZE)[0].long())
        record, split = own[place]
        assert record["centre"] == folder.name.split("-")[1] == list(OFFICIAL_COUNTS)[line.Manufacturer]
        assert split == {"train": "training", "test": "test"}[line.Split]
    assert masks.any()
    assert datalist.goal.outputs == 2
    assert datalist.goal.spacing == pytest.approx((2 * 13 / 6, 4 * 9 / 10, 4 * 10 / 6), abs=1e-4)


def test_volumes_of_unlike_spacing_have_distances_in_voxels(tmp_path):
    release = write_release(tmp_path / "in")
    for part in ("T1", "label"):
        path = next((subject(release, 3) / part).iterdir())
        nibabel.save(nibabel.Nifti1Image(nibabel.load(path).get_fdata(), np.eye(4)), path)
    lines: list[str] = []
    assert prepare(release, tmp_path / "out", say=lines.append).goal == Segmentation(2)
    assert any("several spacings" in line for line in lines)


def test_a_subject_without_its_mask_stops_the_work_or_is_left_out(tmp_path):
    release = write_release(tmp_path / "in")
    shutil.rmtree(subject(release, 4) / "label")
    with refused(DataError, "unreadable_image", count=1, total=12) as error:
        prepare(release, tmp_path / "out")
    assert "the folder does not contain exactly one volume and one mask (table row 4" in str(error.value)
    assert "IXI004" not in f"{error.value} {error.value.fields}"
    datalist = prepare(release, tmp_path / "out", require_complete=False)
    assert sum(map(len, datalist.splits.values())) == 11


def test_another_hospital_than_the_folder_says_is_refused(tmp_path):
    release = write_release(tmp_path / "in")
    table = pd.read_csv(release / SPLIT_TABLE)
    table.loc[0, "Manufacturer"] = 2
    table.to_csv(release / SPLIT_TABLE, index=False)
    with refused(DataError, "contradicting_site", path=str(release / SPLIT_TABLE), row=2):
        prepare(release, tmp_path / "out")


def test_what_else_is_refused(tmp_path):
    release = write_release(tmp_path / "in")
    with refused(SettingsError, "setting_out_of_range", setting="size", count=3, found=[4, 4]):
        prepare(release, tmp_path / "out", size=(4, 4))
    folder = subject(release, 2)
    with refused(DataError, "wrong_folder_count", path=str(folder), name=VOLUME_FOLDER, expected=1, found=0):
        prepare(folder, tmp_path / "out")
    (release / SPLIT_TABLE).rename(tmp_path / "table.csv")
    with refused(DataError, "missing_file", folder=str(release), file=SPLIT_TABLE):
        prepare(release, tmp_path / "out")
    assert prepare(release, tmp_path / "out", splits=tmp_path / "table.csv").counts()["test"] == {"0": 0, "1": 3}
