"""The exported bundle of FedSDC contains body and heads, and votes with plain MONAI."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, verify_net_in_out
from torch import nn

from medfl.cli.clean import clean
from medfl.data.sites import load_site
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort
from medfl.workflow import FederatedWorkflow
from medfl_methods.fedsdc.voting import VotingHead, elect_class

BUNDLE = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "sites"
    make_cohort(out, sites=4, images_per_site=24, classes=4, size=12, seed=1)
    return out


@pytest.fixture(scope="module")
def run(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one round in which four sites train and the best three heads form the ensemble."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    options = {"bundle_root": str(BUNDLE), "dataset_dir": str(cohort), "output_dir": str(folder), "method": "fedsdc"}
    method_args = {"gamma": 0.75, "head_activation": "relu"}
    workflow = FederatedWorkflow(configs, logging_file=False, rounds=1, method_args=method_args, **options)
    workflow.initialize()
    workflow.run()
    return folder


def network_of(home: Path, config: str) -> nn.Module:
    """Return the bundle's network with its weights, built by MONAI."""
    parser = ConfigParser()
    parser.read_config(str(home / "configs" / config))
    model: nn.Module = parser.get_parsed_content("network_def")
    model.load_state_dict(torch.load(home / "models" / "model.pt", weights_only=True))
    return model.eval()


def test_its_network_votes_as_it_did_in_the_run(run: Path, cohort: Path) -> None:
    """Check both configurations, and the server's bundle."""
    home = run / "sites" / "site-02"
    model = network_of(home, "inference.json")
    head = model.head
    assert isinstance(head, VotingHead)
    assert len(head.heads) == 3
    data = load_site(cohort / "site-02", Multiclass(4), (0.5,), (0.5,)).test
    images, _ = data.batch(torch.arange(len(data)))
    with torch.no_grad():
        output = model(images)
        assert torch.equal(output, network_of(home, "train.json")(images))
        assert torch.equal(output, network_of(run / "global", "inference.json")(images))
        opinions = torch.stack([layer(model.body(images)).softmax(dim=1) for layer in head.heads])  # type: ignore[operator]
        torch.testing.assert_close(torch.jit.script(model)(images), output)  # type: ignore[no-untyped-call]
    assert output.argmax(dim=1).tolist() == elect_class(opinions.double()).tolist()
    rows = list(csv.reader((home / "predictions.csv").open()))[1:]
    probabilities = [[float(value) for value in row[2:6]] for row in rows]
    np.testing.assert_allclose(output.softmax(dim=1), probabilities, atol=1e-6)


def test_what_an_attack_finds_of_a_cleaned_run_votes_too(run: Path, cohort: Path, tmp_path: Path) -> None:
    """The bundle contains the configuration of its network; the run's models are deleted."""
    pytest.importorskip("medfl_attacks")
    from medfl_attacks.open_run import open_run

    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    clean(copied)
    opened = open_run(copied, data=cohort)
    images, _ = opened.sites["site-02"].test.batch(torch.arange(len(opened.sites["site-02"].test)))
    with torch.no_grad():
        expected = network_of(run / "sites" / "site-02", "inference.json")(images)
        torch.testing.assert_close(opened.models()["site-02"](images), expected)
        torch.testing.assert_close(opened.model()(images), expected)


def test_its_configurations_say_how_heads_are_made(run: Path) -> None:
    for name in ("train.json", "inference.json"):
        definition = json.loads((run / "sites" / "site-01" / "configs" / name).read_text())["network_def"]
        assert definition["_target_"] == "medfl.networks.parts.replace_head"
        assert (
            definition["head"]["together"],
            definition["head"]["activation"],
            definition["head"]["num_classes"],
        ) == (
            "vote",
            "relu",
            4,
        )
        assert len(set(definition["head"]["widths"])) == 3


def test_its_metadata_fit_the_network(run: Path) -> None:
    meta, config = (str(run / "sites/site-01/configs" / name) for name in ("metadata.json", "inference.json"))
    verify_net_in_out(net_id="network_def", meta_file=meta, config_file=config, device="cpu")
