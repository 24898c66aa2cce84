"""A site that does not answer holds nobody up for long, and comes back when the run is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from loopback import SITES, Loopback, Place, digests, make_place

from medfl.carriers.messages import Limits, unpack
from medfl.carriers.remote import MAX_SILENT


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("silent"))


class Deaf:
    """Loses what is said to the last site, beginning with its steps."""

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
    _, progress = loopback.serve(place.offer(rounds=4, steps=1, min_replies=2))
    assert deaf.lost == ["step"] * MAX_SILENT
    assert progress.state == "finished"
    assert progress.missing == {SITES[-1]: "did not answer in time; left out until the run is resumed"}


def test_a_run_that_needs_the_silent_site_goes_on_when_it_is_back(place: Place, tmp_path: Path) -> None:
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


def test_a_site_that_was_away_at_the_start_is_known_when_the_run_is_resumed(place: Place) -> None:
    files = place.files("late")
    offer = place.offer(rounds=1, steps=1, min_replies=2)
    loopback = Loopback(files, tamper=lambda site, blob: None if site == SITES[0] else blob)
    assert list(loopback.serve(offer)[1].missing) == [SITES[0]]
    loopback.tamper = lambda site, blob: blob
    loopback.restart()
    folder, progress = loopback.serve(place.offer(rounds=2, steps=1, min_replies=2))
    assert (progress.state, progress.round, progress.missing) == ("finished", 2, {})
    assert set(digests(folder, files, offer.run)) == {"server", *SITES}
