"""The demo: its synthetic data, its summary, and the gain from federated training."""

from __future__ import annotations

import csv
import os
from collections import Counter

import numpy as np
import pytest
from make_runs import make_run
from PIL import Image

from medfl.engine.runs.records import read_run
from medfl_report.patient_tests import RunPair
from medfl_report.predictions import read_prediction_sets
from medfl_report.site_comparison import BETTER, NO_CLEAR_DIFFERENCE, WORSE, compare_sites
from medfl_studies.demo import demo
from medfl_studies.demo.cells import HOSPITALS, write_images
from medfl_studies.demo.runs import DemoPart, summarize_gains, write_demo_report

CELL_METRICS = ("accuracy", "balanced_accuracy")


def compared(runs, methods, metric):
    """Return the gains of federated over local training."""
    alone, together = (read_run(runs / method) for method in methods)
    return compare_sites(
        metric,
        methods[1],
        [RunPair(alone, together)],
        {str(run.folder): read_prediction_sets(run) for run in (alone, together)},
    )


def test_the_demo_hides_gpus_since_its_report_computes_gradients_before_it_forks(tmp_path, monkeypatch):
    seen = []

    def part(*arguments):
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return DemoPart(tmp_path / "report.html", [])

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for name in ("run_cell_demo", "run_brain_demo"):
        monkeypatch.setattr(f"medfl_studies.demo.{name}", part)
    assert demo(tmp_path) == [tmp_path / "report.html"] * 2
    assert seen == ["", ""]


def test_hospitals_differ_in_stain_in_numbers_and_in_what_is_frequent(tmp_path):
    table = write_images(tmp_path / "images", 40, seed=0)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["hospital"] for row in rows) == {name: round(40 * share) for name, share in HOSPITALS.items()}
    assert len({row["patient"] for row in rows}) == len(rows) == len(list((tmp_path / "images").glob("*.png")))
    by_hospital = {name: [row for row in rows if row["hospital"] == name] for name in HOSPITALS}
    shares = {name: Counter(row["diagnosis"] for row in own) for name, own in by_hospital.items()}
    assert (
        len({tuple(sorted(count / count_all.total() for count in count_all.values())) for count_all in shares.values()})
        == 6
    )
    backgrounds = {
        name: np.mean([np.asarray(Image.open(tmp_path / "images" / row["file"]))[0, 0] for row in own], axis=0)
        for name, own in by_hospital.items()
    }
    first, *others = backgrounds.values()
    assert all(np.abs(first - other).max() > 2 for other in others), "corners hold no cell, but the stain"


def test_the_same_seed_makes_the_same_images(tmp_path):
    for folder, seed in (("one", 0), ("two", 0), ("three", 1)):
        write_images(tmp_path / folder, 20, seed)
    files = {folder: [path.read_bytes() for path in sorted((tmp_path / folder).iterdir())] for folder in ("one", "two")}
    assert files["one"] == files["two"]
    assert (tmp_path / "three" / "labels.csv").read_bytes() != files["one"][-1]


def test_the_end_says_who_gains_as_the_page_does(tmp_path):
    alone, together = (
        make_run(tmp_path / method, method, skill=skill, images=60)
        for method, skill in (("local", 0.5), ("fedavg", 3.0))
    )
    (line,) = summarize_gains(alone, together, ["accuracy"])
    expected = compared(tmp_path, ("local", "fedavg"), "accuracy")
    mean = expected.mean
    assert f"mean gain {mean.difference:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}]" in line
    gain, lose, unclear = (expected.count(verdict) for verdict in (BETTER, WORSE, NO_CLEAR_DIFFERENCE))
    assert gain
    assert line.endswith(f"; {gain} of 3 sites gain, {lose} lose, {unclear} show no clear difference")
    shown = write_demo_report(alone, together, tmp_path / "page.html", ["accuracy"], "Nothing of this is real.")
    assert shown.gains == [line]
    assert "Nothing of this is real." in shown.page.read_text()


@pytest.mark.slow
def test_most_sites_gain_clearly_and_none_is_lost_on_average(tmp_path, capsys):
    cells, brains = demo(tmp_path)
    printed = capsys.readouterr().out
    rows = []
    for metric in CELL_METRICS:
        comparison = compared(tmp_path / "runs", ("local", "fedavg"), metric)
        assert comparison.mean.low > 0
        rows += [row.effect for row in comparison.rows]
    assert rows.count(BETTER) > len(rows) / 2
    assert compared(tmp_path / "brains" / "runs", ("local", "fedskd"), "balanced_accuracy").mean.effect != WORSE
    assert f"Blood cells of six hospitals: open {cells}" in printed
    assert f"open {brains}" in printed
    assert "hospitals are synthetic" in cells.read_text()
    assert "different networks can learn" in brains.read_text()
