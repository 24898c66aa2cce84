"""What every data set promises, of all that have a made-up release: a new one is covered by being listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from medfl.plugins import load_plugins
from medfl.testing.datasets import check_dataset

NAMES = sorted(record.name for record in load_plugins().datasets.values() if record.phantom)


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_keeps_what_all_promise(name: str, tmp_path: Path) -> None:
    check_dataset(name, tmp_path)
