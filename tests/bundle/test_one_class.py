"""Sites and folds with a single class: they train, and are scored or counted as undefined."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from abide_maker import CENTRES, rewrite_table

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.engine.runs.records import read_metrics, read_run
from medfl.workflow import FederatedWorkflow
from medfl_datasets.abide.synthetic import ATLAS_FILE, write_release

pytestmark = pytest.mark.usefixtures("undrawn")

BUNDLE = Path(__file__).parents[2] / "bundles" / "fmri_asd_classification"

ALONE = "US-West"
"""Name of the site whose subjects all have autism."""

RARE = "US-East"
"""Name of a site with one control among four subjects, so that one of two folds tests a single class."""

SITES = ["Europe", RARE, "US-Middle", ALONE]


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0


def with_few_classes(row: dict[str, str], place: int) -> dict[str, str]:
    site = row["SITE_ID"]
    last = site == "NYU" and place % 4 == 3
    return row | ({"DX_GROUP": "2" if last else "1"} if site in ("UCLA_1", "NYU") else {})


@dataclass(frozen=True)
class Made:
    """Partitioned data set and a run on it."""

    data: Path
    run: Path

    def classes(self, site: str, split: str) -> set[int]:
        return {record["label"] for record in read_datalist(self.data / site).splits[split]}

    def scores(self, metric: str) -> dict[str, float | None]:
        summary = json.loads((self.run / "summary.json").read_text())
        by_site: dict[str, float | None] = summary["scores"]["personal"]["test"][metric]["sites"]
        return by_site


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Run FedSKD with all parts of its loss for two rounds, with the bundle's defaults."""
    place = tmp_path_factory.mktemp("one-class")
    release, pool, data = place / "release", place / "pool", place / "data"
    write_release(release, per_centre=4, centres=CENTRES, derivatives=("reho",), size=12)
    rewrite_table(release, with_few_classes)
    words = ["--atlas", release / ATLAS_FILE, "--derivatives", "reho", "--size", 16]
    command("prep", "abide", "--source", release, "--out", pool, *words)
    words = ["--scheme", "by_site", "--column", "site", "--stratify", "centre", "--server-test", "none"]
    command("partition", pool, "--out", data, *words, "--test", "k_fold", "--folds", 2, "--fold", FOLD)
    options = {"bundle_root": str(BUNDLE), "dataset_dir": str(data), "output_dir": str(place / "run")}
    workflow = FederatedWorkflow(
        [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")],
        logging_file=False,
        **options,
        method="fedskd",
        method_args={"preset": "paper_asd", "p2p_scale": 1},
        rounds=2,
        epochs=1,
        width=4,
        cross_site_evaluation=True,
    )
    workflow.initialize()
    workflow.run()
    return Made(data, place / "run")


FOLD = 1
"""Fold that tests a single class at the site `RARE`."""


def test_the_data_are_as_bad_as_they_should_be(made: Made) -> None:
    assert made.classes(ALONE, "training") == made.classes(ALONE, "test") == {1}
    assert (made.classes(RARE, "training"), made.classes(RARE, "test")) == ({0, 1}, {1})
    assert made.classes("Europe", "test") == made.classes("US-Middle", "test") == {0, 1}


def test_a_site_of_one_class_trains_and_exports_a_model(made: Made) -> None:
    table = read_metrics(made.run / "metrics.csv")
    loss = table[(table["site"] == ALONE) & (table["metric"] == "loss")].set_index("round")["value"]
    assert loss.index.tolist() == [1, 2]
    assert all(0 < value < math.inf for value in loss)
    for site in SITES:
        assert (made.run / "sites" / site / "models" / "model.pt").is_file()


def test_an_auc_of_one_class_is_no_number_and_left_out_of_the_mean(made: Made) -> None:
    by_site = made.scores("auc")
    assert {site for site, value in by_site.items() if value is None} == {ALONE, RARE}
    known = [value for value in by_site.values() if value is not None]
    summary = json.loads((made.run / "summary.json").read_text())
    assert summary["scores"]["personal"]["test"]["auc"]["mean"] == pytest.approx(sum(known) / 2)
    assert all(value is not None for value in made.scores("accuracy").values()), "what is defined is there"


def test_the_server_test_counts_what_it_leaves_out(made: Made) -> None:
    pytest.importorskip("medfl_report")
    from medfl_report.sections.cross_site import count_undefined, cross_site_scores, global_mean, local_mean

    run = read_run(made.run)
    table = cross_site_scores(run, "auc")
    assert table is not None
    assert sorted(table) == SITES
    for row in table.values():
        assert sorted(site for site, value in row.items() if math.isnan(value)) == [RARE, ALONE]
    assert count_undefined(table) == 8
    assert 0 <= local_mean(table) <= 1
    assert 0 <= global_mean(table) <= 1
    assert count_undefined(cross_site_scores(run, "accuracy") or {}) == 0


def test_the_report_says_how_many_scores_there_are_not(made: Made, tmp_path: Path) -> None:
    pytest.importorskip("medfl_report")
    command("report", made.run, "--out", tmp_path / "page.html")
    assert "8 of 16 scores" in (tmp_path / "page.html").read_text()
