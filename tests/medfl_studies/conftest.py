"""Fixtures: study files and their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from study_toys import SMALL, changed

from medfl.testing.synthetic import make_cohort
from medfl_studies.study import CheckedStudy, load_study


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a source folder with a partitioned cohort, a pooled cohort and a MedMNIST file."""
    folder = tmp_path_factory.mktemp("source")
    make_cohort(folder / "cohort", sites=2, images_per_site=20, classes=3, size=8)
    rng, arrays = np.random.default_rng(0), {}
    for part, size in (("train", 60), ("val", 8), ("test", 16)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(size) % 2).astype(np.uint8)[:, None]
    (folder / "medmnist").mkdir()
    np.savez(folder / "medmnist" / "breastmnist.npz", **arrays)
    return folder


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes the small study file with changes by dotted key; None removes a key."""

    def file(**changes: Any) -> Path:
        target = tmp_path / "study.yaml"
        target.write_text(yaml.safe_dump(changed(SMALL, changes), sort_keys=False))
        return target

    return file


@pytest.fixture
def load(write, source: Path, tmp_path: Path):
    """Return a function that checks the small study with changes."""

    def prepared(changes: dict[str, Any] | None = None, **options: Any) -> CheckedStudy:
        return load_study(write(**(changes or {})), **({"source": source, "out": tmp_path / "out"} | options))

    return prepared


@pytest.fixture(autouse=True)
def _no_source_but_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDFL_DATA", raising=False)
