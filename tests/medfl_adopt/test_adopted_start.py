"""A federation over an adopted bundle starts from the bundle's weights, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import zoo_shapes
from damage import edit
from refusals import refused
from typer.testing import CliRunner
from zoo_sites import make_sites

from medfl.bundle.federation import read_federation
from medfl.cli.main import app
from medfl.engine.runs.folder import begun_run
from medfl.errors import SettingsError
from medfl.networks.transfer.frozen import full_state_dict
from medfl_adopt.adopting import adopt


def read(folder: Path, **options):
    places = {"bundle_root": str(folder / "out"), "dataset_dir": str(folder / "D"), "output_dir": str(folder / "run")}
    fixed = {"rounds": 1, "epochs": 0, "device": "cpu"}
    return read_federation(folder / "out", fixed | places | options)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a stock bundle without weights, and two sites."""
    zoo_shapes.tools(tmp_path / "stock")
    make_sites(zoo_shapes.tools, tmp_path / "D", 3)
    return tmp_path


def save(folder: Path, name: str, value: float) -> dict[str, torch.Tensor]:
    """Save weights of the bundle's network, all with one value, in a bundle."""
    adopt(folder / "stock", folder / "shapes")
    places = {"bundle_root": str(folder / "shapes"), "dataset_dir": str(folder / "D")}
    model = read_federation(folder / "shapes", places).task.build()
    state = {name: torch.full_like(tensor, value) for name, tensor in full_state_dict(model).items()}
    torch.save(state, folder / "stock" / "models" / name)
    return state


def test_the_bundles_weights_are_the_start_and_none_disables_it(place: Path) -> None:
    state = save(place, "model.pt", 0.125)
    assert adopt(place / "stock", place / "out").start == "models/model.pt"
    result = read(place).simulate()
    model = result.outcome.models["global"].tensors
    assert model.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.items())
    run = begun_run(place / "run")
    assert run.identity.task.start == run.provenance.start.sha256
    assert run.provenance.settings["start"].origin == "bundle"
    assert "model.pt" in run.provenance.start.title
    drawn = read(place, start="none", output_dir=str(place / "drawn")).simulate()
    assert not any(torch.equal(tensor, state[name]) for name, tensor in drawn.outcome.models["global"].tensors.items())
    assert begun_run(place / "drawn").identity.task.start is None


def test_the_training_loader_names_the_file(place: Path) -> None:
    def change(config):
        loader = {
            "_target_": "CheckpointLoader",
            "load_path": "$@bundle_root + '/models/before.pt'",
            "load_dict": {"model": "@network"},
        }
        config["train"]["handlers"].append(loader)

    save(place, "model.pt", 0.5)
    edit(place / "stock", "train.json", change)
    (place / "stock" / "models" / "model.pt").rename(place / "stock" / "models" / "before.pt")
    torch.save({}, place / "stock" / "models" / "model.pt")
    assert adopt(place / "stock", place / "out").start == "models/before.pt"
    overlay = json.loads((place / "out" / "configs" / "federate.json").read_text())
    assert overlay["settings"]["start"] == "bundle:before.pt"
    assert all(
        bool((tensor == 0.5).all()) for tensor in read(place).simulate().outcome.models["global"].tensors.values()
    )


def test_without_weights_a_federation_starts_from_random_ones(place: Path) -> None:
    assert adopt(place / "stock", place / "out").start is None
    overlay = json.loads((place / "out" / "configs" / "federate.json").read_text())
    assert "start" not in overlay["settings"]
    assert read(place).simulate().outcome.status == "finished"


@pytest.mark.parametrize("is_there", [True, False])
def test_command_and_page_say_it(place: Path, is_there: bool) -> None:
    if is_there:
        save(place, "model.pt", 0.5)
    result = CliRunner().invoke(app, ["adopt", str(place / "stock"), "--out", str(place / "out")])
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("start: ")]
    assert ("models/model.pt" in line) == ("--start none" in line) == is_there
    assert line.removeprefix("start: ") in (place / "out" / "docs" / "federate.md").read_text()


def test_weights_of_another_network_are_refused_by_name(place: Path) -> None:
    state = save(place, "model.pt", 0.5)
    first = next(iter(state))
    torch.save(
        {("other" if name == first else name): tensor for name, tensor in state.items()},
        place / "stock" / "models" / "model.pt",
    )
    adopt(place / "stock", place / "out")
    with refused(SettingsError, "wrong_tensor_names", missing=[first], unknown=["other"]):
        read(place).simulate()
    assert not (place / "run" / "run.json").exists()
