"""Test the checks before a run: the bound of delta, limit cases of methods, and sites that can't train."""

from __future__ import annotations

import logging

import pytest
import torch
from refusals import refused

from medfl.contract import ReducesTo
from medfl.data.pooled import TensorData
from medfl.engine.checks import _is_reached, check_privacy, check_training
from medfl.engine.site import Splits
from medfl.errors import DataError, SettingsError
from medfl.objectives import Survival
from medfl.settings import Privacy, Settings
from medfl.testing.cohort import SmallNet, make_data
from medfl.toolkit.averaging import Averaging
from medfl_methods.fedprox import FedProx


def check(images: dict[str, int], delta: float, sites: int = 3) -> None:
    privacy = Privacy(unit="sample", epsilon=8.0, clip=1.0, delta=delta)
    settings = Settings(rounds=1, privacy=privacy, norm_sync="all")
    check_privacy(settings, Averaging(), [SmallNet(norm=False)], images, sites)


def test_delta_is_below_one_over_the_images_of_every_site() -> None:
    """Check delta 1/20: it is too large for 20 images and small enough for 19."""
    for images in ({"a": 20, "b": 3, "c": 9}, {"a": 3, "b": 20, "c": 9}, {"a": 3, "b": 9, "c": 20}):
        name = next(name for name, count in images.items() if count == 20)
        with refused(SettingsError, "delta_too_large", where=f"site '{name}'", count=20, unit="sample"):
            check(images, 0.05)
        check(images | {name: 19}, 0.05)
    check({}, 0.05)


def test_with_the_unit_site_delta_is_compared_with_the_number_of_sites() -> None:
    privacy = Privacy(unit="site", epsilon=8.0, clip=1.0, delta=0.25)
    settings = Settings(rounds=1, privacy=privacy)
    with refused(SettingsError, "delta_too_large", where="a federation", count=4, unit="site"):
        check_privacy(settings, Averaging(), [SmallNet(norm=False)], {"a": 2}, 4)
    check_privacy(settings, Averaging(), [SmallNet(norm=False)], {"a": 2}, 3)


class TwoSettings(FedProx):
    """Method FedProx with a second setting."""

    other: float = 1.0


def test_a_method_is_another_one_only_where_all_settings_say_so() -> None:
    limit = ReducesTo("fedavg", {"mu": 0.0, "other": 0.0})
    pairs = [(mu, other) for mu in (0.0, 1.0) for other in (0.0, 1.0)]
    reached = {(mu, other): _is_reached(limit, TwoSettings(mu=mu, other=other)) for mu, other in pairs}
    assert reached == {(0.0, 0.0): True, (0.0, 1.0): False, (1.0, 0.0): False, (1.0, 1.0): False}


def times(*events: int) -> Splits:
    images = make_data(len(events), "a").images
    targets = torch.stack([torch.ones(len(events)), torch.tensor(events).float()], dim=1)
    return Splits(TensorData(images, targets), TensorData(images, targets), TensorData(images, targets))


def test_a_run_continues_as_long_as_one_site_can_train(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "medfl"):
        check_training({"a": times(0, 0), "b": times(1, 0, 1), "c": times()}, Survival())
    assert "no training data and won't train: c." in caplog.text
    assert "uninformative training targets and won't train: a." in caplog.text
    with refused(DataError, "uninformative_targets", sites=["a"]):
        check_training({"a": times(0, 0), "c": times()}, Survival())
    with refused(DataError, "no_images", split="train", sites=["a", "c"]):
        check_training({"a": times(), "c": times()}, Survival())
