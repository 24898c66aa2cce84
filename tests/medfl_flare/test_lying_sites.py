"""A site with false scores is unavailable; it neither ends the run nor sends scores of other rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loopback import Loopback, Place
from refusals import refused
from remote_cases import Change, mini_place, offered, on, opened_once

from medfl.engine.runs.records import read_run
from medfl.errors import RefusedError
from medfl_flare import server as server_run
from medfl_flare.backend.messages import Message
from medfl_flare.backend.protocol_messages import read_begin_reply, rows_from_json
from medfl_flare.backend.run_progress import RunStatus
from medfl_report.commands.status import run_status_lines
from medfl_report.monitor.monitor_page import render_runs
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.page import write_report

pytestmark = pytest.mark.usefixtures("undrawn")

LIAR = "site-03"
LOSS = [1, LIAR, "personal", "train", "trained", "loss", 1e308]
SCORE = [1, LIAR, "global", "val", "aggregated", "accuracy", 1e308]


def row(kind: list[Any], **changes: Any) -> list[Any]:
    return [changes.get(name, value) for name, value in zip(("round", "", "", "", "", "", "value"), kind, strict=True)]


def answer(*rows: list[Any]) -> Change:
    """Return rows beside the reply to a request."""
    return lambda message: message.meta["answer"].update(rows=list(rows)) if message.meta["answer"] else None


def evaluation(*rows: list[Any]) -> Change:
    return lambda message: message.meta.update(evaluation=list(rows))


LIES: dict[str, Change] = {
    "losses whose sum has no end": answer(LOSS, row(LOSS, value=1.1e308)),
    "scores whose sum has no end": evaluation(SCORE, SCORE),
    "a cost that no number holds": answer([*LOSS[:5], "work_seconds", 1e308]),
    "a score twice": evaluation(row(SCORE, value=0.5), row(SCORE, value=1.0)),
    "a loss of a round to come": answer(row(LOSS, round=2**31 - 1, value=1.0)),
    "a score of a round to come": evaluation(row(SCORE, round=2**31 - 1, value=1.0)),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    with opened_once():
        yield mini_place(tmp_path_factory.mktemp("liars"))


@pytest.mark.parametrize("lie", LIES)
def test_a_site_that_lies_about_its_scores_is_missing_and_the_run_continues(place: Place, lie: str) -> None:
    files = place.files(lie.replace(" ", "-"))
    loopback = Loopback(files, tamper_answer=on(LIAR, "step", LIES[lie]))
    progress = RunStatus()
    folder = server_run.serve(offered(place, min_replies=2, rounds=2), files["server"], loopback, progress)
    for service in loopback.services.values():
        service.close()
    assert progress.state == "finished"
    assert LIAR in read_run(folder).summary.unavailable_reasons
    json.dumps(read_run(folder).summary.to_json(), allow_nan=False)
    assert run_status_lines(folder)["rounds"] == "2 of 2"
    assert "finished" in render_runs(MonitoredFolder(folder).views())
    assert "could not be made" not in write_report([folder]).read_text()
    assert not any(f",{LIAR}," in line and line.split(",")[0] not in "12" for line in lines(folder))


def lines(folder: Path) -> list[str]:
    return (folder / "metrics.csv").read_text().splitlines()[1:]


def test_rows_are_of_the_round_that_was_asked_for_and_there_once() -> None:
    honest = [row(LOSS, value=0.5), [*SCORE[:-1], "nan"]]
    assert [entry.round for entry in rows_from_json(honest, LIAR, 1)] == [1, 1]
    other_round = [row(LOSS, value=0.5, round=2)]
    for rows, code in ((other_round, "wrong_round"), ([honest[0]] * 2, "duplicate_row"), ([LOSS], "invalid_row")):
        with refused(RefusedError, code, site=LIAR):
            rows_from_json(rows, LIAR, 1)


@pytest.mark.parametrize("shared", [10**63, int("1" * 64), "A" * 64, ["a" * 64], "a" * 64 + "\n"])
def test_the_fingerprint_of_a_test_set_is_text(shared: object) -> None:
    data = {"classes": ["a", "b"], "names": [], "name": "x", "modality": "y", "shared_test": shared}
    meta = {"facts": {"trainable": True, "validates": True}, "newest": 0, "data": data}
    with refused(RefusedError, "invalid_fingerprint", site=LIAR):
        read_begin_reply(LIAR, Message("begin", {}, meta), 2, 2)
    data["shared_test"] = "a" * 64
    assert read_begin_reply(LIAR, Message("begin", {}, meta), 2, 2)["data"] == data
