"""First mistakes of new users, each with a message that says what was expected and found, where, and what to do."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pytest
from feature_commands import skip_without
from PIL import Image

from medfl.data.datalists import DATALIST_FILE
from medfl.testing.synthetic import make_cohort

BUNDLE = "medmnist_classification"
COLUMNS = ("--image-column", "file", "--target", "diagnosis", "--size", "16", "--workers", "1")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write partitioned data ``cells``, and ``images`` with a table ``labels.csv``; return their folder."""
    place = tmp_path_factory.mktemp("newcomer")
    make_cohort(place / "cells", sites=2, images_per_site=30, size=12)
    (place / "empty").mkdir()
    (place / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8)).save(place / "images" / f"{number}.png")
    table(place / "labels.csv", [(f"{number}.png", "ab"[number % 2]) for number in range(12)])
    return place


def table(path, rows, head=("file", "diagnosis")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.fixture
def answer(data, medfl, monkeypatch):
    """Return a function that runs a wrong command and returns its message on one line."""
    monkeypatch.chdir(data)

    def run(*words):
        status, out, err = medfl(*words)
        assert status == 2, out + err
        assert "Traceback" not in err
        return " ".join(err.split())

    return run


def run(*words):
    """Return the arguments of a run over the partitioned cells."""
    return "run", BUNDLE, "--dataset-dir", "cells", "--output-dir", "out", *words


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        (
            "nowhere",
            "there is none at nowhere. Check the path.",
        ),
        (
            "empty",
            "each with a datalist.json; none is in empty. Check the path. `medfl prep`",
        ),
        (
            "images",
            "none is in images. Check the path. `medfl prep` writes a pooled data set",
        ),
        ("cells/site-01", "none is in cells/site-01. This is one site: give the folder above it, cells."),
    ],
)
def test_a_wrong_folder_of_data(folder, says, answer):
    assert says in answer("run", BUNDLE, "--dataset-dir", folder, "--method", "fedavg")


def test_a_data_set_that_is_not_partitioned(answer, medfl):
    assert medfl("prep", "folder", "images", "--table", "labels.csv", *COLUMNS, "--out", "pooled")[0] == 0
    says = answer("run", BUNDLE, "--dataset-dir", "pooled")
    assert "This is a pooled data set: run `medfl partition pooled --out ...` first." in says
    says = answer("partition", "pooled", "--out", "parts", "--sites", "50")
    assert "50 sites of at least 1 images need 50 images, there are 12" in says
    assert "Ask for fewer sites." in says
    assert "Unknown partition 'iidd'. Did you mean 'iid'?" in answer(
        "partition", "pooled", "--out", "p", "--scheme", "iidd"
    )


def test_a_partition_of_what_is_not_prepared(answer):
    for folder in ("nowhere", "images"):
        says = answer("partition", folder, "--out", "parts")
        assert f"expected a data list {folder}/{DATALIST_FILE}, there is none. Write one with `medfl prep`" in says


def test_a_bundle_that_is_mistyped_or_missing(answer):
    assert "Did you mean 'medmnist_classification'?" in answer(
        "run", "medmnist_clasification", "--dataset-dir", "cells"
    )
    says = answer("run", "--dataset-dir", "cells", "--method", "fedavg")
    assert "Expected a bundle before the options, got '--method'." in says
    assert "`medfl list bundles` lists all names." in says
    assert "Missing argument 'bundle'" in answer("run")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--method", "fedprx"), "Unknown method 'fedprx'. Did you mean 'fedprox'?"),
        (("--method", "fedprox", "--method-args.muu", "1"), "unknown option 'muu'. Did you mean 'mu'?"),
        (("--method", "fedprox", "--method-args.mu", "big"), "'mu': expected a number, >= 0; got 'big'"),
        (
            ("--method", "fedprox", "--method-args", "mu=1"),
            "Expected the method's settings as --method-args.NAME value, or",
        ),
        (("--metod", "fedprox"), "Unknown option '--metod'. Did you mean '--method'?"),
        (("fedprox",), "Expected options as '--name value', for example --method fedprox; got 'fedprox'."),
        (("--rounds",), "got '--rounds' without a value at the end."),
        (("--roundz", "3"), "Unknown option '--roundz'. Did you mean '--rounds'?"),
        (("--rounds", "three"), "'rounds': expected a whole number, >= 1; got 'three'"),
        (("--rounds", "0"), "'rounds': expected a whole number, >= 1; got 0"),
        (("--precision", "fp16"), "'precision': expected 'fp32' or 'bf16' or 'amp'; got 'fp16'"),
        (("--device", "gpu"), "expected auto, cpu, cuda, or cuda:N for one of several GPUs, as cuda:0; got 'gpu'"),
        (
            ("--privacy", "5"),
            "'privacy': expected \"{'epsilon': ..., 'clip': ...}\" with epsilon (number, > 0), clip (",
        ),
        (("--privacy", "{'epsilon': 5}"), "'privacy.clip' is required and was not given"),
        (("--privacy", "{'epsilon': -5, 'clip': 1}"), "'privacy.epsilon': expected a number, > 0; got -5"),
        (("--compression", "8"), "'compression': expected \"{'bits': ...}\" with bits (4 or 8 or 16); got 8"),
        (("--sites", "site-01"), "Expected a list of sites, as --sites \"['site-01']\"; got 'site-01'."),
    ],
)
def test_an_option_that_is_mistyped_or_of_another_kind(words, says, answer):
    message = answer(*run(*words))
    assert says in message
    assert "Input should" not in message


def test_a_part_that_cannot_be_built_names_the_part_and_the_reason(data, medfl, monkeypatch):
    monkeypatch.chdir(data)
    status, _, err = medfl(*run("--optimizer.lr", "fast"))
    assert status == 1
    assert "TypeError: '<' not supported" in err
    assert "'torch.optim.SGD' with keywords: params,lr,momentum,weight_decay: check its options" in err


def test_more_workers_than_sites_do_not_start(data, medfl, monkeypatch):
    monkeypatch.chdir(data)
    words = ("--dataset-dir", "cells", "--output-dir", "runs/one", "--rounds", "1", "--steps", "1", "--workers", "100")
    status, _, err = medfl("run", BUNDLE, *words)
    assert status == 0
    assert "100 workers were requested; 2 start, for 2 sites." in err
    assert json.loads((data / "runs" / "one" / "run.json").read_text())["execution"]["workers"] == 2


def test_a_run_folder_of_other_settings(answer, medfl):
    words = ("run", BUNDLE, "--dataset-dir", "cells", "--output-dir", "runs/two", "--rounds", "1", "--steps", "1")
    assert medfl(*words)[0] == 0
    says = answer(*words, "--batch-size", "7")
    assert "'runs/two' holds a run with other settings: settings.batch_size was 32, now 7. Name another folder" in says


def test_a_report_on_a_folder_without_a_run(answer, data):
    pytest.importorskip("medfl_report")
    for folder, why in (("empty", "there is no run.json in it"), ("nowhere", "there is no such folder")):
        assert f"expected a run folder at '{folder}', {why}. Give the --output" in answer("report", folder)
    (data / "several" / "one").mkdir(parents=True)
    (data / "several" / "one" / "run.json").write_text("{}")
    assert "Its runs are one: give one of these." in answer("report", "several")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "expected a study file at 'my.yaml': No such file or directory. Check the path."),
        ("", "expected keys and values in the study file 'my.yaml', got an empty file."),
        ("name: [x", "the study file 'my.yaml' is not valid YAML"),
        ("name: x\nrow: {}\n", "unknown option 'row'. Did you mean 'rows'?"),
    ],
)
def test_a_study_file_that_is_missing_or_wrong(text, says, answer, data):
    pytest.importorskip("medfl_studies")
    (data / "my.yaml").unlink(missing_ok=True)
    if text is not None:
        (data / "my.yaml").write_text(text)
    assert says in answer("study", "my.yaml")


@pytest.mark.parametrize(
    ("bundle", "wanted"), [("tabular", "rows of a table"), ("lesion_segmentation", "images with masks")]
)
def test_data_of_another_kind_than_the_bundle_takes(bundle, wanted, answer):
    says = answer("run", bundle, "--dataset-dir", "cells", "--output-dir", "out")
    assert f"Expected {wanted} for the bundle '{bundle}', got images with classes in cells. Bundles for these: " in says
    assert BUNDLE in says


def test_tables_and_images_that_do_not_fit(answer, data):
    def prep(images="images", labels="labels.csv", *columns):
        return answer("prep", "folder", images, "--table", labels, *(columns or COLUMNS), "--out", "own")

    assert "expected a folder of images at imges, there is none. Give the folder that holds them." in prep("imges")
    assert "the table label.csv can't be read: No such file or directory. Give another --table." in prep(
        labels="label.csv"
    )
    says = prep("images", "labels.csv", "--image-column", "path", *COLUMNS[2:])
    assert "expected the columns 'path' in labels.csv, missing; the table has the columns 'file', 'diagnosis'." in says
    table(data / "gaps.csv", [(f"{number}.png", "a" if number % 2 else "") for number in range(12)])
    assert "expected a target in every row of gaps.csv, 6 of 12 have none in 'diagnosis'" in prep(labels="gaps.csv")
    table(data / "wrong.csv", [(f"x{number}.png", "ab"[number % 2]) for number in range(12)])
    assert "12 of 12 images are not in the folder" in prep(labels="wrong.csv")


def test_an_extra_that_is_not_installed_is_named(answer, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    for name in [name for name in sys.modules if name.startswith("opacus.")]:
        monkeypatch.setitem(sys.modules, name, None)
    says = answer(*run("--privacy", "{'unit': 'sample', 'epsilon': 8, 'clip': 1}"))
    assert "pip install 'medfl-monai[privacy]'" in says


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (run("--seed", "1", "--method", "fedavg", "--seed=2"), "--seed"),
        (run("--dataset-dir", "images"), "--dataset-dir"),
        (("prep", "folder", "images", *COLUMNS, "--out", "own", "--target", "kind"), "--target"),
        (("report", "out", "--out", "a.html", "--out", "b.html"), "--out"),
        (("federate", "start", "kit", "--patience", "1", "--patience", "2"), "--patience"),
    ],
)
def test_an_option_of_one_value_that_is_given_twice(words, option, answer):
    skip_without(words[0])
    says = answer(*words)
    assert f"'{option}'" in says
    assert "twice" in says


def test_an_option_that_may_be_repeated_is_not_refused(answer):
    table = ("prep", "folder", "images", "--table", "labels.csv", *COLUMNS, "--out", "own")
    says = answer(*table, "--keep-column", "age", "--keep-column", "sex")
    assert "'age', 'sex'" in says
    assert "the table has the columns 'file', 'diagnosis'" in says


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--output_dir", "--output-dir"),
        ("--dataset_dir", "--dataset-dir"),
        ("--optimizer#lr", "--optimizer.lr"),
        ("--optimizer::weight_decay", "--optimizer.weight-decay"),
        ("--settings#lr_decay", "--settings.lr-decay"),
        ("--networks_by_site#site-01", "--networks-by-site.site-01"),
    ],
)
def test_an_option_in_monais_spelling_names_the_right_one(typed, expected, answer):
    assert f"Expected the option '{expected}', got '{typed}'." in answer("run", BUNDLE, typed, "1")


def test_an_argument_of_a_component_without_its_component(answer):
    assert "Did you mean '--optimizer.lr'?" in answer(*run("--method", "fedavg", "--lr", "0.1"))


def test_a_value_that_a_component_refuses(answer):
    says = answer(*run("--method", "fedavg", "--optimizer.lr", "-0.1"))
    assert "Invalid learning rate: -0.1" in says
    assert "torch.optim.SGD" in says


def test_a_licence_that_is_not_stated(answer):
    columns = ("--image-column", "file", "--target", "x", "--size", "16", "--workers", "1")
    assert "--licence" in answer("prep", "folder", "images", "--table", "labels.csv", *columns, "--out", "own")
