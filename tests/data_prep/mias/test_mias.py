"""mini-MIAS: its table, whole films and crops."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import pytest
from prepare_specs import prepare_spec

from medfl.cli.main import main
from medfl.data.datalists import SPLITS, read_datalist
from medfl.data.readers.mammograms import to_row
from medfl_datasets.mias.files import crop_box
from medfl_datasets.mias.pgm import read_pgm
from medfl_datasets.mias.selection import select_images
from medfl_datasets.mias.spec import LABEL_SETS, Mias
from medfl_datasets.mias.synthetic import (
    KINDS,
    SEVERITIES,
    SOME_FILMS,
    SOME_ROWS,
    TISSUES,
    official_rows,
    write_film,
    write_release,
    write_table,
)
from medfl_datasets.mias.tables import deviations, read_films


def prepare(source, out, size=8, **options):
    return prepare_spec(Mias, source, out, size=(size, size), **{"workers": 1} | options)


def records(datalist):
    entries = [record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])]
    return sorted(entries, key=lambda record: record["image"])


def exclusions(datalist):
    return {entry.reason: entry.count for entry in datalist.exclusions}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Write all films at a small size, and prepare the data set."""
    place = tmp_path_factory.mktemp("mias")
    release, lines = write_release(place, official_rows(), edge=8), []
    prepare(release, place / "P", size=8, say=lines.append)
    return release, place / "P", lines


@pytest.fixture
def release(tmp_path):
    """Write a few films, and a table of only these, that a test may modify."""
    return write_release(tmp_path, edge=8)


@pytest.fixture(scope="module")
def lesions(tmp_path_factory):
    """Write a few films of the real size, and the whole table."""
    return write_release(tmp_path_factory.mktemp("lesions"), official_rows(), [1, 5, 144, 212, 239], edge=1024)


def test_the_published_counts(whole):
    films = read_films(whole[0] / "Info.txt")
    findings = [finding for film in films for finding in film.findings]
    assert (len(findings), len(films), len({film.patient for film in films})) == (330, 322, 161)
    assert Counter(finding.kind for finding in findings) == KINDS
    assert Counter(finding.tissue for finding in findings) == TISSUES
    assert Counter(finding.severity for finding in findings) == SEVERITIES | {"": 207}
    assert Counter(film.diagnosis for film in films) == {"normal": 207, "benign": 63, "malignant": 52}
    assert sum(finding.circle is not None for finding in findings) == 119
    bare = {finding.film for finding in findings if finding.severity and finding.circle is None}
    assert bare == {59, 216, 233, 245}
    assert {film.number: len(film.findings) for film in films if len(film.findings) > 1} == {
        **{5: 2, 132: 2, 144: 2, 223: 2},
        **{226: 3, 239: 2, 249: 2},
    }
    assert next(film for film in films if film.number == 144).diagnosis == "malignant", "it has a benign row, too"
    assert deviations(films) == []


def test_whole_films(whole):
    release, pool, lines = whole
    datalist = read_datalist(pool)
    assert lines[0].startswith("mias: licence research only; no redistribution")
    assert lines[1].startswith("Please cite: Suckling")
    assert not any("warning" in line for line in lines)
    assert (datalist.name, datalist.modality) == ("mias", "mammography")
    assert datalist.labels == {"0": "normal", "1": "benign", "2": "malignant"}
    assert exclusions(datalist) == {}
    assert sorted(path.name for path in pool.iterdir()) == ["datalist.json", "images.npy"]
    assert "mdb" not in (pool / "datalist.json").read_text()
    images, entries = np.load(pool / "images.npy"), records(datalist)
    assert (images.shape, images.dtype, len(entries)) == ((322, 8, 8), np.uint16, 322)
    assert Counter(record["label"] for record in entries) == {0: 207, 1: 63, 2: 52}
    for film, record in zip(read_films(release / "Info.txt"), entries, strict=True):
        number = film.number
        pixels = images[record["image"]]
        assert abs(int(pixels[0, 0 if number % 2 else -1]) / 257 - (100 + number % 100)) < 1, "its own film"
        assert record["laterality"] == ("right" if number % 2 else "left")
        assert record["view"] == "MLO"
        assert record["subject_id"] == f"subject-{(number + 1) // 2:06d}", "two films of each patient"
    assert (entries[2]["tissue"], entries[2]["finding"]) == ("dense-glandular", "normal")
    assert (entries[143]["label"], entries[143]["finding"]) == (2, "other mass")


def test_a_patient_is_on_one_side_and_each_diagnosis_gives_its_share(whole):
    entries = records(read_datalist(whole[1]))
    sides: dict[str, set[str]] = {}
    worst: dict[str, int] = {}
    for record in entries:
        sides.setdefault(record["subject_id"], set()).add(record["split"])
        worst[record["subject_id"]] = max(worst.get(record["subject_id"], 0), record["label"])
    assert {len(side) for side in sides.values()} == {1}
    test_patients = [subject for subject, side in sides.items() if side == {"test"}]
    assert len(test_patients) == round(0.15 * 161)
    for label in range(3):
        all_of = sum(number == label for number in worst.values())
        assert abs(sum(worst[subject] == label for subject in test_patients) - 0.15 * all_of) < 1


def test_the_test_set_depends_on_seed_and_share_alone(release, tmp_path):
    def test_patients(name, **options):
        datalist = prepare(release, tmp_path / name, size=4, test_share=0.3, **options)
        return {(r["tissue"], r["finding"], r["laterality"]) for r in records(datalist) if r["split"] == "test"}

    first = test_patients("A")
    assert first == test_patients("B")
    assert test_patients("C", labels="benign-malignant") <= first
    assert any(test_patients(f"D{seed}", seed=seed) != first for seed in (1, 2, 3))
    everything = prepare(release, tmp_path / "E", size=4, test_share=0)
    assert len(everything.splits["training"]) == len(SOME_FILMS)


def test_other_labels(whole, tmp_path):
    lesions_only = prepare(whole[0], tmp_path / "A", size=2, labels="benign-malignant")
    assert lesions_only.labels == {"0": "benign", "1": "malignant"}
    assert Counter(record["label"] for record in records(lesions_only)) == {0: 63, 1: 52}
    assert exclusions(lesions_only) == {"normal, which is not among the labels": 207}
    rest = prepare(whole[0], tmp_path / "B", size=2, labels="malignant-rest")
    assert rest.labels == {"0": "benign or normal", "1": "malignant"}
    assert Counter(record["label"] for record in records(rest)) == {0: 270, 1: 52}


def test_crops_show_the_lesion_where_y_counts_from_the_bottom(lesions, tmp_path):
    lines: list[str] = []
    datalist = prepare(lesions, tmp_path / "P", size=64, view="crop", test_share=0, say=lines.append)
    images, entries = np.load(tmp_path / "P" / "images.npy"), records(datalist)
    assert [record["label"] for record in entries] == [0, 0, 0, 0, 1, 0, 1, 1], "each lesion has its own severity"
    assert [record["subject_id"] for record in entries] == [f"subject-{n:06d}" for n in (1, 2, 2, 3, 3, 4, 5, 5)]
    rows = [row for number in (1, 5, 144, 212, 239) for row in official_rows()[number]]
    for row, pixels in zip(rows, images, strict=True):
        x, y, radius = map(int, row.split()[-3:])
        top, left, side = crop_box((x, y, radius))
        middle = [round((place + 0.5) * 64 / side) for place in (1023 - y - top, x - left)]
        core = pixels[middle[0] - 1 : middle[0] + 1, middle[1] - 1 : middle[1] + 1] / 257
        assert core.min() > 140, "its lesion"
    assert exclusions(datalist)["the table has no coordinates of the abnormality"] == 4
    assert exclusions(datalist)["normal, which is not among the labels"] == 207
    assert exclusions(datalist)["the film has no file"] == 119 - 8
    assert (datalist.name, datalist.extra["view"]) == ("mias-crop", "crop")


def test_every_lesion_with_coordinates_is_a_crop(whole, tmp_path):
    films = read_films(whole[0] / "Info.txt")
    files = {film.number: tmp_path for film in films}
    selection = select_images(films, files, "crop", {"benign": "b", "malignant": "m"}, print)
    assert Counter(selection.classes) == {"b": 69 - 1, "m": 54 - 3}
    assert all(image.circle for image in selection.images)


@pytest.mark.parametrize(
    ("circle", "box"),
    [
        ((500, 23, 100), (1023 - 300, 350, 301)),
        ((500, 500, 3), (523 - 32, 500 - 32, 65)),
        ((0, 1023, 50), (0, 0, 151)),
        ((1023, 0, 50), (1024 - 151, 1024 - 151, 151)),
        ((512, 511, 600), (0, 0, 1024)),
    ],
    ids=["at the bottom", "small", "top left", "bottom right", "larger than the film"],
)
def test_the_box_of_a_crop(circle, box):
    """Check that a crop around row 1000 that would end at row 1150 moves up to end at row 1023."""
    assert crop_box(circle) == box


def test_breasts_are_cut_out_and_right_ones_mirrored(release, tmp_path):
    prepare(release, tmp_path / "P", size=8)
    prepare(release, tmp_path / "M", size=8, align=True)
    plain, aligned = (np.load(tmp_path / name / "images.npy") for name in ("P", "M"))
    assert (aligned[:, :, 0] == 65535).all(), "the chest wall is white, and on the left"
    assert np.array_equal(aligned[0], plain[0][:, ::-1])
    assert np.array_equal(aligned[1], plain[1])
    pytest.importorskip("skimage")
    for number in SOME_FILMS:
        write_film(release, number, edge=100)
    prepare(release, tmp_path / "C", size=8, crop_breast=True)
    expected = to_row(read_pgm(release / "mdb002.pgm"), (8, 8), crop=True)
    assert np.array_equal(np.load(tmp_path / "C" / "images.npy")[1], expected)


@pytest.mark.parametrize("layout", ["parent", "bare", "apart", "capitals"])
def test_copies_of_others(release, tmp_path, layout):
    before, source = prepare(release, tmp_path / "P", size=4), release
    if layout == "parent":
        source = release.parent
    elif layout == "bare":
        write_table(release / "Info.txt", SOME_ROWS, bare=True)
    elif layout == "apart":
        (source := tmp_path / "copy").mkdir()
        shutil.move(release / "Info.txt", source)
        shutil.move(release, source / "all-mias")
    else:
        (release / "Info.txt").rename(release / "INFO.TXT")
        (release / "mdb001.pgm").rename(release / "MDB001.PGM")
    assert prepare(source, tmp_path / "Q", size=4) == before
    assert (tmp_path / "P" / "images.npy").read_bytes() == (tmp_path / "Q" / "images.npy").read_bytes()


def test_a_table_that_differs_is_reported(whole, tmp_path):
    rows = official_rows()
    rows[212], rows[214] = ["G NORM"], ["G NORM"]
    write_table(tmp_path / "Info.txt", rows, bare=True)
    assert deviations(read_films(tmp_path / "Info.txt")) == [
        "Info.txt has 209 normal, 67 benign, 54 malignant rows; the official one has 207 normal, 69 benign, "
        "54 malignant",
        "Info.txt has 209 normal, 61 benign, 52 malignant films; the official one has 207 normal, 63 benign, "
        "52 malignant",
    ]


def test_the_command(release, tmp_path, capsys):
    words = [
        "prep",
        "mias",
        "--source",
        release,
        "--out",
        tmp_path / "P",
        "--size",
        "4x6",
        "--labels",
        "malignant-rest",
    ]
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in [*words, "--test-share", 0, "--workers", 1]])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    assert "14 training, 0 validation, 0 test films of 2 classes" in printed.out
    assert "  1 malignant: 3" in printed.out
    assert printed.err.startswith("mias: licence research only")
    assert np.load(tmp_path / "P" / "images.npy").shape == (14, 4, 6)


def test_the_worst_lesion_of_a_film_says_what_was_found(tmp_path):
    write_table(tmp_path / "Info.txt", {1: ["G CIRC B 300 400 20", "G SPIC M 500 600 30", "G CALC B 100 100 10"]})
    films = read_films(tmp_path / "Info.txt")
    selection = select_images(films, {1: tmp_path / "mdb001.pgm"}, "full", LABEL_SETS["three-class"], print)
    assert (selection.classes, selection.findings[0].kind) == (["malignant"], "SPIC")
