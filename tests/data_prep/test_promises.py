"""Guarantees that hold for every data set with a synthetic release; a new data set is tested once it is listed."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from pathlib import Path

import pytest

from medfl.plugins import load_plugins
from medfl.testing.datasets import check_dataset


@pytest.fixture(scope="module", autouse=True)
def workers_have_monai() -> None:
    """Import MONAI in the process that workers are forked from, so that it is imported for all data sets alike."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_forkserver_preload(["medfl.data.transforms.frame"])
        forkserver.ensure_running()


NAMES = sorted(record.name for record in load_plugins().datasets.values() if record.synthetic)


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_keeps_what_all_promise(name: str, tmp_path: Path) -> None:
    check_dataset(name, tmp_path)
