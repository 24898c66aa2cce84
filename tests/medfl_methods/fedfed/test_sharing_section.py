"""Report section on shared images: privacy statement, freezing, counts, and images read back as numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from make_runs import SITES, make_run

pytest.importorskip("medfl_report")

from read_page import section, words

from medfl.contract import Findings
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import read_run
from medfl.privacy.release import ImageRelease, guarantee_sentences
from medfl_methods.fedfed.sharing_figures import (
    DIVERGING_COLOURS,
    describe_end,
    diverging_layer,
    read_stage,
    stage_figure,
)
from medfl_methods.fedfed.sharing_report import MAX_DRAWN_RUNS, sharing_section
from medfl_report.groups import group_runs
from medfl_report.page import render
from medfl_report.rasters import STEPS

HISTORY = [
    {"round": 1, "accuracy": {"site-1": 0.2, "site-2": 0.5, "site-3": 0.5}, "weights": dict.fromkeys(SITES, 1.0)},
    {"round": 2, "accuracy": {"site-1": 0.3, "site-2": 0.9, "site-3": None}, "weights": dict.fromkeys(SITES, 1.0)},
    {"round": 3, "accuracy": {"site-1": 0.4, "site-2": 0.8, "site-3": 0.9}, "weights": {"site-1": 1, "site-2": 0.75}},
]
"""Three rounds; site-2 froze in the second, in which site-3 reported no accuracy."""

PAPER, CLIPPED = ImageRelease("gaussian", 0.15, None), ImageRelease("gaussian", 0.15, 1.0)
QUICK = {"bundles": False, "state": False, "metrics": ("accuracy",), "images": 5}


def findings(*releases, images=None, labels=(2, 2, 0, 0), **changes):
    """Return findings without a history, which is slow to draw. A change of None omits a key."""
    releases = releases or (PAPER,)
    meta = {
        "stage1": {"rounds": 3, "ended": "round limit", "threshold": 0.88},
        "history": [],
        "frozen": {"site-2": 2},
        "releases": [release.meta() for release in releases],
        "statement": guarantee_sentences(releases),
        "items": {"site-1": 1000, "site-2": 30, "site-3": 0},
        "classes": [400, 0, 630],
    } | changes
    images = torch.linspace(-1, 2, 4 * 64).reshape(4, 1, 8, 8) if images is None else images
    tensors = {"sharing/images": images, "sharing/labels": torch.tensor(labels)}
    return Findings({"sharing": {name: value for name, value in meta.items() if value is not None}}, tensors)


def stage(**changes):
    return read_stage(findings(**{"history": HISTORY} | changes).meta["sharing"])


@pytest.fixture
def page(tmp_path):
    def write(*runs):
        folders = [make_run(tmp_path / f"{id(options)}", "fedtpf", **QUICK | options) for options in runs]
        by_folder = {str(folder): read_findings(folder) for folder in folders}
        return section("sharing", sharing_section(group_runs([read_run(folder) for folder in folders]), by_folder))

    return write


def text(page):
    return words(page.sections["sharing"])


def labels(page, tile):
    """Return the descriptions of the figures: of the examples, or of the others."""
    svgs = [attributes for tag, attributes in page.tags if tag == "svg" and "role" in attributes]
    return [attributes["aria-label"] for attributes in svgs if (attributes.get("class") == "tile") == tile]


# ---- privacy statement


def test_a_run_without_a_clip_says_so_in_its_heading(tmp_path):
    folder = make_run(tmp_path / "run", "fedtpf", **QUICK, rounds=1, findings=findings())
    html = render([read_run(folder)])
    part = html[html.index('<section id="sharing">') :]
    assert re.search("<h3>(.*?)</h3>", part)[1] == "fedtpf: no differential privacy"
    assert part.index("notice warn") < part.index("no clip bounds the norm") < part.index("<figure")


def test_a_clipped_run_has_the_epsilons_of_both_adjacencies(page):
    document = page({"findings": findings(CLIPPED)})
    epsilons = "13.76 if an image is added or removed, 34.63 if an image is replaced by any other"
    assert f"fedtpf: epsilon of a shared image: {epsilons}" in text(document)
    assert "no differential privacy" not in text(document).lower()
    assert not [attributes for _, attributes in document.tags if attributes.get("class") == "notice warn"]


def test_the_epsilon_of_two_copies_is_that_of_both_together(page):
    other = ImageRelease("gaussian", 0.25, 1.0)
    assert "fedtpf: epsilon of a shared image: 18.6" in text(page({"findings": findings(CLIPPED, other)}))


# ---- errors of the generator

ERRORS = {"site-1": [0.03, 0.02], "site-2": [0.02, 0.02]}


def test_the_generators_error_is_beside_the_mean_images(page):
    document = page({"findings": findings(errors=ERRORS)})
    assert "mean squared error of 0.0250. For comparison, the mean image of a site has an error of 0.0200" in text(
        document
    )
    table = document.tables["Shared images of each site"]
    assert [words(cell) for cell in table[0][2:4]] == [
        "mean squared error of the generator",
        "mean squared error of the mean image",
    ]
    assert [row[2:4] for row in table[1:4]] == [["0.0300", "0.0200"], ["0.0200", "0.0200"], ["–", "–"]]
    assert "error of the generator" not in words(page({"findings": findings()}).sections["sharing"])


@pytest.mark.parametrize(("errors", "warned"), [(ERRORS, 1), ({"site-1": [0.01, 0.02]}, 0), (None, 0)])
def test_the_page_begins_with_a_warning_of_a_poor_generator(tmp_path, errors, warned):
    run = read_run(make_run(tmp_path / "run", "fedtpf", **QUICK, findings=findings(errors=errors)))
    notices = re.findall('<p class="notice ([a-z]*)">(.*)</p>', render([run]))
    assert [level for level, text in notices if "no better than the mean" in text] == ["warn"] * warned


# ---- stage 1


def lines(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_marks_are_in_the_round_in_which_a_site_froze():
    accuracy, weights = stage_figure(stage()).axes
    name = "site-2, froze in round 2"
    for axes, value in ((accuracy, 0.9), (weights, 1.0)):
        line = lines(axes)[name]
        marked = [(line.get_xdata()[place], line.get_ydata()[place]) for place in line.get_markevery()]
        assert marked == [(2, value)]
        assert line.get_marker() not in ("", "None", None)
    assert list(lines(weights)[name].get_ydata()) == [1.0, 0.75], "from the round in which it froze"
    assert set(lines(weights)) == {name}


def test_the_picture_is_described_in_words_and_its_ends_are_in_the_table(page):
    patients = {"site-1": 100, "site-3": 900}  # Wilson's intervals, from a table
    document = page({"findings": findings(history=[*HISTORY[:-1], HISTORY[-1] | {"patients": patients}])})
    (description,) = labels(document, tile=False)
    assert "mean 0.400 in round 1 and 0.700 in round 3" in description
    assert "site-2 froze in round 2" in description
    assert "weight of site-2 1.000 in round 1 and 0.750 in round 3" in description
    head, *rows = document.tables["Shared images of each site"]
    heads = [
        "site",
        "images shared",
        "accuracy after round 1",
        "accuracy after round 3",
        "95 % interval over patients after round 3",
    ]
    heads += ["froze in round", "last weight"]
    assert [words(cell) for cell in head] == heads
    assert rows == [
        ["site-1", "1\u202f000", "0.200", "0.400", "0.309 to 0.498", "–", "–"],
        ["site-2", "30", "0.500", "0.800", "–", "2", "0.750"],
        ["site-3", "0", "0.500", "0.900", "0.879 to 0.918", "–", "–"],
        ["all sites", "1\u202f030", "", "", "", "", ""],
    ]


MISSED = "2 of 3 sites had not reached the threshold of 0.88; the lowest accuracy was 0.400 (site-1)."
ENDS = (
    ({}, f"Stage 1 ended after 3 rounds, at the round limit: {MISSED}"),
    ({"stage1": {"rounds": 3, "ended": "round limit"}}, "Stage 1 ended after 3 rounds, at the round limit."),
    (
        {"stage1": {"rounds": 1, "ended": "accuracy", "threshold": 0.1}},
        "Stage 1 ended after 1 round: the accuracy at each site reached the threshold of 0.1.",
    ),
    ({"stage1": {"rounds": 3, "ended": "asked"}}, "Stage 1 ended after 3 rounds: asked."),
    ({"stage1": None}, "Stage 1 has not ended: 3 rounds of it are complete."),
    (
        {"stage1": {"ended": None}, "history": HISTORY[:1]},
        "Stage 1 has not ended: 1 round of it is complete.",
    ),
    ({"stage1": None, "history": None}, "Stage 1 has not ended: 0 rounds of it are complete."),
)


@pytest.mark.parametrize(("changes", "sentence"), ENDS)
def test_when_the_first_stage_ended_and_why(changes, sentence):
    sharing = findings(**{"history": HISTORY} | changes).meta["sharing"]
    assert describe_end(sharing, read_stage(sharing)) == sentence


# ---- counts of shared images


def test_images_are_counted_by_site_and_by_class(page):
    document = page({"findings": findings()})
    rows = document.tables["Shared images of each site"]
    assert [row[:2] for row in rows[1:3]] == [["site-1", "1\u202f000"], ["site-2", "30"]]
    assert document.tables["Shared images by class"] == [["basophil", "eosinophil", "lymphocyte"], ["400", "0", "630"]]
    assert "2 sites shared 1 030 images" in text(document)


EMPTY = {"frozen": {}, "items": {}, "classes": [0, 0, 0], "stage1": None}


@pytest.mark.parametrize(
    ("status", "sentence"), [("finished", "No site shared an image."), ("running", "No site has shared an image yet.")]
)
def test_before_anything_was_sent(page, status, sentence):
    document = page({"findings": Findings(findings(**EMPTY).meta, {}), "status": status})
    assert sentence in text(document)
    assert labels(document, tile=False) == labels(document, tile=True) == []
    assert "Shared images by class" not in document.tables
    rows = document.tables["Shared images of each site"]
    assert [row[:2] for row in rows[1:]] == [*([site, "–"] for site in SITES), ["all sites", "0"]]
    assert "No accuracy of stage 1 was recorded." in text(document)


# ---- examples


def test_tiles_are_drawn_cell_by_cell_with_0_in_the_middle():
    levels = np.random.default_rng(0).integers(-STEPS, STEPS + 1, (9, 7))
    layer = diverging_layer(levels)
    ground = re.search(r'fill="(#\w+)"', layer)[1]
    cells = np.full(levels.shape, DIVERGING_COLOURS.index(ground) - STEPS)
    for colour, path in re.findall(r'stroke="(#\w+)" d="([^"]*)"', layer):
        for x, y, n in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            cells[int(y), int(x) : int(x) + int(n)] = DIVERGING_COLOURS.index(colour) - STEPS
    np.testing.assert_array_equal(cells, levels)


@pytest.mark.parametrize(("shape", "volume"), [((4, 3, 40, 8), False), ((4, 1, 10, 12, 9), True)])
def test_each_shared_image_has_a_tile_with_its_class_and_range(page, shape, volume):
    images = torch.zeros(shape)
    images[0], images[1, :, :, :4] = -1.25, 2.5
    document = page({"findings": findings(images=images)})
    descriptions = labels(document, tile=True)
    assert [re.search("class ([^:]*):", label)[1] for label in descriptions] == [
        "basophil",
        "basophil",
        "lymphocyte",
        "lymphocyte",
    ]
    assert descriptions[2].endswith("values from -1.25 to -1.25")
    assert "values from 0.00 to 2.50" in descriptions[3]
    assert ("the middle slice is shown" in text(document)) == volume
    assert ("Colour channels are averaged" in text(document)) != volume
    assert ("Cells are averages" in text(document)) != volume


# ---- several runs


def test_groups_have_a_part_each_and_none_that_is_left_out_hides_what_it_promises(page):
    document = page(
        *(
            {"method_args": {"width": n}, "findings": findings(PAPER if n else CLIPPED)}
            for n in range(MAX_DRAWN_RUNS + 1)
        )
    )
    assert {f"Shared images of each site, fedtpf (width={n})" for n in range(MAX_DRAWN_RUNS)} <= document.tables.keys()
    assert "fedtpf (width=0): epsilon of a shared image: 13.76" in text(document)
    assert f"their own pages show them): fedtpf (width={MAX_DRAWN_RUNS}): no differential privacy" in text(document)
    assert len(labels(document, tile=True)) == MAX_DRAWN_RUNS * 4


def test_a_run_that_shares_nothing_has_no_section(page):
    assert not page({}).sections["sharing"]


def test_names_are_escaped(page):
    odd = '<i>"&'
    document = page({"findings": findings(frozen={odd: 1}, items={odd: 3}, statement=[odd])})
    assert "i" not in {tag for tag, _ in document.tags}
    assert [odd, "3"] in [row[:2] for row in document.tables["Shared images of each site"]]
