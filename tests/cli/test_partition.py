"""``medfl partition`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pools import partition_of

from medfl.data.datalists import Datalist, make_records, read_datalist, write_datalist
from medfl.data.sites import load_global, load_sites, site_names
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins

PLUGIN = """
import numpy as np
from medfl.plugins import PartitionRecord, hookimpl

@hookimpl
def medfl_partitions():
    return [PartitionRecord("pieces", f"{__name__}:pieces", "pieces in order")]

def pieces(labels, sites, *, skip: int = 0, rng) -> list[np.ndarray]:
    return np.array_split(np.arange(len(labels))[skip:], sites)
"""


@pytest.fixture
def pool(tmp_path) -> Path:
    """Write 200 training, 8 validation and 40 test images of eight classes; the column `ward` has three values."""
    folder = tmp_path / "P"
    folder.mkdir()
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (248, 4, 4), dtype=np.uint8))
    ends = {"training": (0, 200), "validation": (200, 208), "test": (208, 248)}
    splits = {
        split: make_records(range(start, end), [row % 8 for row in range(end - start)], split)
        for split, (start, end) in ends.items()
    }
    for number, record in enumerate(splits["training"]):
        record["ward"] = f"Ward {number % 3}"
    labels = {str(label): f"kind {label}" for label in range(8)}
    write_datalist(folder, Datalist("toy", "images.npy", 8, labels, licence="CC0 1.0", splits=splits))
    return folder


def test_from_a_pool_to_sites(medfl, pool, tmp_path):
    command = ("partition", pool, "--out", tmp_path / "D", "--scheme", "dirichlet_class_balanced", "--sites", 4)
    status, out, err = medfl(*command, "--alpha", 0.5, "--seed", 7, "--val-fraction", 0.1)
    assert status == 0, err
    assert "site-04" in out
    assert next(line for line in out.splitlines() if line.startswith(" all sites")).split()[2:10] == ["25"] * 8
    assert next(line for line in out.splitlines() if line.startswith(" global")).split()[1:] == [
        *["5"] * 8,
        "0",
        "0",
        "40",
    ]
    assert "Classes: 0 kind 0; 1 kind 1" in out
    if "medfl_report" in load_plugins().plugins:
        assert f"Figure: {tmp_path / 'D' / 'image_counts.svg'}" in out
    assert "note: the 8 validation images of the pooled data set are at no site" in err
    sites, pooled = load_sites(tmp_path / "D", Multiclass(8)), load_global(tmp_path / "D", Multiclass(8))
    assert sum(len(part) for site in sites.values() for part in (site.train, site.val, site.test)) == 200
    assert pooled is not None
    assert len(pooled.test) == 40
    settings = partition_of(tmp_path / "D").settings
    assert (settings.seed, settings.options) == (7, {"alpha": 0.5})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--scheme", "label_k", "--k", 3, "--sites", 8), {"scheme": "label_k", "options": {"k": 3}, "sites": 8}),
        (("--scheme", "subset", "--share", 0.8, "--sites", 8), {"scheme": "subset", "options": {"share": 0.8}}),
        (
            ("--scheme", "limited_classes", "--sites", 3, "--option", "classes=1,3", "--option", "at=site-02"),
            {"scheme": "limited_classes", "options": {"classes": "1,3", "at": "site-02"}},
        ),
        (("--scheme", "dirichlet_class", "--min-size", 1), {"options": {"min_size": 1}, "sites": 20}),
        (("--scheme", "by_site", "--column", "ward"), {"column": "ward", "sites": 3}),
        (("--option", "stratified=false"), {"options": {"stratified": "false"}}),
        (("--sites", 2, "--test", "k_fold", "--folds", 4, "--fold", 3), {"test": "k_fold", "folds": 4, "fold": 3}),
        (("--sites", 2, "--test", "none"), {"test": "none"}),
        (
            ("--sites", 2, "--test", "class_balanced", "--test-fraction", 0.4),
            {"test": "class_balanced", "test_fraction": 0.4},
        ),
        (("--server-test", "per_class", "--per-class", 2), {"server_test": "per_class", "per_class": 2}),
        (("--server-test", "none"), {"server_test": "none", "not_distributed": {"validation": 8, "test": 40}}),
        (("--public", "validation", "--public-test-fraction", 0.5), {"public_test_fraction": 0.5}),
        (("--duplicates", "drop", "--allow-leak", "pixels"), {"duplicates": "drop", "allow_leaks": ["pixels"]}),
    ],
)
def test_options_reach_the_plan_and_are_recorded(medfl, pool, tmp_path, options, expected):
    status, _, err = medfl("partition", pool, "--out", tmp_path / "D", *options)
    assert status == 0, err
    made = partition_of(tmp_path / "D")
    recorded = made.to_json() | made.settings.to_json()
    assert {key: recorded[key] for key in expected} == expected
    assert (tmp_path / "D" / "global").is_dir() == (made.settings.server_test != "none")


def test_folds_cover_every_image_once(medfl, pool, tmp_path):
    tested = []
    for fold in range(3):
        medfl(
            "partition",
            pool,
            "--out",
            tmp_path / f"{fold}",
            "--sites",
            2,
            "--test",
            "k_fold",
            "--folds",
            3,
            "--fold",
            fold,
        )
        for name in site_names(tmp_path / f"{fold}"):
            tested += [record["image"] for record in read_datalist(tmp_path / f"{fold}" / name).splits["test"]]
    assert sorted(tested) == list(range(200))


def test_a_scheme_of_a_plugin_gets_its_options(medfl, pool, tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    command = ("partition", pool, "--out", tmp_path / "D", "--plugin", tmp_path / "mine.py", "--scheme", "pieces")
    status, _, err = medfl(*command, "--sites", 5, "--option", "skip=50", "--server-test", "remainder")
    assert status == 0, err
    held = read_datalist(tmp_path / "D" / "global").splits["test"]
    assert [record["image"] for record in held] == list(range(50))


def test_what_is_dropped_or_allowed_is_said(medfl, pool, tmp_path):
    images = np.load(pool / "images.npy")
    images[210] = images[10]
    np.save(pool / "images.npy", images)
    command = ("partition", pool, "--out", tmp_path / "D", "--sites", 1)
    status, _, err = medfl(*command)
    assert status == 2
    assert "--duplicates drop" in err
    assert not (tmp_path / "D").exists()
    status, _, err = medfl(*command, "--duplicates", "drop")
    assert status == 0, err
    assert "left out at site-01: 1 image, the same image or patient is in the server's test set" in err
    status, _, err = medfl(*command, "--allow-leak", "pixels", "--force")
    assert status == 0, err
    assert "allowed leak: pixels: 1 training image identical to images of the server's test set" in err


def test_many_sites_and_classes_stay_readable(medfl, tmp_path):
    pool = tmp_path / "P"
    pool.mkdir()
    np.save(pool / "images.npy", np.arange(14_000, dtype=np.float32).reshape(7000, 2, 1))
    splits = {"training": make_records(range(7000), [row % 14 for row in range(7000)], "x")}
    write_datalist(pool, Datalist("wide", "images.npy", 14, splits=splits))
    status, out, err = medfl("partition", pool, "--out", tmp_path / "D", "--sites", 100)
    assert status == 0, err
    rows = [line for line in out.splitlines() if line.startswith(" site-")]
    assert len(rows) == 40
    assert all(len(row.split()) == 1 + 14 + 3 for row in rows), "no cell is cut"
    assert " ... 60 more" in out
    assert next(line for line in out.splitlines() if line.startswith(" all sites")).split()[2] == "500"
    assert "the pooled data set has no test images, so the server has no test set" in err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--scheme", "dirichlet_class_balance"), "Did you mean 'dirichlet_class_balanced'?"),
        (("--alpha", 3), "partition 'iid' has no option 'alpha'"),
        (("--sites", 201), "there are 200"),
        (("--scheme", "by_site"), "name it with --column"),
        (("--scheme", "by_site", "--column", "wards"), "no column 'wards'. Did you mean 'ward'?"),
        (("--column", "ward"), "partition 'iid' does not use a column"),
        (("--option", "stratified"), "Expected --option NAME=VALUE, got 'stratified'"),
        (("--scheme", "limited_classes", "--option", "classes=1"), "needs the option 'at': --option at=VALUE"),
        (("--option", "stratified=perhaps"), "option 'stratified': Input should be a valid boolean"),
        (("--scheme", "label_k", "--k", 2, "--option", "k=3"), "Expected the option 'k' once, got it twice."),
        (("--fold", 1), "Expected --test k_fold with --fold, got --test fraction."),
        (
            ("--test", "k_fold", "--test-fraction", 0.3),
            "Expected --test fraction or class_balanced with --test-fraction",
        ),
        (("--per-class", 3), "Expected --server-test per_class with --per-class, got --server-test official."),
        (("--duplicates", "drop", "--server-test", "none"), "Expected --server-test official with --duplicates, got"),
        (("--allow-leak", "pixels", "--server-test", "remainder"), "Expected --server-test official with --allow-leak"),
        (("--duplicates", "keep"), "unknown 'keep' for duplicates. Known: drop, refuse"),
        (("--test", "kfold"), "unknown 'kfold' for test. Did you mean 'k_fold'?"),
        (("--allow-leak", "pixel"), "unknown kind of leak 'pixel' to allow"),
    ],
)
def test_mistakes_end_with_a_message_and_status_2(medfl, pool, tmp_path, extra, message):
    status, _, err = medfl("partition", pool, "--out", tmp_path / "D", *extra)
    assert status == 2, err
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "D").exists()


def test_a_list_of_cases_is_dealt_by_the_seed(medfl, tmp_path):
    cases = [{"image": f"images/{number}.nii.gz"} for number in range(20)]
    (tmp_path / "images").mkdir()
    for case in cases:
        (tmp_path / case["image"]).touch()
    (tmp_path / "cases.json").write_text(json.dumps({"training": cases}))
    dealt = []
    for out, seed in (("first", 0), ("again", 0), ("other", 1)):
        words = ("partition", tmp_path / "cases.json", "--out", tmp_path / out, "--sites", 2, "--seed", seed)
        assert medfl(*words)[0] == 0
        dealt.append((tmp_path / out / "site-01" / "cases.json").read_text())
    assert dealt[0] == dealt[1] != dealt[2]


def test_a_list_of_cases_takes_no_option_of_a_pooled_data_set(medfl, tmp_path):
    (tmp_path / "cases.json").write_text("{}")
    status, _, err = medfl("partition", tmp_path / "cases.json", "--out", tmp_path / "D", "--test-fraction", 0.3)
    assert status == 2
    assert "expected the folder of a pooled data set with --test-fraction" in err.lower()


def test_columns_to_stratify_by_reach_the_plan(medfl, pool, tmp_path):
    assert medfl("partition", pool, "--out", tmp_path / "D", "--sites", 2, "--stratify", "ward")[0] == 0
    assert partition_of(tmp_path / "D").settings.stratify == ("ward",)
