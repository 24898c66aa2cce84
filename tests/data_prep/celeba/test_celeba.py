"""CelebA: prepared data of valid releases, and errors of invalid ones. File names here are private."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.partition.assign import distribute
from medfl.data.partition.by_column import by_site
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import Exclusion
from medfl_datasets.celeba.spec import CelebA
from medfl_datasets.celeba.synthetic import (
    ATTRIBUTE_NAMES,
    PERSONS,
    SPLITS,
    attribute_value,
    colour_of,
    file_name,
    write_images,
    write_release,
)
from medfl_datasets.celeba.tables import read_attribute

SPLIT_NAMES = ("training", "validation", "test")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("celeba"))


@pytest.fixture
def release(made, tmp_path):
    """Write a release that a test may modify."""
    return shutil.copytree(made, tmp_path / "CelebA")


def prepare(source, out, **options):
    return prepare_spec(CelebA, source, out, **{"size": (8, 8), "workers": 1} | options)


def records(datalist):
    """Return all records in the order of the array."""
    entries = [record | {"split": split} for split in SPLIT_NAMES for record in datalist.splits[split]]
    return sorted(entries, key=lambda record: record["image"])


def test_the_whole_way(made, tmp_path):
    lines: list[str] = []
    datalist = prepare(made, tmp_path / "P", say=lines.append)
    assert datalist == read_datalist(tmp_path / "P")
    assert lines[0] == "celeba: licence non-commercial research only; images may not be passed on"
    assert lines[1].startswith("Please cite: Liu")
    assert datalist.labels == {"0": "no Smiling", "1": "Smiling"}
    entries = records(datalist)
    assert [record["label"] for record in entries] == [
        int(attribute_value(image, "Smiling") == 1) for image in range(8)
    ]
    assert [record["split"] for record in entries] == [SPLIT_NAMES[number] for number in SPLITS]
    order = {person: f"{number:06d}" for number, person in enumerate(dict.fromkeys(PERSONS), 1)}
    assert [record["identity"] for record in entries] == [f"identity-{order[person]}" for person in PERSONS]
    assert [record["subject_id"] for record in entries] == [f"subject-{order[person]}" for person in PERSONS]
    assert datalist.extra["deviations"] == [
        "the table has 8 images; CelebA has 202599",
        "the table has 4 attributes; CelebA has 40",
        "there are 4 persons; CelebA has 10177",
    ]
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]
    text = "".join([*lines, (tmp_path / "P" / "datalist.json").read_text()])
    assert not any(secret in text for secret in ("jpg", "000100", "2880"))


def test_the_form_of_kaggle_gives_the_same_but_for_persons(made, tmp_path):
    expected = prepare(made, tmp_path / "P", attribute="young")
    lines: list[str] = []
    datalist = prepare(write_release(tmp_path, "kaggle"), tmp_path / "Q", attribute="Young", say=lines.append)
    assert [record["label"] for record in records(datalist)] == [record["label"] for record in records(expected)]
    assert [record["split"] for record in records(datalist)] == [record["split"] for record in records(expected)]
    np.testing.assert_array_equal(np.load(tmp_path / "Q" / "images.npy"), np.load(tmp_path / "P" / "images.npy"))
    assert len({record["subject_id"] for record in records(datalist)}) == 8
    assert not any("identity" in record for record in records(datalist))
    assert any("there is no identity_CelebA.txt: each image counts as a person of its own" in line for line in lines)


@pytest.mark.parametrize("name", ATTRIBUTE_NAMES)
def test_any_attribute_may_be_the_label(made, name):
    column = read_attribute(made / "Anno" / "list_attr_celeba.txt", name.upper())
    assert (column.name, column.known) == (name, 4)
    assert column.present == [int(attribute_value(image, name) == 1) for image in range(8)]
    assert (column.images[0], column.lines[0]) == ("000100", 3)


def test_whole_images_and_squares_out_of_the_middle(made, tmp_path):
    prepare(made, tmp_path / "P", size=(12, 6))
    prepare(made, tmp_path / "Q", crop=True)
    whole, square = (np.load(tmp_path / name / "images.npy").astype(int) for name in "PQ")
    assert whole.shape == (8, 12, 6, 3)
    assert whole[:, [0, -1]].max() <= 40, "the black bars above and below"
    for image in range(8):
        assert np.abs(square[image] - colour_of(image)).max() <= 6, "no bar is left"


def test_persons_are_sites_and_those_with_few_images_may_be_left_out(made, tmp_path):
    lines: list[str] = []
    datalist = prepare(made, tmp_path / "P", split="none", min_images=3, say=lines.append)
    assert "note: 2 images of 2 persons with fewer than 3 are left out" in lines
    assert datalist.exclusions == (Exclusion(reason="there are too few images of the person", count=2),)
    assert len(datalist.splits["training"]) == len(np.load(tmp_path / "P" / "images.npy")) == 6
    plan = PartitionPlan("by_site", column="identity", test="none", server_test="none")
    sites, _ = distribute(datalist, [b"%d" % row for row in range(6)], plan, by_site)
    sizes = {name: len(splits["training"]) for name, splits in sites.items()}
    assert sizes == {"identity-000001": 3, "identity-000002": 3}
    with refused(DataError, "too_few_images", minimum=4, found=3):
        prepare(made, tmp_path / "Q", min_images=4)


def test_tables_that_are_missing_matter_only_if_they_are_asked_for(release, tmp_path):
    (release / "Eval" / "list_eval_partition.txt").unlink()
    (release / "Anno" / "identity_CelebA.txt").unlink()
    assert len(prepare(release, tmp_path / "P").splits["training"]) == 8
    with refused(DataError, "missing_file", file="list_eval_partition.txt", setting="split"):
        prepare(release, tmp_path / "Q", split="official")
    with refused(DataError, "missing_file", file="identity_CelebA.txt", setting="min_images"):
        prepare(release, tmp_path / "Q", min_images=5)
    (release / "Anno" / "list_attr_celeba.txt").unlink()
    with refused(DataError, "missing_file", path=str(release / "list_attr_celeba.txt")):
        prepare(release, tmp_path / "Q")


def test_images_that_are_missing_broken_or_surplus(release, tmp_path):
    folder = release / "Img" / "img_align_celeba"
    (folder / file_name(1)).unlink()
    (folder / file_name(4)).write_bytes((folder / file_name(4)).read_bytes()[:400])
    Image.new("RGB", (64, 64)).save(folder / file_name(6))
    Image.new("RGB", (64, 64)).save(folder / "SECRET.jpg")
    write_images(release / "Img" / "img_celeba")  # those that are not aligned have the same names
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", say=lines.append)
    assert "note: 1 image files are in no row of list_attr_celeba.txt: they are skipped" in lines
    assert "1 of 6 images do not have the 218 x 178 pixels of CelebA" in datalist.extra["deviations"]
    listed = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert [row[0] for row in listed] == ["table_line", "4", "7"]
    kept = [image for image in range(8) if image not in (1, 4)]
    assert [record["label"] for record in records(datalist)] == [int(attribute_value(n, "Smiling") == 1) for n in kept]
    for image in folder.glob("*"):
        image.rename(image.with_name(f"face_{image.name}"))
    with refused(DataError, "no_images", path=str(release / "Anno" / "list_attr_celeba.txt"), expected=8):
        prepare(release, tmp_path / "Q")


@pytest.mark.parametrize(
    ("old", "new", "code", "fields"),
    [
        ("8\r\n", "9\r\n", "wrong_row_count", {"expected": 9, "found": 8}),
        ("8\r\n", "", "missing_row_count", {}),
        ("000101.jpg", "000100.jpg", "duplicate_row", {"lines": [3, 4], "total": 8}),
        ("000101.jpg ", "000101.jpg -1 ", "wrong_cell_count", {"expected": 5, "lines": [4], "total": 8}),
    ],
)
def test_an_attribute_table_that_is_wrong(release, tmp_path, old, new, code, fields):
    table = release / "Anno" / "list_attr_celeba.txt"
    content = table.read_bytes().decode()
    assert old in content
    table.write_bytes(content.replace(old, new, 1).encode())
    with refused(DataError, code, path=str(table), **fields) as caught:
        prepare(release, tmp_path / "P")
    assert "00010" not in str(caught.value)


def test_values_that_are_wrong(release, tmp_path):
    table = release / "Anno" / "list_attr_celeba.txt"
    right = table.read_text()
    table.write_text(right.replace("-1", " 0"))
    with refused(DataError, "invalid_value", path=str(table), expected=["1", "-1"], lines=[3, 5, 7, 8, 10]):
        prepare(release, tmp_path / "P")
    table.write_text(right)
    split = release / "Eval" / "list_eval_partition.txt"
    split.write_text(split.read_text().replace(" 2", " 3"))
    with refused(DataError, "invalid_value", path=str(split), expected=["0", "1", "2"], lines=[6, 7], total=8):
        prepare(release, tmp_path / "P")
    split.unlink()
    persons = release / "Anno" / "identity_CelebA.txt"
    persons.write_text("".join(persons.read_text().splitlines(keepends=True)[:-3]))
    with refused(DataError, "missing_row", path=str(persons), count=3, total=8):
        prepare(release, tmp_path / "P")
    persons.write_text(persons.read_text().replace("2880", "Ann"))
    with refused(DataError, "invalid_value", path=str(persons), lines=[1, 2, 4]):
        prepare(release, tmp_path / "P")


def test_a_class_without_images_and_tables_of_one_name(release, tmp_path):
    table = release / "Anno" / "list_attr_celeba.txt"
    table.write_text(table.read_text().replace("-1", " 1"))
    with refused(DataError, "class_without_images", classes=["no Smiling"]):
        prepare(release, tmp_path / "P")
    shutil.copy(table, release / "Eval")
    files = ["Anno/list_attr_celeba.txt", "Eval/list_attr_celeba.txt"]
    with refused(DataError, "ambiguous_file", path=str(release), files=files):
        prepare(release, tmp_path / "P")
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize(
    ("option", "code", "fields"),
    [
        ({"attribute": "Smilling"}, "unknown_choice", {"what": "attribute", "choice": "Smilling"}),
        ({"split": "offical"}, "unknown_choice", {"what": "split", "choice": "offical"}),
        ({"size": (0, 4)}, "setting_out_of_range", {"setting": "size", "minimum": 1, "found": [0, 4]}),
        ({"min_images": 0}, "setting_out_of_range", {"settings": ["min_images"]}),
    ],
)
def test_impossible_options(made, tmp_path, option, code, fields):
    with refused(SettingsError, code, **fields):
        prepare(made, tmp_path / "P", **option)


def test_the_command(made, tmp_path, capsys):
    words = ["prep", "celeba", "--source", made, "--out", tmp_path / "P", "--attribute", "Male", "--size", "16x12"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--workers", "1"])
    assert ended.value.code == 0
    assert "3 training, 3 validation, 2 test images of 2 classes" in capsys.readouterr().out
    assert np.load(tmp_path / "P" / "images.npy").shape == (8, 16, 12, 3)
