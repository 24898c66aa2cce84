"""``medfl calibrate``: choices on validation images in bundles, their inference, and the card."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from calibrated_runs import OBJECTIVES, train_noisy, write_noisy_cohort
from monai.bundle import run as run_bundle
from refusals import refused

import medfl
from medfl.bundle.calibrated import decide, recalibrate
from medfl.cli.main import main
from medfl.engine.runs.records import read_run
from medfl.errors import DataError, SettingsError, StoreError
from medfl.plugins import load_plugins
from medfl.records.calibration import Calibration, TemperatureScaling
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards
from medfl_report.commands.calibrate import calibrate_bundle, command, find_bundle_data, make_choices
from medfl_report.predictions import read_prediction_sets
from medfl_report.sections.calibrated_models import read_calibrated_tests, read_external_evaluations

NOTHING = (None, None, None, None, None)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a federation of two sites."""
    return train_noisy(tmp_path_factory.mktemp("calibrate"), OBJECTIVES["binary"], patients=300)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the run folder, beside its data."""
    shutil.copytree(made.parent, tmp_path / "copy")
    return tmp_path / "copy" / "run"


def infer(bundle: Path, data: Path, **options: str) -> list[dict[str, str]]:
    """Run the inference of a bundle, and return its rows."""
    places = {"bundle_root": bundle, "dataset_dir": data, "output_dir": bundle / "eval"}
    named = {name: str(path) for name, path in places.items()}
    run_bundle(config_file=str(bundle / "configs" / "inference.json"), logging_file=False, **named, **options)
    with (bundle / "eval" / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_user_calibrates_a_run_and_its_inference_uses_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, data = run / "sites" / "site-01", run.parent / "data" / "site-01"
    before = infer(bundle, data)
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", str(run), "--sensitivity", "0.9", "--coverage", "0.8"])
    assert ended.value.code in (None, 0)
    shown = capsys.readouterr().out
    assert shown.count("calibration.json") == 3
    assert shown.count("sensitivity") == 4  # both sites, and the global model at both
    for folder in (bundle, run / "sites" / "site-02", run / "global"):
        calibration = Calibration.read(folder / "configs" / Calibration.NAME)
        assert calibration.threshold is not None
        assert calibration.threshold.sensitivity >= 0.9
        assert isinstance(calibration.recalibration, TemperatureScaling)
    assert calibration.chosen_on.sites == ("site-01", "site-02")
    calibration = Calibration.read(bundle / "configs" / Calibration.NAME)
    after = infer(bundle, data)
    assert [row["case"] for row in after] == [row["case"] for row in before]
    own, scaled = (
        np.array([[float(row[f"probability_{number}"]) for number in (0, 1)] for row in rows])
        for rows in (before, after)
    )
    np.testing.assert_allclose(scaled, recalibrate(calibration, own), atol=1e-6)
    assert [int(row["predicted_class"]) for row in after] == decide(calibration.threshold, scaled).tolist()
    minimum = calibration.conformal_set.minimum if calibration.conformal_set else np.nan
    for row, probabilities in zip(after, own, strict=True):
        expected = {"0", "1"} if probabilities.min() >= minimum else {str(probabilities.argmax())}
        assert set(row["conformal_set"].split("; ")) == expected
        assert row["conformal_coverage"] == "0.8"
    plain = infer(bundle, data, calibration="$None")
    assert [row["probability_1"] for row in plain] == [row["probability_1"] for row in before]


def test_the_card_states_the_calibration_and_verify_recomputes_it(run: Path) -> None:
    (site,) = find_bundle_data(run, ["site-01"], None)
    calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
    for path in write_cards(run, load_plugins()):
        assert ("## Thresholds, recalibration and prediction sets" in path.read_text()) == ("site-01" in str(path))
    results = verify(run)
    assert [result.problems for result in results] == [[], [], []]
    assert results[0].numbers > results[1].numbers
    evidence = run / "sites" / "site-01" / "evidence.json"
    shown = json.loads(evidence.read_text())["scores"]["calibrated"][0]
    tests = read_calibrated_tests(read_run(run), read_prediction_sets(read_run(run)))
    assert [test.name for test in tests] == ["site-01"]
    assert shown == tests[0].evaluation.to_json()


def test_an_external_site_shows_whether_the_threshold_holds_there(run: Path) -> None:
    """The rates at a site that did not train are those that its predictions give at the unchanged threshold."""
    data = write_noisy_cohort(run.parent / "elsewhere", OBJECTIVES["binary"], patients=80, seed=7)
    (site,) = find_bundle_data(run, ["site-01"], None)
    calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
    place = run / "evaluations" / "east"
    (evaluation,) = medfl.evaluate(f"{run}#site-01", data / "site-01", out=place, split="all")
    calibrated, calibration = (
        evaluation.models[0].calibrated,
        Calibration.read(site.folder / "configs/calibration.json"),
    )
    assert calibrated is not None
    assert calibration.threshold is not None
    with (place / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    labels = np.array([int(row["label"]) for row in rows])
    own = np.array([[float(row["p0"]), float(row["p1"])] for row in rows])
    predicted = recalibrate(calibration, own)[:, 1] >= calibration.threshold.threshold
    with (place / "operating_points.csv").open(newline="") as file:
        table = {row["rate"]: float(row["value"]) for row in csv.DictReader(file)}
    for name, expected in {"sensitivity": predicted[labels == 1], "specificity": ~predicted[labels == 0]}.items():
        rate = calibrated.rate(name)
        assert rate is not None
        assert rate.value == pytest.approx(expected.mean(), abs=1e-12)
        assert table[name] == pytest.approx(rate.value, abs=1e-8)
    (shown,) = read_external_evaluations(read_run(run))
    assert (shown.calibration, shown.evaluation) == (calibration, calibrated)
    path = next(path for path in write_cards(run, load_plugins()) if "site-01" in str(path))
    assert "site-01 (external)" in path.read_text()
    assert [result.problems for result in verify(run)] == [[], [], []]


def test_no_choice_depends_on_test_images(run: Path) -> None:
    """Reverse the labels of all test images: the calibration stays the same."""
    (site,) = find_bundle_data(run, ["site-01"], None)
    path = site.folder / "configs" / Calibration.NAME
    calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
    first = path.read_bytes()
    place = run.parent / "data" / "site-01" / "datalist.json"
    content = json.loads(place.read_text())
    for record in content["test"]:
        record["label"] = 1 - record["label"]
    place.write_text(json.dumps(content))
    (other,) = find_bundle_data(site.folder, None, run.parent / "data")  # without the run, no digest is compared
    calibrate_bundle(other, make_choices(*NOTHING, coverage=0.9))
    assert path.read_bytes() == first
    (site,) = find_bundle_data(run, ["site-01"], None)
    with refused(DataError, "other_data"):
        calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))


def test_a_calibration_of_other_weights_is_refused(run: Path) -> None:
    (site,) = find_bundle_data(run, ["site-01"], None)
    calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
    weights = site.folder / "models" / "model.pt"
    content = weights.read_bytes()
    weights.unlink()  # it is a link to the same file of another bundle
    weights.write_bytes(content + b" ")
    tests = read_run(run)
    with refused(StoreError, "other_weights"):
        read_calibrated_tests(tests, read_prediction_sets(tests))


def test_too_few_patients_are_refused_and_the_bundle_stays(run: Path) -> None:
    config = (run / "sites" / "site-01" / "configs" / "inference.json").read_bytes()
    with refused(DataError, "not_calibrated", codes=["too_few_patients"] * 3):
        command(run, sensitivity=0.99)
    assert not (run / "sites" / "site-01" / "configs" / Calibration.NAME).exists()
    assert (run / "sites" / "site-01" / "configs" / "inference.json").read_bytes() == config


@pytest.mark.parametrize("kind", ["multiclass", "regression", "survival"])
def test_other_objectives(kind: str, tmp_path: Path) -> None:
    folder = train_noisy(tmp_path, OBJECTIVES[kind], patients=240, images=2)
    (site,) = find_bundle_data(folder, ["site-01"], None)
    if kind != "multiclass":
        with refused(SettingsError, "unsupported_choice", objective=kind):
            calibrate_bundle(site, make_choices("youden", None, None, None, None, coverage=0.9))
    calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
    calibration = Calibration.read(site.folder / "configs" / Calibration.NAME)
    assert calibration.chosen_on.patients == calibration.chosen_on.images // 2
    row = infer(site.folder, folder.parent / "data" / "site-01")[0]
    if kind == "survival":
        assert calibration.risk_threshold is not None
        assert row["risk_group"] == ("higher" if float(row["risk"]) > calibration.risk_threshold else "lower")
    elif kind == "regression":
        assert calibration.conformal_interval is not None
        interval = calibration.conformal_interval
        widths = [high - low for low, high in zip(interval.low, interval.high, strict=True)]
        for name, width in zip(("y0", "y1"), widths, strict=True):
            assert float(row[f"{name}_high"]) - float(row[f"{name}_low"]) == pytest.approx(width, rel=1e-5)
    else:
        assert calibration.threshold is None
        assert row["decision_rule"] == "most probable class"
        with refused(SettingsError, "missing_class", known=["0", "1", "2"]):
            calibrate_bundle(site, make_choices("youden", None, None, None, None, coverage=0.9))
        calibrate_bundle(site, make_choices("cost", None, 5.0, "2", None, coverage=0))
        row = infer(site.folder, folder.parent / "data" / "site-01")[0]
        assert "conformal_set" not in row
    tests = read_calibrated_tests(read_run(folder), read_prediction_sets(read_run(folder)))
    assert tests[0].evaluation.needed or kind == "multiclass"


def test_wrong_inputs(run: Path, tmp_path: Path) -> None:
    with refused(SettingsError, "unknown_choice", what="rule"):
        make_choices("best", None, None, None, None, 0.9)
    with refused(SettingsError, "unknown_choice", what="recalibrate"):
        make_choices(None, None, None, None, "platt", 0.9)
    with refused(SettingsError, "conflicting_settings", rule="none"):
        make_choices("none", 0.9, None, None, None, 0.9)
    with refused(SettingsError, "setting_out_of_range", setting="coverage"):
        make_choices(*NOTHING, coverage=1.0)
    with refused(SettingsError, "unknown_site", site="site-09"):
        find_bundle_data(run, ["site-09"], None)
    with refused(SettingsError, "missing_data"):
        find_bundle_data(run / "sites" / "site-01", None, None)
    with refused(DataError, "missing_datalist", site="site-01"):
        find_bundle_data(run, ["site-01"], tmp_path)
    (site,) = find_bundle_data(run, ["site-01"], None)
    with refused(SettingsError, "unsupported_choice", choice="linear"):
        calibrate_bundle(site, make_choices(None, None, None, None, "linear", 0.9))
    with refused(SettingsError, "unknown_choice", what="class"):
        calibrate_bundle(site, make_choices(None, None, None, "tumour", None, 0.9))
    path = site.folder / "configs" / "inference.json"
    config = json.loads(path.read_text())
    config["handlers"].pop()
    path.write_text(json.dumps(config))
    with refused(SettingsError, "not_a_bundle"):
        calibrate_bundle(site, make_choices(*NOTHING, coverage=0.9))
