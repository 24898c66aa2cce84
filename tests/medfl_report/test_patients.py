"""Intervals go over patients: copies of a patient's image add nothing, and single images change nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from make_runs import MadeUpRun
from torch import nn

from medfl.data.datalists import DATALIST_FILE, patient_numbers
from medfl.data.pooled import PooledDataset, TensorData, count_patients, patients_of
from medfl.data.sites import load_site
from medfl.engine.runs.site_bundles import write_predictions
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.testing.cohort import make_task
from medfl.testing.synthetic import make_cohort
from medfl_report.page import write_report
from medfl_report.statistics import Interval, paired_bootstrap, wilson, wilson_over_patients

pytestmark = pytest.mark.usefixtures("undrawn")

COPIES = 4
PATIENTS = 60


def bootstrap_by(name: str, a: Any, b: Any, labels: Any, classes: int, **options: Any) -> Interval | None:
    """The interval of the difference in a metric of classes."""
    return paired_bootstrap(partial(Multiclass(classes).weighted_score, name), a, b, labels, **options)


def width(interval: Interval | tuple[float, float] | None) -> float:
    assert interval is not None
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    return high - low


def answers(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities of two models of three classes, one better than the other, and labels."""
    stream = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (PATIENTS,), generator=stream)
    hints = torch.eye(3)[labels]
    better, other = (
        (torch.randn(PATIENTS, 3, generator=stream) + skill * hints).softmax(1).double() for skill in (2.0, 1.0)
    )
    return better, other, labels


@pytest.mark.parametrize("metric", ["accuracy", "auc", "balanced_accuracy"])
def test_copies_of_images_don_t_narrow_a_difference(metric: str) -> None:
    better, other, labels = answers()
    alone = bootstrap_by(metric, better, other, labels, 3)
    assert bootstrap_by(metric, better, other, labels, 3, patients=torch.arange(PATIENTS)) == alone, "bit for bit"
    patients = torch.arange(PATIENTS).repeat_interleave(COPIES)
    copied = [part[patients] for part in (better, other, labels)]
    interval = bootstrap_by(metric, *copied, 3, patients=patients)  # type: ignore[arg-type, misc]
    assert alone is not None
    assert interval is not None
    assert (interval.difference, interval.low, interval.high) == pytest.approx(
        (alone.difference, alone.low, alone.high), abs=1e-12
    )
    naive = bootstrap_by(metric, *copied, 3)  # type: ignore[arg-type, misc]
    assert width(interval) / width(naive) == pytest.approx(math.sqrt(COPIES), rel=0.12)


def test_numbers_of_patients_may_be_any(tmp_path: Path) -> None:
    better, other, labels = answers()
    patients = torch.arange(PATIENTS) // 3
    intervals = [
        bootstrap_by("auc", better, other, labels, 3, patients=way(patients))
        for way in (lambda p: p, lambda p: 7 * p + 5)
    ]
    assert intervals[0] == intervals[1]


@pytest.mark.parametrize("correct", [0, 41, PATIENTS])
def test_copies_of_images_don_t_narrow_an_accuracy(correct: int) -> None:
    right = torch.arange(PATIENTS) < correct
    assert wilson_over_patients(right, None) == wilson(correct, PATIENTS)
    singles = wilson_over_patients(right, torch.arange(PATIENTS))
    patients = torch.arange(PATIENTS).repeat_interleave(COPIES)
    for interval in (singles, wilson_over_patients(right[patients], patients)):
        assert interval == pytest.approx(wilson(correct, PATIENTS), abs=1e-12)


def test_images_of_a_patient_that_are_no_more_alike_than_others_count_in_full() -> None:
    """The design effect depends on the data: evenly spread right and wrong images give 1, not the number of copies."""
    right, patients = torch.tensor([True, False] * PATIENTS), torch.arange(PATIENTS).repeat_interleave(2)
    assert wilson_over_patients(right, patients) == wilson(PATIENTS, 2 * PATIENTS)


# ---- from the data list to the page


RECORDS: list[dict[str, Any]] = [{"subject_id": who} for who in ("Doe", None, "Roe", "Doe", " ", "Roe", 3)]


def test_numbers_of_patients_show_who_belongs_together_and_nothing_else() -> None:
    assert patient_numbers(RECORDS) == [0, 1, 2, 0, 3, 2, 4]
    assert patient_numbers(RECORDS[:3]) is None
    assert patient_numbers([]) is None


def test_patients_of_two_sets_are_two() -> None:
    data = TensorData(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    data.patients = torch.tensor([0, 1, 1])  # type: ignore[attr-defined]
    plain = TensorData(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
    pooled = PooledDataset([data, plain, data])
    assert pooled.patients is not None
    assert pooled.patients.tolist() == [0, 1, 1, 2, 3, 4, 5, 5]
    assert (count_patients(pooled), count_patients(plain)) == (6, 2)
    assert patients_of(PooledDataset([plain, plain])) is None


def test_a_site_writes_numbers_and_no_names(tmp_path: Path) -> None:
    make_cohort(tmp_path, images_per_site=30)
    path = tmp_path / "site-01" / DATALIST_FILE
    content = json.loads(path.read_text())
    plain = load_site(path.parent, Multiclass(9), (0.5,), (0.5,)).test
    for record in content["test"]:
        record["subject_id"] = f"Doe-{record['image'] // 2}"
    path.write_text(json.dumps(content))
    test = load_site(path.parent, Multiclass(9), (0.5,), (0.5,)).test
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(9))
    task = replace(make_task(), objective=Multiclass(9))
    for data, last in ((plain, "p8"), (test, "patient")):
        write_predictions(tmp_path / last, model, Splits(data, data, data), task, Settings(rounds=1), {})
        text = (tmp_path / last / "predictions.csv").read_text()
        assert text.splitlines()[0].split(",")[-1] == last
        assert "Doe" not in text
    assert patients_of(test) is not None
    assert {line.split(",")[-1] for line in text.splitlines()[1:]} == {str(n) for n in range(count_patients(test))}


def test_the_page_says_whose_number_counts(tmp_path: Path) -> None:
    for method, skill in (("local", 1.0), ("fedavg", 1.6)):
        MadeUpRun(method, sites=("a", "b"), skill=skill, metrics=("accuracy",)).write(tmp_path / method)
    for path in tmp_path.glob("*/sites/a/predictions.csv"):
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{line},{(row - 1) // 4 if row else 'patient'}\n" for row, line in enumerate(lines)))
    write_report([tmp_path / "fedavg", tmp_path / "local"], tmp_path / "both.html")
    write_report([tmp_path / "local"], tmp_path / "alone.html")
    for page in ("both", "alone"):
        text = (tmp_path / f"{page}.html").read_text()
        assert text.count("40 images of 10 patients") == 1
        assert text.count("40 images</small>") >= 1, "site b does not tell patients"
    both, alone = ((tmp_path / f"{page}.html").read_text() for page in ("both", "alone"))
    unit = "over the test patients (test images at sites without patient numbers)"
    assert (both.count(f"bootstrap {unit}"), alone.count(f"bootstrap {unit}")) == (3, 1)
    assert "2000 resamples of each site's test patients" in (tmp_path / "both.html").read_text().replace("&#39;", "'")
