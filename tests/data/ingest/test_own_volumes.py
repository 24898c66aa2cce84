"""Test preparation of the user's own volumes: DICOM series, NIfTI and ITK files, and the same pixels in inference."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from image_makers import nifti, picture
from own_cohort import SOME, prepare, prepared
from refusals import refused
from series_maker import CORONAL, hounsfield, write_series
from structure_maker import rectangle, write_structures
from typer.testing import CliRunner

import medfl
from medfl.cli.main import app
from medfl.data.datalists import read_datalist
from medfl.data.inference import load_images
from medfl.data.ingest.columns.labels import TableColumns
from medfl.data.ingest.folder_spec import FolderSpec
from medfl.data.ingest.folder_synthetic import write_table
from medfl.data.ingest.prepare import prepare as prepare_dataset
from medfl.data.readers.dicom_series import SeriesFiles, read_series
from medfl.data.readers.image_reading import IMAGE_READING_KEY
from medfl.data.transforms.frame import volume_files, volume_transforms
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass
from medfl.settings import read_settings

HU = [hounsfield(seed=number) for number in range(4)]


def lung(values):
    """The lung window of (slices, rows, columns) as (D, H, W): columns run to the left, rows to the back."""
    return np.clip((values.transpose(2, 1, 0)[::-1, ::-1] + 1350) / 1500, 0, 1)


@pytest.fixture
def studies(tmp_path):
    """Four studies in folders with an axial and a coronal series each, and a table that names their folders."""
    for number, values in enumerate(HU):
        folder = tmp_path / "images" / f"SECRET-{number}"
        study = {
            "StudyInstanceUID": f"1.2.826.0.{number}",
            "PatientID": f"00{number}",
            "AccessionNumber": f"A/{number}",
        }
        write_series(folder, values, names="I{}", SeriesInstanceUID=f"1.2.826.0.{number}.1", **study)
        write_series(folder, values[:5], directions=CORONAL, names="J{}", **study)
    return tmp_path / "images"


def table_of(path, cells):
    return write_table(path, [(cell, "ab"[number % 2]) for number, cell in enumerate(cells)], ("file", "diagnosis"))


AXIAL_LUNG = {"plane": "axial", "window": "lung"}


@pytest.mark.parametrize("cell", ["SECRET-{}", "SECRET-{}/", "1.2.826.0.{}", "1.2.826.0.{}.1", "00{}", "A/{}"])
def test_rows_name_a_folder_or_an_identifier(studies, tmp_path, cell):
    table = table_of(tmp_path / "t.csv", [cell.format(number) for number in range(4)])
    options = {"window": "lung"} if cell.endswith("}.1") else AXIAL_LUNG
    images, datalist = prepared((studies, table), tmp_path / "P", size=(16, 16, 8), **options)
    np.testing.assert_allclose(images, [lung(values) for values in HU], atol=1e-6)
    assert datalist.extra["intensities"] == "-1350 to 150 HU mapped to [0, 1], values outside clipped"
    assert datalist.extra[IMAGE_READING_KEY]["series"]["plane"] == options.get("plane", "")


def test_the_patient_id_finds_the_series_and_groups_the_images(studies, tmp_path):
    table = write_table(tmp_path / "t.csv", [(f"00{n}", "ab"[n % 2]) for n in range(4)], ("PatientID", "diagnosis"))
    columns = TableColumns("PatientID", "class:diagnosis", group="PatientID")
    datalist = prepare(studies, table, columns, (16, 16, 8), tmp_path / "P", **AXIAL_LUNG)
    assert len({record["subject_id"] for record in datalist.splits["training"]}) == 4
    write_series(studies / "later", HU[0], StudyInstanceUID="1.2.826.0.77", PatientID="000")
    with refused(DataError, "unreadable_image", count=1) as error:
        prepare(studies, table, columns, (16, 16, 8), tmp_path / "Q", **AXIAL_LUNG)
    assert "2 fit" in str(error.value), "two studies of a patient"


def test_a_patient_is_not_taken_for_another_whose_accession_number_is_the_same(studies, tmp_path):
    write_series(studies / "other", HU[0], StudyInstanceUID="1.2.826.0.77", PatientID="B", AccessionNumber="003")
    cells = [f"00{number}" for number in range(4)]
    with refused(DataError, "mixed_identifiers", rows=[5]) as error:
        prepare(studies, table_of(tmp_path / "t.csv", cells), SOME, (16, 16, 8), tmp_path / "P", **AXIAL_LUNG)
    assert "003" not in str(error.value)
    shutil.rmtree(studies / "SECRET-3")  # only the other patient is left
    with refused(DataError, "mixed_identifiers", rows=[5]):
        prepare(studies, table_of(tmp_path / "t.csv", cells), SOME, (16, 16, 8), tmp_path / "P", **AXIAL_LUNG)


def test_rows_without_a_single_series_are_refused_or_left_out_by_their_numbers(studies, tmp_path):
    (studies / "empty").mkdir()
    write_series(studies / "tilted", HU[0], shift=(0, 0.5, 0))
    table = table_of(tmp_path / "t.csv", ["SECRET-0", "SECRET-1", "SECRET-2", "empty", "tilted"])
    with refused(DataError, "no_readable_image", count=5, total=5) as error:
        prepare(studies, table, SOME, (16, 16, 8), tmp_path / "P")
    assert "1: CT axial, 8 slices of 0.5x0.75x2 mm; 2: CT coronal, 5 slices" in str(error.value)
    assert "secret" not in str(error.value).lower()
    datalist = prepare(studies, table, SOME, (16, 16, 8), tmp_path / "Q", skip_unreadable=True, **AXIAL_LUNG)
    assert len(datalist.splits["training"]) == 3
    listed = (tmp_path / "Q" / "quarantine.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in listed[1:]] == ["5", "6"]
    assert "secret" not in "".join(listed).lower()


def test_the_spacing_of_the_resized_volumes_is_kept_if_it_is_one(studies, tmp_path):
    rows = [f"1.2.826.0.{number}.1" for number in range(4)]
    _, datalist = prepared((studies, table_of(tmp_path / "t.csv", rows)), tmp_path / "P", size=(8, 16, 4))
    assert datalist.extra["spacing"] == [1.5, 0.5, 4.0]
    write_series(studies / "thick", HU[0], spacing=(0.5, 0.75, 3.0))
    _, datalist = prepared((studies, table_of(tmp_path / "t.csv", [*rows, "thick"])), tmp_path / "Q", size=(8, 16, 4))
    assert "spacing" not in datalist.extra


def test_a_series_has_one_row(studies, tmp_path):
    for cell in ("1.2.826.0.0", "000"):
        table = table_of(tmp_path / "t.csv", ["SECRET-0", cell])
        with refused(DataError, "duplicate_row", rows=[2, 3]):
            prepare(studies, table, SOME, (16, 16, 8), tmp_path / "P", **AXIAL_LUNG)
    table = table_of(tmp_path / "t.csv", ["SECRET-0", "1.2.826.0.99"])
    with refused(DataError, "missing_image", rows=[3]):
        prepare(studies, table, SOME, (16, 16, 8), tmp_path / "P", **AXIAL_LUNG)


def test_options_of_mammograms_and_volumes_exclude_each_other(studies, tmp_path):
    table = table_of(tmp_path / "t.csv", ["SECRET-0"])
    with refused(SettingsError, "conflicting_settings"):
        prepare(studies, table, SOME, (16, 16), tmp_path / "P", voi=True, window="lung")


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
def test_volume_files_of_any_size(tmp_path, suffix):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, values in enumerate(HU[:2]):
        if suffix.startswith(".nii"):
            nifti(folder / f"{number}{suffix}", values)
            continue
        itk = pytest.importorskip("itk", reason="itk is not installed")
        image = itk.image_from_array(values.transpose(2, 1, 0)[:, ::-1, ::-1].copy())
        itk.imwrite(image, str(folder / f"{number}{suffix}"))
    table = table_of(tmp_path / "t.csv", [f"{number}{suffix}" for number in range(2)])
    images, datalist = prepared((folder, table), tmp_path / "P", size=(4, 16, 8), window="40,400")
    assert images.shape == (2, 4, 16, 8)
    assert datalist.extra["spacing"] == [2, 1, 2]
    images, _ = prepared((folder, table), tmp_path / "Q", size=(8, 16, 16), window="40,400")
    np.testing.assert_allclose(images, [np.clip((values + 160) / 400, 0, 1) for values in HU[:2]], atol=1e-6)


# ---- the same pixels in training and inference


def inferred(folder, datalist, shape):
    data = load_images(
        folder,
        shape,
        len(shape),
        1,
        Multiclass(2),
        mean=(0.25,),
        std=(0.5,),
        image_reading=json.loads(json.dumps(datalist.extra.get(IMAGE_READING_KEY))),
    )
    return {data[row]["image"].meta["filename_or_obj"]: data[row]["image"][0].numpy() for row in range(len(data))}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("series", AXIAL_LUNG),
        ("series", {"plane": "coronal", "scale": "percentiles"}),
        ("nifti", {"window": "soft-tissue"}),
        ("nifti", {}),
        ("nifti", {"scale": "percentiles"}),
        ("png", {}),
    ],
)
def test_inference_reads_each_file_as_prep_did(studies, tmp_path, kind, options):
    folder, shape = studies, (8, 12, 6)
    if kind == "series":
        cells = [f"SECRET-{number}" for number in range(4)]
    else:
        folder, cells = tmp_path / kind, [f"{number}.{'nii.gz' if kind == 'nifti' else 'png'}" for number in range(4)]
        folder.mkdir()
    for cell, values in zip(cells, HU, strict=True):
        if kind == "nifti":
            nifti(folder / cell, values)
        elif kind == "png":
            shape = (12, 6)
            picture(folder / cell, (values[0] % 256).astype(np.uint8))
    images, datalist = prepared((folder, table_of(tmp_path / "t.csv", cells)), tmp_path / "P", size=shape, **options)
    unit = images / 255 if images.dtype == np.uint8 else images
    predicted = inferred(folder, datalist, shape)
    assert list(predicted) == cells
    for row, cell in enumerate(cells):
        np.testing.assert_allclose(predicted[cell], (unit[row] - 0.25) / 0.5, atol=1e-6)


def test_series_of_a_folder_are_named_by_their_first_files(studies, tmp_path):
    table = table_of(tmp_path / "t.csv", ["1.2.826.0.0", "1.2.826.0.1"])
    _, datalist = prepared((studies, table), tmp_path / "P", size=(16, 16, 8), **AXIAL_LUNG)
    for number in range(2):
        for path in (studies / f"SECRET-{number}").iterdir():
            path.rename(studies / f"{path.name}-{number}")
    (studies / "SECRET-0").rmdir()
    (studies / "SECRET-1").rmdir()
    names = list(inferred(studies, datalist, (16, 16, 8)))
    assert names == ["I0-0", "I0-1", "SECRET-2", "SECRET-3"]


def test_an_exported_bundle_applies_the_window_of_its_training_data(studies, tmp_path):
    """From folders of series to a bundle that predicts a series as it predicts the row that was made of it."""
    from monai.bundle import run as monai_run

    for plugin in ("medfl_methods", "medfl_encoders", "medfl_report"):
        pytest.importorskip(plugin)
    cells = [f"1.2.826.0.{number}" for number in range(4)]
    rows = [(cell, "ab"[number % 2], "train" if number < 3 else "test") for number, cell in enumerate(cells)]
    table = write_table(tmp_path / "t.csv", rows, ("file", "diagnosis", "part"))
    columns = ["--table", str(table), "--image-column", "file", "--target", "class:diagnosis", "--split-column", "part"]
    series = ["--plane", "axial", "--series-modality", "CT", "--series-description", "thorax", "--window", "lung"]
    pooled, site = tmp_path / "P", tmp_path / "sites" / "site-01"
    command = ["prep", "folder", str(studies), *columns, *series, "--size", "16x16x8", "--out", str(pooled)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "Sally" not in result.output
    reading = read_datalist(pooled).extra[IMAGE_READING_KEY]
    assert reading["series"] == {"plane": "axial", "modality": "CT", "description": "thorax"}
    assert (reading["scale"], reading["low"], reading["high"]) == ("window", -1350, 150)
    shutil.copytree(pooled, site)

    options = {"network_name": "resnet10", "start": "none", "rounds": 1, "epochs": 1, "progress": False}
    medfl.run("own_images", tmp_path / "sites", out=tmp_path / "run", method="fedavg", **options)
    home = tmp_path / "run" / "sites" / "site-01"
    config = home / "configs" / "inference.json"
    assert json.loads(config.read_text())[IMAGE_READING_KEY] == reading
    predicted = []
    for folder in (studies / "SECRET-3", site):
        out = tmp_path / folder.name
        places = {"bundle_root": str(home), "ckpt_dir": str(home / "models"), "output_dir": str(out)}
        monai_run(config_file=str(config), dataset_dir=str(folder), **places)
        lines = (out / "predictions.csv").read_text().splitlines()
        predicted.append([line.split(",", 1)[1] for line in lines])
    assert len(predicted[0]) == 2
    assert predicted[0] == predicted[1]

    labels = write_table(tmp_path / "new.csv", [("SECRET-3", "b"), ("SECRET-0", "a")], ("folder", "diagnosis"))
    known = ["--table", str(labels), "--image-column", "folder", "--target", "class:diagnosis"]
    scored = tmp_path / "scored"
    command = ["evaluate", f"{tmp_path / 'run'}#site-01", "--dataset-dir", str(studies), *known, "--out", str(scored)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    evaluation = json.loads((scored / "evaluation.json").read_text())
    assert evaluation["images"] == 2
    assert evaluation["relation"]["kind"] == "internal"  # the pixels are those of the training


# ---- masks


@pytest.fixture
def contoured(tmp_path):
    """Four series with masks as RTSTRUCT or NIfTI, and a table of both."""
    folder, rows = tmp_path / "images", []
    for number, values in enumerate(HU):
        paths = sorted(write_series(folder / f"SECRET-{number}", values).iterdir())
        if number % 2:
            mask = np.zeros((16, 16, 8), np.uint8)
            mask[3:12, 4:9, 2:5] = 1
            nifti(folder / f"mask-{number}.nii.gz", mask, read_series(paths).geometry.affine)
        else:
            box = {"Lesion": [rectangle((2.5, 11.5), (3.5, 8.5), plane) for plane in (2, 3, 4)]}
            write_structures(folder / f"mask-{number}.dcm", SeriesFiles(tuple(paths)), box)
        rows.append((f"SECRET-{number}", f"mask-{number}"))
    return folder, write_table(tmp_path / "t.csv", rows, ("file", "mask"))


@pytest.mark.parametrize("structures", [["--structures", "lesion"], []])
def test_masks_of_series_are_prepared_as_bundles_of_volumes_read_them(contoured, tmp_path, structures):
    folder, table = contoured
    target = ["--target", "mask:mask", *structures]
    columns = ["--table", str(table), "--image-column", "file", "--window", "soft-tissue", "--size", "16x16x16"]
    command = ["prep", "folder", str(folder), *columns, *target, "--workers", "1", "--out", str(tmp_path / "P")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    datalist = read_datalist(tmp_path / "P")
    assert datalist.objective == {"name": "segmentation", "channels": 2, "spacing": [0.75, 0.5, 2.0]}
    assert datalist.extra["window"] == [-150, 250]
    images, masks = np.load(tmp_path / "P" / "images.npy"), np.load(tmp_path / "P" / "masks.npy")
    expected = np.zeros((16, 16, 16), np.uint8)
    expected[4:13, 7:12, 6:9] = 1  # columns and rows run the other way, and four slices are padded below
    read = volume_transforms((16, 16, 16), window=datalist.extra["window"])  # as inference.json does
    for number in range(4):
        np.testing.assert_array_equal(masks[number], expected)
        (case,) = volume_files(folder / f"SECRET-{number}")
        np.testing.assert_allclose(images[number], read(case)["image"][0].numpy(), atol=1e-6)


def test_the_masks_with_each_structure_are_counted(contoured, tmp_path):
    folder, table = contoured
    options = {"images": folder, "table": table, "image_column": "file", "target": "mask:mask", "size": (16, 16, 16)}
    spec = read_settings(FolderSpec, options | {"structures": ("lesion", "tumor")}, where="the test")
    lines = []
    prepare_dataset(spec, tmp_path / "P", workers=1, say=lines.append)
    assert "note: structures in 4 masks: lesion in 4, tumor in 0" in lines


def test_volumes_of_several_spacings_with_masks_are_refused(contoured, tmp_path):
    folder, table = contoured
    shutil.rmtree(folder / "SECRET-3")
    write_series(folder / "SECRET-3", HU[3], spacing=(0.5, 0.75, 3.0))
    options = {"images": folder, "table": table, "image_column": "file", "target": "mask:mask", "size": (16, 16, 16)}
    with refused(DataError, "mixed_spacing", minimum=[0.75, 0.5, 2.0], maximum=[0.75, 0.5, 3.0]):
        prepare_dataset(read_settings(FolderSpec, options, where="the test"), tmp_path / "P", workers=1)
    spec = read_settings(FolderSpec, options | {"scale": "percentiles"}, where="the test")
    with refused(SettingsError, "incompatible_settings"):
        prepare_dataset(spec, tmp_path / "P", workers=1)


def ramp(shape, affine):
    """A volume whose values are 5 times its positions along the axis from back to front, in millimetres."""
    places = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    return (5 * (places @ affine[:3, :3].T + affine[:3, 3])[..., 1]).astype(np.float32)


@pytest.fixture
def several_spacings(tmp_path):
    """Three volumes of 24 mm and several spacings with a cube of 12 mm in the middle, the last mask on a finer grid."""
    folder, cells = tmp_path / "images", []
    folder.mkdir()
    for number, edges in enumerate(((1.0, 1.0, 3.0), (2.0, 2.0, 2.0), (1.5, 1.0, 3.0))):
        for kind, steps in (("", edges), ("_mask", (1.0, 1.0, 1.0) if number == 2 else edges)):
            shape = tuple(round(24 / step) for step in steps)
            affine = np.diag([*steps, 1.0])
            affine[:3, 3] = np.array(steps) / 2 - 12  # the volume is centred at 0
            values = ramp(shape, affine)
            if kind:
                inside = [np.abs(affine[axis, 3] + np.arange(shape[axis]) * steps[axis]) < 6 for axis in range(3)]
                values = np.ix_(*inside)
                values, marked = np.zeros(shape, np.uint8), values
                values[marked] = 1
            nifti(folder / f"{number}{kind}.nii.gz", values, affine)
        cells.append(f"{number}.nii.gz")
    return folder, cells


def test_volumes_and_masks_get_one_spacing_as_inference_gives_it(several_spacings, tmp_path):
    """Prepare by the command: a ramp stays a ramp in millimetres, and a cube of 12 mm has 1.728 ml."""
    folder, cells = several_spacings
    table = write_table(tmp_path / "t.csv", [(cell,) for cell in cells], ("file",))
    words = ["--table", table, "--image-column", "file", "--mask-suffix", "_mask", "--window", "0,100"]
    words += ["--workers", 1, "--spacing", "2,2,2", "--size", "16x16x16", "--out", tmp_path / "P"]
    result = CliRunner().invoke(app, ["prep", "folder", str(folder), *map(str, words)])
    assert result.exit_code == 0, result.output
    assert "1 of 3 masks were resampled to the grid of their image" in result.output
    datalist = read_datalist(tmp_path / "P")
    assert datalist.goal.facts["spacing"] == [2.0, 2.0, 2.0]
    assert datalist.extra[IMAGE_READING_KEY]["spacing"] == [2.0, 2.0, 2.0]
    assert any("1 of 3 masks" in warning for warning in datalist.warnings)
    assert not any("mask_resampled" in record for record in datalist.splits["training"])
    images, masks = np.load(tmp_path / "P" / "images.npy"), np.load(tmp_path / "P" / "masks.npy")
    read = volume_transforms((16, 16, 16), datalist.goal.facts["spacing"], datalist.extra["window"])
    for number, cell in enumerate(cells):
        (case,) = [each for each in volume_files(folder) if each["image"].endswith(f"/{cell}")]
        np.testing.assert_allclose(images[number], read(case)["image"][0].numpy(), atol=1e-6)
        inner = images[number][4:12, 4:12, 4:12] * 100 - 50
        np.testing.assert_allclose(np.diff(inner, axis=1), 10, atol=1e-3)
        np.testing.assert_allclose(np.ptp(inner, axis=(0, 2)), 0, atol=1e-3)
        assert masks[number].sum() * 8 / 1000 == pytest.approx(1.728)


def test_a_mask_of_another_place_is_refused_with_its_distance(several_spacings, tmp_path):
    folder, cells = several_spacings
    affine = np.diag([1.0, 1, 1, 1])
    affine[:3, 3] = 10
    nifti(folder / "2_mask.nii.gz", np.ones((12, 12, 12), np.uint8), affine)
    table = write_table(tmp_path / "t.csv", [(cell,) for cell in cells], ("file",))
    options = {"images": folder, "table": table, "image_column": "file", "mask_suffix": "_mask", "size": (16, 16, 16)}
    spec = read_settings(FolderSpec, options | {"spacing": "2"}, where="the test")
    assert spec.spacing == (2.0, 2.0, 2.0)
    with refused(DataError, "unreadable_image", count=1, total=3) as error:
        prepare_dataset(spec, tmp_path / "P", workers=1)
    assert "mm from its edge" in str(error.value)
    coarse = read_settings(FolderSpec, options | {"spacing": "30"}, where="the test")
    with refused(DataError, "no_readable_image", count=3) as error:
        prepare_dataset(coarse, tmp_path / "P", workers=1)
    assert "would remove the structures 1" in str(error.value)


@pytest.mark.parametrize("options", [{"window": "0,100"}, {}, {"scale": "percentiles"}])
def test_volumes_without_masks_get_one_spacing_as_inference_gives_it(several_spacings, tmp_path, options):
    folder, cells = several_spacings
    for path in folder.glob("*_mask*"):
        path.unlink()
    lines = []
    options = options | {"spacing": (2.0, 2.0, 2.0), "say": lines.append}
    own = folder, table_of(tmp_path / "t.csv", cells)
    images, datalist = prepared(own, tmp_path / "P", size=(16, 10, 14), **options)
    assert datalist.extra["spacing"] == [2.0, 2.0, 2.0]
    assert any("3 volumes are larger than --size" in line and "--size 12x12x12 fits all" in line for line in lines)
    predicted = inferred(folder, datalist, (16, 10, 14))
    for row, cell in enumerate(cells):
        np.testing.assert_allclose(predicted[cell], (images[row] - 0.25) / 0.5, atol=1e-6)
        steps = np.diff(images[row][3:13, 1:9, 2:12], axis=1)
        assert np.ptp(steps) < 1e-3
        assert steps.min() > 0
        assert not images[row][0].any()  # padding


def test_a_spacing_is_three_lengths_of_volumes(tmp_path):
    wrong = {"1x2": "setting_out_of_range", "1x1x0": "setting_out_of_range", "fine": "invalid_value"}
    for spacing, code in wrong.items():
        options = {"images": tmp_path, "table": tmp_path, "image_column": "file", "size": 8, "spacing": spacing}
        with refused(SettingsError, code, setting="spacing"):
            read_settings(FolderSpec, options, where="the test")
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        picture(tmp_path / "images" / name, np.arange(64, dtype=np.uint8).reshape(8, 8))
    table = table_of(tmp_path / "t.csv", ["a.png", "b.png"])
    with refused(SettingsError, "data_not_supported", feature="spacing"):
        prepare(tmp_path / "images", table, SOME, (8, 8), tmp_path / "P", spacing="1")


BOX = (slice(3, 12), slice(4, 9), slice(2, 5))
"""Columns, rows and slices of a box in a series."""


def boxes_of(folder, shifts, value=255):
    """Write a series for each shift, in voxels, with its shifted box as NIfTI mask ``N_mask``; return the table."""
    for number, shift in enumerate(shifts):
        paths = sorted(write_series(folder / str(number), HU[number]).iterdir())
        mask = np.zeros((16, 16, 8), np.uint8)
        mask[tuple(slice(edge.start + step, edge.stop + step) for edge, step in zip(BOX, shift, strict=True))] = value
        nifti(folder / f"{number}_mask.nii.gz", mask, read_series(paths).geometry.affine)
    return write_table(folder.parent / "t.csv", [(str(number),) for number in range(len(shifts))], ("file",))


def test_sizes_and_distances_of_prepared_masks_are_in_millimetres(tmp_path):
    shifts = [(0, 0, 0), (2, 0, 0), (0, 0, 1)]
    table = boxes_of(tmp_path / "images", shifts)
    options = {"images": tmp_path / "images", "table": table, "image_column": "file", "mask_suffix": "_mask"}
    spec = read_settings(FolderSpec, options | {"size": (16, 16, 8), "window": "lung"}, where="the test")
    prepare_dataset(spec, tmp_path / "P", workers=1)
    goal, masks = read_datalist(tmp_path / "P").goal, torch.from_numpy(np.load(tmp_path / "P" / "masks.npy"))
    assert goal.size_unit == "mm³"
    sizes = goal.scoring_targets(masks[:, None].long())
    assert (sizes / 1000).tolist() == [[pytest.approx((9 * 0.75) * (5 * 0.5) * (3 * 2.0) / 1000)]] * 3  # millilitres
    outputs = torch.nn.functional.one_hot(masks[:1].long(), 2).movedim(-1, 1).float()
    for row, distance in ((0, 0.0), (1, 2 * 0.75), (2, 2.0)):
        scores = goal.scoring_inputs(outputs, masks[row : row + 1, None].long(), ["hd95"])
        assert scores[0, goal.columns(["hd95"]).index("hd95_1")] == pytest.approx(distance)


def test_several_values_without_names_are_refused(tmp_path):
    table = boxes_of(tmp_path / "images", [(0, 0, 0), (0, 0, 0)])
    path = tmp_path / "images" / "1_mask.nii.gz"
    values = np.zeros((16, 16, 8), np.uint8)
    values[BOX], values[0, 0, 0] = 1, 2
    nifti(path, values, read_series(sorted((tmp_path / "images" / "1").iterdir())).geometry.affine)
    options = {"images": tmp_path / "images", "table": table, "image_column": "file", "mask_suffix": "_mask"}
    spec = read_settings(FolderSpec, options | {"size": (16, 16, 8)}, where="the test")
    with refused(DataError, "unreadable_image", count=1, total=2) as error:
        prepare_dataset(spec, tmp_path / "P", workers=1)
    assert "the mask holds 2 values beside 0" in str(error.value)


def test_identifiers_below_2_25_have_two_dots(tmp_path):
    for number in range(4):
        write_series(
            tmp_path / "images", HU[number], names=f"{number}-{{}}", SeriesInstanceUID=f"2.25.{10**30 + number}"
        )
    table = table_of(tmp_path / "t.csv", [f"2.25.{10**30 + number}" for number in range(4)])
    images, _ = prepared((tmp_path / "images", table), tmp_path / "P", size=(16, 16, 8), window="lung")
    np.testing.assert_allclose(images, [lung(values) for values in HU], atol=1e-6)
