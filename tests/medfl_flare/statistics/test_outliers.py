"""The outlier site is found in data with a known shift, and none is found among equal sites."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from described import write_classes, write_site
from prepare_specs import prepare_spec
from scipy.stats import t as student

from medfl.cli.main import main
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.settings import Privacy
from medfl_datasets.breast_ultrasound.spec import BreastUltrasound
from medfl_flare.statistics.disclosure import DisclosurePolicy
from medfl_flare.statistics.local_folder import compute_folder_statistics
from medfl_flare.statistics.outliers import Outlier, SiteQuantity, compare_sites, find_outliers
from medfl_flare.statistics.report_content import StatisticsReport, make_report
from medfl_flare.statistics.site_statistics import DisclosedCounts, DisclosedQuantiles, SiteStatistics
from medfl_flare.statistics.statistics_page import render_html, render_markdown, write_statistics_report

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "segmentation", "breast_ultrasound")


def sites(root: Path, counts: list[list[int]], shifts: dict[int, int], seed: int = 0) -> Path:
    for number, each in enumerate(counts):
        write_classes(root / f"site-{number}", each, seed=seed * 100 + number, shift=shifts.get(number, 0))
    return root


def status(*words: str) -> int:
    """Return the exit status of the command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def test_a_comparison_in_closed_form() -> None:
    """Compare 90 with 1, 2, 3, 4 and 5: their median is 3, and their median absolute deviation 1."""
    others = {f"{value}": SiteQuantity(float(value), 0.5, 2.0) for value in (1, 2, 3, 4, 5)}
    observed, freedom = 1.4826**2 - 0.5**2, 0.37 * 4
    for relevant in (2.0, 8.0, 87.0, 87.001):
        made = compare_sites(others | {"odd": SiteQuantity(90.0, 3.0, relevant)})["odd"]
        population = (10 * (relevant / 2) ** 2 + freedom * observed) / (10 + freedom)
        scale = math.sqrt(3.0**2 + math.pi / 2 * 0.5**2 / 5 + population * (1 + math.pi / 2 / 5))
        assert made.deviations == pytest.approx(87 / scale)
        assert made.p_value == pytest.approx(2 * student.sf(87 / scale, 10 + freedom))
        assert (made.median, made.is_relevant) == (3.0, relevant <= 87)

    two = {name: SiteQuantity(value, 1.0, 4.0) for name, value in (("a", 0.0), ("b", 4.0))}
    made = compare_sites(two | {"c": SiteQuantity(9.0, 0.0, 4.0)})["c"]  # the variance of 0 and 4 is 8
    assert made.deviations == pytest.approx(7 / math.sqrt(0.5 + 1.5 * (10 * 2.0**2 + 8 - 1) / 11))
    assert made.p_value == pytest.approx(2 * student.sf(made.deviations, 11))
    assert compare_sites(two) == {}, "which of two is odd?"
    same = {name: SiteQuantity(5.0, 0.0, 0.0) for name in "abc"}
    made = compare_sites(same)["a"]
    assert (made.deviations, made.p_value, made.is_relevant) == (0, 1, False)


def test_one_difference_of_many_comparisons_must_be_larger_than_one_of_few() -> None:
    """A share of 0.9 differs from three shares of 0.7 with p = 0.0049: enough for 8 comparisons, not for 24."""

    def described(share: float, classes: int) -> SiteStatistics:
        counts = [round(1000 * share), *[0] * (classes - 1)]
        table = DisclosedCounts(title="class", names=list("abcde")[:classes], counts=counts)
        return about(images=1000, tables=[table])

    for classes, is_outlier in ((1, True), (5, False)):
        made = find_outliers({name: described(0.9 if name == "d" else 0.7, classes) for name in "abcd"})
        assert bool(made) is is_outlier, made


def test_of_three_sites_one_is_an_outlier_if_the_others_agree_and_all_differ_if_they_do_not() -> None:
    def described(share: float) -> SiteStatistics:
        table = DisclosedCounts(title="labels", names=["a"], counts=[round(10_000 * share)])
        return about(images=10_000, tables=[table])

    for shares, names in (((0.1, 0.12, 0.5), {"c"}), ((0.1, 0.12, 0.2), set()), ((0.1, 0.35, 0.6), {"a", "c"})):
        known = dict(zip("abc", map(described, shares), strict=True))
        made = find_outliers(known)
        assert {outlier.site for outlier in made} == names
    assert StatisticsReport(known, {}, made, "").title == "The 3 sites differ from each other"


def test_a_small_site_without_a_class_may_be_chance() -> None:
    """A share of 0 in 10 images differs from a fifth by 2.3 standard errors (rule of succession, 1/12)."""

    def described(images: int, first: int) -> SiteStatistics:
        table = DisclosedCounts(title="labels", names=["a", "b"], counts=[first, images - first])
        return SiteStatistics(objective="multiclass", min_count=1, images=images, tables=[table])

    large = {name: described(100_000, 20_000) for name in "abcd"}
    assert not [
        outlier for outlier in find_outliers(large | {"e": described(10, 0)}) if outlier.quantity.startswith("labels")
    ]
    made = find_outliers(large | {"e": described(1000, 0)})
    assert ("e", "labels: a") in {(outlier.site, outlier.quantity) for outlier in made}


@pytest.mark.parametrize("seed", range(5))
def test_the_brighter_site_is_an_outlier_and_no_other(tmp_path: Path, seed: int) -> None:
    root = sites(tmp_path, [[60, 50]] * 5, {3: 40}, seed)
    made = find_outliers(compute_folder_statistics(root, DisclosurePolicy()))
    assert {outlier.site for outlier in made} == {"site-3"}
    assert "brightness at 50%" in {outlier.quantity for outlier in made}


@pytest.mark.parametrize("seed", range(5))
def test_none_is_an_outlier_where_all_are_drawn_alike(tmp_path: Path, seed: int) -> None:
    assert (
        find_outliers(
            compute_folder_statistics(sites(tmp_path, [[60, 50]] * 4 + [[120, 95]], {}, seed), DisclosurePolicy())
        )
        == []
    )


def test_copies_are_never_outliers(tmp_path: Path) -> None:
    for name in "abcd":
        write_classes(tmp_path / name, [40, 30, 20])
    assert find_outliers(compute_folder_statistics(tmp_path, DisclosurePolicy())) == []


def test_other_labels_sizes_shapes_and_names_stand_out(tmp_path: Path) -> None:
    root = sites(tmp_path, [[60, 50]] * 4 + [[15, 110], [4500, 4000]], {})
    grid = np.full((100, 9, 8), 100, dtype=np.uint8)
    write_site(
        root / "z", grid, [{"label": int(row > 55)} for row in range(100)], labels={"0": "kind 0", "1": "kind 1"}
    )
    by_site_ = {}
    for outlier in find_outliers(compute_folder_statistics(root, DisclosurePolicy())):
        by_site_.setdefault(outlier.site, set()).add(outlier.quantity)
    assert by_site_["site-4"] in ({"class: kind 0"}, {"class: kind 1"})
    assert by_site_["site-5"] == {"training images"}
    assert "shape" in by_site_["z"]
    assert by_site_.keys() == {"site-4", "site-5", "z"}


def test_noise_marks_no_site_and_hides_no_large_shift(tmp_path: Path) -> None:
    privacy = Privacy(unit="sample", epsilon=2.0, clip=1.0)
    alike = sites(tmp_path / "a", [[400, 300]] * 4, {})
    for _ in range(5):
        assert find_outliers(compute_folder_statistics(alike, DisclosurePolicy(), privacy)) == []
    odd = sites(tmp_path / "b", [[400, 300]] * 4, {2: 80})
    made = find_outliers(compute_folder_statistics(odd, DisclosurePolicy(), privacy))
    assert {outlier.site for outlier in made} == {"site-2"}


def test_the_page_loads_nothing_and_holds_no_suppressed_count(tmp_path: Path) -> None:
    root = sites(tmp_path / "data", [[60, 50], [55, 3], [70, 44]], {})
    for path in root.glob("*/datalist.json"):
        path.write_text(path.read_text().replace("kind 1", "<b>kind</b>"))
    report = make_report(
        compute_folder_statistics(root, DisclosurePolicy()), {"site-9": "is <i>not</i> connected"}, "a folder"
    )
    page, text = render_html(report), render_markdown(report)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", page)
    assert "<script" not in page
    assert "<b>kind</b>" not in page
    assert "<i>not</i>" not in page
    assert page.count("<svg") == 2
    row = re.search(r"<tr[^>]*><th scope=\"row\">site-1</th><td class=\"n gone\">suppressed</td>.*?</tr>", page, re.S)
    assert row is not None
    assert "| site\\-1 | suppressed | suppressed |" in text
    known = json.loads((write_statistics_report(report, tmp_path / "out").with_suffix(".json")).read_text())
    assert known["sites"]["site-1"]["tables"][0]["counts"] == [None, None]
    assert "55" not in json.dumps(known["sites"]["site-1"]["tables"])


def test_the_command_computes_statistics_of_a_folder_and_names_outliers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sites(tmp_path / "data", [[60, 50]] * 3, {1: 60})
    out, words = tmp_path / "out", ["federate", "statistics"]
    assert status(*words, str(root), "--out", str(out), "--min-count", "5", "--epsilon", "8") == 0
    printed = capsys.readouterr().out
    assert "1 of 3 sites stands out: site-1" in printed
    assert {path.name for path in out.iterdir()} == {f"statistics.{kind}" for kind in ("html", "md", "json")}
    assert "epsilon 8, delta 1e-05, unit one training image" in (out / "statistics.html").read_text()
    for mistake in ([], [str(root), "--kit", "kits/me"], ["--kit", "kits/me"], [str(root), "--epsilon", "-1"]):
        assert status(*words, *mistake) != 0


@pytest.mark.slow
def test_of_five_sources_of_breast_ultrasound_the_brighter_machine_is_an_outlier(tmp_path: Path) -> None:
    if not REAL.is_dir():
        pytest.skip("needs segmentation/breast_ultrasound in the folder that MEDFL_DATA names")
    prepare_spec(BreastUltrasound, REAL, tmp_path / "pool", workers=1, size=32)
    plan = PartitionPlan("by_site", column="site", test="official", server_test="none")
    partition(tmp_path / "pool", tmp_path / "data", plan, by_site)
    known = compute_folder_statistics(tmp_path / "data", DisclosurePolicy())
    assert {site: each.images for site, each in known.items()} == {
        "breast_pl": 186, "busbra_logiq5": 583, "busbra_logiq7": 627, "busbra_toshiba": 98, "busbra_usystems": None,
    }  # fmt: skip
    assert {outlier.site for outlier in find_outliers(known)} == {"busbra_logiq5"}
    assert known["breast_pl"].tables[0].counts == [None, None], "few of its images hold no lesion"


def test_where_most_sites_are_marked_none_is_called_an_outlier(tmp_path: Path) -> None:
    known = compute_folder_statistics(sites(tmp_path, [[60, 50]] * 3, {}), DisclosurePolicy())
    made = [Outlier(site, "shape", "1", "2", math.inf, 0.0) for site in ("site-0", "site-1")]
    assert StatisticsReport(known, {}, made[:1], "").title == "1 of 3 sites stands out: site-0"
    assert StatisticsReport(known, {}, made, "").title == "The 3 sites differ from each other"


# ---- at the limits


def about(**changes: Any) -> SiteStatistics:
    return SiteStatistics(**({"objective": "multiclass", "min_count": 1, "images": 100} | changes))


def test_where_no_more_than_half_of_the_sites_agree_none_is_unlike_the_others() -> None:
    """Two against two sites have no outlier. Among three against one the single site is the outlier."""
    halves = {name: about(shape=[1, 8, 8] if name in "ab" else [1, 9, 9]) for name in "abcd"}
    assert find_outliers(halves) == []
    made = find_outliers(halves | {"c": about(shape=[1, 8, 8])})
    assert [(outlier.site, outlier.quantity, outlier.value_text, outlier.median_text) for outlier in made] == [
        ("d", "shape", "1 x 9 x 9", "1 x 8 x 8")
    ]


def test_of_two_shares_that_are_equally_far_the_first_is_reported() -> None:
    """The shares of all four classes at one site differ by 30 percent; a share of 10 % has the smaller error."""
    equal = DisclosedCounts(title="class", names=["w", "x", "y", "z"], counts=[10, 40, 40, 10])
    other = DisclosedCounts(title="class", names=["w", "x", "y", "z"], counts=[40, 10, 10, 40])
    made = find_outliers({name: about(tables=[other if name == "d" else equal]) for name in "abcd"})
    assert [(outlier.site, outlier.quantity, outlier.value_text) for outlier in made] == [("d", "class: x", "10.0%")]


def test_a_site_is_an_outlier_by_its_size_only_beyond_the_ordinary_variation() -> None:
    """Three sites have 100 images; hospitals differ ordinarily by a standard deviation of log(4) / 2."""
    scale = math.log(4) / 2 * math.sqrt(10 / 12 * (1 + math.pi / 6))
    limit = math.exp(scale * student.isf(0.05 / 4 / 2, 12))  # the smallest of four p-values, two-sided
    for images, marked in ((399, False), (100 * limit - 1, False), (100 * limit + 1, True), (400 / limit, False)):
        images = round(images)
        made = find_outliers({name: about(images=images if name == "d" else 100) for name in "abcd"})
        assert [(outlier.site, outlier.quantity) for outlier in made] == [("d", "training images")] * marked, images


# ---- rates of false flags and detections

SHARES = np.array([0.4, 0.3, 0.2, 0.1])
SPREAD = 12.6
"""Standard deviation of brightness within a site, so that half the interquartile range is 8.5."""
RELEVANT = 1.349 * SPREAD / 2


def drawn_site(rng: np.random.Generator, variation: float, shift: float = 0.0) -> SiteStatistics:
    """Draw a site with about 300 images, 4 classes and 5 quantiles of brightness.

    Args:
        rng: Source of randomness.
        variation: Standard deviation between sites, as a multiple of half of each smallest relevant difference.
        shift: Shift of the brightness as a multiple of the smallest relevant difference.
    """
    images = max(40, round(300 * math.exp(rng.normal(0, variation * math.log(4) / 2))))
    shares = rng.dirichlet(SHARES * (0.24 / (0.05 * variation) ** 2 - 1)) if variation else SHARES
    middle = 100 + RELEVANT * (shift + rng.normal(0, variation / 2))
    common = rng.normal(0, 12, images)
    numbers = []
    for level in (5, 25, 50, 75, 95):
        values = np.quantile(middle + common + rng.normal(0, 4, images), (0.05, 0.25, 0.5, 0.75, 0.95))
        title = f"brightness at {level}%"
        numbers.append(DisclosedQuantiles(title=title, kind="intensities", span=(0, 255), quantiles=values.tolist()))
    counts = rng.multinomial(images, shares).tolist()
    return about(
        images=images, tables=[DisclosedCounts(title="class", names=list("wxyz"), counts=counts)], numbers=numbers
    )


def rate(count: int, draws: int, variation: float, shift: float = 0.0) -> float:
    """Return the share of draws with an outlier; with a shift, with the shifted site as outlier by its brightness."""
    rng, flags = np.random.default_rng([count, round(10 * variation), round(10 * shift)]), 0
    for _ in range(draws):
        made = find_outliers({str(site): drawn_site(rng, variation, shift * (site == 0)) for site in range(count)})
        flags += (
            any(outlier.site == "0" and outlier.quantity.startswith("bright") for outlier in made)
            if shift
            else bool(made)
        )
    return flags / draws


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "variation", "shift", "draws"),
    [
        ("identical sites", 0.0, 0.0, 1000),
        ("sites that vary as assumed (standard deviation of half a relevant difference)", 1.0, 0.0, 1000),
        ("sites that vary twice as much", 2.0, 0.0, 1000),
        ("identical sites, two relevant differences away", 0.0, 2.0, 500),
        ("identical sites, three relevant differences away", 0.0, 3.0, 500),
        ("sites that vary as assumed, three relevant differences away", 1.0, 3.0, 500),
        ("sites that vary as assumed, four relevant differences away", 1.0, 4.0, 500),
    ],
)
def test_the_documented_rates_of_outliers_are_those_of_a_simulation(
    row: str, variation: float, shift: float, draws: int
) -> None:
    rates = [rate(count, draws, variation, shift) for count in (3, 5, 10)]
    cells = " | ".join(f"{100 * each:.1f} %" for each in rates)
    page = Path(__file__).parents[3] / "docs" / "federated_statistics.md"
    assert f"| {row} | {cells} |" in page.read_text(encoding="utf-8")
    if variation <= 1 and not shift:
        assert max(rates) <= 0.05
