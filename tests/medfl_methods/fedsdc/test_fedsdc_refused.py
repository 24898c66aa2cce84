"""FedSDC says at the start what it can't do, and takes what it can."""

import dataclasses
import math
import re

import pytest
import torch
from fedsdc_toys import FEATURES, PLAIN, dealing_server, run
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


PRIVATE = {"task": make_task("plain"), "privacy": {"epsilon": 5.0, "clip": 1.0}}


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ({"heads": 2}, {}, "expected heads 3, got 2. Leave 'heads' out, or change the number of sites or 'fraction'"),
        ({"heads": 3}, {"fraction": 0.67}, "expected heads 2, got 3."),
        ({"heads": 2, "shuffle": False}, {"fraction": 0.67}, "expected heads 3, got 2."),
        ({"heads": 0}, {}, "'heads': expected a whole number or None, >= 1; got 0"),
        ({"gamma": 0}, {}, "'gamma': expected a number, > 0, <= 1; got 0"),
        ({"gamma": 1.5}, {}, "'gamma': expected a number, > 0, <= 1; got 1.5"),
        ({"gamma": 0.3}, {"sites": unjudged()}, "no site has any. Partition with --val-fraction 0.1, or set select_on"),
        ({"ensemble": "single_best"}, {"sites": unjudged()}, "no site has any. Partition with --val-fraction 0.1"),
        ({"gamma": 0.3}, PRIVATE, "stay at home under a privacy setting. Set gamma to 1 and ensemble to 'vote'"),
        ({"ensemble": "single_best"}, PRIVATE, "stay at home under a privacy setting."),
        ({"rho": [0.9, 0.4]}, {}, "expected rho as 0 < smallest <= largest <= 1, got [0.9, 0.4]"),
        ({"rho": [0.0, 1.0]}, {}, "expected rho as 0 < smallest <= largest <= 1, got [0.0, 1.0]"),
        ({"rho": [0.4, 1.1]}, {}, "expected rho as 0 < smallest <= largest <= 1, got [0.4, 1.1]"),
        ({"rho": [0.4, math.nan]}, {}, "expected rho as 0 < smallest <= largest <= 1"),
        ({"rho": [0.4]}, {}, "'rho.1' is required"),
        ({"dropout": 1.0}, {}, "'dropout': expected a number, >= 0, < 1; got 1.0"),
        ({"beta": 1.0}, {}, "'beta': expected a number, >= 0, < 1; got 1.0"),
        ({"ensemble": "mean"}, {}, "'ensemble': expected 'vote' or 'prob_mean' or 'single_best'; got 'mean'"),
        ({}, {"task": odd_task(Headless)}, "(Headless) has no `head`: expected its classifier"),
        (PLAIN, {"task": odd_task(Headless)}, "(Headless) has no `head`: expected its classifier"),
        (PLAIN, {"task": odd_task(OddHead)}, "expected a linear head or a TwoLayerHead, got Sequential"),
    ],
)
def test_bad_input_is_refused_at_the_start(tmp_path, args, options, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
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
