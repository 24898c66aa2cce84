"""Fixtures: a study file to tune, and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from study_toys import changed
from tune_toys import SMALL

from medfl.plugins import Registry, load_plugins
from medfl.testing.synthetic import make_cohort
from medfl_studies.tune.search import Search, load_searches


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a partitioned cohort with a test set at every site and one at the server."""
    folder = tmp_path_factory.mktemp("source")
    make_cohort(folder / "cohort", sites=2, images_per_site=40, classes=2, size=8)
    return folder


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_plugins()


@pytest.fixture
def load_all(source: Path, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """Return a function that checks the small study with changes by dotted key; None removes a key."""
    monkeypatch.setattr("medfl_studies.study.load_plugins", lambda files, disabled: registry)

    def loaded(changes: dict[str, Any] | None = None, out: str = "out", **options: Any) -> list[Search]:
        file = tmp_path / "study.yaml"
        file.write_text(yaml.safe_dump(changed(SMALL, changes or {}), sort_keys=False))
        return load_searches(file, options.pop("source", source), tmp_path / out, **options)

    return loaded


@pytest.fixture
def load(load_all):
    """Return a function like `load_all` for a study that is not nested."""

    def loaded(changes: dict[str, Any] | None = None, out: str = "out", **options: Any) -> Search:
        [search] = load_all(changes, out, **options)
        return search

    return loaded


@pytest.fixture(autouse=True)
def _no_source_but_the_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDFL_DATA", raising=False)
