"""Distributed runs on volumes with masks: the bits of one machine, and the values that the offer must contain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import BUNDLE, SITES, Loopback, Place, digests
from masked_cohorts import SMALL, make_volumes
from refusals import refused
from toys import snapshot

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.errors import RefusedError
from medfl.testing.cohort import scores
from medfl.utils import wire
from medfl.workflow import run_bundle
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.federated_evaluation.researcher_evaluation import EvaluationPlan, read_evaluation
from medfl_flare.federated_evaluation.server_evaluation import RESULT_FILE_NAME, request_evaluation
from medfl_flare.job_folder import write_job
from medfl_flare.offer import make_offer
from medfl_flare.offered_bundle import open_offer
from medfl_report.evaluation.evaluate import evaluate_sites

FACTS = {"channels": 3, "spacing": [1.0, 1.0, 1.0], "window": None, "in_channels": 1, "size": [12, 12, 12]}
FACTS |= {"image_reading": None}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("volumes")
    data = make_volumes(root)
    for scanner, site in zip("ABC", SITES, strict=True):
        (data / scanner).rename(data / site)
    (data / "partition.json").unlink()  # it has the other names
    return Place(root, Path(shutil.copytree(shipped_bundles()["volume_segmentation"], root / BUNDLE)), data)


def values(**changes: Any) -> dict[str, Any]:
    return FACTS | {"spatial_dims": 3, "rounds": 2, "method": "fedavg"} | SMALL | changes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedskd"])
def test_the_bits_are_those_of_one_machine(place: Place, tmp_path: Path, method: str) -> None:
    widths = {"networks_by_site": {SITES[0]: "unet_narrow", SITES[2]: "unet_wide"}} if method == "fedskd" else {}
    files = place.files(method)
    offer = make_offer(place.bundle, values(method=method, **widths), "one", SITES, 5)
    folder, progress = Loopback(files).serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    assert json.loads((folder / "summary.json").read_text())["names"] == ["background", "front", "back"]
    local = place.local(offer, files, tmp_path / "local")
    expected = snapshot(tmp_path / "local")
    assert digests(folder, files, offer.run) == {name: expected[name] for name in ("server", *SITES)}
    assert scores(folder) == expected["rows"]
    for site in SITES:
        home = torch.load(files[site].state / "runs" / offer.run / "bundle" / "models" / "model.pt", weights_only=True)
        assert wire.tensors_equal(home, local.models[site]["personal"].tensors)


def test_an_offer_says_what_the_masks_hold(place: Place) -> None:
    files = place.files("facts")
    opened = open_offer(make_offer(place.bundle, values(), "one", SITES, 5), files[SITES[0]])
    assert opened.task.objective.facts["spacing"] == [1.0, 1.0, 1.0]
    assert opened.task.objective.outputs == 3
    less = {name: value for name, value in values().items() if name != "spacing"}
    with refused(RefusedError, "incomplete_offer", missing=["spacing"]):
        open_offer(make_offer(place.bundle, less, "one", SITES, 5), files[SITES[0]])


def test_a_model_of_masks_is_scored_with_the_width_of_its_own_bundle(place: Place, tmp_path: Path) -> None:
    options = {"rounds": 1, "method": "fedavg", "dataset_dir": str(place.data), "output_dir": str(tmp_path / "run")}
    run_bundle(place.bundle, SMALL | options)
    prepared = read_evaluation(EvaluationPlan(str(tmp_path / "run"), place.bundle, ["dice"], SITES), "masks")
    values = prepared.request.values
    assert (values["width"], values["levels"], values["window"]) == (SMALL["width"], SMALL["levels"], None)
    assert not {"batch_size", "seed", "epochs"} & values.keys()
    config = write_job(prepared.request, tmp_path, prepared.content) / "app_server" / "config"
    files = place.files("evaluation", dict.fromkeys(SITES, {"evaluation_scores": ["dice"]}))
    request_evaluation(prepared.request, config, Loopback(files), tmp_path, RunStatus())
    content = json.loads((tmp_path / RESULT_FILE_NAME).read_text())
    assert content["missing"] == {}
    for here in evaluate_sites(str(tmp_path / "run"), place.data, tmp_path / "here", device="cpu"):
        local = here.scores["dice"]
        assert local is not None
        assert content["sites"][here.site]["scores"]["dice"]["value"] == pytest.approx(local.value, abs=5e-5)
