"""``medfl adopt`` on bundles in the forms of MONAI's zoo: recognized objectives with reasons, and case lists."""

from __future__ import annotations

import json

import pytest
import zoo_shapes
from damage import edit
from refusals import refused

from medfl.bundle.check import check_bundle
from medfl.errors import DataError, SettingsError
from medfl_adopt.adopting import OVERLAY_FILE, PAGE_FILE, adopt, read_bundle
from medfl_adopt.cases import check_folder
from medfl_adopt.ignored_entries import UNKNOWN_HANDLER_REASON

SHAPES = {
    zoo_shapes.spleen: ("segmentation", "one_list", ("imagesTr/*.nii.gz", "labelsTr/*.nii.gz")),
    zoo_shapes.tools: (
        "segmentation",
        "own_lists",
        ("train/inputs/*.png", "train/masks/*.png", "val/inputs/*.png", "val/masks/*.png"),
    ),
    zoo_shapes.brain_tumours: ("overlapping_segmentation", "own_lists", ("datalist.json",)),
    zoo_shapes.in_body: ("binary", "own_lists", ("train_samples.json", "val_samples.json")),
    zoo_shapes.hippocampus: ("segmentation", "dataset_dir", ("Task04_Hippocampus/dataset.json",)),
}
"""Shape to the kind of its objective, the mode of its cases, and what a site's folder must hold."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_each_shape_is_adopted_with_its_objective_and_the_reasons(shape, tmp_path):
    kind, mode, needs = SHAPES[shape]
    out = tmp_path / "out"
    adoption = adopt(shape(tmp_path / "bundle"), out)
    assert (adoption.objective.kind, adoption.cases.mode, adoption.cases.needs) == (kind, mode, needs)
    assert all(kind in sign.kinds for sign in adoption.objective.signs)
    adopted = json.loads((out / OVERLAY_FILE).read_text())["adopted"]
    assert adopted["objective"]["name"] == kind.removeprefix("overlapping_")
    assert adopted["objective"]["overlapping"] == kind.startswith("overlapping_")
    text = (out / PAGE_FILE).read_text()
    assert f"**{kind}**" in text
    assert all(need in text for need in needs)
    for sign in adoption.objective.signs:
        assert sign.text[1:] in text
    report = check_bundle(out)  # the overlay lies over the bundle without a loose end
    (name,) = [path.name for path in (out / "configs").glob("train.*")]
    assert f"configs/{name} + federate.json: all references resolve" in report.notes


def test_the_signs_of_overlapping_masks(tmp_path):
    signs = [sign.text for sign in read_bundle(zoo_shapes.brain_tumours(tmp_path / "b")).objective.signs]
    assert "the loss 'DiceLoss' with to_onehot_y false, sigmoid true (loss)" in signs
    assert any(sign.startswith("'ConvertToMultiChannelBasedOnBratsClassesd' makes a channel") for sign in signs)
    assert "the network has 3 output channels (network_def#out_channels)" in signs


def test_the_overlay_names_every_part_by_its_id(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    overlay = json.loads((tmp_path / "out" / OVERLAY_FILE).read_text())
    parts = overlay["adopted"]["parts"]
    assert parts["network"] == "network_def"
    assert (parts["loss"], parts["optimizer"], parts["amp"]) == ("loss", "optimizer", "train#trainer#amp")
    assert (parts["train_inferer"], parts["val_inferer"]) == ("train#inferer", "validate#inferer")
    assert (parts["evaluator"], parts["prepare_batch"]) == ("validate#evaluator", None)
    assert overlay["adopted"]["amp"] is True
    assert overlay["settings"]["batch_size"] == "@train#dataloader#batch_size"
    facts = json.dumps(overlay["adopted"])  # nothing in it that MONAI would evaluate
    assert "$" not in facts
    assert "@" not in facts


def test_a_schedule_of_the_learning_rate_is_noted(tmp_path):
    adoption = read_bundle(zoo_shapes.brain_tumours(tmp_path / "b"))
    assert adoption.parts.lr_schedule == "lr_scheduler"
    assert any("LrScheduleHandler" in entry.what for entry in adoption.ignored)


def test_what_is_left_out_is_said_with_its_reason(spleen, tmp_path):
    adoption = adopt(spleen, tmp_path / "out")
    left_out = {entry.what: entry for entry in adoption.ignored}
    assert "handler 'CheckpointSaver' (validate#handlers#1)" in "".join(left_out)
    launcher = left_out["the multi-GPU launcher 'configs/multi_gpu_train.json'"]
    assert launcher.why == "a site trains in one process on one device"
    text = (tmp_path / "out" / PAGE_FILE).read_text()
    assert all(entry.what in text and entry.why in text and entry.instead in text for entry in adoption.ignored)


def test_a_handler_of_the_bundle_is_left_out_by_name(spleen, tmp_path):
    edit(spleen, "train.json", lambda c: c["train"]["handlers"].append({"_target_": "scripts.own.Handler"}))
    entry = next(entry for entry in read_bundle(spleen).ignored if "'Handler'" in entry.what)
    assert entry.why == UNKNOWN_HANDLER_REASON[0]


@pytest.mark.parametrize("name", ["sampler", "drop_last", "repeats"])
def test_what_a_loader_does_beside_batches_is_left_out_by_name(spleen, name):
    edit(spleen, "train.json", lambda c: c["train"]["dataloader"].update({name: True}))
    assert f"'train#dataloader#{name}'" in {entry.what for entry in read_bundle(spleen).ignored}


# ---- where published bundles differ


def test_engines_may_stand_at_the_top(spleen, tmp_path):
    """The trainer of the zoo's templates gets the data set through its loader, and has no inferer."""
    before = read_bundle(spleen)

    def change(config):
        config["trainer"], config["evaluator"] = config["train"].pop("trainer"), config["validate"].pop("evaluator")
        config["trainer"].pop("inferer"), config["train"].pop("inferer")
        config["train"]["handlers"][0]["validator"] = "@evaluator"
        config["train_set"] = config["train"].pop("dataset")
        config["train"]["dataloader"]["dataset"] = "@train_set"
        config["run"] = ["$@trainer.run()"]

    edit(spleen, "train.json", change)
    adoption = adopt(spleen, tmp_path / "out")
    assert (adoption.parts.trainer, adoption.parts.evaluator) == ("trainer", "evaluator")
    assert (adoption.parts.train_dataset, adoption.parts.train_inferer) == ("train_set", None)
    assert adoption.objective == before.objective
    assert adoption.cases.train_list == before.cases.train_list
    edit(spleen, "train.json", lambda c: c["trainer"].pop("optimizer"))
    with refused(SettingsError, "missing_ids", ids=["trainer#optimizer"]):
        read_bundle(spleen)


def test_monais_constants_for_keys_are_read(spleen):
    text = (spleen / "configs" / "train.json").read_text()
    keys = text.replace('"pred"', '"$monai.utils.CommonKeys.PRED"').replace(
        '"label"', '"$monai.utils.CommonKeys.LABEL"'
    )
    before = read_bundle(spleen).objective
    (spleen / "configs" / "train.json").write_text(keys)
    assert read_bundle(spleen).objective == before


def test_a_list_in_a_file_of_the_bundle_is_a_sites_own(in_body):
    edit(in_body, "train.json", lambda c: c.update(train_json="$@bundle_root + '/label/train_samples.json'"))
    edit(in_body, "train.json", lambda c: c.update(val_json="$@bundle_root + '/label/val_samples.json'"))
    assert not read_bundle(in_body).cases.relative  # its paths begin at dataset_dir
    for name in ("train", "val"):
        edit(in_body, "train.json", lambda c, n=name: c.update({f"{n}_datalist": f"$json.load(open(@{n}_json))"}))
    cases = read_bundle(in_body).cases
    assert cases.relative
    assert cases.needs == ("train_samples.json", "val_samples.json")
    assert cases.list_files == {"train_json": "label/train_samples.json", "val_json": "label/val_samples.json"}


def test_a_path_within_what_only_running_shows_is_needed(spleen):
    """The contents of a table of cases are unknown, but its path is needed."""
    text = "$list(@dataset_dir + pd.read_csv(@dataset_dir + 'train.csv').{})"
    edit(spleen, "train.json", lambda c: c.update(images=text.format("t2"), labels=text.format("mask")))
    assert read_bundle(spleen).cases.needs == ("train.csv",)


@pytest.mark.parametrize(
    "target", ["monai.data.wsi_datasets.PatchWSIDataset", "scripts.data.Dataset", "GridPatchDataset"]
)
def test_a_data_set_that_makes_cases_in_its_own_way_is_refused(spleen, target):
    edit(spleen, "train.json", lambda c: c["train"]["dataset"].update(_target_=target))
    with refused(SettingsError, "unsupported_dataset", id="train#dataset", found=target):
        read_bundle(spleen)


# ---- the objective


def loss(target, **arguments):
    def change(config):
        config["loss"] = {"_target_": target, **arguments}
        config["train"]["postprocessing"] = {"_target_": "Compose", "transforms": []}

    return change


def outputs(number):
    return lambda config: config["network_def"].update(out_channels=number)


@pytest.mark.parametrize(
    ("target", "number", "kind"),
    [
        ("torch.nn.CrossEntropyLoss", 2, "binary"),
        ("torch.nn.CrossEntropyLoss", 5, "multiclass"),
        ("torch.nn.BCEWithLogitsLoss", 1, "binary"),
        ("torch.nn.BCEWithLogitsLoss", 14, "multilabel"),
        ("torch.nn.MSELoss", 1, "regression"),
        ("scripts.losses.CoxLoss", 1, "survival"),
    ],
)
def test_losses_and_channels_show_the_objective_of_an_image(in_body, target, number, kind):
    edit(in_body, "train.json", loss(target))
    edit(in_body, "train.json", outputs(number))
    edit(in_body, "train.json", lambda c: c["validate"].update(key_metric=None))
    edit(in_body, "train.json", lambda c: c["train"].update(key_metric=None))
    assert read_bundle(in_body).objective.kind == kind


def test_an_image_as_label_makes_a_class_a_mask(spleen):
    edit(spleen, "train.json", loss("torch.nn.CrossEntropyLoss"))
    assert read_bundle(spleen).objective.kind == "segmentation"


def test_deep_supervision_is_looked_through(spleen):
    inner = {"_target_": "DiceLoss", "sigmoid": True}
    edit(spleen, "train.json", loss("DeepSupervisionLoss", loss=inner))
    assert read_bundle(spleen).objective.kind == "overlapping_segmentation"


def test_who_is_unsure_says_so_and_takes_what_is_given(in_body, tmp_path):
    edit(in_body, "train.json", loss("scripts.losses.Own"))
    edit(in_body, "train.json", outputs("$len(@classes)"))
    edit(in_body, "train.json", lambda c: c.update(classes=["a", "b"]))
    (in_body / "configs" / "metadata.json").unlink()
    kinds = ["binary", "multiclass", "multilabel"]
    with refused(SettingsError, "ambiguous_objective", kinds=kinds) as caught:
        adopt(in_body, tmp_path / "out")
    assert "--objective, one of: multiclass, binary" in str(caught.value)
    assert any(sign.startswith("the key metric 'ROCAUC'") for sign in caught.value.fields["signs"])
    assert not (tmp_path / "out").exists()
    adoption = adopt(in_body, tmp_path / "out", "multilabel")
    assert (adoption.objective.kind, adoption.objective.chosen) == ("multilabel", True)
    with refused(SettingsError, "unknown_choice", what="objective", choice="multilable"):
        adopt(in_body, tmp_path / "more", "multilable")


def test_images_from_images_are_no_objective(spleen):
    edit(spleen, "train.json", loss("torch.nn.L1Loss"))
    with refused(SettingsError, "ambiguous_objective", kinds=[]) as caught:
        read_bundle(spleen)
    assert "image to image" in str(caught.value)


# ---- cuts by a number


def test_a_list_cut_by_a_number_is_one_list_without_its_cuts(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    overlay = json.loads((tmp_path / "out" / OVERLAY_FILE).read_text())
    cases = overlay["adopted"]["cases"]
    assert cases["mode"] == "one_list"
    assert (cases["train"], cases["validation"]) == ("train#dataset#data", "validate#dataset#data")
    assert cases["cuts"] == [["train#dataset#data", "[:-9]"], ["validate#dataset#data", "[-9:]"]]
    whole = "$[{'image': i, 'label': l} for i, l in zip(@images, @labels)]"
    assert overlay[cases["train_list"]] == whole
    assert "`[:-9]` at `train#dataset#data`" in (tmp_path / "out" / PAGE_FILE).read_text()


def test_a_cut_behind_references_is_seen(spleen):
    def change(config):
        config["cases"] = "$[{'image': i, 'label': l} for i, l in zip(@images, @labels)]"
        config["first"] = "$@cases[:-@held_out]"
        config["rest"] = "$@cases[-@held_out:]"
        config["held_out"] = 9
        config["train"]["dataset"]["data"] = "@first"
        config["validate"]["dataset"]["data"] = "$@rest"

    edit(spleen, "train.json", change)
    cases = read_bundle(spleen).cases
    assert (cases.mode, cases.train_list) == ("one_list", "$@cases")
    assert cases.cuts == (("first", "[:-@held_out]"), ("rest", "[-@held_out:]"))


def test_a_slice_of_a_file_name_is_no_cut(spleen):
    text = "$[{{'image': i, 'label': i[:-7] + '_seg.nii.gz'}} for i in {}]"

    def change(config):
        config["train"]["dataset"]["data"] = text.format("@images")
        config["validate"]["dataset"]["data"] = text.format("sorted(@labels)")

    edit(spleen, "train.json", change)
    assert read_bundle(spleen).cases.cuts == ()
    assert read_bundle(spleen).cases.mode == "own_lists"


def test_lists_that_are_cut_unlike_are_refused(spleen):
    text = "$[{'image': i, 'label': l} for i, l in zip(@images[:-9], @labels[:-8])]"
    edit(spleen, "train.json", lambda c: c["train"]["dataset"].update(data=text))
    with refused(SettingsError, "unlike_cuts", id="train#dataset#data", cuts=["[:-8]", "[:-9]"]):
        read_bundle(spleen)


def test_several_lists_are_refused(spleen):
    inner = {"_target_": "Dataset", "data": "@cases"}

    def change(config):
        config["cases"] = "$sorted(glob.glob(@dataset_dir + '/*'))"
        config["train"]["dataset"] = {"_target_": "torch.utils.data.ConcatDataset", "datasets": [inner, inner]}

    edit(spleen, "train.json", change)
    lists = ["train#dataset#datasets#0#data", "train#dataset#datasets#1#data"]
    with refused(SettingsError, "several_lists", id="train#dataset", lists=lists):
        read_bundle(spleen)


def test_cases_that_no_site_can_have_of_its_own_are_refused(spleen):
    edit(spleen, "train.json", lambda c: c.update(images="$glob.glob('/data/*')", labels="$glob.glob('/data/*')"))
    with refused(SettingsError, "site_independent_list", id="train#dataset#data"):
        read_bundle(spleen)


# ---- a site's folder


def test_a_folder_that_lacks_what_the_bundle_reads_is_refused(spleen, tmp_path):
    needs = read_bundle(spleen).cases.needs
    folder = tmp_path / "north"
    with refused(DataError, "missing_folder", site="north", path=str(folder)):
        check_folder(needs, folder, "north")
    (folder / "imagesTr").mkdir(parents=True)
    (folder / "imagesTr" / "a.nii.gz").touch()
    with refused(DataError, "missing_file", site="north", path=str(folder), expected=["labelsTr/*.nii.gz"]):
        check_folder(needs, folder, "north")
    (folder / "labelsTr").mkdir()
    (folder / "labelsTr" / "a.nii.gz").touch()
    check_folder(needs, folder, "north")
