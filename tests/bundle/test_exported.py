"""Models of exported bundles: the same tensors as saved, and refusals of files that are damaged or need code."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused

from medfl.bundle.exported import load_exported
from medfl.errors import StoreError


class Wrapper(torch.nn.Module):
    """Network whose names all start with the prefix of torch's wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(3, 2)


def write_bundle(folder: Path, content: Any, target: str = "torch.nn.Linear", **options: int) -> Path:
    """Write a bundle with a network and a saved file."""
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "train.json").write_text(json.dumps({"network_def": {"_target_": target} | options}))
    torch.save(content, folder / "models" / "model.pt")
    return folder


def test_a_model_has_the_saved_tensors_and_names(tmp_path: Path) -> None:
    linear, wrapped = torch.nn.Linear(3, 2), Wrapper()
    plain = load_exported(write_bundle(tmp_path / "plain", linear.state_dict(), in_features=3, out_features=2))
    assert torch.equal(plain.weight, linear.weight)
    other = load_exported(write_bundle(tmp_path / "wrapped", wrapped.state_dict(), f"{__name__}.Wrapper"))
    assert torch.equal(other.module.weight, wrapped.module.weight)


@pytest.mark.parametrize(
    "content",
    [partial(print, "code"), {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, [1], {}],
    ids=["code", "other shape", "list", "empty"],
)
def test_a_file_that_is_no_state_dict_of_the_network_is_refused(tmp_path: Path, content: Any) -> None:
    bundle = write_bundle(tmp_path / "bundle", content, in_features=3, out_features=2)
    with refused(StoreError, "unreadable_bundle", path=str(bundle)):
        load_exported(bundle)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", torch.nn.Linear(3, 2).state_dict(), in_features=3, out_features=2)
    path = bundle / "models" / "model.pt"
    path.write_bytes(path.read_bytes()[:-40])
    with refused(StoreError, "unreadable_bundle", path=str(bundle)):
        load_exported(bundle)
