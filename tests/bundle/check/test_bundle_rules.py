"""Rules of ``medfl check-bundle`` for metadata, configurations and references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from damage import edit, put

from medfl.bundle.check import check_bundle
from medfl.engine.runs.setting_ids import default_values
from medfl.settings import run_fields

SHIPPED = Path(__file__).parents[3] / "bundles"

# ---- each rule


def metadata_without(*keys):
    return lambda content: [content.pop(key) for key in keys]


def in_image(**values):
    return lambda content: content["network_data_format"]["inputs"]["image"].update(values)


METADATA = {
    "missing keys": (metadata_without("task", "authors"), "these keys are missing: task, authors"),
    "no changelog": (metadata_without("changelog"), "these keys are missing: changelog"),
    "wrong type": (lambda c: c.update(monai_version=1.6), "'monai_version' must be text, got 1.6"),
    "version": (lambda c: c.update(version="1.0", changelog={"1.0": ""}), "three numbers such as 0.1.0, got '1.0'"),
    "changelog": (lambda c: c.update(version="0.2.0"), "'changelog' has no entry for version 0.2.0"),
    "references": (lambda c: c.update(references=["a", 1]), "'references' must be a list of texts, got ['a', 1]"),
    "no outputs": (
        lambda c: c["network_data_format"].pop("outputs"),
        "these keys are missing in 'network_data_format': outputs",
    ),
    "second network": (lambda c: c.update(critic_data_format=1), "'critic_data_format' must be an object, got 1"),
    "tensor": (
        lambda c: c["network_data_format"]["inputs"].update(image={"type": "image"}),
        "missing in 'network_data_format#inputs#image': format, num_channels, spatial_shape, dtype, value_range",
    ),
    "channels": (in_image(num_channels=True), "'network_data_format#inputs#image#num_channels' must be a whole number"),
    "shape": (in_image(spatial_shape=[28, 2.5]), "must be a list of whole numbers and texts, got [28, 2.5]"),
    "formula": (
        in_image(spatial_shape=["().__class__"]),
        "holds '().__class__'; expected '*' or arithmetic on p and n",
    ),
    "range": (in_image(value_range="0-1"), "'network_data_format#inputs#image#value_range' must be a list of numbers"),
    "patch": (in_image(is_patch_data="no"), "#is_patch_data' must be true or false, got 'no'"),
}


@pytest.mark.parametrize(("change", "message"), METADATA.values(), ids=METADATA)
def test_a_breach_of_the_metadata_rules_is_an_error(bundle, change, message):
    edit(bundle, "metadata.json", change)
    errors = check_bundle(bundle).errors
    assert len(errors) == 1
    assert errors[0].startswith("configs/metadata.json: ")
    assert message in errors[0]


def test_what_the_metadata_rules_allow(bundle):
    edit(bundle, "metadata.json", in_image(spatial_shape=["*", "2**p * n"], value_range=[0.5]))
    edit(bundle, "metadata.json", lambda c: c["network_data_format"]["inputs"].update(scale=1.5))
    report = check_bundle(bundle)
    assert report.errors == []
    assert [code.text for code in report.code if code.kind == "shape"] == ["2**p * n"]


def test_an_old_name_and_another_schema_are_named(bundle):
    def change(content):
        content["optional_packages_version"] = content.pop("required_packages_version")
        content["schema"] = "https://example.org/meta_schema_20220324.json"

    edit(bundle, "metadata.json", change)
    report = check_bundle(bundle)
    assert report.errors == []
    assert "'optional_packages_version' is the old name" in report.warnings[0]
    assert any("names 'meta_schema_20220324.json'" in note for note in report.notes)


def test_versions_are_for_information_only(bundle):
    edit(bundle, "metadata.json", lambda c: c.update(monai_version="9.9.9"))
    report = check_bundle(bundle)
    assert report.errors == []
    assert any(note.startswith("monai: made with 9.9.9, installed is 1.6") for note in report.notes)


def test_missing_metadata_are_an_error(bundle):
    (bundle / "configs" / "metadata.json").unlink()
    assert check_bundle(bundle).errors == ["configs/metadata.json is missing"]


UNREADABLE = {
    "cut": ('{"a": 1', "can't be read: Expecting ',' delimiter: line 1 column 8"),
    "a key twice": ('{"a": {"b": 1, "b": 2}}', "the key 'b' occurs 2 times in one object; only the last counts"),
    "NaN": ('{"a": [0, NaN]}', "'a#1' is nan, which JSON does not allow"),
    "infinite": ('{"a": 1e999}', "'a' is inf, which JSON does not allow"),
    "deep": ("[" * 60 + "]" * 60, "nested more than 50 levels deep"),
    "very deep": ("[" * 100_000, "is nested too deeply to be read"),
    "a list": ("[1]", "expected an object of ids, got a list"),
    "yaml object": ("a: !!python/object/apply:os.system ['touch {file}']", "could not determine a constructor"),
    "yaml twice": ("a: 1\na: 2\n", "the key 'a' occurs 2 times"),
    "yaml alias": ("a: &x [1]\nb: *x\n", "repeats parts by YAML aliases"),
    "yaml NaN": ("a: .nan\n", "'a' is nan"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_configuration_that_can_not_be_trusted_to_be_read_is_an_error(bundle, case, tmp_path):
    text, message = UNREADABLE[case]
    name = f"configs/more.{'yaml' if case.startswith('yaml') else 'json'}"
    put(bundle, name, text.replace("{file}", str(tmp_path / "ran")))
    errors = check_bundle(bundle).errors
    assert len(errors) == 1
    assert errors[0].startswith(f"{name}: ")
    assert message in errors[0]
    assert not (tmp_path / "ran").exists()


def test_no_utf8(bundle):
    (bundle / "configs" / "more.json").write_bytes(b'{"a": "\xff"}')
    assert check_bundle(bundle).errors == ["configs/more.json: is not UTF-8 text"]


@pytest.mark.parametrize("file", ["train.json", "inference.json"])
def test_all_missing_properties_come_in_one_message(bundle, file):
    edit(bundle, file, lambda c: [c.pop(key) for key in ("device", "dataset_dir")])
    errors = [error for error in check_bundle(bundle).errors if "MONAI requires" in error]
    assert errors == [f"configs/{file}: MONAI requires these ids, missing: device, dataset_dir"]


def test_a_bundle_without_training_is_warned_of(bundle):
    for name in ("train", "federate", "evaluate"):
        (bundle / "configs" / f"{name}.json").unlink()
    report = check_bundle(bundle)
    assert report.errors == []
    assert report.warnings == [
        "configs/train.json is missing: the bundle can't be trained at one site or as a federation",
    ]


def overlay(bundle, **content):
    put(bundle, "configs/more.json", json.dumps(content))
    return [error for error in check_bundle(bundle).errors if "more.json" in error]


def test_a_reference_that_leads_nowhere_names_all_its_places(bundle):
    assert overlay(bundle, x="@optimiser", y="$len(@optimiser) + @y#z", z="@seed") == [
        "configs/train.json + more.json: @optimiser is not defined (in x, y); @y#z is not defined (in y)"
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"a": {"b": [1, 2]}, "x": "@a#b#1", "y": "$@a::b", "mail": "someone@example.org"},
        {"a": {"b": 1, "c": "@#b", "d": {"e": "@##b"}}},
        {"a": {"b": 1}, "x": "%a", "y": "@x#b"},
        {"x": "%configs/train.json#optimizer", "y": "@x#lr"},
        {"x": "@_meta_#version"},
        {"optimizer#lr": 0.5, "x": "@optimizer#lr"},
        {"+train#handlers": ["@network"]},
    ],
    ids=["nested", "relative", "macro", "macro of a file", "metadata", "a part replaced", "a list extended"],
)
def test_references_that_resolve(bundle, content):
    assert overlay(bundle, **content) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": "@####up"}, "'@####up' points above the top (in x)"),
        ({"x": "%nothing"}, "'x' is '%nothing', which does not exist"),
        ({"x": "%../outside.json#a"}, "which reads a file outside of the bundle"),
        ({"x": "%/etc/outside.yaml"}, "which reads a file outside of the bundle"),
        ({"x": "%configs/none.json#a"}, "and that file can't be read: No such file or directory"),
        ({"nowhere#x": 1}, "'nowhere#x' can't be merged"),
        ({f"a{number}": "%" for number in range(40)}, "copy more than 20000 values"),
    ],
)
def test_what_can_not_be_followed_is_an_error(bundle, content, message):
    errors = overlay(bundle, **content)
    assert len(errors) == 1
    assert message in errors[0]


# ---- settings of a federation


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": "@rounds", "fractoin": 0.1}, "has an unknown setting 'fractoin'. Did you mean 'fraction'?"),
        ([1], "expected 'settings' as an object of settings by name, got a list"),
    ],
)
def test_a_setting_that_there_is_not_is_named(bundle, settings, message):
    edit(bundle, "federate.json", lambda content: content.update(settings=settings))
    (error,) = check_bundle(bundle).errors
    assert error.startswith("configs/federate.json: ")
    assert message in error


def test_settings_of_other_bundles_are_their_own_affair(bundle):
    edit(bundle, "federate.json", lambda content: content["federation"].update(settings=1))
    edit(bundle, "federate.json", lambda content: content.update(settings={"fractoin": 0.1}))
    assert check_bundle(bundle).errors == []


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*/configs/federate.json")), ids=lambda p: p.parts[-3])
def test_shipped_bundles_name_what_differs_from_the_defaults(path):
    config = json.loads(path.read_text())
    settings = config["settings"]
    balanced = {"balance"} - ({"balance"} if "segmentation" in str(path) else set())  # voxels have their Dice
    shared = {"rounds", "seed", "batch_size", "device"}
    assert {name for name, value in settings.items() if value == f"@{name}"} == shared | balanced
    plain = {name: value for name, value in settings.items() if value != f"@{name}"}
    assert all(default_values()[name] != value for name, value in plain.items())
    assert not set(run_fields()) & set(config) - {"rounds", "seed", "device"}
