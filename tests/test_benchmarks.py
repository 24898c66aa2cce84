"""The benchmarks run, in a tiny size; their timings are never asserted."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medfl.metrics.survival import concordance
from medfl.objectives.losses import FlambyCoxLoss
from medfl.plugins import load_plugins

FOLDER = Path(__file__).parents[1] / "benchmarks"

Run = Callable[[str, list[str]], tuple[str, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a benchmark in this process, which has imported torch; return its output and its figures."""

    def run(script: str, options: list[str]) -> tuple[str, dict[str, Any]]:
        monkeypatch.syspath_prepend(FOLDER)
        monkeypatch.setattr(sys, "argv", [script, *options, "--json", str(tmp_path / "figures.json")])
        runpy.run_path(str(FOLDER / script), run_name="__main__")
        return capsys.readouterr().out, json.loads((tmp_path / "figures.json").read_text())

    return run


@pytest.mark.slow
def test_the_round_loop_prints_ratios(run: Run) -> None:
    size = ["--rounds", "2", "--sites", "4", "--fraction", "0.5", "--images", "240", "--test", "40"]
    output, figures = run("round_loop.py", size)
    for name in ("ratio of CPU (medfl / plain)", "ratio of wall (medfl / plain)"):
        assert name in output
        assert figures[name] > 0


@pytest.mark.slow
def test_the_cost_of_a_method_is_a_ratio_to_fedavg(run: Run) -> None:
    output, costs = run("method_cost.py", ["fedkper", "fedcross_star", "--repetitions", "2", "--images", "80"])
    assert list(costs) == ["fedkper", "fedcross_star"]
    assert "times fedavg" in output
    assert all(cost["work"] > 0 for cost in costs.values())
    assert (costs["fedkper"]["down"], costs["fedkper"]["up"], costs["fedkper"]["across"]) == (1, 1, 0)
    assert costs["fedcross_star"]["up"] == 0


@pytest.mark.slow
def test_every_method_has_its_cost(run: Run) -> None:
    _, costs = run("method_cost.py", ["--repetitions", "1", "--images", "60"])
    assert sorted(costs) == sorted(set(load_plugins().methods) - {"fedavg"})
    assert all(cost["work"] > 0 for cost in costs.values())


def test_the_similarity_loss_is_timed_in_each_form(run: Run) -> None:
    size = ["--sizes", "90x6", "--atlas", "8x5x2", "--repetitions", "2", "--no-memory"]
    output, figures = run("similarity_loss.py", size)
    assert "| 90 | 6 |" in output
    assert figures["atlas 8 x 5 x 2, masks / medfl: time"] > 0
    for form in ("direct", "n x n", "k x k"):
        assert figures[f"90 x 6, {form}: milliseconds forward and backward"] > 0


def test_transforms_are_timed_against_a_bare_loader(run: Run) -> None:
    size = ["--cases", "2", "--edge", "12", "--batch", "2", "--repetitions", "2", "--synthetic"]
    output, figures = run("transforms.py", size)
    assert output.startswith("2 synthetic volumes")
    assert figures["ratio of an epoch (medfl / plain)"] > 0


@pytest.mark.slow
def test_ingestion_is_timed_against_bare_pydicom(tmp_path: Path) -> None:
    size = ["--images", "2", "--shape", "64x40", "--size", "16", "--repetitions", "2", "--workers", "1", "--bits", "12"]
    output, figures = run_alone("ingest.py", size, tmp_path)
    assert output.startswith("2 images of 64 x 40, 12 bits, to 16")
    assert all(value > 0 for value in figures.values())
    assert {"CPU per image, medfl / bare", "cores used by 1 workers", "MiB at the peak, medfl"} <= set(figures)


def run_alone(script: str, options: list[str], folder: Path) -> tuple[str, dict[str, float]]:
    """The same in a process of its own, for a benchmark that starts processes and looks at their memory."""
    command = [sys.executable, FOLDER / script, *options, "--json", folder / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "figures.json").read_text())


@pytest.mark.slow
def test_commands_are_timed_from_their_call(tmp_path: Path) -> None:
    output, figures = run_alone("start_up.py", ["--repetitions", "1"], tmp_path)
    assert output.startswith("medfl run, to its first job: ")
    assert all(value > 0 for value in figures.values())
    assert {"medfl --help", "medfl list methods", "medfl status"} < set(figures)


def test_secure_aggregation_is_timed_and_its_bytes_counted(run: Run) -> None:
    output, figures = run("secure_aggregation.py", ["--sites", "4", "--megabytes", "0.004", "--dropped", "1"])
    assert output.startswith("4 sites, 0.004 MB each, 1 dropped out")
    assert {name: row["bytes / float32"] for name, row in figures.items()} == {
        "32 bits": pytest.approx(1.0),
        "32 bits, noise": pytest.approx(1.0),
        "40 bits": pytest.approx(1.25),
        "40 bits, noise": pytest.approx(1.25),
    }


@pytest.mark.slow
def test_what_a_site_costs_is_printed_for_each_number_of_sites(run: Run) -> None:
    output, figures = run("many_sites.py", ["--sites", "2", "5", "--rounds", "2"])
    assert "ms of wall for a site's step" in output
    assert [*figures] == ["2", "5"]
    assert all(value["files for a site"] > 2 for value in figures.values())


@pytest.mark.slow
def test_what_is_tried_on_a_gpu_holds_on_a_cpu(run: Run) -> None:
    output, seen = run("gpu.py", ["--device", "cpu", "--quick", "--rounds", "3"])
    promises = seen["promises"]
    assert len(promises) == 6
    assert {f"{name}: conformance suite" for name in ("fedavg", "fedskd")} <= set(promises)
    assert all(outcome.startswith(("yes", "not tried: it had ended")) for outcome in promises.values()), promises
    ratios = [v for name, v in seen["figures"].items() if name.endswith("medfl / bare")]
    assert len(ratios) == 2
    assert min(ratios) > 0
    assert all(v > 0 for name, v in seen["figures"].items() if name.endswith(("with a gradient", "two workers / one")))
    assert "| promise | held |" in output


def test_flambys_loop_has_the_loss_and_the_score_of_medfl() -> None:
    loop = runpy.run_path(str(FOLDER / "flamby_loop.py"))
    rng = np.random.default_rng(0)
    risks = torch.tensor(rng.normal(size=(9, 1)), requires_grad=True)
    targets = np.column_stack([rng.permutation(9) + 1.0, rng.integers(0, 2, 9)])
    FlambyCoxLoss()(risks, torch.tensor(targets)).backward()
    assert risks.grad is not None
    assert loop["cox_gradient"](risks.detach().numpy().T, targets[None])[0] == pytest.approx(risks.grad[:, 0].numpy())
    targets[1] = targets[0, 0], 1 - targets[0, 1]  # of equal times, the event came first
    expected = concordance(risks.detach(), torch.tensor(targets), torch.ones(9, 1).double())
    assert loop["c_index"](risks.detach().numpy().T, targets) == pytest.approx(expected.numpy())


@pytest.mark.slow
def test_flambys_loop_measures_each_strategy(run: Run, tmp_path: Path) -> None:
    """At two sites with the same rows in one batch, SCAFFOLD corrects nothing, and the order of rows has no effect."""
    times = [{"image": row, "target": [1.0 + row, 1]} for row in range(8)]
    labels = [{"image": row, "label": row % 2} for row in range(4)]
    for name, inputs, rows in (("flamby_heart/data/heart", 13, labels), ("flamby_tcga_brca/data/brca", 39, times)):
        folder = tmp_path / name / "sites-seed-0"
        for site in ("a", "b"):
            (folder / site).mkdir(parents=True)
            datalist = {"image_array": "../images.npy", "training": rows, "test": rows}
            (folder / site / "datalist.json").write_text(json.dumps(datalist))
        np.save(folder / "images.npy", np.random.default_rng(0).normal(size=(len(rows), inputs)))
    _, figures = run("flamby_loop.py", ["--studies", str(tmp_path), "--orders", "2", "--drawn", "3"])
    assert figures["brca, fedavg: mean"] > 0.9
    assert figures["heart, scaffold: mean"] == pytest.approx(figures["heart, fedavg: mean"])
    for data in ("heart", "brca"):
        new_epochs = figures[f"{data}, fedavg, drawn: mean with new epochs"]
        assert new_epochs == pytest.approx(figures[f"{data}, fedavg, drawn: mean"])
