"""Prepare a data set from plain options, as the command and a study do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medfl.data.datalists import Datalist
from medfl.data.ingest.prepare import prepare
from medfl.data.ingest.spec import DatasetSpec
from medfl.plugins import load_plugins
from medfl.settings import read_settings
from medfl_studies.preps import Prep, release_of

FRAME = ("force", "workers", "require_complete", "say")


def prepare_spec(kind: type[DatasetSpec], source: Path, out: Path, **options: Any) -> Datalist:
    """Prepare a release; options of the data set and those of `prepare` in one."""
    frame = {key: options.pop(key) for key in FRAME if key in options}
    return prepare(read_settings(kind, {"source": source, **options}, where="the test"), out, **frame)


def study_release(source: Path, **values: Any) -> DatasetSpec:
    """What a study finds in its source folder for an entry ``prep``, looked at."""
    spec = release_of(Prep(**values), source, load_plugins())
    spec.look()
    return spec
