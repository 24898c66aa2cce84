"""The command `medfl look`: planted faults, duplicates and a differing site are found; the page is private."""

import json
import os
import re
import shutil
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest

from medfl.cli.main import main
from medfl.errors import DataError
from medfl.testing.synthetic import make_cohort
from medfl_report.data_overview.cases import MAX_SCANNERS, read_images
from medfl_report.data_overview.measurements import FAULTS, measure_images
from medfl_report.data_overview.overview import PAIR_KINDS, look_at


@pytest.fixture
def look(capsys):
    """Run the command; return its status and everything that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(["look", *(str(argument) for argument in arguments)])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out + printed.err

    return run


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """Return four sites whose images are random patches: synthetic cells are too similar to each other."""
    folder = tmp_path_factory.mktemp("look") / "data"
    make_cohort(folder, sites=4, images_per_site=40, size=24)
    for path in {path.parent / json.loads(path.read_text())["image_array"] for path in folder.glob("*/datalist.json")}:
        shape = np.load(path).shape
        patches = np.random.default_rng(0).integers(0, 200, (shape[0], 8, 8, 3), dtype=np.uint8)
        np.save(path, patches.repeat(3, axis=1).repeat(3, axis=2))
    return folder


@pytest.fixture
def damaged(cohort, tmp_path) -> Path:
    """Return a cohort with a blank, an overexposed, a copied and a mirrored image, and a scanner at each site."""
    folder = Path(shutil.copytree(cohort, tmp_path / "data"))
    for number, path in enumerate(sorted(folder.glob("site-*/datalist.json"))):
        lists = json.loads(path.read_text())
        for split in ("training", "validation", "test"):
            for record in lists.get(split, []):
                record["device"] = f"Scanner {number % 2}"
        if number == 0:
            array = path.parent / lists["image_array"]
            images = np.load(array).copy()
            rows = [record["image"] for record in lists["training"]]
            images[rows[0]] = 90
            images[rows[1], :12] = 255
            images[lists["test"][0]["image"]] = images[rows[2]]
            lists["test"][0]["label"] = lists["training"][2]["label"]
            images[rows[3]] = images[rows[4]][:, ::-1]
            lists["training"][3]["label"] = (lists["training"][4]["label"] + 1) % 4
            np.save(array, images)
        path.write_text(json.dumps(lists))
    return folder


def test_planted_faults_and_copies_are_found(damaged):
    overview = look_at(read_images(damaged))
    cases, data = overview.data.cases, overview.data
    lists = json.loads((damaged / "site-01" / "datalist.json").read_text())
    rows = [record["image"] for record in lists["training"]]
    faults = {cases[place].row: keys for place, keys in overview.measured.faults.items()}
    assert faults == {rows[0]: ["constant"], rows[1]: ["clipped"]}
    kinds = {
        tuple(sorted((cases[each.pair.first].row, cases[each.pair.second].row))): (each.kind, each.pair.mirrored)
        for each in overview.pairs
    }
    assert kinds == {
        tuple(sorted((rows[2], lists["test"][0]["image"]))): (PAIR_KINDS[1], ""),
        tuple(sorted((rows[3], rows[4]))): (PAIR_KINDS[0], "left and right"),
    }
    assert data.scanner_column == "device"
    assert set(overview.scanners_of("site-02")) == {"Scanner 1"}


def test_values_that_are_no_numbers_are_a_fault(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(12, 8, 8, 8)).astype(np.float32)
    images[3, 2, 2, 2], images[5] = np.nan, images[5] * 1e-4
    images[7, 0, 0, 1] = np.inf
    np.save(tmp_path / "images.npy", images)
    records = [{"image": row, "label": row % 2, "subject_id": f"s{row}"} for row in range(12)]
    (tmp_path / "datalist.json").write_text(
        json.dumps({"name": "volumes", "image_array": "images.npy", "num_classes": 2, "training": records})
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy's warnings would reach the user
        measured = measure_images(read_images(tmp_path))
    assert measured.faults == {3: ["not_finite"], 5: ["faint"], 7: ["not_finite"]}
    assert np.flatnonzero(np.isnan(measured.values).any(axis=1)).tolist() == [3, 7]
    assert np.isnan(measured.values[[3, 7]]).all()
    assert set(FAULTS) >= {"not_finite", "faint"}


def test_the_command_writes_a_private_page_without_identifiers(damaged, look):
    for path in damaged.glob("site-*/datalist.json"):
        path.write_text(re.sub(r'"subject_id": "[^"]*?(\d+)"', r'"subject_id": "Jane Doe 1957 \1"', path.read_text()))
    before = os.umask(0)
    try:
        status, printed = look(damaged, "--pictures", 3)
    finally:
        os.umask(before)
    assert status == 0
    page = damaged / "look.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text()
    assert "Jane" not in text + printed
    assert "For the owner of the data only" in text
    assert text.count('src="data:image/png;base64,') == 4 * 3 + 2 + 2 * 2
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)
    assert "Scanner 1" in text
    assert "of 4 sites." in text  # the server's test set is searched, too


@pytest.mark.parametrize(
    ("column", "code"), [("scaner", "missing_column"), ("subject_id", "missing_column"), ("note", "too_many_groups")]
)
def test_a_wrong_scanner_column_is_refused(cohort, tmp_path, column, code):
    folder = Path(shutil.copytree(cohort, tmp_path / "data"))
    path = folder / "site-01" / "datalist.json"
    lists = json.loads(path.read_text())
    extra = [dict(record, note=f"seen by {number}") for number, record in enumerate(lists["training"] * 4)]
    path.write_text(json.dumps(lists | {"training": extra}))
    with pytest.raises(DataError) as error:
        read_images(folder, column)
    assert error.value.code == code
    assert len(extra) > MAX_SCANNERS


def test_tables_and_empty_lists_are_refused(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((4, 3), np.float32))
    lists = {"name": "t", "image_array": "rows.npy", "num_classes": 2, "training": [{"image": 0, "label": 1}]}
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    with pytest.raises(DataError) as error:
        read_images(tmp_path)
    assert error.value.code == "no_images"


def test_hostile_names_become_plain_text(tmp_path, look):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 255, (12, 8, 8), dtype=np.uint8))
    name = "<script>alert(1)</script>"
    records = [{"image": row, "label": 0, "site": name, "device": name + "\x1b[31m"} for row in range(12)]
    lists = {"name": name, "image_array": "images.npy", "num_classes": 2, "labels": {"0": name}, "training": records}
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    status, printed = look(tmp_path)
    assert status == 0
    assert "<script" not in (tmp_path / "look.html").read_text()
    assert "\x1b" not in printed


def test_similar_names_of_sites_lose_no_image(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (8, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    names = ("A", "$A", "", "not known")
    records = [{"image": row, "label": 0, **({"site": names[row % 4]} if names[row % 4] else {})} for row in range(8)]
    lists = {"name": "data", "image_array": "images.npy", "num_classes": 2, "training": records}
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    data = read_images(tmp_path)
    assert sorted(case.row for case in data.cases) == list(range(8))
    assert sorted(sum(case.site == site for case in data.cases) for site in data.sites) == [2, 2, 4]


def test_findings_and_numbers_are_shown_and_counted(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 255, (4, 8, 8), dtype=np.uint8))
    head = {"name": "t", "image_array": "images.npy", "target_names": ["effusion", "nodule"]}
    targets = [[1, 0], [0, 0], [1, None], [None, 0]]
    lists = head | {"objective": {"name": "multilabel", "num_labels": 2}}
    lists["training"] = [{"image": row, "target": target} for row, target in enumerate(targets)]
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    data = read_images(tmp_path)
    expected = ["effusion", "no finding", "effusion; nodule not known", "effusion not known"]
    assert [case.target for case in data.cases] == expected
    (site,) = data.sites.values()
    assert site.counts == {"effusion": "2 yes, 1 no, 1 not known", "nodule": "0 yes, 3 no, 1 not known"}
    lists |= {"objective": {"name": "regression"}, "target_names": ["age"]}
    lists["training"] = [{"image": row, "target": [float(40 + row)]} for row in range(4)]
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    (site,) = read_images(tmp_path).sites.values()
    assert site.counts == {"age": "41.5 (40 to 43)"}
