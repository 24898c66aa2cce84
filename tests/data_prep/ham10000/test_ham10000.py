"""HAM10000: prepared data of valid releases. Names of images and lesions here are private."""

from __future__ import annotations

import csv
import shutil
from collections import Counter

import numpy as np
import pytest
from ham10000_small import exclusions, prepare
from PIL import Image
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare as prepare_dataset
from medfl.data.partition.assign import distribute
from medfl.data.partition.class_skew import dirichlet_class
from medfl.data.partition.plan import PartitionPlan
from medfl.errors import DataError
from medfl.records.partition import Partition
from medfl_datasets.ham10000.files import crop_box
from medfl_datasets.ham10000.spec import HAM10000, make_records
from medfl_datasets.ham10000.synthetic import (
    HEADER,
    IMAGES_BY_COLLECTION,
    IMAGES_BY_DIAGNOSIS,
    LESIONS_BY_DIAGNOSIS,
    lesion_colour,
    make_rows,
    write_images,
    write_release,
    write_table,
)
from medfl_datasets.ham10000.tables import read_metadata

CLASSES = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("ham10000"), masks=True)


@pytest.fixture
def release(made, tmp_path):
    """Write a small release that a test may modify."""
    return shutil.copytree(made, tmp_path / "HAM10000")


@pytest.fixture(scope="module")
def rows():
    return make_rows()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Write all 10,015 rows of the table, without images."""
    rows = make_rows({dx: (images, LESIONS_BY_DIAGNOSIS[dx]) for dx, images in IMAGES_BY_DIAGNOSIS.items()})
    path = tmp_path_factory.mktemp("whole") / "HAM10000_metadata"
    write_table(path, rows)
    return path, rows


# ---- the table


def test_the_published_counts(whole, tmp_path):
    path, rows = whole
    metadata = read_metadata(path)
    assert Counter(CLASSES[label] for label in metadata.labels) == IMAGES_BY_DIAGNOSIS
    assert len(set(metadata.lesions)) == 7470
    unknown = {
        column: sum(fact[column] is None for fact in metadata.facts) for column in ("age", "sex", "localization")
    }
    assert unknown == {"age": 57, "sex": 57, "localization": 234}
    assert Counter(fact["dataset"] for fact in metadata.facts) == IMAGES_BY_COLLECTION
    assert metadata.deviations() == []
    write_table(tmp_path / "kaggle.csv", [{column: row[column] for column in HEADER} for row in rows])
    kaggle = read_metadata(tmp_path / "kaggle.csv")
    assert kaggle.deviations() == []
    assert set(kaggle.facts[0]) == {"age", "sex", "localization"}


@pytest.mark.parametrize("groups", ["image", "lesion"])
def test_thirty_images_of_each_class_test_and_the_rest_trains(whole, groups):
    """Check the split of FedSDC's paper (oracle O-D4)."""
    metadata = read_metadata(whole[0])
    records = make_records(metadata, range(10_015), groups)
    source = HAM10000(source=whole[0]).make_datalist(list(IMAGES_BY_DIAGNOSIS), "dermoscopy", records)
    plan = PartitionPlan(
        "dirichlet_class", 15, options={"alpha": 5.0}, test="none", server_test="per_class", per_class=30
    )
    sites, _ = distribute(source, [b"%d" % row for row in range(10_015)], plan, dirichlet_class)
    held = sites.pop("global")["test"]
    dealt = [record for splits in sites.values() for record in splits["training"]]
    tested, trained = ({metadata.lesions[record["image"]] for record in records} for records in (held, dealt))
    counts = Counter(record["label"] for record in held)
    if groups == "image":
        assert (len(held), len(dealt)) == (210, 9805)
        assert set(counts.values()) == {30}
        assert tested & trained, "the leak that splitting by image has"
    else:
        assert not tested & trained
        assert len(held) + len(dealt) == 10_015
        assert all(25 <= counts[label] <= 30 for label in range(7))


# ---- the whole way


def test_the_whole_way(release, rows, tmp_path):
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", preset="medfl", say=lines.append)
    assert datalist == read_datalist(tmp_path / "P")
    assert lines[0] == "ham10000: licence CC BY-NC 4.0"
    assert lines[1].startswith("Please cite: Tschandl")
    assert (datalist.name, datalist.modality, datalist.num_classes) == ("ham10000", "dermoscopy", 7)
    assert list(datalist.labels.values()) == CLASSES
    assert (datalist.extra["groups"], datalist.warnings, exclusions(datalist)) == ("lesion", (), {})
    images = np.load(tmp_path / "P" / "images.npy")
    assert (images.dtype, images.shape) == (np.uint8, (21, 4, 4, 3))
    assert {split: len(part) for split, part in datalist.splits.items()} == {"training": 21, "validation": 0, "test": 0}
    subjects: dict[str, str] = {}
    for place, (row, record) in enumerate(zip(rows, datalist.splits["training"], strict=True)):
        assert record["image"] == place
        assert CLASSES[record["label"]] == row["dx"]
        assert subjects.setdefault(row["lesion_id"], record["subject_id"]) == record["subject_id"]
        assert record["dataset"] == row["dataset"]
        known = (place % 17 * 5.0, ("female", "male")[place % 2]) if place > 1 else (None, None)
        assert (record["age"], record["sex"]) == known
        assert record["localization"] == ("lower extremity" if place > 2 else None)
    assert len(set(subjects.values())) == 14, "lesions"
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]
    assert "secret" not in "".join([*lines, (tmp_path / "P" / "datalist.json").read_text()]).lower()
    assert lines[2] == (
        "warning: 21 images (akiec 3, bcc 3, bkl 3, df 3, mel 3, nv 3, vasc 3); HAM10000 has 10015 images "
        "(akiec 327, bcc 514, bkl 1099, df 115, mel 1113, nv 6705, vasc 142)"
    )
    assert datalist.extra["deviations"][1] == "14 lesions; HAM10000 has 7470"


def in_one_folder(release, rows, place):
    """Write ISIC's layout: one renamed image folder, one level down, and Dataverse's table without ending."""
    for path in release.glob("*part*/*.jpg"):
        (place / "ISIC2018_Task3_Training_Input").mkdir(exist_ok=True, parents=True)
        shutil.copy(path, place / "ISIC2018_Task3_Training_Input" / path.name.replace(".jpg", ".JPG"))
    write_table(place / "HAM10000_metadata", rows)


def nested(release, rows, place):
    """Write the release two levels down, with a tab-separated table and unrelated tables of pixels."""
    shutil.copytree(release, place / "dataverse_files" / "images")
    (place / "dataverse_files" / "images" / "HAM10000_metadata.csv").unlink()
    write_table(place / "dataverse_files" / "HAM10000_metadata.tab", rows, "\t", quoting=csv.QUOTE_ALL)
    (place / "hmnist_28_28_RGB.csv").write_text("pixel0000,label\n1,2\n")
    (place / "dataverse_files" / "._ISIC_SECRET00001.jpg").write_bytes(b"Mac OS X")


def doubled(release, rows, place):
    """Write Kaggle's second copy of both folders in lower case."""
    shutil.copytree(release, place)
    for part in ("part_1", "part_2"):
        shutil.copytree(place / f"HAM10000_images_{part}", place / f"kaggle_ham10000_images_{part}")


@pytest.mark.parametrize("layout", [in_one_folder, nested, doubled])
def test_other_layouts_give_the_same(release, rows, tmp_path, layout):
    layout(release, rows, tmp_path / "other")
    expected = prepare(release, tmp_path / "P")
    lines: list[str] = []
    assert prepare(tmp_path / "other", tmp_path / "Q", say=lines.append).splits == expected.splits
    assert not [line for line in lines if "skipped" in line], "no file is surplus"
    np.testing.assert_array_equal(np.load(tmp_path / "Q" / "images.npy"), np.load(tmp_path / "P" / "images.npy"))


def test_each_image_is_its_own_and_the_table_may_lie_elsewhere(rows, tmp_path):
    write_images(tmp_path / "isic", rows)
    write_table(tmp_path / "of_all.csv", rows)
    lines: list[str] = []
    picture = tmp_path / "isic" / "HAM10000_images_part_1" / f"{rows[0]['image_id']}.jpg"
    shutil.copy(picture, picture.with_name("ISIC_SECRET.jpg"))
    prepare(tmp_path / "isic", tmp_path / "P", metadata=tmp_path / "of_all.csv", say=lines.append)
    for place, pixels in enumerate(np.load(tmp_path / "P" / "images.npy")):
        assert np.abs(pixels.astype(int) - lesion_colour(place)).max() <= 3
    assert "note: 1 image files are in no row of of_all.csv: they are skipped" in lines


def test_images_may_count_as_lesions_of_their_own(release, tmp_path):
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", preset="paper", say=lines.append)
    assert len({record["subject_id"] for record in datalist.splits["training"]}) == 21
    (sentence,) = datalist.warnings
    assert "14 of 21 images are of lesions with several images, and these may be in training and in" in sentence
    assert f"warning: {sentence}" in lines
    _, notes = distribute(
        datalist, [b"%d" % row for row in range(21)], PartitionPlan("dirichlet_class", 2), dirichlet_class
    )
    assert notes.warnings[0] == sentence, "a partition says so, too"
    assert prepare(release, tmp_path / "Q", preset="paper", groups="lesion").warnings == ()


def test_without_lesions_the_user_has_to_say_what_is_wanted(release, rows, tmp_path):
    table = release / "HAM10000_metadata.csv"
    write_table(table, [{key: row[key] for key in HEADER if key != "lesion_id"} for row in rows])
    with refused(DataError, "missing_column", path=str(table), columns=["lesion_id"]) as error:
        prepare(release, tmp_path / "P")
    assert "--groups image" in str(error.value)
    datalist = prepare(release, tmp_path / "P", groups="image")
    assert "the table does not state which images are of one lesion" in datalist.warnings[0]


# ---- lesions cut out


@pytest.mark.parametrize(
    ("rows", "columns", "box"),
    [
        ((40, 49), (10, 29), (33, 57, 8, 32)),  # 10 x 20 pixels, edge 24
        ((0, 9), (90, 99), (0, 12, 88, 100)),  # moved in from two borders
        ((0, 99), (20, 69), (0, 100, 0, 100)),  # as large as the image
    ],
)
def test_a_crop_is_a_square_around_the_lesion(rows, columns, box):
    assert crop_box(np.array(rows), np.array(columns), (100, 100)) == box


def test_a_crop_is_no_larger_than_the_image():
    assert crop_box(np.array([5, 30]), np.array([100, 190]), (40, 300)) == (0, 40, 90, 200)


def test_lesions_are_cut_out(release, tmp_path):
    whole = prepare(release, tmp_path / "P", size=10)
    datalist = prepare(release, tmp_path / "Q", size=10, crop_lesion=True)
    assert (datalist.name, datalist.splits) == ("ham10000-crop", whole.splits)
    for place, pixels in enumerate(np.load(tmp_path / "Q" / "images.npy").astype(int)):
        assert np.abs(pixels[4:6, 2:8] - lesion_colour(place)).max() <= 30, "the lesion, 8 of 10 columns wide"
        assert pixels[[0, 1, 8, 9]].max() <= 30, "skin above and below"


def test_masks_that_are_missing_or_wrong_leave_images_out(release, rows, tmp_path):
    masks = [release / "HAM10000_segmentations_lesion_tschandl" / f"{row['image_id']}_segmentation.png" for row in rows]
    masks[4].unlink()
    Image.new("L", (24, 16)).save(masks[6])
    Image.new("L", (25, 16), 255).save(masks[9])
    datalist = prepare(release, tmp_path / "P", crop_lesion=True)
    assert sum(exclusions(datalist).values()) == 3
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert quarantine[1] == ["6", "there is no mask of the lesion"]
    assert [row[1].split(". ")[0] for row in quarantine[2:]] == [
        "the mask shows no lesion",
        "the mask has another size than its image",
    ]
    assert [row[0] for row in quarantine] == ["table_row", "6", "8", "11"]
    shutil.rmtree(masks[0].parent)
    with refused(DataError, "no_masks", setting="crop_lesion"):
        prepare(release, tmp_path / "Q", crop_lesion=True)


# ---- the command, and studies


def test_a_study_prepares_it(release, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.data.ingest.pipeline.core_count", lambda: 1)
    release.rename(tmp_path / "ham10000")
    options = {"size": 5, "preset": "paper", "crop_lesion": True}
    spec = HAM10000(**HAM10000.locate(tmp_path, options), **options)
    prepare_dataset(spec, tmp_path / "P")
    datalist = read_datalist(tmp_path / "P")
    assert (datalist.name, datalist.extra["groups"]) == ("ham10000-crop", "image")
    assert np.load(tmp_path / "P" / "images.npy").shape == (21, 5, 5, 3)


def test_the_command_and_the_collections_as_sites(release, rows, tmp_path, capsys):
    from medfl.cli.main import main

    def medfl(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert end.value.code == 0, printed.err
        return printed

    options = ("--source", release, "--out", tmp_path / "P", "--size", "3x4", "--workers", 1)
    printed = medfl("prep", "ham10000", *options, "--preset", "paper")
    assert "21 training, 0 validation, 0 test images of 7 classes" in printed.out
    assert "  5 nv: 3" in printed.out
    assert np.load(tmp_path / "P" / "images.npy").shape == (21, 3, 4, 3)
    sites = ("--scheme", "by_site", "--column", "dataset", "--test", "none", "--server-test", "none")
    printed = medfl("partition", tmp_path / "P", "--out", tmp_path / "D", *sites)
    assert "note: each image counts as a lesion of its own" in printed.err
    warnings = Partition.read(tmp_path / "D" / Partition.NAME).warnings
    assert warnings[0].startswith("each image counts as a lesion of its own")
    for name, count in Counter(row["dataset"] for row in rows).items():
        assert len(read_datalist(tmp_path / "D" / name).splits["training"]) == count
