"""Report section on heads: assignment, agreement and accuracy of the vote."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import section, words

from medfl.contract import Findings
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import read_run
from medfl_methods.fedsdc.heads_figures import (
    COLOURS,
    MAX_COLUMNS,
    assignment_figure,
    count_rounds_with_head,
    describe_assignment,
)
from medfl_methods.fedsdc.heads_report import heads_section
from medfl_report.groups import group_runs

SITES = ["a", "b", "c"]
HELD = [[0, 1, -1], [1, 0, -1], [1, 0, -1], [0, 1, -1]]
"""Two heads at two of three sites, in four rounds."""

EVALUATION = {"images": 20, "right": [12, 15], "agree": [[20, 7], [7, 20]], "votes": [15, 14]}
POOL = {
    "sites": SITES,
    "widths": [32, 0],
    "ensemble_heads": [1],
    "evaluated_on": "validation",
    "ranking": [1, 0],
    "evaluation": EVALUATION,
}


def findings(held=HELD, **changes):
    meta = {name: value for name, value in (POOL | changes).items() if value is not None}
    return Findings({"heads": meta}, {"held": torch.tensor(held, dtype=torch.int16).reshape(-1, len(meta["sites"]))})


@pytest.fixture
def page(tmp_path):
    def write(*runs):
        folders = [make_run(tmp_path / str(place), "fedsdc", **options) for place, options in enumerate(runs)]
        by_folder = {str(folder): read_findings(folder) for folder in folders}
        return section("heads", heads_section(group_runs([read_run(folder) for folder in folders]), by_folder))

    return write


def pictures(page):
    return [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]


def text(page):
    return words(page.sections["heads"])


# ---- assignment


def test_the_picture_is_described_in_words(page):
    description = "Heads assigned to the sites in 4 rounds. a: 1, 2, 2, 1; b: 2, 1, 1, 2; c: none, none, none, none."
    assert pictures(page({"findings": findings()}))[0] == description


def test_rounds_with_each_head_are_counted(page):
    rows = page({"findings": findings()}).tables["Rounds with each head"]
    assert rows == [["site", "1", "2", "all"], ["a", "2", "2", "4"], ["b", "2", "2", "4"], ["c", "0", "0", "0"]]


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (HELD, "Each site trained all 2 heads, and each of these in 2 rounds. 1 of 3 sites never took part."),
        ([[0, 1]] * 3, "Each site trained 1 of the 2 heads, and each of these in 3 rounds."),
        ([[0, 1], [0, -1], [1, 0]], "Each site trained all 2 heads, and each of these in 1 to 2 rounds."),
        ([[0, 1]], "Each site trained 1 of the 2 heads, and each of these in 1 round."),
        ([[-1, -1]], "No site trained a head."),
    ],
)
def test_how_evenly_heads_went_round(held, sentence):
    assert describe_assignment(count_rounds_with_head(np.array(held), 2)) == sentence


def runs_of_colour(svg):
    """Map each colour to its cells, as (row, column)."""
    cells = {}
    for colour, path in re.findall(r'stroke="(#\w+)" d="([^"]*)"', svg):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            cells.setdefault(colour, set()).update((int(row), int(start) + n) for n in range(int(length)))
    return cells


def test_each_cell_has_the_colour_and_the_number_of_its_head():
    svg = str(assignment_figure(np.array(HELD), "").svg)
    cells = [(site, round_) for site in range(2) for round_ in range(4)]
    wanted = {COLOURS[head]: {(s, r) for s, r in cells if HELD[r][s] == head} for head in (0, 1)}
    assert runs_of_colour(svg) == wanted
    numbers = re.findall(r'<text x="[\d.]+" y="(\d+)">(\d)</text>', re.sub(r'<g class="axis">.*?</g>', "", svg))
    assert sorted(numbers) == sorted((str(22 * s + 15), str(HELD[r][s] + 1)) for s, r in cells)


@pytest.mark.parametrize("rounds", [3, 60, MAX_COLUMNS, MAX_COLUMNS + 1, 1500])
def test_a_picture_is_never_wider_than_a_page(rounds):
    held = np.arange(rounds)[:, None] % 15
    picture = assignment_figure(held, "")
    width = float(re.search(r' width="([\d.]+)" height', str(picture.svg))[1])
    assert width <= 820
    drawn = set().union(*runs_of_colour(str(picture.svg)).values())
    assert drawn == {(0, column) for column in range(len(range(0, rounds, picture.every)))}
    assert len(drawn) <= MAX_COLUMNS
    labels = [int(number) for number in re.findall(r">(\d+)</text>", str(picture.svg).partition('class="axis"')[2])]
    assert labels == sorted(set(labels))
    assert labels[-1] <= rounds


# ---- agreement and votes


def test_agreement_is_beside_width_accuracy_and_rank(page):
    document = page({"findings": findings()})
    assert document.tables["Agreement of the heads"] == [
        ["head", "width", "accuracy", "rank", "1", "2"],
        ["1", "32", "0.600", "2", "", "35"],
        ["2", "one layer", "0.750", "1", "35", ""],
    ]
    assert "The ensemble has only head 2." in text(document)


def test_the_curve_is_the_share_of_right_votes(page):
    document = page({"findings": findings()})
    assert pictures(document)[1].endswith("fedsdc: 0.750, 0.700, ensemble of 1.")
    assert "on 20 validation images of all sites. Ring" in text(document)
    assert "so the curve is optimistic" in text(document)
    assert "accuracy on training images is higher" not in text(document)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "no site has validation images (medfl partition creates them with --val-fraction 0.1)."),
        (
            {"settings": {"privacy": {"epsilon": 1.0, "clip": 1.0}}},
            "under a privacy setting sites do not send the counts.",
        ),
        ({"status": "diverged"}, "the run ended before the evaluation."),
    ],
)
def test_heads_that_no_one_compared(page, options, why):
    document = page({"findings": findings(evaluation=None, ranking=None, ensemble_heads=[0, 1]), **options})
    assert re.search(f"The heads were not evaluated: .*{re.escape(why)}$", text(document))
    assert len(pictures(document)) == 1
    assert "The ensemble has all 2 heads." in text(document)


def test_names_are_escaped(page):
    odd = '<i>"&'
    document = page({"findings": findings(sites=[odd, "b", "c"])})
    assert document.tables["Rounds with each head"][1][0] == odd
    assert f"{odd}: 1, 2, 2, 1" in pictures(document)[0]
    assert "i" not in {tag for tag, _ in document.tags}
