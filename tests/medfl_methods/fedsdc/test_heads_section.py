"""A pool of heads on the page: who held which, how they agree, and what their votes are worth."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
import torch
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import section, words

from medfl.contract import Findings
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import read_run
from medfl_methods.fedsdc.report import heads_section
from medfl_methods.fedsdc.report_data import COLOURS, COLUMNS, badge, evenness, held_picture, times_held
from medfl_report.groups import group_runs
from medfl_report.page import render

SITES = ["a", "b", "c"]
HELD = [[0, 1, -1], [1, 0, -1], [1, 0, -1], [0, 1, -1]]
"""Two heads at two of three sites, in four rounds."""

JUDGED = {"images": 20, "right": [12, 15], "agree": [[20, 7], [7, 20]], "votes": [15, 14]}
POOL = {"sites": SITES, "widths": [32, 0], "kept": [1], "judged_on": "validation", "ranking": [1, 0], "judged": JUDGED}


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


# ---- who held which


def test_the_picture_is_told_in_words(page):
    description = "Who held which head in 4 rounds. a: 1, 2, 2, 1; b: 2, 1, 1, 2; c: none, none, none, none."
    assert pictures(page({"findings": findings()}))[0] == description


def test_rounds_with_each_head_are_counted(page):
    rows = page({"findings": findings()}).tables["Rounds with each head"]
    assert rows == [["site", "1", "2", "all"], ["a", "2", "2", "4"], ["b", "2", "2", "4"], ["c", "0", "0", "0"]]


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (HELD, "Each site held all 2 heads, and each of these in 2 rounds. 1 of 3 sites never took part."),
        ([[0, 1]] * 3, "Each site held 1 of the 2 heads, and each of these in 3 rounds."),
        ([[0, 1], [0, -1], [1, 0]], "Each site held all 2 heads, and each of these in 1 to 2 rounds."),
        ([[0, 1]], "Each site held 1 of the 2 heads, and each of these in 1 round."),
        ([[-1, -1]], "No site held a head."),
    ],
)
def test_how_evenly_heads_went_round(held, sentence):
    assert evenness(times_held(np.array(held), 2)) == sentence


def runs_of_colour(svg):
    """Colour to the cells that have it, as (row, column)."""
    cells = {}
    for colour, path in re.findall(r'stroke="(#\w+)" d="([^"]*)"', svg):
        for start, row, length in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            cells.setdefault(colour, set()).update((int(row), int(start) + n) for n in range(int(length)))
    return cells


def test_each_cell_has_the_colour_and_the_number_of_its_head():
    svg = str(held_picture(np.array(HELD), "").svg)
    cells = [(site, round_) for site in range(2) for round_ in range(4)]
    wanted = {COLOURS[head]: {(s, r) for s, r in cells if HELD[r][s] == head} for head in (0, 1)}
    assert runs_of_colour(svg) == wanted
    numbers = re.findall(r'<text x="[\d.]+" y="(\d+)">(\d)</text>', re.sub(r'<g class="axis">.*?</g>', "", svg))
    assert sorted(numbers) == sorted((str(22 * s + 15), str(HELD[r][s] + 1)) for s, r in cells)


@pytest.mark.parametrize("rounds", [3, 60, COLUMNS, COLUMNS + 1, 1500])
def test_a_picture_is_never_wider_than_a_page(rounds):
    held = np.arange(rounds)[:, None] % 15
    picture = held_picture(held, "")
    width = float(re.search(r' width="([\d.]+)" height', str(picture.svg))[1])
    assert width <= 820
    drawn = set().union(*runs_of_colour(str(picture.svg)).values())
    assert drawn == {(0, column) for column in range(len(range(0, rounds, picture.every)))}
    assert len(drawn) <= COLUMNS
    labels = [int(number) for number in re.findall(r">(\d+)</text>", str(picture.svg).partition('class="axis"')[2])]
    assert labels == sorted(set(labels))
    assert labels[-1] <= rounds


def test_left_out_rounds_are_named(page):
    document = page({"findings": findings([[0, 1, -1]] * 1000)})
    assert "Of the 1\u202f000 rounds number 1, 4, 7 and so on are drawn." in document.sections["heads"]
    assert document.tables["Rounds with each head"][1] == ["a", "1000", "0", "1000"]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_can_be_read_on_their_colours():
    for head in range(len(COLOURS)):
        colours = badge(head)
        low, high = sorted((luminance(colours.colour), luminance(colours.ink)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"contrast of WCAG 2, level AA, of {colours}"
    assert badge(len(COLOURS)).colour == badge(0).colour


def test_no_two_heads_look_alike():
    def bytes_of(colour):
        return np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])

    assert min(np.abs(bytes_of(a) - bytes_of(b)).max() for a, b in combinations(COLOURS, 2)) >= 40


# ---- agreement and votes


def test_agreement_stands_beside_width_accuracy_and_rank(page):
    document = page({"findings": findings()})
    assert document.tables["Agreement of the heads"] == [
        ["head", "width", "accuracy", "rank", "1", "2"],
        ["1", "32", "0.600", "2", "", "35"],
        ["2", "one layer", "0.750", "1", "35", ""],
    ]
    assert "Only head 2 answers." in text(document)


def test_the_curve_is_the_share_of_right_votes(page):
    document = page({"findings": findings()})
    assert pictures(document)[1].endswith("fedsdc: 0.750, 0.700, of which 1 answer.")
    assert "on 20 validation images of all sites. The ring" in text(document)
    assert "so the curve is too good" in text(document)
    assert "training images are easier" not in text(document)


def test_training_images_are_called_so(page):
    shown = text(page({"findings": findings(judged_on="training")}))
    assert "on 20 training images of all sites" in shown
    assert "training images are easier than new ones. What the run" in shown


def test_votes_of_seeds_are_averaged(page):
    other = JUDGED | {"votes": [11, 18]}
    document = page({"findings": findings()}, {"seed": 1, "findings": findings(judged=other)})
    assert pictures(document)[1].endswith("fedsdc: 0.650, 0.800, of which 1 answer.")
    assert "as mean over the seeds; bands reach from the lowest to the highest" in text(document)
    assert len(pictures(document)) == 2, "the heads of the first seed are drawn"


def test_runs_that_differ_in_gamma_share_a_picture(page):
    runs = [
        {"method_args": {"gamma": gamma}, "findings": findings(kept=kept)}
        for gamma, kept in ((0.5, [1]), (1.0, [0, 1]))
    ]
    document = page(*runs)
    assert len(pictures(document)) == 2
    assert "fedsdc (gamma=0.5): only head 2 answers. fedsdc (gamma=1.0): all 2 heads answer." in text(document)
    assert pictures(document)[1].endswith("of which 1 answer; fedsdc (gamma=1.0): 0.750, 0.700, of which 2 answer.")


def test_unlike_pools_have_a_picture_each(page):
    runs = [
        {"method_args": {"beta": beta}, "findings": findings(HELD[start:])} for start, beta in enumerate((0.0, 0.5))
    ]
    document = page(*runs)
    assert len(pictures(document)) == 3
    assert {f"Who held which head, fedsdc (beta={beta})" for beta in (0.0, 0.5)} <= document.tables.keys()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "no site has validation images; medfl partition keeps some with --val-fraction 0.1."),
        ({"settings": {"privacy": {"epsilon": 1.0, "clip": 1.0}}}, "stay at home under a privacy setting."),
        ({"status": "diverged"}, "the run ended before."),
    ],
)
def test_heads_that_nobody_compared(page, options, why):
    document = page({"findings": findings(judged=None, ranking=None, kept=[0, 1]), **options})
    assert re.search(f"Nobody compared the heads: .*{re.escape(why)}$", text(document))
    assert len(pictures(document)) == 1
    assert "All 2 heads answer." in text(document)


def test_one_head_has_no_curve(page):
    single = {"images": 20, "right": [12], "agree": [[20]], "votes": [12]}
    document = page({"findings": findings([[0, -1, -1]], widths=[8], kept=[0], ranking=[0], judged=single)})
    assert document.tables["Agreement of the heads"][1:] == [["1", "8", "0.600", "1", ""]]
    assert len(pictures(document)) == 1


def test_many_heads_are_not_paired(page):
    many = {"images": 20, "right": [12] * 31, "agree": [[20] * 31] * 31, "votes": [12] * 31}
    ranks = list(range(31))
    document = page({"findings": findings(widths=[8] * 31, kept=ranks, ranking=ranks, judged=many)})
    assert "31 heads are too many to read" in text(document)
    assert {len(row) for row in document.tables["Agreement of the heads"]} == {4}
    assert f"Heads whose numbers are {len(COLOURS)} apart share a colour." in text(document)


def test_before_the_first_round(page):
    document = page({"findings": findings([], judged=None, ranking=None)})
    assert "No round is over." in text(document)


def test_names_are_escaped(page):
    odd = '<i>"&'
    document = page({"findings": findings(sites=[odd, "b", "c"])})
    assert document.tables["Rounds with each head"][1][0] == odd
    assert f"{odd}: 1, 2, 2, 1" in pictures(document)[0]
    assert "i" not in {tag for tag, _ in document.tags}


def test_the_page_of_a_study_of_gamma_has_both_sections(tmp_path):
    options = {"bundles": False, "rounds": 1, "metrics": ("accuracy",), "findings": findings()}
    runs = [make_run(tmp_path / f"{g}", "fedsdc", method_args={"gamma": g}, **options) for g in (0.2, 0.6, 1.0)]
    html = render([read_run(folder) for folder in runs])
    assert [
        section_id for section_id in re.findall('<section id="([a-z]+)">', html) if section_id in ("sweep", "heads")
    ] == [
        "sweep",
        "heads",
    ]
