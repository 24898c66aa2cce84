"""Every id of an adopted bundle is used, refused or listed as ignored; an ambiguous name is refused."""

from __future__ import annotations

import json

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
from medfl.records.run_file import SettingOrigin
from medfl.settings import Lora
from medfl_adopt.adopting import adopt, read_bundle
from medfl_adopt.bundle import AdoptedBundle

FREEZE = "$[@network_def.to(@device), [p.requires_grad_(False) for p in @network_def.model[0].parameters()]][0]"
"""Freezes the first part of the network; the rest learns."""


def read(folder, **options):
    places = {"bundle_root": str(folder / "out"), "dataset_dir": str(folder / "D"), "output_dir": str(folder / "run")}
    return read_federation(folder / "out", {"rounds": 1, "device": "cpu"} | places | options)


def adopted(folder, change=lambda config: None):
    """Make an adopted bundle of tools with a change, and two sites."""
    edit(zoo_shapes.tools(folder / "stock"), "train.json", change)
    adoption = adopt(folder / "stock", folder / "out")
    make_sites(zoo_shapes.tools, folder / "D", 3)
    return adoption


def own_epochs(config):
    """Add an id with a setting's name that only the trainer uses, as in spleen_ct_segmentation."""
    config["epochs"] = 1
    config["train"]["trainer"]["max_epochs"] = "@epochs"


def test_a_setting_is_honoured_though_an_id_that_no_run_builds_has_its_name(tmp_path):
    adopted(tmp_path, own_epochs)
    for option in ("epochs", "settings#epochs"):
        run = read(tmp_path, **{option: 3})
        assert run.settings["epochs"] == 3
        assert read(tmp_path).settings.get("epochs", 1) == 1
    read(tmp_path, epochs=2).simulate()
    assert begun_run(tmp_path / "run").provenance.settings["epochs"] == SettingOrigin(
        value=2, origin=read(tmp_path).given_by
    )


def test_a_name_that_means_two_things_is_refused(tmp_path):
    """The sites' transforms use the id `steps`, so `--steps` is no longer only the setting."""

    def change(config):
        config["steps"] = 8
        config["train"]["preprocessing"]["transforms"][2]["spatial_size"] = ["@steps", "@steps"]

    adopted(tmp_path, change)
    with refused(SettingsError, "ambiguous_option", option="steps"):
        read(tmp_path, steps=4)
    assert read(tmp_path, **{"settings#steps": 4}).settings["steps"] == 4
    bundle = AdoptedBundle(tmp_path / "out", {"steps": 4})
    assert bundle.parser(tmp_path / "D" / "north")["steps"] == 4


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("train#dataloader#shuffle", "shuffles the cases with the run's seed"),
        ("train#trainer#max_epochs", "the settings rounds and epochs"),
        ("train#handlers#0#interval", "a federation evaluates after rounds"),
        ("validate#handlers", "lists the ids that a run builds"),
        ("val_interval", "only ignored ids refer to it"),
    ],
)
def test_an_option_without_an_effect_is_refused_with_its_reason(option, reason, tmp_path):
    adopted(tmp_path, lambda config: config["train"]["dataloader"].update(shuffle=False))
    with refused(SettingsError, "option_without_effect", options=[option]) as caught:
        read(tmp_path, **{option: "1"})
    assert reason in str(caught.value)
    with refused(SettingsError, "option_without_effect", options=[option]):
        AdoptedBundle(tmp_path / "out", {option: 1})


def test_monais_own_command_refuses_a_setting_whose_name_an_id_has(tmp_path, monkeypatch):
    adopted(tmp_path, own_epochs)
    program = str(tmp_path / "monai" / "bundle" / "__main__.py")
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset_dir", "D", "--epochs", "3"])
    with refused(SettingsError, "misplaced_setting", settings=["epochs"]):
        read(tmp_path).run()


def test_the_network_is_what_the_trainer_has(tmp_path):
    """The network is frozen by the bundle's expression, and by an expression given as an option."""
    adoption = adopted(tmp_path, lambda config: config.update(network=FREEZE))
    assert adoption.parts.ids()["trained"] == "network"
    task = read(tmp_path).task
    frozen = set(task.frozen())
    assert frozen == {
        name for name in full_state_dict(task.build()) if name.startswith("model.0.") and "norm" not in name
    }
    assert not frozen & task.initial(0).keys()
    filled = "$[@network_def.to(@device), [p.data.fill_(0.5) for p in @network_def.parameters()]][0]"
    tensors = read(tmp_path, network=filled).task.initial(0)
    assert all(bool((tensor == 0.5).all()) for name, tensor in tensors.items() if name.endswith(("weight", "bias")))
    with refused(SettingsError, "not_a_network", id="network", found="int"):
        read(tmp_path, **{"network": "$1", "optimizer#params": "$@network_def.parameters()"})


def test_parameters_that_the_optimiser_does_not_have_are_frozen(tmp_path):
    adopted(tmp_path, lambda config: config["optimizer"].update(params="$@network.model[2].parameters()"))
    task = read(tmp_path).task
    assert task.frozen()
    assert all(not name.startswith("model.2.") for name in task.frozen())
    learned = {name for name, p in task.build().named_parameters() if p.requires_grad}
    assert learned
    assert all(name.startswith("model.2.") for name in learned)


def test_a_site_exports_frozen_parameters(tmp_path):
    adopted(tmp_path, lambda config: config.update(network=FREEZE))
    run = read(tmp_path)
    run.simulate()
    taken = torch.load(tmp_path / "run" / "sites" / "north" / "models" / "model.pt", weights_only=True)
    assert taken.keys() == full_state_dict(run.task.build()).keys()
    assert all(torch.equal(taken[name], tensor) for name, tensor in run.task.frozen().items())


def test_a_site_exports_merged_adapters(tmp_path):
    adopted(tmp_path)
    run = read(tmp_path, train_part="lora", **{"lora#rank": 2, "lora#aggregation": "exact"})
    run.simulate()
    taken = torch.load(tmp_path / "run" / "sites" / "north" / "models" / "model.pt", weights_only=True)
    plain = run.task.build()
    plain.load_state_dict(taken)
    begun = run.task.with_training_of("lora", Lora(rank=2, aggregation="exact")).frozen()
    changed = [name for name in taken if name in begun and not torch.equal(taken[name], begun[name])]
    assert changed
    assert all(name.endswith("conv.weight") for name in changed)


@pytest.mark.parametrize("sequence", ["initialize", "run"])
def test_a_step_that_changes_the_network_beside_the_training_is_refused(sequence, tmp_path):
    def change(config):
        config["freeze"] = "$[p.requires_grad_(False) for p in @network.parameters()]"
        config[sequence] = ["$@freeze", *config[sequence]]

    edit(zoo_shapes.tools(tmp_path / "stock"), "train.json", change)
    with refused(SettingsError, "lost_step", id=f"{sequence}#0", step="$@freeze", conflict="network"):
        read_bundle(tmp_path / "stock")


def test_the_command_lists_what_is_left_out_and_lost_weights_first(tmp_path):
    def change(config):
        loader = {"_target_": "CheckpointLoader", "load_path": "models/model.pt", "load_dict": {"model": "@network"}}
        config["train"]["handlers"].append(loader)
        config["train"]["dataloader"]["shuffle"] = False
        config["unfreeze_at"] = 5

    edit(zoo_shapes.tools(tmp_path / "stock"), "train.json", change)
    result = CliRunner().invoke(app, ["adopt", str(tmp_path / "stock"), "--out", str(tmp_path / "out")])
    lines = result.stdout.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("ignored"))
    assert "'CheckpointLoader' (train#handlers#2): it would overwrite the weights of the round" in lines[start + 1]
    assert "the id 'unfreeze_at'" in lines[start + 2]
    assert any("'train#dataloader#shuffle': each epoch shuffles" in line for line in lines)
    page = (tmp_path / "out" / "docs" / "federate.md").read_text()
    entries = json.loads((tmp_path / "out" / "configs" / "federate.json").read_text())["adopted"]["ignored"]
    assert len(entries) == sum(line.startswith("  ") for line in lines[start + 1 : start + 1 + len(entries)])
    assert all(entry["what"] in page for entry in entries)


def test_every_id_is_used_or_listed(tmp_path):
    """No id is missing from both the used and the ignored ids."""
    for shape in (zoo_shapes.spleen, zoo_shapes.tools, zoo_shapes.in_body, zoo_shapes.brain_tumours):
        adoption = read_bundle(shape(tmp_path / shape.__name__))
        content = json.loads((tmp_path / shape.__name__ / "configs" / "train.json").read_text())
        listed = [entry.id for entry in adoption.ignored]
        for top, value in content.items():
            parts = [f"{top}#{name}" for name in value] if top in ("train", "validate") else [top]
            for id_ in parts:
                engine = id_ in ("run", "train#trainer", "train#handlers", "validate#handlers")
                inside = any(entry == id_ or entry.startswith(f"{id_}#") for entry in listed)
                assert adoption.used.has_effect(id_) or inside or engine, id_
