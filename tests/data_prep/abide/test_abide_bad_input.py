"""Invalid releases of ABIDE: errors, exclusions and the lines that report them."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from abide_maker import TWO, changed, copied, make_release, map_of, prepare, rewrite_table, save, used_rows
from refusals import refused

from medfl.data.ingest import array_file as new_array
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import Exclusion
from medfl_datasets.abide import map_reading
from medfl_datasets.abide.files import MapSelection
from medfl_datasets.abide.synthetic import ATLAS_FILE
from medfl_datasets.abide.tables import PHENOTYPE_FILE


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("abide") / "R")


@pytest.fixture
def release(made, tmp_path):
    return copied(made, tmp_path / "R")


def check_refused(release, out, code, fields, kind=DataError, **options):
    """Check that preparing fails, nothing is written, and no subject is named. Return the message."""
    ids = [row["FILE_ID"] for row in used_rows(release)] if (release / PHENOTYPE_FILE).is_file() else []
    with refused(kind, code, **fields) as error:
        prepare(release, out, **{"maps": TWO, "size": 8, **options})
    assert not out.exists()
    assert not [path for path in out.parent.iterdir() if path.name.startswith(f".{out.name}")]
    assert not any(file_id in str(error.value) for file_id in ids)
    assert not any(file_id in str(error.value.fields) for file_id in ids)
    return str(error.value)


def quarantine(out):
    with (out / "quarantine.csv").open() as file:
        return [tuple(row) for row in csv.reader(file)]


def test_missing_maps_are_counted_and_named_and_stop_nothing(release, tmp_path):
    empty_classes = [map_of(release, 3), map_of(release, 9, "lfcd"), map_of(release, 3, "lfcd")]
    for _, path in empty_classes:
        path.unlink()
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", maps=TWO, size=8, say=lines.append)
    rows = [row for row, _ in empty_classes]
    assert [line for line in lines if "warning" in line] == [
        f"warning: no reho map of 1 of 20 subjects: table row {rows[0]}",
        f"warning: no lfcd map of 2 of 20 subjects: table rows {rows[0]}, {rows[1]}",
        "warning: 2 subjects without all maps were left out: see quarantine.csv",
    ]
    assert quarantine(tmp_path / "P") == [
        ("table_row", "derivative", "reason"),
        (str(rows[0]), "lfcd", "there is no map"),
        (str(rows[0]), "reho", "there is no map"),
        (str(rows[1]), "lfcd", "there is no map"),
    ]
    assert len(datalist.splits["training"]) == 18
    assert datalist.exclusions[-1] == Exclusion(reason="a map is missing", count=2)
    counts = {"count": 3, "total": 39}
    message = check_refused(release, tmp_path / "Q", "unreadable_image", counts, require_complete=True)
    assert f"there is no map (lfcd: table rows {rows[0]}, {rows[1]})" in message


def test_few_unreadable_maps_are_left_out_and_named(release, tmp_path):
    (first_row, first), (other, second) = map_of(release, 2), map_of(release, 11, "lfcd")
    first.write_bytes(first.read_bytes()[:500])
    changed(second, lambda values: np.where(values > 0, np.nan, 0))
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", maps=TWO, size=8, say=lines.append)
    assert lines[-1] == "warning: 2 subjects without all maps were left out: see quarantine.csv"
    assert lines[-2].startswith("warning: 2 maps can't be read: the NIfTI file is damaged or cut short (EOFError)")
    assert f"(reho: table row {first_row})" in lines[-2]
    assert f"not finite (NaN or infinite) (lfcd: table row {other})" in lines[-2]
    assert [row[:2] for row in quarantine(tmp_path / "P")[1:]] == [(str(first_row), "reho"), (str(other), "lfcd")]
    assert datalist.exclusions[-1] == Exclusion(reason="a map can't be read", count=2)
    whole = prepare(release, tmp_path / "W", maps=MapSelection(("lfcd",)), size=8)
    assert len(whole.splits["training"]) == 19
    images, both = np.load(tmp_path / "W" / "images.npy"), np.load(tmp_path / "P" / "images.npy")
    assert both.shape[0] == len(datalist.splits["training"]) == 18
    place = {record["subject_id"]: record["image"] for record in whole.splits["training"]}
    for record in datalist.splits["training"]:
        np.testing.assert_array_equal(both[record["image"], ..., 1], images[place[record["subject_id"]], ..., 0])
    counts = {"count": 2, "total": 40}
    check_refused(release, tmp_path / "Q", "unreadable_image", counts, require_complete=True)


def test_more_than_five_percent_of_unreadable_maps_stop(release, tmp_path):
    rows = []
    for place in (2, 7, 8):
        row, path = map_of(release, place)
        path.write_bytes(b"")
        rows.append(row)
    fields = {"count": 3, "total": 40, "rows": rows}
    message = check_refused(release, tmp_path / "P", "too_many_unreadable", fields)
    assert f"(reho: table rows {', '.join(map(str, rows))})" in message


def spoilt_gzip(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def degenerate(path):
    flat = np.diag([9.0, 9, 0, 1])
    raw = save(path.with_name("flat.nii"), np.ones((4, 4, 4), np.float32), np.eye(4)).read_bytes()
    path.with_name("flat.nii").unlink()
    path.unlink()
    rows = flat[:3].astype("<f4").tobytes()
    path.with_name(path.name.removesuffix(".gz")).write_bytes(raw[:280] + rows + raw[328:])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoilt_gzip, "damaged or cut short"),
        (degenerate, "the affine of the NIfTI file is degenerate"),
        (lambda path: changed(path, lambda values: values * 0), "the map is constant"),
        (lambda path: changed(path, affine=np.diag([900.0, 900, 900, 1])), "outside the common grid"),
        (lambda path: changed(path, lambda values: values[..., :1, 0]), "got the shape 12x1"),
    ],
)
def test_ways_to_be_unreadable(release, tmp_path, spoil, message):
    row, path = map_of(release, 5)
    spoil(path)
    prepare(release, tmp_path / "P", maps=TWO, size=8)
    (_, (name, derivative, reason)) = quarantine(tmp_path / "P")
    assert (name, derivative) == (str(row), "reho")
    assert message in reason


def test_maps_of_unlike_shape_and_affine_are_put_on_one_grid(release, tmp_path):
    """Check that a finer map with a mirrored axis, the same brain by its affine, gives the same image."""
    before = prepare(release, tmp_path / "A", maps=TWO, size=12)
    finer = np.diag([8.0, 8, 8, 1])
    finer[:3, 3] = (-92, -110, -84)
    changed(map_of(release, 4)[1], lambda values: values[::-1].repeat(2, 0).repeat(2, 1).repeat(2, 2), affine=finer)
    after = prepare(release, tmp_path / "B", maps=TWO, size=12)
    assert before == after
    first, other = (np.load(tmp_path / name / "images.npy") for name in "AB")
    np.testing.assert_allclose(first, other, atol=1e-4)


def test_ids_that_match_no_map(release, tmp_path):
    rewrite_table(release, lambda row, place: row | {"FILE_ID": f"Other_{place:07d}"})
    fields = {"path": str(release), "subjects": 20, "unused_files": 50}
    check_refused(release, tmp_path / "P", "no_images", fields)


def test_a_derivative_of_which_there_is_no_map(release, tmp_path):
    fields = {"classes": ["control", "autism"]}
    check_refused(release, tmp_path / "P", "class_without_images", fields, maps=MapSelection(("reho", "vmhc")))


def test_a_class_may_not_be_lost(release, tmp_path):
    for place, row in enumerate(used_rows(release)):
        if row["DX_GROUP"] == "1":
            map_of(release, place)[1].unlink()
    check_refused(release, tmp_path / "P", "class_without_images", {"classes": ["autism"]})


def test_a_source_without_a_phenotypic_file(release, tmp_path):
    shutil.move(release / PHENOTYPE_FILE, tmp_path / "own.csv")
    message = check_refused(release, tmp_path / "P", "missing_file", {"path": str(release / PHENOTYPE_FILE)})
    assert "Add --download" in message
    none = tmp_path / "none.csv"
    check_refused(release, tmp_path / "P", "missing_file", {"path": str(none)}, phenotypes=none)
    assert len(prepare(release, tmp_path / "P", maps=TWO, phenotypes=tmp_path / "own.csv", size=8).splits["training"])


def test_a_phenotypic_file_without_needed_columns(release, tmp_path):
    text = (
        (release / PHENOTYPE_FILE).read_text().replace("qc_func_rater_3", "qc_func_rater_4").replace("DX_GROUP", "DX")
    )
    (release / PHENOTYPE_FILE).write_text(text)
    with refused(
        DataError, "missing_column", path=str(release / PHENOTYPE_FILE), columns=["DX_GROUP", "qc_func_rater_3"]
    ):
        prepare(release, tmp_path / "P", maps=TWO)


@pytest.mark.parametrize(
    ("labels", "affine", "code", "fields"),
    [
        (np.zeros((9, 9, 9), np.uint8), np.eye(4), "empty_atlas", {}),
        (
            np.ones((9, 9, 9), np.uint8),
            np.diag([-9.0, 9, 9, 1]) + np.eye(4, k=3) * 900,
            "different_space",
            {"share": 0.0},
        ),
    ],
)
def test_an_atlas_is_checked_before_any_map_is_read(release, tmp_path, monkeypatch, labels, affine, code, fields):
    monkeypatch.setattr(map_reading, "read_map", lambda *rest: pytest.fail("a map is read"))
    check_refused(release, tmp_path / "P", code, fields, atlas=save(tmp_path / "a.nii.gz", labels, affine))


def test_impossible_options(release, tmp_path):
    out, limits = tmp_path / "P", {"setting": "size", "minimum": 4, "maximum": 256, "found": 3}
    check_refused(release, out, "setting_out_of_range", limits, SettingsError, size=3)
    check_refused(release, out, "identifying_column", {"column": "subject"}, SettingsError, sites="subject")


def test_a_full_disk_is_reported_before_anything_is_read(release, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(new_array, "_free_bytes", lambda folder: 20 * 8**3 * 2 * 4 - 1)
        with refused(DataError, "disk_full", needed=20 * 8**3 * 2 * 4):
            prepare(release, tmp_path / "P", size=8)
    assert not (tmp_path / "P").exists()


def test_an_interruption_costs_nothing_that_was_done(release, tmp_path, monkeypatch):
    real, paths = map_reading.read_map, []

    def interrupted(path, grid):
        paths.append(path)
        if path == map_of(release, 6)[1]:
            raise KeyboardInterrupt
        return real(path, grid)

    with monkeypatch.context() as patch:
        patch.setattr(map_reading, "read_map", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(release, tmp_path / "P", size=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".P.unfinished", "R"]
    lines: list[str] = []
    prepare(release, tmp_path / "P", size=8, say=lines.append)
    assert f"note: an earlier call was interrupted: {len(paths) - 1} of 40 maps are done, the rest follows" in lines
    prepare(release, tmp_path / "Q", size=8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["P", "Q", "R"]
    assert (tmp_path / "P" / "images.npy").read_bytes() == (tmp_path / "Q" / "images.npy").read_bytes()


def test_what_is_read_is_never_replaced(release):
    for out, options in ((release, {}), (release.parent, {}), (release, {"atlas": release / ATLAS_FILE})):
        with refused(DataError, "output_contains_input", path=str(out)):
            prepare(release, out, maps=TWO, force=True, **options)
    assert (release / PHENOTYPE_FILE).is_file()
