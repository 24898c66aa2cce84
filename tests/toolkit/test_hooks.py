"""Tests of the hooks of `Averaging`: start, optimiser, tensors besides the model, trainings."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from monai.bundle import ConfigParser
from refusals import refused

from medfl.contract import Capability, Model
from medfl.engine.checks import check_plan
from medfl.engine.evaluation import build_predictor
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.site_bundles import export_global
from medfl.engine.store import Store
from medfl.errors import ContractError
from medfl.networks.parts import mlp, replace_head
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, bits, make_site, make_sites, make_task, scores
from medfl.toolkit.averaging import Averaging
from medfl.toolkit.local_training import LocalTraining
from medfl.toolkit.participant_state import auxiliary_state, set_auxiliary_state
from medfl.toolkit.training_specs import Training, TrainingBudget
from medfl.types import MODEL_PREFIX, SERVER
from medfl.utils.wire import prefixed, select, tensors_equal

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"
REGISTRY = load_plugins()
NOTES = []


@pytest.fixture(autouse=True)
def no_notes():
    NOTES.clear()


def run(folder, method=None, name="fedavg", **options):
    make_method = None if method is None else method
    return Case(REGISTRY, name).run(folder, make_method=make_method, **({"rounds": 2} | options))


# ---- H1


class Halfway(Averaging):
    """Method that starts halfway between the received tensors and zero, and does not train."""

    def start(self, site, received):
        return {name: tensor / 2 if tensor.is_floating_point() else tensor for name, tensor in received.items()}


def test_an_update_is_taken_against_what_was_received(tmp_path):
    begun = make_task("plain").initial(7)
    model = run(tmp_path, Halfway, task=make_task("plain"), epochs=0, rounds=1).outcome.models["global"]
    for name, tensor in model.tensors.items():
        torch.testing.assert_close(tensor, begun[name] / 2)


# ---- H2


class Slow(Averaging):
    """Method whose optimiser has a learning rate of zero; it counts steps."""

    def make_optimizer(self, fit):
        return torch.optim.SGD([parameter for _, parameter in fit.parameters()], lr=0.0)

    def after_batch(self, fit):
        NOTES.append((fit.steps, fit.optimizer.param_groups[0]["lr"]))


def test_a_method_makes_its_own_optimizer_and_steps_are_counted(tmp_path):
    model = run(tmp_path, Slow, task=make_task("plain"), rounds=1).outcome.models["global"]
    assert tensors_equal(model.tensors, make_task("plain").initial(7))
    assert [steps for steps, _ in NOTES] == [1, 2, 3, 4, 5, 1, 2, 3, 1, 2]  # 21, 13 and 8 images, 5 a batch
    assert {rate for _, rate in NOTES} == {0.0}


# ---- H6


class Twice(Averaging):
    """Method that computes the logits before the task's loss does."""

    def before_fit(self, fit):
        fit.model.register_forward_hook(lambda *_: NOTES.append("pass"))

    def loss(self, fit, batch):
        logits = fit.logits(batch)
        assert fit.logits(batch) is logits
        with torch.no_grad():
            assert fit.logits(batch) is not logits  # no graph hangs on this one
        return fit.task_loss(batch)


def test_logits_are_computed_once_a_batch_and_never_without_a_graph_by_mistake(tmp_path):
    result = run(tmp_path / "twice", Twice, task=make_task("plain"))
    assert tensors_equal(
        bits(result)["server/global"], bits(run(tmp_path / "x", task=make_task("plain")))["server/global"]
    )
    assert len(NOTES) == 2 * 10 * 3  # in two rounds of ten batches: one pass, one without a graph, one after that


# ---- H3


class Counting(Averaging):
    """Method that sums the steps of all sites besides the model."""

    sends: ClassVar = {MODEL_PREFIX: "update", "steps/": "update"}

    def setup(self, server):
        super().setup(server)
        set_auxiliary_state(server, "steps/", {"all": torch.zeros(1)})

    def extra_request_tensors(self, server):
        return prefixed(auxiliary_state(server, "steps/"), "steps/")

    def extra_reply_tensors(self, fit):
        NOTES.append(select(fit.received, "steps/")["all"].item())
        return {"steps/all": torch.tensor([float(fit.steps)])}


class Equally(Counting):
    """Method that weights further tensors equally and sums them."""

    def extra_weights(self, server, metas):
        return dict.fromkeys(metas, 1.0)

    def aggregate_extra(self, server, prefix, mean, replied):
        super().aggregate_extra(server, prefix, {name: tensor * replied for name, tensor in mean.items()}, replied)


def test_tensors_beside_the_model_go_down_and_up_and_change_no_bit_of_it(tmp_path):
    result = run(tmp_path / "counting", Counting)
    assert all(tensors_equal(model, bits(result)[key]) for key, model in bits(run(tmp_path / "x")).items())
    state = Store(tmp_path / "counting" / "state" / SERVER).latest().state()
    mean = (4 * 21 + 3 * 13 + 2 * 8) / 42
    assert state.tensors["kept/steps/all"].item() == pytest.approx(2 * mean)
    assert pytest.approx([0.0] * 3 + [mean] * 3) == NOTES


def test_their_weights_and_fold_are_the_methods(tmp_path):
    run(tmp_path, Equally, sites=make_sites({"site-1": 21, "site-2": 13, "site-3": 8, "empty": 0}))
    state = Store(tmp_path / "state" / SERVER).latest().state()
    assert state.tensors["kept/steps/all"].item() == pytest.approx(
        2 * (4 + 3 + 2)
    )  # batch norm leaves out a batch of one


def test_a_training_without_a_step_sends_nothing_beside_the_model(tmp_path):
    run(tmp_path, Counting, epochs=0)
    assert not NOTES


# ---- H5 and H10


class Apart(Averaging):
    """Method that trains a separate personal model before the shared one."""

    def trainings(self, site):
        return Training("own", apart=True), Training()


class InTurn(Averaging):
    """Method that trains the head, then the whole network."""

    def trainings(self, site):
        return Training("head", TrainingBudget(steps=2), part="head"), Training(budget=TrainingBudget(steps=3))

    def loss(self, fit, batch):
        NOTES.append((fit.training.label, fit.training.part, sorted(name for name, _ in fit.parameters())))
        assert fit.model.body.training == fit.model.body[1].training == (fit.training.part == "all")
        return super().loss(fit, batch)


def test_a_model_apart_is_local_training_and_the_shared_one_is_fedavg(tmp_path):
    moments = {"moments": ("aggregated", "trained"), "rounds": 3}
    result = run(tmp_path / "apart", Apart, **moments)
    shared, alone = run(tmp_path / "fedavg", **moments), run(tmp_path / "local", name="local", **moments)
    for site, models in result.models.items():
        assert tensors_equal(models["global"].tensors, shared.models[site]["global"].tensors)
        assert tensors_equal(models["personal"].tensors, alone.models[site]["personal"].tensors)
    lines, local = (
        [line for line in scores(tmp_path / name) if ",trained,accuracy" in line] for name in ("apart", "local")
    )
    assert [line for line in lines if ",personal," in line] == local
    assert len(lines) == 2 * len(local) > 0


def test_trainings_follow_each_other_with_their_own_budget_part_and_log(tmp_path):
    run(tmp_path, InTurn, rounds=1, steps=9, sites=make_sites({"site-1": 21}))
    head, every = ["head.bias", "head.weight"], NOTES[-1][2]
    assert [("head", "head", head)] * 2 + [("", "all", every)] * 3 == NOTES
    assert len(every) == 6
    logged = {line.split(",")[5] for line in scores(tmp_path)}
    assert {"loss", "head_loss"} <= logged


class Still(Averaging):
    """Method with two trainings, the second with frozen batch norm; both see the same object."""

    def before_trainings(self, site, sent):
        assert select(sent, MODEL_PREFIX).keys() == make_task().initial(0).keys()
        return {"shared": object()}

    def trainings(self, site):
        return Training(), Training("still", frozen_norms=True)

    def before_fit(self, fit):
        fit.extra["before"] = fit.model.body[1].running_mean.clone()

    def after_fit(self, fit):
        moved = not torch.equal(fit.model.body[1].running_mean, fit.extra["before"])
        NOTES.append((fit.site.name, fit.training.label, moved, fit.extra["shared"]))


def test_a_training_may_leave_batch_norm_as_it_is_and_all_trainings_of_a_request_share_what_they_need(tmp_path):
    run(tmp_path, Still, rounds=1)
    names = sorted(make_sites())
    assert [note[:3] for note in NOTES] == [
        part for name in names for part in ((name, "", True), (name, "still", False))
    ]
    assert len({id(note[3]) for note in NOTES}) == len(names), "one object for each order"
    assert all(first[3] is second[3] for first, second in zip(NOTES[::2], NOTES[1::2], strict=True))


def test_budgets_are_shared_out():
    assert TrainingBudget.of(Settings(rounds=1, epochs=5)).split(0.4) == (TrainingBudget(2), TrainingBudget(3))
    assert TrainingBudget.of(Settings(rounds=1, epochs=5, steps=9)).split(0.99) == (
        TrainingBudget(steps=8),
        TrainingBudget(steps=1),
    )
    assert TrainingBudget(3).split(1.0) == (TrainingBudget(3), TrainingBudget(0))


@pytest.mark.slow
def test_where_single_images_are_hidden_there_is_one_training(tmp_path):
    class Careless(Apart):
        """Method that falsely declares DP-SGD."""

        supports: ClassVar[frozenset[Capability]] = frozenset({Capability.DP_SGD})

    privacy = {"unit": "sample", "epsilon": 5.0, "delta": 1e-3, "clip": 1.0}
    with refused(ContractError, "several_trainings", site="site-1", expected=1, found=2):
        run(tmp_path, Careless, task=make_task("plain"), privacy=privacy)


def test_the_hooks_of_a_site_are_in_one_file():
    assert {"start", "trainings", "before_trainings", "make_optimizer", "extra_reply_tensors"} <= vars(
        LocalTraining
    ).keys()


# ---- H7


class Deeper(Averaging):
    """Method that gives all networks a head of two layers."""

    width: int = 5

    def head(self, features=24):
        return {"features": features, "widths": [self.width], "outputs": CLASSES, "norm": False}

    def task_of(self, task):
        for name, build in task.networks.items():
            task = task.with_network(name, lambda build=build: replace_head(build(), mlp(**self.head())))
        return task

    def network_config(self, model, network_def):
        head = {"_target_": "medfl.networks.parts.mlp", **self.head()}
        return {"_target_": "medfl.networks.parts.replace_head", "network": network_def, "head": head}


def test_a_methods_own_networks_are_trained_scored_and_predict(tmp_path):
    result = run(tmp_path / "run", Deeper, task=make_task("plain"), moments=("aggregated", "trained"))
    tensors = result.outcome.models["global"].tensors
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("head")}
    assert shapes == {
        "head.fc1.weight": (5, 24),
        "head.fc1.bias": (5,),
        "head.out.weight": (3, 5),
        "head.out.bias": (3,),
    }
    begun = Deeper().task_of(make_task("plain")).initial(7)
    assert not any(torch.equal(tensors[name], begun[name]) for name in shapes)
    rows = scores(tmp_path / "run")
    assert any(",global,test,aggregated,accuracy," in row for row in rows)
    assert any(",personal,test,trained,accuracy," in row for row in rows)
    (network,) = check_plan("deeper", Deeper(), make_task("plain"), Settings(rounds=1), ["a"], False)
    assert network.head.fc1.out_features == 5


def test_a_method_with_its_own_networks_continues_with_the_same_bits(tmp_path):
    whole = bits(run(tmp_path / "whole", Deeper))
    run(tmp_path / "parts", Deeper, rounds=1)
    parts = bits(run(tmp_path / "parts", Deeper))
    assert whole.keys() == parts.keys()
    assert all(tensors_equal(whole[name], parts[name]) for name in whole)


def test_exported_networks_are_built_as_the_method_says(tmp_path):
    """The exported network contains the bundle's network, and its logits equal the predictor's."""
    method, task = Deeper(width=4), make_task("plain")
    model = Model("plain", method.task_of(task).initial(3))
    parser = ConfigParser(
        {"network_def": method.network_config(model, {"_target_": "medfl.testing.cohort.SmallNet", "norm": False})}
    )
    network = parser.get_parsed_content("network_def").eval()
    network.load_state_dict(model.tensors)
    images, _ = make_site(4, "x").train.batch(torch.arange(4))
    torch.testing.assert_close(network(images), build_predictor(method, task, model)(images))
    for kind, own in ((method, True), (Averaging(), False)):
        export_global(tmp_path / str(own), SiteExport(BUNDLE), {"global": model}, kind)
        for name in ("train.json", "inference.json"):
            before, after = (
                json.loads((root / "configs" / name).read_text())["network_def"]
                for root in (BUNDLE, tmp_path / str(own) / "global")
            )
            assert after == (method.network_config(model, before) if own else before)
