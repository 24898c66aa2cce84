"""Search spaces of a study file, and errors that are found before any trial."""

from __future__ import annotations

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl.utils.nested import with_nested_value
from medfl_studies.tune.space import SearchAxis, SearchSpace
from medfl_studies.tuning_section import ValueRange

TWO = {"tune__sampler": "grid", "tune__trials": None, "tune__settings": {"epochs": [1, 2]}}
RATE = {"low": 0.001, "high": 0.1, "log": True}


def space(*axes: SearchAxis) -> SearchSpace:
    return SearchSpace("row", axes)


def test_a_grid_of_a_range_has_equal_steps_or_ratios() -> None:
    line = SearchAxis("a", None, ValueRange(low=0.0, high=1.0, points=5))
    ratio = SearchAxis("b", None, ValueRange(low=0.001, high=10.0, log=True, points=5))
    whole = SearchAxis("c", None, ValueRange(low=1, high=4, points=7), whole=True)
    assert line.grid() == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert ratio.grid() == (0.001, 0.01, 0.1, 1.0, 10.0)
    assert whole.grid() == (1, 2, 3, 4)
    assert all(isinstance(value, int) for value in whole.grid())
    both = space(SearchAxis("x", ("p", "q")), whole).grid()
    assert [tuple(point.values()) for point in both] == [(x, c) for x in "pq" for c in (1, 2, 3, 4)]


def test_a_part_of_a_value_is_placed_in_it() -> None:
    values = {"noise": {"type": "gaussian", "variance": 1.0}, "mu": 2}
    assert with_nested_value(values, "noise#variance", 0.5) == {"noise": {"type": "gaussian", "variance": 0.5}, "mu": 2}
    assert with_nested_value({}, "a#b#c", 1) == {"a": {"b": {"c": 1}}}
    assert values["noise"]["variance"] == 1.0


def test_fields_have_the_values_that_methods_and_settings_declare(load) -> None:
    changes = {
        "rows__other": {"method": "fedtgp", "method_args": {}},
        "tune__settings": {"optimizer#lr": RATE, "epochs": {"low": 1, "high": 3}, "balance": "all"},
        "tune__rows": {"near": {"method_args": {"preset": "all", "mu": [0.1, 1.0]}}},
    }
    search = load(changes)
    axes = {axis.name: axis for axis in search.spaces["near"].axes}
    assert axes["method_args#preset"].values == ("paper", "medfl")
    assert axes["balance"].values == ("none", "loss", "sampling")
    assert axes["epochs"].whole
    assert not axes["optimizer#lr"].whole
    assert list(axes) == ["method_args#preset", "method_args#mu", "optimizer#lr", "epochs", "balance"]
    assert [axis.name for axis in search.spaces["mean"].axes] == ["optimizer#lr", "epochs", "balance"]


@pytest.mark.parametrize(
    ("changes", "code", "fields", "words"),
    [
        ({"tune": None}, "missing_setting", {"setting": "tune"}, ""),
        ({"tune__trials": None}, "invalid_setting", {"settings": ["tune"]}, "'random' needs 'trials'"),
        ({"tune__tirals": 3}, "unknown_setting", {"settings": ["tune.tirals"]}, "Did you mean 'trials'"),
        ({"tune__sampler": "bayes"}, "unknown_choice", {"settings": ["tune.sampler"]}, ""),
        (
            {"tune__rows": {"nera": {}}},
            "unknown_choice",
            {"place": "tune.rows", "what": "row", "choice": "nera"},
            "Did you mean 'near'",
        ),
        (
            {"tune__rows": {"near": {"method_args": {"muu": [1]}}}},
            "unknown_setting",
            {"place": "FedProx", "name": "muu"},
            "Did you mean 'mu'",
        ),
        (
            {"tune__rows": {"near": {"method_args": {"mu": [0.1, -1]}}}},
            "setting_out_of_range",
            {"settings": ["mu"]},
            "row 'near'",
        ),
        (
            {"tune__rows": {"near": {"method_args": {"mu": {"low": -1, "high": 1}}}}},
            "setting_out_of_range",
            {"settings": ["mu"]},
            "method_args.mu: ",
        ),
        (
            {"tune__rows": {"near": {"method_args": {"mu": {"low": 1, "high": 0.1}}}}},
            "invalid_setting",
            {},
            "expected low < high",
        ),
        (
            {"tune__rows": {"near": {"method_args": {"mu": {"low": 0, "high": 1, "log": True}}}}},
            "invalid_setting",
            {},
            "expected low > 0",
        ),
        ({"tune__rows": {"near": {"method_args": {"mu": 0.1}}}}, "invalid_range", {}, "method_args.mu: "),
        ({"tune__rows": {"near": {"method_args": {"mu": [0.1, 0.1]}}}}, "duplicate_value", {}, "method_args.mu: "),
        ({"tune__rows": {"near": {"method_args": {"mu": "all"}}}}, "all_not_supported", {}, "method_args.mu: "),
        (
            {"tune__rows": {"near": {"method_args": {"preset": ["medlf"]}}}},
            "unknown_choice",
            {"what": "preset", "choice": "medlf"},
            "",
        ),
        ({"tune__settings": {"epochs": {"low": 1, "high": 2.5}}}, "not_whole_numbers", {"low": 1, "high": 2.5}, ""),
        (
            {"tune__settings": {"epochs": [1, -1]}},
            "setting_out_of_range",
            {"settings": ["epochs"]},
            "settings.epochs: ",
        ),
        ({"tune__settings": {"balance": {"low": 0, "high": 1}}}, "range_not_supported", {}, "balance"),
        ({"tune__settings": {"optimizer#lrr": [0.1, 0.2, 0.3]}}, "unknown_option", {"option": "optimizer#lrr"}, ""),
        ({"tune__settings": {"seed": [1, 2, 3]}}, "reserved_setting", {"setting": "seed"}, ""),
        ({"tune__settings": {"rounds": [1, 2, 3]}}, "setting_not_tunable", {"setting": "rounds"}, ""),
        ({"tune__settings": {"workers": [1, 2, 3]}}, "execution_setting", {"setting": "workers"}, ""),
        ({"tune__settings": {"open_test": [True, False]}}, "execution_setting", {"setting": "open_test"}, ""),
        (
            {"tune__settings": {"privacy": [None]}},
            "setting_not_tunable",
            {"setting": "privacy"},
            "all trials must have the same guarantee",
        ),
        ({"tune__settings": {}}, "nothing_to_tune", {"row": "mean"}, ""),
        ({"tune__sampler": "grid"}, "missing_setting", {"setting": "points"}, ""),
        (
            TWO | {"tune__rows": {"near": {"method_args": {"mu": [0.1, 1]}}}},
            "unequal_trials",
            {"trials": {"mean": 2, "near": 4}},
            "",
        ),
        (TWO | {"tune__trials": 3, "tune__rows": {}}, "wrong_trials", {"expected": 2, "found": 3}, ""),
        (
            {"tune__metric": "acuracy"},
            "unknown_choice",
            {"what": "tune.metric", "choice": "acuracy"},
            "Did you mean 'accuracy'",
        ),
        ({"rows": {}, "tune__rows": {}, "baseline": None}, "no_rows", {}, ""),
        ({"data__again": {"folder": "cohort"}}, "several_datasets", {"datasets": ["again", "demo"]}, ""),
    ],
)
def test_what_can_not_be_is_refused_with_its_place(load, tmp_path, changes, code, fields, words) -> None:
    with refused(SettingsError, code, **fields) as caught:
        load(changes)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists(), "a look writes nothing"


def test_one_of_several_data_sets_is_named(load) -> None:
    assert load({"data__again": {"folder": "cohort"}}, data="again").data == "again"
