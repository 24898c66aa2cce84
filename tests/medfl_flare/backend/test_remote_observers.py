"""Observing hooks are called in a distributed run as on one machine: the same events with the same contents."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from remote_cases import mini_place, offered, serve

from medfl.bundle.federation import read_federation
from medfl.engine.evaluation import MetricRow
from medfl.plugins import Registry, load_plugins
from medfl_flare.observers import OBSERVED_FILE_NAME, Observers, call_observers, keep_tracking
from medfl_flare.records.submission import ObserverState

EYES = """
import json
from pathlib import Path
from medfl.hooks import hookimpl

def see(hook, facts):
    with open({seen!r}, "a") as file:
        file.write(json.dumps([hook, facts]) + "\\n")

@hookimpl
def medfl_run_started(run_folder, settings, tracking): see("started", [run_folder, settings, tracking])
@hookimpl
def medfl_round_ended(run_folder, round, rows): see("round", [run_folder, round, rows])
@hookimpl
def medfl_run_ended(run_folder, status): see("ended", [run_folder, status])
"""
OF_A_MACHINE = {"backend", "device", "min_replies", "workers"}
"""Settings that differ in a distributed run."""


def eyes(folder: Path) -> tuple[Registry, Path]:
    """Return a plugin that records the calls of its hooks."""
    seen = folder / "seen.jsonl"
    (folder / "eyes.py").write_text(EYES.format(seen=str(seen)))
    trackers = [name for name in ("medfl_mlflow",) if find_spec(name)]
    return load_plugins(files=[str(folder / "eyes.py")], disabled=trackers), seen


def events(seen: Path) -> list[Any]:
    """Return the recorded calls without the run folder, times and other values that depend on the machine."""
    lines = [json.loads(line) for line in seen.read_text().splitlines()] if seen.is_file() else []
    kept: list[Any] = []
    for hook, (_, *facts) in lines:
        if hook == "started":
            facts[0] = {name: value for name, value in facts[0].items() if name not in OF_A_MACHINE}
        if hook == "round":
            facts[1] = [row for row in facts[1] if "seconds" not in row["metric"]]
        kept.append([hook, *facts])
    return kept


def test_the_server_and_who_submitted_see_what_is_seen_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mini_place(tmp_path / "place")
    registry, seen = eyes(tmp_path)
    monkeypatch.setattr("medfl_flare.offered_bundle.load_plugins", lambda: registry)
    offer, files = offered(place, steps=1), place.files("observed")
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    between = events(seen)
    assert {Path(json.loads(line)[1][0]) for line in seen.read_text().splitlines()} == {folder}
    seen.unlink()
    here = {"dataset_dir": str(place.data), "device": "cpu", "output_dir": str(tmp_path / "local")}
    read_federation(place.bundle, offer.overrides | here | {"plugins": [str(tmp_path / "eyes.py")]}).simulate()
    local = events(seen)
    assert [event[0] for event in local] == ["started", "round", "round", "round", "ended"]
    assert between == local
    seen.unlink()
    out = tmp_path / "out"
    out.mkdir()
    keep_tracking(out, {"tracking_uri": "sqlite:///here"})
    shutil.copy(folder / OBSERVED_FILE_NAME, out)
    call_observers(out, registry)
    local[0][2] = {"tracking_uri": "sqlite:///here"}
    assert events(seen) == local
    call_observers(out, registry)
    assert events(seen) == local, "each call is made once"


def test_what_is_no_call_is_passed_over_and_the_next_one_is_made_once(tmp_path: Path) -> None:
    registry, seen = eyes(tmp_path)
    observers = Observers(load_plugins(), tmp_path)
    observers.round_ended(1, [MetricRow(1, "a", "global", "val", "aggregated", "accuracy", float("nan"))])
    with (tmp_path / OBSERVED_FILE_NAME).open("a") as file:
        file.write('{"hook": "medfl_methods"}\n[]\n{"hook": "medfl_run_ended", "status": 5}\n{"hook": "medfl_run')
    observers.run_ended("finished")
    call_observers(tmp_path, registry)
    assert [event[0] for event in events(seen)] == ["round", "ended"]
    assert ObserverState.read(tmp_path / ObserverState.NAME) == ObserverState(calls=2)
    observers.run_ended("finished")
    call_observers(tmp_path, registry)
    assert [event[0] for event in events(seen)] == ["round", "ended", "ended"]
