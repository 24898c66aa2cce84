"""What a site behind MONAI's client interface takes as weights, and what it can't be opened with."""

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

from medfl.bundle.client_algo import SPLIT, CallError, MedflAlgo
from medfl.errors import DataError, RefusedError, SettingsError
from medfl.types import Tensors
from medfl.utils.wire import tensors_equal


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    with opened_once():
        yield write_files(tmp_path_factory.mktemp("interop"))


def changed(change: Callable[[Tensors, str], Any]) -> Callable[[Tensors], ExchangeObject]:
    """Weights of which one, a weight of the head, is changed."""

    def made(weights: Tensors) -> ExchangeObject:
        return send(weights | {"head.weight": change(weights, "head.weight")})

    return made


BAD: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "missing": (
        lambda w: send({k: t for k, t in w.items() if k != "head.bias"}),
        r"missing: 'head.bias'; unknown: none",
    ),
    "unknown": (lambda w: send(w | {"x": torch.zeros(1)}), r"missing: none; unknown: 'x'"),
    "none": (lambda w: ExchangeObject(), "weights by name, got NoneType"),
    "no object": (lambda w: w, "expected an ExchangeObject"),
    "differences": (lambda w: ExchangeObject(w, weight_type=WeightType.WEIGHT_DIFF), "in full"),
    "shape": (changed(lambda w, k: w[k].reshape(-1)), r"shape \(3, 5\), got \(15,\)"),
    "type": (changed(lambda w, k: w[k].double()), "torch.float32, got torch.float64"),
    "whole": (changed(lambda w, k: w[k].long()), "torch.float32, got torch.int64"),
    "nan": (changed(lambda w, k: w[k] * np.nan), "NaN or infinity"),
    "infinity": (changed(lambda w, k: (w[k] + np.inf).numpy()), "NaN or infinity"),
    "sparse": (changed(lambda w, k: w[k].to_sparse()), "dense torch.float32"),
    "objects": (changed(lambda w, k: w[k].numpy().astype(object)), "got object"),
    "list": (changed(lambda w, k: w[k].tolist()), "NumPy array, got list"),
    "count": (
        lambda w: send({k: t if t.is_floating_point() else t.double() + 1e300 for k, t in w.items()}),
        "counts of at most",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_weights_of_another_model_are_refused_and_change_nothing(files: Files, bad: str) -> None:
    change, message = BAD[bad]
    start, algo = global_weights(files), files.make()
    for call in (algo.train, algo.evaluate):
        with pytest.raises(RefusedError, match=message):
            call(change(start))
    with pytest.raises(CallError, match="failed or was aborted"):
        algo.get_weights()
    assert tensors_equal(trained(algo, start), trained(files.make(), start))


def test_an_update_that_may_not_leave_is_refused(files: Files) -> None:
    start = global_weights(files, norm_sync="none")
    for changes, message in (({"norm_bound": 1e-6}, "norm_bound"), ({"optimizer#lr": 1e38}, "finite")):
        algo = files.make(norm_sync="none", **changes)
        with pytest.raises(RefusedError, match=message) as refused:
            algo.train(send(start))
        with pytest.raises(CallError):
            algo.get_weights()
        with pytest.raises(RefusedError) as again:  # from the same state, in the same round: with the same norm
            algo.train(send(start))
        assert str(again.value) == str(refused.value)


# ---- what is opened


def test_a_site_without_training_images_only_scores(files: Files, tmp_path: Path) -> None:
    start = global_weights(files)
    shutil.copytree(files.cohort / "site-02", tmp_path / "D" / "site-02")
    shutil.copy(files.cohort / "images.npy", tmp_path / "D")
    edit(tmp_path / "D" / "site-02" / "datalist.json", lambda _: {"training": []})
    algo = MedflAlgo(files.bundle, tmp_path / "D", "site-02", OPTIONS)
    algo.initialize()
    with pytest.raises(DataError, match="no training images"):
        algo.train(send(start))
    assert algo.evaluate(send(start)).metrics == files.make("site-02").evaluate(send(start)).metrics
    assert algo.evaluate(send(start), {SPLIT: "training"}).metrics == {}
    with pytest.raises(SettingsError, match="Did you mean 'validation'"):
        algo.evaluate(send(start), {SPLIT: "validatio"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedprox"}, "got method 'fedprox'"),
        ({"privacy": {"epsilon": 1.0, "clip": 1.0}}, "setting 'privacy'"),
        ({"compression": {"bits": 8}}, "setting 'compression'"),
        ({"together": 4}, "setting 'together'"),
        ({"optimizer#lrr": 0.1}, "Did you mean 'lr'"),
        ({"epochs": -1}, "'epochs'"),
        ({"metrics": ["acuracy"]}, "Did you mean 'accuracy'"),
        ({"federation": {"_target_": "builtins.dict"}}, "FederatedRun, got dict"),
    ],
    ids=lambda value: str(value),
)
def test_what_can_not_be_done_is_refused_at_the_start(files: Files, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        files.make(**changes)


def test_a_leak_or_a_missing_folder_is_refused(files: Files, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Did you mean 'site-01'"):
        MedflAlgo(files.bundle, files.cohort, "site-1").initialize()
    with pytest.raises(SettingsError, match="no bundle that medfl can run"):
        MedflAlgo(tmp_path, files.cohort, "site-01").initialize()
    leaky = Path(shutil.copytree(files.cohort, tmp_path / "leaky"))
    edit(leaky / "site-01" / "datalist.json", lambda lists: {"test": lists["test"] + lists["training"][:1]})
    with pytest.raises(DataError, match="must not share"):
        MedflAlgo(files.bundle, leaky, "site-01").initialize()
    MedflAlgo(files.bundle, leaky, "site-01", allow_leaks=["subjects", "pixels"]).initialize()
