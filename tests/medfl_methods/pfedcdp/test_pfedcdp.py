"""Parts of PFedCDP: loss (O-PF-6), mixing of bodies (O-PF-4), training phases, settings.

Fisher information (O-PF-3), the contrastive loss (O-PF-7) and Shapley values (O-PF-10) have their own test files. Whole
runs are in test_pfedcdp_runs.py.
"""

import sys

import pytest
import torch
from pfedcdp_toys import REGISTRY, SHORT, run
from refusals import refused
from torch import nn
from torch.nn import functional as F

import medfl_methods.pfedcdp.method as module
from medfl.contract import Server, Site, State
from medfl.data.pooled import TensorData
from medfl.engine.checks import warn_of_preset
from medfl.errors import SettingsError
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import make_data, make_task
from medfl.toolkit.fit import Fit
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.training.loop import Batch
from medfl.utils.wire import tensors_equal
from medfl_methods.pfedcdp.method import PFedCDP

STUDENT, TEACHER, LABEL = [[2.0, 0.0]], [[0.0, 1.0]], [0]

# ---- the loss (O-PF-6)


class Table(nn.Module):
    """Network that looks logits up: an image contains the number of its row."""

    def __init__(self, rows):
        super().__init__()
        self.rows = nn.Parameter(rows)

    def forward(self, images):
        return self.rows[images.flatten().long()]


def loss_of(student, teacher, labels, loss=None, **args):
    """Return the method's loss on all rows, and its gradient."""
    student, labels = torch.tensor(student), torch.tensor(labels)
    data = TensorData(torch.arange(len(labels)).float().reshape(-1, 1, 1, 1), labels)
    task = Task({}, "", loss or nn.CrossEntropyLoss(), torch.optim.SGD, Multiclass(student.shape[1]))
    site = Site("a", 1, State(), task, Settings(rounds=1), train=data)
    extra = {} if teacher is None else {"teacher": lambda batch: torch.tensor(teacher)[batch.rows]}
    fit = Fit(site, Table(student), {}, extra)
    rows = torch.arange(len(labels))
    value = PFedCDP(refine=None, **args).loss(fit, Batch(*data.batch(rows), rows))
    value.backward()
    return value.item(), fit.model.rows.grad


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, 0.4217633480),
        ({"lam": 1.0}, 9 * 0.1233013853),
        ({"lam": 1e-9}, 0.1269280110),
        ({"lam": 0.5}, 0.5 * 0.1269280110 + 4.5 * 0.1233013853),
    ],
)
def test_pf_6_loss(args, expected):
    assert loss_of(STUDENT, TEACHER, LABEL, **args)[0] == pytest.approx(expected, abs=1e-6)


def test_pf_6_limits():
    assert loss_of(STUDENT, None, LABEL, lam=0.0)[0] == pytest.approx(0.1269280110, abs=1e-7)
    assert loss_of(STUDENT, STUDENT, LABEL)[0] == pytest.approx(0.7 * 0.1269280110, abs=1e-7)


def test_pf_6_is_a_mean_over_the_batch():
    first, other = loss_of(STUDENT, TEACHER, LABEL)[0], loss_of([[0.5, 1.0]], [[2.0, 0.0]], [1])[0]
    both, _ = loss_of([*STUDENT, [0.5, 1.0]], [*TEACHER, [2.0, 0.0]], [0, 1])
    assert both == pytest.approx((first + other) / 2, abs=1e-6)


def test_pf_6_gradient():
    """The gradient is [(1 - lam) (p - onehot) + lam tau (softened p - softened teacher)] / B."""
    student, teacher = torch.tensor([[2.0, 0, 1], [0, 1, -1]]), torch.tensor([[0.0, 1, 0], [3, 0, 0]])
    _, gradient = loss_of(student.tolist(), teacher.tolist(), [2, 1], lam=0.3, tau=3.0)
    hard = student.softmax(1) - torch.eye(3)[[2, 1]]
    soft = (student / 3).softmax(1) - (teacher / 3).softmax(1)
    torch.testing.assert_close(gradient, (0.7 * hard + 0.9 * soft) / 2)


def test_class_weights_of_the_task_weigh_its_own_term_alone():
    weights = torch.tensor([0.2, 3.0])
    student, teacher, labels = [[2.0, 0.0], [0.3, 0.5]], [[0.0, 1.0], [1.0, 0.0]], [0, 1]
    plain, _ = loss_of(student, teacher, labels)
    loss, _ = loss_of(student, teacher, labels, nn.CrossEntropyLoss(weights))
    hard = [F.cross_entropy(torch.tensor(student), torch.tensor(labels), w).item() for w in (weights, None)]
    assert loss - plain == pytest.approx(0.7 * (hard[0] - hard[1]), abs=1e-6)


# ---- mixing (O-PF-4)


def site_of(own, network="norm", n=12, round_=2, **settings):
    settings = Settings(**({"rounds": 5, "seed": 7} | settings))
    return Site("site-1", round_, State(own), make_task(network), settings, train=make_data(n, "site-1"))


def bodies(network="norm"):
    """Return a site's own model, and a cluster's body in which all numbers differ."""
    own = make_task().initial(1, network)
    received = {name: tensor + 1 for name, tensor in make_task().initial(2, network).items() if name.startswith("body")}
    return own, received


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_pf_4_each_coordinate_is_the_own_or_the_received_one(share):
    own, received = bodies()
    mixed = PFedCDP(personal_share=share).start(site_of(own), received)
    assert mixed.keys() == own.keys()
    names = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    kept, total = 0, 0
    for name in names:
        mine, theirs = mixed[name] == own[name], mixed[name] == received[name]
        assert bool((mine ^ theirs).all())
        kept, total = kept + int(mine.sum()), total + mine.numel()
    assert kept == share * total
    for name in set(received) - set(names):
        assert torch.equal(mixed[name], received[name])  # running statistics are the cluster's
    assert torch.equal(mixed["head.weight"], own["head.weight"])


def test_pf_4_the_own_ones_have_the_largest_information():
    own, received = bodies("plain")
    site = site_of(own, "plain")
    mixed = PFedCDP(personal_share=0.1).start(site, received)
    model = site.task.load(own, "plain").eval()
    sums = {name: torch.zeros_like(tensor) for name, tensor in received.items()}
    for x, y in zip(site.train.images, site.train.class_labels, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), model.body.parameters())
        for name, gradient in zip(sums, gradients, strict=True):
            sums[name] += gradient**2
    values = torch.cat([total.flatten() for total in sums.values()])
    mine = torch.cat([(mixed[name] == own[name]).flatten() for name in sums])
    assert int(mine.sum()) == 6
    assert values[mine].min() > values[~mine].max()


def test_the_first_time_all_of_the_body_is_the_clusters():
    _, received = bodies()
    mixed = PFedCDP(personal_share=1.0).start(site_of({}), received)
    assert tensors_equal({name: mixed[name] for name in received}, received)
    first = make_task().initial(7, "norm")
    assert torch.equal(mixed["head.weight"], first["head.weight"])


def test_information_is_from_so_many_images_redrawn_each_round(monkeypatch):
    seen = []

    def watched(model, names, images, labels, estimator, batch_size):
        seen.append((images, labels, estimator, batch_size))
        return {name: torch.zeros_like(dict(model.named_parameters())[name]) for name in names}

    monkeypatch.setattr(module, "fisher", watched)
    own, received = bodies()
    for round_ in (2, 2, 3):
        PFedCDP(fisher_samples=5, estimator="per_batch").start(site_of(own, round_=round_, batch_size=4), received)
    PFedCDP().start(site_of(own), received)
    assert [(len(images), *rest) for images, _, *rest in seen] == [(5, "per_batch", 4)] * 3 + [(12, "per_sample", 32)]
    assert torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[0][0], seen[2][0])
    assert len(seen[0][0].flatten(1).unique(dim=0)) == 5
    data = make_data(12, "site-1")
    for image, label in zip(*seen[0][:2], strict=True):
        assert label == data.class_labels[(data.images == image).flatten(1).all(1)]


# ---- the phases


@pytest.mark.parametrize(
    ("share", "total", "expected"),
    [
        (0.5, 20, (10, 10)),
        (0.5, 3, (1, 2)),
        (0.5, 1, (1, 0)),
        (0.9, 2, (1, 1)),
        (0.0, 4, (4, 0)),
        (1.0, 4, (0, 4)),
        (1.0, 1, (0, 1)),
        (0.01, 5, (5, 0)),
        (0.5, 0, (0, 0)),
    ],
)
@pytest.mark.parametrize("unit", ["epochs", "steps"])
def test_the_phases_share_a_rounds_budget(unit, share, total, expected):
    """Fractions other than 0 and 1 leave at least one epoch for the whole model."""
    settings = {unit: total} if total or unit == "epochs" else {"epochs": 0}
    site = site_of({}, **settings)
    sites = {training.label: training.at(site) for training in PFedCDP(head_share=share).trainings(site)}
    totals = {label: TrainingBudget.of(there.settings).total for label, there in sites.items()}
    assert (totals[""], totals.get("head", 0)) == expected
    assert sites.keys() == ({"", "head"} if expected[1] else {""}), "without a share there is no second training"
    assert {label: there.settings.norm_sync for label, there in sites.items()}.items() <= {
        ("", "all"),
        ("head", "frozen"),
    }
    assert all(
        (there.name, there.round, there.train) == (site.name, site.round, site.train) for there in sites.values()
    )


def test_where_the_classifier_is_alone_the_body_is_frozen():
    site = site_of({})
    for alone in (True, False):
        model = site.task.build()
        fit = Fit(site, model, {}, training=Training("head") if alone else Training())
        PFedCDP().before_fit(fit)
        assert [name for name, p in model.named_parameters() if p.requires_grad][0].startswith("head") == alone
        assert all(parameter.requires_grad for parameter in model.head.parameters())


# ---- settings


AS_PRINTED = {
    "rounds": 20,
    "epochs": 20,
    "privacy": {"epsilon": 5.0, "clip": 2.5, "adjacency": "add_remove", "delta": 1e-6},
    "compression": {"bits": 8},
}


@pytest.mark.parametrize(
    ("changes", "phrases"),
    [
        ({}, []),
        ({"privacy": None}, ["privacy.epsilon = 5.0, got None", "privacy.clip = 2.5, got None"]),
        ({"privacy": AS_PRINTED["privacy"] | {"epsilon": 8.0}}, ["expected privacy.epsilon = 5.0, got 8.0. Set"]),
        ({"privacy": AS_PRINTED["privacy"] | {"adjacency": "replace"}}, ["adjacency = add_remove, got replace"]),
        ({"compression": {"bits": 4}}, ["expected compression.bits = 8, got 4"]),
        ({"compression": None, "rounds": 5}, ["expected rounds = 20, got 5; expected compression.bits = 8, got None"]),
    ],
)
def test_the_papers_preset_says_what_the_run_must_set(caplog, changes, phrases):
    """A run also warns at its start, see below."""
    method, settings = REGISTRY.make_method("pfedcdp", {"preset": "paper"}), Settings(**(AS_PRINTED | changes))
    warn_of_preset("pfedcdp", method, {"preset": "paper"}, settings)
    assert bool(caplog.records) == bool(phrases)
    for words in phrases:
        assert words in caplog.text
    caplog.clear()
    warn_of_preset("pfedcdp", method, {"preset": "medfl"}, settings)
    warn_of_preset("pfedcdp", method, {}, settings)
    assert not caplog.records


def test_without_a_server_classifier_nothing_is_reported_but_personal_models():
    method = PFedCDP(server_classifier="none", lam=0.0, refine=None)
    server = Server("server", 0, State(), make_task(), Settings(rounds=2), sites=["a"])
    method.setup(server)
    assert method.models(server) == method.publish(server) == {}
    assert method.findings(server).meta == {}
    assert method.models(site_of({})).keys() == {"personal"}


@pytest.mark.parametrize("refine", [{"explain": 1}, {"teachers": "literal"}])
def test_shap_is_needed_where_pixels_are_explained(tmp_path, monkeypatch, refine):
    monkeypatch.setitem(sys.modules, "shap", None)
    with refused(SettingsError, "missing_package", package="shap", extra="explain"):
        run(tmp_path / "1", {"refine": SHORT | refine})
    assert not (tmp_path / "1" / "state" / "site-1").exists()
    assert run(tmp_path / "2", {"refine": SHORT}, rounds=1).outcome.status == "finished"


def test_a_run_says_at_its_start_what_the_papers_preset_misses(tmp_path, caplog):
    run(tmp_path, {"preset": "paper", "refine": None}, rounds=1)
    assert "The preset 'paper' of 'pfedcdp' is for runs with other settings: expected rounds = 20" in (caplog.text)


def test_limits_are_reported(tmp_path, caplog):
    args = {"personal_share": 1.0, "head_share": 0.0, "lam": 0.0}
    run(tmp_path, args, task=make_task("plain"), rounds=1)
    assert "on a network without batch-norm layers, 'pfedcdp' is 'local'" in caplog.text
