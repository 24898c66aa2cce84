"""One entry for each method: what it is equal to, keeps at its sites, and with which settings it goes on.

Every method passes `medfl.testing`'s suite. The entries add what the suite can't know: the methods that a method is
equal to in some runs, bit for bit, and the tensors that never leave a site. What methods refuse is in test_refusals.py.
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
UNLIKE_AND_RANDOM = {
    "task": atlas_task(drop=Dropping, wide=lambda: SmallNet(width=9), plain=lambda: SmallNet(norm=False)),
    "networks_by_site": {"site-2": "wide", "site-3": "plain"},
    "sites": make_sites({"site-1": 11, "site-2": 13, "site-3": 6, "site-4": 9}),
}
"""Unlike networks, of which one draws random numbers, at sites of which some have batches of one image."""

FEW_OF_THEM = {"sites": make_sites() | {"site-2": make_site(13, "site-2", torch.arange(13) % 2)}, "fraction": 0.67}
"""Two of three sites take part in a round; one of them has no image of a class."""


@dataclass(frozen=True)
class Equal:
    """A run that gives the bits of another method's.

    Attributes:
        other: The other method.
        args: Settings of the method, beside those of its entry.
        run: Options of both runs.
        theirs: Settings of the other method.
        models: Part of the keys of the models to compare, such as ``global`` or ``server/``; all if empty.
        tensors: Prefix of the tensors to compare; all if empty.
    """

    other: str
    args: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    theirs: Mapping[str, Any] = field(default_factory=dict)
    models: str = ""
    tensors: str = ""


@dataclass(frozen=True)
class Entry:
    """What holds for a method beside the suite.

    Attributes:
        quick: Settings that save time and leave out no part of the method.
        equal: Runs that give the bits of another method's.
        stays: Pattern of the names of tensors that sites store, send to nobody and the server never has.
        untrained: Whether a site that never trained has the global model as its own.
        goes_on: Other settings with which a run is stopped and continued.
    """

    quick: Mapping[str, Any] = field(default_factory=dict)
    equal: tuple[Equal, ...] = ()
    stays: str = ""
    untrained: bool = False
    goes_on: tuple[Mapping[str, Any], ...] = ()


UNIFORM = {"weights": "uniform"}
KEEPING = {"optimizer_state": "persistent"}
ONE_POOL = {"head_share": 0.0, "personal_share": 0.0, "server_classifier": "none", "lam": 0.0, "refine": None}
SHARES_NOTHING = {"share_fraction": 0.0, "distil_rounds": 1}

ENTRIES = {
    "apfl": Entry(
        equal=(
            Equal("fedavg", {"alpha": 1.0, "adaptive": False}, models="global"),
            Equal("local", {"alpha": 1.0, "adaptive": False}, models="personal"),
        ),
        stays="kept/(own|mixed)",
        untrained=True,
    ),
    "centralized": Entry(goes_on=(KEEPING,)),
    "cyclic": Entry(equal=(Equal("fedavg", run=ONE_SITE),)),
    "dbe": Entry(stays="offset"),
    "ditto": Entry(
        equal=(
            Equal("fedavg", {"lam": 3.0}, models="global"),
            Equal("fedavg", {"lam": 3.0}, {"task": PLAIN}, models="global"),
            Equal("local", {"lam": 0.0}, models="personal"),
        ),
        stays="own/",
        untrained=True,
    ),
    "fedala": Entry(equal=(Equal("fedavg", run=ONE_ROUND, models="server"),), stays="kept/"),
    "fedamp": Entry(stays="running|num_batches"),
    "fedas": Entry(
        equal=(
            Equal("fedper", run=ONE_ROUND, tensors="head."),
            Equal("fedper", {"align_epochs": 0}, ONE_SITE),
        ),
        stays="head",
    ),
    "fedavg": Entry(equal=(Equal("centralized", run=ONE_SITE | {"epochs": 2}, models="server"),)),
    "fedavgm": Entry(
        equal=(
            Equal("fedavg", run=ONE_ROUND),
            *(Equal("fedavg", {"beta": 0.0, "nesterov": ahead}, {"task": PLAIN}) for ahead in (False, True)),
        )
    ),
    "fedbabu": Entry(stays="head", untrained=True),
    "fedbn": Entry(equal=(Equal("fedavg", run={"task": PLAIN}, theirs=UNIFORM),)),
    "fedce": Entry(equal=tuple(Equal("fedavg", {"mode": mode}, ONE_SITE) for mode in ("plus", "times"))),
    "fedcross": Entry(stays="."),
    "fedcross_star": Entry(stays="."),
    "fedcurv": Entry(equal=(Equal("fedavg", run=ONE_ROUND), Equal("fedavg", run=ONE_SITE))),
    "feddf": Entry(quick={"distil_steps": 3}),
    "feddg_ga": Entry(equal=(Equal("fedavg", run=ONE_ROUND, theirs=UNIFORM),)),
    "fedfed": Entry(quick={"distil_rounds": 1, "width": 2}),
    "fedkd": Entry(stays="mentor|adapter"),
    "fedkf": Entry(quick={"noise_dim": 8, "width": 4}, equal=(Equal("fedavg", run=ONE_ROUND),), stays="generator"),
    "fedmd": Entry(quick={"public_epochs": 1, "private_epochs": 1}, stays=r"(body|head)\."),
    "fednova": Entry(
        equal=(
            *(Equal("fedavg", run={"steps": 3, "task": task}) for task in (make_task(), PLAIN)),
            Equal("fedavg", UNIFORM, {"steps": 3}, UNIFORM),
            Equal("fedprox", {"mu": 0.3}, {"steps": 2}, {"mu": 0.3}),
        )
    ),
    "fedntd": Entry(equal=(Equal("fedavg", run=TWO_CLASSES),)),
    "fedper": Entry(stays="head"),
    "fedproto": Entry(stays=r"(body|head)\."),
    "fedrep": Entry(stays="head"),
    "fedrod": Entry(
        equal=(
            Equal("fedavg", {"gamma": 0.0}, models="global"),
            Equal("fedavg", {"gamma": 0.0, "gradient_clip": 0.1}, theirs={"gradient_clip": 0.1}, models="global"),
        ),
        stays="own/",
        untrained=True,
    ),
    "fedsdc": Entry(goes_on=({"gamma": 0.5},)),
    "fedskd": Entry(
        quick={"p2p_scale": 1},
        equal=tuple(
            Equal(
                "local",
                {"gamma": 0.0, "optimizer_state": state},
                UNLIKE_AND_RANDOM | {"balance": balance},
                {"optimizer_state": state},
            )
            for state, balance in (("persistent", "loss"), ("reset", "none"))
        ),
        stays=".",
        goes_on=({"start_fraction": 0.5},),
    ),
    "fedsm": Entry(quick={"selector_width": 2}, equal=(Equal("fedavg", models="server/global"),)),
    "fedtgp": Entry(quick={"server_epochs": 5}, stays=r"(body|head)\."),
    "fedtpf": Entry(
        quick={"distil_rounds": 1, "width": 2},
        equal=(Equal("fedavg", SHARES_NOTHING, FEW_OF_THEM),),
        stays="critic|optimizer",
    ),
    "fenda": Entry(stays=r"own\.|head\."),
    "gpfl": Entry(stays=r"head\.own\.|class_shares"),
    "isfl": Entry(quick={"probe": 3}),
    "lg_fedavg": Entry(equal=(Equal("local", run=ONE_ROUND, tensors="body."),), stays="body"),
    "moon": Entry(
        quick={"proj_dim": 3}, equal=(Equal("moon", run=ONE_ROUND, theirs={"proj_dim": 3, "mu": 0.0}),), stays="kept/"
    ),
    "mr_mtl": Entry(stays="running|num_batches"),
    "perfcl": Entry(equal=(Equal("fenda", run=ONE_ROUND),), stays=r"own\.|head\.|previous/"),
    "pfedcdp": Entry(
        quick={"refine": {"epochs": 2, "probe_epochs": 1}},
        equal=tuple(
            Equal("fedper", ONE_POOL, {"task": make_task(kind)}, tensors="head.") for kind in ("norm", "plain")
        ),
        stays="(^|model/)head",
        goes_on=({"server_classifier": "average"},),
    ),
    "pfedme": Entry(untrained=True),
    "scaffold": Entry(
        equal=(
            Equal("fedavg", run=ONE_ROUND, theirs=UNIFORM),
            Equal("fedavg", run=ONE_ROUND | {"task": PLAIN}, theirs=UNIFORM),
            Equal("fedavg", run=ONE_SITE),
        )
    ),
}


def rows(part: str) -> list[Any]:
    """Return the parameters of a test of one part of the entries: (name, item)."""
    return [
        pytest.param(name, item, id=f"{name}-{number}")
        for name, entry in ENTRIES.items()
        for number, item in enumerate(getattr(entry, part))
    ]


def names_with(part: str) -> list[str]:
    """Return the methods whose entries have a part."""
    return [name for name, entry in ENTRIES.items() if getattr(entry, part)]


def case_of(name: str, args: Mapping[str, Any]) -> Case:
    """Return the tiny federation of a method with its entry's quick settings and others."""
    return Case(REGISTRY, name, {**ENTRIES.get(name, Entry()).quick, **args})


# ---- the suite

WHOLE = ("ditto", "scaffold")
"""Methods whose contract `make test` checks whole, too."""

ALWAYS = (
    "metadata_is_complete",
    "only_declared_values_leave_sites",
    "frozen_parameters_are_not_sent",
    "states_survive_the_disk",
    "different_networks_are_refused_or_work",
    "exported_networks_predict_alike",
)
BY_TURNS = ("run_resumes_at_every_step", "further_objectives_are_refused_or_work")
"""What it checks of the others, of `BY_TURNS` one for each method; `make test-all` checks all."""

NAMES = sorted(REGISTRY.methods)
CLIPPED = {"robust": {"rule": "centred_clip", "radius": 0.5}}
"""A rule that remembers, and needs no number of replies."""


@pytest.mark.parametrize(("turn", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_the_contract_is_kept(turn: int, name: str) -> None:
    sample = [*ALWAYS, BY_TURNS[turn % len(BY_TURNS)]]
    check_method(name, args=case_of(name, {}).args, checks=None if name in WHOLE else sample)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE])
def test_the_contract_is_kept_whole(name: str) -> None:
    check_method(name, args=case_of(name, {}).args)


@pytest.mark.parametrize("name", ["fedbabu"])
def test_the_contract_is_kept_under_a_robust_rule(name: str) -> None:
    check_method(name, checks=["run_resumes_at_every_step"], settings=CLIPPED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddyn", "fenda", "fedkd", "flash", "per_fedavg"])
def test_the_contract_is_kept_whole_under_a_robust_rule(name: str) -> None:
    check_method(name, settings=CLIPPED)


@pytest.mark.parametrize(("name", "args"), rows("goes_on"))
def test_a_run_with_other_settings_is_stopped_and_goes_on(name: str, args: dict[str, Any]) -> None:
    check_method(name, args=case_of(name, args).args, checks=["run_resumes_at_every_step"])


# ---- the entries


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a method with which others are compared, once for each setting."""
    known: dict[tuple[str, str, int], dict[str, Tensors]] = {}

    def run(equal: Equal) -> dict[str, Tensors]:
        key = (equal.other, repr(equal.theirs), hash(tuple((name, id(value)) for name, value in equal.run.items())))
        if key not in known:
            folder = tmp_path_factory.mktemp("reference") / "run"
            known[key] = bits(Case(REGISTRY, equal.other, dict(equal.theirs)).run(folder, **equal.run))
        return known[key]

    return run


@pytest.mark.parametrize(("name", "equal"), rows("equal"))
def test_a_method_is_another_one(tmp_path: Path, reference: Any, name: str, equal: Equal) -> None:
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
def test_what_stays_at_a_site(tmp_path: Path, name: str) -> None:
    """Also where sites have unlike networks, if the method can."""
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
def test_a_site_that_never_trained_has_the_global_model(tmp_path: Path, name: str) -> None:
    models = case_of(name, {}).run(tmp_path, rounds=2, unavailable=lambda site, step: site == "site-3").models["site-3"]
    assert tensors_equal(models["personal"].tensors, models["global"].tensors)


def test_every_entry_is_of_a_method() -> None:
    assert ENTRIES.keys() <= set(NAMES)
