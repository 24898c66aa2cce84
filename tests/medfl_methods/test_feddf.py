"""Tests of FedDF: the ensemble, the distillation by hand, groups, and held-out public images."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from medfl.contract import Server, State
from medfl.data.pooled import TensorData
from medfl.engine.store import Store
from medfl.networks.norms import freeze_norms
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, bits, make_data, make_sites, make_task
from medfl.toolkit.losses import distillation
from medfl.types import SERVER
from medfl.utils.wire import select, tensors_equal
from medfl_methods.feddf import FedDF

REGISTRY = load_plugins()
SIZES = {"site-1": 21, "site-2": 13, "site-3": 8}


def run(folder, args=None, name="feddf", **options):
    return Case(REGISTRY, name, {"distil_steps": 3} | (args or {})).run(folder, **({"rounds": 1} | options))


# ---- closed forms


class ConstantLogits(nn.Module):
    """Network with the same logits for all images."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, images):
        return self.logits.expand(len(images), 2)


def server_of(method):
    """Return a server whose public images all have class 0."""
    task = dataclasses.replace(make_task(), networks={"says": ConstantLogits}, network="says", objective=Multiclass(2))
    public = TensorData(torch.zeros(6, 1, 2, 2), torch.zeros(6, dtype=torch.int64))
    server = Server(SERVER, 1, State(), task, Settings(rounds=1, seed=7), sites=["a", "b"], public=public)
    method.setup(server)
    return server


def replies(*logits):
    """Return updates of a model with the logits (0, 0)."""
    return [(f"site-{number}", {"model/logits": torch.tensor(row)}) for number, row in enumerate(logits)]


TEACHERS = ([2.0, 0.0], [0.0, 1.0])


@pytest.mark.parametrize(("ensemble", "value"), [("avg_logits", 0.0302998620), ("avg_probs", 0.0112530835)])
def test_distillation_loss_equals_the_formula(ensemble, value):
    method = FedDF(ensemble=ensemble)
    taught = method.ensemble_logits(server_of(method), replies(*TEACHERS))
    assert taught.shape == (6, 2)
    assert distillation(torch.zeros(6, 2), taught).mean().item() == pytest.approx(value, abs=1e-7)


def test_mean_of_losses_equals_the_loss_of_mean_probabilities_up_to_a_constant():
    method, gaps = FedDF(ensemble="avg_probs"), []
    taught = method.ensemble_logits(server_of(method), replies(*TEACHERS))[:1]
    each = [torch.tensor([row]) for row in TEACHERS]
    for student in (torch.zeros(1, 2), torch.tensor([[3.0, -1.0]])):
        mean = torch.stack([distillation(student, teacher) for teacher in each]).mean()
        gaps.append((mean - distillation(student, taught).mean()).item())
        if not student.any():
            assert mean.item() == pytest.approx(0.2193786986, abs=1e-7)
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)


def test_ensemble_excludes_diverged_models_and_models_below_chance():
    good, bad, broken = [2.0, 0.0], [0.0, 1.0], [float("inf"), 0.0]
    for drop_worst, rows, expected in (
        (False, (good, broken), good),
        (True, (good, bad), good),
        (False, (good, bad), [1.0, 0.5]),
    ):
        method = FedDF(drop_worst=drop_worst)
        taught = method.ensemble_logits(server_of(method), replies(*rows))
        torch.testing.assert_close(taught, torch.tensor([expected]).expand(6, 2))
    method = FedDF(drop_worst=True)
    assert method.ensemble_logits(server_of(method), replies(bad)) is None


# ---- runs


@pytest.mark.parametrize("clip", [None, 0.01])
def test_distillation_equals_a_plain_loop(tmp_path, clip):
    """Each batch contains all public images, so their order has no effect."""
    result = run(tmp_path, {"distil_steps": 4, "distil_clip": clip, "distil_lr": 0.01})
    task, (images, _) = make_task(), make_data(12, "public").batch(torch.arange(12))
    start, models = task.initial(7), {}
    for site in SIZES:
        update = select(Store(tmp_path / "state" / site).latest().tensors, "reply/model/")
        models[site] = {name: tensor + update[name] for name, tensor in start.items()}
    mean = {
        name: sum(n / 42 * models[site][name] for site, n in SIZES.items()) if tensor.is_floating_point() else tensor
        for name, tensor in start.items()
    }
    with torch.no_grad():
        answers = torch.stack([task.load(model).eval()(images) for model in models.values()]).mean(0)
    student = task.load(mean | {name: models["site-1"][name] for name in mean if not mean[name].is_floating_point()})
    freeze_norms(student.train())
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for step in range(4):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + torch.cos(torch.tensor(torch.pi * step / 4)).item()) / 2
        optimizer.zero_grad()
        p = answers.softmax(1)
        loss = (p * (p.log() - F.log_softmax(student(images), 1))).sum(1).mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(student.parameters(), clip)
        optimizer.step()
    ours = result.outcome.models["global"].tensors
    for name, tensor in student.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, atol=2e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
    assert any(not torch.allclose(ours[name], mean[name], atol=5e-3) for name in ("head.weight", "body.0.weight"))


def test_labels_of_public_images_have_no_effect(tmp_path):
    public = make_data(12, "public")
    others = TensorData(public.images, 2 - public.class_labels)
    ours, theirs = (bits(run(tmp_path / name, public=data)) for name, data in (("a", public), ("b", others)))
    assert all(tensors_equal(ours[key], theirs[key]) for key in ours)


def test_single_site_is_hardly_changed_by_the_distillation(tmp_path):
    sites = {"site-1": make_sites()["site-1"]}
    ours, plain = (
        run(tmp_path / str(steps), {"distil_steps": steps}, sites=sites).outcome.models["global"] for steps in (20, 0)
    )
    images, _ = make_data(12, "public").batch(torch.arange(12))
    answers = [make_task().load(model.tensors).eval()(images).softmax(1) for model in (ours, plain)]
    torch.testing.assert_close(*answers, atol=1e-3, rtol=0)


def test_group_without_a_reply_is_taught_by_the_other_groups(tmp_path):
    options = {"networks_by_site": {"site-1": "wide"}, "unavailable": lambda site, step: site == "site-1"}
    result = run(tmp_path, **options)
    still = run(tmp_path / "still", {"distil_steps": 0}, **options)
    wide, begun = result.models["site-1"]["personal"].tensors, make_task().initial(7, "wide")
    assert result.models["site-1"]["personal"].network == "wide"
    assert tensors_equal(still.models["site-1"]["personal"].tensors, begun)
    assert not torch.equal(wide["head.weight"], begun["head.weight"])
    assert torch.equal(wide["body.1.running_mean"], begun["body.1.running_mean"])
    for site in SIZES:
        common = result.models[site]["global"]
        assert common.network == "norm"
        assert tensors_equal(common.tensors, result.outcome.models["global"].tensors)
    assert tensors_equal(result.models["site-2"]["personal"].tensors, result.models["site-2"]["global"].tensors)


def test_best_model_on_held_out_images_is_kept(tmp_path):
    """Steps that are far too long are reverted; good steps are kept."""
    public = make_data(40, "public")
    plain = run(tmp_path / "plain", {"distil_steps": 0}, epochs=4).outcome.models["global"].tensors
    ruined = {"distil_lr": 100.0, "patience": 1, "held_out": 0.5}
    taken_back = run(tmp_path / "ruined", ruined, epochs=4, public=public).outcome.models["global"].tensors
    assert tensors_equal(taken_back, plain)
    kept_anyway = run(tmp_path / "kept", ruined | {"patience": None}, epochs=4, public=public)
    assert not tensors_equal(kept_anyway.outcome.models["global"].tensors, plain)


def test_held_out_rows_are_constant_and_absent_if_unused():
    for args, count in (({}, 0), ({"patience": 5, "held_out": 0.4}, 2), ({"drop_worst": True}, 1)):
        method = FedDF(**args)
        server = server_of(method)
        rows, held = method.split_rows(server)
        server.round = 5
        assert all(torch.equal(a, b) for a, b in zip((rows, held), method.split_rows(server), strict=True))
        assert len(held) == count
        assert sorted([*rows.tolist(), *held.tolist()]) == list(range(6))


def test_diverged_distillation_keeps_the_averaged_model(tmp_path, caplog):
    plain = run(tmp_path / "plain", {"distil_steps": 0}).outcome.models["global"].tensors
    ours = run(tmp_path / "ours", {"distil_lr": 1e37, "distil_steps": 6}).outcome.models["global"].tensors
    assert "the distillation of 'norm' diverged" in caplog.text
    assert tensors_equal(ours, plain)


# ---- when the server's training stops


class ScriptedFedDF(FedDF):
    """FedDF with scripted scores on held-out images. Records the model at each evaluation."""

    scores: tuple[float, ...] = ()

    def public_accuracy(self, server, model, rows):
        looks = server.state.meta.setdefault("looks", [])
        looks.append(model.logits.detach().clone())
        return self.scores[len(looks) - 1]


@pytest.fixture
def scripted(monkeypatch):
    """Return a function that runs `distil` and returns how many evaluations there were and which model was chosen."""
    monkeypatch.setattr("medfl_methods.feddf.EVALUATION_INTERVAL", 5)

    def scripted(*scores, **args):
        method = ScriptedFedDF(scores=scores, distil_lr=0.01, **({"distil_steps": 50, "patience": 10} | args))
        server = server_of(method)
        taught = torch.tensor([[2.0, 0.0]]).expand(6, 2)
        taken = method.distil(server, "says", {"logits": torch.zeros(2)}, taught)["logits"]
        looks = server.state.meta["looks"]
        assert not looks[0].any(), "the first model is the initial one"
        return len(looks), [index for index, look in enumerate(looks) if torch.equal(look, taken)]

    return scripted


def test_patience_is_counted_in_steps_since_the_best(scripted):
    """The server evaluates at steps 0, 5, 10, ... In the first case step 5 is best and training stops at step 15."""
    assert scripted(0.5, 0.6, 0.6, 0.6, 0.9, 0.9) == (4, [1])
    assert scripted(0.5, 0.4, 0.4, 0.9) == (3, [0]), "the initial model is the best"
    assert scripted(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.5, 0.9) == (8, [5]), "each improvement restarts the count"
    assert scripted(0.5, 0.6, 0.6, 0.6, 0.7, 0.6, 0.6, 0.6, patience=12) == (8, [4]), (
        "12 steps are exceeded at the third evaluation"
    )


def test_last_step_is_always_evaluated(scripted):
    assert scripted(0.1, 0.2, 0.3, 0.4, distil_steps=12) == (4, [3])


@pytest.mark.parametrize(("rows", "kept"), [([0, 1], True), ([1, 3], False)])
def test_model_at_chance_level_stays_in_the_ensemble(monkeypatch, rows, kept):
    """The model always predicts class 0. It is right on one of two held-out images of two classes, or on none."""
    method = FedDF(drop_worst=True)
    server = server_of(method)
    server.public = TensorData(server.public.images, torch.tensor([0, 1, 0, 1, 0, 1]))
    monkeypatch.setattr(FedDF, "split_rows", lambda *_: (torch.arange(6), torch.tensor(rows)))
    assert (method.ensemble_logits(server, replies([2.0, 0.0])) is not None) == kept


def test_public_accuracy_does_not_depend_on_the_batch_size(monkeypatch):
    """The model is right on two of five images, evaluated in batches of two, two and one."""
    method = FedDF()
    server = server_of(method)
    server.public = TensorData(torch.zeros(5, 1, 2, 2), torch.tensor([0, 0, 1, 1, 1]))
    monkeypatch.setattr("medfl_methods.feddf.evaluation_batch", lambda objective: 2)
    model = server.task.load({"logits": torch.tensor([1.0, 0.0])})
    assert method.public_accuracy(server, model, torch.arange(5)) == pytest.approx(0.4)


def test_held_out_images_depend_on_the_seed():
    """The server holds out 4 of 40 public images. Different seeds hold out different ones."""
    chosen = set()
    for seed in range(5):
        method = FedDF(patience=1)
        server = server_of(method)
        server.settings = Settings(rounds=1, seed=seed)
        server.public = TensorData(torch.zeros(40, 1, 2, 2), torch.zeros(40, dtype=torch.int64))
        chosen.add(tuple(method.split_rows(server)[1].tolist()))
    assert len(chosen) > 1
