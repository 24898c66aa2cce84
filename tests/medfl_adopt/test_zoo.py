"""Every bundle of a zoo is adopted or refused with a reason, trained on synthetic cases, and exported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import zoo_shapes
from zoo_sites import SITES
from zoo_trial import HEAD, bundles_of, try_bundle


@pytest.mark.parametrize("shape", [zoo_shapes.tools, pytest.param(zoo_shapes.in_body, marks=pytest.mark.slow)])
def test_cases_are_made_up_from_what_a_bundle_says(shape, tmp_path):
    """The synthetic cases are derived from the bundle alone."""
    trial = try_bundle(shape(tmp_path / "bundle"), tmp_path, methods=("fedavg", "moon"))
    assert trial.trained == ["fedavg"]
    assert "needs 'linear_head'" in trial.methods["moon"]
    assert trial.home == {"north": "yes", "south": "yes"}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SITES, ids=lambda shape: shape.__name__)
def test_each_shape_passes_the_trial(shape, tmp_path):
    trial = try_bundle(shape(tmp_path / "bundle"), tmp_path)
    assert trial.trained == ["fedavg", "fedprox", "fedbn", "ditto", "fedper", "fedskd"]
    assert set(trial.home.values()) == {"yes"}


def test_a_refusal_and_what_can_not_be_made_up_are_rows(tmp_path):
    assert "expected MONAI's SupervisedTrainer" in try_bundle(zoo_shapes.lung_nodules(tmp_path / "a"), tmp_path).refusal
    bundle = zoo_shapes.spleen(tmp_path / "b")
    config = json.loads((bundle / "configs" / "train.json").read_text())
    config["images"] = config["labels"] = "$sorted(glob.glob(@dataset_dir + '/cases/*'))"
    (bundle / "configs" / "train.json").write_text(json.dumps(config))
    trial = try_bundle(bundle, tmp_path / "tried")
    assert (trial.objective, trial.methods) == ("segmentation", {})
    assert trial.refusal == "a site holds 'cases/*', and what that is can't be told"
    assert trial.line().startswith("| b | segmentation | a site holds 'cases/*'")


@pytest.mark.slow
def test_each_bundle_of_a_zoo_is_refused_with_a_reason_or_trained_and_exported(tmp_path):
    if "MEDFL_ZOO" not in os.environ:
        pytest.skip("MEDFL_ZOO does not name a folder of MONAI bundles")
    bundles = bundles_of(Path(os.environ["MEDFL_ZOO"]))
    assert bundles, "MEDFL_ZOO names a folder without bundles"
    print(HEAD)
    for bundle in bundles:
        trial = try_bundle(bundle, tmp_path / bundle.name)
        print(trial.line())
        assert trial.refusal or trial.trained or all(trial.methods.values())
        assert set(trial.home.values()) <= {"yes"}
        assert bool(trial.refusal) or trial.objective
