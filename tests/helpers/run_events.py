"""Events of runs that never were, as `medfl.records.progress` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from medfl.engine.runs.progress import PROGRESS
from medfl.records.progress import (
    CommittedStep,
    Event,
    Heartbeat,
    JobEnd,
    JobStart,
    ProgressLine,
    RunEnd,
    RunStart,
    RunStop,
    StepCosts,
    StepMetrics,
    UnavailableSite,
)

SITES = ("site-1", "site-2", "site-3")

Kind = TypeVar("Kind", bound=Event)


def line(at: float, event: Event) -> ProgressLine:
    return ProgressLine(time=at, event=event)


def start(at: float, sites: Sequence[str] = SITES, rounds: int = 3, **more: Any) -> ProgressLine:
    return line(at, RunStart(method="fedavg", seed=0, rounds=rounds, sites=tuple(sites), metric="auc", **more))


def work(at: float, *sites: str, job: str = "step", activity: str = "training", **position: int) -> ProgressLine:
    return line(at, JobStart(sites=sites, job=job, activity=activity, **position))


def beat(
    at: float,
    site: str,
    batch: int | None = 5,
    batches: int | None = 10,
    activity: str = "training",
    job: str | None = None,
) -> ProgressLine:
    signal = Heartbeat(sites=(site,), job=job, activity=activity, batch=batch, batches=batches, has_progressed=True)
    return line(at, signal)


def done(at: float, *sites: str, job: str = "step") -> ProgressLine:
    return line(at, JobEnd(sites=sites, job=job))


def missing(at: float, site: str, why: str) -> ProgressLine:
    return line(at, UnavailableSite(site=site, reason=why))


def commit(
    at: float, round_: int, missing: Sequence[str] = (), requested: Sequence[str] = SITES, ends: bool = True
) -> ProgressLine:
    """A step; the scores of the round before come with it, 0.1 for each round and a little more at each site."""
    there = [site for site in requested if site not in missing]
    costs = StepCosts(work_seconds=2.0, bytes_up=1000.0, bytes_down=500.0)
    scores: dict[str, Any] = {}
    if round_ > 1:
        by_site = {site: 0.1 * (round_ - 1) + 0.01 * number for number, site in enumerate(there)}
        scores = {"scored_round": round_ - 1, "site_scores": {"global test": by_site}}
        scores["scores"] = {"global test auc": sum(by_site.values()) / len(by_site)}
    return line(
        at,
        CommittedStep(
            step=round_,
            round=round_,
            rounds_done=round_ - (not ends),
            requested=tuple(requested),
            unavailable=tuple(missing),
            metrics=StepMetrics(training_loss=1.0 / round_, costs=dict.fromkeys(there, costs), **scores),
        ),
    )


def end(
    at: float, rounds: int = 3, status: Any = "finished", unavailable: Sequence[str] = (), reason: str = ""
) -> ProgressLine:
    return line(at, RunEnd(status=status, reason=reason, rounds=rounds, unavailable=tuple(unavailable)))


def stop(at: float, error: str) -> ProgressLine:
    return line(at, RunStop(error=error))


def write(folder: Path, lines: Sequence[ProgressLine]) -> Path:
    """A run's folder with these events; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRESS).write_bytes(b"".join(line.to_bytes() for line in lines))
    return folder


def add(folder: Path, *lines: ProgressLine) -> None:
    """Append events to a folder's event file."""
    with (folder / PROGRESS).open("ab") as file:
        file.writelines(line.to_bytes() for line in lines)


def read_events(folder: Path) -> list[Event]:
    """Return all events of a folder; each must be valid."""
    lines = [ProgressLine.from_bytes(line) for line in (folder / PROGRESS).read_bytes().splitlines()]
    assert None not in lines
    return [line.event for line in lines if line is not None]


def events_of(folder: Path, kind: type[Kind]) -> list[Kind]:
    """The events of one kind."""
    return [event for event in read_events(folder) if isinstance(event, kind)]
