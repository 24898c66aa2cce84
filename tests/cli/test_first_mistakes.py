"""Mistakes of new users that depend on what they did before; the snapshot of `test_wording.py` has the others."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from PIL import Image

from medfl.testing.synthetic import make_cohort

BUNDLE = "medmnist_classification"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write partitioned data ``cells``, and ``images`` with a table ``labels.csv``; return their folder."""
    place = tmp_path_factory.mktemp("newcomer")
    make_cohort(place / "cells", sites=2, images_per_site=30, size=12)
    (place / "images").mkdir()
    rng = np.random.default_rng(0)
    lines = ["file,diagnosis"]
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8)).save(place / "images" / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]}")
    (place / "labels.csv").write_text("\n".join(lines))
    return place


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


def test_a_data_set_that_is_not_partitioned(answer, medfl):
    columns = ("--image-column", "file", "--target", "diagnosis", "--size", "16", "--workers", "1")
    assert medfl("prep", "folder", "images", "--table", "labels.csv", *columns, "--out", "pooled")[0] == 0
    says = answer("run", BUNDLE, "--dataset-dir", "pooled")
    assert "This is a pooled data set: run `medfl partition pooled --out ...` first." in says


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


def test_a_report_on_a_folder_of_runs_names_them(answer, data):
    pytest.importorskip("medfl_report")
    (data / "several" / "one").mkdir(parents=True)
    (data / "several" / "one" / "run.json").write_text("{}")
    assert "Its runs are one: give one of these." in answer("report", "several")


def test_an_extra_that_is_not_installed_is_named(answer, monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    for name in [name for name in sys.modules if name.startswith("opacus.")]:
        monkeypatch.setitem(sys.modules, name, None)
    says = answer(*run("--privacy", "{'unit': 'sample', 'epsilon': 8, 'clip': 1}"))
    assert "pip install 'medfl-monai[privacy]'" in says
