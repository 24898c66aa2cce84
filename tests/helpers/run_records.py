"""Records of runs that never were, and changes to the files of a run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfl.records.record import CHECKSUM, FileRecord, checksum_of
from medfl.records.run_file import Provenance, RunFile, RunIdentity, TaskIdentity, Versions
from medfl.records.summary import Attendance, MetricScores, Summary
from medfl.settings import Execution, Settings

VERSIONS = Versions(medfl="0.1.0", torch="2.13.0", python="3.12.0", machine="x86_64", cpu="AVX2")


def task_of(metrics: Sequence[str] = ("accuracy",), classes: int = 2, **changes: Any) -> TaskIdentity:
    """The identity of a task of classes."""
    values: dict[str, Any] = {
        "networks": {"cnn": "0123456789abcdef"},
        "loss": {"is": "CrossEntropyLoss()", "tensors": "e3b0c44298fc1c14"},
        "optimizer": "SGD" + json.dumps({"lr": 0.05, "momentum": 0.9}),
        "metrics": tuple(metrics),
        "num_classes": classes,
    }
    return TaskIdentity(**(values | changes))


def run_file(
    method: str = "fedavg",
    sites: Sequence[str] = ("site-1", "site-2"),
    settings: Mapping[str, Any] | None = None,
    method_args: Mapping[str, Any] | None = None,
    task: TaskIdentity | None = None,
    data: str = "data",
    provenance: Provenance | None = None,
) -> RunFile:
    """The ``run.json`` of a run; `settings` are settings of the run, with ``rounds``."""
    values = Settings.model_validate({"rounds": 3} | dict(settings or {}))
    plain = values.model_dump(mode="json", exclude={"rounds", "keep_rounds"})
    identity = RunIdentity(
        method=method,
        method_args=dict(method_args or {}),
        settings={{"networks_by_site": "networks"}.get(name, name): value for name, value in plain.items()},
        sites=tuple(sorted(sites)),
        data=data,
        task=task or task_of(),
    )
    return RunFile(
        identity=identity,
        rounds=values.rounds,
        execution=Execution(workers=2, device="cpu"),
        versions=VERSIONS,
        provenance=provenance or Provenance(),
    )


def summary_of(
    run: RunFile,
    scores: Mapping[str, Mapping[str, Mapping[str, MetricScores]]] | None = None,
    status: str = "finished",
    **changes: Any,
) -> Summary:
    """The ``summary.json`` of a run that did all of its rounds."""
    values: dict[str, Any] = {
        "method": run.identity.method,
        "status": status,
        "rounds": run.rounds,
        "evaluated_round": run.rounds,
        "models_round": run.rounds,
        "scores": scores or {},
        "attendance": Attendance(sites=len(run.identity.sites)),
    }
    return Summary(**(values | changes))


def metric_scores(sites: Mapping[str, float | None], **at_server: float) -> MetricScores:
    """Return the scores of a metric whose larger values are better."""
    known = [value for value in sites.values() if value is not None]
    mean, worst = (sum(known) / len(known), min(known)) if known else (None, None)
    return MetricScores(mean=mean, worst=worst, sites=dict(sites), **at_server)


def rewrite(kind: type[FileRecord], folder: Path, **changes: Any) -> None:
    """Change fields of a record's file; values are JSON or records, and the file stays a valid one."""
    path = folder / kind.NAME
    record = kind.read(path)
    plain = {name: value.to_json() if hasattr(value, "to_json") else value for name, value in changes.items()}
    kind.model_validate(record.to_json() | plain).write(path)


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the JSON of a file in place, without validation; a checksum is updated."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    if content.pop(CHECKSUM, None) is not None:
        content |= {CHECKSUM: checksum_of(content)}
    path.write_text(json.dumps(content), encoding="utf-8")
