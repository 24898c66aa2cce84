"""Files of a study: identity of a run and preparation of a pooled data set."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from medfl.errors import StoreError
from medfl.records.record import FileRecord
from medfl_studies.records.study_files import JobIdentity, PoolPreparation

IDENTITY = JobIdentity(
    options={"rounds": 2, "optimizer#lr": 0.1 + 0.2, "metrics": ["auc"], "privacy": {"epsilon": 1}, "patience": None},
    configuration="c",
    data="d",
)
ADOPTED = IDENTITY.model_copy(update={"code": "e", "data_files": "f"})
PREPARATION = PoolPreparation(dataset="bloodmnist", options={"size": 28, "splits": ["train", "test"]})


@pytest.mark.parametrize("record", [IDENTITY, ADOPTED, PREPARATION])
def test_the_file_returns_the_record(record: FileRecord, tmp_path: Path) -> None:
    record.write(tmp_path / record.NAME)
    assert type(record).read(tmp_path / record.NAME) == record


def test_an_identity_is_another_one_if_any_of_its_parts_changes() -> None:
    for changes in ({"options": {}}, {"configuration": "x"}, {"data": "x"}, {"code": "x"}, {"data_files": "x"}):
        assert IDENTITY.model_copy(update=changes) != IDENTITY


@pytest.mark.parametrize("content", [b'{"version": 1}', b'{"version": 1, "dataset": "a", "options": {}, "x": 1}', b"{"])
def test_damaged_files_are_refused(content: bytes) -> None:
    for kind in (JobIdentity, PoolPreparation):
        with refused(StoreError, "damaged_file"):
            kind.from_bytes(content, Path(kind.NAME))
