"""FedSDC says at the start what it can't do, and takes what it can."""

import dataclasses
import math

import pytest
import torch
from fedsdc_toys import FEATURES, PLAIN, dealing_server, run
from refusals import refused
from torch import nn

from medfl.data.pooled import TensorData
from medfl.errors import SettingsError
from medfl.networks.heads import TwoLayerHead
from medfl.testing.cohort import CLASSES, SmallNet, make_sites, make_task
from medfl_methods.fedsdc.method import FedSDC


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classifier = nn.Flatten(), nn.Linear(36, CLASSES)

    def forward(self, images):
        return self.classifier(self.body(images))


class OddHead(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class Deep(SmallNet):
    def __init__(self):
        super().__init__()
        self.head = TwoLayerHead(FEATURES, 7, CLASSES, 0.1, "relu")


def odd_task(kind):
    task = make_task().with_network("odd", kind)
    return dataclasses.replace(task, network="odd")


def unjudged():
    nothing = TensorData(torch.empty(0, 1, 6, 6), torch.empty(0, dtype=torch.int64))
    return {name: dataclasses.replace(data, val=nothing) for name, data in make_sites().items()}


OUT = "setting_out_of_range"
ALL_SETTINGS = {"where": "method 'fedsdc'", "settings": [""]}
PRIVATE = {"task": make_task("plain"), "privacy": {"epsilon": 5.0, "clip": 1.0}}


@pytest.mark.parametrize(
    ("args", "options", "code", "fields"),
    [
        ({"heads": 2}, {}, OUT, {"setting": "heads", "expected": 3, "found": 2}),
        ({"heads": 3}, {"fraction": 0.67}, OUT, {"setting": "heads", "expected": 2, "found": 3}),
        ({"heads": 2, "shuffle": False}, {"fraction": 0.67}, OUT, {"setting": "heads", "expected": 3, "found": 2}),
        ({"heads": 0}, {}, OUT, {"settings": ["heads"]}),
        ({"gamma": 0}, {}, OUT, {"settings": ["gamma"]}),
        ({"gamma": 1.5}, {}, OUT, {"settings": ["gamma"]}),
        ({"gamma": 0.3}, {"sites": unjudged()}, "no_images", {"split": "val"}),
        ({"ensemble": "single_best"}, {"sites": unjudged()}, "no_images", {"split": "val"}),
        ({"gamma": 0.3}, PRIVATE, "incompatible_settings", {"settings": ["gamma", "ensemble", "privacy"]}),
        ({"ensemble": "single_best"}, PRIVATE, "incompatible_settings", {"settings": ["gamma", "ensemble", "privacy"]}),
        ({"rho": [0.9, 0.4]}, {}, "invalid_setting", ALL_SETTINGS),
        ({"rho": [0.0, 1.0]}, {}, "invalid_setting", ALL_SETTINGS),
        ({"rho": [0.4, 1.1]}, {}, "invalid_setting", ALL_SETTINGS),
        ({"rho": [0.4, math.nan]}, {}, "invalid_setting", ALL_SETTINGS),
        ({"rho": [0.4]}, {}, "missing_setting", {"settings": ["rho.1"]}),
        ({"dropout": 1.0}, {}, OUT, {"settings": ["dropout"]}),
        ({"beta": 1.0}, {}, OUT, {"settings": ["beta"]}),
        ({"ensemble": "mean"}, {}, "unknown_choice", {"settings": ["ensemble"]}),
        ({}, {"task": odd_task(Headless)}, "unmet_need", {"method": "fedsdc", "need": "linear_head"}),
        (PLAIN, {"task": odd_task(Headless)}, "unmet_need", {"method": "fedsdc", "need": "linear_head"}),
        (PLAIN, {"task": odd_task(OddHead)}, "unsupported_head", {"found": "Sequential"}),
    ],
)
def test_bad_input_is_refused_at_the_start(tmp_path, args, options, code, fields):
    with refused(SettingsError, code, **fields):
        run(tmp_path, args, **options)
    assert not (tmp_path / "metrics.csv").exists() or (tmp_path / "metrics.csv").read_text().count("\n") <= 1


def test_a_count_of_heads_that_fits_is_accepted():
    """With shuffling it is that of the participants, without it that of the sites."""
    for shuffle, count in ((True, 3), (False, 5)):
        server = dealing_server(5, fraction=0.6)
        FedSDC(heads=count, shuffle=shuffle).setup(server)
        assert len({name.split("/")[2] for name in server.state.tensors if "heads/" in name}) == count


@pytest.mark.parametrize(("args", "kind"), [({}, OddHead), (PLAIN, Deep)], ids=["replaced", "as it is"])
def test_heads_of_the_network_that_are_welcome(tmp_path, args, kind):
    """Any with a linear layer where it is replaced; one of two layers also where all are like it."""
    result = run(tmp_path, args, task=odd_task(kind))
    assert result.outcome.status == "finished"
    widths = result.outcome.findings.meta["heads"]["widths"]
    assert widths == [7, 7, 7] if kind is Deep else widths == sorted(set(widths))
