"""Histogram matching: closed forms, the template of several sites, equal training and inference, and refusals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from medfl.cli.main import main
from medfl.data.datalists import read_datalist
from medfl.data.harmonisation.harmonise import compute_template, harmonise, read_template
from medfl.data.harmonisation.histogram_matching import LEVELS, image_quantiles, match_histogram
from medfl.data.inference import load_images
from medfl.data.readers.image_reading import IMAGE_READING_KEY, make_image_reading, parse_image_reading
from medfl.errors import DataError, MedflError, SettingsError
from medfl.objectives import Binary

GREY = ((0.1, 0.2, 0.4, 0.7, 0.9),)


def write_list(folder: Path, images: np.ndarray, **entries: object) -> Path:
    """Write an array and a list of its rows; images are at the sites ``a`` and ``b`` in turn."""
    folder.mkdir()
    np.save(folder / "images.npy", images)
    records = [{"image": row, "label": row % 2, "site": "ab"[row % 2]} for row in range(len(images))]
    head = {"name": "test", "image_array": "images.npy", "num_classes": 2}
    (folder / "datalist.json").write_text(json.dumps(head | entries | {"training": records}))
    return folder


def test_the_quantiles_of_a_matched_image_are_the_template():
    image = np.random.default_rng(0).beta(2, 5, (101, 101))
    matched = match_histogram(image, GREY)
    assert image_quantiles(matched[np.newaxis], 1)[0, 0] == pytest.approx(GREY[0], abs=1e-12)
    order = np.argsort(image, axis=None)
    assert (np.diff(matched.ravel()[order]) >= 0).all()


def test_the_mapping_is_linear_between_quantiles():
    image = np.array([[0, 51, 102, 153, 204, 255]], dtype=np.uint8)  # quantiles by linear interpolation
    own = np.quantile(image / 255, LEVELS)
    matched = match_histogram(image, GREY)
    assert matched.dtype == np.uint8
    expected = np.rint(255 * np.interp(image / 255, [0, *own, 1], [0, *GREY[0], 1]))
    assert matched.tolist() == expected.tolist()
    assert (matched[0, 0], matched[0, -1]) == (0, 255)


def test_background_stays_black_and_equal_quantiles_get_one_value():
    image = np.zeros((10, 10), dtype=np.float32)
    image[5:] = 0.5  # quantiles 0, 0, 0.25, 0.5, 0.5
    matched = match_histogram(image, GREY)
    assert set(matched[:5].ravel().tolist()) == {0.0}
    assert matched[5:] == pytest.approx((0.7 + 0.9) / 2)


def test_each_channel_has_its_own_template():
    image = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    template = (GREY[0], (0.3, 0.4, 0.5, 0.6, 0.7), (0.0, 0.1, 0.2, 0.3, 1.0))
    matched = match_histogram(image, template)
    for channel in range(3):
        alone = match_histogram(image[..., channel], (template[channel],))
        assert (matched[..., channel] == alone).all()


def test_the_template_is_the_mean_of_the_sites_medians(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (7, 6, 6), dtype=np.uint8)
    folder = write_list(tmp_path / "data", images)
    quantiles = np.quantile(images.reshape(7, -1) / 255, LEVELS, axis=1).T
    expected = (np.median(quantiles[::2], axis=0) + np.median(quantiles[1::2], axis=0)) / 2
    assert compute_template(folder)[0] == pytest.approx(expected, abs=1e-6)


def test_the_template_of_federated_statistics_is_that_of_the_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
    folder = write_list(tmp_path / "data", images)
    for site, rows in (("a", range(0, 60, 2)), ("b", range(1, 60, 2))):
        (tmp_path / "sites" / site).mkdir(parents=True)
        shutil.copy(folder / "images.npy", tmp_path / "sites" / site)
        lists = json.loads((folder / "datalist.json").read_text())
        lists["training"] = [lists["training"][row] for row in rows]
        (tmp_path / "sites" / site / "datalist.json").write_text(json.dumps(lists))
    with pytest.raises(SystemExit) as end:
        main(["federate", "statistics", str(tmp_path / "sites"), "--out", str(tmp_path / "before")])
    assert not end.value.code
    path = tmp_path / "before" / "statistics.json"
    assert np.array(read_template(path, 3)) == pytest.approx(np.array(compute_template(folder)), abs=1e-3)
    content = json.loads(path.read_text())
    content["sites"]["b"]["numbers"][2]["quantiles"][2] = None
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as error:
        read_template(path, 3)
    assert (error.value.code, error.value.fields["site"]) == ("suppressed_template", "b")


@pytest.mark.parametrize("kind", ["grey", "colour", "deep"])
def test_inference_reads_a_file_as_the_harmonised_data_set_has_it(tmp_path, kind):
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    lines = ["file,class,hospital"]
    for number in range(8):
        shape = (20, 24, 3) if kind == "colour" else (20, 24)
        values = (rng.random(shape) ** (1 + number % 2)) * (65535 if kind == "deep" else 255)
        image = values.astype(np.uint16 if kind == "deep" else np.uint8)
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
        lines.append(f"{number}.png,{'xy'[number // 4]},{'ab'[number % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    options = ["--image-column", "file", "--target", "class:class", "--site-column", "hospital", "--size", "16"]
    paths = ["prep", "folder", str(tmp_path / "images"), "--table", str(tmp_path / "table.csv"), "--workers", "1"]
    with pytest.raises(SystemExit) as end:
        main([*paths, *options, "--out", str(tmp_path / "own")])
    assert not end.value.code
    with pytest.raises(SystemExit) as end:
        main(["harmonise", str(tmp_path / "own"), "--out", str(tmp_path / "matched")])
    assert not end.value.code
    datalist = read_datalist(tmp_path / "matched")
    array = np.load(tmp_path / "matched" / datalist.image_array)
    assert not (array == np.load(tmp_path / "own" / "images.npy")).all()
    channels = 3 if kind == "colour" else 1
    rule = datalist.extra[IMAGE_READING_KEY]
    loaded = load_images(tmp_path / "images", 16, 2, channels, Binary(), (0.0,), (1.0,), image_reading=rule)
    top = np.float32(1 if array.dtype.kind == "f" else np.iinfo(array.dtype).max)
    for row in range(8):
        expected = torch.from_numpy(array[row].astype(np.float32) / top)
        expected = expected.movedim(-1, 0) if channels == 3 else expected[None]
        assert torch.allclose(loaded[row]["image"].as_tensor(), expected, rtol=0, atol=1e-6)
    assert "template" in datalist.extra["intensities"]


def test_what_cannot_be_harmonised_is_refused(tmp_path):
    images = np.random.default_rng(0).random((6, 8, 8)).astype(np.float32)
    cases = {
        "values_outside_range": write_list(tmp_path / "z", images * 3 - 1),
        "already_harmonised": write_list(tmp_path / "h", images, image_reading={"template": GREY}),
        "harmonisation_not_supported": write_list(tmp_path / "m", images, reading={"align": True}),
    }
    for code, folder in cases.items():
        with pytest.raises(DataError) as error:
            harmonise(folder, tmp_path / "out", GREY)
        assert error.value.code == code
        assert not (tmp_path / "out").exists()
    with pytest.raises(DataError) as error:
        read_template(cases["values_outside_range"] / "datalist.json", 1)
    assert error.value.code == "wrong_template_file"
    assert read_template(cases["already_harmonised"] / "datalist.json", 1) == GREY
    with pytest.raises(DataError) as error:
        read_template(cases["already_harmonised"] / "datalist.json", 3)
    assert error.value.code == "wrong_template_channels"


@pytest.mark.parametrize("span", [None, [0, 0]])
def test_a_report_without_sites_or_with_an_empty_span_is_no_template(tmp_path, span):
    numbers = [{"title": f"brightness at {level:.0%}", "quantiles": [0, 1, 2, 3, 4], "span": span} for level in LEVELS]
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"sites": {"a": {"numbers": numbers}} if span else {}}))
    with pytest.raises(DataError) as error:
        read_template(path, 1)
    assert error.value.code == "wrong_template_file"


@pytest.mark.parametrize(
    "template", [[[0.1, 0.2, 0.3]], [[0.5, 0.4, 0.6, 0.7, 0.8]], [[0, 0, 0, 0, 2]], [[0.5] * 5], [[0, 0, 0, 0, "x"]]]
)
def test_a_wrong_template_in_a_rule_is_refused(template):
    rule = make_image_reading(window="lung").to_json() | {"template": template}
    with pytest.raises(MedflError) as error:
        parse_image_reading(rule)
    assert isinstance(error.value, SettingsError)
