"""Tests of the signs of burned-in text."""

from __future__ import annotations

import numpy as np
import pydicom
import pytest
from pacs_images import Place, plain_instance
from PIL import Image, ImageDraw
from pydicom.data import get_testdata_file
from pydicom.uid import SecondaryCaptureImageStorage

from medfl_pacs.burned_in import burned_in_signs, has_text


def with_text(image: np.ndarray, value: int) -> np.ndarray:
    picture = Image.fromarray(image)
    ImageDraw.Draw(picture).text((20, 20), "Qwertzuiop 1961-02-03", fill=value)
    return np.array(picture)


def background(kind: str) -> np.ndarray:
    generator = np.random.default_rng(1)
    rows, columns = np.mgrid[:256, :256]
    disc = 200 * np.exp(-((rows - 128) ** 2 + (columns - 128) ** 2) / 5000)
    return {
        "smooth": disc,
        "noisy": np.clip(disc + generator.normal(0, 12, disc.shape), 0, 250),
        "saturated noise": np.clip(generator.normal(230, 20, disc.shape), 0, 255),
        "stripes": np.tile(np.arange(256) % 200, (256, 1)),
        "black": np.zeros((256, 256)),
    }[kind].astype(np.uint8)


@pytest.mark.parametrize("kind", ["smooth", "noisy", "black"])
def test_bright_text_is_detected(kind: str):
    image = background(kind)
    assert not has_text(image)
    assert has_text(with_text(image, 255))
    assert has_text(np.dstack([with_text(image, 255), image, image]))


def test_dark_text_is_detected():
    assert has_text(with_text(np.clip(background("noisy"), 150, 250), 0))


@pytest.mark.parametrize("kind", ["saturated noise", "stripes"])
def test_noise_and_stripes_are_no_text(kind: str):
    assert not has_text(background(kind))


def test_signs_of_the_header():
    dataset = plain_instance(Place())
    assert burned_in_signs(dataset) == ()
    dataset.BurnedInAnnotation, dataset.Modality, dataset.ImageType = "YES", "US", ["DERIVED", "SCREEN SAVE"]
    dataset.SOPClassUID, dataset.RecognizableVisualFeatures = SecondaryCaptureImageStorage, "YES"
    expected = ("modality_US", "declared", "recognizable_features", "secondary_capture", "screen_or_label")
    assert burned_in_signs(dataset) == expected


@pytest.mark.parametrize(
    ("keyword", "value", "sign"),
    [
        ("BurnedInAnnotation", "yes", "declared"),
        ("RecognizableVisualFeatures", "Yes", "recognizable_features"),
        ("Modality", "us", "modality_US"),
        ("Modality", "EC", "modality_EC"),  # retired name of ultrasound
        ("Modality", None, "modality_unknown"),
    ],
)
def test_signs_in_values_that_break_the_standard(keyword: str, value: str | None, sign: str):
    dataset = plain_instance(Place())
    dataset.add_new(keyword, "CS", value)
    assert burned_in_signs(dataset) == (sign,)


def test_a_declaration_does_not_outweigh_the_modality():
    dataset = plain_instance(Place(), modality="US")
    dataset.BurnedInAnnotation = "NO"
    assert burned_in_signs(dataset) == ("modality_US",)


def test_pixels_that_no_decoder_reads_must_be_looked_at():
    dataset = plain_instance(Place())
    dataset.PixelData = dataset.PixelData[:10]
    assert burned_in_signs(dataset) == ("unreadable_pixels",)


@pytest.mark.parametrize(
    ("name", "expected"), [("CT_small.dcm", False), ("MR_small.dcm", False), ("examples_rgb_color.dcm", True)]
)
def test_samples(name: str, expected: bool):
    signs = burned_in_signs(pydicom.dcmread(get_testdata_file(name)))
    assert ("text_in_pixels" in signs) is expected
