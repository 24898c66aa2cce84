"""Files in the run folder of the researcher who submitted a run: the submission, and the state of the observers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from medfl.records.record import FileRecord, Record
from medfl_flare.records.offer import Offer


class SubmissionFile(FileRecord):
    """A submitted run.

    Attributes:
        offer: The offer of the run.
        kit: Folder of the researcher's startup kit.
        jobs: Ids of the jobs so far, the newest last.
    """

    NAME: ClassVar[str] = "submission.json"
    REPAIR: ClassVar[str] = "Submit the run again."

    offer: Offer
    kit: str
    jobs: tuple[str, ...]


class ObserverState(FileRecord):
    """State of the observers on the machine that submitted a run.

    Attributes:
        tracking: Value of MONAI's ``--tracking`` for the observers on that machine.
        calls: Number of calls in ``observed.jsonl`` that were made on that machine.
    """

    NAME: ClassVar[str] = "observers.json"
    REPAIR: ClassVar[str] = "Remove it: all calls of the run are then made again, without tracking."

    tracking: dict[str, JsonValue] = {}
    calls: Annotated[int, Field(ge=0)] = 0


class SubmissionRow(Record):
    """A row of ``metrics.csv``."""

    round: int
    site: str
    model: str
    split: str
    moment: str
    metric: str
    value: float


class RunStarted(Record):
    """A call of the hook for the start or the continuation of a run.

    Attributes:
        settings: Maps each setting to its value.
    """

    hook: Literal["medfl_run_started"] = "medfl_run_started"
    settings: dict[str, JsonValue]


class RoundEnded(Record):
    """A call of the hook for the end of a round.

    Attributes:
        round: Number of the round, from 1.
        rows: Rows of metrics.
    """

    hook: Literal["medfl_round_ended"] = "medfl_round_ended"
    round: int
    rows: tuple[SubmissionRow, ...]


class RunEnded(Record):
    """A call of the hook for the end of a run.

    Attributes:
        status: Status of the run.
    """

    hook: Literal["medfl_run_ended"] = "medfl_run_ended"
    status: str


HookCall = RunStarted | RoundEnded | RunEnded
"""A call of any observing hook; one line of ``observed.jsonl``."""

_HOOK_CALL: TypeAdapter[HookCall] = TypeAdapter(Annotated[HookCall, Field(discriminator="hook")])


def hook_arguments(call: HookCall) -> dict[str, Any]:
    """Return a mapping from each argument of a call to its value."""
    return {name: value for name, value in call.to_json().items() if name != "hook"}


def read_hook_call(line: bytes) -> HookCall | None:
    """Return the call in a line that another participant wrote, or None if the line is not valid."""
    try:
        return _HOOK_CALL.validate_json(line, strict=True)
    except ValidationError:
        return None
