"""A silent site delays the others only briefly, and takes part again when the run is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Loopback, Place, digests, make_place
from run_events import events_of

from medfl.engine.runs.progress import PROGRESS
from medfl.records.progress import CommittedStep, Heartbeat, JobStart
from medfl.records.run_file import RunFile, SettingOrigin
from medfl.records.summary import Attendance, Summary
from medfl.utils.heartbeat import HeartbeatSender, HeartbeatSignal
from medfl_flare.backend.heartbeat import pack_heartbeat
from medfl_flare.backend.messages import Limits, unpack
from medfl_flare.backend.remote_backend import MAX_SILENT_STEPS
from medfl_report.commands.status import run_status_lines
from medfl_report.monitor.monitored_folders import MonitoredFolder
from medfl_report.page import write_report

pytestmark = pytest.mark.usefixtures("undrawn")

PRIVACY = {"unit": "site", "adjacency": "replace", "epsilon": 50.0, "delta": 1e-5, "clip": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("silent"))


class Deaf:
    """Loopback that loses all messages to the last site from its first step on."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def __call__(self, site: str, blob: bytes) -> bytes | None:
        kind = unpack(blob, Limits()).kind
        if site != SITES[-1] or kind in ("hello", "begin"):
            return blob
        self.lost.append(kind)
        return None


def test_a_silent_site_is_left_out_after_a_few_steps(place: Place) -> None:
    deaf, files = Deaf(), place.files("left-out")
    loopback = Loopback(files, tamper=deaf)
    folder, progress = loopback.serve(place.offer(rounds=4, steps=1, min_replies=2))
    assert deaf.lost == ["step"] * MAX_SILENT_STEPS
    assert progress.state == "finished"
    why = "did not reply in time; excluded until the run is resumed"
    assert progress.missing == {SITES[-1]: why}
    attendance = Summary.read(folder / "summary.json").attendance
    assert attendance == Attendance(sites=3, unavailable=(SITES[-1],), missed_rounds={SITES[-1]: ((1, 4),)})
    assert run_status_lines(folder)["status"] == "finished on 2 of 3 sites"
    page = write_report([folder]).read_text()
    assert "finished on 2 of 3 sites" in page
    assert f"{SITES[-1]} missed rounds 1 to 4" in page
    view = MonitoredFolder(folder).views()[0]
    assert view.status == "finished on 2 of 3 sites"
    assert [site.activity for site in view.sites] == ["–", "–", f"unavailable: {why}"]
    assert [site.rounds for site in view.sites] == ["4 of 4", "4 of 4", "0 of 4"]


def test_all_sites_must_reply_unless_the_run_says_otherwise(place: Place) -> None:
    loopback = Loopback(place.files("all"), tamper=Deaf())
    folder, progress = loopback.serve(place.offer(rounds=2, steps=1))
    assert (progress.state, progress.round) == ("incomplete", 0)
    assert "2 of 3 needed replies came. Missing: site-03" in progress.message
    setting = RunFile.read(folder / "run.json").provenance.settings["min_replies"]
    assert setting == SettingOrigin(value=3, origin="default between machines")


def test_of_a_share_of_the_sites_all_that_are_asked_must_reply(place: Place) -> None:
    folder, progress = Loopback(place.files("share")).serve(place.offer(rounds=2, steps=1, fraction=0.4))
    assert (progress.state, progress.round) == ("finished", 2)
    requested = [commit.requested for commit in events_of(folder, CommittedStep) if commit.requested]
    assert [len(sites) for sites in requested] == [1, 1]


class Spoken(HeartbeatSender):
    """Loopback in which a site also sends a heartbeat at the end of each piece of work."""

    def __exit__(self, *error: object) -> None:
        self._send(self.beat())
        super().__exit__(*error)


@pytest.mark.parametrize(
    ("name", "settings", "own", "batch"),
    [
        ("told", {}, {}, 2),
        ("withheld", {}, {SITES[0]: {"disclose": []}}, None),
        ("private", {"privacy": PRIVACY, "norm_sync": "params"}, {}, None),
    ],
)
def test_heartbeats_come_to_the_server_without_counts_that_stay_at_home(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, settings: Any, own: Any, batch: int | None
) -> None:
    monkeypatch.setattr("medfl_flare.sites.site_service.HeartbeatSender", Spoken)
    monkeypatch.setattr("medfl_flare.backend.remote_backend.MIN_HEARTBEAT_SECONDS", 0.0)
    files = place.files(f"beats-{name}", own)
    folder, progress = Loopback(files).serve(place.offer(rounds=1, steps=2, **settings))
    assert progress.state == "finished"
    beats = [beat for beat in events_of(folder, Heartbeat) if beat.sites == (SITES[0],)]
    trained = [beat for beat in beats if beat.activity == "training"]
    assert trained
    assert {(beat.batch, beat.batches) for beat in trained} == {(batch, batch)}
    starts = {(start.round, start.step) for start in events_of(folder, JobStart) if start.job == "step"}
    assert starts == {(1, 1)}
    assert all(beat.has_progressed for beat in trained)
    assert str(place.root) not in (folder / PROGRESS).read_text()


def test_heartbeats_of_a_site_that_floods_are_noted_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    files = place.files("flood")
    loopback = Loopback(files)

    def flood(site: str, blob: bytes) -> bytes:
        if site == SITES[0] and unpack(blob, Limits()).kind == "step":
            for _ in range(50):
                loopback._beat(site, pack_heartbeat(HeartbeatSignal("training", 5, 10, True)))
                loopback._beat(site, b"nonsense")
            loopback._beat("a stranger", pack_heartbeat(HeartbeatSignal("training", 5, 10, True)))
        return blob

    loopback.tamper_answer = flood
    folder, _ = loopback.serve(place.offer(rounds=1, steps=1))
    assert [beat.sites for beat in events_of(folder, Heartbeat)] == [(SITES[0],)]


def test_a_site_sees_its_own_part(place: Place) -> None:
    files = place.files("own-part")
    Loopback(files).serve(place.offer(rounds=2, steps=1))
    (view,) = MonitoredFolder(files[SITES[1]].state / "runs").views()
    assert view.status == "the server ended its job; nothing runs here"
    assert [(site.name, site.rounds) for site in view.sites] == [(SITES[1], "2 of 2")]
    assert view.curves
    assert view.rounds_done == 2


def test_a_run_that_needs_the_silent_site_continues_when_it_is_back(place: Place, tmp_path: Path) -> None:
    files = place.files("needed")
    offer = place.offer(rounds=2, steps=1, min_replies=3)
    loopback = Loopback(files, tamper=Deaf())
    _, progress = loopback.serve(offer)
    assert (progress.state, progress.round) == ("incomplete", 0)
    assert "2 of 3" in progress.message
    loopback.restart()
    loopback.tamper = lambda site, blob: blob
    folder, progress = loopback.serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    whole = place.files("whole")
    for site in SITES:
        (whole[site].state).mkdir(parents=True)
        (whole[site].state / "secret").write_bytes(files[site].secret())
        (whole[site].state / "secret").chmod(0o600)
    other, _ = Loopback(whole).serve(offer)
    assert digests(folder, files, offer.run) == digests(other, whole, offer.run)


def test_a_site_that_was_unavailable_at_the_start_is_known_when_the_run_is_resumed(place: Place) -> None:
    files = place.files("late")
    offer = place.offer(rounds=1, steps=1, min_replies=2)
    loopback = Loopback(files, tamper=lambda site, blob: None if site == SITES[0] else blob)
    assert list(loopback.serve(offer)[1].missing) == [SITES[0]]
    loopback.tamper = lambda site, blob: blob
    loopback.restart()
    folder, progress = loopback.serve(place.offer(rounds=2, steps=1, min_replies=2))
    assert (progress.state, progress.round, progress.missing) == ("finished", 2, {})
    assert set(digests(folder, files, offer.run)) == {"server", *SITES}
