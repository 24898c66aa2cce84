"""Tests of FedBABU: the fixed head, and the fine-tuning in the last round."""

import dataclasses
from collections import Counter

import pytest
import torch
from torch.nn import functional as F

from medfl.networks.parts import mlp, replace_head
from medfl.plugins import load_plugins
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_sites, make_task
from medfl.utils import wire
from medfl.utils.rng import make_generator
from medfl.utils.wire import select, tensors_equal
from medfl_methods.fedbabu import FINE_TUNING, FedBABU

REGISTRY = load_plugins()
SEEN = []


def run(folder, args=None, name="fedbabu", **options):
    return Case(REGISTRY, name, args or {}).run(folder, **({"rounds": 2, "evaluate_every": 9} | options))


def of(model, part):
    return select(model.tensors, f"{part}.")


class RecordingFedBABU(FedBABU):
    """FedBABU that records what is trained, and the hash of each part (with buffers) before and after."""

    def note(self, fit):
        parts = [wire.digest(getattr(fit.model, part).state_dict()) for part in ("body", "head")]
        names = {name.split(".")[0] for name, _ in fit.parameters()}
        SEEN.append((fit.training.label, names, parts))

    def before_fit(self, fit):
        self.note(fit)

    def after_fit(self, fit):
        assert sum(len(group["params"]) for group in fit.optimizer.param_groups) == len(list(fit.parameters()))
        self.note(fit)


@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_b_13_rounds_train_the_body_and_fine_tuning_the_chosen_part(tmp_path, part):
    SEEN.clear()
    case = Case(REGISTRY, "fedbabu", {"finetune": part})
    result = case.run(tmp_path, rounds=2, make_method=lambda: RecordingFedBABU(finetune=part, finetune_epochs=1))
    rounds, tuned = ([entry for entry in SEEN if entry[0] == label] for label in ("", FINE_TUNING))
    assert (len(rounds), len(tuned)) == (2 * 2 * 3, 2 * 3)
    assert {frozenset(names) for _, names, _ in rounds} == {frozenset({"body"})}
    assert len({head for _, _, (_, head) in rounds}) == 1
    assert {frozenset(names) for _, names, _ in tuned} == {frozenset({"body", "head"} if part == "all" else {part})}
    first, common = make_task().initial(7), result.outcome.models["global"]
    assert tensors_equal(of(common, "head"), select(first, "head."))
    for models in result.models.values():
        assert tensors_equal(models["global"].tensors, common.tensors)
        for other in ("body", "head"):
            assert tensors_equal(of(models["personal"], other), of(common, other)) == (part not in ("all", other))


def test_fine_tuning_equals_a_plain_loop_from_the_global_model(tmp_path):
    task = make_task("plain")
    result = run(tmp_path, {"finetune_epochs": 2, "finetune_lr": 0.05}, task=task)
    for site, splits in make_sites().items():
        model = task.build()
        model.load_state_dict(result.outcome.models["global"].tensors)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        stream = make_generator(7, site, 2, "batchestuned")
        for _ in range(2):
            for rows in torch.randperm(len(splits.train), generator=stream).split(5):
                images, labels = splits.train.batch(rows)
                optimizer.zero_grad()
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(result.models[site]["personal"].tensors[name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rounds", [2, 4])
def test_fine_tuning_fits_a_budget_of_steps(tmp_path, rounds):
    """Fewer rounds plus fine-tuning steps give each site as many steps as another method with 5 rounds of 4 steps."""

    def steps_of(folder, name, args, rounds):
        taken = Counter()

        class Counting(torch.optim.SGD):
            def step(self, closure=None):
                taken["steps"] += 1
                return super().step(closure)

        task = dataclasses.replace(make_task("plain"), optimizer=lambda parameters: Counting(parameters, lr=0.1))
        run(folder, args, name, task=task, sites=make_sites({"a": 20}), rounds=rounds, steps=4)
        return taken["steps"]

    tuned = steps_of(tmp_path / "tuned", "fedbabu", {"finetune_steps": 20 - 4 * rounds}, rounds)
    assert tuned == steps_of(tmp_path / "alone", "local", {}, 5) == 20


def test_sites_without_fine_tuning_have_the_global_model(tmp_path):
    """Without fine-tuning, and at a site that is unavailable in the last step or has no images."""
    result = run(tmp_path / "none", {"finetune_epochs": 0})
    for models in result.models.values():
        assert tensors_equal(models["personal"].tensors, result.outcome.models["global"].tensors)
    sites = make_sites({"a": 8, "b": 9, "empty": 0})
    result = run(tmp_path / "away", sites=sites, unavailable=lambda site, step: site == "a" and step == 3)
    common = result.outcome.models["global"].tensors
    alike = {name: tensors_equal(models["personal"].tensors, common) for name, models in result.models.items()}
    assert alike == {"a": True, "b": False, "empty": True}


def test_global_model_is_reported_if_it_is_complete(tmp_path):
    result = run(tmp_path / "norms", norm_sync="none")
    assert "global" not in result.outcome.models
    assert set(result.models["site-1"]) == {"personal"}
    other = lambda: replace_head(SmallNet(), mlp(24, (5,), CLASSES))  # noqa: E731
    task = dataclasses.replace(make_task(), networks={"norm": SmallNet, "other": other})
    result = run(tmp_path / "heads", task=task, networks_by_site={"site-1": "other"})
    kinds = {name: set(models) for name, models in result.models.items()}
    assert kinds == {"site-1": {"personal"}, "site-2": {"personal", "global"}, "site-3": {"personal", "global"}}
    assert result.models["site-1"]["personal"].tensors["head.out.weight"].shape == (CLASSES, 5)


def test_continued_run_fine_tunes_in_its_new_last_round(tmp_path):
    run(tmp_path / "parts", rounds=1)
    parts, whole = run(tmp_path / "parts"), run(tmp_path / "whole")
    for site, models in whole.models.items():
        assert tensors_equal(models["personal"].tensors, parts.models[site]["personal"].tensors)
