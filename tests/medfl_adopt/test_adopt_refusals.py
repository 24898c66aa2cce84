"""``medfl adopt`` names unsupported parts, follows no links, and runs no code of a bundle."""

from __future__ import annotations

import contextlib
import pickle
import sys

import pytest
import torch
import yaml
import zoo_shapes
from damage import edit, put
from refusals import refused

from medfl.bundle.check import check_bundle
from medfl.cli.main import main
from medfl.errors import DataError, MedflError, SettingsError
from medfl_adopt.adopting import OVERLAY_FILE, PAGE_FILE, adopt, read_bundle
from medfl_adopt.adoption_page import render_page

ENGINES = [
    {
        "code": "unsupported_engine",
        "id": "train#trainer",
        "expected": "SupervisedTrainer",
        "found": "scripts.trainer.DetectionTrainer",
    },
    {
        "code": "unsupported_engine",
        "id": "validate#evaluator",
        "expected": "SupervisedEvaluator",
        "found": "scripts.evaluator.DetectionEvaluator",
    },
]


def test_a_trainer_of_its_own_is_refused_by_name(tmp_path):
    with refused(SettingsError, "several_problems", problems=ENGINES) as caught:
        adopt(zoo_shapes.lung_nodules(tmp_path / "bundle"), tmp_path / "out")
    assert "at 'train#trainer', got 'scripts.trainer.DetectionTrainer'" in str(caught.value)
    assert "at 'validate#evaluator', got 'scripts.evaluator.DetectionEvaluator'" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_all_missing_properties_come_in_one_message(spleen):
    def change(config):
        del config["dataset_dir"], config["train"]["inferer"], config["train"]["trainer"]["loss_function"]

    edit(spleen, "train.json", change)
    with refused(SettingsError, "several_problems") as caught:
        read_bundle(spleen)
    missing, dangling = caught.value.fields["problems"]
    ids = ["dataset_dir", "train#inferer", "train#trainer#loss_function"]
    assert missing == {"code": "missing_ids", "ids": ids}
    assert dangling["code"] == "dangling_reference"
    for text in ("dataset_dir (directory path of the dataset)", "#loss_function (loss)", "@dataset_dir is not defined"):
        assert text in str(caught.value)


def test_a_bundle_without_a_trainer_is_refused(spleen):
    edit(spleen, "train.json", lambda c: c["train"].pop("trainer"))
    with refused(SettingsError, "several_problems") as caught:
        read_bundle(spleen)
    ids = ["train#trainer", "train#trainer#max_epochs"]
    assert caught.value.fields["problems"][0] == {"code": "missing_ids", "ids": ids}


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (
            lambda c: c["train"]["trainer"].update(iteration_update="$own_step"),
            "unsupported_step",
            {"id": "train#trainer#iteration_update"},
        ),
        (
            lambda c: c["train"]["trainer"].update(network=["@network", "@network"]),
            "several_networks",
            {"id": "train#trainer", "network": 2},
        ),
        (
            lambda c: c["train"]["trainer"].update(_target_="monai.engines.GanTrainer"),
            "unsupported_engine",
            {"id": "train#trainer", "found": "monai.engines.GanTrainer"},
        ),
        (lambda c: c.update(rounds=3, method="mine"), "reserved_ids", {"ids": ["method", "rounds"]}),
        (
            lambda c: c["train"]["dataset"].update(data="$[@dataset_dir"),
            "invalid_expression",
            {"id": "train#dataset#data"},
        ),
    ],
    ids=["step", "networks", "gan", "taken", "no python"],
)
def test_what_no_federation_can_do_is_refused_by_name(spleen, change, code, fields):
    edit(spleen, "train.json", change)
    with refused(SettingsError, code, **fields):
        read_bundle(spleen)


def test_a_trainer_that_is_computed_is_refused(spleen):
    edit(spleen, "train.json", lambda c: c["train"].update(trainer="$make_trainer()"))
    with refused(SettingsError, "several_problems") as caught:
        read_bundle(spleen)
    problem = caught.value.fields["problems"][1]
    assert (problem["code"], problem["found"]) == ("unsupported_engine", "$make_trainer()")


def test_a_reference_that_leads_nowhere_is_refused(spleen):
    edit(spleen, "train.json", lambda c: c.update(loss="@nothing"))
    with refused(SettingsError, "dangling_reference") as caught:
        read_bundle(spleen)
    assert "@nothing is not defined" in str(caught.value)


def test_several_optimisers_are_refused(spleen):
    def change(config):
        config["second"] = {"_target_": "Novograd", "params": "$@network.parameters()"}
        config["train"]["handlers"].append({"_target_": "scripts.Step", "optimizer": "@second"})

    edit(spleen, "train.json", change)
    with refused(SettingsError, "several_networks", optimizers=["optimizer", "second"]):
        read_bundle(spleen)


def test_a_network_without_a_name_is_looked_for(spleen):
    edit(spleen, "train.json", lambda c: c.update(net=c.pop("network_def"), network="$@net.to(@device)"))
    assert read_bundle(spleen).parts.network == "net"
    edit(spleen, "train.json", lambda c: c.update(network="$make_network().to(@device)"))
    with refused(SettingsError, "several_networks", id="train#trainer", missing="network_def"):
        read_bundle(spleen)


# ---- files


def test_configurations_that_can_not_be_read_are_refused(spleen, tmp_path):
    put(spleen, "configs/evaluate.json", "{")
    configs = spleen / "configs"
    with refused(SettingsError, "invalid_config", path=str(configs / "evaluate.json")):
        read_bundle(spleen)
    put(spleen, "configs/evaluate.json", "[]")
    with refused(SettingsError, "wrong_type", path=str(configs / "evaluate.json"), found="list"):
        read_bundle(spleen)
    put(spleen, "configs/evaluate.json", "{}")
    put(spleen, "configs/train.yaml", "a: 1")
    with refused(SettingsError, "ambiguous_config", path=str(configs), files=["train.json", "train.yaml"]):
        read_bundle(spleen)
    (spleen / "configs" / "train.yaml").unlink()
    (spleen / "configs" / "train.json").rename(spleen / "configs" / "train_unet.json")
    with refused(SettingsError, "missing_training_config", path=str(spleen)) as caught:
        read_bundle(spleen)
    assert {"evaluate.json", "train_unet.json"} <= set(caught.value.fields["files"])
    with refused(SettingsError, "not_a_bundle", path=str(tmp_path / "nothing")):
        adopt(tmp_path / "nothing", tmp_path / "out")


def test_a_federations_bundle_is_not_adopted_again(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    with refused(SettingsError, "already_federated", path=str(tmp_path / "out"), file="federate.json"):
        adopt(tmp_path / "out", tmp_path / "more")


def test_nothing_is_overwritten(spleen, tmp_path):
    put(tmp_path, "out/mine.txt", "mine")
    with refused(DataError, "folder_not_empty", path=str(tmp_path / "out")):
        adopt(spleen, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    with refused(SettingsError, "output_inside_bundle", path=str(spleen / "out"), bundle=str(spleen)):
        adopt(spleen, spleen / "out")
    (tmp_path / "empty").mkdir()
    adopt(spleen, tmp_path / "empty")
    assert (tmp_path / "empty" / OVERLAY_FILE).is_file()


def test_the_copy_is_the_bundle_with_two_files_more(spleen, tmp_path):
    put(spleen, "scripts/own.py", "x = 1\n")
    (spleen / "models" / "model.pt").symlink_to("../docs/README.md")
    adopt(spleen, tmp_path / "out")
    files = {path.relative_to(spleen): path.read_bytes() for path in spleen.rglob("*") if path.is_file()}
    copied = {path.relative_to(tmp_path / "out"): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {path.as_posix() for path in copied.keys() - files.keys()} == {OVERLAY_FILE, PAGE_FILE}
    assert all(copied[name].read_bytes() == content for name, content in files.items())
    link = tmp_path / "out" / "models" / "model.pt"
    assert link.is_symlink()
    assert link.resolve() == (tmp_path / "out" / "docs" / "README.md").resolve()


def test_a_link_out_of_the_bundle_is_refused(spleen, tmp_path):
    put(tmp_path, "secret.txt", "")
    (spleen / "models" / "model.pt").symlink_to(tmp_path / "secret.txt")
    with refused(SettingsError, "links_outside_bundle", count=1, entries=["models/model.pt"]) as caught:
        adopt(spleen, tmp_path / "out")
    assert "cp -rL" in str(caught.value)
    assert not (tmp_path / "out").exists()


# ---- nothing runs


class Bomb:
    """Object that creates a file if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_no_code_of_a_bundle_runs(spleen, tmp_path, suffix):
    marker = tmp_path / "ran"
    run = f"$open({str(marker)!r}, 'w')"
    put(spleen, "scripts/__init__.py", f"open({str(marker)!r}, 'w')\n")

    def change(config):
        config["imports"] = ["$import scripts", run]
        config["initialize"], config["run"], config["device"] = [run], [run], run
        config["network_def"] = {"_target_": "scripts.Net", "out_channels": 2, "_disabled_": run}
        config["images"] = f"$[{run[1:]}] + list(glob.glob(@dataset_dir + '/images/*'))"
        config["train"]["trainer"]["amp"] = run
        config["val_interval"] = run

    edit(spleen, "train.json", change)
    if suffix == ".yaml":
        text = (spleen / "configs" / "train.json").read_text()
        (spleen / "configs" / "train.json").unlink()
        put(spleen, "configs/train.yaml", yaml.safe_dump(yaml.safe_load(text)))
    torch.save({"w": Bomb(marker)}, spleen / "models" / "model.pt")
    (spleen / "models" / "list.pkl").write_bytes(pickle.dumps(Bomb(marker)))
    adoption = adopt(spleen, tmp_path / "out")
    assert not marker.exists()
    assert "scripts" not in sys.modules
    assert adoption.amp is None
    text = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "`models/model.pt`: weights that need io.open: loading them can run code" in text
    assert "`models/list.pkl`: a pickle" in text
    assert f"initialize#0  {run}" in text
    assert "`scripts.Net`" in text


def test_references_in_a_circle_end(spleen):
    edit(spleen, "train.json", lambda c: c.update(images="$@labels + [@dataset_dir]", labels="$@images + []"))
    assert read_bundle(spleen).cases.train is not None
    edit(spleen, "train.json", lambda c: c.update(loss="@other", other="@loss"))
    assert read_bundle(spleen).objective.kind == "segmentation"


# ---- the command


def test_the_command_says_what_it_recognised(spleen, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["adopt", str(spleen), "--out", str(tmp_path / "out")])
    assert not end.value.code
    printed = capsys.readouterr().out
    assert "objective: segmentation" in printed
    assert "its folder must contain labelsTr/*.nii.gz" in printed
    text = (tmp_path / "out" / PAGE_FILE).read_text()
    assert "`fedprox`" in text
    with pytest.raises(SystemExit) as end:
        main(["adopt", str(spleen), "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert "is not empty" in capsys.readouterr().err


ODD = (None, -3, 1.5, "", "@", "@x", "@train", "$[", "$@images[:", "@####x", [], ["@a"], {}, {"_target_": 3})
"""Unexpected values in a configuration."""


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_no_content_of_a_configuration_raises_another_error(spleen, odd):
    text = (spleen / "configs" / "train.json").read_text()
    for path in ("loss", "images", "train", "train#trainer", "train#dataset#data", "train#handlers#0", "validate"):
        *parents, last = path.split("#")

        def change(config, parents=parents, last=last):
            for key in parents:
                config = config[int(key) if isinstance(config, list) else key]
            config[int(last) if isinstance(config, list) else last] = odd

        edit(spleen, "train.json", change)
        with contextlib.suppress(MedflError):
            render_page(read_bundle(spleen), check_bundle(spleen), [])
        put(spleen, "configs/train.json", text)


@pytest.mark.parametrize(
    ("network", "transform", "signs"),
    [
        (
            "DenseNet121",
            "SetLabelClassd",
            ("'SetLabelClassd' reduces the label to one value", "the network 'DenseNet121'"),
        ),
        ("UNet", "SetLabelClassd", ("'SetLabelClassd' reduces the label to one value",)),
        ("DenseNet121", None, ("the network 'DenseNet121' returns one vector for an image",)),
    ],
)
def test_a_mask_that_becomes_a_class_contradicts_a_mask_that_is_learned(network, transform, signs, tmp_path):
    """pathology_nuclei_classification has cross-entropy, five channels, and a label that is read as an image."""

    def change(config):
        config["network_def"] = {"_target_": network, "spatial_dims": 2, "in_channels": 3, "out_channels": 5}
        config["loss"] = {"_target_": "torch.nn.CrossEntropyLoss"}
        steps = config["train"]["preprocessing"]["transforms"]
        steps += [{"_target_": transform, "keys": "label"}] if transform else []
        config["train"]["postprocessing"] = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
        config["validate"]["key_metric"] = {"val_acc": {"_target_": "ignite.metrics.Accuracy"}}

    edit(zoo_shapes.tools(tmp_path / "bundle"), "train.json", change)
    with refused(SettingsError, "ambiguous_objective", kinds=[]) as caught:
        read_bundle(tmp_path / "bundle")
    for sign in (*signs, "'label' is read as an image"):
        assert any(sign in text for text in caught.value.fields["signs"])
