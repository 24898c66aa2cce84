"""Training of one site by MONAI's own command with the bundle's ``train.json``."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigWorkflow, verify_net_in_out
from monai.bundle.properties import MetaProperties, TrainProperties
from monai.fl.client import MonaiAlgo
from monai.fl.utils.constants import ExtraItems
from monai.fl.utils.exchange_object import ExchangeObject

from medfl.data.sites import load_split
from medfl.engine.evaluation import score_dataset
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.testing.synthetic import make_cohort
from medfl.training.balance import class_weights
from medfl.utils.rng import seeded_generators

SOURCE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("phantoms") / "D"
    make_cohort(folder, sites=2, images_per_site=60)
    return folder


@pytest.fixture
def bundle(tmp_path) -> Path:
    return Path(shutil.copytree(SOURCE, tmp_path / "bundle", ignore=shutil.ignore_patterns("models", "runs")))


def workflow(bundle: Path, cohort: Path, **options) -> ConfigWorkflow:
    values = {"bundle_root": str(bundle), "dataset_dir": str(cohort), "num_classes": 4, "max_epochs": 1, **options}
    configs = bundle / "configs"
    return ConfigWorkflow(
        str(configs / "train.json"), str(configs / "metadata.json"), logging_file=False, workflow_type="train", **values
    )


def test_all_properties_that_monai_requires_are_there(bundle, cohort):
    flow = workflow(bundle, cohort)
    flow.initialize()
    missing = []
    for name, facts in {**TrainProperties, **MetaProperties}.items():
        try:
            value = getattr(flow, name)
        except (KeyError, AttributeError):
            value = None
        if facts["required"] and value is None:
            missing.append(name)
    assert not missing
    assert flow.check_properties() in (None, [])


def test_one_site_trains_validates_and_saves(bundle, cohort):
    with seeded_generators(0, "bundle"):
        flow = workflow(bundle, cohort, site="site-02", max_epochs=2)
        flow.initialize()
        flow.run()
    assert flow.parser.get_parsed_content("train#trainer").state.epoch == 2
    for name in ("model.pt", "model_final.pt"):
        state = torch.load(bundle / "models" / name, weights_only=True)
        assert state["head.weight"].shape == (4, 512), name


def test_a_site_without_validation_data_trains_too(bundle, cohort, tmp_path):
    copy = Path(shutil.copytree(cohort, tmp_path / "D"))
    path = copy / "site-01" / "datalist.json"
    values = json.loads(path.read_text())
    values["training"] += values.pop("validation")
    path.write_text(json.dumps(values))
    with seeded_generators(0, "bundle"):
        flow = workflow(bundle, copy)
        flow.initialize()
        flow.run()
    assert (bundle / "models" / "model_final.pt").exists()


def test_overrides_reach_the_task(bundle, cohort):
    flow = workflow(bundle, cohort, **{"optimizer#lr": 0.1, "num_classes": 5, "in_channels": 1})
    with seeded_generators(0, "bundle"):
        flow.initialize()
        task = flow.parser.get_parsed_content("task")
        model = task.build()
    optimizer = task.optimizer(model.parameters())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert task.objective.classes == 5
    assert model.head.out_features == 5
    assert model.body.stage1.conv.in_channels == 1
    assert task.build() is not model, "every site gets its own network"
    assert task.metrics[0] == "accuracy"


def test_building_loaders_leaves_the_global_generator_alone(bundle, cohort):
    flow = workflow(bundle, cohort)
    with seeded_generators(0, "bundle"):
        flow.initialize()
        flow.parser.get_parsed_content("train#dataset")
        torch.rand(3)
        before = torch.get_rng_state()
        for split in ("train", "validate"):
            flow.parser.get_parsed_content(f"{split}#dataloader")
        assert torch.equal(torch.get_rng_state(), before), "a loader without its own generator rewinds the global one"


def test_monai_fl_client_loads_it(bundle, cohort):
    options = {"dataset_dir": str(cohort), "num_classes": 4}
    algo = MonaiAlgo(str(bundle), train_kwargs=options, config_evaluate_filename=None)
    with seeded_generators(0, "bundle"):
        algo.initialize({ExtraItems.CLIENT_NAME: "site-01"})
        start = {name: value.numpy().copy() for name, value in algo.trainer.network.state_dict().items()}
        algo.train(ExchangeObject(weights=start))
        sent = algo.get_weights().weights
    assert set(sent) == set(start)
    assert any(abs(change).max() > 0 for change in sent.values()), "it trained and sends differences"
    algo.finalize()


def test_monai_fl_client_evaluates_with_it(bundle, cohort):
    options = {"dataset_dir": str(cohort), "num_classes": 4, "site": "site-02"}
    algo = MonaiAlgo(str(bundle), train_kwargs=dict(options), eval_kwargs=dict(options))
    with seeded_generators(0, "bundle"):
        algo.initialize({ExtraItems.CLIENT_NAME: "site-02"})
        weights = {name: value.numpy() for name, value in algo.trainer.network.state_dict().items()}
        metrics = algo.evaluate(ExchangeObject(weights=weights)).metrics
    task = algo.train_workflow.parser.get_parsed_content("task")
    test = load_split(cohort, "site-02", "test", Multiclass(4))
    model = task.load({name: torch.tensor(value) for name, value in weights.items()})
    assert metrics == pytest.approx(score_dataset(model, test, task, Settings(rounds=1)), abs=1e-6)
    algo.finalize()


@pytest.mark.parametrize("balance", ["loss", "sampling"])
def test_unlike_class_sizes_are_balanced_on_request(bundle, cohort, balance):
    flow = workflow(bundle, cohort, balance=balance)
    with seeded_generators(0, "bundle"):
        flow.initialize()
        loader, loss = (flow.parser.get_parsed_content(name) for name in ("train#dataloader", "loss"))
        labels = torch.cat([batch["label"] for batch in loader])
    data = load_split(cohort, "site-01", "training", Multiclass(4))
    if balance == "loss":
        assert torch.equal(loss.weight, class_weights(data.class_labels, 4))
        assert torch.equal(labels.sort().values, data.class_labels.sort().values)
    else:
        assert loss.weight is None
        assert isinstance(loader.sampler, torch.utils.data.WeightedRandomSampler)
        assert len(labels) == len(data)


def test_the_metadata_describe_the_network(bundle):
    with seeded_generators(0, "bundle"):
        verify_net_in_out(
            net_id="network_def",
            meta_file=str(bundle / "configs" / "metadata.json"),
            config_file=str(bundle / "configs" / "train.json"),
            device="cpu",
        )


def test_the_logging_configuration_holds_standard_classes_only(bundle):
    from monai.bundle.workflows import _apply_logging_file

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        _apply_logging_file(str(bundle / "configs" / "logging.conf"))
    finally:
        root.handlers, root.level = handlers, level
        logging.getLogger("train").handlers.clear()
