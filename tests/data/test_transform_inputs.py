"""Test impossible cases: each is refused with its row and advice, without the name of a file or a person."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Lambdad, RandFlipd, RandLambdad, Resized
from refusals import refused
from volumes import KEYS, NAME, make_cases, make_data, visit, write_volume

from medfl.data.transforms.dataset import TransformDataset
from medfl.errors import DataError, SettingsError
from medfl.privacy.samples import refuse_patches
from medfl.training.loop import Batch

LIST = "site 'site-01', split 'training'"
WHERE = f"row 1 of {LIST}"


@pytest.fixture
def cases(tmp_path: Path) -> list[dict[str, Any]]:
    return make_cases(tmp_path, 3)


def failure(
    code: str, fields: dict[str, Any], cases: list[dict[str, Any]], *end: Any, kind: type = DataError, **options: Any
) -> str:
    """Check the error that loading all cases raises, and that it names no file and no person. Return its message."""
    with refused(kind, code, **fields) as caught:
        visit(make_data(cases, *end, **options), [[0], [1], [2]])
    disclosed = f"{caught.value}{caught.value.fields}"
    assert NAME not in disclosed
    assert "nii" not in disclosed
    return str(caught.value)


def remade(cases: list[dict[str, Any]], mask: np.ndarray, **options: Any) -> list[dict[str, Any]]:
    """Return the cases with another mask for the second one."""
    write_volume(Path(cases[1]["label"]), mask, **options)
    return cases


def test_a_case_lacks_its_mask_or_a_file(cases: list[dict[str, Any]]):
    for lacking in ({"image": cases[1]["image"]}, cases[1] | {"label": None}):
        failure("missing_value", {"where": LIST, "row": 1, "key": "label"}, [cases[0], lacking, cases[2]])
    Path(cases[1]["label"]).unlink()
    failure("missing_file", {"where": LIST, "row": 1, "key": "label"}, cases)
    no_dictionary: Any = "a.nii"
    failure("wrong_type", {"where": LIST, "row": 1, "expected": "dict", "found": "str"}, [cases[0], no_dictionary])


def test_a_mask_lies_on_another_grid(cases: list[dict[str, Any]]):
    fields = {"where": WHERE, "key": "label", "expected": [12, 10, 8], "found": [12, 10, 7]}
    failure("wrong_shape", fields, remade(cases, np.ones((12, 10, 7), np.uint8)))
    fields = {"where": WHERE, "key": "label", "distance": pytest.approx(3)}
    failure("misaligned_mask", fields, remade(cases, np.ones((12, 10, 8), np.uint8), origin=3.0))
    assert len(visit(make_data(remade(cases, np.ones((12, 10, 8), np.uint8), origin=0.1)), [[1]])) == 1, "rounding"


def test_a_mask_has_an_unknown_label_or_was_interpolated(cases: list[dict[str, Any]]):
    def check(targets: torch.Tensor, where: str, start: int) -> None:
        if bool((targets > 2).any()):
            message = f"expected labels in 0..2 in row {start} of {where}, got {int(targets.max())}."
            raise DataError("wrong_label", message, found=int(targets.max()))

    cases = remade(cases, np.full((12, 10, 8), 9, np.uint8))
    message = failure("wrong_label", {"found": 9}, cases, check=check)
    assert message == f"expected labels in 0..2 in {WHERE}, got 9."
    halved = Resized(KEYS, (6, 5, 4), mode="trilinear")
    cases = make_cases(Path(cases[0]["image"]).parent)
    message = failure("interpolated_mask", {"where": LIST}, cases, halved, RandFlipd(KEYS))
    assert "nearest" in message


def test_an_empty_mask_is_allowed(cases: list[dict[str, Any]]):
    data = make_data(remade(cases, np.zeros((12, 10, 8), np.uint8)))
    assert not visit(data, [[1]])[0].targets.any()


@pytest.mark.parametrize("nothing", [None, []])
def test_a_transform_returns_nothing(nothing: Any, cases: list[dict[str, Any]]):
    for end in ([lambda item: nothing], [RandFlipd(KEYS), lambda item: nothing]):
        failure("wrong_transform_output", {"where": LIST, "row": 0, "found": "nothing"}, cases, *end)


def test_a_transform_drops_what_is_needed(cases: list[dict[str, Any]]):
    fields = {"where": LIST, "row": 0, "key": "label"}
    failure("missing_transform_output", fields, cases, lambda item: {"image": item["image"]})
    data = TransformDataset(cases, [RandFlipd(KEYS, prob=0)], where="here")
    with refused(DataError, "missing_transform_output", where="here", row=0, key="image"):
        visit(data, [[0]])


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_file_or_a_transform_fails(loaders: int, cases: list[dict[str, Any]]):
    def fail(image: torch.Tensor) -> torch.Tensor:
        if bool((image.mean() > 0) & (len(image.shape) == 4)):
            raise ValueError(f"the image of {NAME}")
        return image

    fields = {"where": LIST, "row": 0, "transform": "RandLambdad", "cause": "ValueError"}
    failure("failed_transform", fields, cases, RandLambdad("image", fail), loaders=loaders)
    Path(cases[1]["image"]).write_bytes(b"no image")
    fields = {"where": LIST, "row": 1, "transform": "LoadImaged"}
    message = failure("failed_transform", fields, cases, loaders=loaders)
    assert "leave it out of the list" in message


def test_a_loader_ends(cases: list[dict[str, Any]]):
    parent = os.getpid()

    def crash(image: torch.Tensor) -> torch.Tensor:
        if os.getpid() != parent and int(image.shape[1]) == 11:
            os.kill(os.getpid(), signal.SIGKILL)
        return image

    write_volume(Path(cases[1]["image"]), np.ones((11, 10, 8), np.float32))
    write_volume(Path(cases[1]["label"]), np.ones((11, 10, 8), np.uint8))
    failure("crashed_loader", {"where": LIST, "rows": [1]}, cases, RandLambdad("image", crash), loaders=2)


def test_transforms_that_a_spawned_loader_can_not_get(cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    fields = {"where": LIST, "number": 3, "transform": "Lambdad"}
    end = Lambdad("image", lambda image: image)
    message = failure("unpicklable_transform", fields, cases, end, kind=SettingsError, loaders=1)
    assert "named function" in message


@pytest.mark.slow
def test_loaders_that_are_no_forks_give_the_same_bits(cases: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch):
    expected = visit(make_data(cases), [[0, 1], [2]])
    monkeypatch.setattr("medfl.data.transforms.loaders.torch.cuda.is_initialized", lambda: True)
    batches = visit(make_data(cases, loaders=1), [[0, 1], [2]])
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(batches, expected, strict=True))


def test_rows_are_those_of_the_list(cases: list[dict[str, Any]]):
    with pytest.raises(IndexError, match="row 3 is outside this split of 3 cases"):
        make_data(cases).batch(torch.tensor([3]))


def test_a_batch_that_merges_samples_is_refused(cases: list[dict[str, Any]]):
    fields = {"where": LIST, "expected": 2, "found": 1}
    failure("merged_samples", fields, cases, collate=lambda items: {key: torch.zeros(1, 1, 6, 6, 6) for key in KEYS})


def test_privacy_of_single_images_takes_no_patches():
    refuse_patches(Batch(torch.zeros(2, 1), torch.zeros(2), torch.tensor([1, 0])))
    with refused(SettingsError, "patches_not_supported"):
        refuse_patches(Batch(torch.zeros(2, 1), torch.zeros(2), torch.tensor([1, 1])))
