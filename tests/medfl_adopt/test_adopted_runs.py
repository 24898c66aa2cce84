"""Adopted bundles in federations: methods train them, on any number of workers, and sites export them."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import shutil
import signal
from pathlib import Path

import nibabel
import numpy
import pytest
import torch
import zoo_shapes
from damage import edit
from fault_harness import Child
from monai.bundle import ConfigParser
from monai.metrics import compute_dice
from refusals import refused
from zoo_sites import SITES, make_sites

from medfl.bundle.client_algo import MedflAlgo
from medfl.bundle.federation import read_federation
from medfl.engine.runs.simulation import Callbacks, simulate
from medfl.errors import DataError, SettingsError, StoreError
from medfl.metrics.segmentation import hausdorff95
from medfl.plugins import load_plugins
from medfl.settings import Execution, Settings, read_settings
from medfl.training.precision import autocast
from medfl.training.predict import predict
from medfl.utils.wire import digest
from medfl_adopt.adopting import adopt
from medfl_adopt.bundle import AdoptedBundle
from medfl_adopt.site import AdoptedSite
from medfl_adopt.task import AdoptedSchedule
from medfl_report.cards.verify import verify
from medfl_report.cards.write import find_card_path, write_cards

WEIGHTS = {zoo_shapes.brain_tumours: "best.pt"}
"""Maps a form of bundle to its file of weights, unless the file has its usual name."""


def read(folder, name="run", **options):
    """Return the federation of an adopted bundle ``out`` over the sites ``D`` in a folder."""
    places = {"bundle_root": str(folder / "out"), "dataset_dir": str(folder / "D"), "output_dir": str(folder / name)}
    return read_federation(folder / "out", {"rounds": 2, "device": "cpu"} | places | options)


def federate(folder, name="run", **options):
    return read(folder, name, **options).simulate()


def adopted(shape, folder, count=3):
    """Make an adopted bundle of a given form, and two sites for it."""
    adopt(shape(folder / "stock"), folder / "out")
    make_sites(shape, folder / "D", count)
    return folder


def bits(result):
    """Return a digest of every model of a run."""
    return {
        (site, kind): digest(model.tensors) for site, models in result.models.items() for kind, model in models.items()
    }


def scores(folder, metric):
    """Map (round, site, model, split) to the value of a metric."""
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == metric]
    return {(int(row["round"]), row["site"], row["model"], row["split"]): float(row["value"]) for row in rows}


def alone(bundle, folder, weights, **changes):
    """Return the scores of weights by the stock bundle's own evaluator, as MONAI builds it."""
    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "train.json"))
    parser["dataset_dir"], parser["device"] = str(folder), torch.device("cpu")
    parser["validate#handlers"], parser["validate#dataloader#num_workers"] = None, 0
    for id_, value in changes.items():
        parser[id_] = value
    network = parser.get_parsed_content("network")
    network.load_state_dict(weights)
    evaluator = parser.get_parsed_content("validate#evaluator")
    evaluator.run()
    return evaluator.state.metrics


@pytest.fixture
def tools(tmp_path):
    return adopted(zoo_shapes.tools, tmp_path)


@pytest.mark.parametrize(
    ("shape", "method", "options"),
    [
        pytest.param(zoo_shapes.spleen, "fedbn", {}, marks=pytest.mark.slow),
        pytest.param(zoo_shapes.tools, "ditto", {}, marks=pytest.mark.slow),
        (zoo_shapes.in_body, "fedkper", {}),
        pytest.param(zoo_shapes.brain_tumours, "fedprox", {}, marks=pytest.mark.slow),
        pytest.param(zoo_shapes.hippocampus, "fedavg", {"rounds": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_shape_trains_and_is_scored_by_itself(shape, method, options, tmp_path):
    result = federate(adopted(shape, tmp_path, 5 if shape is zoo_shapes.hippocampus else 3), method=method, **options)
    assert result.outcome.status == "finished"
    own = scores(tmp_path / "run", f"bundle_{'val_auc' if shape is zoo_shapes.in_body else 'val_mean_dice'}")
    assert {(site, split) for _, site, _, split in own} >= {("north", "val"), ("south", "val")}
    assert all(0 <= value <= 1 for value in own.values())
    for site in ("north", "south"):
        taken = torch.load(
            tmp_path / "run" / "sites" / site / "models" / WEIGHTS.get(shape, "model.pt"), weights_only=True
        )
        model = result.models[site].get("personal") or result.models[site]["global"]
        assert digest(taken) == digest(model.tensors)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "fedbn", "cyclic", "local", "centralized", "fedadam"])
@pytest.mark.parametrize("shape", SITES, ids=lambda shape: shape.__name__)
def test_every_method_trains_every_shape(shape, method, tmp_path):
    result = federate(adopted(shape, tmp_path, 5), method=method)
    assert result.outcome.status == "finished"


def test_the_numbers_are_those_of_the_bundle_alone(tools):
    """For each site and the global model, the stock bundle prints the same scores for the site's folder."""
    result = federate(tools)
    own, dice = scores(tools / "run", "bundle_val_mean_dice"), scores(tools / "run", "dice")
    weights = result.models["north"]["global"].tensors
    for site in ("north", "south"):
        (printed,) = alone(tools / "stock", tools / "D" / site, weights).values()
        assert own[2, site, "global", "val"] == printed
        assert dice[2, site, "global", "val"] == pytest.approx(printed, abs=1e-6)


def test_what_evaluate_scores_is_the_test(tmp_path):
    """The bundle's `evaluate` has a separate list, and weights with another name."""
    adopted(zoo_shapes.brain_tumours, tmp_path, 1)
    result = federate(tmp_path, rounds=1)
    own = scores(tmp_path / "run", "bundle_val_mean_dice")
    assert {split for _, _, _, split in own} == {"val", "test"}
    key = "$monai.data.load_decathlon_datalist(@data_list_file_path, data_list_key='testing', base_dir=@dataset_dir)"
    folder, weights = tmp_path / "D" / "north", result.models["north"]["global"].tensors
    changes = {"validate#dataset#data": key, "data_list_file_path": str(folder / "datalist.json")}
    (printed,) = alone(tmp_path / "stock", folder, weights, **changes).values()
    assert own[1, "north", "global", "test"] == printed
    taken = torch.load(tmp_path / "run" / "sites" / "north" / "models" / "best.pt", weights_only=True)
    assert digest(taken) == digest(weights)


def test_what_evaluate_inverts_is_scored_on_the_images_grid_and_nothing_is_saved(tmp_path):
    """Published bundles resample the softmax to the image's own grid before the Dice is computed."""
    adopted(zoo_shapes.spleen, tmp_path)
    folder = tmp_path / "D" / "north"
    site = AdoptedSite(AdoptedBundle(tmp_path / "out"), folder, "north")
    torch.manual_seed(0)
    network = site.bundle.parts().network().eval()
    (row,) = site.lists().train[:1]
    scores = site.score(network, [row], kind="evaluate")
    case = site.preprocessing("evaluate")(dict(row))
    with torch.no_grad():
        case["pred"] = site.bundle.parts().val_inferer(case["image"][None], network)[0]
    parser = site.bundle.parser(folder, kind="evaluate")
    parser["validate#preprocessing"] = site.preprocessing("evaluate")
    parser["validate#postprocessing#transforms#3#_disabled_"] = True
    after = site.bundle.build(parser, "validate#postprocessing")(case)
    assert after["pred"].shape[1:] == nibabel.load(row["image"]).shape
    expected = compute_dice(after["pred"][None], after["label"][None], include_background=False)
    assert scores["val_mean_dice"] == pytest.approx(expected.item())
    assert not (tmp_path / "out" / "eval").exists()
    left_out = json.loads((tmp_path / "out" / "configs" / "federate.json").read_text())["adopted"]["ignored"]
    names = [entry["what"] for entry in left_out]
    assert "the transform 'SaveImaged' (validate#postprocessing#transforms#3)" in names


@pytest.mark.slow
def test_neither_workers_nor_loaders_nor_caches_change_a_bit(tools):
    first = federate(tools, rounds=1)
    for number, options in enumerate(({"workers": 2, "cache": "none"}, {"loaders": 2, "cache": "disk"})):
        other = federate(tools, f"other{number}", rounds=1, **options)
        assert bits(other) == bits(first)
        for metric in ("dice", "bundle_val_mean_dice", "loss"):
            assert scores(tools / f"other{number}", metric) == scores(tools / "run", metric)
    assert list((tools / "D" / "north" / ".medfl_cache").glob("*/*.safetensors"))


def test_a_killed_run_continues_with_the_same_bits(tools):
    whole = federate(tools)

    def killed():
        run = read(tools, "killed")._prepare(load_plugins())
        callbacks = Callbacks(on_round=lambda round_, rows: os.kill(os.getpid(), signal.SIGKILL))
        simulate(dataclasses.replace(run, callbacks=callbacks))

    Child(killed).end()
    assert not (tools / "killed" / "summary.json").exists()
    again = federate(tools, "killed")
    assert bits(again) == bits(whole)
    assert scores(tools / "killed", "dice") == scores(tools / "run", "dice")


def test_a_change_of_a_sites_files_is_another_run(tools):
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.open_run import open_run

    federate(tools, rounds=1)
    with refused(SettingsError, "objective_not_supported", path=str(tools / "run"), objective="segmentation"):
        open_run(tools / "run")
    masks = tools / "D" / "north" / "train" / "masks"
    shutil.copy(masks / "0.png", masks / "1.png")
    with refused(StoreError, "other_run", path=str(tools / "run"), setting="data"):
        federate(tools)


def test_no_attack_knows_the_images_of_an_adopted_bundle(tmp_path):
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.open_run import open_run

    federate(adopted(zoo_shapes.in_body, tmp_path), rounds=1)
    with refused(StoreError, "bundle_not_supported", path=str(tmp_path / "run")):
        open_run(tmp_path / "run")


def test_a_site_exports_the_stock_bundle_and_its_inference_runs_unchanged(tmp_path):
    adopted(zoo_shapes.spleen, tmp_path)
    result = federate(tmp_path, rounds=1)
    home, stock = tmp_path / "run" / "sites" / "north", tmp_path / "stock"
    write_cards(tmp_path / "run", load_plugins())
    assert all(not checked.problems for checked in verify(tmp_path / "run"))
    for path in stock.rglob("*"):
        if path.is_file():
            assert (home / path.relative_to(stock)).read_bytes() == path.read_bytes()
    assert not (home / "configs" / "federate.json").exists()
    parser = ConfigParser()
    parser.read_config(str(home / "configs" / "inference.json"))
    parser["bundle_root"], parser["dataset_dir"] = str(home), str(tmp_path / "D" / "north")
    evaluator = parser.get_parsed_content("evaluator")
    evaluator.run()
    (pred,) = [item["pred"] for item in evaluator.state.output]
    assert pred.shape == (2, *evaluator.state.output[0]["image"].shape[1:])
    loaded = parser.get_parsed_content("network").state_dict()
    weights = result.models["north"]["global"].tensors
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_options_reach_every_site(tools):
    """The run sets the optimizer's rate and a transform's size; an unused option is refused."""
    run = read(tools, **{"optimizer#lr": "$1 / 2", "loss#smooth_nr": 0.5, "settings#batch_size": 3})
    assert run.task.loss.smooth_nr == 0.5
    assert run.task.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] == 0.5
    sizes = {"train#preprocessing#transforms#2#spatial_size": [8, 8]}
    site = AdoptedSite(AdoptedBundle(tools / "out", sizes), tools / "D" / "north", "north")
    rows = site.lists().train
    assert site.train_preprocessing()(rows[0])["image"].shape == (3, 8, 8)
    with refused(SettingsError, "unknown_option", option="optimizer#lrr"):
        read(tools, **{"optimizer#lrr": 0.5})


def test_the_schedule_takes_a_step_a_round(tmp_path):
    """The bundle's schedule is a cosine over 300 steps, lr (1 + cos(pi t / 300)) / 2."""
    adopted(zoo_shapes.brain_tumours, tmp_path)
    shares = AdoptedSchedule(AdoptedBundle(tmp_path / "out"))
    expected = [0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / 300)).item()) for step in range(301)]
    assert [shares(round_) for round_ in (301, 1, 2, 151)] == pytest.approx(
        [expected[k] for k in (300, 0, 1, 150)], abs=1e-6
    )
    scheduled, constant = read(tmp_path).task, read(tmp_path, schedule="off").task
    rates = [
        task.in_round(151, Settings(rounds=200)).optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"]
        for task in (scheduled, constant)
    ]
    assert rates == pytest.approx([0.00005, 0.0001])
    with refused(SettingsError, "unknown_choice", what="schedule", choice="restarts"):
        read(tmp_path, schedule="restarts")


def test_a_schedule_of_the_run_replaces_the_bundles_only_if_that_is_off(tmp_path):
    """Two rounds of one batch: the cosine of the run has the factors 1 and 1/2, at the head; the stem has less."""
    adopted(zoo_shapes.brain_tumours, tmp_path, 2)
    recipe = {"settings#optimization": {"schedule": "cosine", "layer_decay": 0.5}, "steps": 1}
    with refused(SettingsError, "incompatible_settings"):
        federate(tmp_path, **recipe)
    rates = []
    step = torch.optim.Adam.step

    def noted(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        return step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", noted)
        federate(tmp_path, name="off", schedule="off", **recipe)
    half = len(rates) // 2
    for group in range(len(rates[0])):
        assert {each[group] for each in rates[:half]} == {0.0001 * 0.5**group}
        assert [each[group] for each in rates[half:]] == pytest.approx(half * [0.00005 * 0.5**group])
    assert len(rates[0]) > 1


def test_a_schedule_restarts_in_each_round(tmp_path, monkeypatch):
    """Two epochs of two batches in each of two rounds have lr (1 + cos(pi t / 300)) / 2 with t = 0, 1."""
    rates = []
    step = torch.optim.Adam.step

    def noted(self, closure=None):
        rates.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", noted)
    adopted(zoo_shapes.brain_tumours, tmp_path, 2)
    shutil.copytree(tmp_path / "D" / "north", tmp_path / "D1" / "north")
    (tmp_path / "D").rename(tmp_path / "both")
    (tmp_path / "D1").rename(tmp_path / "D")
    first, second = (0.0001 * 0.5 * (1 + math.cos(math.pi * t / 300)) for t in range(2))
    federate(tmp_path, schedule="restart", epochs=2, evaluate_every=2, **{"settings#batch_size": 1})
    assert rates == pytest.approx(2 * [first, first, second, second], rel=1e-9)


def test_mixed_precision_is_the_bundles_on_a_gpu_and_monais_float32_on_a_cpu(tmp_path):
    """MONAI's trainer uses the autocast of CUDA; another precision can be given."""
    adopt(zoo_shapes.brain_tumours(tmp_path / "stock"), tmp_path / "out")
    run = read(tmp_path)
    assert run.settings["precision"] == "amp"
    settings = read_settings(Settings, {"rounds": 1, "precision": "amp"}, "the run")
    with autocast(settings, "cpu"):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    assert autocast(settings, "cuda:0")._enabled or not torch.cuda.is_available()
    assert read(tmp_path, precision="bf16").settings["precision"] == "bf16"
    edit(tmp_path / "stock", "train.json", lambda c: c["train"]["trainer"].update(amp=False))
    adopt(tmp_path / "stock", tmp_path / "plain")
    assert "precision" not in json.loads((tmp_path / "plain" / "configs" / "federate.json").read_text())["settings"]


def test_distances_are_in_the_millimetres_of_each_case(tmp_path):
    """A bundle that keeps volumes on their grids measures the distance of a case with the case's voxel spacing."""
    adopted(zoo_shapes.brain_tumours, tmp_path, 2)
    for path in (tmp_path / "D" / "north").glob("p2_*.nii.gz"):  # its validation case
        volume = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(volume.get_fdata().astype("float32"), numpy.diag([1, 2, 3, 1])), path)
    run = read(tmp_path, rounds=1)
    objective = run.task.objective
    assert objective.spacing == "of each case"
    data = run.source.site(tmp_path / "D" / "north", Execution()).val
    with torch.no_grad():
        torch.manual_seed(0)
        network = run.task.build("network")
        settings = read_settings(Settings, {"rounds": 1}, "the run")
        predictions, _ = predict(network, data, objective, ["hd95"], settings, inferer=run.task.inferer)
        images, masks = data.batch(torch.tensor([0]))
        ours, theirs = objective.masks(run.task.inferer(images, network.eval())), objective.references(masks)
    column = objective.columns(()).index("hd95_0")
    assert predictions[0, column : column + 3].tolist() == pytest.approx(
        hausdorff95(ours[0], theirs[0], (1, 2, 3)).tolist(), nan_ok=True
    )
    assert not predictions[0, column].isnan()
    assert objective.scoring_inputs(torch.zeros(1, 3, 2, 2, 2), torch.ones(1, 3, 2, 2, 2), ["hd95"])[0, column].isnan()


def test_a_method_that_needs_more_than_the_task_has_is_refused(tools):
    with refused(SettingsError, "unmet_need", method="feddisco", need="class_labels", objective="segmentation"):
        federate(tools, method="feddisco")
    with refused(SettingsError, "unmet_need", method="moon", need="linear_head") as caught:
        federate(tools, method="moon")
    assert "expected a module `body`" in str(caught.value)


@pytest.mark.parametrize("method", ["fedper", pytest.param("fedskd", marks=pytest.mark.slow)])
def test_methods_that_ask_for_a_head_or_stages_train_a_stock_network(method, tools):
    """Exported models have the parameter names of the stock network."""
    result = federate(tools, method=method, rounds=1)
    names = sorted(read(tools).task.build("network").state_dict())
    models = [model for of_site in result.models.values() for model in of_site.values()]
    assert models
    assert all(sorted(model.tensors) == names for model in models)


def test_a_network_that_no_one_knows_has_the_stages_that_are_named(tmp_path):
    named = ["model.0", "model.1.submodule"]
    adopt(zoo_shapes.tools(tmp_path / "stock"), tmp_path / "out", head="model.2", stages=named)
    make_sites(zoo_shapes.tools, tmp_path / "D", 3)
    network = read(tmp_path).task.build("network")
    assert network.feature_layers == [network.get_submodule(name) for name in named]
    text = (tmp_path / "out" / "docs" / "federate.md").read_text()
    assert "Given to `medfl adopt`: its head `model.2` and its stages `model.0`, `model.1.submodule`." in text
    edit(tmp_path / "out", "federate.json", lambda c: c["adopted"]["modules"].update(head="tail"))
    with refused(SettingsError, "unknown_module", name="tail", part="head"):
        federate(tmp_path)


def test_the_same_case_at_two_sites_is_refused_or_allowed_by_name(tools):
    for part in ("inputs", "masks"):
        place = tools / "D" / "south" / "val" / part
        shutil.copy(tools / "D" / "north" / "train" / part / "0.png", place / "9.png")
    leak = ["pixels", 1, "north/training", "south/validation"]
    with refused(DataError, "data_leak", leaks=[leak]):
        federate(tools)
    federate(tools, allow_leaks=["pixels"], rounds=1)
    assert "identical image" in json.loads((tools / "run" / "summary.json").read_text())["leaks"][0]


def test_a_folder_that_lacks_what_the_bundle_reads_is_refused(tools):
    shutil.rmtree(tools / "D" / "south" / "val" / "masks")
    with refused(DataError, "missing_file", site="south", expected=["val/masks/*.png"]):
        federate(tools)


def test_a_transform_that_returns_nothing_is_named_by_row(tools):
    def change(config):
        config["train"]["preprocessing"]["transforms"].append({"_target_": "Lambda", "func": "$lambda item: None"})

    edit(tools / "out", "train.json", change)
    with refused(DataError, "wrong_transform_output", where="site 'north', split 'training'", row=0):
        federate(tools)


def test_what_the_loop_has_no_place_for_is_refused(tools):
    train = json.loads((tools / "out" / "configs" / "train.json").read_text())
    edit(
        tools / "out",
        "train.json",
        lambda c: c["train"]["inferer"].update(_target_="SlidingWindowInferer", roi_size=[8, 8]),
    )
    with refused(SettingsError, "unsupported_inferer", expected="SimpleInferer", found="SlidingWindowInferer"):
        read(tools)
    (tools / "out" / "configs" / "train.json").write_text(json.dumps(train))
    run = read(tools)
    run.public = "public"
    with refused(SettingsError, "unsupported_setting", settings=["public", "label_map"]):
        run.simulate()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_between_machines_the_bits_are_the_same(method, tmp_path):
    pytest.importorskip("medfl_flare")
    from loopback import BUNDLE, Loopback, write_site_file

    from medfl_flare.offer import make_offer
    from medfl_flare.sites.site_file import read_site_file

    adopt(zoo_shapes.tools(tmp_path / "stock"), tmp_path / BUNDLE)
    shutil.copytree(tmp_path / BUNDLE, tmp_path / "out")
    make_sites(zoo_shapes.tools, tmp_path / "D")
    places = {"server": None, "north": tmp_path / "D" / "north", "south": tmp_path / "D" / "south"}
    files = {
        name: read_site_file(write_site_file(tmp_path / name, name, tmp_path / BUNDLE, data, shared_test=False))
        for name, data in places.items()
    }
    offer = make_offer(tmp_path / BUNDLE, {"rounds": 2, "method": method}, "one", ["north", "south"], 5)
    folder, progress = Loopback(files).serve(offer)
    assert progress.state == "finished"
    here = federate(tmp_path, method=method)
    for metric in ("dice", "bundle_val_mean_dice"):
        assert scores(folder, metric) == scores(tmp_path / "run", metric)
    for site in ("north", "south"):
        home = files[site].state / "runs" / "one" / "bundle"
        taken = torch.load(home / "models" / "model.pt", weights_only=True)
        model = here.models[site].get("personal") or here.models[site]["global"]
        assert digest(taken) == digest(model.tensors)
        assert (home / "configs" / "train.json").read_bytes() == (tmp_path / "stock/configs/train.json").read_bytes()


@pytest.mark.slow
def test_monais_client_interface_trains_an_adopted_site_with_the_runs_bits(tools):
    """One round of fedavg over one site is that site's training."""
    shutil.rmtree(tools / "D" / "south")
    result = federate(tools, rounds=1)
    algo = MedflAlgo(tools / "out", tools / "D", "north", send_weight_diff=False, device="cpu")
    algo.initialize()
    algo.train(algo.get_weights())
    weights = algo.get_weights().weights
    assert digest(weights) == digest(result.models["north"]["global"].tensors)
    own = algo.evaluate(algo.get_weights()).metrics
    assert own["bundle_val_mean_dice"] == scores(tools / "run", "bundle_val_mean_dice")[1, "north", "global", "val"]


def test_the_page_says_which_methods_fit(tmp_path):
    registry = load_plugins()
    adopt(zoo_shapes.spleen(tmp_path / "spleen"), tmp_path / "masks", registry=registry)
    adopt(zoo_shapes.in_body(tmp_path / "frames"), tmp_path / "classes", registry=registry)
    public = {"feddf", "fedmd"}
    for out, misfits in (("masks", {"feddisco", "fedfed", "fedsdc"}), ("classes", {"fedfed", "fedtpf"} | public)):
        text = (tmp_path / out / "docs" / "federate.md").read_text()
        _, fit, depends, misfit = text.split("## Methods")[1].split("## Ignored")[0].split("\n\nThese methods ")
        assert "- `fedavg`" in fit
        assert "- `fedskd` needs `features`" in depends
        assert all(f"- `{name}`: " in misfit for name in misfits)
        assert "- `scaffold`: " in misfit  # the optimisers are Adam's
        assert ("- `feddisco`" in fit) == (out == "classes")


def test_monais_own_command_says_what_it_would_pass_over(tools, monkeypatch):
    """MONAI's command sets ids of the run's configuration, but not of the configurations that the sites parse."""
    program = str(tools / "monai" / "bundle" / "__main__.py")
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset_dir", "D", "--rounds", "1", "--optimizer#lr", "0.1"])
    with refused(SettingsError, "misplaced_option", options=["optimizer#lr"]):
        read(tools).run()
    monkeypatch.setattr("sys.argv", [program, "run", "--dataset_dir", "D", "--rounds", "1"])
    read(tools, rounds=1).run()
    changed = read(tools, overrides={"optimizer#lr": 0.5}).task
    assert changed.optimizer([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] == 0.5


def test_evaluate_at_a_site_scores_the_test_cases_of_the_run(tmp_path):
    """The stock slice contains training cases. With the list of test cases, `evaluate` prints the run's score."""
    adopted(zoo_shapes.spleen, tmp_path, 5)
    federate(tmp_path, rounds=1)
    home, folder = tmp_path / "run" / "sites" / "north", tmp_path / "D" / "north"
    parser = ConfigParser()
    parser.read_config([str(home / "configs" / name) for name in ("train.json", "evaluate.json", "test_cases.json")])
    parser["bundle_root"], parser["dataset_dir"], parser["device"] = str(home), str(folder), torch.device("cpu")
    parser["validate#dataloader#num_workers"] = 0
    rows = json.loads((home / "test_cases.json").read_text())
    assert rows == parser.get_parsed_content("validate#dataset#data")
    run = read(tmp_path, rounds=1)
    data = run.source.site(folder, Execution())
    assert rows == [dict(row) for row in data.test.listed_cases]
    assert not [row for row in data.train.listed_cases if row in rows]
    evaluator = parser.get_parsed_content("validate#evaluator")
    evaluator.run()
    (printed,) = evaluator.state.metrics.values()
    assert printed == scores(tmp_path / "run", "bundle_val_mean_dice")[1, "north", "global", "test"]
    page = (tmp_path / "out" / "docs" / "federate.md").read_text()
    assert "`configs/evaluate.json` alone does not score the test cases of a run" in page


def test_cards_say_what_the_stock_evaluate_scores(tmp_path):
    """The card of a site names its own file of test cases, the card of the global model the sites' files."""
    adopted(zoo_shapes.spleen, tmp_path, 5)
    federate(tmp_path, rounds=1)
    write_cards(tmp_path / "run", load_plugins())
    own, shared = (
        find_card_path(tmp_path / "run" / folder).read_text() for folder in (Path("sites", "north"), Path("global"))
    )
    warning = "**The bundle's own `evaluate` does not score the test cases of the run.**"
    assert warning in own
    assert warning in shared
    assert "Put `configs/test_cases.json` last" in own
    assert "Put `configs/test_cases.json` of a site's bundle last" in shared


@pytest.mark.parametrize("shape", [zoo_shapes.in_body, zoo_shapes.hippocampus])
def test_the_page_of_a_bundle_without_test_cases_says_so(shape, tmp_path):
    """It lists training and validation cases only, so a run scores no test, and `evaluate` scores validation cases."""
    stock = shape(tmp_path / "stock")
    (stock / "configs" / "evaluate.json").write_text('{"run": ["$@validate#evaluator.run()"]}')
    adopt(stock, tmp_path / "out")
    page = (tmp_path / "out" / "docs" / "federate.md").read_text()
    assert "A run over this bundle has no test cases" in page
    assert "`configs/evaluate.json` scores the validation cases" in page
    assert "test_cases.json" not in page
