"""Whole runs of PFedCDP against independent plain loops (O-PF-5, O-PF-11), and the tensors that leave a site."""

import dataclasses

import pandas as pd
import pytest
import torch
from pfedcdp_toys import NAMES, SHORT, SIZES, bodies, classifier, personal, plain_loop, run

from medfl.engine.store import Store
from medfl.networks.parts import mlp
from medfl.testing.cohort import make_site, make_sites, make_task
from medfl.utils.wire import tensors_equal

TWO = {"site-1": "wide", "site-2": "norm", "site-3": "wide"}


def body_of(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.startswith("body")}


# ---- against plain loops


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_run_with_everything_is_a_plain_loop(tmp_path, share):
    """Two clusters, Fisher masks, both phases, and distillation from a server classifier with its initial values."""
    args = {"server_classifier": "random", "personal_share": share, "lam": 0.4, "tau": 2.0}
    result = run(tmp_path, args, networks_by_site=TWO, rounds=3, epochs=3)
    heads = {}
    for network, features in (("norm", 24), ("wide", 36)):
        heads[network] = mlp(features, (2 * features, features), 3, dropout=(0.3, 0.2)).eval()
        heads[network].load_state_dict(classifier(tmp_path, network))
    how = {"epochs": (1, 2), "share": share, "lam": 0.4, "tau": 2.0, "heads": heads}
    body, own = plain_loop(make_sites(), TWO, 3, **how)
    for network, expected in body.items():
        body_ = bodies(tmp_path, network)
        assert body_.keys() == expected.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(body_[key], tensor, atol=2e-5, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")
    for name in NAMES:
        for key, tensor in own[name].items():
            torch.testing.assert_close(personal(result, name)[key], tensor, atol=2e-5, rtol=1e-4)


# ---- the literal reading


@pytest.mark.parametrize("network", ["norm", "plain"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_pf_5_read_literally_no_body_ever_changes(tmp_path, network, share):
    args = {"head_share": 1.0, "personal_share": share}
    result = run(tmp_path, args, task=make_task(network), rounds=3, epochs=2)
    first = make_task().initial(7, network)
    assert tensors_equal(bodies(tmp_path, network), body_of(first))
    for name in NAMES:
        assert tensors_equal(body_of(personal(result, name)), body_of(first))
        assert (personal(result, name)["head.weight"] - first["head.weight"]).abs().max() > 1e-2
    update = Store(tmp_path / "state" / "site-1").read(3, "reply/model/")
    assert all(int(torch.count_nonzero(tensor)) == 0 for tensor in update.values())


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_pf_5_in_two_phases_bodies_change(tmp_path, epochs, share):
    """This holds even if one epoch in a round is too few for two phases."""
    run(tmp_path, {"head_share": share}, rounds=1, epochs=epochs)
    first = make_task().initial(7, "norm")
    assert (bodies(tmp_path)["body.0.weight"] - first["body.0.weight"]).abs().max() > 1e-3


# ---- transferred tensors


def test_only_the_student_is_published(tmp_path):
    result = run(tmp_path, {"refine": SHORT | {"student": "plain"}}, networks_by_site=TWO, rounds=1)
    assert set(result.outcome.published) == {"student/" + name for name in make_task().names("plain")}
    assert result.outcome.models["global"].network == "plain"
    for name in NAMES:
        assert tensors_equal(result.models[name]["global"].tensors, result.outcome.models["global"].tensors)
        assert result.models[name]["personal"].network == TWO[name]
    assert run(tmp_path / "none", rounds=1).outcome.published == {}


@pytest.mark.parametrize(("bits_", "each"), [(None, 4), (8, 1)])
def test_bytes(tmp_path, bits_, each):
    """Sites send the body and receive the body and the server's classifier; batch norms count batches in 8 bytes."""
    compression = None if bits_ is None else {"bits": bits_}
    run(tmp_path, task=make_task("plain"), rounds=2, compression=compression)
    body, served = 6 * 9 + 6, (24 + 1 + 4) * 48 + (48 + 1 + 4) * 24 + (24 + 1) * 3
    table = pd.read_csv(tmp_path / "metrics.csv")
    assert set(table[table["metric"] == "bytes_up"]["value"]) == {body * each}
    assert set(table[table["metric"] == "bytes_down"]["value"]) == {4 * (body + served) + 2 * 8}


# ---- clusters


@pytest.mark.parametrize(("changed", "other"), [("wide", "norm"), ("norm", "wide")])
def test_clusters_do_not_touch_each_other(tmp_path, changed, other):
    sites = make_sites()
    unlike = {n: make_site(SIZES[n], n + "/other") if TWO[n] == changed else data for n, data in sites.items()}
    first = run(tmp_path / "one", networks_by_site=TWO, rounds=2, epochs=2, sites=sites)
    two = run(tmp_path / "two", networks_by_site=TWO, rounds=2, epochs=2, sites=unlike)
    same = [n for n in NAMES if TWO[n] == other]
    for name in same:
        assert tensors_equal(personal(first, name), personal(two, name))
    for look in (bodies, classifier):
        assert tensors_equal(look(tmp_path / "one", other), look(tmp_path / "two", other))
        assert not tensors_equal(look(tmp_path / "one", changed), look(tmp_path / "two", changed))


def test_a_cluster_that_never_answers_keeps_its_body_and_classifier(tmp_path):
    def quiet(site, step):
        return TWO[site] == "wide"

    unavailable = run(tmp_path, {"refine": SHORT}, networks_by_site=TWO, rounds=2, unavailable=quiet)
    run(tmp_path / "shorter", networks_by_site=TWO, rounds=1, unavailable=quiet)
    assert tensors_equal(classifier(tmp_path, "wide"), classifier(tmp_path / "shorter", "wide"))
    assert unavailable.outcome.status == "finished"
    assert tensors_equal(bodies(tmp_path, "wide"), body_of(make_task().initial(7, "wide")))
    assert not tensors_equal(bodies(tmp_path, "norm"), body_of(make_task().initial(7, "norm")))
    assert tensors_equal(personal(unavailable, "site-1"), make_task().initial(7, "wide"))


@pytest.mark.parametrize("quiet", ["site-1", "site-2"])
def test_a_cluster_that_is_unavailable_changes_no_other(tmp_path, quiet):
    networks = {"site-1": "norm", "site-2": "wide", "site-3": "wide" if quiet == "site-1" else "norm"}
    for folder in ("all", "some"):
        run(
            tmp_path / folder,
            networks_by_site=networks,
            rounds=1,
            unavailable=lambda s, step, f=folder: f == "some" and s == quiet,
        )
    other = "wide" if quiet == "site-1" else "norm"
    for look in (bodies, classifier):
        assert tensors_equal(look(tmp_path / "all", other), look(tmp_path / "some", other))


def test_a_cluster_whose_sites_have_no_data_teaches_no_one(tmp_path):
    sites = make_sites() | {"site-2": make_site(0, "empty")}
    result = run(tmp_path, {"refine": SHORT | {"teachers": "equal"}}, networks_by_site=TWO, rounds=1, sites=sites)
    assert result.outcome.findings.meta["teachers"].keys() == {"wide"}
    assert tensors_equal(personal(result, "site-2"), make_task().initial(7, "norm"))


@pytest.mark.parametrize("name", ["student", "findings"])
def test_a_cluster_may_have_any_network(tmp_path, name):
    """A network may have a name that the server's state uses as a prefix."""
    task = make_task()
    task = dataclasses.replace(task, networks=task.networks | {name: task.networks["wide"]})
    networks = {"site-1": name}
    result = run(tmp_path / "1", {"refine": SHORT}, task=task, networks_by_site=networks, rounds=2)
    assert set(result.outcome.published) == {"student/" + key for key in task.names("norm")}
    assert bodies(tmp_path / "1", name).keys() == body_of(task.initial(7, name)).keys()
    result = run(tmp_path / "1", {"refine": SHORT}, task=task, networks_by_site=networks, rounds=3)
    assert result.outcome.status == "finished"


# ---- more rounds


def test_an_old_student_is_forgotten_where_the_run_continues(tmp_path):
    for rounds in (1, 3):
        run(tmp_path, {"refine": SHORT}, rounds=rounds, evaluate_every=1)
    table = pd.read_csv(tmp_path / "metrics.csv")
    scored = table[table["moment"] == "aggregated"].groupby("model")["round"].unique()
    assert scored["global"].tolist() == [1, 3]
    assert scored["personal"].tolist() == [1, 2, 3]


# ---- the run's filters


@pytest.mark.parametrize("kind", ["proxy", "average"])
def test_under_privacy_updates_are_clipped_and_sizes_stay(tmp_path, kind):
    args = {"server_classifier": kind, "refine": SHORT}
    options = {"task": make_task("plain"), "rounds": 2, "epochs": 6}
    result = run(tmp_path, args, privacy={"epsilon": 1e7, "clip": 0.05}, **options)
    assert result.outcome.status == "finished"
    for name in NAMES:
        record = Store(tmp_path / "state" / name).load(2)
        assert record.meta["reply"] == {}
        update = Store(tmp_path / "state" / name).read(2, "reply/")
        norm = torch.cat([tensor.double().flatten() for tensor in update.values()]).norm()
        assert float(norm) == pytest.approx(0.05, rel=0.05)
