"""Test cases with transforms: the same bits from any process, new changes at each visit, patches, sizes and formats."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dicom_maker import make_dicom
from monai.data import MetaTensor, pad_list_data_collate
from monai.inferers import SlidingWindowInferer
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    Lambdad,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    RandCropByLabelClassesd,
    RandFlipd,
    RandGaussianNoised,
    RandLambdad,
    RandSpatialCropd,
    Spacingd,
    SpatialPadd,
)
from PIL import Image
from refusals import refused
from torch import nn
from volumes import KEYS, NAME, make_cases, make_data, patches, same, steady, visit, write_volume

from medfl.data.pooled import pool
from medfl.data.transforms.chain import Chain
from medfl.data.transforms.dataset import TransformDataset
from medfl.errors import DataError
from medfl.objectives.multiclass import Multiclass
from medfl.settings import Settings
from medfl.training.batches import load_batches
from medfl.training.loop import Batch, train
from medfl.training.predict import predict
from medfl.types import is_augmenting
from medfl.utils.rng import make_generator
from medfl.utils.seeds import seed_of

BATCHES = [[0, 1], [2, 3], [3, 0], []]


@pytest.fixture
def cases(tmp_path: Path) -> list[dict[str, Any]]:
    return make_cases(tmp_path)


def test_the_bits_are_the_same_with_any_number_of_loaders_and_any_cache(cases: list[dict[str, Any]], tmp_path: Path):
    expected = visit(make_data(cases), BATCHES)
    assert is_augmenting(make_data(cases))
    assert [batch.rows.tolist() for batch in expected] == [[0, 0, 1, 1], [2, 2, 3, 3], [3, 3, 0, 0], []]
    disk: dict[str, Any] = {"cache": "disk", "cache_dir": tmp_path / "cache"}
    for options in ({"loaders": 1}, {"loaders": 2}, {"cache": "none"}, {"cache": "none", "loaders": 2}, disk, disk):
        assert same(visit(make_data(cases, **options), BATCHES), expected), options
    memory = make_data(cases, loaders=2)
    assert same(visit(memory, BATCHES), expected)
    assert same(visit(memory, BATCHES), expected), "the second time from what loaders made and this process keeps"


def test_what_a_visit_gives_depends_on_stream_row_and_count_alone(cases: list[dict[str, Any]]):
    data = make_data(cases)
    first, again = visit(data, [[0], [0]])
    assert not torch.equal(first.inputs, again.inputs), "a new visit changes the case anew"
    visit(data, [[3, 2, 1, 0], [1, 1]], stream=9)
    assert same(visit(data, [[1], [0], [2], [0]])[1:4:2], [first, again]), "whatever was visited before"
    assert not torch.equal(visit(data, [[0]], stream=6)[0].inputs, first.inputs), "another site or round"
    assert torch.equal(data.batch(torch.tensor([2]))[0], data.batch(torch.tensor([1, 2]))[0][2:])


def test_the_changes_are_monais_own_with_the_seed_of_the_visit(cases: list[dict[str, Any]]):
    plain = Compose([*steady(), *patches()])
    plain.set_random_state(seed=seed_of(5, "visit", 2, 0) % (2**32 - 1))
    expected = plain(dict(cases[2]))
    batch = visit(make_data(cases), [[2]])[0]
    for place, sample in enumerate(expected):
        assert torch.equal(batch.inputs[place], sample["image"].as_tensor())
        assert torch.equal(batch.targets[place], sample["label"].as_tensor().long())


def test_the_places_of_labels_are_found_once(cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    by_class = RandCropByLabelClassesd(KEYS, "label", (4, 4, 4), [1, 1, 1], num_classes=3, num_samples=3)
    for cutter in (patches()[0], by_class):
        whole, data = Compose([*steady(), cutter]), make_data(cases, cutter)
        whole.set_random_state(seed=seed_of(5, "visit", 1, 0) % (2**32 - 1))
        expected = [sample["image"].as_tensor() for sample in whole(dict(cases[1]))]
        visit(data, [[1]])
        with monkeypatch.context() as patch:
            for name in ("map_binary_to_indices", "map_classes_to_indices"):
                patch.setattr(f"monai.transforms.croppad.array.{name}", lambda *args: pytest.fail("found again"))
                patch.setattr(f"monai.transforms.utility.array.{name}", lambda *args: pytest.fail("found again"))
            assert torch.equal(visit(data, [[1]])[0].inputs, torch.stack(expected))


def test_a_random_transform_ends_what_is_cached():
    scale = NormalizeIntensityd("image")
    assert Chain([*steady(), scale]).end == 4
    assert Chain([*steady(), RandFlipd(KEYS), scale]).end == 3
    assert Chain([*steady(), lambda item: item, scale]).end == 3, "who knows what it does"
    assert Chain([Compose(steady()), RandFlipd(KEYS)]).end == 1, "a chain in the chain"
    assert Chain([Compose([*steady(), RandFlipd(KEYS)]), scale]).end == 0


def test_transforms_that_draw_from_global_generators_are_seeded_and_leave_them_alone(cases: list[dict[str, Any]]):
    def noisy(image: torch.Tensor) -> torch.Tensor:
        return image + torch.rand(1) + np.random.random()

    data = make_data(cases, RandLambdad("image", noisy))
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = visit(data, [[0, 1]])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    torch.manual_seed(2)
    assert same(visit(data, [[0, 1]]), first)
    assert same(visit(make_data(cases, RandLambdad("image", noisy), loaders=1), [[0, 1]]), first)


class Net(nn.Module):
    """Network that returns a voxel's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(images)


def trained(data: TransformDataset, rounds: list[int], model: nn.Module) -> tuple[list[torch.Tensor], int]:
    """Train as a site does in the given rounds, and return the parameters and the samples."""
    settings, samples = Settings(rounds=1, epochs=2, batch_size=2), 0
    for round_ in rounds:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(batch: Batch) -> torch.Tensor:
            return nn.functional.cross_entropy(model(batch.images), batch.targets[:, 0])

        generator = make_generator(0, "site-01", round_, "batches")
        samples += train(model, data, loss, optimizer, settings, generator).samples
    return [parameter.detach().clone() for parameter in model.parameters()], samples


def test_a_training_that_continues_elsewhere_ends_in_the_same_bits(cases: list[dict[str, Any]]):
    torch.manual_seed(0)
    state = Net().state_dict()

    def net() -> Net:
        model = Net()
        model.load_state_dict(state)
        return model

    expected, samples = trained(make_data(cases), [1, 2], net())
    assert samples == 2 * 2 * 4 * 2, "rounds, epochs, cases, patches"
    resumed = net()
    trained(make_data(cases, loaders=2), [1], resumed)
    parameters, _ = trained(make_data(cases, cache="none"), [2], resumed)
    assert all(map(torch.equal, parameters, expected))


def test_batches_of_one_case_with_several_patches_train_batch_norm(cases: list[dict[str, Any]]):
    model = nn.Sequential(nn.BatchNorm3d(1), nn.Conv3d(1, 3, 1))
    optimizer, settings = torch.optim.SGD(model.parameters(), lr=0.1), Settings(rounds=1, batch_size=1)

    def loss(batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch.images), batch.targets[:, 0])

    for count, samples in ((2, 8), (1, 0)):
        data = make_data(cases, *patches(count))
        assert train(model, data, loss, optimizer, settings, make_generator(0)).samples == samples


def test_cases_of_unlike_sizes_are_padded_by_the_collate_function_or_come_alone(tmp_path: Path):
    (tmp_path / "b").mkdir()
    cases = make_cases(tmp_path, 1) + make_cases(tmp_path / "b", 1, (14, 9, 8))
    padded = make_data(cases, RandFlipd(KEYS), collate=pad_list_data_collate)
    assert visit(padded, [[0, 1]])[0].inputs.shape == (2, 1, 14, 10, 8)
    data = make_data(cases, RandFlipd(KEYS))
    assert [batch.inputs.shape[2:] for batch in visit(data, [[0], [1]])] == [(12, 10, 8), (14, 9, 8)]
    shapes = [[1, 12, 10, 8], [1, 14, 9, 8]]
    with refused(DataError, "failed_collation", where="site 'site-01', split 'training'", rows=[0, 1], shapes=shapes):
        visit(data, [[0, 1]])


def test_evaluation_takes_one_case_at_a_time_through_the_inferer(tmp_path: Path):
    (tmp_path / "b").mkdir()
    cases = make_cases(tmp_path, 1) + make_cases(tmp_path / "b", 1, (14, 9, 8))
    labels = [case | {"label": row} for row, case in enumerate(cases)]
    chain = [LoadImaged("image"), EnsureChannelFirstd("image"), NormalizeIntensityd("image")]
    data = TransformDataset(labels, chain, target_type=torch.int64)
    model, seen = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(1, 2)), []
    plain, targets = predict(model, data, Multiclass(2), (), Settings(rounds=1))
    assert targets.tolist() == [0, 1]

    def inferer(images: torch.Tensor, network: nn.Module) -> torch.Tensor:
        seen.append(tuple(images.shape))
        return network(images)

    with_inferer, _ = predict(model, data, Multiclass(2), (), Settings(rounds=1), inferer=inferer)
    assert seen == [(1, 1, 12, 10, 8), (1, 1, 14, 9, 8)]
    assert torch.equal(plain, with_inferer)
    convolution = nn.Conv3d(1, 2, 1)
    for loaded in load_batches(data, torch.arange(2).split(1)):
        sliding = SlidingWindowInferer((8, 8, 8), overlap=0.25)(loaded.inputs, convolution)
        torch.testing.assert_close(sliding, convolution(loaded.inputs))


def test_pooled_sites_keep_their_transforms(cases: list[dict[str, Any]]):
    parts = [make_data(cases[:1], class_labels=[4]), make_data(cases[1:], class_labels=[5, 6, 7])]
    together = pool(parts)
    assert isinstance(together, TransformDataset)
    assert together.class_labels is not None
    assert together.class_labels.tolist() == [4, 5, 6, 7]
    assert same(visit(together, BATCHES), visit(make_data(cases), BATCHES))
    with refused(DataError, "different_transforms"):
        pool([parts[0], make_data(cases, RandFlipd(KEYS))])


def test_several_targets_come_by_name_and_numbers_are_read_from_the_list(cases: list[dict[str, Any]]):
    listed = [case | {"age": 40.5 + row, "stage": row} for row, case in enumerate(cases)]
    data = TransformDataset(listed, Compose([*steady(), *patches(1)]), targets=("label", "age"))
    batch = visit(data, [[1, 2]])[0]
    assert batch.targets["age"].tolist() == [41.5, 42.5]
    assert batch.targets["label"].shape == (2, 1, 6, 6, 6)
    stages = TransformDataset([{"image": "nowhere", "stage": 3}], [Lambdad("image", len)], targets="stage")
    assert stages.targets(torch.tensor([0, 0])).tolist() == [3, 3], "no image is loaded"


def test_nothing_but_numbers_and_the_grid_is_passed_on(tmp_path: Path):
    values = np.ones((6, 5, 4), np.float32)
    case = {"image": write_volume(tmp_path / f"{NAME}.nii.gz", values, (0.5, 2, 3), origin=7), "label": 1}
    metas: list[dict[str, Any]] = []

    def peek(image: MetaTensor) -> MetaTensor:
        metas.append(dict(image.meta))
        return image

    loaders = [LoadImaged("image"), EnsureChannelFirstd("image")]
    data = TransformDataset([case], Compose([*loaders, RandLambdad("image", peek)]), cache="disk", cache_dir=tmp_path)
    batch = visit(data, [[0]])[0]
    assert type(batch.inputs) is torch.Tensor
    assert NAME not in str(metas)
    assert metas[0]["affine"][0].tolist() == [0.5, 0, 0, 7]
    assert batch.spacing is not None
    assert batch.spacing.tolist() == [[0.5, 2, 3]]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*.safetensors"))
    assert kept
    assert NAME.encode() not in kept


def test_pictures_and_series_are_read_as_well(tmp_path: Path):
    draws = np.random.default_rng(1)
    for suffix in ("png", "jpg", "tif"):
        pixels = draws.integers(0, 255, (7, 9), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"image.{suffix}")
        case = {"image": str(tmp_path / f"image.{suffix}"), "label": 0}
        data = TransformDataset([case], [LoadImaged("image", reader="PILReader"), EnsureChannelFirstd("image")])
        batch = visit(data, [[0]])[0]
        assert batch.inputs.shape == (1, 1, 9, 7)
        assert batch.spacing is not None
        assert bool(batch.spacing.isnan().all()), "a picture knows no millimetres"
    series = tmp_path / "series"
    series.mkdir()
    for place in range(4):
        tags = {"SOPInstanceUID": f"1.2.{place}", "SeriesInstanceUID": "1.2", "PixelSpacing": [0.5, 0.5]}
        position = {"ImagePositionPatient": [0, 0, 2 * place], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        pixels = np.full((5, 6), place, np.uint16)
        make_dicom(series / f"{place}.dcm", pixels, PatientName=NAME, InstanceNumber=place, **tags, **position)
    loaders = [LoadImaged("image", reader="PydicomReader"), EnsureChannelFirstd("image")]
    data = TransformDataset([{"image": str(series), "label": 0}], loaders, cache="disk", cache_dir=tmp_path / "kept")
    batch = visit(data, [[0]])[0]
    assert batch.inputs.shape == (1, 1, 6, 5, 4)
    assert batch.spacing is not None
    assert batch.spacing.tolist() == [[0.5, 0.5, 2]]
    assert NAME.encode() not in next((tmp_path / "kept").rglob("*.safetensors")).read_bytes()
    before = data.digest
    make_dicom(series / "3.dcm", np.full((5, 6), 9, np.uint16), PatientName=NAME, InstanceNumber=3, **tags, **position)
    again = TransformDataset([{"image": str(series), "label": 0}], loaders, cache="disk", cache_dir=tmp_path / "kept")
    assert again.digest != before, "a slice was changed"
    assert not torch.equal(visit(again, [[0]])[0].inputs, batch.inputs)


def hippocampus(count: int) -> list[dict[str, str]]:
    folder = Path(os.environ.get("MEDFL_DATA", "")) / "segmentation" / "hippocampus"
    if not (folder / "dataset.json").is_file():
        pytest.skip("no segmentation/hippocampus in MEDFL_DATA")
    records = json.loads((folder / "dataset.json").read_text())["training"][:count]
    return [{key: str(folder / record[key]) for key in KEYS} for record in records]


def test_real_volumes_go_through_a_real_chain():
    chain = [
        LoadImaged(KEYS),
        EnsureChannelFirstd(KEYS),
        Orientationd(KEYS, axcodes="RAS"),
        Spacingd(KEYS, pixdim=(1, 1, 1), mode=("bilinear", "nearest")),
        NormalizeIntensityd("image"),
        SpatialPadd(KEYS, (32, 48, 32)),
        RandSpatialCropd(KEYS, (32, 48, 32), random_size=False),
        RandGaussianNoised("image"),
    ]
    batches = {}
    for loaders in (0, 2):
        data = TransformDataset(hippocampus(4), Compose(chain), target_type=torch.int64, loaders=loaders)
        batches[loaders] = visit(data, [[0, 1], [2, 3]])
    assert same(batches[0], batches[2])
    assert batches[0][0].inputs.shape == (2, 1, 32, 48, 32)
    assert batches[0][0].targets.unique().tolist() == [0, 1, 2]
    assert batches[0][0].spacing is not None
    torch.testing.assert_close(batches[0][0].spacing, torch.ones(2, 3, dtype=torch.float64))
