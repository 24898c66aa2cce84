"""FedMD: the mean of what sites say, how it is digested, and who gets the public images when."""

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.contract import Order, Site, State
from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.errors import RefusedError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_data, make_sites, make_task, states
from medfl.toolkit.fit import Fit
from medfl.toolkit.trainings import Training
from medfl.training.loop import Batch
from medfl.types import SERVER
from medfl_methods.fedmd import FedMD, consensus, public_part

REGISTRY = load_plugins()
QUICK = {"public_epochs": 1, "private_epochs": 1}
IMAGES, LABELS = make_data(12, "public").batch(torch.arange(12))


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


def model_of(tensors):
    model = make_task("plain").build()
    model.load_state_dict(tensors)
    return model


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


def momentum_free_step(tensors, images, labels):
    """One full-batch step of SGD; the first one of a training has no momentum yet."""
    model = model_of(tensors)
    grads = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
    return {name: tensors[name] - 0.1 * grad for name, grad in zip(tensors, grads, strict=True)}


def test_a_round_is_that_of_the_paper(tmp_path):
    """With full batches: public images, own images, scores; then Adam towards the mean, and own images again."""
    sites, task = make_sites(), make_task("plain")
    result = run(tmp_path, task=task, rounds=1, batch_size=25)
    models, own = {}, {site: splits.train.batch(torch.arange(len(splits.train))) for site, splits in sites.items()}
    for site in sites:
        models[site] = momentum_free_step(momentum_free_step(task.initial(7), IMAGES, LABELS), *own[site])
    with torch.no_grad():
        mean = sum(model_of(tensors)(IMAGES) for tensors in models.values()) / 3
    rows, sent = seen[1]["site-1"].tensors["rows"], seen[1]["site-1"].tensors["consensus"]
    torch.testing.assert_close(sent, mean[rows], atol=1e-5, rtol=1e-5)
    for site in sites:
        model = model_of(models[site])
        adam = torch.optim.Adam(model.parameters(), lr=1e-3)
        (model(IMAGES) - mean).abs().mean().backward()
        adam.step()
        expected = momentum_free_step({n: t.detach() for n, t in model.named_parameters()}, *own[site])
        for name, tensor in expected.items():
            ours = result.models[site]["personal"].tensors[name]
            torch.testing.assert_close(ours, tensor, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_the_digest_brings_sites_nearer_to_what_all_say(tmp_path):
    spreads = []
    for epochs in (0, 30):
        run(tmp_path / str(epochs), {"digest_epochs": epochs, "digest_lr": 0.01}, rounds=1, epochs=0)
        aim = seen[1]["site-1"].tensors
        held = states(tmp_path / str(epochs))
        with torch.no_grad():
            answers = [make_task().load(held[site]).eval()(IMAGES[aim["rows"]]) for site in make_sites()]
        spreads.append(sum((each - aim["consensus"]).abs().mean() for each in answers).item())
    assert spreads[1] < 0.7 * spreads[0]


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


def test_a_site_that_is_away_keeps_its_model(tmp_path):
    options = {"rounds": 2, "absent": lambda site, step: site == "site-2" and step > 2}
    first, both = run(tmp_path / "first", rounds=1), run(tmp_path / "both", **options)
    ours, before = (result.models["site-2"]["personal"].tensors for result in (both, first))
    assert all(torch.equal(ours[name], tensor) for name, tensor in before.items())


def test_what_a_site_sends_are_its_scores_alone(tmp_path):
    run(tmp_path, rounds=1)
    replies = [Store(tmp_path / "state" / "site-1").load(step).tensors for step in (1, 2)]
    sent = [{name for name in reply if name.startswith("reply/")} for reply in replies]
    assert sent == [{"reply/scores/logits"}, set()]


def test_a_site_without_the_public_images_says_so():
    site = Site("a", 1, State(), make_task(), Settings(rounds=1))
    with refused(RefusedError, "lost_public_images", site="a"):
        public_part(site)


# ---- what does not go together


def test_balanced_sampling_has_no_part_in_the_digest(tmp_path):
    assert run(tmp_path, rounds=1, balance="sampling").outcome.status == "finished"


def test_a_privacy_setting_and_changing_images_are_refused(tmp_path):
    privacy = {"unit": "site", "epsilon": 5.0, "clip": 1.0, "delta": 0.1}
    with refused(SettingsError, "method_not_supported", method="fedmd", sends=["'scores/' (statistic)"]):
        run(tmp_path / "private", task=make_task("plain"), privacy=privacy)

    class Changing(TensorData):
        """Public images that change whenever they are looked at."""

        def visits(self, batches, stream):
            raise AssertionError

    with refused(SettingsError, "data_not_supported", method="fedmd"):
        run(tmp_path / "changing", public=Changing(IMAGES, LABELS))
