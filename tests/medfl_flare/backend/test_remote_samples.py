"""Distributed runs with sample-level privacy: the bits and accounts of one machine, and no count leaves a site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Place
from remote_cases import Photographed, local_outcome, mini_place, opened_once, outcome, restore, serve

from medfl.engine.runs.records import read_run
from medfl.records.ledger import Ledger, LedgerEntry
from medfl.records.summary import Summary
from medfl_flare.backend.messages import Limits, unpack
from medfl_flare.sites.site_file import SiteFile
from medfl_report.page import write_report

pytestmark = pytest.mark.usefixtures("undrawn")

PRIVACY = {"unit": "sample", "epsilon": 8.0, "clip": 0.5, "adjacency": "add_remove"}
RUN = {"privacy": PRIVACY, "network_name": "resnet4", "batch_size": 6, "steps": 2}
TRAINED = {"site-01": 8, "site-02": 5, "site-03": 8}
"""Numbers of training images; one site has fewer than a batch."""
TIMES = {"work_seconds", "evaluate_seconds"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = mini_place(tmp_path_factory.mktemp("samples"), 16)
    for site, images in TRAINED.items():
        path = place.data / site / "datalist.json"
        content = json.loads(path.read_text())
        content["training"] = content["training"][:images]
        path.write_text(json.dumps(content))
    (place.data / "partition.json").unlink()  # the lists are no longer those of the partition
    return place


def with_ledgers(place: Place, name: str) -> dict[str, SiteFile]:
    """Give every participant a ledger; the ledger in the server's file is also used by the run on one machine."""
    floor = {"unit": "sample", "adjacency": "add_remove", "epsilon": 8.0}
    homes = {
        site: {"privacy": floor | {"ledger": str(place.root / name / site / "ledger")}} for site in ("server", *SITES)
    }
    return place.files(name, homes)


def accounts(file: SiteFile) -> dict[str, LedgerEntry]:
    """Return all entries in a participant's ledgers by their run's key."""
    assert file.privacy is not None
    assert file.privacy.ledger is not None
    entries: dict[str, LedgerEntry] = {}
    for path in sorted(file.privacy.ledger.glob("*.json")):
        entries |= Ledger.read(path).entries
    return entries


def test_bits_and_ledgers_are_those_of_one_machine_and_no_count_leaves(place: Place, tmp_path: Path) -> None:
    files, offer = with_ledgers(place, "whole"), place.offer(**RUN)
    heard: dict[str, list[Any]] = {site: [] for site in SITES}

    def hear(site: str, blob: bytes) -> bytes:
        meta = unpack(blob, Limits()).meta
        heard[site].append([meta.get("facts"), meta.get("privacy"), (meta.get("answer") or {}).get("meta")])
        return blob

    folder, progress, _ = serve(files, offer, tamper_answer=hear)
    assert (progress.state, progress.missing) == ("finished", {})
    local = place.local(offer, files, tmp_path / "local")
    expected = local_outcome(tmp_path / "local")
    expected["rows"] = [row for row in expected["rows"] if "loss," not in row]
    assert outcome(folder, files) == expected
    at_home = {site: accounts(files[site]) for site in SITES}
    assert {key: entry for entries in at_home.values() for key, entry in entries.items()} == accounts(files["server"])
    rates = {site: entry.rate for site in SITES for entry in at_home[site].values()}
    assert rates == {site: min(1.0, 6 / images) for site, images in TRAINED.items()}
    assert heard["site-01"] == heard["site-02"] == heard["site-03"], "unlike numbers of images, and all say the same"
    statements = Summary.read(folder / "summary.json").privacy
    for site, known in local.summary.privacy.items():
        statement = statements[site]
        assert known.epsilon <= statement.epsilon == 8.0
        assert known.composed <= statement.composed == 8.0
        assert (statement.releases, statement.planned) == (known.releases, known.planned) == (2, 2)
    page = write_report([folder]).read_text()
    assert "epsilon at most 8 at site-01" in page
    assert f"{known.sigma:.5g}" not in page
    assert read_run(folder).summary.privacy == statements


@pytest.mark.slow
def test_a_run_stopped_at_any_point_draws_and_releases_the_same(place: Place, tmp_path: Path) -> None:
    with opened_once():
        files, offer = with_ledgers(place, "stopped"), place.offer(**RUN)
        loopback = Photographed(files)
        loopback.watch(tmp_path)
        folder, _ = loopback.serve(offer)
        expected, ledgers = outcome(folder, files), {site: accounts(files[site]) for site in SITES}
        begun = [picture for picture in loopback.pictures.values() if len(list(picture.glob("*/secret"))) == 3]
        assert len(begun) > 4
        for picture in begun[::5]:
            restore(picture, files)
            folder, progress, _ = serve(files, offer)
            assert (progress.state, progress.missing) == ("finished", {})
            assert outcome(folder, files) == expected, picture.name
            assert {site: accounts(files[site]) for site in SITES} == ledgers, "nothing is released twice"
