"""A task of the Medical Segmentation Decathlon: real voxels on one grid, and input that is refused."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from prepare_specs import prepare_spec
from refusals import refused

from medfl.data.datalists import Datalist, read_datalist
from medfl.data.ingest.volumes import VolumeFiles, VolumeGrid, grid_of
from medfl.data.partition.by_column import by_site
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import dataset_value, load_site, load_sites
from medfl.errors import DataError, SettingsError
from medfl.objectives import Segmentation
from medfl.plugins import load_plugins
from medfl.records.partition import Partition
from medfl_datasets.decathlon.files import read_release
from medfl_datasets.decathlon.spec import Decathlon
from medfl_datasets.decathlon.synthetic import SCANNERS, TABLE, write_release

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "segmentation", "hippocampus")


def prepare(source: Path, out: Path, **options: Any) -> Datalist:
    return prepare_spec(Decathlon, source, out, **{"workers": 1} | options)


def arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    return np.load(folder / "images.npy"), np.load(folder / "masks.npy")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("decathlon"))


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    """Write a task that a test may modify."""
    return shutil.copytree(made, tmp_path / "task")


def head(release: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((release / "dataset.json").read_text())
    return values


def write_head(release: Path, values: dict[str, Any]) -> None:
    (release / "dataset.json").write_text(json.dumps(values))


def mask_of(release: Path, case: int) -> Path:
    return release / head(release)["training"][case]["label"]


def change(path: Path, values: Callable[[np.ndarray], np.ndarray], affine: np.ndarray | None = None) -> None:
    image = nibabel.load(path)
    changed = values(np.asarray(image.dataobj))
    nibabel.save(nibabel.Nifti1Image(changed, image.affine if affine is None else affine), path)


# ---- what becomes of a task


def test_the_real_hippocampus_lies_on_one_grid(tmp_path: Path) -> None:
    """Compare five cases with volumes that nibabel and numpy turn, scale and pad here."""
    if not REAL.is_dir():
        pytest.skip("needs segmentation/hippocampus in the folder that MEDFL_DATA names")
    values = head(REAL)
    values["training"] = values["training"][:5]
    for entry in values["training"]:
        for key in ("image", "label"):
            (tmp_path / "task" / entry[key]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REAL / entry[key], tmp_path / "task" / entry[key])
    write_head(tmp_path / "task", values)
    options = {"table": REAL / "cases.csv", "site_column": "intensity_group"}
    datalist = prepare(tmp_path / "task", tmp_path / "out", **options)
    assert datalist.goal == Segmentation(3, spacing=(1.0, 1.0, 1.0))
    assert datalist.extra["structures"] == ["background", "Anterior", "Posterior"]
    assert datalist.licence == "CC-BY-SA 4.0"
    rows = {row["case"]: row for row in csv.DictReader((REAL / "cases.csv").open())}
    for entry, record, image, mask in zip(
        values["training"], datalist.splits["training"], *arrays(tmp_path / "out"), strict=True
    ):
        turned = nibabel.as_closest_canonical(nibabel.load(REAL / entry["image"])).get_fdata()
        before = [(full - own) // 2 for full, own in zip(image.shape, turned.shape, strict=True)]
        place = tuple(slice(start, start + own) for start, own in zip(before, turned.shape, strict=True))
        expected = np.zeros(image.shape)
        expected[place] = (turned - turned.mean()) / turned.std()
        assert np.abs(image - expected).max() < 1e-4
        row = rows[Path(entry["image"]).name.removesuffix(".nii.gz")]
        counts = [int(row["voxels_anterior"]), int(row["voxels_posterior"])]
        assert [(mask == number).sum() for number in (1, 2)] == counts
        assert (record["site"], record["in_mask"]) == (row["intensity_group"], [1, 2])


def test_volumes_of_unlike_orientation_and_scale_become_alike(made: Path, tmp_path: Path) -> None:
    """Check that the front is in front in all volumes; the affine of every second file mirrors an axis."""
    datalist = prepare(made, tmp_path / "out", table=made / TABLE, site_column="scanner", group_column="patient")
    images, masks = arrays(tmp_path / "out")
    assert images.shape == masks.shape == (7, 16, 16, 16)
    assert (images.dtype, masks.dtype) == (np.float32, np.uint8)
    for image, mask in zip(images, masks, strict=True):
        front, back = (np.argwhere(mask == number)[:, 1].mean() for number in (1, 2))
        assert front > back + 2
        assert image[mask == 2].mean() > image[mask == 1].mean() > 0
    records = datalist.splits["training"]
    assert [record["site"] for record in records] == [list(SCANNERS)[row % 3] for row in range(7)]
    assert len({record["subject_id"] for record in records}) == 4
    assert datalist.counts()["training"] == {"0": 0, "1": 7}


def test_a_table_may_have_the_cases_in_another_order(made: Path, release: Path, tmp_path: Path) -> None:
    lines = (release / TABLE).read_text().splitlines()
    (release / TABLE).write_text("\n".join([lines[0], *reversed(lines[1:]), ""]))
    options = {"site_column": "scanner", "group_column": "patient"}
    datalist = prepare(made, tmp_path / "out", table=made / TABLE, **options)
    turned = prepare(release, tmp_path / "turned", table=release / TABLE, **options)
    assert turned.splits == datalist.splits


def test_structures_come_by_their_numbers_not_by_their_texts(release: Path) -> None:
    names = [f"structure {number}" for number in range(11)]
    write_head(release, head(release) | {"labels": {str(number): names[number] for number in reversed(range(11))}})
    assert read_release(release).structures == names


def test_a_spacing_resamples_and_is_in_the_list(made: Path, tmp_path: Path) -> None:
    prepare(made, tmp_path / "own")
    datalist = prepare(made, tmp_path / "half", spacing="2x2x2", size=(8, 8, 8))
    assert datalist.goal == Segmentation(3, spacing=(2.0, 2.0, 2.0))
    fine, coarse = (arrays(tmp_path / name)[1] for name in ("own", "half"))
    assert coarse.shape == (7, 8, 8, 8)
    for case in range(7):
        assert (coarse[case] > 0).sum() * 8 == pytest.approx((fine[case] > 0).sum(), rel=0.2)


def test_the_grid_is_that_of_the_turned_axes(tmp_path: Path) -> None:
    """Check a file whose axes point to the front (1 mm), up (2 mm) and to the right (3 mm)."""
    affine = np.array([[0, 0, 3, 0], [1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 1]], dtype=float)
    case = VolumeFiles(tmp_path / "image.nii.gz", tmp_path / "mask.nii.gz")
    for path in case.files():
        nibabel.save(nibabel.Nifti1Image(np.zeros((4, 5, 6), dtype=np.uint8), affine), path)
    assert grid_of(case, 1) == VolumeGrid((6, 4, 5), (3.0, 1.0, 2.0))


def test_a_window_becomes_zero_to_one(release: Path, tmp_path: Path) -> None:
    prepare(release, tmp_path / "out", window="100,100")
    image = nibabel.as_closest_canonical(nibabel.load(release / head(release)["training"][0]["image"])).get_fdata()
    expected = ((image - 50) / 100).clip(0, 1)
    row = arrays(tmp_path / "out")[0][0]
    assert row[row > 0].sum() == pytest.approx(expected.sum(), rel=1e-5)
    partition(tmp_path / "out", tmp_path / "sites", PartitionPlan("iid", 2, server_test="none"), iid)
    assert dataset_value(tmp_path / "sites", "window", None) == [50.0, 150.0]


def test_sites_have_their_masks_and_distances_in_millimetres(made: Path, tmp_path: Path) -> None:
    prepare(made, tmp_path / "pool", table=made / TABLE, site_column="scanner", spacing="2x2x2", size=(8, 8, 8))
    plan = PartitionPlan("by_site", column="site", test="none", server_test="none")
    partition(tmp_path / "pool", tmp_path / "data", plan, by_site)
    objective = Segmentation(3, spacing=dataset_value(tmp_path / "data", "spacing", None))
    assert objective.spacing == (2.0, 2.0, 2.0)
    sites = load_sites(tmp_path / "data", objective, (0.0,), (1.0,))
    assert sum(len(site.train) for site in sites.values()) == 7
    masks = arrays(tmp_path / "pool")[1]
    rows = [record["image"] for record in read_datalist(tmp_path / "data" / "B").splits["training"]]
    targets = sites["B"].train.targets(torch.arange(len(rows)))
    assert torch.equal(targets[:, 0], torch.from_numpy(masks[rows]).long())
    outputs = torch.nn.functional.one_hot(targets[:, 0].roll(1, 1), 3).movedim(-1, 1).float()
    millimetres, voxels = (
        kind.score("hd95", kind.scoring_inputs(outputs, targets, ["hd95"]), targets)
        for kind in (objective, Segmentation(3))
    )
    assert millimetres == pytest.approx(2 * voxels)
    digests = Partition.read(tmp_path / "data" / Partition.NAME).sha256_by_file
    assert any(name.endswith("masks.npy") for name in digests)
    with refused(DataError, "wrong_mask_layout", key="spacing", expected=None, found=[2.0, 2.0, 2.0]):
        load_site(tmp_path / "data" / "B", Segmentation(3), (0.0,), (1.0,))
    with refused(DataError, "wrong_mask_layout", key="channels", expected=2, found=3):
        load_site(tmp_path / "data" / "B", Segmentation(2, spacing=(2, 2, 2)), (0.0,), (1.0,))


def test_empty_masks_stay_and_are_counted(release: Path, tmp_path: Path) -> None:
    change(mask_of(release, 2), np.zeros_like)
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "out", say=lines.append)
    assert datalist.counts()["training"] == {"0": 1, "1": 6}
    assert datalist.splits["training"][2]["in_mask"] == []
    assert any("1 masks are empty" in line for line in lines)


# ---- what is refused


def shift(path: Path) -> None:
    affine = nibabel.load(path).affine.copy()
    affine[0, 3] += 1
    change(path, lambda values: values, affine)


WRONG: dict[str, tuple[Callable[[Path], None], str]] = {
    "smaller": (lambda path: change(path, lambda mask: mask[1:]), r"case 4: the mask has .* it lies on another grid"),
    "shifted": (shift, "case 4: the mask lies at another place than its image"),
    "label": (lambda path: change(path, lambda mask: mask + 2), r"case 4: the mask holds [34], expected .* 0 to 2"),
    "half": (lambda path: change(path, lambda mask: mask * 0.5), r"case 4: the mask holds 0\.5, expected whole"),
    "gone": (Path.unlink, "case 4: there is no file of the mask"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:60]), "case 4: "),
}


@pytest.mark.parametrize(("damage", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_mask_is_refused_or_left_out(
    release: Path, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(mask_of(release, 3))
    with refused(DataError, "unreadable_image", count=1, total=7) as error:
        prepare(release, tmp_path / "out", size=(16, 16, 16))
    assert re.search(message, str(error.value))
    assert "secret" not in f"{error.value} {error.value.fields}"
    assert not (tmp_path / "out").exists()
    datalist = prepare(release, tmp_path / "out", size=(16, 16, 16), require_complete=False)
    assert len(datalist.splits["training"]) == len(arrays(tmp_path / "out")[1]) == 6
    assert list(csv.reader((tmp_path / "out" / "quarantine.csv").open()))[1][0] == "4"


def spoil_head(values: dict[str, Any], what: str) -> None:
    cases = values["training"]
    if what == "no mask":
        del cases[1]["label"]
    elif what == "two masks":
        cases.append({"image": cases[0]["image"], "label": cases[1]["label"]})
    elif what == "one mask twice":
        cases[2]["label"] = cases[1]["label"]
    elif what == "outside":
        cases[0]["image"] = "../other.nii.gz"
    elif what == "labels":
        values["labels"] = {"0": "background", "2": "back"}
    else:
        values["training"] = []


@pytest.mark.parametrize(
    ("what", "code", "fields"),
    [
        ("no mask", "missing_value", {"cases": [2]}),
        ("two masks", "shared_file", {"what": "image", "cases": [8]}),
        ("one mask twice", "shared_file", {"what": "mask", "cases": [3]}),
        ("outside", "path_outside_folder", {"case": 1}),
        ("labels", "wrong_numbering", {"key": "labels", "minimum": 2}),
        ("no cases", "no_cases", {}),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    release: Path, tmp_path: Path, what: str, code: str, fields: dict[str, Any]
) -> None:
    values = head(release)
    spoil_head(values, what)
    write_head(release, values)
    with refused(DataError, code, path=str(release / "dataset.json"), **fields):
        prepare(release, tmp_path / "out")


def test_no_labelled_voxel_is_cut_off(made: Path, tmp_path: Path) -> None:
    with refused(DataError, "no_readable_image", count=7, total=7) as error:
        prepare(made, tmp_path / "out", size=(4, 16, 16))
    assert "the size would cut off" in str(error.value)


def test_unlike_spacings_want_to_be_resampled(release: Path, tmp_path: Path) -> None:
    entry = head(release)["training"][0]
    for key in ("image", "label"):
        change(release / entry[key], lambda values: values, np.diag([2.0, 1.0, 1.0, 1.0]))
    with refused(DataError, "mixed_spacing", minimum=[1.0, 1.0, 1.0], maximum=[2.0, 1.0, 1.0]) as error:
        prepare(release, tmp_path / "out")
    assert "--spacing 1x1x1" in str(error.value)
    datalist = prepare(release, tmp_path / "out", spacing=(1, 1, 1))
    assert len(datalist.splits["training"]) == 7


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"size": (16, 16)}, "setting_out_of_range", {"setting": "size", "count": 3, "found": [16, 16]}),
        ({"spacing": (1, 0, 1)}, "setting_out_of_range", {"setting": "spacing", "count": 3}),
        ({"window": "5,-1"}, "reversed_range", {"setting": "window"}),
        ({"window": "low"}, "invalid_value", {"found": "low"}),
        ({"site_column": "scanner"}, "missing_setting", {"setting": "table"}),
    ],
)
def test_impossible_options_are_refused(
    made: Path, tmp_path: Path, options: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with refused(SettingsError, code, **fields):
        prepare(made, tmp_path / "out", **options)


def test_a_table_must_know_each_case_once(release: Path, tmp_path: Path) -> None:
    lines = (release / TABLE).read_text().splitlines()
    (release / TABLE).write_text("\n".join(lines[:-1]) + "\n")
    with refused(DataError, "missing_row", path=str(release / TABLE), column="case", cases=[7]):
        prepare(release, tmp_path / "out", table=release / TABLE)
    (release / TABLE).write_text("\n".join([*lines, lines[1]]) + "\n")
    with refused(DataError, "duplicate_row", path=str(release / TABLE), rows=[9]):
        prepare(release, tmp_path / "out", table=release / TABLE)


# ---- the command, and studies


def test_the_command_takes_the_folder_and_texts(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from medfl.cli.main import main

    words = ["prep", "decathlon", made, "--out", tmp_path / "task", "--size", "16x32x16", "--spacing", "1x1x1"]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--workers", "1"])
    assert ended.value.code == 0
    lines = capsys.readouterr().err
    assert "1 volumes without masks are skipped" in lines
    assert "volumes become 16x32x16 voxels of 1x1x1 mm" in lines
    assert read_datalist(tmp_path / "task").name == "task"
    assert arrays(tmp_path / "task")[0].shape == (7, 16, 32, 16)


def test_a_study_names_the_task_and_its_table(made: Path) -> None:
    pytest.importorskip("medfl_studies")
    from medfl_studies.preparation import PreparationSpec, locate_release

    registry = load_plugins()
    prep = PreparationSpec(dataset="decathlon", source=made.name, table=f"{made.name}/{TABLE}")
    spec = locate_release(prep, made.parent, registry)
    assert isinstance(spec, Decathlon)
    assert (spec.source, spec.table) == (made, made / TABLE)
    with refused(DataError, "missing_path", path=str(made.parent / "elsewhere"), setting="source"):
        locate_release(PreparationSpec(dataset="decathlon", source="elsewhere"), made.parent, registry)
