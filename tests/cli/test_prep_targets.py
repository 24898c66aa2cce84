"""Own images with each kind of target, as a user runs them: prepare, partition, train, and predict new files."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_makers import nifti
from inference_file import numbers
from monai.bundle import run as monai_run
from PIL import Image

from medfl.data.datalists import SPLITS, read_datalist

Medfl = Callable[..., tuple[int, str, str]]

COUNT = 16
"""Number of images."""

SQUARE = slice(4, 10)
"""Rows and columns of the bright square in each image, which is its mask."""

TARGETS = {
    "class:diagnosis": ("multiclass", "balanced_accuracy"),
    "multilabel:effusion,nodule": ("multilabel", "macro_auc"),
    "number:age[years]": ("regression", "mae"),
    "survival:months[mo],death": ("survival", "c_index"),
    "mask:mask_file": ("segmentation", "dice"),
}
"""Maps each target to the name of its objective and to the key metric."""


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write images with masks and a table with a column for each kind of target, as German Excel writes it."""
    top = tmp_path_factory.mktemp("own")
    (top / "scans").mkdir()
    lines = ["file;diagnosis;effusion;nodule;age;months;death;mask_file;Patient_ID;hospital"]
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        pixels, mask = rng.integers(0, 60, (16, 16), dtype=np.uint8), np.zeros((16, 16), np.uint8)
        mask[SQUARE, SQUARE] = 255
        pixels[SQUARE, SQUARE] += np.uint8(100 + 90 * (number % 2))
        Image.fromarray(pixels).save(top / "scans" / f"s{number}.png")
        Image.fromarray(mask).save(top / "scans" / f"s{number}_mask.png")
        cells = [("benign", "malignant")[number % 2], ("0", "1", "")[number % 3], number // 2 % 2]
        cells += [f"{50 + number},5", f"{12 + number},25", ("ja", "nein")[number % 4 == 0]]
        lines.append(
            ";".join(map(str, [f"s{number}.png", *cells, f"s{number}_mask.png", f"P{number}", "NS"[number % 2]]))
        )
    (top / "table.csv").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    return top


def prepare(medfl: Medfl, scans: Path, out: Path, *options: object) -> str:
    columns = ("--image-column", "file", "--group-column", "Patient_ID", "--site-column", "hospital", "--size", 16)
    words = ("prep", "folder", scans / "scans", "--table", scans / "table.csv", *columns, "--workers", 1, *options)
    status, _, err = medfl(*words, "--out", out)
    assert status == 0, err
    return err


def records_of(folder: Path) -> list[dict[str, Any]]:
    datalist = read_datalist(folder)
    return sorted((record for split in SPLITS for record in datalist.splits[split]), key=lambda record: record["image"])


@pytest.mark.usefixtures("run_reports")
@pytest.mark.parametrize("target", TARGETS)
def test_each_kind_of_target_is_trained_and_predicted(target: str, scans: Path, medfl: Medfl, tmp_path: Path) -> None:
    pytest.importorskip("medfl_encoders")
    objective, metric = TARGETS[target]
    prepare(medfl, scans, tmp_path / "P", "--target", target)
    status, _, err = medfl(
        "partition", tmp_path / "P", "--out", tmp_path / "D", "--scheme", "by_site", "--column", "site",
        "--test-fraction", 0.25, "--server-test", "none",
    )  # fmt: skip
    assert status == 0, err
    spatial = objective == "segmentation"
    small = ("--width", 4) if spatial else ("--network-name", "resnet10", "--start", "none", "--width", 4)
    status, _, err = medfl(
        "run", "lesion_segmentation" if spatial else "own_images", "--dataset-dir", tmp_path / "D", "--output-dir",
        tmp_path / "R", "--rounds", 1, "--epochs", 1, *(() if spatial else small),
    )  # fmt: skip
    assert status == 0, err
    summary = json.loads((tmp_path / "R" / "summary.json").read_text())
    assert np.isfinite(summary["scores"]["global"]["test"][metric]["mean"])
    datalist = read_datalist(tmp_path / "P")
    names = list(datalist.extra.get("target_names", []))
    if find_spec("medfl_report"):  # the package that writes the report can be deleted
        report = html.unescape((tmp_path / "R" / "report.html").read_text())
        assert all(note in report for note in datalist.warnings)
        assert all(name in report for name in names) or objective == "survival"
    metadata = json.loads((tmp_path / "R" / "sites" / "N" / "configs" / "metadata.json").read_text())
    described = list(metadata["network_data_format"]["outputs"]["pred"]["channel_def"].values())
    assert not names or described == names
    if spatial:
        return
    home = tmp_path / "R" / "sites" / "N"
    monai_run(
        config_file=str(home / "configs" / "inference.json"), bundle_root=str(home), output_dir=str(tmp_path / "eval"),
        dataset_dir=str(scans / "scans"),
    )  # fmt: skip
    predicted = numbers(tmp_path / "eval" / "predictions.csv")
    assert len(predicted) == 2 * COUNT
    assert np.isfinite(predicted).all()


def test_the_targets_are_those_of_the_table(scans: Path, medfl: Medfl, tmp_path: Path) -> None:
    expected: dict[str, Callable[[int], Any]] = {
        "multilabel:effusion,nodule": lambda n: [(0.0, 1.0, None)[n % 3], float(n // 2 % 2)],
        "number:age[years]": lambda n: [50.5 + n],
        "survival:months,death": lambda n: [12.25 + n, float(n % 4 != 0)],
    }
    for place, (target, of_row) in enumerate(expected.items()):
        out = tmp_path / str(place)
        prepare(medfl, scans, out, "--target", target)
        assert [record["target"] for record in records_of(out)] == [of_row(number) for number in range(COUNT)]
    assert read_datalist(tmp_path / "0").warnings == (
        "'effusion' was not assessed in 5 of 16 cases: they take no part in its training and scores",
    )
    assert read_datalist(tmp_path / "1").extra["target_names"] == ["age [years]"]


def test_rows_without_a_target_are_left_out_on_request(scans: Path, medfl: Medfl, tmp_path: Path) -> None:
    prepare(medfl, scans, tmp_path / "P", "--target", "class:effusion", "--skip-missing-target")
    datalist = read_datalist(tmp_path / "P")
    assert [(entry.reason, entry.count) for entry in datalist.exclusions] == [("the target is missing in the table", 5)]
    pixels = np.load(tmp_path / "P" / "images.npy")
    kept = [number for number in range(COUNT) if number % 3 < 2]
    assert [record["label"] for record in records_of(tmp_path / "P")] == [number % 3 for number in kept]
    for row, number in enumerate(kept):
        np.testing.assert_array_equal(pixels[row], np.asarray(Image.open(scans / "scans" / f"s{number}.png")))


def test_masks_are_found_by_their_suffix(scans: Path, medfl: Medfl, tmp_path: Path) -> None:
    prepare(medfl, scans, tmp_path / "P", "--mask-suffix", "_mask", "--structures", "lesion")
    datalist, masks = read_datalist(tmp_path / "P"), np.load(tmp_path / "P" / "masks.npy")
    assert datalist.extra["structures"] == ["background", "lesion"]
    expected = np.zeros((16, 16), np.uint8)
    expected[SQUARE, SQUARE] = 1
    assert (masks == expected).all()
    np.testing.assert_array_equal(
        np.load(tmp_path / "P" / "images.npy")[3], np.asarray(Image.open(scans / "scans" / "s3.png"))
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), "expected the target of the images"),
        (("--target", "mask:mask_file", "--mask-suffix", "_mask"), "expected the target of the images"),
        (("--mask-suffix", "_seg"), "masks: 16 of 16"),
        (("--mask-suffix", ""), "another file for the mask"),
        (("--target", "number:Patient_ID"), "more than once"),
        (("--target", "mask:mask_file", "--structures", "a,b"), "expected whole numbers from 0 to 2"),
    ],
)
def test_targets_that_are_refused(
    options: tuple[object, ...], code: str, scans: Path, medfl: Medfl, tmp_path: Path
) -> None:
    columns = ("--image-column", "file", "--group-column", "Patient_ID", "--size", 16, "--workers", 1)
    words = ("prep", "folder", scans / "scans", "--table", scans / "table.csv", *columns)
    status, _, err = medfl(*words, *options, "--out", tmp_path / "P")
    assert status == 2
    assert code in err
    assert not (tmp_path / "P").exists()


def test_a_mask_on_another_grid_is_refused(scans: Path, medfl: Medfl, tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    for number in range(2):
        Image.fromarray(np.full((16, 16), 9 * number, np.uint8)).save(tmp_path / "scans" / f"{number}.png")
        Image.fromarray(np.zeros((16, 15), np.uint8)).save(tmp_path / "scans" / f"{number}-m.png")
    (tmp_path / "t.csv").write_text("file,mask\n0.png,0-m.png\n1.png,1-m.png\n")
    words = ("prep", "folder", tmp_path / "scans", "--table", tmp_path / "t.csv", "--image-column", "file")
    status, _, err = medfl(*words, "--target", "mask", "--size", 16, "--workers", 1, "--out", tmp_path / "P")
    assert status == 2
    assert "the mask is 16x15, its image 16x16" in err


def test_masks_of_volumes_have_the_orientation_of_their_images(medfl: Medfl, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "scans").mkdir()
    mask = rng.integers(0, 3, (6, 5, 4)).astype(np.uint8)
    flipped = np.diag([-1.0, 1.0, 1.0, 1.0])
    for number in range(2):
        nifti(tmp_path / "scans" / f"{number}.nii.gz", rng.normal(size=(6, 5, 4)), affine=flipped)
        nifti(tmp_path / "scans" / f"{number}-m.nii.gz", mask, affine=flipped)
    (tmp_path / "t.csv").write_text("file\n0.nii.gz\n1.nii.gz\n")
    words = ("prep", "folder", tmp_path / "scans", "--table", tmp_path / "t.csv", "--image-column", "file")
    words += ("--mask-suffix", "-m", "--structures", "liver,tumour", "--size", "6x5x4", "--workers", 1)
    status, _, err = medfl(*words, "--out", tmp_path / "P")
    assert status == 0, err
    assert read_datalist(tmp_path / "P").extra["structures"] == ["background", "liver", "tumour"]
    assert (np.load(tmp_path / "P" / "masks.npy") == mask[::-1]).all()
    nifti(tmp_path / "scans" / "1-m.nii.gz", mask, affine=np.eye(4))
    status, _, err = medfl(*words, "--out", tmp_path / "Q")
    assert status == 2
    assert "of the mask lies outside of its image, up to 4.5 mm from its edge" in err
