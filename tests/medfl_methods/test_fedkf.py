"""FedKF: the generator's loss, the teacher of all sites, and what a generator leaves alone."""

import pytest
import torch
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.networks.norms import evaluating
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl_methods.fedkf.generator import Generator, generator_loss, imbalance

REGISTRY = load_plugins()
SMALL = {"noise_dim": 8, "width": 4}


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedkf", SMALL | (args or {})).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def test_imbalance_is_0_for_all_classes_alike_and_1_for_a_single_class():
    assert float(imbalance(torch.full((5, 4), 0.25))) == pytest.approx(0, abs=1e-6)
    assert float(imbalance(torch.eye(4))) == pytest.approx(0, abs=1e-6), "each image sure, all classes alike"
    single = torch.tensor([[0.0, 1.0, 0.0]] * 3, requires_grad=True)
    value = imbalance(single)
    assert float(value.detach()) == 1.0  # 0 log 0 is 0


def test_the_generators_loss_is_that_of_the_formula():
    logits, features = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.tensor([[1.0, -3.0], [0.0, 2.0]])
    p = logits.softmax(1).mean(0)
    expected = 1 + (p * p.log()).sum() / torch.tensor(3.0).log()
    expected = expected + 0.1 * F.cross_entropy(logits, torch.tensor([0, 1])) - 0.2 * 1.5
    torch.testing.assert_close(generator_loss(logits, features, 0.1, 0.2), expected)


@pytest.mark.parametrize("shape", [(1, 6, 6), (3, 9, 5), (1, 4, 5, 6)])
def test_images_have_the_shape_of_the_task(shape):
    images = Generator(shape, 7, 3)(torch.randn(2, 7))
    assert images.shape == (2, *shape)
    assert float(images.mean().detach()) == pytest.approx(0, abs=1e-5)
    assert Generator(shape, 7, 3)(torch.randn(1, 7)).shape == (1, *shape)


def test_the_teacher_is_the_mean_of_all_last_models_and_the_start_that_of_the_last_participants(tmp_path):
    """site-1 is away in round 2: the teacher of round 3 has its model of round 1."""
    sites, args = make_sites(), {"gamma": 0.5}
    seen, held = {}, []

    class Watched(REGISTRY.method_class("fedkf")):
        def extra_down(self, server):
            tensors = super().extra_down(server)
            seen[server.round] = {name.removeprefix("teacher/"): t.clone() for name, t in tensors.items()}
            held.append({name: t.clone() for name, t in server.state.tensors.items()})
            return tensors

    Case(REGISTRY, "fedkf", SMALL | args).run(
        tmp_path,
        sites=sites,
        make_method=lambda: Watched(**SMALL, **args),
        absent=lambda site, step: site == "site-1" and step == 2,
    )
    assert seen[1] == {}
    held = held[1:]  # after rounds 1 and 2
    names = list(make_task().initial(7))
    for name in names:
        torch.testing.assert_close(seen[2][name], held[0][name], atol=1e-6, rtol=1e-5)
        assert torch.equal(held[1][f"kept/last/site-1/{name}"], held[0][f"kept/last/site-1/{name}"])
    sizes = {"site-1": 21, "site-2": 13, "site-3": 8}
    for name in names:
        if not held[1][name].is_floating_point():
            continue
        lasts = {site: held[1][f"kept/last/{site}/{name}"].double() for site in sizes}
        teacher = sum(n * lasts[site] for site, n in sizes.items()) / 42
        start = (13 * lasts["site-2"] + 8 * lasts["site-3"]) / 21
        torch.testing.assert_close(seen[3][name].double(), teacher, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(held[1][name].double(), start, atol=1e-6, rtol=1e-5)


def test_the_first_round_is_that_of_fedavg(tmp_path):
    mine = run(tmp_path / "mine", rounds=1).outcome.models["global"].tensors
    theirs = Case(REGISTRY, "fedavg").run(tmp_path / "fedavg", rounds=1).outcome.models["global"].tensors
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("g_use_kl", [False, True])
def test_generators_are_trained_kept_and_never_sent(tmp_path, g_use_kl):
    run(tmp_path, {"g_use_kl": g_use_kl}, rounds=2)
    before = states(tmp_path, "site-1")["kept/generator/linear.weight"].clone()
    run(tmp_path, {"g_use_kl": g_use_kl}, rounds=3)
    after = states(tmp_path, "site-1")
    assert not torch.equal(before, after["kept/generator/linear.weight"])
    assert (
        float(after["kept/generator_optimizer/linear.weight/step"]) == 8
    )  # two rounds of 21 images by 5, without the last
    store = Store(tmp_path / "state" / "site-1")
    sent = [name for step in store.steps() for name in store.load(step).tensors if name.startswith("reply/")]
    assert sent
    assert all(name.startswith("reply/model/") for name in sent)


def test_modes_come_back_as_they_were():
    model = make_task().build().train()
    model.body[1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert not model.body[1].training
