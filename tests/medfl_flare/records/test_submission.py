"""Files of the researcher's run folder: the submission with its offer, the state of observers, and their calls."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from kits_and_offers import offer
from refusals import refused

from medfl.errors import StoreError
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.records.submission import (
    HookCall,
    ObserverState,
    RoundEnded,
    RunEnded,
    RunStarted,
    SubmissionFile,
    SubmissionRow,
    hook_arguments,
    read_hook_call,
)

ROW = SubmissionRow(round=1, site="a", model="global", split="val", moment="aggregated", metric="auc", value=0.1 + 0.2)
CALLS = [
    RunStarted(settings={"rounds": 2, "privacy": None, "optimizer#lr": 0.1}),
    RoundEnded(round=1, rows=(ROW,)),
    RunEnded(status="finished"),
]


def test_a_submission_is_read_as_it_was_written(tmp_path: Path) -> None:
    gpus = GpuRequest(count=2, memory_gib=8)
    record = SubmissionFile(offer=offer(overrides={"rounds": 2}), kit="/kit", jobs=("job-1", "job-2"), gpus=gpus)
    record.write(tmp_path / SubmissionFile.NAME)
    assert SubmissionFile.read(tmp_path / SubmissionFile.NAME) == record


@pytest.mark.parametrize(
    ("key", "value"), [("run", "../up"), ("sites", ["b", "a"]), ("bundle_hash", "0"), ("reply_timeout", 0.5)]
)
def test_an_offer_that_no_run_has_is_damage(key: str, value: Any) -> None:
    values = json.loads(SubmissionFile(offer=offer(), kit="/kit", jobs=()).to_bytes())
    values["offer"][key] = value
    with refused(StoreError, "damaged_file", key=f"offer.{key}"):
        SubmissionFile.from_bytes(json.dumps(values).encode(), Path(SubmissionFile.NAME))


def test_the_state_of_observers_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = ObserverState(tracking={"tracking_uri": "sqlite:///here"}, calls=3)
    state.write(tmp_path / ObserverState.NAME)
    assert ObserverState.read(tmp_path / ObserverState.NAME) == state


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_read_as_it_was_written(call: HookCall) -> None:
    assert read_hook_call(json.dumps(call.to_json()).encode()) == call
    assert "hook" not in hook_arguments(call)


def test_a_value_that_is_not_defined_stays_so() -> None:
    call = RoundEnded(round=1, rows=(ROW.model_copy(update={"value": math.nan}),))
    again = read_hook_call(json.dumps(call.to_json()).encode())
    assert isinstance(again, RoundEnded)
    assert math.isnan(again.rows[0].value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"hook": "medfl_methods"}',
        b'{"hook": "medfl_run_ended", "status": 5}',
        b'{"hook": "medfl_run_ended", "status": "finished", "more": 1}',
        b'{"hook": "medfl_round_ended", "round": 1, "rows": [{"round": 1}]}',
    ],
)
def test_what_is_no_call_is_none(line: bytes) -> None:
    assert read_hook_call(line) is None
