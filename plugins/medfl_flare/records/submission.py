"""Files in the run folder of the researcher who submitted a run: the submission, and the state of the observers.

An observer is a plugin whose hooks medfl calls when a run begins, after each round, and when the run ends. The server
records its calls as lines of ``observed.jsonl``. The researcher's machine repeats them when the results arrive.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from medfl.records.record import FileRecord, Record
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.records.offer import Offer


class SubmissionFile(FileRecord):
    """A submitted run.

    Attributes:
        offer: The offer of the run.
        kit: Folder of the researcher's startup kit.
        jobs: Ids of the jobs so far, the newest last.
        gpus: GPUs that each site must grant to the run's jobs; None requests none.
    """

    NAME: ClassVar[str] = "submission.json"
    """Name of the file in the run folder."""

    REPAIR: ClassVar[str] = "Submit the run again."
    """Advice in the error for a damaged file."""

    offer: Offer
    kit: str
    jobs: tuple[str, ...]
    gpus: GpuRequest | None = None


class ObserverState(FileRecord):
    """State of the observers on the machine that submitted a run.

    Attributes:
        tracking: Value of MONAI's ``--tracking`` for the observers on that machine.
        calls: Number of calls in ``observed.jsonl`` that were repeated on that machine.
    """

    NAME: ClassVar[str] = "observers.json"
    """Name of the file in the run folder."""

    REPAIR: ClassVar[str] = "Remove it: all calls of the run are then made again, without tracking."
    """Advice in the error for a damaged file."""

    tracking: dict[str, JsonValue] = {}
    calls: Annotated[int, Field(ge=0)] = 0


class SubmissionRow(Record):
    """A row of ``metrics.csv`` within a recorded call: one score of a model, or one cost of a site.

    Attributes:
        round: Number of the round, from 1.
        site: Site whose data were scored, or whose cost it is; ``global`` for the server's test set.
        model: Kind of model: ``global``, ``personal`` or ``personal@SITE``.
        split: ``train``, ``val``, ``test`` or ``shared``.
        moment: Time of the score: ``aggregated`` (after the round), ``trained`` (after the site's local training), or
            ``epoch N`` of a model that the server trains.
        metric: Name of the metric or cost.
        value: Value of the metric or cost; nan if it is undefined.
    """

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
    """Name of the hook, which identifies the type of a recorded call."""

    settings: dict[str, JsonValue]


class RoundEnded(Record):
    """A call of the hook for the end of a round.

    Attributes:
        round: Number of the round, from 1.
        rows: New rows of ``metrics.csv``.
    """

    hook: Literal["medfl_round_ended"] = "medfl_round_ended"
    """Name of the hook, which identifies the type of a recorded call."""

    round: int
    rows: tuple[SubmissionRow, ...]


class RunEnded(Record):
    """A call of the hook for the end of a run.

    Attributes:
        status: Status with which the run ended, such as ``finished``.
    """

    hook: Literal["medfl_run_ended"] = "medfl_run_ended"
    """Name of the hook, which identifies the type of a recorded call."""

    status: str


HookCall = RunStarted | RoundEnded | RunEnded
"""A call of any observing hook; one line of ``observed.jsonl``."""

_HOOK_CALL: TypeAdapter[HookCall] = TypeAdapter(Annotated[HookCall, Field(discriminator="hook")])


def hook_arguments(call: HookCall) -> dict[str, Any]:
    """Return the arguments with which a recorded call calls its hook, by name."""
    return {name: value for name, value in call.to_json().items() if name != "hook"}


def read_hook_call(line: bytes) -> HookCall | None:
    """Return the call in a line that another participant wrote, or None if the line is not valid."""
    try:
        return _HOOK_CALL.validate_json(line, strict=True)
    except ValidationError:
        return None
