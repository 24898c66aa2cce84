"""Tests of methods' needs: a run without them is refused before it starts, and the message suggests methods."""

from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from refusals import refused
from torch import nn

from medfl.engine.needs import NEED_CONDITIONS, unmet_reason
from medfl.errors import DataError, SettingsError
from medfl.objectives import Binary, Multiclass, Multilabel, Objective, Regression, Segmentation, Survival
from medfl.plugins import load_plugins
from medfl.settings import Privacy
from medfl.task import ImageScale
from medfl.testing.cohort import Case, TensorData, bits, make_data, make_task
from medfl.testing.tasks import make_sites_of, make_task_of, with_targets_of

REGISTRY = load_plugins()
SIZES = {"a": 9, "b": 6}


def run(folder: Path, objective: Objective, name: str = "fedavg", args: dict | None = None, **changes: object):
    return Case(REGISTRY, name, args or {}).run(
        folder,
        sites=changes.pop("sites", None) or make_sites_of(objective, SIZES),
        task=changes.pop("task", None) or make_task_of(objective),
        server_test=with_targets_of(make_data(8, "global"), objective),
        rounds=2,
        **changes,
    )


def test_the_refusal_names_need_method_objective_and_what_would_do(tmp_path: Path) -> None:
    with refused(SettingsError, "unmet_need", method="feddisco", need="class_labels", objective="regression") as caught:
        run(tmp_path / "run", Regression(2), "feddisco")
    would_do = caught.value.fields["methods"]
    assert {"fedavg", "fedprox", "ditto", "fedbn", "fedskd", "local"} <= set(would_do)
    assert not {"feddisco", "isfl", "fedkper", "fedfed", "fedtpf", "fedsdc", "pfedcdp"} & set(would_do)
    assert not (tmp_path / "run").exists()


def test_what_a_task_lacks() -> None:
    kinds = {
        Multiclass(3): set(),
        Binary(logits=2): set(),
        Binary(): {"class_logits"},
        Multilabel(3): {"class_labels", "class_logits"},
        Segmentation(2): {"class_labels", "class_logits"},
        Regression(2): {"class_labels", "class_logits", "soft_targets"},
        Survival(): {"class_labels", "class_logits", "soft_targets"},
    }
    for objective, missing in kinds.items():
        task = dataclasses.replace(make_task(), objective=objective)
        networks = {"norm": task.build()}
        assert {need for need in NEED_CONDITIONS if unmet_reason(need, task, networks) is not None} == missing, (
            objective
        )
    bare = {"bare": nn.Linear(3, 2)}
    vectors = dataclasses.replace(make_task(), scale=ImageScale((3,)))
    missing = {need for need in NEED_CONDITIONS if unmet_reason(need, vectors, bare) is not None}
    assert missing == {"features", "head", "linear_head", "trainable_body", "images_of_one_shape"}


def test_settings_of_a_method_may_need_less(tmp_path: Path) -> None:
    method = REGISTRY.make_method
    assert method("fedkper", {}).active_needs == {"class_labels", "soft_targets"}
    assert method("fedkper", {"score": "acc"}).active_needs == {"soft_targets"}
    assert method("fedkper", {"score": "div", "distill": False}).active_needs == {"class_labels"}
    assert method("fedkper", {"aggregation": "size", "distill": False}).active_needs == set()
    assert method("fedskd", {"gamma": 0.0, "freeze_ktm_header": False}).active_needs == set()
    for objective in (Segmentation(2), Segmentation(1, overlapping=True), Multilabel(3)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        result = run(folder, objective, "fedkper", {"score": "acc", "lambda_scope": "sample"})
        assert result.outcome.status == "finished"
        assert all(bool(torch.isfinite(t).all()) for model in bits(result).values() for t in model.values())


@pytest.mark.parametrize("skd", [("batch",), ("batch", "pixel")])
def test_fedskd_compares_stages_of_networks_for_masks(tmp_path: Path, skd: tuple[str, ...]) -> None:
    run(tmp_path, Segmentation(2), "fedskd", {"skd": skd, "p2p_scale": 1})
    table = pd.read_csv(tmp_path / "metrics.csv")
    similarity = table[table["metric"] == "similarity"]["value"]
    assert len(similarity)
    assert bool((similarity > 0).all())
    dice = table[table["metric"] == "dice"]["value"]
    assert bool(dice.between(0, 1).all())


def test_binary_with_two_logits_trains_as_two_classes(tmp_path: Path) -> None:
    sites = make_sites_of(Binary(), SIZES)
    two = make_task_of(Binary(logits=2))
    classes = dataclasses.replace(two, objective=Multiclass(2), metrics=("auc",))
    results = [
        run(tmp_path / str(number), Binary(), sites=sites, task=task) for number, task in enumerate((two, classes))
    ]
    left, right = map(bits, results)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key][name], right[key][name]) for key in left for name in left[key])


def test_a_site_without_events_never_trains_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sites = make_sites_of(Survival(), SIZES)
    images, targets = sites["b"].train.batch(torch.arange(6))
    targets[:, 1] = 0
    sites["b"] = dataclasses.replace(sites["b"], train=TensorData(images, targets))
    with caplog.at_level(logging.WARNING, "medfl"):
        result = run(tmp_path / "run", Survival(), sites=sites)
    assert "won't train: b" in caplog.text
    alone = run(tmp_path / "alone", Survival(), sites={"a": sites["a"]})
    both = result.outcome.models["global"].tensors, alone.outcome.models["global"].tensors
    assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    with refused(DataError, "uninformative_targets", sites=["b"]):
        run(tmp_path / "none", Survival(), sites={"b": sites["b"]})


def test_a_loss_that_compares_cases_hides_no_single_one(tmp_path: Path) -> None:
    privacy = Privacy(unit="sample", epsilon=8.0, clip=1.0, delta=0.1)
    with refused(SettingsError, "incompatible_settings", settings=["objective", "privacy.unit"]):
        run(tmp_path, Survival(), privacy=privacy, task=make_task_of(Survival()))


def test_balance_is_for_classes(tmp_path: Path) -> None:
    for balance in ("loss", "sampling"):
        with refused(SettingsError, "missing_classes", setting="balance"):
            run(tmp_path / balance, Regression(2), balance=balance)
        assert run(tmp_path / f"binary {balance}", Binary(), balance=balance).outcome.status == "finished"


def test_bad_targets_stop_a_run_before_it_begins(tmp_path: Path) -> None:
    sites = make_sites_of(Survival(), SIZES)
    images, targets = sites["b"].train.batch(torch.arange(6))
    targets[4, 0] = math.nan
    sites["b"] = dataclasses.replace(sites["b"], train=TensorData(images, targets))
    with refused(DataError, "invalid_time", where="Site 'b', split 'train'", row=4):
        run(tmp_path / "run", Survival(), sites=sites)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((1, 28, 28), None),
        ((3, 8, 8, 8), None),
        ((12,), "the cases are vectors"),
        ((1, 12), "the cases are vectors"),
        ((), "the transforms of a stock bundle"),
    ],
    ids=str,
)
def test_images_and_volumes_have_one_shape_and_vectors_have_none(shape: tuple[int, ...], why: str | None) -> None:
    task = dataclasses.replace(make_task(), scale=ImageScale(shape))
    lacking = unmet_reason("images_of_one_shape", task, {})
    assert lacking is None if why is None else str(lacking).startswith(why)
