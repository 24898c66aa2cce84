"""Scores against one setting of a method."""

from __future__ import annotations

from itertools import count

import pytest
from make_runs import make_run
from read_page import section, words

from medfl.engine.runs.records import read_run
from medfl_report.groups import group_runs
from medfl_report.sections.sweep import sweep_section

SCORES = {0.2: (0.5, 0.7), 0.6: (0.6, 0.9), 1.0: (0.8, 0.6)}
"""Setting to the accuracy at two sites; their means are 0.6, 0.75, 0.7."""


@pytest.fixture
def page(tmp_path):
    places = count()

    def write(*runs):
        folders = [make_run(tmp_path / str(next(places)), **options) for options in runs]
        return section("sweep", sweep_section(group_runs([read_run(folder) for folder in folders])))

    return write


def run(gamma, seed=0, shift=0.0, **options):
    scores = {"accuracy": {f"site-{n}": value + shift for n, value in enumerate(SCORES.get(gamma, (0.5, 0.7)), 1)}}
    plain = {"method": "fedsdc", "seed": seed, "metrics": ("accuracy",), "sites": ("site-1", "site-2")}
    return plain | {"scores": scores, "bundles": False, "method_args": {"gamma": gamma}} | options


def picture(page):
    (label,) = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    return label


def test_scores_go_with_the_setting(page):
    assert picture(page(run(1.0), run(0.2), run(0.6))) == (
        "accuracy against fedsdc: gamma. mean of sites: 0.600 at 0.2, 0.750 at 0.6, 0.700 at 1; "
        "worst site: 0.500 at 0.2, 0.600 at 0.6, 0.600 at 1."
    )


def test_seeds_are_averaged(page):
    document = page(*(run(gamma, seed, shift) for gamma in SCORES for seed, shift in enumerate((-0.1, 0.1))))
    assert "mean of sites: 0.600 at 0.2, 0.750 at 0.6, 0.700 at 1;" in picture(document)
    assert "Bands: one standard deviation over the seeds." in words(document.sections["sweep"])


def test_the_server_s_test_set_is_a_curve_of_its_own(page):
    document = page(*(run(gamma, server_test={"accuracy": gamma / 2}) for gamma in SCORES))
    assert picture(document).endswith("server test: 0.100 at 0.2, 0.300 at 0.6, 0.500 at 1.")


def test_another_method_beside_it_changes_nothing(page):
    assert picture(page(*map(run, SCORES), run(0.2, method="fedavg"))) == picture(page(*map(run, SCORES)))


def test_values_far_apart_stand_at_even_distances(page):
    document = page(run(0.0), run(0.01), run(1.0))
    assert "0.600 at 0, 0.600 at 0.01, 0.700 at 1;" in picture(document)
    assert "(not to scale)" in document.sections["sweep"]
    assert "(not to scale)" not in page(*map(run, SCORES)).sections["sweep"]


@pytest.mark.parametrize(
    "runs",
    [
        [run(0.2), run(0.6)],
        [run(0.2, method_args={"way": way}) for way in ("a", "b", "c")],
        [run(0.2, method_args={"on": on}) for on in (True, False)] + [run(0.2, method_args={"on": None})],
        [run(gamma, method_args={"gamma": gamma, "beta": 1 - gamma}) for gamma in SCORES],
        [run(gamma, status="running") for gamma in SCORES],
    ],
    ids=["two values", "no numbers", "yes or no", "two settings", "no scores"],
)
def test_nothing_is_drawn_of(page, runs):
    assert not page(*runs).sections["sweep"].strip()
