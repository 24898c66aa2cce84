"""Atlas section of the report: slices and mean images against numpy, images that must not be shown, missing data."""

from __future__ import annotations

import shutil

import nibabel
import numpy as np
import pytest
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import Page, render_section, words

from medfl.data.datalists import Datalist, write_datalist
from medfl.engine.runs.records import read_run
from medfl_datasets.abide.atlas import PREPARED_ATLAS
from medfl_datasets.abide.report import MAX_MEAN_IMAGES, MIN_PERSONS, atlas_values, read_atlas
from medfl_report.groups import group_runs
from medfl_report.page import write_report

SHAPE = (8, 10, 6)
SITES = ("site-1", "site-2")
PRIVACY = {"epsilon": 5.0, "delta": 1e-5, "clip": 1.0}


def write_data(folder, persons=12, images=12, affine=None):
    """Write two sites that share an array of two channels, with an atlas of three regions.

    Person n has the images n and n + P.
    """
    (folder / "pooled").mkdir(parents=True)
    values = np.random.default_rng(0).normal(size=(images, *SHAPE, 2)).astype(np.float32)
    np.save(folder / "pooled" / "images.npy", values)
    affine = np.diag([4.0, 4, 4, 1]) if affine is None else affine
    regions = np.zeros(SHAPE, np.int32)
    regions[2:5, 3:8, 1:4], regions[5:7, 3:8, 1:4], regions[2:5, 3:8, 4:6] = 10, 20, 31
    nibabel.save(nibabel.Nifti1Image(regions, affine), folder / "pooled" / PREPARED_ATLAS)
    for number, site in enumerate(SITES):
        rows = range(number, images, 2)
        records = [{"image": row, "label": row % 2, "subject_id": f"s{row % persons}"} for row in rows]
        extra = {"channels": ["reho", "lfcd"], "atlas": {"name": "AAL"}, "affine": affine.tolist()}
        splits = {"training": records, "test": [{"image": 0, "label": 0, "subject_id": "s0"}]}
        (folder / site).mkdir()
        write_datalist(folder / site, Datalist("abide", "../pooled/images.npy", 2, splits=splits, extra=extra))
    return values, regions


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data", *write_data(tmp_path / "data")


def make(tmp_path, name="run", **options):
    options = {"sites": SITES, "state": False, "data_folder": "../data", "regions": True} | options
    return make_run(tmp_path / name, **options)


def section(run):
    """Return the text of the section, or an empty text without a section."""
    content = atlas_values(group_runs([read_run(run)]))
    html = "" if content is None else render_section("atlas", content)
    return words(Page(f'<section id="atlas">{html}</section>').sections["atlas"])


def test_the_slices_go_through_the_middle_of_the_atlas(data):
    folder, values, regions = data
    view = read_atlas(folder, SITES)
    ranks = np.searchsorted([0, 10, 20, 31], regions)
    mean = values[..., 0].astype(np.float64).mean(axis=0)
    for view_slice, cut in zip(view.slices, [(4,), (slice(None), 5), (..., 3)], strict=True):
        np.testing.assert_array_equal(view_slice.regions, ranks[cut].T)
        np.testing.assert_allclose(view_slice.mean, mean[cut].T, atol=1e-12)
    assert [view_slice.plane for view_slice in view.slices] == ["sagittal", "coronal", "axial"]
    assert (view.regions, view.grid, view.channel, view.name) == (3, SHAPE, "reho", "AAL")
    assert (view.images, view.persons, view.upright) == (12, 12, True)


@pytest.mark.parametrize("persons", [MIN_PERSONS - 1, MIN_PERSONS])
def test_a_mean_of_few_persons_is_not_shown(tmp_path, persons):
    """Check that several images of a person count once."""
    values, _ = write_data(tmp_path / "data", persons=persons, images=2 * persons)
    view = read_atlas(tmp_path / "data", SITES)
    assert view.persons == persons
    if persons < MIN_PERSONS:
        assert (view.images, view.slices[2].mean) == (0, None)
    else:
        assert view.images == persons
        assert pytest.approx(values[:persons, ..., 3, 0].mean(axis=0), abs=1e-6) == view.slices[2].mean.T


def test_of_many_images_some_are_chosen_evenly(tmp_path):
    values, _ = write_data(tmp_path / "data", persons=99, images=99)
    view = read_atlas(tmp_path / "data", SITES)
    assert (view.images, view.persons) == (MAX_MEAN_IMAGES, 99)
    even = values[np.arange(0, 99, 2), ..., 3, 0].mean(axis=0)
    assert pytest.approx(even, abs=1e-6) == view.slices[2].mean.T


def test_only_sites_of_the_run_count(data):
    folder, *_ = data
    assert read_atlas(folder, SITES[:1]).persons == 6


def test_left_is_left_only_where_the_affine_says_so(tmp_path):
    write_data(tmp_path / "data", affine=np.diag([-4.0, 4, 4, 1]))
    assert not read_atlas(tmp_path / "data", SITES).upright


def test_the_page_draws_it_and_says_what_it_is(data, tmp_path):
    run = make(tmp_path)
    html = write_report([run]).read_text()
    text = words(Page(html).sections["atlas"])
    assert "3 regions of AAL on a grid of 8 x 10 x 6 voxels" in text
    assert "the mean of the channel reho over 12 training images from all sites, one of each person." in text
    assert text.endswith("is the left of the body.")
    assert str(tmp_path) not in html
    assert "<image" not in html, "the page's policy lets it load nothing, not even from itself"


def test_under_differential_privacy_no_image_is_drawn(data, tmp_path):
    text = section(make(tmp_path, settings={"privacy": PRIVACY}))
    assert "3 regions" in text
    assert (
        "No image is behind the slices, because differential privacy does not cover a mean of training images." in text
    )


def damage(folder):
    (folder / "pooled" / PREPARED_ATLAS).write_bytes(b"no atlas")


def empty(folder):
    np.save(folder / "pooled" / "images.npy", np.zeros((1, 2, 2, 2, 1), np.float32))


@pytest.mark.parametrize("change", [shutil.rmtree, damage, empty])
def test_data_that_are_gone_or_damaged_never_fail_the_report(data, tmp_path, change):
    run = make(tmp_path)
    change(data[0])
    assert "can't be read from the data folder any more" in section(run)
    quiet = make(tmp_path, "quiet", regions=False)
    assert section(quiet) == "", "nothing says that it ever had one"


def test_without_an_atlas_there_is_no_section(data, tmp_path):
    (data[0] / "pooled" / PREPARED_ATLAS).unlink()
    assert section(make(tmp_path, regions=False)) == ""
    assert read_atlas(data[0], SITES) is None


def test_a_run_that_does_not_say_where_its_data_are_is_read_as_before(tmp_path):
    run = make(tmp_path, data_folder="", regions=False)
    assert read_run(run).data_folder is None
    assert section(run) == ""
