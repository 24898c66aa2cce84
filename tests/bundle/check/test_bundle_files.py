"""Files with code or weights: ``medfl check-bundle`` names them without loading them; and the search for bundles."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from damage import put
from refusals import refused

from medfl.bundle.bundle_folders import find_bundle, shipped_bundles
from medfl.bundle.check import check_bundle
from medfl.errors import SettingsError

SHIPPED = Path(__file__).parents[3] / "bundles" / "medmnist_classification"

# ---- files


def test_a_bundle_without_readme_and_licence_is_warned_of(bundle):
    (bundle / "docs" / "README.md").unlink()
    (bundle / "LICENSE").unlink()
    assert [warning.partition(":")[0] for warning in check_bundle(bundle).warnings] == [
        "docs/README.md is missing",
        "LICENSE is missing",
    ]
    put(bundle, "docs/license.txt", "")
    assert len(check_bundle(bundle).warnings) == 1


class Bomb:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_weights_are_looked_into_without_loading_them(bundle, tmp_path):
    marker = tmp_path / "ran"
    models = bundle / "models"
    models.mkdir()
    torch.save({"w": torch.ones(2)}, models / "model.pt")
    torch.save({"w": Bomb(marker)}, models / "bomb.pt")
    torch.save({"w": torch.ones(2)}, models / "old.pth", _use_new_zipfile_serialization=False)
    (models / "broken.ckpt").write_bytes((models / "model.pt").read_bytes().replace(b"data.pkl", b"what.pkl"))
    (models / "list.pkl").write_bytes(pickle.dumps([1]))
    (models / "model.ts").write_bytes(b"")
    report = check_bundle(bundle)
    assert not marker.exists()
    notes = {note.path: note.text for note in report.files}
    assert notes["models/model.pt"] == "weights, loads with weights_only=True"
    assert notes["models/bomb.pt"].endswith("io.open: loading them can run code")
    assert "old format" in notes["models/old.pth"]
    assert notes["models/list.pkl"] == "a pickle: loading it runs any code in it"
    assert notes["models/model.ts"].startswith("TorchScript")
    assert len(report.errors) == 1
    assert report.errors[0].startswith("models/broken.ckpt: not a checkpoint that torch can read")
    assert {warning.partition(":")[0] for warning in report.warnings} == {
        "models/bomb.pt",
        "models/old.pth",
        "models/list.pkl",
    }


def test_a_link_out_of_the_bundle_is_an_error(bundle, tmp_path):
    put(tmp_path, "elsewhere.txt", "")
    (bundle / "docs" / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert check_bundle(bundle).errors == ["docs/link.txt: a link that leads out of the bundle, or nowhere"]


def test_a_folder_that_is_no_bundle(tmp_path):
    with refused(SettingsError, "not_a_bundle", path=str(tmp_path)):
        check_bundle(tmp_path)


# ---- where bundles are


def test_shipped_bundles_are_found_by_name_and_folders_win(tmp_path, monkeypatch):
    assert shipped_bundles()["medmnist_classification"] == SHIPPED
    assert find_bundle("medmnist_classification") == SHIPPED
    monkeypatch.chdir(tmp_path)
    (tmp_path / "medmnist_classification").mkdir()
    assert find_bundle("medmnist_classification") == Path("medmnist_classification")
    with refused(SettingsError, "unknown_bundle", name="medmnist_clasification") as caught:
        find_bundle("medmnist_clasification")
    assert "Did you mean 'medmnist_classification'" in str(caught.value)
