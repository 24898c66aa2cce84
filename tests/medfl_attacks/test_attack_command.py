"""Command ``medfl attack``: its files, its output and its error messages."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attack_runs import make_data, run_bundle
from synthetic_results import INVERSION
from undrawn import undrawn

from medfl.cli.main import main
from medfl_attacks.attack_files import read_results
from medfl_report.page import write_report

NUMBERS = ("auc", "tpr_at_1_fpr", "recall", "accuracy", "recall_balanced")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with data and a finished run."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("command")
    run_bundle(make_data(folder / "data", per_site=80), folder / "run", keep_rounds=[1])
    return folder


@pytest.fixture(scope="module")
def attacked(place: Path) -> Path:
    """Return the folder that the command writes with its defaults."""
    with pytest.raises(SystemExit, match="0"):
        main(["attack", "membership", str(place / "run"), "--out", str(place / "attacked")])
    return place / "attacked"


@pytest.fixture
def medfl(capsys: pytest.CaptureFixture[str]):
    """Return a function that runs the command line and returns its exit status and output."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_prints_a_line_for_each_result_and_writes_them(medfl, place: Path) -> None:
    before = contents(place / "run")
    with undrawn():
        status, out, err = medfl("attack", "membership", place / "run")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == [
        "global model, loss threshold",
        "global model, shadow model",
    ]
    assert lines[2].startswith("wrote ")
    content = read_results(place / "run", "membership")
    assert content is not None
    assert [(row.target, row.attack) for row in content.results] == [
        ("global", "loss_threshold"),
        ("global", "shadow_topk"),
    ]
    for row in content.results:
        assert row.members == row.non_members > 20
        assert all(0 <= getattr(row, name) <= 1 for name in NUMBERS)
        assert row.auc_interval[0] <= row.auc <= row.auc_interval[1]
        assert f"AUC {row.auc:.3f}" in out
    options = {
        "targets": "global",
        "shadow": "validation",
        "images": None,
        "seed": 0,
        "shadow_epochs": 2,
    }
    assert content.options == options | {"device": "cpu", "round": None}
    after = contents(place / "run")
    written = {path: after.pop(path) for path in list(after) if path.parent.name == "attacks"}
    assert after == before, "the run itself is only read"
    assert sorted(path.name for path in written) == ["membership.html", "membership.json"]


def test_the_page_needs_nothing_else_and_holds_no_image(place: Path, attacked: Path) -> None:
    page = (attacked / "membership.html").read_text()
    for word in ("<script", "http://", "https://", "<img", "<image", "base64"):
        assert word not in page
    assert page.count("<figure>") == 4
    for word in (
        "no better than guessing",
        "Recall at an attack's own threshold means little alone",
        "validation images",
    ):
        assert word in page
    assert str(place) not in page


def test_the_same_command_gives_the_same_bytes(medfl, place: Path, attacked: Path, tmp_path: Path) -> None:
    assert medfl("attack", "membership", place / "run", "--out", tmp_path)[0] == 0
    first, again = (
        {path.name: content for path, content in contents(folder).items()} for folder in (attacked, tmp_path)
    )
    assert len(first) == 2
    assert first == again


def test_another_seed_draws_other_images(medfl, place: Path, tmp_path: Path) -> None:
    words, results = ("attack", "membership", place / "run", "--images", 20, "--shadow-epochs", 1), []
    for seed in (0, 1):
        with undrawn():
            assert medfl(*words, "--seed", seed, "--out", tmp_path)[0] == 0
        results.append(json.loads((tmp_path / "membership.json").read_text())["results"][0])
    assert results[0] != results[1]
    assert results[0]["members"] == 20


def test_each_site_is_attacked_on_its_own_and_the_report_reads_it(medfl, place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "run", tmp_path / "run")
    words = ("attack", "membership", run, "--targets", "sites", "--shadow", "none", "--data", place / "data")
    with undrawn():
        status, out, _ = medfl(*words)
    assert status == 0
    results = read_results(run, "membership").results
    assert [(row.target, row.site, row.attack) for row in results] == [
        ("sites", "site-01", "loss_threshold"),
        ("sites", "site-02", "loss_threshold"),
    ]
    assert "model of site-02, loss threshold: AUC" in out
    assert "This attack was not run" in (run / "attacks" / "membership.html").read_text()
    with undrawn():
        assert "was an image in the training data?" in write_report([run]).read_text()


def test_models_of_rounds_that_were_kept(medfl, place: Path, tmp_path: Path) -> None:
    words = ("attack", "membership", place / "run", "--shadow", "none", "--out", tmp_path)
    with undrawn():
        status, out, _ = medfl(*words, "--round", 1)
        assert medfl(*words, "--round", "kept") == (status, out, "")
    assert status == 0
    assert out.startswith("global model after round 1, loss threshold: AUC")
    assert json.loads((tmp_path / "membership.json").read_text())["results"][0]["round"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--round", "2"), "Kept rounds: 1"),
        (("--round", "all"), "expected a round >= 1, or 'kept'"),
        (("--shadow", "shared"), "released no images"),
        (("--device", "cuda:7"), "finds no GPU"),
        (("--data", "nowhere"), "have moved"),
    ],
)
def test_what_can_not_be_is_refused_in_a_line(medfl, place: Path, words, message: str, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = medfl("attack", "membership", place / "run", *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_no_run_folder(medfl, tmp_path: Path) -> None:
    status, _, err = medfl("attack", "membership", tmp_path)
    assert status == 2
    assert "expected a run folder" in err


def test_inversion_gets_its_options(medfl, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def run_inversion(opened, folder, options, show):
        seen.update(vars(options), name=opened.name, folder=folder)
        changes = {"target": "model", "attack": "gradient", "item": "raw", "images": 3, "mse": 0.25, "psnr": 6.0}
        return [INVERSION.model_copy(update=changes)]

    made = SimpleNamespace(InversionOptions=SimpleNamespace, run_inversion=run_inversion)
    monkeypatch.setitem(sys.modules, "medfl_attacks.inversion.attack", made)
    words = ("--target", "model", "--images", 3, "--batch", 2, "--steps", 7, "--smoothness", 0.5, "--seed", 4)
    status, out, _ = medfl("attack", "inversion", place / "run", *words)
    assert status == 0
    assert seen == {
        "target": "model",
        "images": 3,
        "batch": 2,
        "steps": 7,
        "smoothness": 0.5,
        "seed": 4,
        "name": "fedavg",
        "folder": place / "run",
    }
    assert out.splitlines()[0] == "model, gradient, raw: MSE 0.25, PSNR 6 dB, SSIM 0.25; 3 images"
