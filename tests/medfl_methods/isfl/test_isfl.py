"""ISFL: its formula by hand, gradients against plain autograd, and whole runs against a plain loop (O-B11)."""

import copy
import dataclasses
import math

import pytest
import torch
from pfedcdp_toys import build, mean_change
from torch import nn
from torch.nn import functional as F

from medfl.contract import Server, State
from medfl.engine.store import Store
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_data, make_site, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal
from medfl_methods.isfl.importance_sampling import class_lipschitz, draw_probe_rows, sampling_distribution
from medfl_methods.isfl.method import ISFL

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "isfl", args or {}).run(folder, **({"rounds": 2, "evaluate_every": 9} | options))


def distribution(p, local, values, sigma=0.02):
    p, local, values = torch.tensor([p, local, values], dtype=torch.float64)
    q, weights, gamma = sampling_distribution(p, local, values, sigma)
    return q.tolist(), weights.tolist(), gamma


# ---- the formula (O-B11; derived by hand, the paper prints no number)


def test_b_11_two_classes():
    """L^2 = (1, 4): CL = (0.6, -0.6), alpha = (1, -1) / sqrt 2; class 2 decreases from 0.5 to 0.02 times 0.2."""
    q, weights, gamma = distribution([0.5, 0.5], [0.8, 0.2], [1.0, 2.0])
    assert q == pytest.approx([0.996, 0.004], abs=1e-7)
    assert weights == pytest.approx([1.245, 0.02], abs=1e-7)
    assert gamma == pytest.approx(0.496 * math.sqrt(2), abs=1e-7)


def test_b_11_three_classes():
    """L^2 = (1, 1, 4): CL = (0.5, 0.5, -1), alpha = CL / sqrt 1.5; the others share the loss of class 3."""
    q, weights, gamma = distribution([1 / 3] * 3, [0.5, 0.3, 0.2], [1.0, 1.0, 2.0])
    assert q == pytest.approx([0.498, 0.498, 0.004], abs=1e-7)
    assert weights == pytest.approx([0.996, 1.66, 0.02], abs=1e-7)
    assert gamma == pytest.approx((1 / 3 - 0.004) * math.sqrt(1.5), abs=1e-7)


def test_of_two_classes_any_difference_takes_one_to_its_bound(caplog):
    """The direction is always the same for two classes, so a run with two classes warns."""
    q, _, _ = distribution([0.5, 0.5], [0.8, 0.2], [1.0, 1.0 + 1e-9])
    assert q == pytest.approx([0.996, 0.004], abs=1e-7)
    for classes, sigma, warns in ((2, 0.02, True), (2, 0.9, False), (3, 0.02, False)):
        caplog.clear()
        task = dataclasses.replace(make_task(), objective=Multiclass(classes))
        ISFL(sigma=sigma).setup(Server("server", 0, State(), task, Settings(rounds=1)))
        assert ("'isfl' draws one of the classes at only 0.02 of its share" in caplog.text) == warns


def test_a_class_below_its_bound_may_limit_the_step():
    """The target of class 1 is below sigma p_local. The smallest positive candidate is where class 1 reaches it."""
    q, _, gamma = distribution([0.01, 0.99], [0.99, 0.01], [1.0, 2.0], sigma=0.5)
    assert q == pytest.approx([0.495, 0.505], abs=1e-7)
    assert gamma == pytest.approx(0.485 * math.sqrt(2), abs=1e-7)


def test_a_class_below_its_bound_that_would_sink_is_held_there():
    """alpha = (0.5, 0.5, -1) / sqrt 1.5 raises class 1 from 0.05 to its bound of 0.15.

    Class 3 would fall below its bound of 0.2 and is set to it; the sum is 1.3.
    """
    q, weights, gamma = distribution([0.05, 0.85, 0.1], [0.3, 0.3, 0.4], [1.0, 1.0, 2.0], sigma=0.5)
    assert gamma == pytest.approx(0.2 * math.sqrt(1.5), abs=1e-7)
    assert q == pytest.approx([0.15 / 1.3, 0.95 / 1.3, 0.2 / 1.3], abs=1e-7)
    assert weights == pytest.approx([0.5 / 1.3, 0.95 / 0.39, 0.5 / 1.3], abs=1e-7)


@pytest.mark.parametrize(
    ("p", "local", "values"),
    [
        ([0.2, 0.8], [0.7, 0.3], [3.0, 3.0]),  # all equal: no direction
        ([0.2, 0.8], [0.7, 0.3], [0.0, 0.0]),  # no constant is known
        ([0.2, 0.8], [0.7, 0.3], [1.0, math.nan]),
        ([0.2, 0.8], [0.7, 0.3], [1.0, math.inf]),
        ([0.99, 0.01], [0.01, 0.99], [1.0, 2.0]),  # both candidates are negative
    ],
)
def test_without_a_way_to_go_the_target_is_drawn(p, local, values):
    q, weights, gamma = distribution(p, local, values, sigma=0.5)
    assert gamma == 0
    assert q == pytest.approx(p, abs=1e-7)
    assert weights == pytest.approx([p[0] / local[0], p[1] / local[1]], abs=1e-6)


def test_an_absent_class_changes_nothing_for_the_others():
    with_it = distribution([0.25, 0.5, 0.25], [0.8, 0.0, 0.2], [1.0, 9.0, 2.0])
    without = distribution([0.5, 0.5], [0.8, 0.2], [1.0, 2.0])
    for values, expected in zip(with_it[:2], without[:2], strict=True):
        assert values == pytest.approx([expected[0], 0.0, expected[1]], abs=1e-7)
    assert distribution([0.5, 0.5], [0.0, 1.0], [1.0, 2.0])[0] == [0, 1]


def test_it_is_a_distribution_that_moves_with_its_classes_and_has_no_unit():
    generator = torch.Generator().manual_seed(0)
    for sigma in (0.0, 0.02, 0.5, 1.0):
        for _ in range(8):
            p, local, values = torch.rand(3, 6, generator=generator, dtype=torch.float64)
            p, local = p**4 / (p**4).sum(), local**4 / (local**4).sum()
            q, weights, gamma = sampling_distribution(p, local, values, sigma)
            assert float(q.sum()) == pytest.approx(1)
            assert float(q.min()) >= 0
            assert gamma >= 0
            torch.testing.assert_close(weights * local, q)
            order = torch.randperm(6, generator=generator)
            torch.testing.assert_close(sampling_distribution(p[order], local[order], values[order], sigma)[0], q[order])
            torch.testing.assert_close(sampling_distribution(p, local, values * 1e200, sigma)[0], q)


# ---- gradients


def test_of_a_square_the_constant_is_the_largest_curvature():
    """The gradient of (w x)^2 / 2 is x^2 w: it changes by x^2 for each unit of w."""
    model = nn.Linear(1, 1, bias=False)
    before = {"weight": model.weight.detach() + 0.3}
    images = torch.tensor([[1.0], [-3.0], [0.5], [2.0]])
    batches = [(images[:3], torch.tensor([0, 0, 2])), (images[3:], torch.tensor([2]))]
    constants = class_lipschitz(model, lambda z, y: 0.5 * z[:, 0].square().mean(), before, batches, 3)
    assert constants.tolist() == pytest.approx([9, 0, 4], rel=1e-5)


def slopes(model, before, data, rows):
    """Compute the constants image by image, with the trained model's buffers in both gradients."""
    gradients = []
    for state in (before, dict(model.named_parameters())):
        other = copy.deepcopy(model).eval()
        other.load_state_dict(model.state_dict() | state)
        each = []
        for row in rows.tolist():
            loss = F.cross_entropy(other(data.images[row : row + 1]), data.class_labels[row : row + 1])
            each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(other.parameters()))]))
        gradients.append(torch.stack(each))
    moved = torch.cat([(p - before[name]).detach().flatten() for name, p in model.named_parameters()]).norm()
    ratio = (gradients[1] - gradients[0]).norm(dim=1) / moved
    constants = torch.zeros(CLASSES, dtype=torch.float64)
    for row, value in zip(rows.tolist(), ratio.tolist(), strict=True):
        constants[data.class_labels[row]] = max(constants[data.class_labels[row]].item(), value)
    return constants


@pytest.mark.parametrize("norm", [True, False])
def test_constants_are_those_of_plain_gradients(norm):
    torch.manual_seed(3)
    model, data = SmallNet(norm=norm), make_data(12, "probe")
    model(data.images)  # changes the running statistics
    before = {name: p.detach() + 0.1 * torch.randn_like(p) for name, p in model.named_parameters()}
    state = copy.deepcopy(model.state_dict())
    batches = [data.batch(rows) for rows in torch.arange(12).split(5)]
    constants = class_lipschitz(model, nn.CrossEntropyLoss(), before, batches, CLASSES)
    torch.testing.assert_close(constants, slopes(model, before, data, torch.arange(12)), atol=1e-6, rtol=1e-4)
    assert all(module.training for module in model.modules())
    assert tensors_equal(model.state_dict(), state)
    here = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert class_lipschitz(model, nn.CrossEntropyLoss(), here, batches, CLASSES).tolist() == [0, 0, 0]


def test_the_probe_takes_as_many_of_each_class():
    labels = torch.tensor([0] * 20 + [2] * 3 + [5] * 9)
    for probe, expected in ((12, [4, 3, 4]), (1, [1, 1, 1]), (1000, [20, 3, 9])):
        rows = draw_probe_rows(labels, probe, torch.Generator().manual_seed(1))
        assert len(rows.unique()) == len(rows)
        assert labels[rows].bincount()[[0, 2, 5]].tolist() == expected


# ---- whole runs


def unlike_sites():
    """Return sites with all classes, two classes and one class."""
    skewed = {"site-1": [0] * 12 + [1] * 6 + [2] * 3, "site-2": [1] * 9 + [2] * 4, "site-3": [2] * 8}
    return {name: make_site(len(labels), name, torch.tensor(labels)) for name, labels in skewed.items()}


def plain_site(model, data, wanted, values, generator):
    """Train one epoch of weighted draws at a site; return the class weights and the new constants."""
    local = data.class_labels.bincount(minlength=CLASSES) / len(data)
    _, weights, _ = sampling_distribution(wanted, local, values, 0.02)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    for rows in torch.multinomial(weights[data.class_labels], len(data), replacement=True, generator=generator).split(
        5
    ):
        optimizer.zero_grad()
        F.cross_entropy(model(data.images[rows]), data.class_labels[rows]).backward()
        optimizer.step()
    return slopes(model, before, data, torch.arange(len(data)))


@pytest.mark.parametrize("target", ["uniform", "counts"])
def test_isfl_is_a_plain_loop(tmp_path, target):
    """Uniform weights, as in the paper.

    With counts, the first round has a uniform target, since no site has reported any.
    """
    torch.set_num_threads(1)  # as in a run
    sites, task = unlike_sites(), make_task("plain")
    state, values = task.initial(7), dict.fromkeys(sites, torch.zeros(CLASSES))
    for round_ in (1, 2):
        known = torch.tensor([12.0, 15, 15]) if (target, round_) == ("counts", 2) else torch.ones(3)
        ended = {}
        for name, data in sites.items():
            model = build(task.networks["plain"], state)
            generator = make_generator(7, name, round_, "batches")
            values[name] = plain_site(model, data.train, known / known.sum(), values[name], generator)
            ended[name] = {key: t.detach().clone().contiguous() for key, t in model.state_dict().items()}
        state = mean_change(state, ended, dict.fromkeys(sites, 1))
    result = run(tmp_path, {"weights": "uniform", "target": target}, task=task, sites=sites)
    for key, tensor in result.outcome.models["global"].tensors.items():
        torch.testing.assert_close(tensor, state[key], atol=1e-5, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")


DRAWN = []


class Watched(ISFL):
    """ISFL that records the class distribution of the drawn images."""

    def row_weights(self, fit):
        weights, labels = super().row_weights(fit), fit.site.train.class_labels
        DRAWN.append([float(weights[labels == label].sum() / len(labels)) for label in range(CLASSES)])
        return weights


def drawn(folder, args, **options):
    DRAWN.clear()
    run(folder, make_method=lambda: Watched(**args), sites=unlike_sites(), **options)
    return DRAWN


def test_at_first_the_target_is_drawn(tmp_path):
    shares = drawn(tmp_path, {}, rounds=1)
    assert shares == [pytest.approx([1 / 3] * 3), pytest.approx([0, 0.5, 0.5]), pytest.approx([0, 0, 1])]
    assert Store(tmp_path / "state" / "site-1").latest().meta["reply"].keys() == {"size"}


def test_without_training_the_target_is_drawn_for_ever(tmp_path):
    assert drawn(tmp_path, {}, epochs=0)[3] == pytest.approx([1 / 3] * 3)


def test_later_one_class_is_drawn_as_rarely_as_sigma_lets_it(tmp_path):
    drawn_shares = drawn(tmp_path, {"sigma": 0.1})
    local = [[12 / 21, 6 / 21, 3 / 21], [0, 9 / 13, 4 / 13]]
    for shares, own in zip(drawn_shares[3:5], local, strict=True):
        least = [share / mine for share, mine in zip(shares, own, strict=True) if mine]
        assert min(least) == pytest.approx(0.1)
        assert sum(shares) == pytest.approx(1)
    assert drawn_shares[5] == pytest.approx([0, 0, 1])


def test_counts_that_sites_disclose_are_the_target(tmp_path):
    """The counts are used from the first round if sites report them at the start, otherwise after the first replies."""
    args, still = {"target": "counts"}, {"epochs": 0}  # without training, what is drawn is the target
    first = drawn(tmp_path / "told", args, disclose=("size", "label_counts"), rounds=1, **still)
    assert first[0] == pytest.approx([12 / 42, 15 / 42, 15 / 42])
    later = drawn(tmp_path / "later", args, unavailable=lambda site, step: (site, step) == ("site-2", 1), **still)
    assert later[0] == pytest.approx([1 / 3] * 3)
    assert later[2] == pytest.approx([12 / 29, 6 / 29, 11 / 29])  # site 2 was unavailable
    assert later[3] == pytest.approx([0, 9 / 20, 11 / 20])  # at site 2, which has more of class 1 than the others


def test_under_privacy_the_uniform_target_works_and_says_nothing_of_classes(tmp_path):
    result = run(tmp_path, task=make_task("plain"), privacy={"epsilon": 1e7, "clip": 0.5}, rounds=1)
    assert result.outcome.status == "finished"
    assert Store(tmp_path / "state" / "site-1").latest().meta["reply"] == {}
