"""``medfl new-dataset``: the written files work without changes, in a command and in a study."""

from __future__ import annotations

import importlib
import multiprocessing
import runpy
import sys
from pathlib import Path

import pytest
import yaml

import medfl_datasets
from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.ingest import workers
from medfl.plugins import load_plugins
from medfl.testing.datasets import check_dataset


@pytest.fixture
def medfl(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def plugin(medfl, tmp_path) -> Path:
    assert medfl("new-dataset", "toy", "--out", tmp_path / "own")[0] == 0
    return tmp_path / "own" / "toy.py"


@pytest.fixture
def source(plugin, tmp_path) -> Path:
    return load_plugins([plugin]).synthetic("toy")(tmp_path / "data" / "toy")


def test_its_test_passes_as_it_is_written(plugin, tmp_path):
    test = runpy.run_path(str(plugin.with_name("test_toy.py")))
    test["test_contract"](tmp_path / "check")


def test_it_is_listed_and_prepared_by_the_command(medfl, plugin, source, tmp_path):
    code, out, _ = medfl("list", "datasets", "--plugin", plugin)
    assert (code, "toy: describe the data set" in out) == (0, True)
    code, out, _ = medfl("prep", "--plugin", plugin, "toy", "--help")
    assert (code, "32, or 32x48 (HxW)" in out, "[default: 32]" in out) == (0, True, True)
    words = ("prep", "--plugin", plugin, "toy", "--source", source, "--out", tmp_path / "P", "--size", "6x4")
    code, out, err = medfl(*words, "--workers", 2)
    assert code == 0, err
    assert "8 training, 0 validation, 0 test images of 2 classes" in out
    assert err.startswith("toy: licence name the licence")
    assert len(read_datalist(tmp_path / "P").splits["training"]) == 8


def test_a_study_prepares_it(plugin, source, tmp_path):
    assert by_study(source.parent, tmp_path, load_plugins([plugin])).name == "toy"


def by_study(source, folder, registry):
    """Prepare the pooled data set by a study and return it."""
    pytest.importorskip("medfl_studies")
    from medfl_studies.study_data import check_data, make_data
    from medfl_studies.study_reader import read_study

    content = {
        "name": "toys",
        "bundle": "medmnist_classification",
        "data": {"toy": {"prep": {"dataset": "toy", "size": 12}, "partition": {"scheme": "iid", "sites": 2}}},
        "rows": {"local": {"method": "local"}},
        "seeds": 1,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    study = read_study(folder / "study.yaml")
    check_data(study, source, folder / "out", registry)
    make_data(study, source, folder / "out", registry, lambda _: None)
    return read_datalist(folder / "out" / "data" / "toy" / "pooled")


@pytest.fixture
def data_prep(tmp_path, monkeypatch):
    """Copy the package of data sets so that a test can add a folder, also visible to worker processes."""
    package = tmp_path / "medfl_datasets"
    package.mkdir()
    for path in (Path(__file__).parents[2] / "data_prep").iterdir():
        (package / path.name).symlink_to(path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(medfl_datasets, "__path__", [str(package)])
    spawn = multiprocessing.get_context("spawn")  # other processes are forks of one that may have the package
    monkeypatch.setattr(workers, "fresh_context", lambda modules: spawn)
    yield package
    for name in [name for name in sys.modules if name.startswith("medfl_datasets.toy")]:
        del sys.modules[name]


def test_a_folder_is_tested_listed_prepared_and_studied_as_it_is_written(medfl, data_prep, tmp_path):
    before = set(load_plugins().datasets)
    code, out, err = medfl("new-dataset", "toy", "--folder", "--out", data_prep)
    assert code == 0, err
    names = ["__init__", "spec", "files", "synthetic", "test_toy"]
    assert out.splitlines()[:5] == [f"wrote {data_prep / 'toy' / name}.py" for name in names]
    importlib.invalidate_caches()
    assert set(load_plugins().datasets) == before | {"toy"}
    test = runpy.run_path(str(data_prep / "toy" / "test_toy.py"))
    test["test_contract"](tmp_path / "check")
    code, out, _ = medfl("list", "datasets")
    assert (code, "toy: describe the data set" in out) == (0, True)
    source = load_plugins().synthetic("toy")(tmp_path / "data" / "toy")
    code, out, err = medfl("prep", "toy", "--source", source, "--out", tmp_path / "P", "--size", 8, "--workers", 1)
    assert (code, "8 training" in out) == (0, True), err
    assert by_study(source.parent, tmp_path, load_plugins()).splits == read_datalist(tmp_path / "P").splits


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ('f"subject-{row + 1}"', 'f"{outcome.plan.items[0].stem} {row}"', "the data list contains 1 names of files"),
        (
            "        return ReadPlan(",
            "        say(f'{files[1].stem}')\n        return ReadPlan(",
            "messages contain 1 names of files",
        ),
        ("size))", "size), {'file': path.stem})", "the files for a restart contain [1-4] names of files"),
        (
            "return LoadedItem(",
            "return LoadedItem(np.random.randint(9) + ",
            "after an interruption there are other bytes",
        ),
        ("size))", "size) if path.stat().st_size > 20 else np.zeros((8, 8, 3)))", "costs one image, here 0"),
        ("default_rng(seed)", "default_rng()", "written again, a synthetic release has other bytes in"),
    ],
)
def test_a_promise_that_is_broken_is_named(plugin, tmp_path, line, other, message):
    text = plugin.read_text()
    assert line in text
    plugin.write_text(text.replace(line, other))
    with pytest.raises(AssertionError, match=message):
        check_dataset("toy", tmp_path / "check", plugins=[plugin], size=8)


def test_names_that_are_refused(medfl, tmp_path):
    code, _, err = medfl("new-dataset", "ham10000", "--out", tmp_path)
    assert (code, "The plugin 'medfl_datasets' already has a dataset 'ham10000'" in err) == (2, True)
    code, _, err = medfl("new-dataset", "My-Data", "--out", tmp_path)
    assert (code, "Expected a dataset name of lower-case letters" in err) == (2, True)
