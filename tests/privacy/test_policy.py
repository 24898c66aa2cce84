"""Test the privacy policy of each mechanism, against closed forms if there are any."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from refusals import refused

from medfl.contract import Capability, PayloadKind, Site, State
from medfl.errors import ContractError, PluginError, RefusedError, SettingsError
from medfl.objectives import Survival
from medfl.plugins import load_plugins
from medfl.privacy import composition, gaussian
from medfl.privacy.composition import NoisedReleases
from medfl.privacy.mechanisms.dp_sgd import DPSGD
from medfl.privacy.mechanisms.site_updates import DistributedNoise, SiteUpdates
from medfl.privacy.policy import NoPrivacy, PrivacyPolicy, mechanism_of, policy_of
from medfl.privacy.samples import PrivateSteps, planned_steps, sampling_schedule
from medfl.records.ledger import LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Settings
from medfl.testing.cohort import SmallNet, make_data, make_plan, make_task
from medfl.toolkit.averaging import Averaging

PRIVACY = {"epsilon": 5.0, "delta": 1e-5, "clip": 2.5, "adjacency": "add_remove"}
ROUNDS = 20
RUNS: dict[str, dict[str, Any]] = {
    "none": {},
    "masked": {"secure_aggregation": {"threshold": 3}},
    "site": {"privacy": PRIVACY},
    "sample": {"privacy": PRIVACY | {"unit": "sample"}},
    "distributed": {"privacy": PRIVACY, "secure_aggregation": {"threshold": 3}},
}
"""Maps the name of each mechanism to settings of a run with it."""

PRIVATE = ("site", "sample", "distributed")


def settings(name: str, privacy: dict[str, Any] | None = None, **more: Any) -> Settings:
    values = {"rounds": ROUNDS, "batch_size": 5} | RUNS[name] | more
    if privacy is not None:
        values["privacy"] = RUNS[name]["privacy"] | privacy
    return Settings.model_validate(values)


def policy(name: str, privacy: dict[str, Any] | None = None, **more: Any) -> PrivacyPolicy:
    return policy_of(settings(name, privacy, **more))


def entry(unit: str, mechanism: str = "gaussian", **fields: Any) -> LedgerEntry:
    plain = {"adjacency": "add_remove", "sigma": 4.0, "rate": 1.0, "steps": 1, "delta": 1e-5, "epsilon": 5.0}
    plain |= {"unit": unit, "mechanism": mechanism, "planned": 9, "releases": ("a", "b", "c"), "threshold": None}
    return LedgerEntry(**(plain | fields))


def account(**fields: Any) -> PrivacyAccount:
    plain = {"unit": "sample", "adjacency": "add_remove", "delta": 1e-5, "sigma": 1.5, "rate": 0.25, "steps": 4}
    plain |= {"planned": 9, "releases": 3, "stated_epsilon": 5.0, "epsilon": 4.3, "composed": 4.3, "runs": 1}
    return PrivacyAccount(**(plain | {"total_epsilon": None, "ledger": False, "threshold": None} | fields))


# ---- which policy


def test_every_unit_has_a_mechanism_with_and_without_sums() -> None:
    for unit in load_plugins().privacy_mechanisms:
        kind = mechanism_of(unit)
        assert kind.unit == kind.for_sums().unit == unit
        assert kind.is_private
        assert kind.accountant == kind.for_sums().accountant != ""
    assert {name: type(policy(name)) for name in RUNS} == {
        "none": NoPrivacy,
        "masked": NoPrivacy,
        "site": SiteUpdates,
        "sample": DPSGD,
        "distributed": DistributedNoise,
    }


def test_a_unit_that_no_plugin_has_is_refused_with_the_nearest() -> None:
    run = Settings.model_validate({"rounds": 1, "privacy": PRIVACY | {"unit": "smaple"}})
    with refused(PluginError, "unknown_choice", what="privacy_mechanism", choice="smaple") as caught:
        policy_of(run)
    assert "Did you mean 'sample'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "accountant", "expected"),
    [("site", "prv", "gaussian"), ("distributed", "prv", "gaussian"), ("sample", "gaussian", "prv")],
)
def test_each_unit_has_one_accountant_which_is_part_of_the_run(name: str, accountant: str, expected: str) -> None:
    with refused(SettingsError, "unsupported_setting", setting="privacy.accountant", expected=expected):
        policy(name, {"accountant": accountant})
    plans = [make_plan(settings(name, privacy)) for privacy in ({}, {"accountant": expected})]
    assert {plan.identity.settings["privacy"]["accountant"] for plan in plans} == {expected}
    assert len({plan.run_id for plan in plans}) == 1


def test_the_policy_has_the_settings_of_the_run() -> None:
    for name in RUNS:
        run = settings(name)
        assert policy_of(run).settings is run
        assert policy_of(run).privacy == run.privacy
        assert policy_of(run).unit == (run.privacy and run.privacy.unit)


@pytest.mark.parametrize(
    ("name", "training", "updates", "noun", "phrase"),
    [
        ("none", False, False, "", ""),
        ("masked", False, False, "", ""),
        ("site", False, True, "site", "a site"),
        ("sample", True, False, "image", "an image"),
        ("distributed", False, True, "site", "a site"),
    ],
)
def test_where_the_noise_is(name: str, training: bool, updates: bool, noun: str, phrase: str) -> None:
    mechanism = policy(name)
    assert (mechanism.noises_training, mechanism.noises_updates) == (training, updates)
    assert mechanism.hides_sites == updates, "noise on a whole update hides all data of its site"
    assert (mechanism.unit_noun, mechanism.unit_phrase) == (noun, phrase)


# ---- training, updates and sums


def test_only_the_training_on_single_images_has_steps_of_its_own() -> None:
    model = SmallNet(norm=False)
    for name in RUNS:
        run, task = settings(name), make_task("plain")
        site = Site("site-1", 1, State(), task, run, None)  # type: ignore[arg-type]
        site.train, site.secret, site.run_id = make_data(20, "x"), b"s" * 32, "run"
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = policy_of(run).steps(model, optimizer, site, lambda: "start")
        assert isinstance(steps, PrivateSteps) == (name == "sample")
        assert (steps is None) == (name != "sample")


def test_noise_of_updates_and_of_sums() -> None:
    sigma = gaussian.calibrate(5.0, 7, 1e-5)
    shared = policy("distributed").sum_noise()
    assert {name: policy(name).update_noise(7) for name in RUNS} == {
        "none": None,
        "masked": None,
        "sample": None,
        "site": sigma,
        "distributed": sigma,
    }
    assert policy("site", {"adjacency": "replace"}).update_noise(7) == pytest.approx(2 * sigma, rel=1e-12)
    assert [policy(name).sum_noise() for name in ("none", "masked", "site", "sample")] == [0.0] * 4
    rho = ROUNDS / (2 * shared**2)
    assert composition.concentrated_epsilon(rho, 1e-5) == pytest.approx(5.0, rel=1e-9)
    assert policy("distributed", {"adjacency": "replace"}).sum_noise() == pytest.approx(2 * shared, rel=1e-12)
    assert {name: policy(name).sum_clip() for name in ("masked", "distributed")} == {"masked": None, "distributed": 2.5}


# ---- disclosure


@pytest.mark.parametrize("name", RUNS)
def test_under_a_promise_updates_and_public_metadata_leave_alone(name: str) -> None:
    allowed, is_open = policy(name), name not in PRIVATE
    kinds = {kind: allowed.discloses(kind) for kind in ("update", "weights", "statistic", "samples")}
    assert kinds == {"update": True, "weights": is_open, "statistic": is_open, "samples": is_open}
    metadata = {kind: allowed.discloses_metadata(kind) for kind in ("public", "private", "needed")}
    assert metadata == {"public": True, "private": is_open, "needed": is_open}
    assert allowed.discloses_peer_messages() == is_open
    assert allowed.discloses_integers == is_open
    assert allowed.discloses_training_scores == is_open
    assert allowed.discloses_statistics == (name == "none"), "sums hide each site's number of images, too"


@pytest.mark.parametrize("name", RUNS)
def test_a_payload_that_no_noise_covers_stays(name: str) -> None:
    allowed = policy(name)
    allowed.check_payloads({"a": "update"}, "north")
    if name in PRIVATE:
        fields = {"site": "north", "tensor": "b", "payload": "weights"}
        with refused(RefusedError, "unprotected_payload", **fields):
            allowed.check_payloads({"c": "samples", "b": "weights", "a": "update"}, "north")
        with refused(RefusedError, "unprotected_payload", site="north", payload="peer_message"):
            allowed.check_peer_message("north")
    else:
        allowed.check_payloads({"c": "samples", "b": "weights"}, "north")
        allowed.check_peer_message("north")


# ---- compatibility


class Promising(Averaging):
    """Method whose updates depend only on the training."""

    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD})


class Sharing(Promising):
    """Method that also sends statistics of its data."""

    sends: ClassVar[Mapping[str, PayloadKind]] = {"model/": "update", "extra/": "statistic"}
    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD, Capability.PEER_MESSAGES})


class Plain(Averaging):
    """Method that does not declare support for DP-SGD."""

    supports: ClassVar[frozenset[Capability]] = frozenset({Capability.ROBUST})


@pytest.mark.parametrize("name", RUNS)
def test_methods_that_go_with_a_mechanism(name: str) -> None:
    policy(name).check_method(Promising(), "promising")
    if name in PRIVATE:
        sends = ["'extra/' (statistic)", "messages from site to site"]
        with refused(SettingsError, "method_not_supported", feature="privacy", method="sharing", sends=sends):
            policy(name).check_method(Sharing(), "sharing")
    else:
        policy(name).check_method(Sharing(), "sharing")
    if name == "sample":
        with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="plain"):
            policy(name).check_method(Plain(), "plain")
    else:
        policy(name).check_method(Plain(), "plain")


@pytest.mark.parametrize("name", RUNS)
def test_objectives_and_trainings_that_go_with_a_mechanism(name: str) -> None:
    policy(name).check_trainings("north", 1)
    if name == "sample":
        with refused(SettingsError, "incompatible_settings", settings=["objective", "privacy.unit"]):
            policy(name).check_objective(Survival())
        with refused(ContractError, "several_trainings", site="north", expected=1, found=2):
            policy(name).check_trainings("north", 2)
    else:
        policy(name).check_objective(Survival())
        policy(name).check_trainings("north", 2)


def test_secure_aggregation_goes_with_one_bound_and_no_noise_of_trainings() -> None:
    for name in ("none", "masked", "site", "distributed"):
        policy(name).check_secure_aggregation()
    policy("masked", secure_aggregation={"clip": 9.0}).check_secure_aggregation()
    policy("distributed", secure_aggregation={"clip": 2.5}).check_secure_aggregation()
    clips = ["privacy.clip", "secure_aggregation.clip"]
    with refused(SettingsError, "incompatible_settings", settings=clips):
        policy("distributed", secure_aggregation={"clip": 2.0}).check_secure_aggregation()
    with refused(SettingsError, "incompatible_settings", settings=["privacy.unit", "secure_aggregation"]):
        policy("sample", secure_aggregation={"threshold": 3}).check_secure_aggregation()


def test_delta_is_compared_with_the_number_of_units() -> None:
    images = {"a": 3, "b": 20}
    for name in ("none", "masked"):
        policy(name).check_run([SmallNet(norm=True)], images, 4)
    for name in ("site", "distributed"):
        policy(name, {"delta": 0.25}).check_run([SmallNet(norm=True)], images, 3)
        with refused(SettingsError, "delta_too_large", delta=0.25, where="a federation", count=4, unit="site"):
            policy(name, {"delta": 0.25}).check_run([SmallNet(norm=True)], images, 4)
    policy("sample", {"delta": 0.049}).check_run([SmallNet(norm=False)], images, 40)
    with refused(SettingsError, "delta_too_large", delta=0.05, where="site 'b'", count=20, unit="sample"):
        policy("sample", {"delta": 0.05}).check_run([SmallNet(norm=False)], images, 4)
    with refused(SettingsError, "network_not_supported"):
        policy("sample").check_run([SmallNet(norm=True)], images, 4)


# ---- accounting


def test_releases_of_a_run() -> None:
    """Check the releases of each mechanism: exact for updates, concentrated for sums, steps for trainings."""
    run = settings("sample")
    rate, steps = sampling_schedule(run, 20)
    assert policy("site").release() == NoisedReleases(gaussian.calibrate(5.0, ROUNDS, 1e-5), 1)
    assert policy("distributed").release() == NoisedReleases(policy("distributed").sum_noise(), 1, concentrated=True)
    assert policy("sample").release() is None, "the noise depends on the number of images"
    assert policy("sample").release(20) == NoisedReleases(planned_steps(run, 20).sigma, 4, 0.25)
    assert (rate, steps) == (0.25, 4)
    for name in ("none", "masked"):
        assert policy(name).release(20) is None
    for name in RUNS:
        assert policy(name).planned_releases == ROUNDS
        assert policy(name).threshold == (3 if name == "distributed" else None)


def test_all_releases_together_spend_the_budget() -> None:
    for name in ("site", "distributed"):
        part = policy(name).release()
        assert part is not None
        spent = composition.epsilon((replace(part, count=ROUNDS),), 1e-5, "add_remove")
        assert spent == pytest.approx(5.0, rel=1e-6)


def test_replies_show_the_releases_of_single_updates_alone() -> None:
    expected = dict.fromkeys(RUNS) | {"site": NoisedReleases(gaussian.calibrate(5.0, ROUNDS, 1e-5), 3)}
    assert {name: policy(name).releases_of_replies(3) for name in RUNS} == expected


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_entries_of_another_unit_count_as_far_as_a_bound_is_known(adjacency: str) -> None:
    site, sample = mechanism_of("site"), mechanism_of("sample")
    update, training = entry("site"), entry("sample", "poisson-subsampled gaussian", rate=0.25, steps=4)
    assert site.part_of(update, adjacency) == NoisedReleases(4.0, 3)
    assert mechanism_of("site").for_sums().part_of(update, adjacency) == NoisedReleases(4.0, 3)
    assert sample.part_of(training, adjacency) == NoisedReleases(4.0, 12, 0.25)
    assert site.part_of(training, adjacency) is None
    unused = training.model_copy(update={"releases": ()})
    assert site.part_of(unused, adjacency) == NoisedReleases(4.0, 0, 0.25), "no release, no cost"
    assert sample.part_of(update, adjacency) == NoisedReleases(2.0 if adjacency == "add_remove" else 4.0, 3)
    shares = entry("site", "distributed discrete gaussian", threshold=3)
    assert site.part_of(shares, adjacency) == NoisedReleases(4.0, 3, concentrated=True)
    assert NoPrivacy.part_of(update, adjacency) is None


def test_which_promise_implies_which() -> None:
    pairs = [(unit, adjacency) for unit in ("site", "sample") for adjacency in ("replace", "add_remove")]
    implied = {
        pair: {other for other in pairs if mechanism_of(pair[0]).covers(pair[1], *other)}  # type: ignore[arg-type]
        for pair in pairs
    }
    assert implied == {
        ("site", "replace"): {*pairs},
        ("site", "add_remove"): {("site", "add_remove")},
        ("sample", "replace"): {("sample", "replace"), ("sample", "add_remove")},
        ("sample", "add_remove"): {("sample", "add_remove")},
    }
    assert not any(NoPrivacy.covers("replace", *pair) for pair in pairs)  # type: ignore[arg-type]


def test_accounts_that_leave_a_site() -> None:
    for name in ("site", "distributed"):
        assert policy(name).redact(account(unit="site", rate=1.0)) == account(unit="site", rate=1.0)
    left = policy("sample").redact(account())
    assert (left.sigma, left.rate, left.steps, left.epsilon, left.composed) == (None, None, None, 5.0, 5.0)
    several = policy("sample").redact(account(runs=2, composed=7.7, total_epsilon=30.0, releases=0))
    assert (several.epsilon, several.composed) == (0.0, 30.0)


# ---- statements


def test_the_guarantee_for_the_other_adjacency() -> None:
    part = replace(policy("site").release() or NoisedReleases(0.0, 0), count=ROUNDS)
    other = policy("site").other_guarantee()
    assert other is not None
    assert (other.delta, other.is_upper_bound) == (1e-5, False)
    assert other.epsilon == pytest.approx(gaussian.epsilon(part.sigma, ROUNDS, 1e-5, 2.0), rel=1e-9)
    shared = policy("distributed").other_guarantee()
    rho = 4 * ROUNDS / (2 * policy("distributed").sum_noise() ** 2)
    assert shared is not None
    assert shared.epsilon == pytest.approx(composition.concentrated_epsilon(rho, 1e-5), rel=1e-9)
    bound = policy("sample").other_guarantee()
    assert bound is not None
    assert (bound.epsilon, bound.is_upper_bound) == (10.0, True)
    assert bound.delta == pytest.approx(1e-5 * (1 + math.exp(5.0)))
    same = policy("sample", {"adjacency": "replace"}).other_guarantee()
    assert same is not None
    assert (same.epsilon, same.delta) == (5.0, 1e-5)
    assert policy("none").other_guarantee() is None


@pytest.mark.parametrize("name", RUNS)
def test_the_statement_names_unit_adjacencies_delta_and_accountant(name: str) -> None:
    text = policy(name).statement()
    accountants = {
        "site": "exact Gaussian composition (accountant 'gaussian')",
        "sample": "numerical composition (accountant 'prv')",
        "distributed": "concentrated differential privacy",
    }
    if name not in PRIVATE:
        assert text == ""
        return
    for part in (accountants[name], "delta 1e-05", "'add_remove', the adjacency of this run", "'replace'", "norm 2.5"):
        assert part in text
    assert text.startswith(f"Unit {policy(name).unit}")


def test_accounts_in_words_name_what_was_released() -> None:
    by_site = {"north": account(unit="site", rate=1.0), "south": account(unit="site", rate=1.0, epsilon=4.5)}
    expected = "Each site released at most 3 of 9 planned updates, with epsilon 4.5 at south ('add_remove')."
    assert policy("site").describe_accounts(by_site) == policy("distributed").describe_accounts(by_site) == expected
    assert "planned trainings" in policy("sample").describe_accounts({"north": account()})
    assert policy("none").describe_accounts({}) == ""
