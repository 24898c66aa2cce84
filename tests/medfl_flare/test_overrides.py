"""Overrides in a message: JSON scalars for listed ids, and nothing that MONAI would evaluate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from monai.bundle import ConfigParser
from refusals import refused

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.engine.runs.provenance import bundle_values
from medfl.errors import RefusedError
from medfl.settings import Compression, Execution, Privacy, Settings, local_fields
from medfl.utils.nested import iterate_strings
from medfl_flare.overrides import COMPONENT_IDS, LOCAL_IDS, RUN_IDS, TASK_IDS, check_overrides

BUNDLE: dict[str, Any] = bundle_values(shipped_bundles()["medmnist_classification"]) | {
    "networks": {"wide": {"_target_": "a.B", "width": 64, "half": "$@width // 2", "deep": [1, 2], "bias": None}},
    "network_assignment": {"name": "b", "profiles": None, "thresholds": {"high": 0.6}, "networks": {"high": "a"}},
    "loss": {"_target_": "torch.nn.CrossEntropyLoss", "weight": "@class_weights", "label_smoothing": 0.0},
}


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"method": "fedkper", "rounds": 3, "seed": 1, "steps": None, "cross_site_evaluation": True, "fraction": 0.5},
        {"method_args": {"clusters": {"site-01": [1, 2.5, None]}, "preset": "paper"}},
        {"method_args#mu": 0.1, "mean": [0.5, 0.4, 0.3], "metrics": ["auc"], "moments": ["aggregated", "trained"]},
        {"networks_by_site": {"site-01": "cnn4"}, "privacy": {"epsilon": 5, "clip": 1.0}, "compression": {"bits": 8}},
        {"optimizer#lr": 0.1, "optimizer#nesterov": True, "loss#label_smoothing": 0.1},
        {"networks#wide#width": 32, "networks#wide#deep#1": 4, "networks#wide#bias": False},
        {"network_assignment#profiles": "live", "network_assignment#thresholds#high": 0.7},
        {"network_assignment": {"name": "c", "networks": {"high": "a", "low": "b"}}},
        {"method": "a price of 5$ at home@hospital, 5 %"},
    ],
)
def test_plain_values_of_listed_ids_pass(overrides: dict[str, Any]) -> None:
    check_overrides(overrides, BUNDLE)


@pytest.mark.parametrize("text", ["$__import__('os').system('id')", "@device", "%other.json#x", " $1", "\n@a"])
@pytest.mark.parametrize("place", ["method", "method_args", "mean", "networks_by_site", "optimizer#lr", "seed"])
def test_nothing_that_monai_evaluates_passes_anywhere(text: str, place: str) -> None:
    nested = {"method_args": {"a": {"b": [text]}}, "mean": [0.5, text], "networks_by_site": {"site-01": text}}
    with refused(RefusedError, "unsafe_text") as caught:
        check_overrides({place: nested.get(place, text)}, BUNDLE)
    assert caught.value.fields["place"].startswith(place)
    assert text not in str(caught.value), "what came is not repeated"


@pytest.mark.parametrize(
    "name",
    [
        "optimizer#_target_", "loss#_target_", "networks#wide#_target_", "method_args#my_target_", "_meta_",
        "method_args#_mode_", "networks#wide#_disabled_", "", "#", "rounds#", "opt imizer#lr", "optimizer#l'r",
        "~rounds", "+rounds", "optimizer::lr",
    ],
)  # fmt: skip
def test_ids_that_mean_something_to_monai_are_refused(name: str) -> None:
    with refused(RefusedError, "invalid_key", place=name):
        check_overrides({name: 1}, BUNDLE)


@pytest.mark.parametrize(
    "name",
    [
        *("imports", "initialize", "run", "train#dataset", "task", "federation", "network_def"),
        *("settings", "settings#rounds", "settings#workers", "settings#privacy#ledger"),  # they have one name alone
    ],
)
def test_ids_that_are_not_listed_are_refused(name: str) -> None:
    with refused(RefusedError, "unlisted_override", name=name):
        check_overrides({name: 1}, BUNDLE)


@pytest.mark.parametrize("name", ["privacy#ledger", "privacy#epsilon"])
def test_parts_of_a_setting_without_parts_are_refused(name: str) -> None:
    with refused(RefusedError, "value_without_parts", name=name, parent="privacy"):
        check_overrides({name: 1}, BUNDLE)


@pytest.mark.parametrize("name", sorted(LOCAL_IDS))
def test_what_is_a_participants_own_affair_is_refused_with_that_reason(name: str) -> None:
    with refused(RefusedError, "local_override", name=name, setting=name):
        check_overrides({name: "x"}, BUNDLE | {name: "y"})


@pytest.mark.parametrize(
    ("overrides", "code", "fields"),
    [
        ({"method_args": {"_target_": "os.system"}}, "invalid_key", {"place": "method_args#_target_"}),
        ({"method_args": {"x": [{"the_target_": 1}]}}, "invalid_key", {"place": "method_args#x#0#the_target_"}),
        ({"method_args": {"a#b": 1}}, "invalid_key", {"place": "method_args#a#b"}),
        ({"method_args": {1: 1}}, "invalid_key", {"place": "method_args#1"}),
        ({"privacy": {"epsilon": 1, "clip": 1, "ledger": "/tmp/mine"}}, "local_override", {"setting": "ledger"}),
        ({"privacy": {"epsilon": 1, "clip": 1, "total_epsilon": 100}}, "local_override", {"setting": "total_epsilon"}),
        ({"networks_by_site": {"$x": "cnn4"}}, "invalid_key", {"place": "networks_by_site#$x"}),
        ({"seed": b"1"}, "wrong_type", {"place": "seed", "found": "a bytes"}),
        ({"seed": {1, 2}}, "wrong_type", {"place": "seed", "found": "a set"}),
        ({"seed": (1, 2)}, "wrong_type", {"place": "seed", "found": "a tuple"}),
        ({"mean": [float("nan")]}, "not_finite", {"place": "mean#0"}),
        ({"fraction": float("inf")}, "not_finite", {"place": "fraction"}),
        ({"seed": 2**64}, "integer_too_large", {"place": "seed"}),
        ({"method": "x" * 2000}, "unsafe_text", {"place": "method"}),
        ({"method_args": {"x": [[[[[[[[[[1]]]]]]]]]]}}, "nested_too_deep", {"maximum": 8}),
        ({"mean": [0.5] * 20_000}, "too_many_values", {"maximum": 10_000}),
        ({1: 1}, "wrong_type", {"found": "a number"}),
        ([], "invalid_overrides", {"found": "a list"}),
        (None, "invalid_overrides", {"found": "null"}),
    ],
)
def test_anything_but_plain_small_json_is_refused(overrides: Any, code: str, fields: dict[str, Any]) -> None:
    with refused(RefusedError, code, **fields):
        check_overrides(overrides, BUNDLE)


@pytest.mark.parametrize(
    ("name", "value", "code", "fields"),
    [
        ("optimizer", {"lr": 0.1}, "number_expected", {"found": "an object"}),
        ("optimizer", 1, "irreplaceable_part", {"found": "null"}),
        ("optimizer#lr", "0.1", "number_expected", {"found": "text"}),
        ("optimizer#lr", None, "number_expected", {"found": "null"}),
        ("optimizer#lr", [0.1], "number_expected", {"found": "a list"}),
        ("optimizer#params", 1, "irreplaceable_part", {"found": "text"}),
        ("optimizer#groups#lr", 0.1, "value_without_parts", {"parent": "optimizer"}),
        ("networks#wide", 1, "irreplaceable_part", {"found": "an object"}),
        ("networks#wide#half", 32, "irreplaceable_part", {"found": "text"}),
        ("networks#wide#new", 32, "irreplaceable_part", {"found": "nothing"}),
        ("networks#wide#deep#2", 4, "irreplaceable_part", {"found": "nothing"}),
        ("networks#unknown#width", 4, "value_without_parts", {"parent": "networks"}),
        ("loss#weight", 1, "irreplaceable_part", {"found": "text"}),
        ("loss#reduction", 1, "irreplaceable_part", {"found": "nothing"}),
    ],
)
def test_of_components_only_single_numbers_are_replaced(
    name: str, value: Any, code: str, fields: dict[str, Any]
) -> None:
    with refused(RefusedError, code, name=name, **fields):
        check_overrides({name: value}, BUNDLE)


def test_an_id_that_the_bundle_does_not_have_is_refused_rather_than_ignored() -> None:
    check_overrides({"steps": 3}, BUNDLE)
    for name, without in (("mean", "mean"), ("steps", "settings")):
        with refused(RefusedError, "unknown_override", name=name):
            check_overrides({name: 3}, {key: value for key, value in BUNDLE.items() if key != without})


def test_what_a_server_may_set_is_what_was_reviewed() -> None:
    """Fail if a setting is marked by mistake, or not marked, so that each new setting is reviewed again."""
    reviewed = {
        "rounds", "epochs", "steps", "batch_size", "lr_decay", "fraction", "seed", "evaluate_every", "best_round",
        "patience", "keep_rounds", "min_replies", "moments", "cross_site_evaluation", "shared_test", "balance",
        "norm_sync", "norm_bound", "networks_by_site", "disclose", "privacy", "compression", "precision",
        "robust", "secure_aggregation", "start", "start_skip", "optimization", "train_part", "feature_views",
        "lora", "harmonise_features",
    }  # fmt: skip
    assert (
        set(Settings.model_fields) - {"adversaries"}
        == RUN_IDS - {"method", "method_args", "network_assignment"}
        == reviewed
    )
    assert set(Execution.model_fields) <= LOCAL_IDS
    assert local_fields(Privacy.model_fields) == {"ledger", "total_epsilon"}
    assert not local_fields(Compression.model_fields)
    assert not (RUN_IDS | TASK_IDS | set(COMPONENT_IDS)) & LOCAL_IDS


@pytest.mark.parametrize("setting", [{"networks_by_site": {"site-01": "cnn4"}}, {}])
def test_parts_of_a_setting_pass_as_the_whole_does(setting: dict[str, Any]) -> None:
    bundle = BUNDLE | {"settings": BUNDLE["settings"] | setting}
    check_overrides({"networks_by_site#site-01": "cnn5"}, bundle)
    with refused(RefusedError, "value_without_parts", name="steps#deep#er", parent="steps"):
        check_overrides({"steps#deep#er": 1}, bundle)


LEAVES = some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8)
KEYS = some.sampled_from(["a", "mu", "_target_", "b_target_", "_mode_", "x#y", "$a", ""]) | some.text(max_size=6)
VALUES = some.recursive(LEAVES, lambda part: some.lists(part, max_size=3) | some.dictionaries(KEYS, part, max_size=3))


@given(some.dictionaries(some.sampled_from(sorted(RUN_IDS | TASK_IDS)) | KEYS, VALUES, max_size=3))
def test_what_passes_is_read_by_monai_unchanged(overrides: dict[str, Any]) -> None:
    try:
        check_overrides(overrides, BUNDLE)
    except RefusedError:
        return
    parser = ConfigParser({"bundle": {}})
    parser.update(pairs=overrides)
    for name, value in overrides.items():
        assert parser.get_parsed_content(name) == value
    assert not [text for text in iterate_strings(overrides) if text.startswith(("$", "@", "%"))]


def test_no_server_poisons_a_site():
    with refused(RefusedError, "local_override", setting="adversaries"):
        check_overrides({"adversaries": {"attack": "free_rider", "sites": ["site-1"]}}, {})
