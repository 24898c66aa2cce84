"""Conversion of a command line to a submission: it contains only values for the sites, and nothing runs locally."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from medfl.bundle.bundle_folders import bundle_hash, shipped_bundles
from medfl.cli.main import main
from medfl.testing.synthetic import make_cohort
from medfl_flare import submit
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.session import Submission

BUNDLE = "medmnist_classification"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Submission]:
    submissions: list[Submission] = []
    monkeypatch.setattr(submit, "submit", submissions.append)
    return submissions


def run(*words: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["run", BUNDLE, *map(str, words)])
    return int(ended.value.code or 0)


def test_what_is_submitted(tmp_path: Path, submitted: list[Submission]) -> None:
    words = ("--output-dir", tmp_path / "one", "--method", "fedprox", "--method-args.mu", 0.5, "--optimizer.lr", 0.1)
    sites = ("--sites", "['b','a']", "--reply-timeout", 60, "--num-classes", 2)
    assert run("--backend", "flare", "--kit", tmp_path / "kit", *words, *sites) == 0
    (submission,) = submitted
    offer = submission.offer
    assert (offer.run, offer.sites, offer.reply_timeout) == ("one", ["a", "b"], 60)
    assert (offer.bundle, offer.bundle_hash) == (BUNDLE, bundle_hash(shipped_bundles()[BUNDLE]))
    assert (offer.method, submission.kit, submission.output_dir) == ("fedprox", tmp_path / "kit", tmp_path / "one")
    settings = {"method": "fedprox", "method_args#mu": 0.5, "optimizer#lr": 0.1}
    assert offer.overrides == settings | {
        "num_classes": 2,
        "in_channels": 3,
        "size": 28,
        "spatial_dims": 2,
        "image_reading": None,
    }
    assert not (tmp_path / "one").exists()


def test_requested_gpus_belong_to_the_job_and_not_to_the_run(tmp_path: Path, submitted: list[Submission]) -> None:
    words = ("--backend", "flare", "--kit", tmp_path / "kit", "--output-dir", tmp_path / "one")
    assert run(*words, "--gpus", 2, "--gpu-memory-gib", 8) == run(*words) == 0
    assert [submission.gpus for submission in submitted] == [GpuRequest(count=2, memory_gib=8), None]
    assert submitted[0].offer == submitted[1].offer


def test_facts_come_from_data_at_hand(tmp_path: Path, submitted: list[Submission]) -> None:
    make_cohort(tmp_path / "data", sites=1, images_per_site=9, classes=3, size=12)
    assert run("--dataset-dir", tmp_path / "data", "--backend", "flare", "--kit", tmp_path) == 0
    facts = {"num_classes": 3, "in_channels": 3, "size": [12, 12], "spatial_dims": 2, "image_reading": None}
    assert submitted[0].offer.overrides == facts


def test_settings_of_tracking_stay_here(tmp_path: Path, submitted: list[Submission]) -> None:
    uri = f"sqlite:///{tmp_path}/runs.db"
    words = ("--output-dir", tmp_path / "one", "--tracking", "mlflow", "--tracking-uri", uri)
    assert run("--backend", "flare", "--kit", tmp_path / "kit", *words) == 0
    (submission,) = submitted
    assert submission.tracking["tracking_uri"] == uri
    assert uri not in str(submission.offer.to_json())
    assert run("--backend", "flare", "--kit", tmp_path / "kit", "--output-dir", tmp_path / "two") == 0
    assert submitted[1].tracking == {}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "needs --kit"),
        (("--kit", "k", "--roundz", "3"), "Did you mean '--rounds'"),
        (("--kit", "k", "--start", "absent.safetensors"), "no weights"),
        (("--kit", "k", "--device", "cuda"), "each participant decides"),
        (("--kit", "k", "--plugins", "['p.py']"), "each participant decides"),
        (("--kit", "k", "--network-name", "$1"), "Unknown network"),
        (("--kit", "k", "--method-args.mu", "$import os"), "a message can't contain code"),
    ],
)
def test_what_sites_would_refuse_is_refused_here(
    submitted: list[Submission], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    assert run("--backend", "flare", *words) == 2
    assert text.lower() in capsys.readouterr().err.lower()
    assert submitted == []


def test_a_run_here_needs_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--method", "fedavg") == 2
    assert "--dataset-dir" in capsys.readouterr().err


def test_an_unknown_backend_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--backend", "pigeon", "--dataset-dir", tmp_path) == 2
    assert "Known: flare, local" in capsys.readouterr().err


def test_stock_monai_does_not_run_it_here_in_silence(tmp_path: Path) -> None:
    from monai.bundle import ConfigWorkflow

    root = shipped_bundles()[BUNDLE]
    files = [str(root / "configs" / name) for name in ("train.json", "federate.json")]
    stock = ConfigWorkflow(files, workflow_type="train", bundle_root=str(root), backend="flare", dataset_dir=".")
    stock.initialize()
    with pytest.raises(RuntimeError) as wrapped:  # by MONAI, which evaluates the call
        stock.run()
    assert "--workflow_name medfl.workflow.FederatedWorkflow" in str(wrapped.value.__cause__)


def test_weights_travel_as_the_digest_of_their_file(tmp_path: Path, submitted: list[Submission]) -> None:
    path = tmp_path / "w.pt"
    torch.save({"weight": torch.ones(2)}, path)
    words = ("--backend", "flare", "--kit", tmp_path / "kit", "--output-dir", tmp_path / "one", "--num-classes", 2)
    for source, sent in (
        (path, f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"),
        ("none", "none"),
        ("bundle", "bundle"),
        ("bundle:best.pt", "bundle:best.pt"),
    ):
        assert run(*words, "--start", source) == 0
        assert submitted[-1].offer.overrides["start"] == sent
