"""Stops, losses and duplicates between machines change no bit, and unavailable sites are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Loopback, Place
from remote_cases import (
    MINIS,
    Photographed,
    local_outcome,
    mini_place,
    offered,
    opened_once,
    outcome,
    outcome_without,
    restore,
    serve,
    silent,
)

from medfl.records.summary import Summary
from medfl_flare import server as server_run
from medfl_flare.backend.messages import Limits, unpack
from medfl_flare.backend.run_progress import RunStatus

pytestmark = pytest.mark.usefixtures("once")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return mini_place(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def once() -> Any:
    with opened_once():
        yield


@pytest.fixture(scope="module")
def unbroken(place: Place) -> dict[str, Any]:
    """Return the result of two undisturbed rounds of federated averaging."""
    files = place.files("unbroken")
    folder, _, _ = serve(files, offered(place))
    return outcome(folder, files)


RESUMED: dict[str, tuple[int, dict[str, Any]]] = {
    "fedavg": (5, {"rounds": 1, "cross_site_evaluation": True}),
    "fedcross": (9, {"rounds": 1}),
    "fedsdc": (15, {"rounds": 2}),
}
"""Maps each method to the stride of its stopping points and to its settings."""


@pytest.mark.parametrize(
    "method",
    ["fedavg", pytest.param("fedcross", marks=pytest.mark.slow), pytest.param("fedsdc", marks=pytest.mark.slow)],
)
def test_a_run_stopped_at_any_point_ends_in_the_bits_of_the_unbroken_one(
    place: Place, tmp_path: Path, method: str
) -> None:
    every, settings = RESUMED[method]
    files, offer = place.files(method), offered(place, method=method, **settings)
    loopback = Photographed(files)
    loopback.watch(tmp_path)
    folder, _ = loopback.serve(offer)
    expected = outcome(folder, files)
    assert len(loopback.pictures) > 6
    for picture in list(loopback.pictures.values())[::every]:
        restore(picture, files)
        folder, progress, _ = serve(files, offer)
        assert (progress.state, progress.missing) == ("finished", {})
        assert outcome(folder, files) == expected, picture.name


def test_a_lost_reply_is_asked_for_again_after_a_resume(place: Place, unbroken: dict[str, Any]) -> None:
    files, offer = place.files("lost"), offered(place, min_replies=3)
    folder, progress, _ = serve(files, offer, tamper_answer=silent("site-02", "step"))
    assert progress.state == "incomplete"
    assert list(progress.missing) == ["site-02"]
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    states = outcome(folder, files)
    assert {name: states[name] for name in (*SITES, "rows")} == {name: unbroken[name] for name in (*SITES, "rows")}
    assert states["server"][0] == unbroken["server"][0]


def test_a_request_delivered_twice_changes_nothing(place: Place, unbroken: dict[str, Any]) -> None:
    files = place.files("twice")
    loopback = Loopback(files)
    differing = []

    def twice(site: str, blob: bytes) -> bytes:
        if unpack(blob, Limits()).kind in ("step", "install"):
            first, second = (unpack(loopback.services[site].answer(blob), Limits()) for _ in range(2))
            first_answer, two = (message.meta.get("answer") for message in (first, second))
            differing.append(first_answer != two)
        return blob

    loopback.tamper = twice
    folder, _ = loopback.serve(offered(place))
    assert outcome(folder, files) == unbroken
    assert differing
    assert not any(differing)


def test_replies_may_come_in_any_order(place: Place, unbroken: dict[str, Any]) -> None:
    class Forwards(Loopback):
        def ask(self, requests: Any, timeout: float, take: Any) -> dict[str, str]:
            answers = {site: self.services[site].answer(requests[site]) for site in sorted(requests)}
            for site in ("site-02", "site-01", "site-03"):
                if site in answers:
                    take(site, answers[site])
            return {}

    files = place.files("forwards")
    folder, _ = Forwards(files).serve(offered(place))
    assert outcome(folder, files) == unbroken


def test_a_reply_of_an_earlier_step_is_not_taken_for_one_of_this_step(
    place: Place, tmp_path: Path, unbroken: dict[str, Any]
) -> None:
    files, offer, kept = place.files("late"), offered(place), []

    def late(site: str, blob: bytes) -> bytes:
        if site == "site-03" and unpack(blob, Limits()).kind == "step":
            kept.append(blob)
            return kept[0]
        return blob

    folder, progress, _ = serve(files, offer, tamper_answer=late)
    states = outcome(folder, files)
    place.local(offer, files, tmp_path / "local", unavailable=lambda site, step: site == "site-03" and step > 1)
    assert states["server"] == local_outcome(tmp_path / "local")["server"]


def test_a_peer_message_delivered_twice_is_one_peer_message(place: Place, tmp_path: Path) -> None:
    files, offer = place.files("peer_messages"), offered(place, method="fedskd", rounds=1)
    loopback = Loopback(files)

    def twice(sender: str, to: str, blob: bytes) -> bytes:
        assert loopback.services[to].receive(sender, blob) is None
        return blob

    loopback.tamper_peer_message = twice
    folder, _ = loopback.serve(offer)
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")


def test_a_lost_peer_message_makes_its_sender_missing(place: Place, tmp_path: Path) -> None:
    files, offer, lost = place.files("lost-peer-message"), offered(place, method="fedskd", rounds=1), []

    def lose(sender: str, to: str, blob: bytes) -> bytes | None:
        if sender != "site-02":
            return blob
        lost.append(to)
        return None

    with_reason: list[str] = []
    loopback = Loopback(files, tamper_peer_message=lose)

    def look(site: str, blob: bytes) -> bytes:
        with_reason.append(progress_of.missing.get("site-02", ""))
        return blob

    progress_of = RunStatus()
    loopback.tamper = look
    server_run.serve(offer, files["server"], loopback, progress_of)
    assert lost
    assert f"could not deliver its peer message to {lost[0]}" in with_reason
    assert progress_of.state == "finished"


def test_a_sender_is_not_blamed_for_a_receiver_that_is_unavailable(place: Place) -> None:
    files, offer = place.files("away"), offered(place, method="fedskd", rounds=1, min_replies=2)
    seen: list[dict[str, str]] = []
    loopback = Loopback(files)
    loopback.tamper_answer = silent("site-03", "begin")

    def to_nobody(sender: str, to: str, blob: bytes) -> bytes | None:
        return None if to == "site-03" else blob

    loopback.tamper_peer_message = to_nobody
    progress = RunStatus()

    def look(site: str, blob: bytes) -> bytes:
        seen.append(dict(progress.missing))
        return blob

    loopback.tamper = look
    server_run.serve(offer, files["server"], loopback, progress)
    assert progress.state == "finished"
    assert set().union(*seen) == {"site-03"}


BACK = {
    "fedavg": ("step", {}),
    "fedcross": ("step", {}),
    "isfl": ("hello", {"method_args": {"probe": 3}, "disclose": ["size", "label_counts"]}),
}


@pytest.mark.parametrize("method", BACK)
def test_a_run_that_ended_incomplete_has_the_unbroken_bits_when_the_site_is_back(
    place: Place, tmp_path: Path, method: str
) -> None:
    kind, settings = BACK[method]
    files, offer = place.files(f"back-{method}"), offered(place, method=method, min_replies=3, **settings)
    _, progress, _ = serve(files, offer, tamper_answer=silent("site-02", kind))
    assert progress.state == "incomplete"
    assert "site-02" in progress.missing
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")


@pytest.mark.parametrize("away_first", [True, False])
def test_a_site_that_names_its_network_itself_may_be_unavailable_and_come_back(place: Place, away_first: bool) -> None:
    own = {site: {"entry": {"network": network}} for site, network in MINIS.items()}
    files = place.files(f"own-network-{away_first}", own)
    offer = offered(place, method="local", rounds=1, min_replies=2)
    disturbed = {"tamper": silent("site-02")}
    _, progress, _ = serve(files, offer, **(disturbed if away_first else {}))
    assert progress.state == "finished"
    _, progress, _ = serve(files, offer, **({} if away_first else disturbed))
    assert progress.state == "finished"


def test_a_run_continues_without_a_silent_site_as_its_quorum_says(place: Place, tmp_path: Path) -> None:
    files, offer = place.files("quorum"), offered(place, min_replies=2)
    folder, progress, loopback = serve(files, offer, tamper=silent("site-01", "step"))
    assert progress.state == "finished"
    assert "did not reply" in progress.missing["site-01"]
    place.local(offer, files, tmp_path / "local", unavailable=lambda site, step: site == "site-01")
    states = outcome_without("site-01", folder, files)
    expected = local_outcome(tmp_path / "local")
    assert states == {name: expected[name] for name in states}


@pytest.mark.parametrize("since", ["hello", "step"])
def test_a_run_that_ends_without_a_site_says_which_one_was_missing(place: Place, since: str) -> None:
    files, offer = place.files(f"ended-{since}"), offered(place, min_replies=3)
    folder, progress, _ = serve(files, offer, tamper=silent("site-01", since))
    assert progress.state == "incomplete"
    assert list(progress.missing) == ["site-01"]
    assert "2 of 3" in progress.message
    assert list(Summary.read(folder / "summary.json").unavailable_reasons) == ["site-01"]


def test_a_run_that_ended_for_one_lost_reply_says_whose_it_was(place: Place) -> None:
    files, offer, lost = place.files("one-lost"), offered(place, min_replies=3), []

    def lose(site: str, blob: bytes) -> bytes | None:
        if site == "site-01" and unpack(blob, Limits()).kind == "step" and not lost:
            lost.append(site)
            return None
        return blob

    folder, progress, _ = serve(files, offer, tamper_answer=lose)
    assert progress.state == "incomplete"
    summary = Summary.read(folder / "summary.json")
    assert "site-01" in summary.unavailable_reasons or "site-01" in progress.message
