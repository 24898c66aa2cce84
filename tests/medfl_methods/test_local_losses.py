"""Tests of methods that add a term to the local loss: values by hand, and gradients that must not flow."""

import dataclasses
import math

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn import functional as F

from medfl.contract import Site, State
from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, bits, make_task, states
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import contrastive
from medfl.training.loop import Batch
from medfl.utils.wire import select, tensors_equal
from medfl_methods.feddr_plus import dot_regression, feature_distillation, simplex
from medfl_methods.fedntd import not_true_distillation
from medfl_methods.fedrod import FedRoD
from medfl_methods.fenda import Fenda
from medfl_methods.gpfl import GPFL, ConditionedHead, angle_loss, magnitude_loss
from medfl_methods.perfcl import PerFCL

REGISTRY = load_plugins()


# ---- FedNTD

STUDENT = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
TEACHER = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
TRUTH = torch.tensor([0, 2])


def by_hand_fedntd(student, teacher, tau):
    """Return the KL divergence of two softmax outputs."""
    q, p = ([math.exp(x / tau) for x in logits] for logits in (teacher, student))
    q, p = ([x / sum(each) for x in each] for each in (q, p))
    return tau**2 * sum(a * math.log(a / b) for a, b in zip(q, p, strict=True))


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_fedntd_leaves_out_the_true_class(tau):
    expected = (by_hand_fedntd([0, 2], [0, 1], tau) + by_hand_fedntd([0, 0], [0, 1], tau)) / 2
    value = not_true_distillation(STUDENT, TEACHER, TRUTH, tau)
    assert value.item() == pytest.approx(expected, abs=1e-12)
    masked = [logits.scatter(1, TRUTH[:, None], -math.inf) for logits in (STUDENT, TEACHER)]
    terms = F.kl_div((masked[0] / tau).log_softmax(1), (masked[1] / tau).softmax(1), reduction="none").nan_to_num(0)
    assert value.item() == pytest.approx(tau**2 * terms.sum().item() / 2, abs=1e-12)
    zeroed = [logits.scatter(1, TRUTH[:, None], 0.0) for logits in (STUDENT, TEACHER)]
    wrong = F.kl_div((zeroed[0] / tau).log_softmax(1), (zeroed[1] / tau).softmax(1), reduction="batchmean") * tau**2
    assert abs(value.item() - wrong.item()) > 1e-4


def test_fedntd_logit_of_the_true_class_has_no_effect():
    student = STUDENT.clone().requires_grad_()
    value = not_true_distillation(student, TEACHER, TRUTH)
    value.backward()
    assert torch.equal(student.grad.gather(1, TRUTH[:, None]), torch.zeros(2, 1, dtype=torch.float64))
    assert student.grad.abs().sum() > 0
    other = [logits.scatter_add(1, TRUTH[:, None], torch.full((2, 1), 7.0).double()) for logits in (STUDENT, TEACHER)]
    assert not_true_distillation(*other, TRUTH).item() == value.item()


def test_fedntd_two_alternatives_and_unknown_classes_add_nothing():
    two = torch.randn(2, 3, 2, dtype=torch.float64)
    assert not_true_distillation(two[0], two[1], torch.tensor([0, 1, 1])).item() == 0
    voxels = torch.randn(2, 2, 4, 3, 3, dtype=torch.float64)
    truth = torch.randint(4, (2, 3, 3))
    each = [not_true_distillation(voxels[0][i : i + 1], voxels[1][i : i + 1], truth[i : i + 1]) for i in (0, 1)]
    assert not_true_distillation(*voxels, truth).item() == pytest.approx(sum(each).item() / 2)
    assert not_true_distillation(*voxels, torch.full_like(truth, -1)).item() == 0


# ---- FedDr+


def run_feddr_plus(folder, args=None, **options):
    return Case(REGISTRY, "feddr_plus", args or {}).run(folder, **options)


def drawn_feddr_plus(classes, features):
    with torch.random.fork_rng():
        return simplex(classes, features)


@pytest.mark.parametrize(("classes", "features"), [(3, 2), (3, 24), (2, 1), (10, 9)])
def test_feddr_plus_rows_have_length_1_equal_angles_and_sum_0(classes, features):
    rows = drawn_feddr_plus(classes, features)
    assert rows.shape == (classes, features)
    expected = classes / (classes - 1) * (torch.eye(classes) - 1 / classes)
    torch.testing.assert_close(rows @ rows.T, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.sum(0), torch.zeros(features), atol=1e-6, rtol=0)


def test_feddr_plus_too_few_features_are_refused():
    with refused(SettingsError, "too_few_features", classes=3, minimum=2, found=1):
        drawn_feddr_plus(3, 1)


def test_feddr_plus_terms_equal_the_formulas():
    features = torch.tensor([[1.0, 1.0]])
    assert dot_regression(features, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(0.0428932188, abs=1e-8)
    received = torch.tensor([[1.0, 3.0]])
    assert feature_distillation(features, received, "l2").item() == 2.0
    assert feature_distillation(features, received, "cos").item() == pytest.approx(1 - 4 / 20**0.5)


@pytest.mark.parametrize("args", [{}, {"fd": "cos"}, {"ce_mode": "ce"}, {"fd_weight": 0.0}])
def test_feddr_plus_head_never_changes(tmp_path, args):
    result = run_feddr_plus(tmp_path, args)
    global_, begun = (
        result.outcome.models["global"].tensors,
        run_feddr_plus(tmp_path / "begun", args, rounds=1, epochs=0),
    )
    for name in ("head.weight", "head.bias"):
        assert torch.equal(global_[name], begun.outcome.models["global"].tensors[name])
    assert not torch.equal(global_["body.0.weight"], make_task().initial(7)["body.0.weight"])


def test_feddr_plus_noise_does_not_change_the_head(tmp_path):
    pytest.importorskip("opacus")
    privacy = {"unit": "site", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    head = (
        run_feddr_plus(tmp_path, task=make_task("plain"), privacy=privacy)
        .outcome.models["global"]
        .tensors["head.weight"]
    )
    torch.testing.assert_close(head @ head.T, 1.5 * torch.eye(3) - 0.5, atol=1e-6, rtol=0)


# ---- FedRoD


class PassThroughNet(nn.Module):
    """Network whose outputs are its three inputs."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Flatten(), nn.Linear(3, 3)
        nn.init.eye_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images):
        return self.head(self.body(images))


def losses_fedrod(z, own, counts, gamma=1.0):
    """Return the loss of one image of class 0 with the given logits, and its gradient by the global head's bias."""
    task = dataclasses.replace(make_task(), networks={"given": PassThroughNet}, network="given")
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    site = Site("a", 1, State(), task, Settings(rounds=1), train=TensorData(torch.zeros(len(labels), 1, 1, 3), labels))
    fit, method = Fit(site, PassThroughNet(), {}), FedRoD(gamma=gamma)
    method.before_fit(fit)
    with torch.no_grad():
        fit.extra["own"].bias.copy_(torch.tensor(own))
    loss = method.loss(fit, Batch(torch.tensor([[[z]]]), torch.tensor([0]), torch.tensor([0])))
    loss.backward()
    return loss.item(), fit.model.head.bias.grad, fit.extra["own"].bias.grad


def test_fedrod_losses_equal_the_formulas():
    plain = losses_fedrod([2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [10, 0, 5], gamma=0.0)[0]
    assert plain == pytest.approx(2 * 0.4076059644, abs=1e-6)
    loss, common, own = losses_fedrod([2.0, 0.0, 1.0], [0.0, 0.5, 0.0], [10, 0, 5])
    assert loss == pytest.approx(0.1688476235 + 0.4643687841, abs=1e-6)
    assert common[1] == 0  # the class that the site lacks has left the common model's softmax,
    assert own[1] > 0  # but not that of the personal one
    softmax = torch.tensor([2.0, 0.5, 1.0]).softmax(0)
    torch.testing.assert_close(own, softmax - torch.tensor([1.0, 0.0, 0.0]))


def test_fedrod_global_model_learns_nothing_at_a_site_with_one_class():
    loss, common, _ = losses_fedrod([2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [4, 0, 0])
    assert loss == pytest.approx(0.4076059644, abs=1e-6)
    assert not common.any()


# ---- MOON


def run_moon(folder, args=None, **options):
    return Case(REGISTRY, "moon", {"proj_dim": 4} | (args or {})).run(folder, **options)


def vector_with_cosine(cosine):
    """Return a vector with the given cosine to (1, 0) and another length."""
    return torch.tensor([[cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64) * 3


@pytest.mark.parametrize(("near", "far", "tau"), [(0.75, 0.3, 0.5), (0.1, 0.7, 0.5), (0.2, 0.9, 1.0)])
def test_moon_contrastive_loss_equals_the_formula(near, far, tau):
    z = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    a, b = math.exp(near / tau), math.exp(far / tau)
    value = contrastive(z, vector_with_cosine(near), vector_with_cosine(far), tau).item()
    assert value == pytest.approx(-math.log(a / (a + b)), abs=1e-9)
    if (near, far) == (0.75, 0.3):
        assert value == pytest.approx(0.3411538747, abs=1e-9)


def test_moon_equal_models_give_ln_2_without_a_gradient():
    z, other = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7)
    value = contrastive(z, other, other.clone(), 0.5)
    assert value.item() == pytest.approx(math.log(2), abs=1e-6)
    assert torch.autograd.grad(value, z)[0].abs().max() < 1e-7


def test_moon_no_gradient_flows_into_the_fixed_models():
    tensors = [torch.randn(3, 4, requires_grad=True) for _ in range(3)]
    contrastive(*tensors, 0.5).backward()
    assert tensors[0].grad is not None
    assert tensors[1].grad is tensors[2].grad is None


def test_moon_fixed_models_do_not_change_the_statistics(tmp_path):
    """At learning rate 0, batch norm sees the same batches with and without the term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (
        run_moon(tmp_path / str(mu), {"mu": mu}, task=still, rounds=2).outcome.models["global"].tensors
        for mu in (1.0, 0.0)
    )
    assert tensors_equal(ours, plain)


# ---- FENDA-FL and PerFCL


def run_fenda(folder, args=None, name="fenda", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2} | options))


class ConstantWeights:
    """Stub of pre-trained weights."""

    def builder(self, build, name):
        def started():
            model = build()
            model.load_state_dict(model.state_dict() | self.body_of(model))
            return model

        return started

    def body_of(self, model):
        return {name: torch.ones_like(t) for name, t in model.state_dict().items() if name.startswith("body.")}


def test_fenda_pretrained_weights_initialise_both_bodies():
    task = Fenda().task_of(make_task("plain").with_start(ConstantWeights()))
    begun = task.initial(7)
    assert all(bool((begun[name] == 1).all()) == name.startswith(("own.", "body.")) for name in begun)


def test_fenda_cosine_term_equals_the_formula():
    own, common = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[-3.0, 0.0], [1.0, 1.0]])
    fit = Fit(None, torch.nn.Identity(), {})
    assert Fenda(cosine=2.0).regulariser(fit, None, own, common).item() == pytest.approx(2 * (1 + 0.5**0.5) / 2)
    assert Fenda().regulariser(fit, None, own, common) == 0


def test_perfcl_contrastive_terms_equal_the_formulas():
    """The received body has a cosine of 0.75 to the global and of 0.1 to the personal body, and so on."""
    common, own = torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    received = torch.tensor([[0.75, 0.1, (1 - 0.75**2 - 0.1**2) ** 0.5]], dtype=torch.float64)
    previous = torch.tensor([[0.3, (1 - 0.3**2) ** 0.5, 0.0]], dtype=torch.float64)
    before = torch.tensor([[(1 - 0.7**2) ** 0.5, 0.7, 0.0]], dtype=torch.float64)
    pad = lambda tensor: torch.nn.functional.pad(tensor, (0, 1))  # noqa: E731
    others = [lambda batch, tensor=tensor: tensor for tensor in (received, previous, before)]
    values = []
    for mu, gamma in ((1.0, 0.0), (0.0, 1.0), (2.0, 3.0)):
        fit = Fit(None, torch.nn.Identity(), {}, {"others": others})
        values.append(PerFCL(mu=mu, gamma=gamma).regulariser(fit, None, pad(own), pad(common)).item())
    near, far = 0.3411538747, 0.2632824673
    assert values == pytest.approx([near, far, 2 * near + 3 * far], abs=1e-9)


def test_perfcl_fixed_bodies_do_not_change_the_statistics(tmp_path):
    """At learning rate 0, batch norm sees the same batches with and without the term."""
    still = dataclasses.replace(make_task(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    ours, plain = (bits(run_fenda(tmp_path / name, name=name, task=still)) for name in ("perfcl", "fenda"))
    assert all(tensors_equal(ours[name], plain[name]) for name in plain)


def test_perfcl_previous_body_is_that_of_the_last_participation(tmp_path):
    run_fenda(tmp_path, name="perfcl", unavailable=lambda site, step: site == "site-1" and step == 2)
    first, held = PerFCL().task_of(make_task()).initial(7), states(tmp_path)
    update = select(Store(tmp_path / "state" / "site-1").latest().tensors, "reply/model/")
    previous = select(held["site-1"], "kept/previous/")
    assert previous.keys() == update.keys()
    for name, tensor in previous.items():
        torch.testing.assert_close(tensor, first[name] + update[name])


# ---- GPFL

V = torch.tensor([[1.0, 0.0], [0.0, 2.0]])


@pytest.mark.parametrize(("label", "loss"), [(0, 0.7981388694), (1, 0.5981388694)])
def test_gpfl_angle_loss_is_the_cross_entropy_of_cosines(label, loss):
    assert angle_loss(torch.tensor([[3.0, 4.0]]), V, torch.tensor([label])).item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("kind", "loss"), [("batch", 4.5825756950), ("mean_square", 10.5)])
def test_gpfl_magnitude_loss_equals_the_formulas(kind, loss):
    features, labels = torch.tensor([[3.0, 4.0], [1.0, 2.0]]), torch.tensor([0, 1])
    assert magnitude_loss(features, V[labels], kind).item() == pytest.approx(loss, abs=1e-6)


def fit_of(args=None, labels=(0, 1, 1, 1), network="plain"):
    """Return a training at its start and a batch of all images; the embeddings are V in the first two features."""
    task = GPFL(**(args or {})).task_of(make_task(network))
    images = torch.randn(len(labels), 1, 6, 6, generator=torch.Generator().manual_seed(1))
    data = TensorData(images, torch.tensor(labels))
    fit, method = Fit(Site("a", 1, State(), task, Settings(rounds=1), train=data), task.build(), {}), GPFL(**args or {})
    with torch.no_grad():
        fit.model.head.embeddings.copy_(F.pad(V, (0, 22, 0, 1)))
    method.before_fit(fit)
    return method, fit, Batch(images, torch.tensor(labels), torch.arange(len(labels)))


def test_gpfl_conditions_are_means_of_the_received_embeddings():
    _, fit, _ = fit_of()
    assert fit.model.head.class_shares.tolist() == [0.25, 0.75, 0.0]
    assert fit.extra["own"][:2].tolist() == [0.25, 1.5]
    assert fit.extra["common"][:2].tolist() == pytest.approx([1 / 3, 2 / 3])
    two = ConditionedHead(2, 2, torch.nn.Identity())
    assert (two.class_shares @ V).tolist() == [0.5, 1.0]  # of a site that has not trained yet


def test_gpfl_loss_is_the_sum_of_its_terms_with_fixed_target_embeddings():
    method, fit, batch = fit_of({"lam": 0.3, "mu": 0.2})
    head = fit.model.head
    with torch.no_grad():
        head.embeddings += 1  # a step of the optimiser
        features = fit.model.body(batch.images)
        own, common = (head.valve(features, fit.extra[name]) for name in ("own", "common"))
        linear, relu, norm = head.scale
        scale = norm(relu(linear(fit.extra["own"])))
        linear, relu, norm = head.shift
        torch.testing.assert_close(own, ((scale + 1) * features + norm(relu(linear(fit.extra["own"])))).clamp(min=0))
        expected = F.cross_entropy(head.own(own), batch.targets)
        cosines = torch.stack([F.cosine_similarity(common, v.expand_as(common)) for v in head.embeddings], 1)
        expected = expected + F.cross_entropy(cosines, batch.targets)
        expected = expected + 0.3 * (common - F.pad(V, (0, 22))[batch.targets]).square().sum().sqrt()
        decayed = [head.embeddings, *head.scale.parameters(), *head.shift.parameters()]
        expected = expected + 0.1 * sum(p.square().sum() for p in decayed)
    torch.testing.assert_close(method.loss(fit, batch), expected)
