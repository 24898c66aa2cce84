"""Fed-ISIC2019: FLamby's images, classes, centres and splits, and input that is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused

from medfl.data.datalists import Datalist, read_datalist
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError
from medfl_datasets.flamby_isic2019.spec import (
    CLASSES,
    IMAGE_FOLDER,
    METADATA_TABLE,
    OFFICIAL_COUNTS,
    SPLIT_TABLE,
    FlambyISIC2019,
)
from medfl_datasets.flamby_isic2019.synthetic import write_release


def records(datalist: Datalist) -> list[dict]:
    return sorted((r for part in datalist.splits.values() for r in part), key=lambda record: record["image"])


def prepare(source: Path, out: Path, **options) -> Datalist:
    return prepare_spec(FlambyISIC2019, source, out, **{"workers": 1, "size": 12} | options)


def test_images_classes_centres_and_splits_are_flambys(tmp_path):
    release = write_release(tmp_path / "in")
    datalist = prepare(release, tmp_path / "out")
    table = pd.read_csv(release / SPLIT_TABLE)
    rows = np.load(tmp_path / "out" / "images.npy")
    assert list(datalist.labels.values()) == list(CLASSES)
    split_of = {record["image"]: split for split, part in datalist.splits.items() for record in part}
    for place, (record, line) in enumerate(zip(records(datalist), table.itertuples(), strict=True)):
        assert getattr(line, CLASSES[record["label"]]) == 1
        assert record["centre"] == list(OFFICIAL_COUNTS)[line.center]
        assert split_of[place] == {"train": "training", "test": "test"}[line.fold]
        pixels = np.asarray(Image.open(release / IMAGE_FOLDER / f"{line.image}.jpg"))
        top, left = ((edge - 12) // 2 for edge in pixels.shape[:2])
        assert np.array_equal(rows[place], pixels[top : top + 12, left : left + 12])
    assert len({record["subject_id"] for record in records(datalist)}) == len(table)
    assert "bcn: 3 training and 1 test images, published are 9930 and 2483" in datalist.extra["deviations"]


def test_centres_become_sites_with_flambys_tests(tmp_path):
    release = write_release(tmp_path / "in", count=8)
    prepare(release, tmp_path / "pool")
    plan = PartitionPlan("by_site", column="centre", test="official", server_test="none")
    partition(tmp_path / "pool", tmp_path / "sites", plan, by_site)
    for name in OFFICIAL_COUNTS:
        own = read_datalist(tmp_path / "sites" / name)
        assert len(own.splits["test"]) == 2
        assert sum(map(len, own.splits.values())) == 8


def test_lesions_and_facts_come_from_the_metadata(tmp_path):
    release = write_release(tmp_path / "in")
    table = pd.read_csv(release / METADATA_TABLE, keep_default_na=False).set_index("image")
    order = pd.read_csv(release / SPLIT_TABLE).image
    own = records(prepare(release, tmp_path / "out", groups="lesion"))
    lesions = [table.lesion_id[name] for name in order]
    assert len({record["subject_id"] for record in own}) == len(set(lesions)) < len(own)
    same = {(record["subject_id"], lesion) for record, lesion in zip(own, lesions, strict=True)}
    assert len(same) == len(set(lesions)), "a lesion has one made-up name"
    for record, name in zip(own, order, strict=True):
        age = table.age_approx[name]
        assert record["age"] == (float(age) if age else None)
        assert (record["sex"], record["localization"] or "") == (table.sex[name], table.anatom_site_general[name])
    (release / METADATA_TABLE).unlink()
    assert "age" not in records(prepare(release, tmp_path / "bare"))[0]
    with refused(DataError, "missing_file", path=str(release / METADATA_TABLE)):
        prepare(release, tmp_path / "none", groups="lesion")


def test_metadata_may_be_in_another_order_and_lack_a_lesion(tmp_path):
    release = write_release(tmp_path / "in")
    before = records(prepare(release, tmp_path / "out", groups="lesion"))
    table = pd.read_csv(release / METADATA_TABLE, dtype=str, keep_default_na=False)
    table[::-1].to_csv(release / METADATA_TABLE, index=False)
    assert records(prepare(release, tmp_path / "turned", groups="lesion")) == before
    table.loc[[4, 9, 12], "lesion_id"] = ""
    table.to_csv(release / METADATA_TABLE, index=False)
    own = records(prepare(release, tmp_path / "unknown", groups="lesion"))
    alone = [own[row]["subject_id"] for row in (4, 9, 12)]
    assert len({record["subject_id"] for record in own if record["subject_id"] in alone}) == 3


def test_centres_have_flambys_numbers():
    """Check the sizes of the centres, by their numbers, against FLamby's table."""
    sizes = [12413, 3954, 3363, 2259, 819, 439]
    names = ["bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk", "vienna_dias"]
    assert [(name, sum(split)) for name, split in OFFICIAL_COUNTS.items()] == list(zip(names, sizes, strict=True))


def test_an_image_below_the_size_is_left_out_and_a_missing_one_as_well(tmp_path):
    release = write_release(tmp_path / "in")
    names = pd.read_csv(release / SPLIT_TABLE).image
    (release / IMAGE_FOLDER / f"{names[3]}.jpg").unlink()
    Image.new("RGB", (11, 20)).save(release / IMAGE_FOLDER / f"{names[5]}.jpg")
    datalist = prepare(release, tmp_path / "out")
    assert len(records(datalist)) == len(names) - 2
    reasons = {entry.reason: entry.count for entry in datalist.exclusions}
    assert reasons["there is no image file"] == 1
    assert any("smaller than the size" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("name", "column", "text", "code", "fields"),
    [
        (SPLIT_TABLE, "target", "8", "wrong_label", {"rows": [3]}),
        (SPLIT_TABLE, "center", "6", "unknown_site", {"rows": [3]}),
        (METADATA_TABLE, "age_approx", "old", "invalid_value", {}),
    ],
)
def test_wrong_tables_are_refused(tmp_path, name, column, text, code, fields):
    release = write_release(tmp_path / "in")
    table = pd.read_csv(release / name, dtype=str, keep_default_na=False)
    table.loc[1, column] = text
    table.to_csv(release / name, index=False)
    with refused(DataError, code, path=str(release / name), column=column, **fields) as error:
        prepare(release, tmp_path / "out")
    assert "SECRET" not in f"{error.value} {error.value.fields}"


def test_images_that_were_not_resized_are_refused(tmp_path):
    release = write_release(tmp_path / "in")
    (release / IMAGE_FOLDER).rename(release / "ISIC_2019_Training_Input")
    with refused(DataError, "missing_folder", path=str(release / IMAGE_FOLDER)) as error:
        prepare(release, tmp_path / "out")
    assert "resize_images.py" in str(error.value)


def test_a_study_finds_flambys_folder(tmp_path):
    release = write_release(tmp_path / "fed_isic2019")
    assert FlambyISIC2019.locate(tmp_path, {})["source"] == release
