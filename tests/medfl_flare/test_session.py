"""Submitting, following, fetching, resuming and stopping, with a stand-in for NVFlare's session."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits_and_offers import make_kit, offer
from refusals import refused
from run_records import run_file, summary_of

from medfl.errors import MedflError, SettingsError, StoreError
from medfl_flare import connection, session
from medfl_flare import follow as following
from medfl_flare.connection import Connection
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.records.submission import SubmissionFile
from medfl_flare.session import Submission

DONE = "FINISHED:COMPLETED"


class NoConnection(ConnectionError):  # noqa: N818 - NVFlare's name
    """NVFlare's error of this name."""


class JobNotRunning(Exception):  # noqa: N818 - NVFlare's name
    """NVFlare's error of this name."""


class InternalError(Exception):
    """NVFlare's error of this name."""


class JobNotFound(Exception):  # noqa: N818 - NVFlare's name
    """NVFlare's error of this name."""


class AuthorizationError(Exception):
    """NVFlare's error of this name."""


class Flare:
    """Stand-in for a server. Each job is a list of responses: a status, or a progress report while the job runs."""

    def __init__(self, *jobs: list[Any], sites: tuple[str, ...] = ("site-01", "site-02")) -> None:
        self.planned, self.sites = list(jobs), sites
        self.jobs: dict[str, list[Any]] = {}
        self.submitted: list[dict] = []
        self.aborted: list[str] = []
        self.result: dict[str, str] = {}
        self.down = 0
        self.started = 0.0

    def get_system_info(self) -> Any:
        server = SimpleNamespace(start_time=self.started)
        sites = [SimpleNamespace(name=name, last_connect_time=0.0) for name in self.sites]
        return SimpleNamespace(server_info=server, client_info=sites)

    def submit_job(self, folder: str) -> str:
        server = Path(folder) / "app_server" / "config" / "config_fed_server.json"
        self.submitted.append(json.loads(server.read_text())["workflows"][0]["args"]["offer"])
        name = f"job-{len(self.submitted)}"
        self.jobs[name] = self.planned.pop(0)
        return name

    def get_job_meta(self, job: str) -> dict:
        if self.down:
            self.down -= 1
            raise NoConnection("cannot connect to server")
        if job not in self.jobs:
            raise JobNotFound(job)
        now = self.jobs[job][0]
        status = now if isinstance(now, str) else "RUNNING"
        began = "2026-01-01T00:00:00+00:00"
        return {"status": status, "start_time": began, "job_deploy_detail": ["server: OK", "site-01: refused"]}

    def do_app_command(self, job: str, topic: str, data: dict) -> dict:
        now = self.jobs[job].pop(0) if len(self.jobs[job]) > 1 else self.jobs[job][0]
        if now is None:
            raise JobNotRunning(job)
        return now

    def abort_job(self, job: str) -> None:
        if self.jobs[job][0] is None:
            raise InternalError(f"server internal error: Job {job} is not running.")
        self.aborted.append(job)
        self.jobs[job] = ["FINISHED:ABORTED"]

    def list_jobs(self) -> list[dict]:
        return [
            {"job_id": job, "job_name": "one", "status": "RUNNING", "submit_time": f"2026-01-0{day}T01:02:03.4"}
            for day, job in enumerate(self.jobs, 1)
        ]

    def download_job_result(self, job: str, folder: str) -> str:
        workspace = Path(folder) / job / "workspace" / "medfl"
        workspace.mkdir(parents=True)
        for name, text in self.result.items():
            (workspace / name).write_text(text)
        return str(Path(folder) / job)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(connection, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(session, "RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr(session, "show_results", lambda summary, out: (out / "report.html").write_text(summary.status))


@pytest.fixture
def place(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(kit=make_kit(tmp_path / "admin", "admin", ""), out=tmp_path / "one")


def opens(flare: Flare) -> Callable[[Path], Connection]:
    return lambda kit: Connection(lambda: flare, "localhost:8002")


def submit(flare: Flare, place: SimpleNamespace, **changes: Any) -> None:
    session.submit(session.Submission(offer(**changes), place.kit, place.out), opens(flare))


def summary(status: str = "finished", reason: str = "") -> dict[str, str]:
    return {"summary.json": summary_of(run_file(), status=status, reason=reason).to_bytes().decode()}


def progress(round_: int, **more: Any) -> dict:
    return {
        "state": "running",
        "round": round_,
        "rounds": 2,
        "scores": {"accuracy": 0.25 * round_},
        "missing": {},
    } | more


def test_a_run_is_submitted_followed_and_fetched(place: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    missing = {"site-02": "no answer in 60 s"}
    flare = Flare([{}, progress(1), progress(1, missing=missing), progress(2, missing=missing), DONE])
    flare.result = summary() | {"metrics.csv": "round\n"}
    with caplog.at_level(logging.INFO, "medfl_flare"):
        submit(flare, place, sites=[])
    assert flare.submitted[0]["sites"] == ["site-01", "site-02"]  # the connected ones
    assert (place.out / "metrics.csv").read_text() == "round\n"
    assert (place.out / "report.html").read_text() == "finished"
    submission = SubmissionFile.read(place.out / "submission.json")
    assert (submission.offer.to_json(), submission.kit) == (flare.submitted[0], str(place.kit))
    assert (submission.jobs, submission.gpus) == (("job-1",), None)
    assert "round 2 of 2" in caplog.text
    text = "validation images, mean over the sites, personal models if there are any: accuracy 0.500"
    assert text in caplog.text
    assert caplog.text.count("Site 'site-02' is unavailable: no answer in 60 s") == 1
    assert {path.name for path in place.out.iterdir()} == {
        "metrics.csv",
        "report.html",
        "submission.json",
        "summary.json",
    }


def test_what_happens_at_the_server_can_be_monitored_here(place: SimpleNamespace) -> None:
    lines = ['{"t": 1, "event": "start"}\n', '{"t": 2, "event": "end"}\n']
    parts = [{"start": 0, "events": lines[0]}, {"start": len(lines[0]), "events": lines[1]}]
    flare = Flare(
        [{}, *(progress(1, **part) for part in parts), progress(2, start=len("".join(lines)), events=""), DONE]
    )
    asked_after: list[int] = []
    ask = flare.do_app_command

    def note(job: str, topic: str, data: dict) -> dict:
        asked_after.append(data["after"])
        return ask(job, topic, data)

    flare.do_app_command, flare.result = note, summary()  # type: ignore[method-assign]
    submit(flare, place)
    assert (place.out / "progress.jsonl").read_text() == "".join(lines)
    assert asked_after[:3] == [0, 0, len(lines[0])]


def test_a_run_that_ended_early_says_why_and_how_to_continue(place: SimpleNamespace) -> None:
    flare = Flare([DONE])
    flare.result = summary("incomplete", "1 of 2 needed replies came.")
    with refused(MedflError, "run_not_finished", status="incomplete", reason="1 of 2 needed replies came.") as caught:
        submit(flare, place)
    assert f"`medfl federate resume {place.out}`" in str(caught.value)
    assert (place.out / "report.html").read_text() == "incomplete"


def test_a_refused_run_says_what_the_sites_said_and_leaves_no_old_summary(place: SimpleNamespace) -> None:
    flare = Flare([DONE], ["FINISHED:EXECUTION_EXCEPTION"], ["FINISHED:FAILED_TO_RUN"])
    flare.result = summary()
    submit(flare, place)
    flare.result = {"error.txt": "'site-01' allows: none."}
    with refused(MedflError, "run_failed", reason="'site-01' allows: none."):
        submit(flare, place)
    assert not (place.out / "summary.json").exists()
    assert not (place.out / "error.txt").exists()
    flare.result = {}
    with refused(MedflError, "run_failed", reason="NVFlare reports FINISHED:FAILED_TO_RUN: site-01: refused."):
        session.resume(place.out, opens(flare))


def test_the_server_may_be_unavailable_for_a_while(place: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    flare = Flare([progress(1), progress(2), DONE])
    flare.result, flare.down = summary(), 3
    with caplog.at_level(logging.INFO, "medfl_flare"):
        submit(flare, place)
    assert caplog.text.count("can't be reached; medfl tries again") == 1
    flare.down = 10**9
    broken = Connection(lambda: flare, "localhost:8002", patience=0.0)
    with refused(MedflError, "server_unreachable", server="localhost:8002"):
        broken.status("job-1")


def test_a_job_that_died_with_the_server_is_reported_and_resumed_by_a_new_one(place: SimpleNamespace) -> None:
    flare = Flare([progress(1), None], [progress(2), DONE])
    flare.started = 2e9  # after the job began
    with refused(MedflError, "job_lost", job="job-1") as caught:
        submit(flare, place)
    assert "`medfl federate resume" in str(caught.value)
    flare.result = summary()
    assert not session.stop(place.out, opens(flare))
    session.resume(place.out, opens(flare))
    assert json.loads((place.out / "submission.json").read_text())["jobs"] == ["job-1", "job-2"]
    assert flare.submitted[0] == flare.submitted[1]


def test_a_job_that_is_long_silent_is_lost(place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "GONE_SECONDS", 0.01)
    with refused(MedflError, "job_lost", job="job-1"):
        submit(Flare([progress(1), None]), place)


def test_a_run_at_work_is_followed_and_not_submitted_twice(place: SimpleNamespace) -> None:
    flare = Flare([progress(1), progress(1), progress(1), progress(1), DONE])

    def interrupt(topic: str, job: str, data: dict) -> dict:
        raise KeyboardInterrupt

    command, flare.do_app_command = flare.do_app_command, interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        submit(flare, place)
    flare.do_app_command, flare.result = command, summary()  # type: ignore[method-assign]
    with refused(SettingsError, "run_at_work", path=str(place.out), job="job-1"):
        submit(flare, place, overrides={"rounds": 4})
    submit(flare, place)
    assert len(flare.submitted) == 1
    assert flare.aborted == []


def test_stop_aborts_the_job_and_only_once(place: SimpleNamespace) -> None:
    flare = Flare([DONE])
    flare.result = summary()
    submit(flare, place)
    flare.jobs["job-1"] = [progress(1)]
    assert session.stop(place.out, opens(flare))
    assert flare.aborted == ["job-1"]
    assert not session.stop(place.out, opens(flare))


def test_sites_that_are_not_connected(place: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with refused(SettingsError, "unavailable_site", site="site-2", known=["site-01", "site-02"]) as caught:
        submit(Flare(), place, sites=["site-01", "site-2"])
    assert "Did you mean 'site-02'" in str(caught.value)
    assert "With --min_replies a run begins without unavailable sites" in str(caught.value)
    with refused(SettingsError, "no_connected_sites"):
        submit(Flare(sites=()), place, sites=[])
    fewer = {"overrides": {"min_replies": 1}}
    with refused(SettingsError, "no_connected_sites"):
        submit(Flare(sites=()), place, **fewer)
    with refused(SettingsError, "unavailable_site", site="site-02", known=["site-01"]):
        submit(Flare(sites=("site-01",)), place, overrides={"min_replies": 2})
    began = Flare([DONE], sites=("site-01",))
    began.result = summary()
    session.submit(session.Submission(offer(**fewer), place.kit, place.out.parent / "fewer"), opens(began))
    assert began.submitted[0]["sites"] == ["site-01", "site-02"]
    flare = Flare([DONE], [DONE])
    flare.result = summary()
    submit(flare, place)
    flare.sites = ("site-01",)
    session.resume(place.out, opens(flare))
    assert flare.submitted[1]["sites"] == ["site-01", "site-02"]  # the run stays the same; its quorum decides
    assert "Not connected: site-02" in caplog.text


def test_sites_that_come_back_one_by_one_are_waited_for(
    place: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Restarted(Flare):
        def get_system_info(self) -> Any:
            info = super().get_system_info()
            self.sites = ("site-01", "site-02")[: len(self.sites) + 1]
            return info

    monkeypatch.setattr(session, "RECONNECT_SECONDS", 60.0)
    flare = Restarted([DONE], [DONE])
    flare.result = summary()
    submit(flare, place)
    flare.sites = ()
    session.resume(place.out, opens(flare))
    assert "Waiting for them, at most 60 s" in caplog.text
    assert "Not connected" not in caplog.text


def test_a_job_without_the_requested_gpus_says_which_site_lacks_what(place: SimpleNamespace) -> None:
    """NVFlare's words about the last attempt name the site; the last entry of its history only counts the attempts."""

    class Scarce(Flare):
        def get_job_meta(self, job: str) -> dict:
            site = "required sites: ['site-02'] don't have enough resources"
            history = ["1: another reason", f"2: {site}", "3: exceeded max schedule count 10"]
            spec = GpuRequest(count=2, memory_gib=8).resource_spec(self.sites)
            return super().get_job_meta(job) | {"schedule_history": history, "resource_spec": spec}

    flare = Scarce(["FINISHED:CAN_NOT_SCHEDULE"])
    submission = Submission(offer(), place.kit, place.out, gpus=GpuRequest(count=2, memory_gib=8))
    with refused(MedflError, "run_failed") as caught:
        session.submit(submission, opens(flare))
    reason = caught.value.fields["reason"]
    assert "['site-02'] don't have enough resources" in reason
    assert "The run requests 2 GPUs with 8 GiB each of each site" in reason
    assert "another reason" not in reason
    assert session.read_submission(place.out).gpus == submission.gpus


def test_other_errors_of_the_server_become_errors_with_advice(place: SimpleNamespace) -> None:
    flare = Flare()

    def refuse(folder: str) -> str:
        print("NVFlare's chatter")
        raise AuthorizationError("user not authorized")

    flare.submit_job = refuse  # type: ignore[method-assign]
    with refused(MedflError, "nvflare_error", server="localhost:8002", cause="AuthorizationError") as caught:
        submit(flare, place)
    assert "The server's local/authorization.json" in str(caught.value)


def test_what_nvflare_prints_is_kept_away(place: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with connection.suppress_nvflare_output():
        print("Connecting to FLARE ...")
    assert capsys.readouterr().out == ""


def test_status_names_server_sites_and_jobs_newest_first(place: SimpleNamespace) -> None:
    flare = Flare()
    flare.jobs = {"old": [], "new": []}
    rows = session.status(place.kit, opens(flare))
    assert rows[0] == ("server", "localhost:8002 is up")
    assert [name for name, _ in rows] == ["server", "site", "site", "one", "one"]
    assert rows[1][1].startswith("site-01, last heard of")
    assert rows[3][1] == "new RUNNING, submitted 2026-01-02 01:02:03 UTC"


def test_folders_that_are_no_submission(place: SimpleNamespace) -> None:
    with refused(StoreError, "missing_file", path=str(place.out / "submission.json")):
        session.resume(place.out, opens(Flare()))
    place.out.mkdir()
    (place.out / "run.json").write_text("{}")
    with refused(SettingsError, "other_run", path=str(place.out)):
        submit(Flare(), place)
    (place.out / "submission.json").write_text("{")
    with refused(StoreError, "damaged_file", path=str(place.out / "submission.json")):
        session.stop(place.out, opens(Flare()))


ESCAPE = "\x1b[2J\x1b]0;owned\x07"


def test_a_server_that_lies_steers_no_terminal_and_fills_no_disk(
    place: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    lies = [
        {"round": "1", "rounds": 10**400, "scores": [1], "missing": [1], "message": {}, "state": 7},
        {"round": -1, "scores": {ESCAPE: 0.5, "[/red]": 10**400, "x": None}, "missing": {ESCAPE: ESCAPE}},
        {"round": 1, "start": 0, "events": "x" * (1 << 17)},
        {"round": 1, "start": [], "events": {"a": 1}},
    ]
    flare = Flare([*lies, DONE])
    flare.result = {"error.txt": f"why {ESCAPE}"}
    with caplog.at_level(logging.INFO, "medfl_flare"), refused(MedflError, "run_failed") as caught:
        submit(flare, place)
    assert caught.value.fields["reason"].startswith("why")
    assert "owned" in caplog.text
    assert "\x1b" not in caplog.text
    assert "\x07" not in caplog.text
    assert not (place.out / "progress.jsonl").exists()


def test_of_what_a_server_sends_only_a_runs_files_are_taken(place: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    flare = Flare([DONE])
    flare.result = summary() | {
        "metrics.csv": "round\n",
        "evil.py": "",
        "sites": "",
        ".lock": "",
        "submission.json": "",
    }
    download = flare.download_job_result

    def with_links(job: str, folder: str) -> str:
        fetched = download(job, folder)
        workspace = Path(fetched) / "workspace" / "medfl"
        (workspace / "global").mkdir()
        for path in (workspace / "run.json", workspace / "global" / "README.md"):
            path.symlink_to(tmp_path / "mine")
        return fetched

    flare.download_job_result = with_links  # type: ignore[method-assign]
    submit(flare, place)
    files = {path.relative_to(place.out).as_posix() for path in place.out.rglob("*")}
    assert files == {"metrics.csv", "summary.json", "report.html", "submission.json", "global"}
    assert json.loads((place.out / "submission.json").read_text())["jobs"] == ["job-1"]


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"status": "finished"}', "[" * 100_000])
def test_a_summary_that_is_none_is_said_to_be(place: SimpleNamespace, text: str) -> None:
    flare = Flare([DONE])
    flare.result = {"summary.json": text}
    with refused(MedflError, "invalid_summary", path=str(place.out / "summary.json")):
        submit(flare, place)
