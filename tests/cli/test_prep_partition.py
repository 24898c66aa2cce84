"""``medfl prep medmnist`` as a user types it."""

from __future__ import annotations

import numpy as np
import pytest

from medfl.cli.main import main
from medfl.data.datalists import read_datalist


@pytest.fixture
def medfl(capsys):
    """Run the command line; gives its status, and what it printed."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def source(tmp_path):
    rng, arrays = np.random.default_rng(0), {}
    for part, size in (("train", 200), ("val", 8), ("test", 40)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 8, 8, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size) % 8).astype(np.uint8)[:, None]
    folder = tmp_path / "downloads"
    folder.mkdir()
    np.savez(folder / "bloodmnist.npz", **arrays)
    return folder


def test_a_download_becomes_a_pooled_data_set(medfl, source, tmp_path):
    given = ("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    status, out, err = medfl(*given)
    assert status == 0, err
    assert "200 training, 8 validation, 40 test images of 8 classes" in out
    assert err.startswith("bloodmnist: licence CC BY 4.0"), "the licence comes first"
    assert "warning: bloodmnist.npz: 200/8/40 images" in err
    assert {split: len(part) for split, part in read_datalist(tmp_path / "P").splits.items()} == {
        "training": 200,
        "validation": 8,
        "test": 40,
    }
    status, _, err = medfl(*given)
    assert status == 2
    assert "--force" in err
