"""A study over an adopted stock bundle, in JSON or YAML: its runs, and changes that make another run."""

from __future__ import annotations

import pytest
import yaml
import zoo_shapes
from damage import edit, put
from refusals import refused
from study_toys import Runs
from zoo_sites import make_sites

pytest.importorskip("medfl_adopt")

from medfl.errors import DataError, SettingsError
from medfl_adopt.adopting import adopt
from medfl_studies.study import load_study, run_study


@pytest.fixture
def study(tmp_path):
    """Return a function that writes a study over an adopted bundle, and two sites for it."""

    def write(shape, **content):
        adopt(shape(tmp_path / "stock"), tmp_path / "bundle")
        make_sites(shape, tmp_path / "data" / "sites", 3)
        content = {
            "name": "small",
            "about": "Two sites.",
            "bundle": "bundle",
            "seeds": 1,
            "metrics": ["dice"],
            "settings": {"rounds": 1},
            "data": {"tools": {"folder": "sites"}},
            "rows": {"alone": {"method": "local"}, "together": {"method": "fedavg"}},
        } | content
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.mark.parametrize("shape", [zoo_shapes.tools, zoo_shapes.hippocampus], ids=["json", "yaml"])
def test_its_runs_take_the_sites_as_they_are(study, shape, tmp_path):
    prepared = load_study(study(shape), tmp_path / "data", tmp_path / "out")
    assert [job.options["method"] for job in prepared.jobs] == ["local", "fedavg"]
    assert {job.dataset_dir for job in prepared.jobs} == {tmp_path / "data" / "sites"}
    job = prepared.jobs[0]
    before = job.identity()
    assert job.identity() == before
    put(tmp_path, "data/sites/north/.medfl_cache/kept", "")
    assert job.identity() == before
    (name,) = [path.name for path in (tmp_path / "bundle" / "configs").glob("train.*")]
    train = tmp_path / "bundle" / "configs" / name
    text = train.read_text()
    train.write_text(text.replace("0.0001", "0.01"))
    assert job.identity() != before
    train.write_text(text)
    put(tmp_path, "bundle/scripts/own.py", "x = 1\n")
    assert job.identity() != before
    (tmp_path / "bundle" / "scripts" / "own.py").unlink()
    put(tmp_path, "data/sites/north/new.png", "")
    assert job.identity() != before


def test_options_and_folders_that_are_not_there_are_refused(study, tmp_path):
    file = study(zoo_shapes.tools, settings={"rounds": 1, "optimizer#lrr": 0.1})
    with refused(SettingsError, "unknown_option", option="optimizer#lrr"):
        load_study(file, tmp_path / "data", tmp_path / "out")
    with refused(DataError, "missing_folder", path=str(tmp_path / "sites")):
        load_study(file, tmp_path, tmp_path / "out")
    edit(tmp_path / "bundle", "federate.json", lambda c: c.pop("adopted"))
    with refused(DataError, "missing_dataset", expected="*/datalist.json"):
        load_study(file, tmp_path / "data", tmp_path / "out")


@pytest.mark.slow
def test_it_runs_and_is_not_run_again(study, tmp_path):
    file = study(zoo_shapes.tools, rows={"together": {"method": "fedavg"}})
    outcome = run_study(load_study(file, tmp_path / "data", tmp_path / "out"))
    assert set(outcome.status.values()) == {"finished"}
    page = (tmp_path / "out" / "results" / "tools.md").read_text()
    assert "1 of 1 runs are finished" in page
    assert "No run has scores on the split 'test'. Known: val" in page, "the bundle has no list for `evaluate`"
    again = Runs()
    run_study(load_study(file, tmp_path / "data", tmp_path / "out"), again)
    assert not again.commands
