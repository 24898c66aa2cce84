"""Schema of the progress events of a run in ``progress.jsonl``, one on each line, which `medfl monitor` shows.

A round of a method has one or more steps. In a step, the server sends requests to sites, and each site replies. A job
is the work of a site for a request, or for an evaluation.

A line contains the time of the event and the event, whose class its ``kind`` names. Events contain no path and no data
of a patient. Their numbers have bounds, so that every table, page and plot can show them.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from medfl.records.record import Record
from medfl.settings import Privacy

MAX_ROUND = 10**8 - 1
"""Largest number of a round or a step; messages between machines have the same bound."""

MAX_TIME = 1e11
"""Latest time of an event in seconds since 1970, which the calendars of most programming languages can represent."""

MAX_SCORE = 1e100
"""Largest absolute value of a score or a loss; a plot computes with differences of such values."""

MAX_COST = 1e21
"""Largest number of seconds or bytes of one step."""

MAX_BATCHES = 10**12
"""Largest number of batches of one training."""

RoundNumber = Annotated[int, Field(ge=0, le=MAX_ROUND)]
"""Type of the number of a round or a step, in [0, `MAX_ROUND`]."""
BatchNumber = Annotated[int, Field(ge=0, le=MAX_BATCHES)]
"""Type of a number of batches, in [0, `MAX_BATCHES`]."""
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]
"""Type of a time in seconds since 1970, in [0, `MAX_TIME`]."""
Score = Annotated[float, Field(ge=-MAX_SCORE, le=MAX_SCORE)]
"""Type of a score or a loss, of an absolute value up to `MAX_SCORE`."""
Cost = Annotated[float, Field(ge=0, le=MAX_COST)]
"""Type of a number of seconds or bytes, in [0, `MAX_COST`]."""


class RunStart(Record):
    """The start of a run, or of its continuation.

    Attributes:
        method: Name of the method.
        seed: Seed of the run.
        rounds: Number of rounds of the run.
        sites: Names of the sites.
        metric: First metric of the task.
        privacy: Privacy setting of the run, or None.
        unavailable: Maps each site that does not take part so far to the reason.
    """

    kind: Literal["run_start"] = "run_start"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    method: str
    seed: int
    rounds: RoundNumber
    sites: tuple[str, ...]
    metric: str
    privacy: Privacy | None = None
    unavailable: dict[str, str] = {}


class JobStart(Record):
    """The start of a job at some sites.

    Attributes:
        sites: Names of the sites.
        job: Kind of the job, such as ``step``.
        activity: Activity of the sites in words, such as ``training``.
        round: Round of the request or of the evaluated models, or None if the job has none.
        step: Step of the request or of the evaluated models, or None if the job has none.
    """

    kind: Literal["job_start"] = "job_start"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    sites: tuple[str, ...]
    job: str
    activity: str
    round: RoundNumber | None = None
    step: RoundNumber | None = None


class Heartbeat(Record):
    """Sign of life of sites that run a job, which is sent at intervals.

    Attributes:
        sites: Names of the sites.
        job: Kind of the job, or None if the sender does not know it.
        activity: Activity of the sites in words; empty before the first batch.
        batch: Number of the training's batches that are done, or None if it is unknown or private.
        batches: Number of the training's planned batches, >= 1, or None if it is unknown or private.
        has_progressed: Whether a batch was done since the previous heartbeat.
    """

    kind: Literal["heartbeat"] = "heartbeat"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    sites: tuple[str, ...]
    job: str | None = None
    activity: str
    batch: BatchNumber | None = None
    batches: Annotated[BatchNumber, Field(ge=1)] | None = None
    has_progressed: bool


class JobEnd(Record):
    """The end of a job: the sites have replied.

    Attributes:
        sites: Names of the sites.
        job: Kind of the job.
    """

    kind: Literal["job_end"] = "job_end"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    sites: tuple[str, ...]
    job: str


class UnavailableSite(Record):
    """Event that a site sent no usable reply.

    Attributes:
        site: Name of the site.
        reason: Reason why the site sent no usable reply.
    """

    kind: Literal["unavailable_site"] = "unavailable_site"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    site: str
    reason: str


class StepCosts(Record):
    """Costs of a step at one site.

    Attributes:
        work_seconds: Seconds of computation.
        bytes_up: Bytes that the site sent to the server.
        bytes_down: Bytes that the site received from the server.
        bytes_to_peers: Bytes that the site sent to other sites.
    """

    work_seconds: Cost = 0.0
    bytes_up: Cost = 0.0
    bytes_down: Cost = 0.0
    bytes_to_peers: Cost = 0.0


class StepMetrics(Record):
    """Summary of the metrics of a step, rounded to five digits.

    Attributes:
        scored_round: The round whose models were scored, or None if no model was scored.
        scores: Maps "MODEL SPLIT METRIC", such as "global test accuracy", to the mean over the sites where the metric
            is defined.
        server_scores: Maps "TEST_SET MODEL SPLIT METRIC" to the score on a test set of the server.
        site_scores: Maps "MODEL SPLIT" to the score of each site in the task's first metric.
        training_loss: Mean training loss of the sites, or None.
        costs: Maps each site to its costs.
    """

    scored_round: RoundNumber | None = None
    scores: dict[str, Score] = {}
    server_scores: dict[str, Score] = {}
    site_scores: dict[str, dict[str, Score]] = {}
    training_loss: Score | None = None
    costs: dict[str, StepCosts] = {}


class CommittedStep(Record):
    """Event that the server has saved a step.

    Attributes:
        step: Number of the step.
        round: Round that the step belongs to.
        rounds_done: Number of rounds that are over.
        requested: Names of the sites that received a request.
        unavailable: Names of the requested sites that sent no usable reply.
        metrics: Summary of the metrics of the step.
    """

    kind: Literal["committed_step"] = "committed_step"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    step: RoundNumber
    round: RoundNumber
    rounds_done: RoundNumber
    requested: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    metrics: StepMetrics = StepMetrics()


class RunEnd(Record):
    """The end of a run.

    Attributes:
        status: ``finished`` (all rounds are over), ``diverged`` (a value was not finite) or ``incomplete`` (too few
            sites replied).
        reason: Reason of an early end; empty if there was none.
        rounds: Number of rounds that are over.
        unavailable: Names of the sites that were unavailable at the end.
    """

    kind: Literal["run_end"] = "run_end"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    status: Literal["finished", "diverged", "incomplete"]
    reason: str = ""
    rounds: RoundNumber
    unavailable: tuple[str, ...] = ()


class RunStop(Record):
    """The stop of a run by an error or an interruption.

    Attributes:
        error: Name of the exception's class. The text of the exception is left out, as it may contain a path.
    """

    kind: Literal["run_stop"] = "run_stop"
    """Name of the class of the event, by which a reader of the file recognises the class."""
    error: str


class SiteExit(Record):
    """Event that a site left the run because the server ended the site's job. Only the file of that site has it."""

    kind: Literal["site_exit"] = "site_exit"
    """Name of the class of the event, by which a reader of the file recognises the class."""


Event = RunStart | JobStart | Heartbeat | JobEnd | UnavailableSite | CommittedStep | RunEnd | RunStop | SiteExit
"""Any progress event."""


class ProgressLine(Record):
    """Line of ``progress.jsonl``.

    Attributes:
        time: Time at which the event was written, in seconds since 1970, by the clock of the machine that writes the
            file.
        event: The event.
    """

    time: Time
    event: Annotated[Event, Field(discriminator="kind")]

    def to_bytes(self) -> bytes:
        """Return the line as JSON, with a newline at its end."""
        return (json.dumps(self.to_json()) + "\n").encode()

    @classmethod
    def from_bytes(cls, line: bytes) -> Self | None:
        """Parse a line; return None if it is not valid."""
        try:
            return cls.model_validate_json(line, strict=True)
        except ValidationError:
            return None
