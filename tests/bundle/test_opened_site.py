"""Weights that a site behind MONAI's client interface accepts, and settings with which it can't be opened."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interop_toys import OPTIONS, Files, edit, global_weights, opened_once, send, trained, write_files
from monai.fl.utils.constants import WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from refusals import refused

from medfl.bundle.client_algo import SPLIT, CallError, MedflAlgo
from medfl.errors import DataError, RefusedError, SettingsError
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    with opened_once():
        yield write_files(tmp_path_factory.mktemp("interop"))


def changed(change: Callable[[Tensors, str], Any]) -> Callable[[Tensors], ExchangeObject]:
    """Return weights with another value for one tensor of the head."""

    def made(weights: Tensors) -> ExchangeObject:
        return send(weights | {"head.weight": change(weights, "head.weight")})

    return made


FLOAT = {"name": "head.weight", "expected": "torch.float32"}

BAD: dict[str, tuple[Callable[[Tensors], Any], str, dict[str, Any]]] = {
    "missing": (
        lambda w: send({k: t for k, t in w.items() if k != "head.bias"}),
        "wrong_tensor_names",
        {"missing": ["head.bias"], "unknown": []},
    ),
    "unknown": (
        lambda w: send(w | {"x": torch.zeros(1)}),
        "wrong_tensor_names",
        {"missing": [], "unknown": ["x"]},
    ),
    "none": (lambda w: ExchangeObject(), "wrong_type", {"found": "NoneType"}),
    "no object": (lambda w: w, "wrong_type", {"expected": "ExchangeObject", "found": "dict"}),
    "differences": (
        lambda w: ExchangeObject(w, weight_type=WeightType.WEIGHT_DIFF),
        "wrong_weight_type",
        {"expected": "fl_weights_full", "found": "fl_weight_diff"},
    ),
    "shape": (
        changed(lambda w, k: w[k].reshape(-1)),
        "wrong_shape",
        {"name": "head.weight", "expected": [3, 5], "found": [15]},
    ),
    "type": (changed(lambda w, k: w[k].double()), "wrong_dtype", FLOAT | {"found": "torch.float64"}),
    "whole": (changed(lambda w, k: w[k].long()), "wrong_dtype", FLOAT | {"found": "torch.int64"}),
    "nan": (changed(lambda w, k: w[k] * np.nan), "not_finite", {"name": "head.weight"}),
    "infinity": (changed(lambda w, k: (w[k] + np.inf).numpy()), "not_finite", {"name": "head.weight"}),
    "sparse": (changed(lambda w, k: w[k].to_sparse()), "wrong_dtype", FLOAT | {"found": "torch.float32"}),
    "objects": (changed(lambda w, k: w[k].numpy().astype(object)), "wrong_dtype", FLOAT | {"found": "object"}),
    "list": (changed(lambda w, k: w[k].tolist()), "wrong_type", {"name": "head.weight", "found": "list"}),
    "count": (
        lambda w: send({k: t if t.is_floating_point() else t.double() + 1e300 for k, t in w.items()}),
        "count_too_large",
        {"maximum": 2**53},
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_weights_of_another_model_are_refused_and_change_nothing(files: Files, bad: str) -> None:
    change, code, fields = BAD[bad]
    start, algo = global_weights(files), files.make()
    for call in (algo.train, algo.evaluate):
        with refused(RefusedError, code, site="site-01", **fields):
            call(change(start))
    with refused(CallError, "no_weights_to_send", site="site-01", trained=True):
        algo.get_weights()
    assert tensors_equal(trained(algo, start), trained(files.make(), start))


def test_an_update_that_may_not_leave_is_refused(files: Files) -> None:
    start = global_weights(files, norm_sync="none")
    for changes, code in (({"norm_bound": 1e-6}, "norm_too_large"), ({"optimizer#lr": 1e38}, "not_finite")):
        algo = files.make(norm_sync="none", **changes)
        with refused(RefusedError, code, site="site-01") as first:
            algo.train(send(start))
        with refused(CallError, "no_weights_to_send", trained=True):
            algo.get_weights()
        with refused(RefusedError, code) as again:  # from the same state, in the same round: with the same norm
            algo.train(send(start))
        assert str(again.value) == str(first.value)
        assert again.value.fields == first.value.fields


# ---- what is opened


def test_a_site_without_training_images_only_scores(files: Files, tmp_path: Path) -> None:
    start = global_weights(files)
    shutil.copytree(files.cohort / "site-02", tmp_path / "D" / "site-02")
    shutil.copy(files.cohort / "images.npy", tmp_path / "D")
    edit(tmp_path / "D" / "site-02" / "datalist.json", lambda _: {"training": []})
    algo = MedflAlgo(files.bundle, tmp_path / "D", "site-02", OPTIONS)
    algo.initialize()
    with refused(DataError, "no_images", site="site-02", split="training"):
        algo.train(send(start))
    assert algo.evaluate(send(start)).metrics == files.make("site-02").evaluate(send(start)).metrics
    assert algo.evaluate(send(start), {SPLIT: "training"}).metrics == {}
    with refused(SettingsError, "unknown_choice", what="split", choice="validatio"):
        algo.evaluate(send(start), {SPLIT: "validatio"})


@pytest.mark.parametrize(
    ("changes", "code", "fields"),
    [
        ({"method": "fedprox"}, "method_not_supported", {"method": "fedprox", "expected": "fedavg"}),
        ({"privacy": {"epsilon": 1.0, "clip": 1.0}}, "unsupported_setting", {"setting": "privacy"}),
        ({"compression": {"bits": 8}}, "unsupported_setting", {"setting": "compression"}),
        ({"harmonise_features": "combat"}, "unsupported_setting", {"setting": "harmonise_features"}),
        (
            {"train_part": "lora", "lora": {"aggregation": "exact"}},
            "unsupported_setting",
            {"setting": "lora.aggregation"},
        ),
        ({"optimization": {"ema": 0.9}}, "unsupported_setting", {"setting": "optimization.ema"}),
        (
            {"optimization": {"schedule": "cosine"}, "lr_decay": 0.5},
            "incompatible_settings",
            {"settings": ["optimization.schedule", "lr_decay"]},
        ),
        ({"optimizer#lrr": 0.1}, "unknown_option", {"option": "optimizer#lrr", "part": "lrr"}),
        ({"epochs": -1}, "setting_out_of_range", {"settings": ["epochs"]}),
        ({"metrics": ["acuracy"]}, "unknown_choice", {"what": "metric", "choice": "acuracy"}),
        ({"federation": {"_target_": "builtins.dict"}}, "wrong_type", {"id": "federation", "found": "dict"}),
    ],
    ids=lambda value: str(value),
)
def test_what_can_not_be_done_is_refused_at_the_start(
    files: Files, changes: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with refused(SettingsError, code, **fields):
        files.make(**changes)


def test_a_schedule_covers_the_rounds_of_the_settings(files: Files) -> None:
    """The rounds of the federation are MONAI's; one after the last of the schedule is refused."""
    algo = files.make(**{"optimization": {"schedule": "cosine"}, "settings#rounds": 2, "steps": 1})
    weights = global_weights(files)
    first, second = trained(algo, weights), trained(algo, weights)
    assert not tensors_equal(first, second)
    with refused(SettingsError, "round_after_schedule", expected=2, found=3):
        algo.train(send(weights))


def test_a_leak_or_a_missing_folder_is_refused(files: Files, tmp_path: Path) -> None:
    with refused(DataError, "unknown_site", site="site-1", path=str(files.cohort)) as caught:
        MedflAlgo(files.bundle, files.cohort, "site-1").initialize()
    assert "Did you mean 'site-01'" in str(caught.value)
    with refused(SettingsError, "missing_file", bundle=str(tmp_path), path=str(tmp_path / "configs" / "train.json")):
        MedflAlgo(tmp_path, files.cohort, "site-01").initialize()
    leaky = Path(shutil.copytree(files.cohort, tmp_path / "leaky"))
    edit(leaky / "site-01" / "datalist.json", lambda lists: {"test": lists["test"] + lists["training"][:1]})
    with refused(DataError, "data_leak", kinds=["subjects", "pixels"]):
        MedflAlgo(files.bundle, leaky, "site-01").initialize()
    MedflAlgo(files.bundle, leaky, "site-01", allow_leaks=["subjects", "pixels"]).initialize()
