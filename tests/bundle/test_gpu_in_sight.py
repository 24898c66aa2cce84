"""Runs with several workers on a machine with a GPU: no code uses the GPU before processes are forked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from cuda_stub import Gpu, installed_gpu
from refusals import refused
from toys import PAIR, builtin, snapshot

from medfl.cli.main import main
from medfl.errors import SettingsError
from medfl.testing import check_method, suite
from medfl.testing.cohort import make_sites
from medfl.testing.synthetic import make_cohort
from medfl.training.devices import pick_device
from medfl.utils.rng import seeded_generators

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
SETTINGS = {"rounds": 1, "steps": 1, "batch_size": 8}


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    yield from installed_gpu(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "cohort"
    make_cohort(out, sites=2, images_per_site=20, classes=4, size=8, seed=1)
    return out


def status_of(words: list[object]) -> int:
    """Run a command in this process and return its exit status."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def medfl_run(cohort: Path, out: Path, **options: object) -> int:
    words: list[object] = ["run", BUNDLE, "--dataset-dir", cohort, "--output-dir", out]
    for name, value in (SETTINGS | options).items():
        words += [f"--{name.replace('_', '-')}", value]
    return status_of(words)


def test_a_run_with_workers_never_asks_for_a_gpu(gpu: Gpu, cohort: Path, tmp_path: Path) -> None:
    """Run the whole path from the configuration to the report and bundles, and then a second run, as a demo does.

    Only workers make backward passes, which start a thread for each GPU and so keep CUDA and autograd out of a fork.
    """
    for method in ("local", "fedavg"):
        assert medfl_run(cohort, tmp_path / method, method=method, workers=2, cross_site_evaluation=True) == 0
        assert json.loads((tmp_path / method / "run.json").read_text())["execution"]["device"] == "cpu"
    assert gpu.calls("cuda") == gpu.calls("queue") == []
    trained = {line.split()[1] for line in gpu.calls("autograd")}
    assert trained
    assert str(os.getpid()) not in trained


@pytest.mark.slow
def test_a_study_with_workers_never_asks_for_a_gpu(gpu: Gpu, cohort: Path, tmp_path: Path) -> None:
    """Run the study's runs in this process, so that the code between them also comes before a fork."""
    pytest.importorskip("medfl_studies")
    from medfl_studies.study import load_study, run_study

    study = {
        **{"name": "small", "bundle": str(BUNDLE), "data": {"cells": {"folder": cohort.name}}, "metrics": ["accuracy"]},
        **{"baseline": "alone", "settings": SETTINGS},
        "rows": {"alone": {"method": "local"}, "together": {"method": "fedavg"}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    prepared = load_study(tmp_path / "study.yaml", cohort.parent, tmp_path / "out", workers=2)
    outcome = run_study(prepared, lambda command, log: status_of(list(command[3:])))
    assert set(outcome.status.values()) == {"finished"}
    assert gpu.calls("cuda") == gpu.calls("queue") == []


def test_a_gpu_and_several_workers_are_refused(
    gpu: Gpu, cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert medfl_run(cohort, tmp_path / "run", workers=2, device="cuda:0") == 2
    assert "--devices cuda:0,cuda:0" in capsys.readouterr().err
    assert gpu.calls("cuda") == []
    assert not (tmp_path / "run").exists()


def test_which_device_is_taken_and_when_it_is_asked_for(gpu: Gpu) -> None:
    for device in ("auto", "cpu"):
        assert pick_device(device, workers=2) == "cpu"
    assert pick_device("cpu") == "cpu"
    with seeded_generators("key"):
        pass
    assert gpu.calls("cuda") == gpu.calls("queue") == []
    assert not torch.are_deterministic_algorithms_enabled()
    assert pick_device("auto") == "cuda:0"
    assert torch.are_deterministic_algorithms_enabled()
    assert pick_device("cuda:1") == "cuda:1"
    assert torch.cuda.is_initialized()
    with seeded_generators("key"):
        assert len(gpu.calls("queue")) == 1, "what is started is seeded"


def test_a_fork_that_comes_too_late_is_reported(gpu: Gpu, tmp_path: Path) -> None:
    """Train in this process first. A later run can't have workers then, and its message says what to do."""
    case = builtin("fedavg")
    case.run(tmp_path / "one", sites=make_sites(PAIR))
    assert gpu.calls("cuda") == []
    with refused(SettingsError, "gpu_used_before_workers"):
        case.run(tmp_path / "two", sites=make_sites(PAIR), workers=2)
    case.run(tmp_path / "two", sites=make_sites(PAIR))
    assert snapshot(tmp_path / "two") == snapshot(tmp_path / "one")


def test_the_conformance_suite_hides_gpus_as_it_trains_before_it_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(suite, "CHECKS", {})
    check_method("fedavg")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_the_conformance_suite_refuses_a_missing_gpu() -> None:
    with refused(SettingsError, "missing_gpu"):
        check_method("fedavg", device="cuda:0")
