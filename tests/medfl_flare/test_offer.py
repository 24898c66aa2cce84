"""Offers: untrusted values are validated strictly, and each difference is reported with both values."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from refusals import refused

import medfl
from medfl.bundle.bundle_folders import bundle_hash, shipped_bundles
from medfl.errors import PluginError, RefusedError, SettingsError
from medfl.plugins import Registry, load_plugins
from medfl_flare.offer import find_differences, local_versions, make_offer, method_version
from medfl_flare.records.offer import Offer

ROOT = shipped_bundles()["medmnist_classification"]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins()


@pytest.fixture(scope="module")
def offer(registry: Registry) -> Offer:
    overrides = {"method": "fedprox", "rounds": 3, "optimizer::lr": 0.1}
    return make_offer(ROOT, overrides, "first", ["site-02", "site-01"], 60, registry=registry)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "medmnist_classification"))


def test_an_offer_says_what_must_agree(offer: Offer) -> None:
    assert (offer.run, offer.bundle, offer.method) == ("first", "medmnist_classification", "fedprox")
    assert offer.bundle_version == json.loads((ROOT / "configs" / "metadata.json").read_text())["version"]
    assert offer.bundle_hash == bundle_hash(ROOT)
    assert offer.medfl == offer.method_version == medfl.__version__, "a method of medfl's own has its version"
    assert offer.sites == ["site-01", "site-02"]
    assert offer.overrides["optimizer#lr"] == 0.1
    assert offer.reply_timeout == 60


def test_an_offer_goes_through_json(offer: Offer) -> None:
    assert Offer.from_meta(json.loads(json.dumps(offer.to_json()))) == offer


def test_without_an_override_the_method_is_the_bundles(registry: Registry) -> None:
    assert make_offer(ROOT, {}, "r", registry=registry).method == "fedavg"


def test_an_override_that_is_not_allowed_is_refused_before_anything_is_sent(registry: Registry) -> None:
    with refused(RefusedError, "invalid_key", place="optimizer#_target_"):
        make_offer(ROOT, {"optimizer#_target_": "os.system"}, "r", registry=registry)


@pytest.mark.parametrize(
    ("change", "code", "setting"),
    [
        ({"run": "../up"}, "invalid_setting", "run"),
        ({"run": ""}, "invalid_setting", "run"),
        ({"run": "x" * 65}, "invalid_setting", "run"),
        ({"run": "a\n"}, "invalid_setting", "run"),
        ({"run": 3}, "wrong_setting_type", "run"),
        ({"bundle": "/etc"}, "invalid_setting", "bundle"),
        ({"bundle": ".hidden"}, "invalid_setting", "bundle"),
        ({"bundle_hash": "0" * 63}, "invalid_setting", "bundle_hash"),
        ({"bundle_hash": "G" * 64}, "invalid_setting", "bundle_hash"),
        ({"bundle_version": ""}, "invalid_setting", "bundle_version"),
        ({"medfl": "1\n2"}, "invalid_setting", "medfl"),
        ({"method": None}, "wrong_setting_type", "method"),
        ({"method_version": "x" * 200}, "invalid_setting", "method_version"),
        ({"overrides": []}, "wrong_setting_type", "overrides"),
        ({"sites": "site-01"}, "wrong_setting_type", "sites"),
        ({"sites": ["b", "a"]}, "invalid_setting", "sites"),
        ({"sites": ["a", "a"]}, "invalid_setting", "sites"),
        ({"sites": ["a/b"]}, "invalid_setting", "sites"),
        ({"sites": [1]}, "wrong_setting_type", "sites.0"),
        ({"reply_timeout": 0}, "setting_out_of_range", "reply_timeout"),
        ({"reply_timeout": "60"}, "wrong_setting_type", "reply_timeout"),
        ({"reply_timeout": True}, "wrong_setting_type", "reply_timeout"),
        ({"reply_timeout": 1.5}, "wrong_setting_type", "reply_timeout"),
        ({"given_by": "x" * 1000}, "invalid_setting", "given_by"),
        ({"gift": 1}, "unknown_setting", "gift"),
    ],
)
def test_an_offer_with_a_wrong_value_is_refused_by_name(
    offer: Offer, change: dict[str, Any], code: str, setting: str
) -> None:
    with refused(RefusedError, code, settings=[setting]):
        Offer.from_meta(offer.to_json() | change)


@pytest.mark.parametrize("site", ["server", "global"])
def test_an_offer_with_a_reserved_name_of_a_site_is_refused(offer: Offer, site: str) -> None:
    with refused(RefusedError, "invalid_setting", settings=["sites"]) as caught:
        Offer.from_meta(offer.to_json() | {"sites": ["a", site]})
    assert site in str(caught.value)


@pytest.mark.parametrize("value", [[float("nan")], b"x"])
def test_an_offer_that_json_cannot_hold_is_refused(offer: Offer, value: Any) -> None:
    with refused(RefusedError, "invalid_json"):
        Offer.from_meta(offer.to_json() | {"overrides": {"mean": value}})


@pytest.mark.parametrize("name", ["run", "bundle", "bundle_version", "bundle_hash", "medfl", "method_version"])
def test_nothing_that_must_agree_may_be_missing(offer: Offer, name: str) -> None:
    with refused(RefusedError, "missing_setting", settings=[name]):
        Offer.from_meta({key: value for key, value in offer.to_json().items() if key != name})


JUNK = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5) | some.binary(max_size=3),
    lambda part: some.lists(part, max_size=3) | some.dictionaries(some.text(max_size=4) | some.integers(), part),
    max_leaves=8,
)


@given(some.data())
def test_anything_else_is_refused_shortly_and_never_fails_otherwise(offer: Offer, data: Any) -> None:
    changes = data.draw(some.dictionaries(some.sampled_from(sorted(Offer.model_fields)), JUNK, max_size=3) | JUNK)
    meta = offer.to_json() | changes if isinstance(changes, dict) else changes
    try:
        read = Offer.from_meta(meta)
    except RefusedError as error:
        words = str(error)
    else:
        words = ""
        assert read.to_json() == json.loads(json.dumps(meta))
    assert len(words) < 2100


def test_a_very_long_value_is_not_repeated_in_full(offer: Offer) -> None:
    with refused(RefusedError, "invalid_setting", settings=["run"]) as caught:
        Offer.from_meta(offer.to_json() | {"run": "x" * 10**6})
    assert len(str(caught.value)) < 2100


def test_sites_may_be_filled_in_later(offer: Offer) -> None:
    assert offer.with_sites(["c", "a"]).sites == ["a", "c"]
    with refused(RefusedError, "invalid_setting", settings=["sites"]) as caught:
        offer.with_sites(["server"])
    assert "server" in str(caught.value)


def test_equal_participants_differ_in_nothing(offer: Offer, registry: Registry, copied: Path) -> None:
    assert find_differences(offer, local_versions(copied, registry, offer.overrides)) == {}


def test_every_difference_is_reported_with_both_values(offer: Offer, registry: Registry) -> None:
    same = local_versions(ROOT, registry, offer.overrides)
    for name, value in (
        ("bundle_version", "0.0.9"),
        ("bundle_hash", "f" * 64),
        ("medfl", "9.9.9"),
        ("method", "fedavg"),
        ("method_version", "acme 1.0"),
    ):
        ((fact, line),) = find_differences(offer, dataclasses.replace(same, **{name: value})).items()
        assert fact == name
        assert value in line
        assert getattr(offer, name) in line


@pytest.mark.parametrize("what", ["edited", "added", "removed", "renamed"])
def test_the_hash_changes_with_the_configurations(copied: Path, what: str) -> None:
    before = bundle_hash(copied)
    configs = copied / "configs"
    if what == "edited":
        (configs / "train.json").write_bytes((configs / "train.json").read_bytes() + b" ")
    elif what == "added":
        (configs / "more.json").write_text("{}")
    elif what == "removed":
        (configs / "evaluate.json").unlink()
    else:
        (configs / "evaluate.json").rename(configs / "evaluated.json")
    assert bundle_hash(copied) != before


def test_the_hash_is_of_the_configurations_alone(copied: Path) -> None:
    before = bundle_hash(copied)
    (copied / "docs" / "notes.json").write_text("{}")
    (copied / "configs" / "logging.conf").write_text("")
    (copied / "configs" / "old").mkdir()
    (copied / "configs" / "old" / "train.json").write_text("{}")
    assert bundle_hash(copied) == before


def test_bytes_that_move_from_one_file_to_the_next_change_the_hash(tmp_path: Path) -> None:
    hashes = []
    for contents in (("ab", "c"), ("a", "bc")):
        folder = tmp_path / contents[0]
        (folder / "configs").mkdir(parents=True)
        for name, content in zip(("1.json", "2.json"), contents, strict=True):
            (folder / "configs" / name).write_text(content)
        hashes.append(bundle_hash(folder))
    assert hashes[0] != hashes[1]


def test_a_folder_that_is_no_bundle_is_refused(tmp_path: Path, registry: Registry) -> None:
    with refused(SettingsError, "missing_configuration", path=str(tmp_path)):
        bundle_hash(tmp_path)
    with refused(SettingsError, "missing_setting", setting="method", bundle=tmp_path.name):
        make_offer(tmp_path, {}, "r", registry=registry)


def test_a_plugin_files_version_is_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from medfl.plugins import MethodRecord, hookimpl\n"
        "@hookimpl\ndef medfl_methods():\n    return [MethodRecord('mine', 'x:Y', 'averaging', '', {})]\n"
    )
    assert method_version(load_plugins([file]), "mine") == hashlib.sha256(file.read_bytes()).hexdigest()


def test_another_packages_version_is_named_with_it(registry: Registry) -> None:
    other = Registry()
    other.methods, other.plugins = registry.methods, dict.fromkeys(registry.plugins, "acme-fl 1.2")
    other._claims = registry._claims
    assert method_version(other, "fedavg") == "acme-fl 1.2"


def test_an_unknown_method_is_refused_with_the_nearest(registry: Registry) -> None:
    with refused(PluginError, "unknown_choice", what="method", choice="fedprix") as caught:
        make_offer(ROOT, {"method": "fedprix"}, "r", registry=registry)
    assert "Did you mean 'fedprox'" in str(caught.value)
