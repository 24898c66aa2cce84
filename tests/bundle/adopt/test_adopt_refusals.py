"""``medfl adopt`` refuses by name what it can't do, copies without following links, and runs nothing of a bundle."""

from __future__ import annotations

import contextlib
import pickle
import sys

import pytest
import torch
import yaml
import zoo_shapes
from damage import edit, put

from medfl.bundle.adopt import OVERLAY, PAGE, adopt, read_bundle
from medfl.bundle.adopt.page import page
from medfl.bundle.check import check_bundle
from medfl.cli.main import main
from medfl.errors import DataError, MedflError, SettingsError


def test_a_trainer_of_its_own_is_refused_by_name(tmp_path):
    with pytest.raises(SettingsError) as error:
        adopt(zoo_shapes.lung_nodules(tmp_path / "bundle"), tmp_path / "out")
    assert "'train#trainer' is 'scripts.trainer.DetectionTrainer': expected MONAI's SupervisedTrainer" in str(
        error.value
    )
    assert "'validate#evaluator' is 'scripts.evaluator.DetectionEvaluator'" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_all_missing_properties_come_in_one_message(spleen):
    def change(config):
        del config["dataset_dir"], config["train"]["inferer"], config["train"]["trainer"]["loss_function"]

    edit(spleen, "train.json", change)
    with pytest.raises(SettingsError) as error:
        read_bundle(spleen)
    assert "3 ids are missing: dataset_dir (directory path of the dataset), train#inferer" in str(error.value)
    assert "train#trainer#loss_function (its loss)" in str(error.value)
    assert "@dataset_dir is not defined" in str(error.value)


def test_a_bundle_without_a_trainer_is_refused(spleen):
    edit(spleen, "train.json", lambda c: c["train"].pop("trainer"))
    with pytest.raises(SettingsError, match=r"train#trainer \(training workflow engine\), train#trainer#max_epochs"):
        read_bundle(spleen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["train"]["trainer"].update(iteration_update="$own_step"), "'train#trainer#iteration_update' puts"),
        (lambda c: c["train"]["trainer"].update(network=["@network", "@network"]), "'train#trainer#network' holds 2"),
        (lambda c: c["train"]["trainer"].update(_target_="monai.engines.GanTrainer"), "is 'monai.engines.GanTrainer'"),
        (lambda c: c["train"].update(trainer="$make_trainer()"), r"'train#trainer' is '\$make_trainer\(\)'"),
        (lambda c: c.update(loss="@nothing"), "@nothing is not defined"),
        (lambda c: c.update(rounds=3, method="mine"), "ids of its own that a federation needs: method, rounds"),
        (lambda c: c["train"]["dataset"].update(data="$[@dataset_dir"), "is no expression that can be read"),
    ],
    ids=["step", "networks", "gan", "computed", "loose", "taken", "no python"],
)
def test_what_no_federation_can_do_is_refused_by_name(spleen, change, message):
    edit(spleen, "train.json", change)
    with pytest.raises(SettingsError, match=message):
        read_bundle(spleen)


def test_several_optimisers_are_refused(spleen):
    def change(config):
        config["second"] = {"_target_": "Novograd", "params": "$@network.parameters()"}
        config["train"]["handlers"].append({"_target_": "scripts.Step", "optimizer": "@second"})

    edit(spleen, "train.json", change)
    with pytest.raises(SettingsError, match="the trainer uses 2 optimisers: optimizer, second"):
        read_bundle(spleen)


def test_a_network_without_a_name_is_looked_for(spleen):
    edit(spleen, "train.json", lambda c: c.update(net=c.pop("network_def"), network="$@net.to(@device)"))
    assert read_bundle(spleen).parts.network == "net"
    edit(spleen, "train.json", lambda c: c.update(network="$make_network().to(@device)"))
    with pytest.raises(SettingsError, match="the network's definition can't be told from 'train#trainer#network'"):
        read_bundle(spleen)


# ---- files


def test_configurations_that_can_not_be_read_are_refused(spleen, tmp_path):
    put(spleen, "configs/evaluate.json", "{")
    with pytest.raises(SettingsError, match="evaluate.json' can't be read"):
        read_bundle(spleen)
    put(spleen, "configs/evaluate.json", "[]")
    with pytest.raises(SettingsError, match="expected an object of ids, got a list"):
        read_bundle(spleen)
    put(spleen, "configs/evaluate.json", "{}")
    put(spleen, "configs/train.yaml", "a: 1")
    with pytest.raises(SettingsError, match=r"has both 'train.json' and 'train.yaml'"):
        read_bundle(spleen)
    (spleen / "configs" / "train.yaml").unlink()
    (spleen / "configs" / "train.json").rename(spleen / "configs" / "train_unet.json")
    with pytest.raises(SettingsError, match=r"there are: evaluate.json, .*train_unet.json. Where"):
        read_bundle(spleen)
    with pytest.raises(SettingsError, match="is no MONAI bundle: expected the folder"):
        adopt(tmp_path / "nothing", tmp_path / "out")


def test_a_federations_bundle_is_not_adopted_again(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    with pytest.raises(SettingsError, match="is a federation's bundle"):
        adopt(tmp_path / "out", tmp_path / "more")


def test_nothing_is_overwritten(spleen, tmp_path):
    put(tmp_path, "out/mine.txt", "mine")
    with pytest.raises(DataError, match="is not empty"):
        adopt(spleen, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
    with pytest.raises(SettingsError, match="is in the bundle"):
        adopt(spleen, spleen / "out")
    (tmp_path / "empty").mkdir()
    adopt(spleen, tmp_path / "empty")
    assert (tmp_path / "empty" / OVERLAY).is_file()


def test_the_copy_is_the_bundle_with_two_files_more(spleen, tmp_path):
    put(spleen, "scripts/own.py", "x = 1\n")
    (spleen / "models" / "model.pt").symlink_to("../docs/README.md")
    adopt(spleen, tmp_path / "out")
    files = {path.relative_to(spleen): path.read_bytes() for path in spleen.rglob("*") if path.is_file()}
    copied = {path.relative_to(tmp_path / "out"): path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {path.as_posix() for path in copied.keys() - files.keys()} == {OVERLAY, PAGE}
    assert all(copied[name].read_bytes() == content for name, content in files.items())
    link = tmp_path / "out" / "models" / "model.pt"
    assert link.is_symlink()
    assert link.resolve() == (tmp_path / "out" / "docs" / "README.md").resolve()


def test_a_link_out_of_the_bundle_is_refused(spleen, tmp_path):
    put(tmp_path, "secret.txt", "")
    (spleen / "models" / "model.pt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(SettingsError, match=r"1 links that lead out of it .*'models/model.pt'.*cp -rL"):
        adopt(spleen, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- nothing runs


class Bomb:
    """Unpickling it would make a file."""

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
    text = (tmp_path / "out" / PAGE).read_text()
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
    assert "its folder holds labelsTr/*.nii.gz" in printed
    text = (tmp_path / "out" / PAGE).read_text()
    assert "`fedprox`" in text
    with pytest.raises(SystemExit) as end:
        main(["adopt", str(spleen), "--out", str(tmp_path / "out")])
    assert end.value.code == 2
    assert "is not empty" in capsys.readouterr().err


ODD = (None, -3, 1.5, "", "@", "@x", "@train", "$[", "$@images[:", "@####x", [], ["@a"], {}, {"_target_": 3})
"""What nobody expects in a configuration."""


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_whatever_stands_in_a_configuration_there_is_no_other_error(spleen, odd):
    text = (spleen / "configs" / "train.json").read_text()
    for path in ("loss", "images", "train", "train#trainer", "train#dataset#data", "train#handlers#0", "validate"):
        *parents, last = path.split("#")

        def change(config, parents=parents, last=last):
            for key in parents:
                config = config[int(key) if isinstance(config, list) else key]
            config[int(last) if isinstance(config, list) else last] = odd

        edit(spleen, "train.json", change)
        with contextlib.suppress(MedflError):
            page(read_bundle(spleen), check_bundle(spleen), [])
        put(spleen, "configs/train.json", text)


@pytest.mark.parametrize(
    ("network", "transform", "signs"),
    [
        (
            "DenseNet121",
            "SetLabelClassd",
            ("'SetLabelClassd' makes one value of the label", "the network 'DenseNet121'"),
        ),
        ("UNet", "SetLabelClassd", ("'SetLabelClassd' makes one value of the label",)),
        ("DenseNet121", None, ("the network 'DenseNet121' gives one vector for an image",)),
    ],
)
def test_a_mask_that_becomes_a_class_contradicts_a_mask_that_is_learned(network, transform, signs, tmp_path):
    """As in pathology_nuclei_classification: cross-entropy, five channels, and the label is read as an image."""

    def change(config):
        config["network_def"] = {"_target_": network, "spatial_dims": 2, "in_channels": 3, "out_channels": 5}
        config["loss"] = {"_target_": "torch.nn.CrossEntropyLoss"}
        steps = config["train"]["preprocessing"]["transforms"]
        steps += [{"_target_": transform, "keys": "label"}] if transform else []
        config["train"]["postprocessing"] = {"_target_": "Activationsd", "keys": "pred", "softmax": True}
        config["validate"]["key_metric"] = {"val_acc": {"_target_": "ignite.metrics.Accuracy"}}

    edit(zoo_shapes.tools(tmp_path / "bundle"), "train.json", change)
    with pytest.raises(SettingsError, match="the signs contradict one another") as caught:
        read_bundle(tmp_path / "bundle")
    for sign in (*signs, "'label' is read as an image"):
        assert sign in str(caught.value)
