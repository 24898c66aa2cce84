"""Python API: from images on disk to a comparison of runs, and the smallest federation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from refusals import refused
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import medfl
from medfl.errors import DataError, PluginError, SettingsError, StoreError
from medfl.toolkit.averaging import Averaging

METRICS = ["round", "site", "model", "split", "moment", "metric", "value"]


def site(seed: int, n: int = 30) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    images = torch.randn(n, 1, 4, 4, generator=generator) + labels[:, None, None, None]
    return TensorDataset(images, labels)


def sites() -> dict[str, tuple[TensorDataset, None, TensorDataset]]:
    return {name: (site(2 * number), None, site(2 * number + 1)) for number, name in enumerate(("a", "b"))}


def task() -> medfl.Task:
    return medfl.Task(
        networks={"linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2))},
        network="linear",
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        objective=medfl.Multiclass(2),
        metrics=("accuracy",),
    )


# ---- without a bundle


def test_the_smallest_federation_needs_no_files_and_gives_its_models() -> None:
    run = medfl.run(task=task(), sites=sites(), method="fedavg", rounds=2, progress=False)
    assert (run.status, run.sites, run.method) == ("finished", ("a", "b"), "fedavg")
    assert list(run.metrics) == METRICS
    assert isinstance(run.metrics.index, pd.RangeIndex)
    assert run.metrics["round"].max() == 2
    common = run.model()
    assert all(torch.equal(run.model("a").state_dict()[name], value) for name, value in common.state_dict().items())
    assert not common.training
    images, labels = site(1).tensors
    accuracy = (common(images).argmax(1) == labels).double().mean().item()
    assert run.summary is not None
    scores = run.summary.score("global", "test", "accuracy")
    assert scores is not None
    assert scores.sites["a"] == accuracy, "the model is the one that was scored"


def test_its_numbers_are_those_of_a_plain_loop_of_torch() -> None:
    """Check that FedAvg with one site, one round and one step on all images equals a step of SGD."""
    run = medfl.run(
        task=task(), sites={"a": (site(0), None, None)}, rounds=1, epochs=1, batch_size=30, seed=3, progress=False
    )
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    network.load_state_dict(task().initial(3))
    images, labels = site(0).tensors
    nn.CrossEntropyLoss()(network(images), labels).backward()
    for name, parameter in network.named_parameters():
        expected = parameter.detach() - 0.1 * parameter.grad
        torch.testing.assert_close(dict(run.model().named_parameters())[name], expected, check_dtype=False)


class Pairs(Dataset):
    """Data set as in PyTorch's documentation."""

    def __init__(self, data: TensorDataset) -> None:
        self.images, self.labels = data.tensors

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.images[row], int(self.labels[row])


def test_any_map_style_data_set_gives_the_same_run() -> None:
    pairs = {name: tuple(part and Pairs(part) for part in parts) for name, parts in sites().items()}
    runs = [
        medfl.run(task=task(), sites=data, rounds=1, seed=1, progress=False)  # type: ignore[arg-type]
        for data in (sites(), pairs)
    ]
    states = [run.model().state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert runs[0].data == runs[1].data


def test_runs_on_other_labels_are_not_taken_for_the_same() -> None:
    images, labels = site(0).tensors
    runs = [
        medfl.run(task=task(), sites={"a": (TensorDataset(images, each), None, None)}, rounds=1, progress=False)
        for each in (labels, 1 - labels)
    ]
    assert runs[0].data != runs[1].data


def test_a_method_object_is_as_good_as_its_name(tmp_path: Path) -> None:
    from medfl_methods.fedprox import FedProx

    by_name = medfl.run(
        task=task(), sites=sites(), method="fedprox", method_args={"mu": 0.5}, rounds=2, seed=1, progress=False
    )
    by_object = medfl.run(task=task(), sites=sites(), method=FedProx(mu=0.5), rounds=2, seed=1, progress=False)
    states = [run.model("b").state_dict() for run in (by_name, by_object)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_run_in_a_folder_continues_with_the_same_bits(tmp_path: Path) -> None:
    whole = medfl.run(task=task(), sites=sites(), rounds=3, seed=1, out=tmp_path / "whole", progress=False)
    medfl.run(task=task(), sites=sites(), rounds=1, seed=1, out=tmp_path / "parts", progress=False)
    rounds: list[int] = []
    parts = medfl.run(
        task=task(), sites=sites(), rounds=3, seed=1, out=tmp_path / "parts", progress=False,
        on_round=lambda round_, table: rounds.append(round_),
    )  # fmt: skip
    assert rounds == [2, 3, 3], "the last call brings the scores of round 3"
    assert all(torch.equal(parts.model().state_dict()[name], x) for name, x in whole.model().state_dict().items())
    read = medfl.load_run(tmp_path / "parts")
    scores = read.metrics[~read.metrics["metric"].str.contains("seconds")].reset_index(drop=True)
    expected = whole.metrics[~whole.metrics["metric"].str.contains("seconds")].reset_index(drop=True)
    pd.testing.assert_frame_equal(scores, expected)
    with refused(StoreError, "missing_model"):
        read.model("a")


def test_runs_are_compared_and_reported() -> None:
    pytest.importorskip("medfl_report")
    runs = [
        medfl.run(task=task(), sites=sites(), method=name, rounds=1, progress=False) for name in ("local", "fedavg")
    ]
    table = medfl.compare(runs, metrics=["accuracy"], baseline="local")
    assert list(table["label"]) == ["local", "fedavg"]
    assert isinstance(table.index, pd.RangeIndex)
    means = [runs[0].score(name, "accuracy") for name in ("a", "b")]
    assert table["mean"][0] == pytest.approx(sum(filter(None, means)) / 2)
    assert "<html" in runs[0].report().read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "incompatible_settings"),
        ({"bundle": "medmnist_classification", "task": True}, "incompatible_settings"),
        ({"task": True, "sites": "data"}, "wrong_setting_type"),
        ({"task": True, "sites": {"a": (None, None)}, "rounds": 1}, "wrong_setting_type"),
        ({"task": True, "sites": True}, "missing_setting"),
        ({"task": True, "sites": True, "rounds": 1, "roundz": 3}, "unknown_setting"),
        ({"bundle": "medmnist_classification", "sites": {"a": ()}}, "incompatible_settings"),
    ],
)
def test_wrong_arguments_are_refused_as_exceptions(arguments: dict, code: str) -> None:
    values = {"task": task(), "sites": sites()}
    arguments = {name: values[name] if value is True else value for name, value in arguments.items()}
    with pytest.raises(SettingsError) as caught:
        medfl.run(**arguments, progress=False)
    assert caught.value.code == code


def test_other_data_and_methods_are_refused() -> None:
    with refused(DataError, "wrong_type", found="list"):
        medfl.run(task=task(), sites={"a": ([1, 2], None, None)}, rounds=1, progress=False)
    with pytest.raises(PluginError, match="Did you mean 'fedprox'"):
        medfl.run(task=task(), sites=sites(), method="fedporx", rounds=1, progress=False)
    with pytest.raises(SettingsError):
        medfl.run(task=task(), sites=sites(), method=Averaging(), method_args={"mu": 1.0}, rounds=1, progress=False)  # type: ignore[arg-type]


# ---- with a bundle


def test_from_a_release_to_a_comparison(tmp_path: Path) -> None:
    pytest.importorskip("medfl_datasets")
    from medfl.plugins import load_plugins

    load_plugins().synthetic("folder")(tmp_path / "release", seed=0)
    release = tmp_path / "release"
    data = medfl.prepare(
        "folder", images=release / "images", table=release / "labels.csv", image_column="file",
        target="class:diagnosis", group_column="patient", site_column="hospital", size="10x15", out=tmp_path / "pool",
        workers=1,
    )  # fmt: skip
    assert list(data.counts) == ["site", "split", "class", "images"]
    assert data.counts["images"].sum() == sum(len(records) for records in data.lists["pooled"].splits.values())
    divided = medfl.partition(data, out=tmp_path / "sites", scheme="by_site", column="site", test_fraction=0.3)
    rounds: list[tuple[int, list[str]]] = []
    run = medfl.run(
        "medmnist_classification", divided, method="fedprox", method_args={"mu": 0.1}, rounds=1, steps=1,
        out=tmp_path / "run", optimizer__lr=0.02, progress=False,
        on_round=lambda round_, table: rounds.append((round_, list(table))),
    )  # fmt: skip
    assert rounds == [(1, METRICS), (1, METRICS)]
    assert run.run.provenance.settings["optimizer.lr"].value == 0.02
    assert run.run.provenance.settings["method_args.mu"].value == 0.1
    name = run.sites[0]
    stored = torch.load(tmp_path / "run" / "sites" / name / "models" / "model.pt", weights_only=True)
    assert all(torch.equal(run.model(name).state_dict()[key], value) for key, value in stored.items())
    again = medfl.load_run(tmp_path / "run")
    assert again.summary == run.summary
    pd.testing.assert_frame_equal(again.metrics, run.metrics)
    with refused(StoreError, "missing_model", path=str(tmp_path / "run" / "sites" / "nobody")):
        again.model("nobody")


def test_errors_of_every_step_are_exceptions(tmp_path: Path) -> None:
    with pytest.raises(PluginError):
        medfl.prepare("nothing", out=tmp_path / "a")
    with pytest.raises(SettingsError):
        medfl.prepare("folder", out=tmp_path / "a", imagez="b")
    with pytest.raises(DataError):
        medfl.partition(tmp_path / "none", out=tmp_path / "b")
    with pytest.raises(SettingsError):
        medfl.run("no_bundle", tmp_path)
    with refused(StoreError, "missing_run"):
        medfl.load_run(tmp_path)


# ---- the package


def test_importing_the_package_imports_neither_torch_nor_anything_heavy() -> None:
    code = (
        "import sys, medfl\n"
        "before = set(sys.modules)\n"
        "assert {'run', 'Task', 'compare'} <= set(dir(medfl))\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'monai', 'pydantic', 'pluggy'} & before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there_and_documented() -> None:
    for name in medfl.__all__:
        assert getattr(medfl, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        medfl.nothing  # noqa: B018
