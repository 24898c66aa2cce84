"""FedMD: the mean of what sites say, how it is digested, and who gets the public images when."""

import pytest
import torch
from refusals import refused

from medfl.contract import Order, Site, State
from medfl.errors import RefusedError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.toolkit.trainings import Training
from medfl.training.loop import Batch
from medfl.types import SERVER
from medfl_methods.fedmd import FedMD, consensus, public_part

REGISTRY = load_plugins()
QUICK = {"public_epochs": 1, "private_epochs": 1}


class Watched(FedMD):
    """Notes what it orders, in `seen`."""

    def score_orders(self, server):
        return note(super().score_orders(server))

    def digest_orders(self, server):
        return note(super().digest_orders(server))


seen: list[dict[str, Order]] = []


def note(orders):
    seen.append({order.to: Order(order.to, order.op, dict(order.tensors), order.meta) for order in orders})
    return orders


def run(folder, args=None, **options):
    seen.clear()
    settings = QUICK | (args or {})
    return Case(REGISTRY, "fedmd", settings).run(folder, make_method=lambda: Watched(**settings), **options)


# ---- closed forms


def test_the_mean_is_that_of_logits_before_any_softmax():
    scores = [torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[0.0, 1.0]]).double()]
    assert consensus(scores).tolist() == [[1.0, 0.5]]
    of_probabilities = torch.stack([row.softmax(1) for row in scores]).mean(0)
    assert not torch.allclose(of_probabilities, consensus(scores).softmax(1).double(), atol=0.01)


def test_it_is_digested_by_the_mean_absolute_difference():
    fit = Fit(None, lambda images: images, {}, training=Training("digest"))
    batch = Batch(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.5]]), torch.arange(1))
    assert FedMD().loss(fit, batch).item() == pytest.approx(0.75)


def test_rounding_is_not_digested():
    fit, logits = (
        Fit(None, lambda images: images, {}, training=Training("digest")),
        torch.zeros(1, 2, requires_grad=True),
    )
    loss = FedMD().loss(fit, Batch(logits, torch.tensor([[5e-6, 0.5]]), torch.arange(1)))
    loss.backward()
    assert loss.item() == 0.25
    assert logits.grad.tolist() == [[0.0, -0.5]]


def test_a_site_that_says_what_all_say_has_nothing_to_digest(tmp_path):
    sites = {"site-1": make_sites()["site-1"]}
    ours, plain = (
        run(tmp_path / str(epochs), {"digest_epochs": epochs}, task=make_task("plain"), sites=sites, rounds=1)
        for epochs in (3, 0)
    )
    models = [result.models["site-1"]["personal"].tensors for result in (ours, plain)]
    assert all(torch.equal(models[0][name], tensor) for name, tensor in models[1].items())


# ---- the first trainings, the digest and the revisit, by hand


def test_images_are_drawn_anew_in_each_round_and_alike_for_all_sites(tmp_path):
    run(tmp_path, {"align": 5}, rounds=2)
    rows = [orders["site-1"].tensors["rows"] for orders in seen]
    assert all(
        torch.equal(order.tensors["rows"], rows[at]) for at, orders in enumerate(seen) for order in orders.values()
    )
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert len(rows[0].unique()) == 5
    assert seen[1]["site-1"].tensors["consensus"].shape == (5, 3)


# ---- who has what


def test_public_images_are_sent_once_and_anew_to_who_was_missing(tmp_path):
    run(tmp_path, absent=lambda site, step: site == "site-2" and step == 1)
    brought = [sorted(name for name, order in orders.items() if "public/images" in order.tensors) for orders in seen]
    assert brought == [["site-1", "site-2", "site-3"], [], ["site-2"], [], [], []]
    assert sorted(seen[1]) == ["site-1", "site-3"], "who did not score has nothing to digest"
    assert sorted(seen[3]) == ["site-1", "site-2", "site-3"]
    assert not states(tmp_path)[SERVER], "the server keeps nothing"


def test_a_site_without_the_public_images_says_so():
    site = Site("a", 1, State(), make_task(), Settings(rounds=1))
    with refused(RefusedError, "lost_public_images", site="a"):
        public_part(site)
