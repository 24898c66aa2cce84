"""Report section on SHAP values: maps read back as numbers, one scale for all teachers, and the size of the page."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import Page

from medfl.contract import Findings
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.records import read_run
from medfl_methods.pfedcdp.explanations_report import explanations_section
from medfl_report.groups import group_runs
from medfl_report.page import write_report
from medfl_report.rasters import (
    GREYS,
    NEGATIVE,
    POSITIVE,
    SIDE,
    STEPS,
    colour_layer,
    grey_layer,
    grey_levels,
    overlay_levels,
    thumbnail,
)

TEACHERS = ("cnn_a", "cnn_b")


def drawn(layer, shape, worth):
    """Read a layer back as numbers: `worth` gives the value of a path's cells from its attributes.

    The background covers all other cells.
    """
    cells = np.zeros(shape)
    for attributes, path in re.findall(r'<path ([^>]*?)d="([^"]*)"[^>]*/>', layer):
        for x, y, n in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            if not path.endswith("z"):
                cells[int(y), int(x) : int(x) + int(n)] = worth(attributes)
    return cells


def explained(spatial=(12, 12), channels=1, per_class=2, classes=3):
    rng = torch.Generator().manual_seed(0)
    count = per_class * classes
    labels = torch.arange(classes).repeat_interleave(per_class)
    images = torch.randn(count, channels, *spatial, generator=rng)
    maps = {f"explained/maps/{name}": torch.randn(count, *spatial, generator=rng) for name in TEACHERS}
    teachers = {name: {"value": 0.1, "weight": 0.5} for name in TEACHERS}
    meta = {"teachers": teachers, "groups": {"": 0.5}, "weighed_on": 9, "how": "equal", "losses": {}}
    return Findings(meta, {"explained/images": images, "explained/labels": labels} | maps)


def test_an_image_is_drawn_cell_by_cell():
    levels = grey_levels(np.random.default_rng(0).normal(size=(9, 7)))
    layer = grey_layer(levels)
    ground = np.bincount(levels.ravel()).argmax()

    def grey(attributes):
        value = int(re.search(r'stroke="#(..)', attributes)[1], 16)
        return round(value * (GREYS - 1) / 255) - ground

    np.testing.assert_array_equal(drawn(layer, levels.shape, grey) + ground, levels)


def test_values_are_drawn_with_sign_and_strength():
    levels = overlay_levels(np.random.default_rng(1).normal(size=(8, 11)), 1.5)

    def strength(attributes):
        sign = {POSITIVE: 1, NEGATIVE: -1}[re.search(r'stroke="(#\w+)"', attributes)[1]]
        return sign * round(float(re.search(r'opacity="([\d.]+)"', attributes)[1]) / 0.8 * STEPS)

    np.testing.assert_array_equal(drawn(colour_layer(levels), levels.shape, strength), levels)


def test_strengths_are_centred_at_0_and_know_no_unit():
    values = np.linspace(-2, 2, 41)
    levels = overlay_levels(values, 1.0)
    np.testing.assert_array_equal(levels, -levels[::-1])
    np.testing.assert_array_equal(overlay_levels(values * 1e-6, 1e-6), levels)
    assert (levels.min(), levels[20], levels.max()) == (-STEPS, 0, STEPS)
    assert not overlay_levels(np.zeros(3), 0.0).any()


@pytest.mark.parametrize("shape", [(64, 96), (224, 224), (100, 33), (20, 30)])
def test_large_images_are_averaged_down(shape):
    image = np.random.default_rng(2).normal(size=shape)
    averaged = thumbnail(image)
    assert averaged.shape == tuple(min(side, SIDE) for side in shape)
    assert thumbnail(np.full(shape, 3.0)) == pytest.approx(3.0)
    if all(side % SIDE == 0 for side in shape):
        blocks = image.reshape(SIDE, shape[0] // SIDE, SIDE, shape[1] // SIDE).mean(axis=(1, 3))
        np.testing.assert_allclose(averaged, blocks)


def test_of_a_volume_the_middle_slice_is_shown_upright():
    volume = np.zeros((4, 6, 5))
    volume[1, 5, 2] = 1.0  # left of the middle, at the front, in the middle slice
    middle = thumbnail(volume)
    assert middle.shape == (6, 4)
    assert middle[0, 1] == 1.0


@pytest.mark.parametrize(("spatial", "channels"), [((12, 12), 3), ((10, 12, 9), 1)])
def test_the_page_has_a_tile_for_each_image_and_teacher(tmp_path, spatial, channels):
    run = make_run(tmp_path / "run", "pfedcdp", findings=explained(spatial, channels))
    html = write_report([run]).read_text()
    document = Page(html)
    tiles = [attributes for tag, attributes in document.tags if tag == "svg" and attributes.get("class") == "tile"]
    assert len(tiles) == 6 * (1 + len(TEACHERS))
    assert tiles[0]["aria-label"] == "Public image 1 of the class basophil"
    assert tiles[2]["aria-label"].startswith("SHAP values of cnn_b over public image 1 of the class basophil: ")
    ids = {attributes["id"] for tag, attributes in document.tags if tag == "g" and "id" in attributes}
    used = [
        attributes["href"].removeprefix("#")
        for tag, attributes in document.tags
        if tag == "use" and "href" in attributes
    ]
    looks = [link for link in used if link.startswith("look")]
    assert len(looks) == 6 * len(TEACHERS)
    assert set(looks) <= ids
    assert ("the middle slice is shown" in document.sections["looks"]) == (len(spatial) == 3)
    assert not re.search(r"<image|data:", html)


def alone(folders):
    """Return the section of some runs."""
    groups = group_runs([read_run(folder) for folder in folders])
    return explanations_section(groups, {str(folder): read_findings(folder) for folder in folders})


def test_a_run_without_explanations_has_no_section(tmp_path):
    assert alone([make_run(tmp_path / "run")]) is None
