"""A study whose file of weights is missing can't be confused with the study that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import DataError
from medfl_studies.commands.study import command
from medfl_studies.pretrained_weights import find_weights
from medfl_studies.study import default_output_dir
from medfl_studies.study_reader import read_study

ROOT = Path(__file__).parents[2]
FILE = "imagenet/resnet50.safetensors"
PAPER = [f"fedsdc_{name}" for name in ("table1", "table1_skin", "table2", "fig1", "fig4", "gamma")]
WITH = {"network_name": "resnet50", "norm": "batch", "norm_sync": "frozen"}
WITHOUT = {"start": "none", "norm": ["group", {"num_groups": 2}], "norm_sync": "all", "optimizer#lr": 0.05}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a source folder with a file of weights."""
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(b"weights")
    return tmp_path


@pytest.mark.parametrize("name", PAPER)
def test_with_its_file_a_study_is_as_printed(folder: Path, name: str) -> None:
    study, note = find_weights(read_study(ROOT / "studies" / f"{name}.yaml"), folder)
    assert (study.name, note) == (name, "")
    assert study.settings.items() >= (WITH | {"start": str(folder / FILE)}).items()
    skin = study.bundle == "skinlesion_classification"
    printed = (study.settings["optimizer#lr"], study.settings["batch_size"], study.settings["rounds"])
    assert printed == ((1e-3, 64, 1500) if skin else (1e-4, 32, 1500))
    assert not any("random" in row for row in study.rows)


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("source", ["empty", None])
def test_without_it_everything_has_another_name(tmp_path: Path, name: str, source: str | None) -> None:
    plain = read_study(ROOT / "studies" / f"{name}.yaml")
    study, note = find_weights(plain, None if source is None else tmp_path)
    assert f"no file of weights '{FILE}'" in note
    assert note in study.about
    assert study.name == f"{name}-random-weights"
    assert default_output_dir(study, "full") == Path("runs") / f"{name}-random-weights"
    assert study.settings == plain.settings | WITHOUT
    assert list(study.rows) == [f"{row}, random weights" for row in plain.rows]
    assert list(study.rows.values()) == list(plain.rows.values())
    assert {study.baseline, *(row for claim in study.claims for row in (claim.better, claim.than))} <= set(study.rows)


def test_a_scale_without_weights_looks_for_none(tmp_path: Path) -> None:
    for name in PAPER:
        study, note = find_weights(read_study(ROOT / "studies" / f"{name}.yaml", "cpu"), tmp_path)
        assert (study.name, study.settings["start"], study.settings["norm_sync"], note) == (name, "none", "all", "")


def test_a_study_that_can_not_do_without_is_refused(load, source: Path) -> None:
    changes = {"bundle": "bloodcell_classification", "settings__start": FILE}
    with refused(DataError, "missing_file", path=str(source / FILE)):
        load(changes)
    changes |= {"without_weights": {"optimizer#lr": 0.25}, "rows__alone__baseline": "fedprox mu=0.1"}
    prepared = load(changes | {"data__demo__rows": ["alone"]})
    assert prepared.study.rows["alone, random weights"].baseline == "fedprox mu=0.1, random weights"
    assert [job.options["optimizer#lr"] for job in prepared.jobs] == [0.25, 0.25]
    assert {job.folder.parent.name for job in prepared.jobs} == {"alone-random-weights"}


def test_the_command_says_so(write, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"bundle": "bloodcell_classification", "settings__start": FILE, "without_weights": {}}
    command([write(**changes)], source, tmp_path / "out", dry_run=True)
    out, err = capsys.readouterr()
    assert err.startswith(f"warning: The source folder has no file of weights '{FILE}'")
    assert "--start none" in out
