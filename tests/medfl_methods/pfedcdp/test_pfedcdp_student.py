"""PFedCDP's server: its classifiers, weights of teachers, and the student as the run's global model."""

import dataclasses

import pytest
import torch
from pfedcdp_toys import REGISTRY, classifier, run
from torch.nn import functional as F

from medfl.contract import Server, State
from medfl.data.pooled import EmptyDataset, TensorData
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.networks.heads import TwoLayerHead
from medfl.networks.parts import SplitNetwork, mlp
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.cohort import CLASSES, SmallNet, make_data, make_task
from medfl.utils.wire import tensors_equal
from medfl_methods.pfedcdp.refinement import Refinement
from medfl_methods.pfedcdp.server_classifier import (
    assemble_teacher,
    held_out_rows,
    initial_classifier,
    train_classifier,
)
from medfl_methods.pfedcdp.student import make_student

PUBLIC = make_data(60, "public")


def server_of(public=PUBLIC, round_=1):
    return Server("server", round_, State(), make_task(), Settings(rounds=2, seed=7), sites=["a"], public=public)


def cluster(kind="proxy"):
    """Return a cluster's model with its initial body and classifier."""
    task = make_task()
    return assemble_teacher(task, "norm", kind, {}, initial_classifier(task, "norm", kind, 7), 7)


# ---- the server's classifier


@pytest.mark.parametrize("kind", ["proxy", "random", "average"])
def test_the_first_classifier_depends_on_seed_and_network_alone(kind):
    task = make_task()
    drawn = initial_classifier(task, "norm", kind, 7)
    torch.manual_seed(99)
    assert tensors_equal(initial_classifier(task, "norm", kind, 7), drawn)
    assert not tensors_equal(initial_classifier(task, "norm", kind, 8), drawn)
    width = 24 if kind == "average" else 48
    assert next(iter(drawn.values())).shape == ((3, 24) if kind == "average" else (width, 24))


def test_a_teacher_is_the_body_with_the_classifier_in_evaluation_mode():
    task = make_task()
    body = {name: tensor + 1 for name, tensor in task.initial(3, "norm").items() if name.startswith("body")}
    classifier_ = initial_classifier(task, "norm", "proxy", 7)
    state = torch.get_rng_state()
    made = assemble_teacher(task, "norm", "proxy", body, classifier_, 7)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part.training for part in made.modules())
    model = SmallNet().eval()
    model.load_state_dict(task.initial(7, "norm") | body)
    head = mlp(24, (48, 24), 3, dropout=(0.3, 0.2)).eval()
    head.load_state_dict(classifier_)
    torch.testing.assert_close(made(PUBLIC.images), head(model.body(PUBLIC.images)))


def test_the_classifier_learns_and_the_body_stays():
    model = cluster()
    body = {name: tensor.clone() for name, tensor in model.body.state_dict().items()}
    before = F.cross_entropy(model(PUBLIC.images), PUBLIC.class_labels).item()
    learned = train_classifier(server_of(), "norm", model, 25)
    assert tensors_equal(model.body.state_dict(), body)
    assert tensors_equal(learned, model.head.state_dict())
    assert F.cross_entropy(model(PUBLIC.images), PUBLIC.class_labels).item() < 0.7 * before


def test_no_classifier_is_trained_on_what_teachers_are_weighed_by():
    rows = held_out_rows(server_of())
    assert PUBLIC.class_labels[rows].bincount().tolist() == [len(rows) // 3] * 3
    assert torch.equal(held_out_rows(server_of(round_=2)), rows)

    def learned(changed):
        images = PUBLIC.images.clone()
        images[changed] = 1e3
        return train_classifier(server_of(TensorData(images, PUBLIC.class_labels)), "norm", cluster(), 2)

    assert tensors_equal(learned(rows), learned(rows[:0]))
    known = next(row for row in range(60) if row not in rows.tolist())
    assert not tensors_equal(learned([known]), learned(rows[:0]))


@pytest.mark.parametrize(("kind", "changes"), [("proxy", True), ("average", True), ("random", False)])
def test_which_classifiers_change(tmp_path, kind, changes):
    run(tmp_path, {"server_classifier": kind}, rounds=1)
    assert tensors_equal(classifier(tmp_path), initial_classifier(make_task(), "norm", kind, 7)) != changes


class TwoLayers(SmallNet):
    """Network for images of eight pixels."""

    def __init__(self):
        super().__init__()
        self.head = TwoLayerHead(24, 5, CLASSES, dropout=0.0)


@pytest.mark.parametrize("kind", [SmallNet, TwoLayers])
def test_the_average_is_of_the_sites_own_classifiers(tmp_path, kind):
    task = dataclasses.replace(make_task(), networks={"norm": kind})
    result = run(tmp_path, {"server_classifier": "average", "lam": 0.0}, rounds=1, task=task)
    sizes = {"site-1": 21, "site-2": 13, "site-3": 8}
    assert set(classifier(tmp_path)) == set(kind().head.state_dict())
    for name in classifier(tmp_path):
        heads = {site: result.models[site]["personal"].tensors[f"head.{name}"].double() for site in sizes}
        expected = sum(n / 42 * heads[site] for site, n in sizes.items())
        torch.testing.assert_close(classifier(tmp_path)[name].double(), expected, atol=1e-6, rtol=0)


# ---- the student


def good(network="norm", seed=1):
    torch.manual_seed(seed)
    model = make_task().build(network)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(PUBLIC.images), PUBLIC.class_labels).backward()
        optimizer.step()
    return SplitNetwork(model.body, model.head).eval()


def poor():
    torch.manual_seed(8)
    model = SmallNet()
    torch.nn.init.zeros_(model.head.weight)  # equal predictions for all images
    return SplitNetwork(model.body, model.head).eval()


HOW = {"epochs": 15, "probe_epochs": 5, "lr": 0.01, "batch_size": 20}


def made(models, **how):
    torch.manual_seed(0)
    return make_student(server_of(), Refinement(**(HOW | how)), models)


def test_a_teacher_that_knows_nothing_weighs_nothing_and_the_student_learns():
    student, findings = made({"a": good(), "b": good("wide", 2), "useless": poor()})
    facts = findings.meta["teachers"]
    assert facts["useless"]["weight"] < 0.05
    assert min(facts["a"]["weight"], facts["b"]["weight"]) > 0.3
    groups = findings.meta["groups"]
    assert sum(facts[name]["value"] for name in facts) == pytest.approx(groups["a+b+useless"] - groups[""])
    assert (groups[""], groups["useless"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert findings.meta["weighed_on"] == len(held_out_rows(server_of()))
    model, fresh = make_task().load(student, "norm").eval(), make_data(90, "fresh")
    assert (model(fresh.images).argmax(1) == fresh.class_labels).double().mean() > 0.85


def test_equal_teachers():
    teachers = {"a": good(), "useless": poor()}
    student, findings = made(teachers, teachers="equal")
    assert [facts["weight"] for facts in findings.meta["teachers"].values()] == [0.5, 0.5]
    assert findings.meta["teachers"]["a"]["value"] > 0.3  # the value is reported although the weights are equal
    weighed, _ = made(teachers)
    assert not tensors_equal(student, weighed)
    assert findings.tensors == {}


def test_the_literal_mode_weighs_equally_and_scales_the_loss():
    pytest.importorskip("shap")
    teachers = {"a": good(), "useless": poor()}
    literal, findings = made(teachers, teachers="literal", epochs=3, student="plain")
    assert [facts["weight"] for facts in findings.meta["teachers"].values()] == [0.5, 0.5]
    assert findings.tensors["explained/maps/a"].shape == (3, 6, 6)  # one image of each class
    size = torch.stack([findings.tensors["explained/maps/a"], findings.tensors["explained/maps/useless"]]).abs().mean()
    assert 0 < size < 0.3
    equal, _ = made(teachers, teachers="equal", epochs=3, student="plain")
    for name, tensor in equal.items():  # Adam divides a constant factor out
        torch.testing.assert_close(literal[name], tensor, atol=5e-3, rtol=5e-2)


def test_what_is_explained_is_for_the_report(tmp_path):
    pytest.importorskip("shap")
    refinement = {"epochs": 1, "probe_epochs": 1, "explain": 2}
    result = run(tmp_path, {"refine": refinement}, networks_by_site={"site-1": "wide"}, rounds=1)
    findings = read_findings(tmp_path)
    assert findings.meta == result.outcome.findings.meta
    assert set(findings.meta["teachers"]) == {"norm", "wide"}
    assert set(findings.meta["losses"]) == {"contrast", "distillation"}
    assert findings.tensors["explained/labels"].bincount().tolist() == [2, 2, 2]
    assert findings.tensors["explained/images"].shape == (6, 1, 6, 6)
    for name in ("norm", "wide"):
        assert findings.tensors[f"explained/maps/{name}"].shape == (6, 6, 6)
    other = run(
        tmp_path / "without", {"refine": refinement | {"explain": 0}}, networks_by_site={"site-1": "wide"}, rounds=1
    )
    assert read_findings(tmp_path / "without").tensors == {}
    left, right = (run_result.outcome.models["global"].tensors for run_result in (result, other))
    assert tensors_equal(left, right)  # explaining changes nothing


# ---- learning


class TwoLayers(torch.nn.Module):
    """For images of eight pixels."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.head = torch.nn.Linear(8, 2)

    def forward(self, images):
        return self.head(self.body(images))


def gaussians(n, seed):
    """Return data of two classes in 8 dimensions, four standard deviations apart."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n,), generator=rng)
    images = torch.randn(n, 8, 1, 1, generator=rng)
    images[:, 3, 0, 0] += 4.0 * labels - 2.0
    return TensorData(images, labels)


def test_what_can_be_learned_is_by_sites_and_student(tmp_path):
    task = Task(
        {"two": TwoLayers},
        "two",
        torch.nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, 0.2),
        Multiclass(2),
        ("accuracy",),
    )
    sites = {f"site-{n}": Splits(gaussians(100, n), EmptyDataset(), gaussians(100, 10 + n)) for n in range(4)}
    args = {"refine": {"epochs": 8, "lr": 0.01}}
    settings = Settings(rounds=4, evaluate_every=4, epochs=4, batch_size=16)
    run_ = SimulatedRun(
        method=MethodChoice(name="pfedcdp", make=lambda: REGISTRY.make_method("pfedcdp", args)),
        task=task,
        settings=settings,
        data=RunData(sites=sites, public=gaussians(100, 99), public_test=gaussians(100, 98)),
        folder=tmp_path,
    )
    scores = simulate(run_).summary.scores
    for kind in ("personal", "global"):
        assert scores[kind]["test"]["accuracy"].mean >= 0.95
