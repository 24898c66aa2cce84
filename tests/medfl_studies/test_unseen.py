"""Study key ``unseen``: runs without a site, their evaluation there, and no trace of the site in the training."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from refusals import refused

from medfl.cli.run import parse_overrides
from medfl.data.datalists import read_datalist
from medfl.data.partition_file import check_unchanged
from medfl.data.sites import load_sites
from medfl.errors import SettingsError
from medfl.objectives import Multiclass
from medfl.records.evaluation import Evaluation
from medfl.testing.synthetic import make_cohort
from medfl_report.evaluation.evaluate import evaluate_sites
from medfl_studies.schema import Study
from medfl_studies.study import load_study, run_study
from medfl_studies.unseen import unseen_jobs, write_without

SITES = ("site-01", "site-02", "site-03")


def launch(command: list[str], log: Path) -> int:
    """Run a command of a study in this process."""
    from medfl.bundle.bundle_folders import find_bundle
    from medfl.workflow import run_bundle

    if command[3] == "evaluate":
        evaluate_sites(command[4], Path(command[6]), split=command[8])  # type: ignore[arg-type]
    else:
        run_bundle(find_bundle(command[4]), parse_overrides(command[5:]), None, False)
    return 0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    make_cohort(folder / "cohort", sites=3, images_per_site=30, classes=3, size=10)
    return folder


@pytest.fixture(scope="module")
def done(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a study of one method that leaves out each site, and return its folder."""
    return run_unseen(source, tmp_path_factory.mktemp("done"), "each")


def run_unseen(source: Path, place: Path, unseen: str | list[str], **changes: object) -> Path:
    import yaml

    study = {
        "name": "leave",
        "bundle": "medmnist_classification",
        "data": {"demo": {"folder": "cohort"}},
        "metrics": ["accuracy"],
        "settings": {"rounds": 1, "epochs": 1, "device": "cpu"},
        "rows": {"fedavg": {"method": "fedavg"}},
        "unseen": unseen,
    } | changes
    (place / "study.yaml").write_text(yaml.safe_dump(study))
    prepared = load_study(place / "study.yaml", source=source, out=place / "out")
    outcome = run_study(prepared, launch)
    assert outcome.unfinished() == []
    return place / "out"


def test_each_site_is_left_out_and_evaluated(done: Path, source: Path) -> None:
    values = {}
    for site in SITES:
        folder = done / "unseen" / "demo" / "fedavg" / "seed-0" / site
        (path,) = (folder / "evaluations").glob(f"*/{Evaluation.NAME}")
        evaluation = Evaluation.read(path)
        assert (evaluation.site, evaluation.is_external) == (site, True)
        assert evaluation.images == len(read_datalist(source / "cohort" / site).splits["test"])
        assert not (folder / "sites" / site).exists()
        score = evaluation.scores["accuracy"]
        assert score is not None
        values[site] = score
    table = pd.read_csv(done / "results" / "demo-external.csv").set_index("site")
    for site in SITES:
        assert table.loc[site, ["value", "low", "high"]].tolist() == pytest.approx(
            [values[site].value, values[site].low, values[site].high]
        )
    assert table.loc["mean", "value"] == pytest.approx(np.mean([score.value for score in values.values()]))
    text = (done / "results" / "demo.md").read_text()
    assert "### accuracy at sites that did not train" in text
    page = (done / "results" / "demo.html").read_text()
    assert "External validation" in page
    assert f"{values['site-02'].low:.3f} to {values['site-02'].high:.3f}" in page


def test_images_of_the_unseen_site_change_no_trained_bit(done: Path, source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    (tmp_path / "source" / "cohort" / "partition.json").unlink()  # its digests would refuse the changed images
    array = tmp_path / "source" / "cohort" / "images.npy"
    images = np.load(array)
    records = read_datalist(source / "cohort" / "site-03").splits
    rows = [record["image"] for split in records.values() for record in split]
    rows += [record["image"] for record in read_datalist(source / "cohort" / "global").splits["test"]]
    images[rows] = 255 - images[rows]
    np.save(array, images)
    other = run_unseen(tmp_path / "source", tmp_path, ["site-03"])
    first, second = (
        place / "unseen" / "demo" / "fedavg" / "seed-0" / "site-03" / "global" / "models" / "model.pt"
        for place in (done, other)
    )
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in (other / "unseen" / "demo" / "fedavg" / "seed-0").iterdir()) == ["site-03"]


def test_a_repeated_study_runs_nothing(done: Path, source: Path) -> None:
    started: list[list[str]] = []
    prepared = load_study(done.parent / "study.yaml", source=source, out=done)
    run_study(prepared, lambda command, log: started.append(command) or 1)  # type: ignore[func-returns-value]
    assert started == []


def test_the_scale_of_a_table_comes_from_the_other_sites(tmp_path: Path) -> None:
    from medfl.data.arrays import FEATURE_MEAN, FEATURE_STD
    from medfl.data.datalists import Datalist, write_datalist
    from medfl.data.partition.partition import partition
    from medfl.data.partition.plan import PartitionPlan
    from medfl.plugins import load_plugins

    rows = np.array([[1.0, 10.0], [3.0, 30.0], [100.0, 500.0], [300.0, 900.0]], dtype=np.float32)
    (tmp_path / "pool").mkdir()
    np.save(tmp_path / "pool" / "images.npy", rows)
    records = [{"image": row, "label": row % 2, "subject_id": str(row), "site": "ab"[row // 2]} for row in range(4)]
    write_datalist(
        tmp_path / "pool", Datalist(name="t", num_classes=2, image_array="images.npy", splits={"training": records})
    )
    plan = PartitionPlan("by_site", column="site", test="none", server_test="none")
    partition(tmp_path / "pool", tmp_path / "sites", plan, load_plugins().partition("by_site"))
    write_without(tmp_path / "sites", ["a"], tmp_path / "without" / "b")
    extra = read_datalist(tmp_path / "without" / "b" / "a").extra
    assert (extra[FEATURE_MEAN], extra[FEATURE_STD]) == ([2.0, 20.0], [1.0, 10.0])
    assert read_datalist(tmp_path / "sites" / "a").extra[FEATURE_MEAN] == [101.0, 360.0]
    folder = tmp_path / "without" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "partition.json"]
    sites = load_sites(folder, Multiclass(2), [0.0], [1.0])
    assert check_unchanged(folder, sites.values(), every_site=True) == []


def test_wrong_values(source: Path, tmp_path: Path) -> None:
    with refused(SettingsError, "unknown_site", site="site-9", dataset="demo"):
        run_unseen(source, tmp_path, ["site-9"])
    with refused(SettingsError, "too_few_sites", found=1):
        run_unseen(source, tmp_path, "each", data={"demo": {"folder": "cohort", "options": {"sites": ["site-01"]}}})
    heart = {"prep": {"dataset": "flamby_heart", "scale": "pooled"}, "partition": {"scheme": "by_site"}}
    validation = {"folder": "cohort", "partition": {"scheme": "iid", "sites": 2, "public": "validation"}}
    from medfl.plugins import load_plugins
    from medfl_studies.unseen import check_unseen

    def check(data: dict[str, object], adopted: bool = False) -> None:
        content = {"name": "x", "bundle": "b", "data": {"demo": data}, "unseen": "each"}
        check_unseen(Study.model_validate(content), load_plugins(), adopted)

    with refused(SettingsError, "pooled_statistics", dataset="demo"):
        check(heart)
    with refused(SettingsError, "incompatible_settings", settings=["public", "unseen"]):
        check(validation)
    with refused(SettingsError, "unsupported_bundle", setting="unseen"):
        check({"folder": "cohort"}, adopted=True)
    check(heart | {"prep": {"dataset": "flamby_heart", "scale": "centre"}})


def test_without_the_key_there_are_no_such_runs(tmp_path: Path) -> None:
    study = Study.model_validate({"name": "x", "bundle": "b", "data": {"demo": {"folder": "cohort"}}})
    assert unseen_jobs(study, [], tmp_path) == []
