"""Prepare a data set from plain options, as the command does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medfl.data.datalists import Datalist
from medfl.data.ingest.prepare import prepare
from medfl.data.ingest.spec import DatasetSpec
from medfl.settings import read_settings

FRAME = ("force", "workers", "require_complete", "say")


def prepare_spec(kind: type[DatasetSpec], source: Path, out: Path, **options: Any) -> Datalist:
    """Prepare a release; takes options of the data set and of `prepare`."""
    frame = {key: options.pop(key) for key in FRAME if key in options}
    return prepare(read_settings(kind, {"source": source, **options}, where="the test"), out, **frame)
