"""FedCross: moving models are neither lost nor mixed, and are evaluated at the right sites."""

import dataclasses
import types

import pandas as pd
import pytest
import torch
from peer_toys import (
    NAMES,
    REGISTRY,
    owners,
    parameters,
    run,
    states,
)

from medfl.contract import Server, State
from medfl.settings import Settings
from medfl.testing.cohort import make_data, make_site, make_sites, make_task
from medfl.utils.wire import payload_bytes, select, tensors_equal
from medfl_methods.fedcross.ensemble import ensemble_of
from medfl_methods.fedcross.method import ensemble_model


@pytest.mark.parametrize("circulating", ["K", "one"])
def test_with_one_site_it_is_centralized(tmp_path, circulating):
    sites = {"only": make_site(17, "only")}
    kind = "personal" if circulating == "K" else "global"
    model = run(tmp_path / "a", "fedcross", {"circulating": circulating}, sites=sites).models["only"][kind]
    expected = run(tmp_path / "b", "centralized", sites=sites).outcome.models["global"]
    torch.testing.assert_close(model.tensors, expected.tensors, atol=1e-6, rtol=1e-6)


def held(folder):
    """Map each model to its tensors at the site that holds it; check that only one site does."""
    at = states(folder)["server"].meta["at"]
    return {model: select(states(folder)[site].tensors, f"held/{model}/") for model, site in at.items()}


@pytest.mark.parametrize("route", ["random_permutation", "derangement", "ring"])
def test_moving_neither_loses_nor_mixes_models(tmp_path, route):
    """Without training each model keeps its initial values, wherever it is and whichever site was unavailable."""
    task = dataclasses.replace(make_task(), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    gone = {("site-2", 1), ("site-1", 2), ("site-3", 3), ("site-2", 6), ("site-1", 7), ("site-3", 8)}
    options = {"task": task, "rounds": 4, "evaluate_every": 1, "unavailable": lambda site, step: (site, step) in gone}
    args = {"route": route, "init": "own"}
    result = run(tmp_path, "fedcross", args, **options)
    assert result.outcome.status == "finished"
    by_owner = held(tmp_path)
    assert sorted(by_owner) == NAMES
    for name, state in states(tmp_path).items():
        here = {key.split("/")[1] for key in state.tensors if key.startswith("held/")}
        assert name == "server" or here == {*state.meta["holds"], state.meta["resident"]}, "nothing piles up"
    for owner, tensors in by_owner.items():
        assert tensors_equal(parameters(tensors), parameters(task.initial(7, owner=owner))), owner
    for models in result.models.values():
        members = models["personal"]
        assert members.meta["size"] == len(NAMES)
        for number, owner in enumerate(NAMES):
            assert tensors_equal(select(members.tensors, f"members.{number}."), by_owner[owner])


def test_a_site_that_never_replies_loses_only_what_it_holds(tmp_path, caplog):
    """The model of that site is never initialised; the others circulate and are evaluated together."""
    result = run(tmp_path, "fedcross", unavailable=lambda site, step: site == "site-2", rounds=4)
    at = states(tmp_path)["server"].meta["at"]
    assert set(at) >= {"site-1", "site-3"}
    assert "site-2" not in at.values()
    assert set(result.models["site-1"]) == {"personal"}
    assert result.models["site-1"]["personal"].meta["size"] == len(at)
    assert result.models["site-2"]["personal"].meta == {}, "it has but its initial model"


@pytest.mark.parametrize("circulating", ["K", "one"])
def test_partial_participation_leaves_the_others_in_peace(tmp_path, circulating):
    """Sites without a request hold the same models as before, or none yet."""
    trained, stamps = [], []
    make = REGISTRY.make_method

    class Watched(REGISTRY.method_class("fedcross")):
        def plan(self, server):
            plan = super().plan(server)
            if plan and plan.requests[0].op == "train":
                trained.append((server.round, sorted(request.to for request in plan.requests)))
                stamps.append(plan.requests[0].meta["stamp"])
            return plan

    def make_method():
        return Watched(**make("fedcross", {"circulating": circulating}).model_dump())

    sites = make_sites({f"site-{index}": 8 for index in range(5)})
    result = run(tmp_path, "fedcross", sites=sites, fraction=0.4, rounds=4, make_method=make_method)
    assert result.outcome.status == "finished"
    chosen = {round_: set() for round_ in range(1, 5)}
    for round_, hosts in trained:
        chosen[round_] |= set(hosts)
    assert {len(hosts) for hosts in chosen.values()} == {2}
    turns = 2 if circulating == "one" else 1
    assert stamps == [[round_, turn] for round_ in range(1, 5) for turn in range(turns)]
    assert len(set.union(*chosen.values())) > 2
    assert set(states(tmp_path)["server"].meta["at"].values()) <= set.union(*chosen.values())


def test_a_derangement_trains_no_model_twice_in_a_row_at_a_site(tmp_path):
    residents = []
    for rounds in range(1, 6):
        run(tmp_path, "fedcross", {"route": "derangement"}, rounds=rounds)
        residents.append([states(tmp_path)[name].meta["resident"] for name in NAMES])
    for before, after in zip(residents, residents[1:]):
        assert sorted(after) == NAMES
        assert all(old != new for old, new in zip(before, after, strict=True))


def test_the_ensemble_says_the_mean_probability(tmp_path):
    result = run(tmp_path, "fedcross", rounds=2)
    method, images = REGISTRY.make_method("fedcross", {}), make_data(6, "x").images
    member_probs = []
    ensemble = result.models["site-1"]["personal"]
    for tensors in held(tmp_path).values():
        member_probs.append(make_task().load(tensors).eval()(images).softmax(1))
    predictor = method.predictor(make_task(), [ensemble])
    torch.testing.assert_close(predictor(images).exp(), torch.stack(member_probs).mean(0))
    assert not predictor.training
    for models in result.models.values():
        assert tensors_equal(models["personal"].tensors, ensemble.tensors)


def test_the_score_of_a_site_is_the_ensembles(tmp_path):
    """The tables score the mean of all members, as in the paper, and not the model that the site trained last."""
    sites = make_sites(dict.fromkeys(NAMES, 20))
    result = run(tmp_path, "fedcross", sites=sites, rounds=2)
    table = pd.read_csv(tmp_path / "metrics.csv")
    scored = table[(table["moment"] == "aggregated") & (table["split"] == "test") & (table["metric"] == "accuracy")]
    assert set(scored["model"]) == {"personal"}
    for name in NAMES:
        test = sites[name].test
        members = [make_task().load(tensors).eval()(test.images).softmax(1) for tensors in held(tmp_path).values()]
        right = (torch.stack(members).mean(0).argmax(1) == test.class_labels).double().mean().item()
        value = scored[(scored["site"] == name) & (scored["round"] == 2)]["value"].item()
        assert value == pytest.approx(right)
        assert result.summary.scores["personal"]["test"]["accuracy"].sites[name] == pytest.approx(right)


def test_an_exported_bundle_builds_the_ensemble():
    """The bundle's configuration builds a network with the model's tensors and the predictor's outputs."""
    task, method, images = make_task(), REGISTRY.make_method("fedcross", {}), make_data(5, "x").images
    site = types.SimpleNamespace(task=task, network=task.network)
    model = ensemble_model(site, {name: task.initial(7, owner=name) for name in NAMES})
    config = method.network_config(model, {"_target_": "unused"})
    assert config.pop("_target_") == f"{ensemble_of.__module__}.{ensemble_of.__name__}"
    network = ensemble_of(**config | {"network": task.build()})
    network.load_state_dict(model.tensors)
    torch.testing.assert_close(network.eval()(images), method.predictor(task, [model])(images))


@pytest.mark.parametrize(("circulating", "kind"), [("K", "personal"), ("one", "global")])
def test_a_site_that_was_unavailable_when_copies_were_shared_has_its_own_only(tmp_path, circulating, kind):
    """An old copy next to the others' new ones would be evaluated as if it were the same model."""
    last = {"K": 3, "one": 7}[circulating]  # train, share, keep; with one model three visits, two of them with a send
    gone = {("site-1", last)}
    args = {"circulating": circulating}
    result = run(tmp_path, "fedcross", args, rounds=1, unavailable=lambda site, step: (site, step) in gone)
    assert set(result.models["site-1"]) == {"personal"}
    assert result.models["site-1"]["personal"].meta == {}
    for site in ("site-2", "site-3"):
        assert set(result.models[site]) == {kind}
        assert result.models[site][kind].meta.get("size") == {"K": 3, "one": None}[circulating]


def test_copies_are_shared_only_in_rounds_that_are_evaluated(tmp_path):
    run(tmp_path, "fedcross", rounds=5, evaluate_every=2)
    table = pd.read_csv(tmp_path / "metrics.csv")
    sent = table[table["metric"] == "bytes_to_peers"]
    size = payload_bytes(make_task().initial(7))
    totals = sent.groupby("round")["value"].sum() / size
    shared = {round_: total - moved for (round_, total), moved in zip(totals.items(), moves(), strict=True)}
    assert shared == {1: 0, 2: 6, 3: 0, 4: 6, 5: 6}, "three models, each to two other sites"


def moves():
    """Return the models that changed hosts in each of five rounds; in the first round hosts initialise their models."""
    counts = [0]
    for before, after in zip(range(1, 5), range(2, 6)):
        now, then = owners(after), owners(before)
        counts.append(sum(now.index(model) != then.index(model) for model in NAMES))
    return counts


def visits(route, rounds=12, names=tuple("abcd")):
    """Return the order in which the single model visits the sites, for each round."""
    method, requests = REGISTRY.make_method("fedcross", {"circulating": "one", "route": route}), []
    for round_ in range(1, rounds + 1):
        server = Server("server", round_, State(), make_task(), Settings(rounds=rounds, seed=7), sites=[*names])
        method.setup(server)
        requests.append([host for turn in method.turns(server) for host in turn])
    return requests


@pytest.mark.parametrize("route", ["random_permutation", "derangement"])
def test_a_single_model_takes_another_way_in_each_round(route):
    """Twelve draws from 24 permutations contain fewer than six different ones about once in 20,000 times."""
    requests = visits(route)
    assert all(sorted(request) == list("abcd") for request in requests)
    assert len({tuple(request) for request in requests}) >= 6
    assert requests == visits(route), "the orders depend on the seed alone"


def test_on_a_ring_a_single_model_visits_sites_by_name():
    assert visits("ring", rounds=2) == [list("abcd")] * 2
