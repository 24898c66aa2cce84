"""Test pictures of a report: their content, and that any page can contain them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from medfl_report.curves import MAX_GROUPS, compare_svg
from medfl_report.figures import (
    COLOURS,
    Curve,
    Reliability,
    curves_figure,
    looks,
    reliability_figure,
    svg,
)
from medfl_report.sections.class_counts_figure import class_counts_figure

ODD = "a$b$ & <i>c"


class Texts(HTMLParser):
    """The texts and the tags of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_data(self, data):
        self.texts.append(data.strip())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


def curves(names=("local", ODD), band=True):
    rounds, values = np.arange(1, 6), np.array([0.2, 0.4, np.nan, 0.6, 0.7])
    ends = (values - 0.1, values + 0.1) if band else ((), ())
    return [Curve(name, rounds, values, *ends) for name in names]


def test_names_are_in_a_picture_as_they_are():
    drawn = curves()
    text = Texts(svg(curves_figure(drawn, looks(["local", ODD], ["local"]), "accuracy"), "one", f"of {ODD}"))
    assert {"local", ODD, "accuracy", "round"} <= set(text.texts)
    assert text.tags[0] == ("svg", text.tags[0][1] | {"role": "img", "aria-label": f"of {ODD}"})


def test_a_picture_names_no_address_and_no_colour_of_the_page():
    html = svg(curves_figure(curves(), looks(["local", ODD]), "accuracy"), "one", "curves")
    assert "http" not in html
    assert "<script" not in html
    assert "<style" not in html
    assert "#ffffff" not in html, "the page's own ground shows through"
    assert "fill: currentColor" in html


def test_ids_of_two_pictures_never_meet_and_each_reference_has_its_target():
    pages = [svg(curves_figure(curves(), looks(["local", ODD]), "accuracy"), name, "curves") for name in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]*)"', page)) for page in pages]
    assert ids[0]
    assert not ids[0] & ids[1]
    for page, own in zip(pages, ids, strict=True):
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', page)) == own


def test_the_same_figure_gives_the_same_text():
    first, second = (svg(curves_figure(curves(), looks(["local", ODD]), "loss", unit=False), "x", "y") for _ in "ab")
    assert first == second


def test_the_axis_of_a_score_ends_at_its_ends_and_that_of_a_loss_does_not():
    high = [Curve("fedavg", [1, 2], [0.9, 1.0], [0.5, 0.6], [1.0, 1.0])]
    assert curves_figure(high, looks(["fedavg"]), "accuracy").axes[0].get_ylim()[1] <= 1.02
    loss = [Curve("fedavg", [1, 2], [3.0, 1.0])]
    assert curves_figure(loss, looks(["fedavg"]), "loss", unit=False).axes[0].get_ylim()[1] > 3


def test_a_curve_without_a_band_has_none():
    with_band, without = (curves_figure(curves(band=band), looks(["local", ODD]), "accuracy") for band in (True, False))
    assert len(with_band.axes[0].collections) == 2
    assert not without.axes[0].collections


def test_reliability_is_drawn_over_the_diagonal():
    reliability = [Reliability("fedavg", [0.4, 0.9], [0.3, 0.8], [0.25, 0.75])]
    axes = reliability_figure(reliability, looks(["fedavg"])).axes[0]
    diagonal, line = axes.lines
    small, large = axes.collections[0].get_sizes()
    assert large == 3 * small
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert line.get_xydata().tolist() == [[0.4, 0.3], [0.9, 0.8]]


def test_twelve_methods_look_unlike_and_the_sites_alone_are_grey():
    styles = looks([str(number) for number in range(12)] + ["local"], ["local"])
    assert len({(look.colour, str(look.dashes)) for look in styles.values()}) == 13
    assert len({(look.colour, look.marker) for look in styles.values()}) == 13, "where there are marks only"
    red, green, blue = (styles["local"].colour[k : k + 2] for k in (1, 3, 5))
    assert red == green == blue


def test_many_methods_are_in_several_pictures_on_the_same_axes():
    values = {f"method-{number:02}": [number, 2 * number] for number in range(2 * MAX_GROUPS + 1)}
    figures = []

    def draw(part):
        lines = [Curve(name, [1, 2], heights) for name, heights in part.items()]
        figures.append(curves_figure(lines, looks(list(part)), "loss", unit=False))
        return figures[-1]

    text = Texts(compare_svg(draw, values, "many", "all of them"))
    assert [name for name in text.texts if name in values] == list(values), "each once, in their order"
    ids = [attributes["id"] for _, attributes in text.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in text.tags].count("svg") == len(figures) == 3
    assert len({(figure.axes[0].get_xlim(), figure.axes[0].get_ylim()) for figure in figures}) == 1
    assert figures[0].axes[0].get_ylim()[1] > 2 * 2 * MAX_GROUPS
    few = dict(list(values.items())[:MAX_GROUPS])
    assert compare_svg(draw, few, "few", "eight").count("<svg") == 1


@pytest.mark.parametrize("ground", ["#ffffff", "#15181c"])
def test_lines_stand_out_on_a_light_and_on_a_dark_page(ground):
    """WCAG 2.2, success criterion 1.4.11: graphical objects have a contrast of 3 at least."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (*COLOURS, looks(["local"], ["local"])["local"].colour):
        low, high = sorted([luminance(colour), luminance(ground)])
        assert (high + 0.05) / (low + 0.05) >= 3, (colour, ground)


def test_no_text_is_lost_on_the_way_into_a_page():
    """Class names of two lines have separate text elements, whose style ends with the font's family."""
    classes = ['benign "typical"', "carcinoma, in situ", "a very long name of a class in two lines", "Oedem"]
    figure = class_counts_figure({"site-01": [3, 4, 5, 6], "site-02": [1, 0, 2, 9]}, classes)
    shown = " ".join(text for text in Texts(svg(figure, "held", "who holds what")).texts if text)
    for word in " ".join(classes).split():
        assert word in shown, word
