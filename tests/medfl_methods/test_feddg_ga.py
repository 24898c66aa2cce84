"""FedDG-GA: its weights by hand, whose losses make them, and what it refuses."""

import dataclasses
import math

import pytest
from refusals import refused

from medfl.data.pooled import Empty
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites
from medfl.types import SERVER
from medfl_methods.feddg_ga import adjusted

REGISTRY = load_plugins()
THIRDS = dict.fromkeys("abc", 1 / 3)


def run(folder, args=None, name="feddg_ga", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


def newest(folder, name):
    return Store(folder / "state" / name).latest().state()


# ---- the weights


def test_weights_move_by_how_far_gaps_are_from_their_mean():
    weights = adjusted(THIRDS, {"a": 0.3, "b": 0.1, "c": -0.1}, 0.2)
    assert list(weights.values()) == pytest.approx([8 / 15, 5 / 15, 2 / 15], abs=1e-12)
    assert list(weights.values()) != pytest.approx([0.375, 0.3333333333, 0.2916666667], abs=1e-3)


def test_the_preset_code_is_the_rule_of_the_released_code():
    """There a moves by a third of the step along G / max |G|, and no mean is subtracted."""
    method, gaps = REGISTRY.make_method("feddg_ga", {"preset": "code"}), {"a": 0.3, "b": 0.1, "c": -0.1}
    assert (method.gaps, method.step) == ("raw", pytest.approx(0.2 / 3))
    assert adjusted(THIRDS, gaps, method.step, centre=False) == pytest.approx({"a": 0.375, "b": 1 / 3, "c": 7 / 24})
    alike = adjusted({"a": 0.5, "b": 0.3, "c": 0.2}, dict.fromkeys("abc", 0.1), 0.1, centre=False)
    assert alike == pytest.approx({"a": 0.6 / 1.3, "b": 0.4 / 1.3, "c": 0.3 / 1.3}), "all move, since none is the mean"
    assert adjusted(THIRDS, dict.fromkeys("abc", 0.0), 0.2, centre=False) == THIRDS


def test_a_run_with_raw_gaps_moves_by_them(tmp_path):
    """The weights after two rounds are those of the gaps, which the sites told."""
    run(tmp_path, {"preset": "code"})
    gaps = {name: Store(tmp_path / "state" / name).latest().meta["reply"]["gap"] for name in make_sites()}
    expected = adjusted(dict.fromkeys(gaps, 1 / 3), gaps, 0.2 / 3, centre=False)
    assert newest(tmp_path, SERVER).meta["shares"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("gaps", [{}, {"a": 5.0}, dict.fromkeys("abc", 0.1), dict.fromkeys("abc", 0.0), {"x": 1.0}])
def test_equal_gaps_change_nothing(gaps):
    assert adjusted(THIRDS, gaps, 0.2) == THIRDS


def test_weights_stay_shares_and_an_absent_site_keeps_its_own():
    weights = adjusted({"a": 0.9, "b": 0.05, "c": 0.05}, {"a": 2.0, "b": -1.0}, 0.2)
    assert weights == pytest.approx({"a": 1 / 1.05, "b": 0.0, "c": 0.05 / 1.05})


# ---- a run


def test_a_site_that_was_away_has_no_gap(tmp_path):
    run(tmp_path, rounds=3, absent=lambda site, step: site == "site-2" and step == 2)
    shares = newest(tmp_path, SERVER).meta["shares"]
    assert math.fsum(shares.values()) == pytest.approx(1)
    assert newest(tmp_path, "site-2").meta["sent"]["round"] == 3
    assert shares["site-2"] == pytest.approx(1 / 3)  # the other two moved against each other


def test_what_it_can_not_do_without_is_asked_for(tmp_path):
    sites = make_sites()
    blind = sites | {"site-2": dataclasses.replace(sites["site-2"], val=Empty())}
    with refused(SettingsError, "no_images", split="val", sites=["site-2"]):
        run(tmp_path / "blind", sites=blind)
    run(tmp_path / "longer", rounds=3)
    with refused(SettingsError, "other_round_count", expected=3, found=4):
        run(tmp_path / "longer", rounds=4)
