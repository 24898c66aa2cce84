"""An adopted bundle at a site: only required ids are built, from the site's folder, with the bundle's scores."""

from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import torch
import zoo_shapes
from damage import edit, put
from monai.bundle import ConfigParser
from monai.inferers import SimpleInferer, SlidingWindowInferer
from monai.utils import set_determinism
from refusals import refused
from zoo_sites import frames, pictures, volumes

from medfl.errors import DataError, SettingsError
from medfl.objectives import Segmentation
from medfl.settings import Execution
from medfl_adopt.adopting import OVERLAY_FILE, adopt
from medfl_adopt.bundle import AdoptedBundle
from medfl_adopt.site import AdoptedSite
from medfl_adopt.source import AdoptedSource


def test_a_site_of_eight_cases_has_them_all(spleen, tmp_path):
    """The bundle's own cut keeps nine cases for validation, so the site would have no training cases."""
    adopt(spleen, tmp_path / "out")
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), volumes(tmp_path / "north", 8), "north")
    train, validation, _ = site.lists()
    assert validation is None
    names = [f"c{case}.nii.gz" for case in range(8)]
    assert [row["image"] for row in train] == [str(tmp_path / "north" / "imagesTr" / name) for name in names]
    assert [row["label"] for row in train] == [str(tmp_path / "north" / "labelsTr" / name) for name in names]


def test_the_parts_are_the_bundles(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), volumes(tmp_path / "north", 2), "north")
    parts = site.bundle.parts()
    assert isinstance(parts.train_inferer, SimpleInferer)
    assert isinstance(parts.val_inferer, SlidingWindowInferer)
    assert (parts.amp, parts.prepare_batch) == (True, None)
    torch.manual_seed(0)
    first = parts.network()
    torch.manual_seed(0)
    second = parts.network()
    assert first is not second
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    optimizer = parts.optimizer(first.parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 0.0001
    rows, *_ = site.lists()
    patches = site.train_preprocessing()(rows[0])
    assert [tuple(patch["image"].shape) for patch in patches] == [(1, 16, 16, 16)] * 4
    case = site.preprocessing()(rows[0])
    outputs = parts.val_inferer(case["image"][None], first)
    assert outputs.shape == (1, 2, *case["image"].shape[1:])
    loss = parts.loss(outputs, case["label"][None])
    assert torch.isfinite(loss)


def test_the_metadata_name_what_channels_are_for(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    bundle = AdoptedBundle(tmp_path / "out")
    assert bundle.output_names(2) == (), "not all are named"

    def name(metadata):
        pred = metadata["network_data_format"]["outputs"]["pred"]
        pred["channel_def"] = {"1": "$spleen\n", "0": "background"}

    edit(tmp_path / "out", "metadata.json", name)
    assert bundle.output_names(2) == ("background", "spleen")
    assert bundle.output_names(3) == ()
    source = AdoptedSource(bundle, Segmentation(2))
    site = source.site(volumes(tmp_path / "north", 3), Execution())
    assert (site.names, site.classes) == (("background", "spleen"), ("cases",))
    put(tmp_path / "out", "configs/metadata.json", "[]")
    assert bundle.output_names(2) == ()


def test_a_closed_test_has_no_cases_and_leaves_the_others_as_they_are(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    source = AdoptedSource(AdoptedBundle(tmp_path / "out"), Segmentation(2), 0.25, 0.25)
    folder = volumes(tmp_path / "north", 4)
    opened, closed = (source.site(folder, Execution(open_test=value)) for value in (True, False))
    assert [len(part) for part in (opened.train, opened.val, opened.test)] == [2, 1, 1]
    assert [len(part) for part in (closed.train, closed.val, closed.test)] == [2, 1, 0]
    assert (closed.train.digest, closed.val.digest) == (opened.train.digest, opened.val.digest)


def test_neither_trainer_nor_data_sets_are_built(spleen, tmp_path):
    marker = tmp_path / "ran"
    text = f"$open({str(marker)!r}, 'w') and 4"

    def change(config):
        config["train"]["trainer"]["max_epochs"] = text
        config["train"]["dataset"]["num_workers"] = text
        config["run"] = config["initialize"] = [text]

    edit(spleen, "train.json", change)
    adopt(spleen, tmp_path / "out")
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), volumes(tmp_path / "north", 2), "north")
    site.lists()
    site.train_preprocessing()
    site.preprocessing()
    site.bundle.parts()
    assert not marker.exists()


def test_what_a_bundle_does_first_leaves_the_generators(spleen, tmp_path):
    edit(spleen, "train.json", lambda c: c["initialize"].append("$os.environ.__setitem__('MADE_UP_BUNDLE', '1')"))
    adopt(spleen, tmp_path / "out")
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), volumes(tmp_path / "north", 1), "north")
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    try:
        site.bundle.initialize()
        assert os.environ.pop("MADE_UP_BUNDLE") == "1"
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[1].tolist() == before[1]
        assert random.getstate() == before[2]
    finally:
        set_determinism(None)
        torch.set_rng_state(before[0])


def test_scores_are_those_that_the_bundle_prints_alone(tmp_path):
    bundle = zoo_shapes.tools(tmp_path / "tools")
    adopt(bundle, tmp_path / "out")
    folder = pictures(tmp_path / "north", 3)
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), folder, "north")
    train, validation, _ = site.lists()
    assert (len(train), len(validation)) == (3, 3)
    torch.manual_seed(1)
    network = site.bundle.parts().network()
    scores = site.score(network, validation)

    parser = ConfigParser()  # the bundle alone, as MONAI runs it
    parser.read_config(str(bundle / "configs" / "train.json"))
    parser["dataset_dir"], parser["device"] = str(folder), torch.device("cpu")
    parser["validate#handlers"], parser["validate#dataloader#num_workers"] = None, 0
    parser.get_parsed_content("network").load_state_dict(network.state_dict())
    alone = parser.get_parsed_content("validate#evaluator")
    alone.run()
    assert scores == alone.state.metrics
    assert 0 <= scores["val_mean_dice"] <= 1


def test_a_site_has_a_list_of_its_own_in_place_of_the_bundles(tmp_path):
    bundle = zoo_shapes.brain_tumours(tmp_path / "brats")
    adopt(bundle, tmp_path / "out")
    case = {"image": ["a_0.nii.gz", "a_1.nii.gz"], "label": "a_seg.nii.gz"}
    put(tmp_path, "north/datalist.json", json.dumps({"training": [case], "validation": [case, case], "testing": []}))
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), tmp_path / "north", "north")
    train, validation, _ = site.lists()
    assert (len(train), len(validation)) == (1, 2)
    assert [str(name) for name in train[0]["image"]] == [str(tmp_path / "north" / f"a_{n}.nii.gz") for n in (0, 1)]


def test_paths_of_a_list_that_is_in_a_site_begin_at_its_folder(tmp_path, in_body):
    for name in ("train", "val"):
        change = {f"{name}_json": f"$@bundle_root + '/{name}_samples.json'"}
        change |= {f"{name}_datalist": f"$json.load(open(@{name}_json))"}
        edit(in_body, "train.json", lambda c, change=change: c.update(change))
    adopt(in_body, tmp_path / "out")
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), frames(tmp_path / "north", 2), "north")
    train, validation, _ = site.lists()
    assert [row["image"] for row in train] == [str(tmp_path / "north" / f"train{k}.png") for k in (0, 1)]
    assert [row["label"] for row in validation] == [0, 1]


def test_a_folder_keeps_the_slash_that_the_bundles_has(spleen, tmp_path):
    change = {"dataset_dir": "/data/", "images": "$sorted(glob.glob(@dataset_dir + 'imagesTr/*.nii.gz'))"}
    edit(spleen, "train.json", lambda c: c.update(change))
    adopt(spleen, tmp_path / "out")
    bundle = AdoptedBundle(tmp_path / "out", {"dataset_dir": "/elsewhere"})
    train, *_ = AdoptedSite(bundle, volumes(tmp_path / "north", 2), "north").lists()
    assert [row["image"] for row in train] == [str(tmp_path / "north" / "imagesTr" / f"c{k}.nii.gz") for k in (0, 1)]


def test_text_of_a_sites_list_is_never_evaluated(tmp_path, in_body):
    marker = tmp_path / "ran"
    adopt(in_body, tmp_path / "out")
    rows = [{"image": f"$open({str(marker)!r}, 'w')", "label": f"$open({str(marker)!r}, 'w')"}]
    for name in ("train_samples.json", "val_samples.json"):
        put(tmp_path, f"north/{name}", json.dumps(rows))
    train, *_ = AdoptedSite(AdoptedBundle(tmp_path / "out"), tmp_path / "north", "north").lists()
    assert train[0]["label"] == rows[0]["label"]
    assert not marker.exists()


def test_a_site_that_lacks_what_the_bundle_reads_is_refused(spleen, tmp_path):
    adopt(spleen, tmp_path / "out")
    folder = volumes(tmp_path / "north", 1)
    shutil.rmtree(folder / "labelsTr")
    with refused(DataError, "missing_file", site="north", path=str(folder), expected=["labelsTr/*.nii.gz"]):
        AdoptedSite(AdoptedBundle(tmp_path / "out"), folder, "north")


def test_a_list_that_can_not_be_made_names_no_file(tmp_path, in_body):
    adopt(in_body, tmp_path / "out")
    for name in ("train_samples.json", "val_samples.json"):
        put(tmp_path, f"north/{name}", '[{"image": "Jane_Doe.png"}]')
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), tmp_path / "north", "north")
    with refused(DataError, "list_not_buildable", site="north", id="train#dataset#data") as caught:
        site.lists()
    assert "Jane" not in f"{caught.value} {caught.value.fields}"
    put(tmp_path, "north/train_samples.json", "[]")
    with refused(DataError, "no_images", site="north", id="train#dataset#data"):
        site.lists()


def test_what_was_not_adopted_or_changed_since_is_refused(spleen, tmp_path):
    folder = volumes(tmp_path / "north", 1)
    with refused(SettingsError, "not_adopted", path=str(spleen)):
        AdoptedSite(AdoptedBundle(spleen), folder, "north")
    adopt(spleen, tmp_path / "out")
    edit(tmp_path / "out", "train.json", lambda c: c.pop("loss"))
    with refused(SettingsError, "missing_ids", path=str(tmp_path / "out"), ids=["loss"]):
        AdoptedSite(AdoptedBundle(tmp_path / "out"), folder, "north")
    assert (tmp_path / "out" / OVERLAY_FILE).is_file()


def test_an_optimiser_with_groups_of_parameters_is_refused(spleen, tmp_path):
    groups = "$[{'params': [p], 'lr': 0.1 * n} for n, p in enumerate(@network.parameters())]"
    edit(spleen, "train.json", lambda c: c["optimizer"].update(params=groups))
    adopt(spleen, tmp_path / "out")
    with refused(SettingsError, "several_parameter_groups", expected=1):
        AdoptedBundle(tmp_path / "out").parts()


def test_code_of_the_bundle_that_fails_is_named(spleen, tmp_path):
    edit(spleen, "train.json", lambda c: c["loss"].update(no_such_argument=1))
    adopt(spleen, tmp_path / "out")
    with refused(SettingsError, "component_not_buildable", id="loss", cause="TypeError"):
        AdoptedBundle(tmp_path / "out").parts()
