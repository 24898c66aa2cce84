"""The picture of who holds what."""

from __future__ import annotations

import io
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from pools import write_pool

from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl_report.sections.class_counts_figure import (
    COLOUR,
    MANY,
    SHADES,
    class_counts_figure,
    draw_partition,
    save_figure,
)

NAMES = [
    "actinic keratoses and intraepithelial carcinoma",
    "basal cell carcinoma",
    "benign",
    "colorectal adenocarcinoma epithelium",
    "cancer-associated stroma",
    "x",
    "normal colon mucosa",
]


def make(sites: int, classes: int, seed: int = 0, width: int = 3) -> dict[str, list[int]]:
    table = np.random.default_rng(seed).integers(0, 3000, (sites, classes))
    return {f"site-{number:0{width}d}": row.tolist() for number, row in enumerate(table)}


def corners(text: Text, renderer) -> np.ndarray:
    """The four corners of a text on the page, turned as it is."""
    plain = text.get_rotation()
    text.set_rotation(0)
    box = text.get_window_extent(renderer)
    text.set_rotation(plain)
    if plain == 0:
        return box.corners()
    angle = np.radians(plain)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    origin = text.get_transform().transform(text.get_position())
    return origin + (box.corners() - origin) @ turn


def overlap(box: np.ndarray, other: np.ndarray) -> bool:
    """Return True if two rectangles overlap: no side of either separates them."""
    for rectangle in (box, other):
        for axis in (rectangle[1] - rectangle[0], rectangle[2] - rectangle[0]):
            first, second = box @ axis, other @ axis
            if first.max() <= second.min() or second.max() <= first.min():
                return False
    return True


def texts_of(figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize(
    ("sites", "classes"), [(2, 2), (3, 2), (20, 8), (5, 4), (5, 5), (MANY, 14), (MANY + 1, 2), (100, 8), (1000, 14)]
)
def test_no_label_overlaps_another_or_leaves_the_page(sites, classes):
    figure = class_counts_figure(
        make(sites, classes), [f"{name} {n}"[-40:] for n, name in zip(range(classes), NAMES * 2)]
    )
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [(text.get_text(), corners(text, canvas.get_renderer())) for text in texts_of(figure)]
    low, high = (np.array([edge(box, axis=0) for _, box in boxes]) for edge in (np.min, np.max))
    near = ((low[:, None] < high) & (low < high[:, None])).all(axis=2)
    for number, neighbour in zip(*np.nonzero(np.triu(near, 1)), strict=True):
        (label, first), (other, second) = boxes[number], boxes[neighbour]
        assert not overlap(first, second), f"'{label}' and '{other}'"
    width, height = figure.get_size_inches() * figure.dpi
    for name, box in boxes:
        assert (box >= -1).all(), name
        assert (box <= [width + 1, height + 1]).all(), name


def test_with_few_sites_every_count_and_every_total_is_written():
    sites = {"Nord": [7, 0, 1201], "Süd": [30, 4, 0]}
    written = [text.get_text() for text in texts_of(class_counts_figure(sites, ["a", "b", "c"]))]
    assert {"Nord", "Süd", "a", "b", "c", "7", "1201", "30", "4", "1208", "34"} <= set(written)
    assert "0" not in written


def test_the_area_of_a_circle_is_in_proportion_to_the_count():
    figure = class_counts_figure({"one": [100, 50], "two": [0, 25]}, ["a", "b"])
    (circles,) = figure.axes[0].collections[1:]
    assert sorted(circles.get_sizes() / circles.get_sizes().max()) == pytest.approx([0.25, 0.5, 1])


def test_with_many_sites_shades_say_the_counts_and_a_curve_the_totals():
    sites = make(200, 5)
    figure = class_counts_figure(sites, NAMES[:5])
    curve, shades, _ = figure.axes
    np.testing.assert_array_equal(shades.images[0].get_array(), np.array(list(sites.values())).T)
    heights = curve.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.max() == max(map(sum, sites.values()))


def test_shades_and_circles_stand_out_without_colour():
    greys = matplotlib.colormaps[SHADES](np.linspace(0, 1, 20))[:, :3] @ [0.299, 0.587, 0.114]
    assert (np.diff(greys) < 0).all(), "darker is more"
    assert np.dot(matplotlib.colors.to_rgb(COLOUR), [0.299, 0.587, 0.114]) < 0.4


@pytest.mark.parametrize("sites", [5, 200])
def test_the_same_numbers_give_the_same_bytes(sites, tmp_path):
    for name in ("a", "b"):
        save_figure(class_counts_figure(make(sites, 3), NAMES[:3]), tmp_path / f"{name}.svg")
    content = (tmp_path / "a.svg").read_bytes()
    assert content == (tmp_path / "b.svg").read_bytes()
    assert content.startswith(b"<?xml")
    assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\d", content)
    text = io.StringIO()
    save_figure(class_counts_figure(make(sites, 3), NAMES[:3]), text)
    assert text.getvalue().encode() == content


def test_nothing_global_changes(tmp_path):
    before = dict(matplotlib.rcParams)
    save_figure(class_counts_figure(make(3, 2), NAMES[:2]), tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before


def test_names_with_dollars_are_names(tmp_path):
    for count in (3, 50):
        sites = {f"$a_{number}$": [1, 2] for number in range(count)}
        save_figure(class_counts_figure(sites, ["$x$", r"$\frac$"]), tmp_path / "a.svg")


def test_sites_without_any_image_are_drawn():
    for count in (2, 50):
        FigureCanvasAgg(class_counts_figure({f"s{number}": [0, 0] for number in range(count)}, ["a", "b"])).draw()


@pytest.mark.parametrize("sites", [{}, {"a": [1, 2, 3]}, {"a": []}])
def test_tables_that_do_not_fit_are_refused(sites):
    with pytest.raises(ValueError, match="expected 2 numbers for each of"):
        class_counts_figure(sites, ["a", "b"])


def test_the_same_partition_has_the_same_bytes(tmp_path):
    pool = write_pool(tmp_path / "P")
    pictures = []
    for name in ("a", "b"):
        counts = partition(pool, tmp_path / name, PartitionPlan("iid", 3), iid)
        pictures.append(draw_partition(tmp_path / name, counts).read_bytes())
    assert b"<svg" in pictures[0]
    assert pictures[0] == pictures[1]
