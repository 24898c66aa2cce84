"""Test that a model with a constant prediction is named in the log, summary, report, `compare` and `status`."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from medfl.cli.main import app
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.runs.site_bundles import export
from medfl.plugins import load_plugins
from medfl.records.summary import Summary
from medfl.settings import Settings
from medfl.testing.cohort import make_data, make_sites, make_task

pytestmark = pytest.mark.usefixtures("undrawn")

BUNDLE = Path(__file__).parents[3] / "bundles" / "medmnist_classification"
CLASSES = ("benign", "malignant", "normal")


class BiasOnly(torch.nn.Module):
    """Network that learns the class frequencies and ignores its input."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.bias.expand(len(images), 3)


def train(folder: Path, network: type[torch.nn.Module] | None, rounds: int, sites: dict | None = None) -> SimulatedRun:
    task = make_task("plain")
    if network is not None:
        task = replace(task, networks={"plain": network})
    registry = load_plugins()
    home = SiteExport(BUNDLE, classes=CLASSES, objective=task.objective)
    run = SimulatedRun(
        method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
        task=task,
        settings=Settings(rounds=rounds, batch_size=5, seed=7),
        data=RunData(sites=sites or make_sites(), classes=CLASSES),
        folder=folder,
        callbacks=Callbacks(export=partial(export, site_export=home)),
    )
    simulate(run)
    return run


def test_a_model_that_predicts_one_class_is_named_everywhere(tmp_path, caplog):
    folder = tmp_path / "fedavg"
    with caplog.at_level(logging.WARNING):
        run = train(folder, BiasOnly, 1)
    (entry,) = Summary.read(folder / "summary.json").constant_predictions
    images = sum(len(site.test) for site in run.data.sites.values())
    assert (entry.all_sites, entry.images, entry.splits) == (True, images, ("test",))
    assert entry.prediction in [f"the class '{name}'" for name in CLASSES]
    assert entry.sentence in caplog.messages
    pytest.importorskip("medfl_report")
    from medfl_report.page import write_report

    page = write_report([folder], registry=load_plugins()).read_text()
    words = f"predicts the class &#39;{entry.prediction.split(chr(39))[1]}&#39; for all {images} test images"
    assert words in page[: page.index("<section")], "above all sections"
    for command in ("status", "compare"):
        result = CliRunner().invoke(app, [command, str(folder)])
        assert (result.exit_code, entry.sentence in result.output) == (0, True), result.output


def test_a_model_that_learns_is_not_named(tmp_path, caplog):
    folder = tmp_path / "fedavg"
    train(folder, None, 12)
    assert Summary.read(folder / "summary.json").constant_predictions == ()
    assert not [message for message in caplog.messages if "same prediction" in message]
    pytest.importorskip("medfl_report")
    result = CliRunner().invoke(app, ["compare", str(folder)])
    assert "same prediction" not in result.output
    assert "mean of sites" in result.output


def test_validation_images_are_judged_where_no_site_has_test_images(tmp_path):
    sites = {name: replace(site, test=make_data(0, name)) for name, site in make_sites().items()}
    train(tmp_path / "run", BiasOnly, 1, sites)
    (entry,) = Summary.read(tmp_path / "run" / "summary.json").constant_predictions
    assert (entry.all_sites, entry.images, entry.splits) == (True, 18, ("val",))
    assert "18 validation images of all sites" in entry.sentence
