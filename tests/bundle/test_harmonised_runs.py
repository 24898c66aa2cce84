"""Runs on harmonised images and features: exported bundles contain template and map; report and card name them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from medfl.bundle.data_fit import check_harmonisation
from medfl.bundle.exported import load_exported
from medfl.cli.main import main
from medfl.data.datalists import read_datalist, write_datalist
from medfl.data.sites import SiteData, load_sites
from medfl.errors import DataError
from medfl.objectives import Multiclass
from medfl.testing.synthetic import make_cohort

BUNDLES = Path(__file__).parents[2] / "bundles"
TEMPLATE = ((0.1, 0.2, 0.4, 0.7, 0.9),)
RULE = {"template": TEMPLATE}


def site(name: str, rule: dict) -> SiteData:
    return SiteData(name, None, None, None, "", image_reading=rule)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bundle", "rules", "exported", "code"),
    [
        ("own_images", [RULE, RULE], {"image_reading": RULE}, None),
        ("fmri_asd_classification", [{}, {}], {}, None),
        ("fmri_asd_classification", [RULE], {}, "harmonisation_not_supported"),
        ("volume_segmentation", [RULE], {"image_reading": RULE}, "harmonisation_not_supported"),
        ("own_images", [RULE], {}, "harmonisation_not_supported"),
        ("own_images", [RULE, {}], {"image_reading": RULE}, "different_templates"),
        ("own_images", [RULE], {"image_reading": {"template": [[0.1, 0.2, 0.3, 0.4, 0.5]]}}, "different_templates"),
        ("own_images", [{}], {"image_reading": RULE}, "different_templates"),
    ],
)
def test_a_template_that_inference_would_not_apply_is_refused(bundle, rules, exported, code):
    sites = [site(f"s{number}", rule) for number, rule in enumerate(rules)]
    if code is None:
        check_harmonisation(BUNDLES / bundle, sites, exported)
        return
    with pytest.raises(DataError) as error:
        check_harmonisation(BUNDLES / bundle, sites, exported)
    assert error.value.code == code


@pytest.fixture(scope="module")
def cohort(tmp_path_factory) -> Path:
    """Return two sites that were harmonised one by one, as two hospitals do it, with the template of the first one."""
    folder = tmp_path_factory.mktemp("harmonised")
    make_cohort(folder / "raw", sites=2, images_per_site=40, size=16)
    for name, template in (("site-01", None), ("site-02", folder / "data" / "site-01" / "datalist.json")):
        chosen = [] if template is None else ["--template", str(template)]
        with pytest.raises(SystemExit) as end:
            main(["harmonise", str(folder / "raw" / name), "--out", str(folder / "data" / name), *chosen])
        assert not end.value.code
    return folder / "data"


@pytest.mark.usefixtures("run_reports")
def test_exported_bundles_report_and_card_name_template_and_feature_map(cohort, tmp_path):  # a whole run
    for package in ("medfl_report", "medfl_encoders"):
        pytest.importorskip(package)
    run = tmp_path / "run"
    arguments = ["own_images", "--dataset-dir", str(cohort), "--rounds", "1", "--epochs", "1", "--output-dir", str(run)]
    arguments += ["--network-name", "resnet10", "--train-part", "head", "--harmonise-features", "combat"]
    with pytest.raises(SystemExit) as end:
        main(["run", *arguments])
    assert not end.value.code
    template = read_datalist(cohort / "site-01").extra["image_reading"]["template"]
    for name in ("site-01", "site-02"):
        inference = json.loads((run / "sites" / name / "configs" / "inference.json").read_text())
        assert inference["image_reading"]["template"] == template
    text = json.loads((run / "run.json").read_text())["provenance"]["data"]["harmonisation"]
    assert f"{template[0][0]:.3f}" in text
    assert "ComBat" in text
    assert text in (run / "report.html").read_text()
    assert text in (run / "sites" / "site-01" / "docs" / "README.md").read_text()
    for name, data in load_sites(cohort, Multiclass(4), mean=[0.0], std=[1.0]).items():
        images, _ = data.test.batch(torch.arange(len(data.test)))
        with torch.no_grad():
            outputs = load_exported(run / "sites" / name).eval()(images).softmax(1)
        written = pd.read_csv(run / "sites" / name / "predictions.csv")[["p0", "p1", "p2", "p3"]]
        np.testing.assert_allclose(written, outputs, atol=1e-5)  # of the head and harmonised features
    with pytest.raises(SystemExit) as end:
        main(["card", str(run)])
    assert not end.value.code
    assert (
        json.loads((run / "sites" / "site-01" / "evidence.json").read_text())["facts"]["run"]["harmonisation"] == text
    )
    assert text in (run / "sites" / "site-01" / "README.md").read_text()


def test_sites_with_different_templates_are_refused(cohort, tmp_path):
    data = Path(shutil.copytree(cohort, tmp_path / "data"))
    other = read_datalist(data / "site-02")
    template = np.array(other.extra["image_reading"]["template"]) * 0.9
    rule = other.extra["image_reading"] | {"template": template.tolist()}
    write_datalist(data / "site-02", replace(other, extra=other.extra | {"image_reading": rule}))
    with pytest.raises(SystemExit) as end:
        main(["run", "medmnist_classification", "--dataset-dir", str(data), "--output-dir", str(tmp_path / "run")])
    assert end.value.code == 2
    assert not (tmp_path / "run" / "run.json").exists()
