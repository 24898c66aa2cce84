"""Opening a finished run: its task, data and models, and error messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from attack_runs import make_data, run_bundle
from refusals import refused
from run_records import change_json

from medfl.cli.clean import clean
from medfl.errors import DataError, MedflError, SettingsError, StoreError
from medfl.records.run_file import RunFile
from medfl.training.predict import predict
from medfl_attacks.open_run import open_run

CHANGED = {"optimizer#lr": 0.2, "mean": [0.4], "std": [0.3]}
"""Options that the bundle does not have."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with data and runs of two methods, which no test changes."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("opened")
    data = make_data(folder / "data")
    run_bundle(data, folder / "fedavg", **CHANGED)
    run_bundle(data, folder / "fedrep", method="fedrep", balance="loss")
    return folder


@pytest.fixture
def copied(place: Path, tmp_path: Path) -> Path:
    """Return a copy of the fedavg run and its data that a test may damage."""
    shutil.copytree(place / "data", tmp_path / "data")
    return shutil.copytree(place / "fedavg", tmp_path / "fedavg")


def taken_home(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "models" / "model.pt", weights_only=True)


def same(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return first.keys() == other.keys() and all(torch.equal(first[name], other[name]) for name in first)


def test_the_task_is_that_of_the_run(place: Path) -> None:
    run = open_run(place / "fedavg")
    assert (run.name, run.settings.rounds, run.settings.batch_size) == ("fedavg", 2, 32)
    assert (run.task.network, run.task.objective.classes, run.task.device) == ("cnn4", 4, "cpu")
    scale = run.task.scale
    assert scale is not None
    assert (scale.shape, scale.mean, scale.std) == ((3, 16, 16), (0.4,), (0.3,))
    built = run.task.optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert (type(built).__name__, built.defaults["lr"], built.defaults["momentum"]) == ("SGD", 0.2, 0.9)
    assert run.classes == ("lymphocyte", "neutrophil", "eosinophil", "monocyte")


def test_the_data_are_those_of_the_run_as_networks_see_them(place: Path) -> None:
    run = open_run(place / "fedavg")
    sizes = {name: (len(part.train), len(part.val), len(part.test)) for name, part in run.sites.items()}
    assert sizes == {"site-01": (28, 4, 8), "site-02": (28, 4, 8)}
    assert run.server_test is not None
    images, _ = run.sites["site-01"].train.batch(torch.arange(28))
    raw = run.task.scale.to_images(images) * 255
    torch.testing.assert_close(raw, raw.round(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_the_models_are_bit_by_bit_the_exported_ones(place: Path, method: str) -> None:
    run = open_run(place / method)
    models = run.site_models()
    assert sorted(models) == ["site-01", "site-02"]
    for name, model in models.items():
        assert same(model.tensors, taken_home(place / method / "sites" / name))
    global_model = run.global_model()
    assert (global_model is not None) == (method == "fedavg")
    if global_model is not None:
        assert same(global_model.tensors, taken_home(place / method / "global"))


@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_the_models_say_what_they_said_in_the_run(place: Path, method: str) -> None:
    run = open_run(place / method)
    model = run.models()["site-02"]
    assert not model.training
    written = pd.read_csv(place / method / "sites" / "site-02" / "predictions.csv")[["p0", "p1", "p2", "p3"]]
    probabilities, _ = predict(model, run.sites["site-02"].test, run.task.objective, (), run.settings)
    torch.testing.assert_close(probabilities.double(), torch.from_numpy(written.to_numpy()), atol=1e-6, rtol=0)


def test_a_frozen_body_that_the_run_started_from_is_the_bodys_of_the_attacked_networks(
    place: Path, tmp_path: Path
) -> None:
    started = run_bundle(place / "data", tmp_path / "head", start=str(place / "fedavg"), train_part="head", **CHANGED)
    run = open_run(started)
    assert run.task.frozen_digest() == RunFile.read(started / "run.json").identity.task.frozen["cnn4"]
    written = pd.read_csv(started / "sites" / "site-02" / "predictions.csv")[["p0", "p1", "p2", "p3"]]
    probabilities, _ = predict(run.models()["site-02"], run.sites["site-02"].test, run.task.objective, (), run.settings)
    torch.testing.assert_close(probabilities.double(), torch.from_numpy(written.to_numpy()), atol=1e-6, rtol=0)
    adapted = run_bundle(place / "data", tmp_path / "lora", start=str(place / "fedavg"), train_part="lora", **CHANGED)
    with refused(StoreError, "missing_frozen_tensors", network="cnn4"):
        open_run(adapted)


def test_the_server_is_as_it_was_left(place: Path) -> None:
    run = open_run(place / "fedavg")
    assert (run.server.rounds_done, run.server.sites) == (2, ["site-01", "site-02"])
    assert same(run.method.models(run.server)["global"].tensors, run.model().state_dict())
    assert run.released() is None, "fedavg shares no images"


def test_a_site_has_the_loss_that_it_trained_with(place: Path) -> None:
    plain, weighted = open_run(place / "fedavg"), open_run(place / "fedrep")
    assert plain.site_task("site-01").loss.weight is None
    assert weighted.task.loss.weight is None
    assert len(weighted.site_task("site-01").loss.weight) == 4
    assert weighted.site("site-01").train is weighted.sites["site-01"].train


def test_without_a_global_model_the_sites_are_named(place: Path) -> None:
    with refused(StoreError, "no_global_model", method="fedrep") as caught:
        open_run(place / "fedrep").model()
    assert "--targets sites" in str(caught.value)


def test_a_cleaned_run_still_has_its_models(copied: Path) -> None:
    clean(copied)
    run = open_run(copied)
    assert same(run.global_model().tensors, taken_home(copied / "global"))
    assert same(run.site_models()["site-02"].tensors, taken_home(copied / "sites" / "site-02"))
    with refused(StoreError, "cleaned_run", path=str(copied)):
        _ = run.server


def test_opening_changes_nothing(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    run = open_run(copied)
    run.model()
    run.models()
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


# ---- bad input


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with refused(StoreError, "missing_run", path=str(tmp_path)):
        open_run(tmp_path)


def test_an_unfinished_run(copied: Path) -> None:
    (copied / "summary.json").unlink()
    with refused(StoreError, "unfinished_run", path=str(copied)):
        open_run(copied)


def test_a_run_with_harmonised_features(copied: Path) -> None:
    change_json(copied / "run.json", lambda run: run["identity"]["settings"].update(harmonise_features="combat"))
    with refused(SettingsError, "harmonised_features", path=str(copied)):
        open_run(copied)


def test_a_run_without_bundles(copied: Path) -> None:
    for name in ("sites", "global"):
        shutil.rmtree(copied / name)
    with refused(StoreError, "missing_bundles", path=str(copied)):
        open_run(copied)


def test_data_that_have_moved_are_found_by_name(copied: Path) -> None:
    moved = (copied.parent / "data").rename(copied.parent / "elsewhere")
    with refused(DataError, "missing_folder", path=str(copied.parent / "data")) as caught:
        open_run(copied)
    assert "--data" in str(caught.value)
    assert len(open_run(copied, data=moved).sites) == 2


def test_data_that_have_changed_are_refused(copied: Path) -> None:
    path = copied.parent / "data" / "site-02" / "datalist.json"
    listed = json.loads(path.read_text())
    listed["training"] = listed["training"][:-1]
    path.write_text(json.dumps(listed))
    with refused(DataError, "other_data", parts=["site-02"]):
        open_run(copied)


def test_a_server_test_set_that_is_gone_is_refused(copied: Path) -> None:
    shutil.rmtree(copied.parent / "data" / "global")
    with refused(DataError, "other_data", parts=["global"]):
        open_run(copied)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("networks", lambda config: config["networks"]["cnn4"].update(num_classes=7)),
        ("loss", lambda config: config["loss"].update(label_smoothing=0.1)),
        (
            "networks",
            lambda config: config.update(networks={"other": config["networks"]["cnn4"]}, network_name="other"),
        ),
    ],
)
def test_a_bundle_of_another_task_is_refused(copied: Path, part: str, change) -> None:
    path = copied / "global" / "configs" / "train.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    with refused(StoreError, "changed_task", path=str(copied), parts=[part]):
        open_run(copied)


def test_a_damaged_bundle(copied: Path) -> None:
    config = copied / "global" / "configs" / "train.json"
    config.write_text("{")
    with refused(MedflError, "unreadable_file", path=str(config)):
        open_run(copied)


def test_a_device_that_is_not_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(SettingsError, "missing_gpu", device="cuda:0"):
        open_run(place / "fedavg", device="cuda:0")
