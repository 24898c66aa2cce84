"""FedKPer, piece by piece: its loss (O-KP-1), its score, its settings. Whole runs are in test_fedkper_runs.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import nn
from torch.nn import functional as F

from medfl.contract import Site, State
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import TensorData
from medfl.toolkit.aggregation import normalised_weights
from medfl.toolkit.fit import Fit
from medfl.toolkit.losses import distillation
from medfl.training.loop import Batch
from medfl_methods.fedkper import FedKPer, adaptive_weight, label_diversity

TEACHER = torch.tensor([[2.0, 0, 0], [0, 1, 0]], dtype=torch.float64)
STUDENT = torch.tensor([[1.0, 0, 0], [0, 0, 1]], dtype=torch.float64)
LABELS = torch.tensor([0, 2])

# ---- a site whose model says what a table says


class Table(nn.Module):
    """Logits looked up: an image holds the number of its row."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows.float())

    def forward(self, images):
        return self.rows[images.flatten().long()]


def table_fit(rows, labels, loss=None):
    data = TensorData(torch.arange(len(labels)).float().reshape(-1, 1, 1, 1), labels)
    task = Task({}, "", loss or nn.CrossEntropyLoss(), torch.optim.SGD, Multiclass(rows.shape[1]))
    return Fit(Site("a", 1, State(), task, Settings(rounds=1), train=data), Table(rows), {})


def taught(teacher, student, labels, rows=None, loss=None, **args):
    """The method's loss on some rows, of a site that received `teacher` and has come to `student`; and its gradient."""
    fit, method = table_fit(teacher, labels, loss), FedKPer(**args)
    method.before_fit(fit)
    with torch.no_grad():
        fit.model.rows.copy_(student)
    rows = torch.arange(len(labels)) if rows is None else rows
    value = method.loss(fit, Batch(*fit.site.train.batch(rows), rows))
    value.backward()
    return value.item(), fit.model.rows.grad


def site_score(logits, labels, **args):
    fit = table_fit(logits, labels)
    FedKPer(**args).after_fit(fit)
    return fit.meta.get("score")


def random_table(n=12, classes=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    teacher, student = (2 * torch.randn(n, classes, generator=rng, dtype=torch.float64) for _ in range(2))
    return teacher, student, torch.randint(classes, (n,), generator=rng)


# ---- the loss (O-KP-1)


def test_kp_1_pieces():
    assert distillation(STUDENT, TEACHER).mean().item() == pytest.approx(0.2315306585, abs=1e-9)
    assert distillation(TEACHER, STUDENT).mean().item() == pytest.approx(0.2380792473, abs=1e-9)  # the reverse
    assert adaptive_weight(Multiclass(3), TEACHER, LABELS, 10.0).item() == pytest.approx(1.1167011432, abs=1e-7)
    each = adaptive_weight(Multiclass(3), TEACHER, LABELS, 10.0, per_sample=True)
    assert each.tolist() == pytest.approx([4.1745850505, 0.6445605125], abs=1e-6)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, 0.8099952650),
        ({"lambda_scope": "sample"}, 0.8752152192),
        ({"lambda_scope": "client"}, 0.8099952650),
        ({"lambda_mode": "const", "lambda_cap": 1.1167011432}, 0.8099952650),
        ({"lambda_mode": "const"}, 0.5514447139 + 10 * 0.2315306585),
        ({"lambda_cap": 0.5}, 0.5514447139 + 0.5 * 0.2315306585),
        ({"distill": False}, 0.5514447139),
    ],
)
def test_kp_1_loss(args, expected):
    assert taught(TEACHER, STUDENT, LABELS, **args)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("tau", "scope"), [(1.0, "batch"), (1.0, "sample"), (1.0, "client"), (3.0, "batch")])
def test_kp_1_gradient(tau, scope):
    """[p_k - onehot + lambda tau (q_k - q_g)] / B, and none into the teacher or through lambda."""
    teacher, student, labels = random_table()
    right = teacher.softmax(1)[torch.arange(12), labels]
    weight = 1 / -right.log() if scope == "sample" else 1 / -right.log().mean()
    apart = (student / tau).softmax(1) - (teacher / tau).softmax(1)
    expected = student.softmax(1) - torch.eye(4)[labels] + weight.clamp(max=10).reshape(-1, 1) * tau * apart
    gradient = taught(teacher, student, labels, tau=tau, lambda_scope=scope)[1]
    torch.testing.assert_close(gradient.double(), expected / 12, atol=1e-6, rtol=1e-5)
    teacher.requires_grad_()
    student.requires_grad_()
    assert not adaptive_weight(Multiclass(3), teacher, labels, 10.0).requires_grad
    distillation(student, teacher).sum().backward()
    assert teacher.grad is None
    assert student.grad.abs().max() > 0.1


@pytest.mark.parametrize("surety", [2.95, 4.0, 500.0])
@pytest.mark.parametrize("per_sample", [False, True])
def test_kp_1_lambda_is_capped(surety, per_sample):
    """CE = log(1 + 2 exp(-surety)) is below 0.1 from surety 2.9455 on; 500 makes it exactly 0."""
    logits, labels = torch.tensor([[surety, 0.0, 0.0]]), torch.tensor([0])
    assert torch.all(adaptive_weight(Multiclass(3), logits, labels, 10.0, per_sample) == 10.0)
    assert 9.9 < adaptive_weight(Multiclass(3), torch.tensor([[2.94, 0.0, 0.0]]), labels, 10.0).item() < 10


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_temperature_against_torch(tau):
    teacher, student, _ = random_table()
    softened = (student / tau).log_softmax(1), (teacher / tau).softmax(1)
    expected = tau**2 * F.kl_div(*softened, reduction="batchmean")
    torch.testing.assert_close(distillation(student, teacher, tau).mean(), expected)


def test_at_a_high_temperature_the_distillation_is_a_squared_distance():
    """Hinton et al.: |z_k - z_g|^2 / (2 C) of logits that are centred over the classes; tau^2 keeps it from fading."""
    teacher, student, _ = random_table()
    apart = student - teacher
    expected = (apart - apart.mean(1, keepdim=True)).square().sum(1) / 8
    torch.testing.assert_close(distillation(student, teacher, 1e4), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("scope", ["batch", "client"])
def test_what_lambda_is_a_mean_over(scope):
    teacher, student, labels = random_table()
    rows = torch.tensor([7, 2, 2, 10])
    chosen = rows if scope == "batch" else torch.arange(12)
    weight = 1 / F.cross_entropy(teacher[chosen], labels[chosen])
    kl = F.kl_div(student[rows].log_softmax(1), teacher[rows].softmax(1), reduction="batchmean")
    expected = F.cross_entropy(student[rows], labels[rows]) + weight * kl
    assert taught(teacher, student, labels, rows, lambda_scope=scope)[0] == pytest.approx(expected.item(), rel=1e-5)


def test_class_weights_of_the_task_weigh_its_own_term_alone():
    teacher, student, labels = random_table()
    weights = torch.tensor([0.2, 3.0, 1.0, 0.7])
    loss = taught(teacher, student, labels, loss=nn.CrossEntropyLoss(weights))[0]
    plain = taught(teacher, student, labels)[0] - F.cross_entropy(student, labels).item()
    assert loss - plain == pytest.approx(F.cross_entropy(student, labels, weights.double()).item(), rel=1e-5)


# ---- the score


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([9, 9], 1),
        ([4, 4, 4], 1),
        ([1] * 11, 1),
        ([5, 5, 0, 0], 0.5),
        ([2, 1, 1, 0], 0.75),
        ([30, 10], 0.8112781244591328),
        ([0, 0, 0], 0),
    ],
)
def test_label_diversity(counts, expected):
    assert label_diversity(counts) == pytest.approx(expected, abs=1e-9)


@given(n=some.integers(1, 10**9), classes=some.integers(2, 20), where=some.integers(0, 19))
def test_the_diversity_of_one_class_is_exactly_zero(n, classes, where):
    counts = [0] * classes
    counts[where % classes] = n
    assert label_diversity(counts) == 0


@given(counts=some.lists(some.integers(0, 1000), min_size=2, max_size=12), times=some.integers(2, 5))
def test_diversity_depends_on_shares_alone(counts, times):
    diversity = label_diversity(counts)
    assert 0 <= diversity <= 1
    assert label_diversity([times * n for n in counts]) == diversity
    assert label_diversity(counts[::-1]) == pytest.approx(diversity, abs=1e-12)


def test_the_score_of_a_site():
    """Three of four images right, two of four classes alike: A = 3/4, d = 1/2."""
    logits, labels = torch.eye(4)[[0, 3, 3, 2]], torch.tensor([0, 0, 3, 3])
    logits[3] = torch.tensor([0.0, 0, 0, 9])
    assert site_score(logits, labels) == pytest.approx(0.75 * (1e-12 + 0.5), abs=1e-14)
    assert site_score(logits, labels, score_eps=0.1) == pytest.approx(0.75 * 0.6)
    assert site_score(logits, labels, score_eps=0.1, score="acc") == 0.75
    assert site_score(logits, labels, score_eps=0.1, score="div") == pytest.approx(0.6)
    assert site_score(logits, labels, aggregation="size") is None


def test_sites_of_one_class_weigh_by_accuracy_among_themselves_and_nothing_beside_others(caplog):
    same = torch.zeros(4, dtype=torch.int64)
    scores = {
        "all right": site_score(torch.eye(3)[same], same),
        "one right": site_score(torch.eye(3)[[0, 1, 2, 1]], same),
        "one image": site_score(torch.eye(3)[:1], same[:1]),
    }
    weights = normalised_weights(scores, {})
    assert [weights[name] for name in scores] == pytest.approx([4 / 9, 1 / 9, 4 / 9])
    weights = normalised_weights(
        scores | {"two classes": site_score(torch.eye(3)[[0, 2, 2]], torch.tensor([0, 1, 2]))}, {}
    )
    assert weights["two classes"] == pytest.approx(1, abs=1e-11)
    assert caplog.text == ""
    exact = [site_score(torch.eye(3)[part], part, score_eps=0) for part in (same, same[:1])]
    assert exact == [0, 0]
