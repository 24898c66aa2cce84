"""Means of table features: sites disclose them from enough rows only, and the report pools them as a run does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from described import write_site

from medfl.data.features.dataset_scale import dataset_scale
from medfl.settings import Privacy
from medfl_flare.statistics.disclosure import DisclosurePolicy, NoiseOptions, disclose_statistics
from medfl_flare.statistics.measurements import measure_site
from medfl_flare.statistics.report_content import StatisticsReport, make_report
from medfl_flare.statistics.site_statistics import SiteStatistics

COLUMNS = [{"name": "age", "kind": "number", "unit": "years", "categories": []}]
COLUMNS += [{"name": "sex", "kind": "category", "unit": "", "categories": ["f", "m"]}]
FEATURES = ["age [years]", "age missing", "sex=f", "sex=m", "sex=(other)", "sex missing"]
EXTRA = {"features": FEATURES, "columns": COLUMNS}


def write(folder: Path, known: int, missing: int, shift: float) -> Path:
    """Write a site with known and missing ages."""
    rows = np.zeros((known + missing, 6), dtype=np.float32)
    rows[:, 0] = shift + np.arange(known + missing)
    rows[known:, 0], rows[known:, 1] = np.nan, 1
    rows[::2, 2], rows[1::2, 3] = 1, 1
    return write_site(folder, rows, [{"label": row % 2} for row in range(len(rows))], extra=EXTRA)


def disclosed(folder: Path) -> SiteStatistics:
    return disclose_statistics(measure_site(folder), DisclosurePolicy(min_count=10))


def report_of(*sites: SiteStatistics) -> StatisticsReport:
    return make_report({f"s{place}": site for place, site in enumerate(sites)}, {}, "")


def test_the_pooled_scale_is_that_of_the_rows_of_all_sites(tmp_path: Path) -> None:
    sites = [write(tmp_path / "D" / "a", 20, 10, 40.0), write(tmp_path / "D" / "b", 30, 0, 60.0)]
    about = [disclosed(folder) for folder in sites]
    assert [moments.count for each in about for moments in each.moments] == [20, 30]
    ages = np.concatenate([40.0 + np.arange(20), 60.0 + np.arange(30)])
    scale = report_of(*about).scale()
    assert scale is not None
    assert scale.mean == pytest.approx([ages.mean(), 0, 0, 0, 0, 0], rel=1e-5)
    assert scale.std == pytest.approx([ages.std(), 1, 1, 1, 1, 1], rel=1e-5)
    together = dataset_scale(tmp_path / "D")
    assert scale.mean == pytest.approx(together.mean, rel=1e-5)
    assert scale.std == pytest.approx(together.std, rel=1e-5)


def test_features_of_images_are_measured_and_scaled_after_the_channels_of_the_image(tmp_path: Path) -> None:
    records = [
        {"label": place % 2, "features": [40.0 + place, 0, place % 2, 1 - place % 2, 0, 0]} for place in range(20)
    ]
    images = np.zeros((20, 4, 4, 3), dtype=np.uint8)
    about = disclosed(write_site(tmp_path / "D" / "a", images, records, extra=EXTRA))
    assert about.shape == [9, 4, 4]
    assert {"age [years]", "sex=f", "brightness at 50%, red"} <= {numbers.title for numbers in about.numbers}
    scale = report_of(about).scale()
    assert scale is not None
    assert scale.mean == pytest.approx([0, 0, 0, 49.5, 0, 0, 0, 0, 0], rel=1e-5)
    together = dataset_scale(tmp_path / "D")
    assert scale.mean == pytest.approx(together.mean, rel=1e-5)
    assert scale.std == pytest.approx(together.std, rel=1e-5)


def test_means_of_few_values_and_numbers_of_few_missing_ones_stay_at_the_site(tmp_path: Path) -> None:
    few, nearly = disclosed(write(tmp_path / "a", 9, 20, 40.0)), disclosed(write(tmp_path / "b", 27, 3, 40.0))
    assert [(moments.count, moments.mean, moments.deviation) for moments in few.moments] == [(0, None, None)]
    assert nearly.moments[0].count == 21, "a lower bound: between 1 and 9 of the 30 rows lack an age"
    assert report_of(few).scale() is None
    assert report_of(few, nearly).scale() == report_of(nearly).scale()


def test_noise_and_the_sites_policy_withhold_means(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 40, 0, 40.0)
    noise = NoiseOptions(Privacy(unit="sample", epsilon=4.0, clip=1.0, delta=1e-5), b"0" * 32, "test")
    noisy = disclose_statistics(measure_site(folder), DisclosurePolicy(min_count=10), noise)
    assert [moments.mean for moments in noisy.moments] == [None]
    kinds = ("size", "label_counts", "geometry")
    assert disclose_statistics(measure_site(folder), DisclosurePolicy(kinds=kinds)).moments == []
