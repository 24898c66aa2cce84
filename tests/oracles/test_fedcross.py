"""FedCross and FedCross* against plain loops that share no code with them, and what must hold of moving models."""

import dataclasses

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from medfl import streams
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Privacy
from medfl.store import Store
from medfl.testing.cohort import Case, TensorData, bits, make_data, make_site, make_sites, make_task
from medfl.wire import payload_bytes, select, tensors_equal

REGISTRY = load_plugins()
NAMES = ["site-1", "site-2", "site-3"]


def adam(task):
    return dataclasses.replace(task, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))


def run(folder, name="fedcross", args=None, **options):
    return Case(REGISTRY, name, args or {}).run(folder, **options)


def states(folder):
    found = {path.name: Store(path).latest() for path in sorted((folder / "state").iterdir())}
    return {name: record.state() for name, record in found.items() if record}


def permutation(round_, count=3):
    """Host to owner by the stream that all methods share, without the code under test."""
    order = torch.randperm(count, generator=streams.generator(7, "route", round_)).tolist()
    return [NAMES[index] for index in order]


def visit(model, optimizer, site, round_, epochs=1):
    """A training at a site, as a plain loop over its batches."""
    data = make_sites()[site].train
    generator = streams.generator(7, site, round_, "batches")
    smallest = 2 if any(isinstance(module, torch.nn.BatchNorm2d) for module in model.train().modules()) else 1
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=generator).split(5):
            if len(rows) >= smallest:
                optimizer.zero_grad()
                F.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
                optimizer.step()


def plain_models(task, networks):
    torch.set_num_threads(1)  # as a run does
    models = {}
    for name, network in networks.items():
        models[name] = task.load(task.initial(7, network), network)
    return models


def assert_models(found, models):
    for name, model in models.items():
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(found[name][key], tensor, atol=1e-6, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


# ---- FedCross*


@pytest.mark.parametrize("state", ["travel", "reset"])
def test_fedcross_star_is_a_plain_loop_over_unlike_networks(tmp_path, state):
    """Model O_i is trained on the data of i, three times the epochs for three sites, with one optimiser or new ones."""
    task, networks = adam(make_task()), {"site-1": "wide", "site-2": "norm", "site-3": "plain"}
    models = plain_models(task, networks)
    optimizers = {name: task.optimizer(model.parameters()) for name, model in models.items()}
    for round_ in (1, 2, 3):
        for host, owner in zip(NAMES, permutation(round_), strict=True):
            if state == "reset":
                optimizers[owner] = task.optimizer(models[owner].parameters())
            visit(models[owner], optimizers[owner], host, round_, epochs=3)
    assert any(owner != host for round_ in (1, 2, 3) for host, owner in zip(NAMES, permutation(round_), strict=True))
    result = run(tmp_path, "fedcross_star", {"optimizer_state": state}, task=task, networks=networks)
    assert {name: found["personal"].network for name, found in result.models.items()} == networks
    assert_models({name: found["personal"].tensors for name, found in result.models.items()}, models)


def test_what_comes_home_is_the_optimisers_state_too(tmp_path):
    run(tmp_path, "fedcross_star", task=adam(make_task()))
    for name in NAMES:
        steps = states(tmp_path)[name].tensors["optimizer/head.weight/step"]
        visits = [NAMES[permutation(round_).index(name)] for round_ in (1, 2, 3)]
        assert steps == sum(3 * {"site-1": 4, "site-2": 3, "site-3": 2}[host] for host in visits)  # 21 = 4 * 5 + 1
    run(tmp_path / "reset", "fedcross_star", {"optimizer_state": "reset"})
    assert not any(key.startswith("optimizer/") for name in NAMES for key in states(tmp_path / "reset")[name].tensors)


def test_bytes_between_sites_are_those_of_the_models(tmp_path):
    run(tmp_path, "fedcross_star", {"optimizer_state": "reset"}, networks={"site-1": "wide"}, rounds=2)
    sizes = {name: payload_bytes(make_task().initial(7, "wide" if name == "site-1" else "norm")) for name in NAMES}
    expected = dict.fromkeys(NAMES, 0)
    for round_ in (1, 2):
        for host, owner in zip(NAMES, permutation(round_), strict=True):
            if host != owner:
                expected[owner] += sizes[owner]  # there
                expected[host] += sizes[owner]  # and back
    table = pd.read_csv(tmp_path / "metrics.csv")
    spent = table[table["metric"] == "bytes_to_peers"].groupby("site")["value"].sum()
    assert spent.to_dict() == expected
    assert set(table[table["metric"] == "bytes_up"]["value"]) == {0}


@pytest.mark.parametrize("scale", [0, -1, "M", 1.5])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(SettingsError, match="p2p_scale"):
        REGISTRY.make_method("fedcross_star", {"p2p_scale": scale})


def test_steps_are_scaled_like_epochs(tmp_path):
    run(
        tmp_path,
        "fedcross_star",
        {"route": "identity", "p2p_scale": 2},
        task=adam(make_task("plain")),
        steps=3,
        rounds=1,
    )
    assert {states(tmp_path)[name].tensors["optimizer/head.weight/step"].item() for name in NAMES} == {6}


# ---- FedCross with K models and with one


@pytest.mark.parametrize("state", ["travel", "reset"])
def test_one_model_visits_the_sites_in_turn(tmp_path, state):
    task = adam(make_task())
    (model,) = plain_models(task, {"one": "norm"}).values()
    optimizer, orders = task.optimizer(model.parameters()), []
    for round_ in (1, 2, 3):
        orders.append(permutation(round_))
        for host in orders[-1]:
            if state == "reset":
                optimizer = task.optimizer(model.parameters())
            visit(model, optimizer, host, round_)
    assert orders[0] != orders[1]
    result = run(tmp_path, args={"circulating": "one", "optimizer_state": state}, task=task)
    assert {frozenset(found) for found in result.models.values()} == {frozenset({"global"})}
    assert_models({name: found["global"].tensors for name, found in result.models.items()}, dict.fromkeys(NAMES, model))


@pytest.mark.parametrize("circulating", ["K", "one"])
def test_with_one_site_it_is_centralized(tmp_path, circulating):
    sites = {"only": make_site(17, "only")}
    kind = "personal" if circulating == "K" else "global"
    found = run(tmp_path / "a", args={"circulating": circulating}, sites=sites).models["only"][kind]
    expected = run(tmp_path / "b", "centralized", sites=sites).outcome.models["global"]
    torch.testing.assert_close(found.tensors, expected.tensors, atol=1e-6, rtol=1e-6)


def held(folder):
    """Model to its tensors where it counts, checked to count at one site only."""
    at = states(folder)["server"].meta["at"]
    return {model: select(states(folder)[site].tensors, f"held/{model}/") for model, site in at.items()}


def parameters(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.endswith(("weight", "bias"))}


@pytest.mark.parametrize("route", ["random_permutation", "derangement", "ring"])
@pytest.mark.parametrize("away", [False, True])
def test_moving_neither_loses_nor_mixes_models(tmp_path, route, away):
    """Without learning each model is what it began as, wherever it is and whoever was away."""
    task = dataclasses.replace(make_task(), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    gone = {("site-2", 1), ("site-1", 2), ("site-3", 3), ("site-2", 6), ("site-1", 7), ("site-3", 8)} if away else set()
    options = {"task": task, "rounds": 4, "absent": lambda site, step: (site, step) in gone}
    args = {"route": route, "init": "own"}
    result = run(tmp_path, args=args, **options)
    assert result.outcome.status == "finished"
    found = held(tmp_path)
    assert sorted(found) == NAMES
    for name, state in states(tmp_path).items():
        here = {key.split("/")[1] for key in state.tensors if key.startswith("held/")}
        assert name == "server" or here == {*state.meta["holds"], state.meta["resident"]}, "nothing piles up"
    for owner, tensors in found.items():
        assert tensors_equal(parameters(tensors), parameters(task.initial(7, owner=owner))), owner
    for models in result.models.values():
        members = models["ensemble"]
        assert members.meta["members"] == NAMES
        for owner in NAMES:
            assert tensors_equal(select(members.tensors, f"{owner}/"), found[owner])


def test_a_site_that_never_answers_loses_only_what_it_holds(tmp_path, caplog):
    """Its model never began, the others go round, and they are scored together."""
    result = run(tmp_path, absent=lambda site, step: site == "site-2", rounds=4)
    at = states(tmp_path)["server"].meta["at"]
    assert set(at) >= {"site-1", "site-3"}
    assert "site-2" not in at.values()
    assert set(result.models["site-1"]) == {"personal", "ensemble"}
    assert result.models["site-1"]["ensemble"].meta["members"] == sorted(at)
    assert set(result.models["site-2"]) == {"personal"}, "it has but its initial model"


@pytest.mark.parametrize("circulating", ["K", "one"])
def test_partial_participation_leaves_the_others_in_peace(tmp_path, circulating):
    """Those who were not asked hold what they held, or have not begun."""
    trained, stamps = [], []
    make = REGISTRY.make_method

    class Watched(REGISTRY.method_class("fedcross")):
        def plan(self, server):
            plan = super().plan(server)
            if plan and plan.orders[0].op == "train":
                trained.append((server.round, sorted(order.to for order in plan.orders)))
                stamps.append(plan.orders[0].meta["stamp"])
            return plan

    def make_method():
        return Watched(**make("fedcross", {"circulating": circulating}).model_dump())

    sites = make_sites({f"site-{index}": 8 for index in range(5)})
    result = run(tmp_path, sites=sites, fraction=0.4, rounds=4, make_method=make_method)
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
        run(tmp_path, args={"route": "derangement"}, rounds=rounds)
        residents.append([states(tmp_path)[name].meta["resident"] for name in NAMES])
    for before, after in zip(residents, residents[1:]):
        assert sorted(after) == NAMES
        assert all(old != new for old, new in zip(before, after, strict=True))


def test_the_ensemble_says_the_mean_probability(tmp_path):
    result = run(tmp_path, rounds=2)
    method, images = REGISTRY.make_method("fedcross", {}), make_data(6, "x").images
    member_probs = []
    ensemble = result.models["site-1"]["ensemble"]
    for tensors in held(tmp_path).values():
        member_probs.append(make_task().load(tensors).eval()(images).softmax(1))
    predictor = method.predictor(make_task(), [ensemble])
    torch.testing.assert_close(predictor(images).exp(), torch.stack(member_probs).mean(0))
    assert not predictor.training
    for models in result.models.values():
        assert tensors_equal(models["ensemble"].tensors, ensemble.tensors)


def test_the_ensemble_is_scored_at_every_site_and_the_resident_goes_home(tmp_path):
    result = run(tmp_path)
    table = pd.read_csv(tmp_path / "metrics.csv")
    scored = table[(table["moment"] == "aggregated") & (table["split"] == "test") & (table["model"] == "ensemble")]
    assert sorted(set(zip(scored["round"], scored["site"], strict=True))) == [(r, n) for r in (1, 2, 3) for n in NAMES]
    for name in NAMES:
        resident = states(tmp_path)[name].meta["resident"]
        assert tensors_equal(result.models[name]["personal"].tensors, held(tmp_path)[resident])


@pytest.mark.parametrize(("circulating", "kind"), [("K", "ensemble"), ("one", "global")])
def test_a_site_that_was_away_when_copies_were_shared_has_its_own_only(tmp_path, circulating, kind):
    """An old copy beside others' new ones would be scored as if it were the same model."""
    last = {"K": 3, "one": 7}[circulating]  # train, share, keep; with one model three visits, two of them with a send
    gone = {("site-1", last)}
    args = {"circulating": circulating}
    result = run(tmp_path, args=args, rounds=1, absent=lambda site, step: (site, step) in gone)
    assert set(result.models["site-1"]) == {"personal"}
    assert kind in result.models["site-2"]
    assert kind in result.models["site-3"]


def test_copies_are_shared_only_in_rounds_that_are_evaluated(tmp_path):
    run(tmp_path, rounds=5, evaluate_every=2)
    table = pd.read_csv(tmp_path / "metrics.csv")
    sent = table[table["metric"] == "bytes_to_peers"]
    size = payload_bytes(make_task().initial(7))
    totals = sent.groupby("round")["value"].sum() / size
    shared = {round_: total - moved for (round_, total), moved in zip(totals.items(), moves(tmp_path), strict=True)}
    assert shared == {1: 0, 2: 6, 3: 0, 4: 6, 5: 6}, "three models, each to two other sites"


def moves(folder):
    """Models that changed hosts in each of five rounds; in the first they are made where they are trained."""
    counts = [0]
    for before, after in zip(range(1, 5), range(2, 6)):
        now, then = permutation(after), permutation(before)
        counts.append(sum(now.index(model) != then.index(model) for model in NAMES))
    return counts


# ---- what a broken site does, and what the server sees


@pytest.mark.parametrize("name", ["fedcross", "fedcross_star"])
def test_a_model_leaves_a_broken_site_as_it_came(tmp_path, caplog, name):
    """A site whose images are no numbers spoils no model, not even its own."""
    sites = make_sites()
    images = torch.full_like(sites["site-2"].train.images, float("nan"))
    sites["site-2"] = dataclasses.replace(sites["site-2"], train=TensorData(images, sites["site-2"].train.labels))
    result = run(tmp_path, name, sites=sites, rounds=4)
    for key, tensors in bits(result).items():
        assert all(torch.isfinite(t).all() for t in tensors.values()), key
    assert "a training at site-2 diverged; the model goes on as it came" in caplog.text
    start = parameters(make_task().initial(7))
    trained = [m["personal"].tensors for site, m in result.models.items() if site != "site-2"]
    assert all(not tensors_equal(parameters(tensors), start) for tensors in trained)


@pytest.mark.parametrize(
    ("name", "args"),
    [("fedcross", {}), ("fedcross", {"circulating": "one"}), ("fedcross", {"test": "owner"}), ("fedcross_star", {})],
)
def test_the_server_holds_no_model_and_sees_no_tensor(tmp_path, name, args):
    run(tmp_path, name, args)
    folder = tmp_path / "state" / "server"
    for step in Store(folder).steps():
        assert Store(folder).load(step).tensors == {}
    assert not (folder / "inbox").exists()
    assert not (folder / "blobs").exists()
    for site in NAMES:
        for step in Store(tmp_path / "state" / site).steps():
            record = Store(tmp_path / "state" / site).load(step)
            assert not any(key.startswith("reply/") for key in record.tensors)
            assert set(record.meta["reply"]) <= {"trained", "guest"}
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert set(table[table["metric"].isin(["bytes_up", "bytes_down"])]["value"]) == {0}


@pytest.mark.parametrize("name", ["fedcross", "fedcross_star"])
def test_privacy_is_refused_before_the_first_step(tmp_path, name):
    with pytest.raises(SettingsError, match=f"'{name}' would send .*parcels from site to site"):
        run(tmp_path, name, privacy=Privacy(epsilon=5.0, clip=1.0))
    assert not (tmp_path / "state").exists()


def test_an_owner_that_was_away_takes_its_model_in_later(tmp_path):
    """Away for the homecoming of round 1, it still sends in round 2 what was trained elsewhere in round 1."""
    assert permutation(1)[1] == "site-3"
    result = run(tmp_path / "whole", "fedcross_star", rounds=3)
    late = run(tmp_path / "late", "fedcross_star", rounds=3, absent=lambda site, step: (site, step) == ("site-3", 3))
    assert bits(late).keys() == bits(result).keys()
    assert all(tensors_equal(tensors, bits(result)[key]) for key, tensors in bits(late).items())


def test_a_visit_that_did_not_happen_leaves_the_model_as_it_was(tmp_path):
    """site-2 is never there: who would have been its guest stays untrained in that round."""
    result = run(tmp_path, "fedcross_star", rounds=1, absent=lambda site, step: site == "site-2")
    start = make_task().initial(7)
    owner = permutation(1)[1]
    assert tensors_equal(result.models[owner]["personal"].tensors, start)
    others = [n for n in NAMES if n not in (owner, "site-2")]
    assert not any(tensors_equal(result.models[name]["personal"].tensors, start) for name in others)
