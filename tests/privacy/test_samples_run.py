"""Test runs with the privacy unit ``sample``: supported methods, results, and statements."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from refusals import refused
from torch import nn

from medfl.contract import Capability
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.privacy.composition import RESOLUTION, NoisedReleases, calibrate, epsilon
from medfl.privacy.policy import policy_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.summary import Summary
from medfl.settings import Privacy, Settings
from medfl.testing.cohort import Case, SmallNet, bits, make_sites, make_task
from medfl.toolkit.averaging import Averaging
from medfl.utils.wire import tensors_equal

PRIVACY = {"unit": "sample", "epsilon": 8.0, "clip": 0.5, "adjacency": "add_remove"}
"""Settings with batches of all images, for which the accounting is exact and fast."""

WHOLE = {"epsilon": 5.0, "clip": 2.5}
"""Privacy setting of a run with the unit ``site``."""

TRAININGS = policy_of(Settings.model_validate({"rounds": 2, "privacy": PRIVACY}))
UPDATES = policy_of(Settings.model_validate({"rounds": 2, "privacy": WHOLE}))


def case(method: str = "fedavg", **args: object) -> Case:
    return Case(load_plugins(), method, args, {"rounds": 2, "batch_size": 25, "epochs": 2})


def run(folder: Path, method: str = "fedavg", args: dict | None = None, **settings: object):
    return case(method, **(args or {})).run(folder, task=make_task("plain"), **({"privacy": PRIVACY} | settings))


METHODS = [
    ("fedavg", {}),
    ("fedprox", {"mu": 0.1}),
    ("fedbn", {"norm_types": ("group",)}),
    ("fedntd", {}),
    ("mr_mtl", {}),
    ("lg_fedavg", {}),
    ("flash", {}),
    ("fenda", {"cosine": 0.1}),
    ("feddf", {"distil_steps": 2}),
    ("fedkper", {"lambda_scope": "sample"}),
    ("fedkper", {"distill": False}),
    ("local", {"optimizer_state": "persistent"}),
]


@pytest.mark.parametrize(("method", "args"), METHODS, ids=lambda value: str(value))
def test_methods_with_a_loss_of_single_images_run(tmp_path: Path, method: str, args: dict) -> None:
    private, plain = run(tmp_path / "a", method, args), run(tmp_path / "b", method, args, privacy=None)
    assert private.outcome.status == "finished"
    noise = max(
        float((tensors[name] - bits(plain)[key][name]).abs().max())
        for key, tensors in bits(private).items()
        for name in tensors
    )
    assert 0.01 < noise < 100
    assert not [name for tensors in bits(private).values() for name in tensors if "_module" in name]


@pytest.mark.parametrize(
    ("method", "args"),
    [("fedprox", {"mu": 0.5}), ("fedkper", {"lambda_scope": "sample", "aggregation": "size"}), ("local", {})],
    ids=lambda value: str(value),
)
def test_without_noise_to_speak_of_it_is_the_plain_run(tmp_path: Path, method: str, args: dict) -> None:
    faint = PRIVACY | {"epsilon": 1e13, "clip": 1e3}
    sites = {"site-1": make_sites()["site-1"]}  # one site, since sizes stay at home
    plain, private = (
        run(tmp_path / str(number), method, args, sites=sites, privacy=privacy)
        for number, privacy in enumerate((None, faint))
    )
    assert private.summary.privacy["site-1"].sigma < 1e-5
    for key, tensors in bits(plain).items():
        for name, tensor in tensors.items():
            torch.testing.assert_close(bits(private)[key][name], tensor, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("method", "args"),
    [("fedkper", {}), ("fedkper", {"lambda_scope": "client"})],
    ids=["lambda of a batch", "lambda of a site"],
)
def test_a_loss_that_looks_at_other_images_is_refused(tmp_path: Path, method: str, args: dict) -> None:
    with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="fedkper"):
        run(tmp_path, method, args)


@pytest.mark.parametrize("method", ["fedskd", "fedcross", "centralized"])
def test_methods_that_send_more_than_updates_stay_refused(tmp_path: Path, method: str) -> None:
    with refused(SettingsError, "method_not_supported", feature="privacy", method=method):
        run(tmp_path, method)


def test_what_a_parent_promises_does_not_hold_for_a_child(tmp_path: Path) -> None:
    class Parent(Averaging):
        """Method that declares support for DP-SGD."""

        supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD})

    class Child(Parent):
        """Method that does not declare it again."""

    class Grandchild(Child):
        """Method that declares it again."""

        supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD})

    promised = [Capability.DP_SGD in kind().active_supports for kind in (Averaging, Parent, Child, Grandchild)]
    assert promised == [False, True, False, True]
    settings = Settings(rounds=1, batch_size=25, privacy=PRIVACY)
    for kind in (Parent, Child):
        run_ = SimulatedRun(
            method=MethodChoice(name=kind.__name__, make=kind),
            task=make_task("plain"),
            settings=settings,
            data=RunData(sites=make_sites()),
            folder=tmp_path / kind.__name__,
        )
        if kind is Parent:
            assert simulate(run_).outcome.status == "finished"
        else:
            with refused(SettingsError, "method_not_supported", feature="dp_sgd", method="Child"):
                simulate(run_)


def test_batch_norm_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with refused(SettingsError, "network_not_supported", network="SmallNet"):
        case().run(tmp_path / "run", task=make_task("norm"), privacy=PRIVACY, norm_sync="params")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("privacy", "fields"),
    [
        (PRIVACY | {"delta": 0.125}, {"delta": 0.125, "where": "site 'site-1'", "count": 21, "unit": "sample"}),
        (
            {"epsilon": 1.0, "clip": 1.0, "delta": 0.4},
            {"delta": 0.4, "where": "a federation", "count": 3, "unit": "site"},
        ),
    ],
)
def test_a_delta_that_permits_to_publish_one_is_refused(tmp_path: Path, privacy: dict, fields: dict) -> None:
    with refused(SettingsError, "delta_too_large", **fields):
        run(tmp_path, privacy=privacy)


def test_stopped_and_continued_ends_in_the_same_bits_and_pays_once(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")

    class StoppedError(Exception):
        """Error that simulates a kill."""

    def stop(site: str, step: int) -> bool:
        if (site, step) == ("site-2", 2):
            raise StoppedError
        return False

    with pytest.raises(StoppedError):
        case().run(tmp_path / "run", task=make_task("plain"), privacy=PRIVACY, unavailable=stop)
    continued = run(tmp_path / "run")
    again = case().run(tmp_path / "workers", task=make_task("plain"), privacy=PRIVACY, workers=2)
    for other in (continued, again):
        assert all(tensors_equal(tensors, bits(other)[key]) for key, tensors in bits(whole).items())
        assert other.summary.privacy == whole.summary.privacy
        assert other.summary.privacy["site-1"].releases == 2


def test_drawn_batches_are_stated_by_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "medfl"):
        result = run(tmp_path, batch_size=4, epochs=1, sites={"a": make_sites({"a": 16})["a"]})
    claim = next(text for text in caplog.messages if text.startswith("Unit sample"))
    for part in (
        "L2 norm 0.5",
        "2 rounds",
        "delta 1e-05",
        "epsilon at most 8 for an image that is added or removed",
        "at most epsilon 16 with delta 0.0298",
        "'replace'",
        "accountant 'prv'",
        "a patient with m images",
        "not the scores, training losses and numbers of images in this report",
    ):
        assert part in claim
    facts = result.summary.privacy["a"]
    assert (facts.rate, facts.steps, facts.releases, facts.planned) == (0.25, 4, 2, 2)
    assert facts.epsilon == pytest.approx(epsilon((NoisedReleases(facts.sigma, 8, 0.25),), 1e-5))
    assert 7.9 < facts.epsilon <= facts.stated_epsilon == 8.0
    assert Summary.read(tmp_path / "summary.json").privacy["a"] == facts


def test_updates_leave_as_they_are_and_sizes_stay(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    record = Store(tmp_path / "state" / "site-1").load(1)
    assert record.meta["reply"] == {}
    sent = {name for name in record.tensors if name.startswith("reply/")}
    assert sent == {f"reply/model/{name}" for name in SmallNet(norm=False).state_dict()}


def test_accounts_in_words(tmp_path: Path) -> None:
    ledger = {"ledger": tmp_path / "ledger", "total_epsilon": 30.0}
    run(tmp_path / "first", seed=3, privacy=PRIVACY | ledger)
    text = TRAININGS.describe_accounts(run(tmp_path / "run", privacy=PRIVACY | ledger).summary.privacy)
    for part in (
        "at most 2 of 2 planned trainings, with epsilon 8 at site-1 ('add_remove')",
        "hold up to 2 runs on the same data: composed epsilon 12.",
        "with delta 1e-05 of a total of 30.",
    ):
        assert part in text
    by_site = run(tmp_path / "by site", privacy=WHOLE).summary.privacy
    expected = "Each site released at most 2 of 2 planned updates, with epsilon 5 at site-1 ('replace')."
    assert UPDATES.describe_accounts(by_site) == expected
    unbounded = by_site["site-2"].model_copy(update={"composed": None, "ledger": True})
    words = UPDATES.describe_accounts(by_site | {"site-2": unbounded})
    assert "composed epsilon not bounded at site-2 with delta 1e-05; no total is set." in words


@pytest.mark.parametrize(("rate", "count"), [(1.0, 6), (0.3, 20)])
@pytest.mark.parametrize(("adjacency", "other"), [("add_remove", "replace"), ("replace", "add_remove")])
def test_what_is_said_of_the_other_adjacency_holds(adjacency: str, other: str, rate: float, count: int) -> None:
    privacy = Privacy(**(PRIVACY | {"epsilon": 3.0, "adjacency": adjacency}))
    part = NoisedReleases(calibrate(3.0, count, rate, 1e-5, adjacency), count, rate)
    policy = policy_of(Settings(rounds=2, privacy=privacy))
    bound = policy.other_guarantee()
    assert bound is not None
    assert epsilon((part,), bound.delta, other) <= bound.epsilon + RESOLUTION
    assert f"at most epsilon {bound.epsilon:g} with delta" in policy.statement()


def test_group_norm_trains(tmp_path: Path) -> None:
    def network() -> nn.Module:
        made = SmallNet(norm=False)
        made.body.insert(1, nn.GroupNorm(2, 6))
        return made

    task = dataclasses.replace(make_task("plain"), networks={"plain": network})
    result = case().run(tmp_path, task=task, privacy=PRIVACY, sites={"a": make_sites()["site-1"]})
    assert result.outcome.status == "finished"
    assert "body.1.weight" in bits(result)["server/global"]


def test_a_redacted_account_depends_on_no_number_of_images(tmp_path: Path) -> None:
    ledger = {"ledger": tmp_path / "ledger", "total_epsilon": 30.0}
    account = run(tmp_path / "first", privacy=PRIVACY | ledger).summary.privacy["site-1"]
    left = TRAININGS.redact(account)
    assert left.withholds_noise
    assert not account.withholds_noise
    assert (left.sigma, left.rate, left.steps, left.epsilon, left.composed) == (None, None, None, 8.0, 8.0)
    assert PrivacyAccount.model_validate(left.to_json(), strict=True) == left
    assert TRAININGS.redact(account.model_copy(update={"releases": 0, "runs": 0})).epsilon == 0
    later = TRAININGS.redact(account.model_copy(update={"runs": 2, "composed": 12.3}))
    assert later.composed == 30.0
    assert "composed epsilon at most 30 at site-1" in TRAININGS.describe_accounts({"site-1": later})
    without = TRAININGS.redact(account.model_copy(update={"runs": 2, "composed": 12.3, "total_epsilon": None}))
    assert without.composed is None
    assert TRAININGS.describe_accounts({"site-1": without}).endswith(
        "up to 2 runs on the same data: their composed epsilon stays at the sites, as it would reveal the number of "
        "images."
    )
    by_site = run(tmp_path / "by site", privacy=WHOLE).summary.privacy
    assert UPDATES.redact(by_site["site-1"]) == by_site["site-1"]
