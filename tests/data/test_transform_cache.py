"""Test that the cache of transforms returns bit-identical results and detects every change."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, Lambdad, MapTransform, RandFlipd
from refusals import refused
from volumes import KEYS, make_cases, make_data, patches, same, steady, visit, write_volume

from medfl.data.transforms.cache import STALE_SECONDS, DiskCache
from medfl.data.transforms.dataset import TransformDataset
from medfl.data.transforms.packing import pack_item, unpack_item
from medfl.errors import DataError, SettingsError
from medfl.utils.configuration import OpaqueError, configuration_digest


class Counting(MapTransform):
    """Transform that adds a number and counts its calls."""

    calls: list[int] = []  # noqa: RUF012

    def __init__(self, add: float = 1.0) -> None:
        super().__init__("image")
        self.add = add

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(1)
        return data | {"image": data["image"] + self.add}


@pytest.fixture
def cases(tmp_path: Path) -> list[dict[str, Any]]:
    Counting.calls.clear()
    return make_cases(tmp_path, 2)


def data_of(cases: list[dict[str, Any]], folder: Path | None, add: float = 1.0) -> TransformDataset:
    cache: Any = {"cache": "none"} if folder is None else {"cache": "disk", "cache_dir": folder}
    return TransformDataset(cases, Compose([*steady(), Counting(add), *patches()]), **cache)


def calls() -> int:
    count = len(Counting.calls)
    Counting.calls.clear()
    return count


@pytest.mark.parametrize("kind", ["memory", "disk", "none"])
def test_a_hit_gives_the_bits_of_a_miss(kind: str, cases: list[dict[str, Any]], tmp_path: Path):
    folder = tmp_path / "cache" if kind == "disk" else None
    chain = Compose([*steady(), Counting(), *patches()])
    data = TransformDataset(cases, chain, cache=kind, cache_dir=folder)  # type: ignore[arg-type]
    miss = visit(data, [[0, 1]])
    assert calls() == 2
    assert same(visit(data, [[0, 1]]), miss)
    assert calls() == (2 if kind == "none" else 0)
    if folder:
        assert same(visit(data_of(cases, folder), [[0, 1]]), miss), "also those of another process"
        assert calls() == 0
    assert same(visit(data_of(cases, None), [[0, 1]]), miss)


def test_what_a_random_transform_does_in_place_stays_out_of_the_cache(cases: list[dict[str, Any]]):
    spoilt: list[bool] = []

    def spoil(image: torch.Tensor) -> torch.Tensor:
        spoilt.append(True)
        return image.mul_(0) if len(spoilt) == 1 else image

    data = make_data(cases, RandFlipd(KEYS), lambda item: item | {"image": spoil(item["image"])})
    assert not visit(data, [[0]])[0].inputs.any()
    assert visit(data, [[0]])[0].inputs.any()
    assert len(spoilt) == 2


def test_a_changed_file_or_parameter_misses(cases: list[dict[str, Any]], tmp_path: Path):
    folder = tmp_path / "cache"
    data = data_of(cases, folder)
    before, digest = visit(data, [[0, 1]]), data.digest
    assert calls() == 2
    assert not same(visit(data_of(cases, folder, add=2.0), [[0, 1]]), before)
    assert calls() == 2
    moved = tmp_path / "elsewhere.nii.gz"
    Path(cases[0]["image"]).rename(moved)
    renamed = [cases[0] | {"image": str(moved)}, cases[1]]
    assert same(visit(data_of(renamed, folder), [[0, 1]]), before), "a name is no content"
    assert data_of(renamed, folder).digest == digest
    assert calls() == 0
    write_volume(moved, np.ones((12, 10, 8), np.float32))
    changed = visit(data_of(renamed, folder), [[0, 1]])
    assert calls() == 1
    assert same(changed, visit(data_of(renamed, None), [[0, 1]]))
    assert data_of(renamed, folder).digest != digest
    assert data_of(renamed, folder, 3.0).digest != data_of(renamed, folder).digest


def test_a_file_that_changes_under_a_cache_in_memory_misses(cases: list[dict[str, Any]]):
    data = make_data(cases)
    before = visit(data, [[0]])
    write_volume(Path(cases[0]["image"]), np.ones((12, 10, 8), np.float32))
    assert not same(visit(data, [[0]]), before)


def test_a_damaged_file_is_made_again(cases: list[dict[str, Any]], tmp_path: Path):
    folder = tmp_path / "cache"
    expected = visit(data_of(cases, folder), [[0, 1]])
    first, second = sorted(folder.rglob("*.safetensors"))
    calls()
    whole = second.read_bytes()
    flipped = whole[:4000] + bytes([whole[4000] ^ 1]) + whole[4001:]
    for path, content in ((first, first.read_bytes()[:-9]), (second, flipped), (first, b"")):
        path.write_bytes(content)
        assert same(visit(data_of(cases, folder), [[0, 1]]), expected)
        assert calls() == 1
    assert same(visit(data_of(cases, folder), [[0, 1]]), expected)
    assert calls() == 0


def write_half(cases: list[dict[str, Any]], folder: Path, writing: Any) -> None:
    """Fill a cache in a process that stops after writing its first file but before renaming it."""

    def stop(*paths: object) -> None:
        writing.set()
        time.sleep(60)

    os.replace = stop
    visit(make_data(cases, cache="disk", cache_dir=folder), [[0, 1]])


def test_a_process_killed_while_it_writes_leaves_nothing_that_is_read(cases: list[dict[str, Any]], tmp_path: Path):
    folder = tmp_path / "cache"
    fork = multiprocessing.get_context("fork")
    writing = fork.Event()
    process = fork.Process(target=write_half, args=(cases, folder, writing))
    process.start()
    assert writing.wait(60)
    process.kill()
    process.join()
    left = list(folder.rglob(".*.tmp"))
    assert len(left) == 1
    data = make_data(cases, cache="disk", cache_dir=folder)
    assert same(visit(data, [[0, 1]]), visit(make_data(cases), [[0, 1]]))
    assert len(list(folder.rglob("*.safetensors"))) == 2
    os.utime(left[0], (time.time() - 2 * STALE_SECONDS,) * 2)
    DiskCache(folder)
    assert not left[0].exists(), "half a file goes when it is old"


def test_items_are_kept_as_they_are():
    image = MetaTensor(torch.arange(6.0).reshape(1, 2, 3), meta={"affine": torch.eye(4) * 2, "space": "RAS"})
    case = {"path": "/data/doe.nii", "label": 12345}
    item = {
        "image": image,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "array": np.arange(3, dtype=np.int16),
        "number": np.float64(0.5),
        "pair": (1, None),
        "places": [torch.tensor([1]), torch.empty(0, dtype=torch.int32)],
        **case,
    }
    form, tensors = pack_item(item, case, "row 0")
    assert "doe" not in str(form)
    again = unpack_item((form, tensors), case, copy=True)
    assert list(again) == list(item)
    assert torch.equal(again["image"], image)
    assert again["image"].meta.keys() == image.meta.keys()
    assert again["array"].dtype == np.int16
    assert (again["pair"], again["number"], again["path"]) == ((1, None), 0.5, "/data/doe.nii")
    assert again["half"].dtype == torch.bfloat16
    assert tensors["0"].data_ptr() != again["image"].data_ptr()
    with refused(DataError, "unsupported_value", where="row 0", found="object"):
        pack_item({"thing": object()}, {}, "row 0")


def test_a_description_holds_what_decides_and_nothing_else():
    def make(scale: float) -> Any:
        return lambda image: image * scale

    assert configuration_digest(make(2)) == configuration_digest(make(2))
    assert configuration_digest(make(2)) != configuration_digest(make(3))
    assert configuration_digest(lambda x: x > 0) != configuration_digest(lambda x: x > 1)
    drawn, fresh = RandFlipd("image"), RandFlipd("image")
    drawn.set_random_state(seed=4)
    assert configuration_digest(drawn) == configuration_digest(fresh), "a state is no configuration"
    assert configuration_digest({"a": 1, "b": {2, 1}}) == configuration_digest({"b": {1, 2}, "a": 1})
    assert configuration_digest(np.zeros(2)) != configuration_digest(np.zeros(3))
    assert configuration_digest(Lambdad("image", make(2))) != configuration_digest(Lambdad("label", make(2)))
    with pytest.raises(OpaqueError, match="object"):
        configuration_digest(Lambdad("image", object()))


def test_a_cache_on_disk_needs_a_folder(cases: list[dict[str, Any]], tmp_path: Path):
    where = "site 'site-01', split 'training'"
    for options in ({"cache": "disk"}, {"cache": "memory", "cache_dir": tmp_path}, {"cache": "ram"}):
        with refused(SettingsError, "incompatible_settings", where=where, cache=options["cache"]):
            make_data(cases, **options)
    with refused(SettingsError, "setting_out_of_range", where=where, setting="loaders", minimum=0, found=-1):
        make_data(cases, loaders=-1)
