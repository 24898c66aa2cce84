"""Tests of `check_comparable_stages`: stage numbers start at 1 and include the last stage."""

from __future__ import annotations

import pytest
from refusals import refused
from torch import nn

from medfl.errors import SettingsError
from medfl.toolkit.feature_hooks import check_comparable_stages


class Staged(nn.Module):
    """Network with a given number of stages."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.feature_layers = [nn.Identity() for _ in range(count)]


@pytest.mark.parametrize("layers", [None, [], [1], [3], [1, 2, 3]])
def test_the_first_and_the_last_stage_can_be_named(layers: list[int] | None) -> None:
    check_comparable_stages({"a": Staged(3), "b": Staged(3)}, layers)


@pytest.mark.parametrize("layers", [[0], [4], [1, 2, 4], [-1]])
def test_a_stage_that_is_not_there_is_refused(layers: list[int]) -> None:
    with refused(SettingsError, "setting_out_of_range", setting="layers", minimum=1, maximum=3):
        check_comparable_stages({"a": Staged(3), "b": Staged(3)}, layers)


def test_networks_of_unlike_depth_are_refused() -> None:
    with refused(SettingsError, "unlike_stage_counts", counts={"a": 2, "b": 3}):
        check_comparable_stages({"a": Staged(2), "b": Staged(3)}, None)
