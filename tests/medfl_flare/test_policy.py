"""A run can only be stricter than a participant's own file; each refusal contains the wish and the permission."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import RefusedError
from medfl.networks.memory_limit import MAX_TOTAL_FACTOR, TooLargeError, network_bytes
from medfl.plugins import load_plugins
from medfl.settings import Privacy, Settings
from medfl_flare.records.offer import Offer
from medfl_flare.sites.policy import (
    check_counts,
    check_networks,
    check_run,
    disclosed_site_info,
    disclosed_splits,
    is_at_least,
    with_own_ledger,
)
from medfl_flare.sites.site_file import MinimumPrivacy, SiteFile

FEDAVG = load_plugins().make_method("fedavg", {})
OFFER = Offer(
    run="first",
    bundle="medmnist_classification",
    bundle_version="0.1.0",
    bundle_hash="0" * 64,
    medfl="0.1.0",
    method="fedavg",
    method_version="0.1.0",
    sites=["site-01", "site-02"],
)
SITE: dict[str, Any] = {
    "site": "site-01",
    "state": "/state",
    "methods": ["fedavg", "fedkper"],
    "max_rounds": 20,
    "min_count": 10,
    "bundles": {"medmnist_classification": {"data": "/data"}},
}
PROMISE: dict[str, Any] = {"unit": "site", "adjacency": "replace", "epsilon": 8.0, "delta": 1e-5}
WEAK = "insufficient_privacy"


def site_file(**change: Any) -> SiteFile:
    return SiteFile.model_validate(SITE | change)


def settings(**change: Any) -> Settings:
    return Settings.model_validate({"rounds": 20} | change)


def check(file: SiteFile, run: Settings, offer: Offer = OFFER, method: str = "fedavg") -> None:
    check_run(file, offer, run, method, FEDAVG)


def changed(**change: Any) -> Offer:
    return Offer.from_meta(OFFER.to_json() | change)


def test_sums_of_features_leave_only_if_the_file_discloses_them_and_the_size() -> None:
    wish = settings(train_part="head", harmonise_features="combat")
    for disclosed in (["size"], ["feature_sums"], []):
        with refused(RefusedError, "run_not_allowed", problems=["feature_sums_not_allowed"]) as caught:
            check(site_file(disclose=disclosed), wish)
        assert "the sum and the sum of squared deviations" in str(caught.value)
    check(site_file(disclose=["feature_sums", "size"]), wish)
    check(site_file(site="server", disclose=[]), wish)


def test_a_run_within_the_file_is_accepted() -> None:
    check(site_file(), settings())
    check(site_file(privacy=PROMISE), settings(privacy=PROMISE | {"clip": 1.0}))
    check(site_file(cross_site_evaluation=True), settings(cross_site_evaluation=True))
    check(site_file(shared_test=True), settings(shared_test=True, privacy=PROMISE | {"clip": 1.0}))


@pytest.mark.parametrize(
    ("file", "run", "offer", "method", "problem", "wanted", "allowed"),
    [
        ({}, {}, {"method": "fedprox"}, "fedprox", "method_not_allowed", "'fedprox'", "allowed: fedavg, fedkper"),
        ({"methods": []}, {}, {}, "fedavg", "method_not_allowed", "'fedavg'", "allowed: none"),
        ({}, {}, {"method": "fedkper"}, "fedavg", "different_method", "'fedkper'", "'fedavg'"),
        ({}, {"rounds": 21}, {}, "fedavg", "too_many_rounds", "21 rounds", "at most 20"),
        (
            {}, {"cross_site_evaluation": True}, {},
            "fedavg", "cross_site_evaluation_not_allowed", "cross-site evaluation", "allowed: no",
        ),
        (
            {"cross_site_evaluation": True}, {"shared_test": True},
            {}, "fedavg", "shared_test_not_allowed", "shared_test", "allowed: no",
        ),
        ({}, {}, {"sites": ["site-02"]}, "fedavg", "wrong_recipient", "site-02", "site-01"),
        ({}, {}, {"bundle": "other"}, "fedavg", "bundle_not_allowed", "'other'", "medmnist_classification"),
        ({"privacy": PROMISE}, {}, {}, "fedavg", WEAK, "guarantees privacy: none", "epsilon 8.0"),
        (
            {"privacy": PROMISE}, {"privacy": {"epsilon": 8.1, "clip": 1}},
            {}, "fedavg", WEAK, "epsilon 8.1", "epsilon 8.0",
        ),
        (
            {"privacy": PROMISE},
            {"privacy": {"epsilon": 1, "clip": 1, "adjacency": "add_remove"}},
            {}, "fedavg", WEAK, "adjacency add_remove", "adjacency replace",
        ),
        (
            {"privacy": PROMISE},
            {"privacy": {"epsilon": 1, "clip": 1, "unit": "sample"}},
            {}, "fedavg", WEAK, "unit sample", "unit site",
        ),
        (
            {"privacy": PROMISE}, {"privacy": {"epsilon": 1, "clip": 1, "delta": 1e-4}},
            {}, "fedavg", WEAK, "delta 0.0001", "delta 1e-05",
        ),
    ],
)  # fmt: skip
def test_a_looser_run_is_refused_with_both_values(
    file: dict[str, Any],
    run: dict[str, Any],
    offer: dict[str, Any],
    method: str,
    problem: str,
    wanted: str,
    allowed: str,
) -> None:
    with pytest.raises(RefusedError) as caught:
        check(site_file(**file), settings(**run), changed(**offer), method)
    assert caught.value.fields.get("problems", [caught.value.code]) == [problem]
    assert wanted in str(caught.value)
    assert allowed in str(caught.value)
    assert "site-01" in str(caught.value)


def test_all_that_is_not_allowed_comes_in_one_message() -> None:
    problems = ["method_not_allowed", "too_many_rounds", "cross_site_evaluation_not_allowed", WEAK]
    with refused(RefusedError, "run_not_allowed", site="site-01", run="first", problems=problems) as caught:
        check(site_file(methods=[], privacy=PROMISE), settings(rounds=99, cross_site_evaluation=True))
    for word in ("'fedavg'", "99 rounds", "cross-site evaluation", "epsilon 8.0"):
        assert word in str(caught.value)


def test_a_method_that_privacy_can_not_cover_is_refused() -> None:
    method = load_plugins().make_method("fedskd", {})
    with refused(RefusedError, "run_not_allowed", site="site-01", problems=["method_not_supported"]):
        check_run(
            site_file(methods=["fedskd"]),
            changed(method="fedskd"),
            settings(privacy={"epsilon": 1, "clip": 1}),
            "fedskd",
            method,
        )


def test_a_server_takes_part_in_runs_of_any_sites() -> None:
    check(site_file(site="server"), settings())


NUMBERS = some.floats(0.01, 100)
DELTAS = some.floats(1e-9, 0.5)
UNITS = some.sampled_from(["site", "sample"])
ADJACENCIES = some.sampled_from(["add_remove", "replace"])
FLOORS = some.builds(MinimumPrivacy, unit=UNITS, adjacency=ADJACENCIES, epsilon=NUMBERS, delta=DELTAS)

COVERS = {
    ("site", "replace"): {"site replace", "site add_remove", "sample replace", "sample add_remove"},
    ("site", "add_remove"): {"site add_remove"},
    ("sample", "replace"): {"sample replace", "sample add_remove"},
    ("sample", "add_remove"): {"sample add_remove"},
}
"""Minimum settings that a guarantee with the same numbers meets: a replaced site is removed and added again."""


@given(FLOORS, UNITS, ADJACENCIES, some.data())
def test_a_run_can_only_tighten_the_floor(floor: MinimumPrivacy, unit: str, adjacency: str, data: Any) -> None:
    epsilon = data.draw(NUMBERS | some.just(floor.epsilon))
    delta = data.draw(DELTAS | some.just(floor.delta))
    run = settings(privacy={"unit": unit, "adjacency": adjacency, "epsilon": epsilon, "delta": delta, "clip": 1.0})
    covered = f"{floor.unit} {floor.adjacency}" in COVERS[unit, adjacency]
    strict = covered and epsilon <= floor.epsilon and delta <= floor.delta
    assert is_at_least(floor, run.privacy) == strict
    file = site_file(privacy=floor.model_dump())
    if strict:
        check(file, run)
    else:
        with refused(RefusedError, "run_not_allowed", problems=[WEAK]):
            check(file, run)


@given(FLOORS, FLOORS, some.data())
def test_what_a_stricter_floor_accepts_a_looser_one_does_too(
    stricter: MinimumPrivacy, other: MinimumPrivacy, data: Any
) -> None:
    def as_run(floor: MinimumPrivacy) -> Privacy:
        return Privacy.model_validate(floor.model_dump(exclude={"ledger", "total_epsilon"}) | {"clip": 1.0})

    run = as_run(data.draw(FLOORS))
    if is_at_least(other, as_run(stricter)) and is_at_least(stricter, run):
        assert is_at_least(other, run)
    assert is_at_least(stricter, as_run(stricter)), "a floor keeps itself"


def test_no_floor_accepts_any_privacy_and_none() -> None:
    for privacy in (None, *({"unit": u, "epsilon": 99, "clip": 1} for u in ("site", "sample"))):
        check(site_file(), settings(privacy=privacy))


def test_the_account_is_the_sites_own(tmp_path: Path) -> None:
    run = settings(privacy={"epsilon": 5, "clip": 1.0, "ledger": tmp_path / "foreign", "total_epsilon": 1000})
    own = with_own_ledger(site_file(privacy=PROMISE | {"ledger": tmp_path, "total_epsilon": 20}), run)
    assert own.privacy is not None
    assert (own.privacy.ledger, own.privacy.total_epsilon) == (tmp_path, 20)
    assert own.model_dump() == run.model_dump(), "an account is no part of what a run is"
    for file in (site_file(), site_file(privacy=PROMISE)):
        without = with_own_ledger(file, run).privacy
        assert without is not None
        assert (without.ledger, without.total_epsilon) == (None, None)


def test_without_privacy_nothing_is_tightened() -> None:
    assert with_own_ledger(site_file(), settings()) == settings()


def test_a_total_that_one_run_exceeds_is_refused(tmp_path: Path) -> None:
    file = site_file(privacy=PROMISE | {"ledger": tmp_path, "total_epsilon": 9})
    with refused(RefusedError, "epsilon_above_total", site="site-01", found=10, maximum=9):
        with_own_ledger(file, settings(privacy={"epsilon": 10, "clip": 1.0}))


FACTS = {"trainable": True, "validates": False, "size": 40, "label_counts": [20, 20]}


@pytest.mark.parametrize(
    ("describe", "counts", "told_of"),
    [
        ([], [20, 20], {"trainable", "validates"}),
        (["size"], [20, 20], {"trainable", "validates", "size"}),
        (["label_counts"], [20, 20], {"trainable", "validates", "label_counts"}),
        (["size", "label_counts"], [30, 10], set(FACTS)),
        (["size", "label_counts"], [31, 9], {"trainable", "validates", "size"}),
        (["size", "label_counts"], [40, 0], set(FACTS)),
    ],
)
def test_a_site_discloses_what_its_file_lists_and_no_small_counts(
    describe: list[str], counts: list[int], told_of: set[str]
) -> None:
    facts = disclosed_site_info(site_file(disclose=describe), FACTS, counts)
    assert set(facts) == told_of
    assert all(facts[name] == FACTS[name] for name in facts)


def test_metadata_that_is_not_listed_is_never_disclosed() -> None:
    assert disclosed_site_info(site_file(), {"trainable": True, "names": ["x"]}, []) == {"trainable": True}


def test_digests_of_weights_are_always_told_so_that_the_server_can_compare_them() -> None:
    facts = {"trainable": True, "validates": False, "frozen": "0" * 64, "start": "1" * 64}
    assert disclosed_site_info(site_file(disclose=[]), facts | {"size": 5}, []) == facts


@pytest.mark.parametrize("training", [0, 10, 11, 1000])
def test_enough_training_images_or_none_are_accepted(training: int) -> None:
    check_counts(site_file(), training)


@pytest.mark.parametrize("training", [1, 7, 9])
def test_few_training_images_are_refused_without_their_number(training: int) -> None:
    with refused(RefusedError, "too_few_images", site="site-01", minimum=10) as caught:
        check_counts(site_file(), training)
    assert training not in caught.value.fields.values()
    assert str(training) not in str(caught.value).replace("site-01", "").replace("10", "")


def test_small_splits_are_not_scored() -> None:
    sizes = {"training": 30, "val": 9, "test": 10, "empty": 0}
    assert disclosed_splits(site_file(), sizes) == ["training", "test"]
    assert disclosed_splits(site_file(min_count=1), sizes) == ["training", "val", "test"]


def test_a_larger_minimum_never_discloses_more() -> None:
    sizes = {"val": 5, "test": 20}
    told_facts = [set(disclosed_splits(site_file(min_count=bar), sizes)) for bar in (1, 5, 6, 20, 21)]
    assert all(more >= less for more, less in itertools.pairwise(told_facts))


SUM = {"secure_aggregation": {"threshold": 3}}


def test_updates_leave_in_a_sum_of_as_many_sites_as_the_file_says() -> None:
    check(site_file(), settings(**SUM))
    check(site_file(least_threshold=3), settings(**SUM))
    for run, words in ((settings(**SUM), "in a sum of 3 sites"), (settings(), "leave alone")):
        with refused(RefusedError, "run_not_allowed", problems=["sum_too_small"]) as caught:
            check(site_file(least_threshold=4), run)
        assert words in str(caught.value)
        assert "required: a sum of at least 4" in str(caught.value)


def test_the_default_threshold_counts_for_the_file_too() -> None:
    run = settings(secure_aggregation={})
    check(site_file(least_threshold=4), run.for_sites(5))
    with refused(RefusedError, "run_not_allowed", problems=["sum_too_small"]) as caught:
        check(site_file(least_threshold=4), run.for_sites(4))
    assert "in a sum of 3 sites" in str(caught.value)


def test_the_noise_of_all_sites_is_no_floor_of_this_one_unless_the_file_says_so() -> None:
    run = settings(privacy=PROMISE | {"clip": 1.0}, **SUM)
    with refused(RefusedError, "run_not_allowed", problems=["distributed_noise_only"]):
        check(site_file(privacy=PROMISE), run)
    check(site_file(privacy=PROMISE, least_threshold=3), run)


def width(channels: int) -> Any:
    return lambda: torch.nn.Conv2d(channels, 100, 10, bias=False)


def test_a_network_beyond_the_cap_is_refused_and_never_made() -> None:
    cap = site_file(max_network_mb=1)
    task: Any = SimpleNamespace(networks={"fits": width(25), "more": width(26), "vast": width(10**12)})
    task.build = lambda name: task.networks[name]()
    check_networks(cap, task, ["fits"])
    check_networks(site_file(), task, ["fits", "more"])
    for name in ("more", "vast"):  # of the last one no memory of any machine could hold a tensor
        with refused(RefusedError, "network_too_large", network=name, site="site-01", maximum=1):
            check_networks(cap, task, ["fits", name])


def test_measuring_a_network_moves_no_random_numbers_and_takes_buffers_in() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    assert network_bytes(lambda: torch.nn.BatchNorm1d(3), 1000) == 4 * 3 * 4 + 8
    assert torch.equal(torch.rand(1), expected)


def test_many_small_tensors_are_stopped_on_the_way() -> None:
    built = []

    def layers() -> torch.nn.Module:
        for _ in range(10**6):
            built.append(torch.nn.Linear(100, 100, bias=False))
        return torch.nn.ModuleList(built)

    with pytest.raises(TooLargeError):
        network_bytes(layers, 10**6)
    assert len(built) == MAX_TOTAL_FACTOR * 10**6 // 40_000
