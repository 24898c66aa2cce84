"""A release as a study looks for it; for tests of studies alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medfl.data.ingest.spec import DatasetSpec
from medfl.plugins import load_plugins
from medfl_studies.preparation import PreparationSpec, locate_release


def study_release(source: Path, **values: Any) -> DatasetSpec:
    """Return the release in a study's source folder for an entry ``prep``, after a look at its files."""
    spec = locate_release(PreparationSpec(**values), source, load_plugins())
    spec.check_release()
    return spec
