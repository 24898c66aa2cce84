"""LC25000: prepared data of valid releases, and errors of invalid ones."""

from __future__ import annotations

import csv
import shutil
from collections import Counter, defaultdict

import numpy as np
import pytest
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.partition.assign import distribute
from medfl.data.partition.iid import iid
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, SettingsError
from medfl_datasets.lc25000.files import find_files
from medfl_datasets.lc25000.spec import LC25000
from medfl_datasets.lc25000.synthetic import COPIES, TILES, write_release

CLASSES = ["colon_aca", "colon_n", "lung_aca", "lung_n", "lung_scc"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("lc25000"))


@pytest.fixture
def release(made, tmp_path):
    """Write a release that a test may modify."""
    return shutil.copytree(made, tmp_path / "lung_colon_image_set")


def prepare(source, out, **options):
    return prepare_spec(LC25000, source, out, **{"size": 8, "workers": 1} | options)


def groups_of(datalist):
    """Map each class and group to the indices of its images in the class."""
    places, seen = defaultdict(list), Counter()
    for record in datalist.splits["training"]:
        places[record["label"], record["subject_id"]].append(seen[record["label"]])
        seen[record["label"]] += 1
    return places


def test_the_whole_way(made, tmp_path):
    lines: list[str] = []
    datalist = prepare(made.parent, tmp_path / "P", say=lines.append)
    assert datalist == read_datalist(tmp_path / "P")
    assert lines[0].startswith("lc25000: licence offered for free download")
    assert lines[1].startswith("Please cite: Borkowski")
    assert (datalist.name, datalist.num_classes) == ("lc25000", 5)
    assert datalist.labels["4"] == "lung squamous cell carcinoma"
    records = datalist.splits["training"]
    assert [(record["label"], record["organ"]) for record in records] == [
        (label, name.split("_")[0]) for label, name in enumerate(CLASSES) for _ in range(TILES * COPIES)
    ]
    assert sorted(groups_of(datalist).values()) == sorted([[0, 2, 4], [1, 3, 5]] * 5), "image n shows tile n % 2"
    assert len({record["subject_id"] for record in records}) == 5 * TILES
    images = np.load(tmp_path / "P" / "images.npy")
    assert (images.shape, images.dtype) == ((30, 8, 8, 3), np.uint8)
    with Image.open(made / "colon_image_sets" / "colon_aca" / "colonca3.jpeg") as image:
        np.testing.assert_array_equal(images[2], np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR)))
    assert "note: 1 files are not images of the release: they are skipped" in lines
    assert any(
        "10 groups of copies among 30 images: 3 to 3 images in a group, 3 in the median" in line for line in lines
    )
    assert datalist.extra["deviations"] == [
        "LC25000 has 5000 images of each class; found " + ", ".join(f"{name} 6" for name in CLASSES),
        "30 of 30 images do not have the 768 x 768 pixels of LC25000",
    ]
    assert "jpeg" not in (tmp_path / "P" / "datalist.json").read_text()


def test_no_partition_tears_copies_apart(made, tmp_path):
    datalist = prepare(made, tmp_path / "P", organ="lung")
    assert (datalist.name, datalist.num_classes) == ("lc25000-lung", 3)
    plan = PartitionPlan("iid", 2, test="fraction", test_fraction=0.4)
    sites, notes = distribute(datalist, [b"%d" % row for row in range(18)], plan, iid)
    parts = [{record["subject_id"] for record in part} for splits in sites.values() for part in splits.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 3 * TILES
    assert any("are copies of about 1250 tiles" in line for line in notes.warnings), "a partition says so, too"


def test_without_groups_each_image_is_its_own_and_the_data_say_so(made, tmp_path):
    datalist = prepare(made, tmp_path / "P", organ="colon", groups="none")
    assert len(groups_of(datalist)) == 12
    assert "copies were not looked for (groups: none)" in datalist.warnings[1]


def test_what_looks_wrong_about_groups_is_reported(release, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl_datasets.lc25000.spec.LARGE_GROUP_SIZE", 2)
    Image.new("RGB", (128, 128), "white").save(release / "colon_image_sets" / "colon_n" / "colonn7.jpeg")
    warnings = prepare(release, tmp_path / "P", organ="colon").warnings
    assert warnings[2].startswith("1 images are blank in the middle")
    assert warnings[3].startswith("4 groups have more than 2 images: different tiles that look alike may be in one")


def test_what_can_not_be_used_is_left_out(release, tmp_path):
    folder = release / "lung_image_sets" / "lung_n"
    (folder / "lungn2.jpeg").write_bytes((folder / "lungn2.jpeg").read_bytes()[:300])
    (folder / "lungn3.jpeg").rename(folder / "lungaca3.jpeg")
    Image.new("RGB", (7, 90)).save(folder / "lungn5.jpeg")
    datalist = prepare(release, tmp_path / "P", organ="lung", groups="none")
    listed = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert [row[0] for row in listed] == ["image", "lung_n/lungaca3.jpeg", "lung_n/lungn2.jpeg", "lung_n/lungn5.jpeg"]
    assert sum(entry.count for entry in datalist.exclusions) == 3
    assert datalist.counts()["training"] == {"0": 6, "1": 3, "2": 6}


def test_folders_that_are_wrong(release, tmp_path):
    colon = release / "colon_image_sets"
    with refused(DataError, "missing_folder", path=str(tmp_path / "nowhere")):
        prepare(tmp_path / "nowhere", tmp_path / "P")
    missing = ["lung_aca", "lung_n", "lung_scc"]
    with refused(DataError, "missing_class_folder", path=str(colon), classes=missing):
        prepare(colon, tmp_path / "P")
    assert prepare(colon, tmp_path / "P", organ="colon", groups="none").num_classes == 2
    shutil.copytree(colon, release / "test")
    with refused(DataError, "duplicate_class_folder", path=str(release), classes=["colon_aca", "colon_n"]):
        prepare(release, tmp_path / "Q")
    shutil.rmtree(release / "test")
    for path in (colon / "colon_n").glob("colonn*"):
        path.write_bytes(b"no image")
    with refused(DataError, "class_without_images", classes=["colon_n"]):
        prepare(release, tmp_path / "Q")
    for path in (colon / "colon_n").glob("colonn*"):
        path.unlink()
    with refused(DataError, "no_images", path=str(colon / "colon_n")):
        prepare(release, tmp_path / "Q")
    assert not (tmp_path / "Q").exists()


@pytest.mark.parametrize(
    ("option", "code", "fields"),
    [
        ({"organ": "lungs"}, "unknown_choice", {"what": "organ", "choice": "lungs"}),
        ({"groups": "name"}, "unknown_choice", {"what": "groups", "choice": "name"}),
        ({"size": 0}, "setting_out_of_range", {"settings": ["size"]}),
    ],
)
def test_impossible_options(made, tmp_path, option, code, fields):
    with refused(SettingsError, code, **fields):
        prepare(made, tmp_path / "P", **option)


def test_the_command(made, tmp_path, capsys):
    words = ["prep", "lc25000", "--source", made, "--out", tmp_path / "P", "--organ", "colon", "--size", "8"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--workers", "1"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "12 training, 0 validation, 0 test images of 2 classes" in out
    assert "0 colon adenocarcinoma: 6" in out


def test_images_come_by_their_numbers_not_by_their_texts(tmp_path):
    for number in (10, 2, 1):
        path = tmp_path / "lung_n" / f"lungn{number}.jpeg"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert [path.stem for path in find_files(tmp_path, ["lung_n"]).paths] == ["lungn1", "lungn2", "lungn10"]
