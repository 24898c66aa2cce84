"""Conformance tests of all methods, with one entry per method for its limit cases and its private tensors.

Every method passes the suite of `medfl.testing`. The entries add facts that the suite cannot derive: the methods that a
method equals bit by bit in some runs, the tensors that never leave a site, and the settings with which a run is stopped
and continued. Refusals are tested in test_refusals.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from peer_toys import Dropping, atlas_task
from quick_settings import QUICK

from medfl.engine.store import Store
from medfl.objectives import Binary
from medfl.plugins import load_plugins
from medfl.testing import check_method
from medfl.testing.cohort import Case, SmallNet, bits, make_data, make_site, make_sites, make_task, states
from medfl.testing.tasks import make_sites_of, make_task_of, with_targets_of
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
PLAIN = make_task("plain")
ONE_SITE = {"sites": make_sites({"site-1": 13}), "rounds": 2}
ONE_ROUND = {"rounds": 1}
BINARY = Binary()
TWO_CLASSES = {
    "task": make_task_of(BINARY),
    "sites": make_sites_of(BINARY, {"a": 9, "b": 6}),
    "server_test": with_targets_of(make_data(5, "global"), BINARY),
}
DIFFERENT_AND_RANDOM_NETWORKS = {
    "task": atlas_task(drop=Dropping, wide=lambda: SmallNet(width=9), plain=lambda: SmallNet(norm=False)),
    "networks_by_site": {"site-2": "wide", "site-3": "plain"},
    "sites": make_sites({"site-1": 11, "site-2": 13, "site-3": 6, "site-4": 9}),
}
"""Options of a run with different networks, one with dropout, and sites with batches of one image."""

PARTIAL_PARTICIPATION = {
    "sites": make_sites() | {"site-2": make_site(13, "site-2", torch.arange(13) % 2)},
    "fraction": 0.67,
}
"""Options of a run in which two of three sites take part in a round; one site lacks a class."""


@dataclass(frozen=True)
class EqualRun:
    """Run that has bitwise the same results as another method.

    Attributes:
        other: Name of the other method.
        args: Settings of the method, in addition to its entry's settings.
        run: Options of both runs.
        theirs: Settings of the other method.
        models: Substring of the keys of the compared models, such as ``global`` or ``server/``; all models if empty.
        tensors: Prefix of the compared tensors; all tensors if empty.
    """

    other: str
    args: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    models: str = ""
    tensors: str = ""


@dataclass(frozen=True)
class MethodEntry:
    """Expected properties of a method that the conformance suite cannot derive.

    Attributes:
        equal: Runs that equal another method bit by bit.
        stays: Pattern of the names of tensors that sites store, never send, and the server never has.
        untrained: Whether the personal model of a site that never trained is the global model.
        goes_on: Further settings with which a run is stopped and continued.
    """

    equal: tuple[EqualRun, ...] = ()
    stays: str = ""
    untrained: bool = False
    goes_on: tuple[Mapping[str, Any], ...] = ()


UNIFORM = {"weights": "uniform"}
KEEPING = {"optimizer_state": "persistent"}
ONE_POOL = {"head_share": 0.0, "personal_share": 0.0, "server_classifier": "none", "lam": 0.0, "refine": None}
SHARES_NOTHING = {"share_fraction": 0.0, "distil_rounds": 1}

ENTRIES = {
    "apfl": MethodEntry(
        equal=(
            EqualRun("fedavg", {"alpha": 1.0, "adaptive": False}, models="global"),
            EqualRun("local", {"alpha": 1.0, "adaptive": False}, models="personal"),
        ),
        stays="kept/(own|mixed)",
        untrained=True,
    ),
    "centralized": MethodEntry(goes_on=(KEEPING,)),
    "cyclic": MethodEntry(equal=(EqualRun("fedavg", run=ONE_SITE),)),
    "dbe": MethodEntry(stays="offset"),
    "ditto": MethodEntry(
        equal=(
            EqualRun("fedavg", {"lam": 3.0}, models="global"),
            EqualRun("fedavg", {"lam": 3.0}, {"task": PLAIN}, models="global"),
            EqualRun("local", {"lam": 0.0}, models="personal"),
        ),
        stays="own/",
        untrained=True,
    ),
    "fedala": MethodEntry(equal=(EqualRun("fedavg", run=ONE_ROUND, models="server"),), stays="kept/"),
    "fedamp": MethodEntry(stays="running|num_batches"),
    "fedas": MethodEntry(
        equal=(
            EqualRun("fedper", run=ONE_ROUND, tensors="head."),
            EqualRun("fedper", {"align_epochs": 0}, ONE_SITE),
        ),
        stays="head",
    ),
    "fedavg": MethodEntry(equal=(EqualRun("centralized", run=ONE_SITE | {"epochs": 2}, models="server"),)),
    "fedavgm": MethodEntry(
        equal=(
            EqualRun("fedavg", run=ONE_ROUND),
            *(EqualRun("fedavg", {"beta": 0.0, "nesterov": ahead}, {"task": PLAIN}) for ahead in (False, True)),
        )
    ),
    "fedbabu": MethodEntry(stays="head", untrained=True),
    "fedbn": MethodEntry(equal=(EqualRun("fedavg", run={"task": PLAIN}, theirs=UNIFORM),)),
    "fedce": MethodEntry(equal=tuple(EqualRun("fedavg", {"mode": mode}, ONE_SITE) for mode in ("plus", "times"))),
    "fedcross": MethodEntry(stays="."),
    "fedcross_star": MethodEntry(stays="."),
    "fedcurv": MethodEntry(equal=(EqualRun("fedavg", run=ONE_ROUND), EqualRun("fedavg", run=ONE_SITE))),
    "feddg_ga": MethodEntry(equal=(EqualRun("fedavg", run=ONE_ROUND, theirs=UNIFORM),)),
    "fedkd": MethodEntry(stays="mentor|adapter"),
    "fedkf": MethodEntry(equal=(EqualRun("fedavg", run=ONE_ROUND),), stays="generator"),
    "fedmd": MethodEntry(stays=r"(body|head)\."),
    "fednova": MethodEntry(
        equal=(
            *(EqualRun("fedavg", run={"steps": 3, "task": task}) for task in (make_task(), PLAIN)),
            EqualRun("fedavg", UNIFORM, {"steps": 3}, UNIFORM),
            EqualRun("fedprox", {"mu": 0.3}, {"steps": 2}, {"mu": 0.3}),
        )
    ),
    "fedntd": MethodEntry(equal=(EqualRun("fedavg", run=TWO_CLASSES),)),
    "fedper": MethodEntry(stays="head"),
    "fedproto": MethodEntry(stays=r"(body|head)\."),
    "fedrep": MethodEntry(stays="head"),
    "fedrod": MethodEntry(
        equal=(
            EqualRun("fedavg", {"gamma": 0.0}, models="global"),
            EqualRun("fedavg", {"gamma": 0.0, "gradient_clip": 0.1}, theirs={"gradient_clip": 0.1}, models="global"),
        ),
        stays="own/",
        untrained=True,
    ),
    "fedsdc": MethodEntry(goes_on=({"gamma": 0.5},)),
    "fedskd": MethodEntry(
        equal=tuple(
            EqualRun(
                "local",
                {"gamma": 0.0, "optimizer_state": state},
                DIFFERENT_AND_RANDOM_NETWORKS | {"balance": balance},
                {"optimizer_state": state},
            )
            for state, balance in (("persistent", "loss"), ("reset", "none"))
        ),
        stays=".",
        goes_on=({"start_fraction": 0.5},),
    ),
    "fedsm": MethodEntry(equal=(EqualRun("fedavg", models="server/global"),)),
    "fedtgp": MethodEntry(stays=r"(body|head)\."),
    "fedtpf": MethodEntry(
        equal=(EqualRun("fedavg", SHARES_NOTHING, PARTIAL_PARTICIPATION),),
        stays="critic|optimizer",
    ),
    "fenda": MethodEntry(stays=r"own\.|head\."),
    "gpfl": MethodEntry(stays=r"head\.own\.|class_shares"),
    "lg_fedavg": MethodEntry(equal=(EqualRun("local", run=ONE_ROUND, tensors="body."),), stays="body"),
    "moon": MethodEntry(
        equal=(EqualRun("moon", run=ONE_ROUND, theirs={"proj_dim": 3, "mu": 0.0}),),
        stays="kept/",
    ),
    "mr_mtl": MethodEntry(stays="running|num_batches"),
    "perfcl": MethodEntry(equal=(EqualRun("fenda", run=ONE_ROUND),), stays=r"own\.|head\.|previous/"),
    "pfedcdp": MethodEntry(
        equal=tuple(
            EqualRun("fedper", ONE_POOL, {"task": make_task(kind)}, tensors="head.") for kind in ("norm", "plain")
        ),
        stays="(^|model/)head",
        goes_on=({"server_classifier": "average"},),
    ),
    "pfedme": MethodEntry(untrained=True),
    "scaffold": MethodEntry(
        equal=(
            EqualRun("fedavg", run=ONE_ROUND, theirs=UNIFORM),
            EqualRun("fedavg", run=ONE_ROUND | {"task": PLAIN}, theirs=UNIFORM),
            EqualRun("fedavg", run=ONE_SITE),
        )
    ),
}


def rows(part: str) -> list[Any]:
    """Return the test parameters (name, item) for one attribute of the entries."""
    return [
        pytest.param(name, item, id=f"{name}-{number}")
        for name, entry in ENTRIES.items()
        for number, item in enumerate(getattr(entry, part))
    ]


def names_with(part: str) -> list[str]:
    """Return the names of the methods whose entries have a value for an attribute."""
    return [name for name, entry in ENTRIES.items() if getattr(entry, part)]


def case_of(name: str, args: Mapping[str, Any]) -> Case:
    """Return the tiny federation of a method, with its quick settings and further ones."""
    return Case(REGISTRY, name, {**QUICK.get(name, {}), **args})


# ---- the suite

FULLY_CHECKED_METHODS = ("ditto", "scaffold")
"""Methods for which `make test` runs all conformance checks."""

ALWAYS = (
    "metadata_is_complete",
    "only_declared_values_leave_sites",
    "frozen_parameters_are_not_sent",
    "states_survive_the_disk",
    "different_networks_are_refused_or_work",
    "exported_networks_predict_alike",
)
ROTATING_CHECKS = (
    "run_resumes_at_every_step",
    "killed_training_continues",
    "further_objectives_are_refused_or_work",
    "low_rank_adapters_are_merged",
)
"""Conformance checks for the other methods: `make test` runs one for each method, `make test-all` runs all."""

NAMES = sorted(REGISTRY.methods)
STATEFUL_ROBUST_RULE = {"robust": {"rule": "centred_clip", "radius": 0.5}}
"""Robust rule with a state, which accepts any number of replies."""


@pytest.mark.parametrize(("turn", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_method_passes_the_conformance_suite(turn: int, name: str) -> None:
    sample = [*ALWAYS, ROTATING_CHECKS[turn % len(ROTATING_CHECKS)]]
    check_method(name, args=case_of(name, {}).args, checks=None if name in FULLY_CHECKED_METHODS else sample)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FULLY_CHECKED_METHODS])
def test_method_passes_the_whole_conformance_suite(name: str) -> None:
    check_method(name, args=case_of(name, {}).args)


@pytest.mark.parametrize("name", ["fedbabu"])
def test_method_passes_the_conformance_suite_under_a_robust_rule(name: str) -> None:
    check_method(name, checks=["run_resumes_at_every_step"], settings=STATEFUL_ROBUST_RULE)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddyn", "fenda", "fedkd", "flash", "per_fedavg"])
def test_method_passes_the_whole_conformance_suite_under_a_robust_rule(name: str) -> None:
    check_method(name, settings=STATEFUL_ROBUST_RULE)


@pytest.mark.parametrize(("name", "args"), rows("goes_on"))
def test_run_with_other_settings_can_be_stopped_and_continued(name: str, args: dict[str, Any]) -> None:
    check_method(name, args=case_of(name, args).args, checks=["run_resumes_at_every_step"])


# ---- the entries


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a comparison method, once for each setting."""
    known: dict[tuple[str, str, int], dict[str, Tensors]] = {}

    def run(equal: EqualRun) -> dict[str, Tensors]:
        key = (equal.other, repr(equal.theirs), hash(tuple((name, id(value)) for name, value in equal.run.items())))
        if key not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            known[key] = bits(Case(REGISTRY, equal.other, dict(equal.theirs)).run(folder, **equal.run))
        return known[key]

    return run


@pytest.mark.parametrize(("name", "equal"), rows("equal"))
def test_limit_case_equals_the_other_method(tmp_path: Path, reference: Any, name: str, equal: EqualRun) -> None:
    mine = bits(case_of(name, equal.args).run(tmp_path, **equal.run))
    theirs = {key: model for key, model in reference(equal).items() if equal.models in key}
    assert theirs
    assert theirs.keys() <= mine.keys()
    assert equal.models or theirs.keys() == mine.keys()
    for key, expected in theirs.items():
        assert equal.tensors or mine[key].keys() == expected.keys()
        names = [tensor for tensor in expected if tensor.startswith(equal.tensors)]
        assert names
        unlike = [tensor for tensor in names if not tensors_equal({"": mine[key][tensor]}, {"": expected[tensor]})]
        assert not unlike, f"{key}: other bits in {unlike}"


@pytest.mark.parametrize("name", names_with("stays"))
def test_private_tensors_never_leave_the_site(tmp_path: Path, name: str) -> None:
    """Check the private tensors; also with different networks, if the method supports them."""
    networks = {"site-1": "wide"} if name in ("fedcross_star", "fedkd", "fedskd", "pfedcdp") else {}
    case_of(name, {}).run(tmp_path, rounds=2, networks_by_site=networks)
    pattern = re.compile(ENTRIES[name].stays)
    held = states(tmp_path)
    leaked = [tensor for tensor in held["server"] if pattern.search(tensor)]
    for site in make_sites():
        store = Store(tmp_path / "state" / site)
        sent = {tensor for step in store.steps() for tensor in store.load(step).tensors if tensor.startswith("reply/")}
        leaked += [tensor for tensor in sent if pattern.search(tensor)]
        assert [tensor for tensor in held[site] if pattern.search(tensor)], "the site stores nothing of that name"
    assert not leaked


@pytest.mark.parametrize("name", names_with("untrained"))
def test_untrained_site_has_the_global_model(tmp_path: Path, name: str) -> None:
    models = case_of(name, {}).run(tmp_path, rounds=2, unavailable=lambda site, step: site == "site-3").models["site-3"]
    assert tensors_equal(models["personal"].tensors, models["global"].tensors)


def test_every_entry_belongs_to_a_method() -> None:
    assert ENTRIES.keys() <= set(NAMES)
