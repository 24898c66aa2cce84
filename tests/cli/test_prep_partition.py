"""``medfl prep`` and ``medfl partition`` as a user types them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from medfl.cli.main import main
from medfl.data.sites import load_global, load_sites


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


def test_from_a_download_to_sites(medfl, source, tmp_path):
    status, out, err = medfl("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    assert status == 0, err
    assert "200 training, 8 validation, 40 test images of 8 classes" in out
    assert err.startswith("bloodmnist: licence CC BY 4.0"), "the licence comes first"
    assert "warning: bloodmnist.npz: 200/8/40 images" in err
    given = ("partition", tmp_path / "P", "--out", tmp_path / "D", "--scheme", "dirichlet_class_balanced", "--sites", 4)
    status, out, err = medfl(*given, "--alpha", 0.5, "--seed", 7, "--val-fraction", 0.1)
    assert status == 0, err
    assert "site-04" in out
    assert "global" in out
    assert "the 8 validation images of the pooled data set are at no site" in err
    sites, pooled = load_sites(tmp_path / "D", 8), load_global(tmp_path / "D", 8)
    assert sum(len(part) for site in sites.values() for part in (site.train, site.val, site.test)) == 200
    assert pooled is not None
    assert len(pooled.test) == 40
    facts = json.loads((tmp_path / "D" / "partition.json").read_text())
    assert (facts["seed"], facts["options"]) == (7, {"alpha": 0.5})


def test_without_a_global_test_set(medfl, source, tmp_path):
    medfl("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    status, _, err = medfl("partition", tmp_path / "P", "--out", tmp_path / "D", "--sites", 2, "--no-global-test")
    assert status == 0, err
    assert "the 40 test images of the pooled data set are at no site" in err
    assert load_global(tmp_path / "D", 8) is None


def test_mistakes_end_with_a_message_and_status_2(medfl, source, tmp_path):
    medfl("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    for extra, message in (
        (("--scheme", "dirichlet_class_balance"), "Did you mean 'dirichlet_class_balanced'?"),
        (("--alpha", 3), "partition 'iid' has no option 'alpha'"),
        (("--sites", 201), "there are 200"),
    ):
        status, _, err = medfl("partition", tmp_path / "P", "--out", tmp_path / "D", *extra)
        assert status == 2, err
        assert message in err
        assert "Traceback" not in err
        assert not (tmp_path / "D").exists()
    status, _, err = medfl("prep", "medmnist", "--source", source, "--flag", "bloodmnist", "--out", tmp_path / "P")
    assert status == 2
    assert "--force" in err
