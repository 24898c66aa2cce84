"""FedKPer in whole runs, against plain loops that share no code with it and against what it must become (O-KP-3)."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Privacy
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, SmallNet, bits, make_site, make_task
from medfl.utils.rng import make_generator, seeded_generators
from medfl.utils.wire import tensors_equal
from medfl_methods.fedkper import FedKPer

REGISTRY = load_plugins()

# ---- networks and sites


class Whimsical(nn.Module):
    """Batch norm and dropout: it answers otherwise while it trains."""

    def __init__(self):
        super().__init__()
        self.inner, self.drop = SmallNet(), nn.Dropout(0.4)

    def forward(self, images):
        return self.drop(self.inner(images))


class Stubborn(nn.Module):
    """It learns, but says class 2 to everything."""

    def __init__(self):
        super().__init__()
        self.inner = SmallNet(norm=False)

    def forward(self, images):
        return self.inner(images) + 1000 * F.one_hot(torch.tensor(2), CLASSES)


def task_of(kind):
    return Task({"it": kind}, "it", nn.CrossEntropyLoss(), lambda p: torch.optim.SGD(p, 0.1, 0.9), Multiclass(CLASSES))


def unlike_sites():
    """Two classes, one class, all classes."""
    skewed = {"site-1": [0] * 15 + [1] * 6, "site-2": [1] * 13, "site-3": [0, 1, 2, 2, 1, 0, 0, 2]}
    return {name: make_site(len(labels), name, torch.tensor(labels)) for name, labels in skewed.items()}


# ---- against plain loops


def plain_site(model, images, labels, key, clip):
    """One round at a site, with its score: another teacher for each batch, a clip and an entropy by hand."""
    torch.set_num_threads(1)  # as a run does
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(model.train().parameters(), 0.1, 0.9)
    parameters = list(model.parameters())
    for rows in torch.randperm(len(labels), generator=make_generator(7, *key, "batches")).split(5):
        if len(rows) > 1:
            x, y = images[rows], labels[rows]
            q_g = teacher(x).softmax(1).detach()
            z_k = model(x)
            trust = min(10.0, 1 / -q_g[torch.arange(len(y)), y].log().mean().item())
            kl = (q_g * (q_g.log() - z_k.log_softmax(1))).sum(1).mean()
            gradient = torch.autograd.grad(F.cross_entropy(z_k, y) + trust * kl, parameters)
            norm = math.sqrt(sum(part.square().sum().item() for part in gradient))
            for parameter, part in zip(parameters, gradient, strict=True):
                parameter.grad = part * min(1, clip / norm)
            optimizer.step()
    accuracy = (model.eval()(images).argmax(1) == labels).double().mean().item()
    shares = labels.bincount(minlength=CLASSES).double() / len(labels)
    entropy = torch.distributions.Categorical(shares).entropy().item() / math.log(CLASSES)
    return model.state_dict(), accuracy * (1e-12 + max(entropy, 0))


@pytest.mark.parametrize("kind", [SmallNet, Whimsical])
def test_fedkper_is_a_plain_loop(tmp_path, kind):
    clip, task, sites = 0.8, task_of(kind), unlike_sites()
    state = task.initial(7)
    for round_ in (1, 2):
        trained = {}
        for name, data in sites.items():
            model = kind()
            model.load_state_dict(state)
            with seeded_generators(7, name, round_, "global"):
                trained[name] = plain_site(model, data.train.images, data.train.class_labels, (name, round_), clip)
        total = sum(score for _, score in trained.values())
        state = {
            key: sum(score / total * model[key].double() for model, score in trained.values()).float()
            if tensor.is_floating_point()
            else max(model[key] for model, _ in trained.values())
            for key, tensor in state.items()
        }
    result = Case(REGISTRY, "fedkper", {"gradient_clip": clip}).run(tmp_path, task=task, sites=sites, rounds=2)
    for key, tensor in result.outcome.models["global"].tensors.items():
        torch.testing.assert_close(tensor, state[key], atol=2e-6, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


SEEN = []


class Watched(FedKPer):
    """Notes what every batch is taught, beside what the received model says of its images."""

    def before_fit(self, fit):
        before = {name: tensor.clone() for name, tensor in fit.model.state_dict().items()}
        fit.extra["received"] = copy.deepcopy(fit.model)
        super().before_fit(fit)
        assert tensors_equal(fit.model.state_dict(), before)  # no running statistics have moved
        fit.extra["first"] = fit.extra["teacher"].logits.clone()

    def loss(self, fit, batch):
        assert all(module.training for module in fit.model.modules())
        assert torch.equal(fit.site.train.class_labels[batch.rows], batch.targets)
        says = fit.extra["received"].eval()(batch.images)
        SEEN.append((fit.extra["teacher"](batch), says.detach(), batch))
        return super().loss(fit, batch)

    def after_fit(self, fit):
        super().after_fit(fit)
        assert torch.equal(fit.extra["first"], fit.extra["teacher"].logits)


@pytest.mark.parametrize("balance", ["none", "loss", "sampling"])
def test_a_batch_is_taught_by_the_received_model_in_evaluation_mode(tmp_path, balance):
    SEEN.clear()
    task, sites = task_of(Whimsical), unlike_sites()
    Case(REGISTRY, "fedkper").run(tmp_path, task=task, sites=sites, make_method=Watched, balance=balance, rounds=2)
    assert len(SEEN) == 2 * (4 + 3 + 2)
    for taught_, says, batch in SEEN:
        torch.testing.assert_close(taught_, says, atol=1e-5, rtol=1e-5)
        assert not batch.rows.is_cuda
    repeats = any(len(batch.rows.unique()) < len(batch.rows) for _, _, batch in SEEN)
    assert repeats == (balance == "sampling")


# ---- against other settings and methods


def runs(tmp_path, *cases, **options):
    """The models of several settings of one federation; a case is a method's name and its settings."""
    made = [Case(REGISTRY, name, args) for name, args in cases]
    return [bits(case.run(tmp_path / str(index), **options)) for index, case in enumerate(made)]


def assert_close(left, right):
    for key, tensors in left.items():
        torch.testing.assert_close(tensors, right[key], atol=1e-6, rtol=1e-5)


def apart(left, right):
    return max((left[key][name] - tensor).abs().max() for key in left for name, tensor in right[key].items())


def test_kp_3_equal_scores_are_uniform_fedavg(tmp_path):
    sites = {f"site-{n}": make_site(3 * n, str(n), torch.arange(3).repeat(n)) for n in (2, 3, 6)}
    cases = (
        ("fedkper", {"gradient_clip": None, "distill": False, "score": "div"}),
        ("fedavg", {"weights": "uniform"}),
        ("fedavg", {}),
    )
    alike, uniform, by_size = runs(tmp_path, *cases, sites=sites)
    assert_close(alike, uniform)
    assert apart(by_size, uniform) > 1e-3


@pytest.mark.parametrize("distill", [True, False])
def test_kp_3_if_all_scores_are_zero_sites_weigh_by_size(tmp_path, caplog, distill):
    sites = {name: data for name, data in unlike_sites().items() if name != "site-3"}  # none has the class that is said
    cases = [("fedkper", {"distill": distill, "aggregation": kind}) for kind in ("size", "score")]
    by_size, by_score = runs(tmp_path, *cases, sites=sites, task=task_of(Stubborn), rounds=2)
    assert caplog.text.count("Aggregation weights are not usable") == 2
    assert all(tensors_equal(by_score[key], by_size[key]) for key in by_size)
    assert all(tensor.isfinite().all() for tensor in by_score["server/global"].values())
    start = task_of(Stubborn).initial(7)
    assert apart({"": by_score["server/global"]}, {"": start}) > 1e-3


def test_under_a_privacy_setting_scores_stay_and_weights_are_uniform(tmp_path):
    task, privacy = make_task("plain"), Privacy(epsilon=5.0, clip=2.5)
    result = Case(REGISTRY, "fedkper").run(tmp_path, task=task, sites=unlike_sites(), rounds=1, privacy=privacy)
    replies = [Store(tmp_path / "state" / name).latest() for name in unlike_sites()]
    assert [reply.meta["reply"] for reply in replies] == [{}, {}, {}]
    start = task.initial(7)
    for name, tensor in result.outcome.models["global"].tensors.items():
        mean = sum(reply.tensors["reply/model/" + name].double() for reply in replies) / 3
        torch.testing.assert_close(tensor, (start[name] + mean).float())


@pytest.mark.parametrize("name", ["centralized", "local", "fedavg", "fedprox", "fedbn", "fedkper"])
def test_every_method_clips_the_gradient(tmp_path, name):
    """One step at one site moves the weights by learning rate times bound, for any gradient."""
    options = {"sites": {"only": make_site(9, "x")}, "task": make_task("plain"), "rounds": 1, "steps": 1}
    results = runs(tmp_path, *[(name, {"gradient_clip": clip}) for clip in (0.25, 1e9, None)], **options)
    clipped, huge, free = (next(iter(models.values())) for models in results)
    start = make_task("plain").initial(7)
    moved = [math.sqrt(sum((t[k] - start[k]).square().sum().item() for k in start)) for t in (clipped, free)]
    assert moved[0] == pytest.approx(0.1 * 0.25, rel=1e-4)
    assert moved[1] > 2 * moved[0]
    assert tensors_equal(huge, free)
