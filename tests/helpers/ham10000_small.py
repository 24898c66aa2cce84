"""HAM10000, prepared small in this process, and what its data list says was left out."""

from __future__ import annotations

from pathlib import Path

from prepare_specs import prepare_spec

from medfl.data.datalists import Datalist
from medfl_datasets.ham10000.spec import HAM10000


def prepare(source: Path, out: Path, size: int = 4, **options: object) -> Datalist:
    """Prepare it in this process, small."""
    return prepare_spec(HAM10000, source, out, size=(size, size), **{"workers": 1} | options)


def exclusions(datalist: Datalist) -> dict[str, int]:
    return {entry.reason: entry.count for entry in datalist.exclusions}
