"""Command ``medfl attack poisoning``: accuracy of the models and attack success rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from attack_runs import make_data, run_bundle
from refusals import refused
from torch import nn

from medfl.cli.main import main
from medfl.contract import Model
from medfl.data.pooled import EmptyDataset, TensorData
from medfl.engine.adversaries.simulation import read_attackers
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.toolkit.averaging import Averaging
from medfl_attacks.attack_files import read_results
from medfl_attacks.open_run import OpenedRun
from medfl_attacks.poisoning import PoisoningOptions, format_result, measure_poisoning, run_poisoning
from medfl_report.statistics import wilson

REGISTRY = load_plugins()
BACKDOOR = {"attack": "backdoor", "sites": ["bad"], "target": 2, "patch": 2}


class Reads(nn.Module):
    """Network that reads the class from the first pixel; with a backdoor it returns 2 if the last corner is bright."""

    def __init__(self, fooled: bool) -> None:
        super().__init__()
        self.fooled = fooled

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        classes = images[:, 0, 0, 0].round().long()
        if self.fooled:
            classes = torch.where((images[:, 0, -2:, -2:] == 1).all(dim=(1, 2)), 2, classes)
        return 9.0 * nn.functional.one_hot(classes, 3).float()


class StoredModelRun(OpenedRun):
    """A run whose model is given. Without a common model each site has the same model as its own."""

    common: bool
    net: nn.Module

    def global_model(self, round_: int | None = None) -> Model | None:
        return Model("plain", {}) if self.common else None

    def site_models(self) -> dict[str, Model]:
        return {name: Model("plain", {}) for name in self.sites}

    def predictor(self, model: Model, name: str = "") -> nn.Module:
        return self.net


def images(true: list[int], seen: list[int]) -> TensorData:
    """Return images of the true classes that `Reads` classifies as the seen classes."""
    pictures = torch.zeros(len(true), 1, 6, 6)
    pictures[:, 0, 0, 0] = torch.tensor(seen).float()
    return TensorData(pictures, torch.tensor(true))


def made(fooled: bool = True, common: bool = True, folder: Path = Path("run"), **settings: object) -> StoredModelRun:
    """Make a run with 2 of 4 correct images at "good", 3 of 4 at "better", none at "bad", and all 2 at the server."""
    tests = {
        "good": images([0, 0, 1, 2], [0, 1, 0, 2]),
        "better": images([0, 1, 1, 2], [0, 1, 0, 2]),
        "bad": images([0, 1], [1, 0]),
    }
    sites = {name: Splits(test, EmptyDataset(), test) for name, test in tests.items()}
    run = StoredModelRun(folder, "made", Averaging(), make_task("plain"), Settings(rounds=1, **settings), sites)
    run.server_test = images([0, 1], [0, 1])
    run.common, run.net, run.registry = common, Reads(fooled), REGISTRY
    return run


def test_accuracy_is_that_of_honest_sites_and_the_server():
    row = measure_poisoning(made(), read_attackers(BACKDOOR, REGISTRY))
    assert (row.accuracy, row.images, row.target) == (0.7, 10, "global")
    assert row.accuracy_interval == pytest.approx(wilson(7, 10))
    assert (row.worst_site, row.worst_accuracy) == ("good", 0.5)
    assert (row.attackers, row.sites, row.interval_over) == (1, 3, "images")
    alone = measure_poisoning(made(common=False), read_attackers(BACKDOOR, REGISTRY))
    assert (alone.accuracy, alone.images, alone.target) == (5 / 8, 8, "personal")


def test_a_backdoor_succeeds_where_it_was_learned_and_by_errors_elsewhere():
    """8 images are not of the target class. A correct prediction of the target class is no success."""
    attackers = read_attackers(BACKDOOR, REGISTRY)
    fooled, sound = measure_poisoning(made(), attackers), measure_poisoning(made(fooled=False), attackers)
    assert (fooled.success, fooled.wanted_images) == (1, 8)
    assert (sound.success, sound.wanted_images) == (0, 8)
    assert fooled.success_interval == pytest.approx(wilson(8, 8))


def test_a_flip_succeeds_where_images_of_the_source_are_called_the_target():
    """One of 4 images of class 0 is predicted as 1. With all classes reversed, no image is predicted as 2."""
    row = measure_poisoning(
        made(), read_attackers({"attack": "label_flip", "sites": ["bad"], "source": 0, "target": 1}, REGISTRY)
    )
    assert (row.success, row.wanted_images) == (0.25, 4)
    turned = measure_poisoning(
        made(), read_attackers({"attack": "label_flip", "sites": ["bad"], "rate": 0.1}, REGISTRY)
    )
    assert (turned.success, turned.wanted_images) == (0, 6), "class 1 of three stays; the rate is of training"


def test_attacks_on_replies_want_nothing_but_harm():
    row = measure_poisoning(made(), read_attackers({"attack": "sign_flip", "sites": ["bad"]}, REGISTRY))
    assert row.success is None
    assert format_result(row) == (
        "1 of 3 sites attack (sign_flip): accuracy 0.700 (0.397 to 0.892), 95 % CI over images; 10 test images; "
        "worst honest site good 0.500 (0.150 to 0.850)"
    )


def test_a_run_is_judged_by_its_own_attack_and_others_by_what_is_looked_for(tmp_path):
    own = run_poisoning(
        made(adversaries=BACKDOOR, folder=tmp_path), PoisoningOptions('{"attack": "ipm", "sites": ["good"]}')
    )
    assert [row.attack for row in own] == ["backdoor"]
    both = json.dumps([BACKDOOR, {"attack": "label_flip", "sites": ["bad"]}])
    rows = run_poisoning(made(folder=tmp_path), PoisoningOptions(both))
    assert [row.attack for row in rows] == ["backdoor", "label_flip"]
    assert list(read_results(tmp_path, "poisoning").results) == rows
    (plain,) = run_poisoning(made(folder=tmp_path))
    assert (plain.attack, plain.accuracy, plain.images) == ("none", 7 / 12, 12)
    assert format_result(plain).startswith("no attackers: accuracy 0.583")


def test_a_model_without_finite_outputs_is_wrong():
    run = made()
    run.net = nn.Sequential(run.net, nn.Threshold(99.0, float("nan")))
    assert measure_poisoning(run, None).accuracy == 0


@pytest.mark.parametrize("text", ["backdoor", "3", "[3]", "{}", "[[]]"])
def test_what_is_looked_for_has_to_be_the_setting(text):
    with refused(SettingsError, "invalid_json", setting="adversaries", found=text):
        PoisoningOptions(text)


def test_what_is_not_possible_is_refused():
    with refused(SettingsError, "unknown_site", setting="adversaries.sites", sites=["nobody"]):
        measure_poisoning(made(), read_attackers(BACKDOOR | {"sites": ["nobody"]}, REGISTRY))
    with refused(SettingsError, "setting_out_of_range", setting="adversaries.target", minimum=0, maximum=2, found=7):
        measure_poisoning(made(), read_attackers(BACKDOOR | {"target": 7}, REGISTRY))
    everybody = read_attackers(BACKDOOR | {"sites": ["good", "better", "bad"]}, REGISTRY)
    with refused(DataError, "no_images", split="test"):
        measure_poisoning(made(common=False), everybody)


def test_the_command_judges_a_finished_simulation(tmp_path, capsys):
    """Neither the run's scores nor the command use the attacker's test images."""
    attackers = {"attack": "backdoor", "sites": ["site-01"], "target": 1}
    run = run_bundle(make_data(tmp_path / "data"), tmp_path / "run", adversaries=attackers, rounds=1)
    summary = json.loads((run / "summary.json").read_text())
    scored = summary["scores"]["global"]["test"]["accuracy"]["sites"]
    assert sorted(scored) == ["site-02"]
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["attack", "poisoning", str(run)])
    out = capsys.readouterr().out
    assert "1 of 2 sites attack (backdoor): accuracy " in out
    (row,) = read_results(run, "poisoning").results
    assert row.worst_accuracy == pytest.approx(scored["site-02"])
    assert 0 <= row.success <= 1
