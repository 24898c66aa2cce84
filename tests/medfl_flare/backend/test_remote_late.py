"""A site that was unavailable at the start joins with its own network in the next round, also after crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Place
from remote_cases import (
    MINIS,
    Files,
    Photographed,
    local_outcome,
    mini_place,
    offered,
    opened_once,
    outcome,
    restore,
    serve,
    silent,
)

from medfl.engine.journal import Journal
from medfl.engine.runs.lifecycle import RunViewer
from medfl.records.run_file import JoinedSite, RunFile
from medfl.records.summary import Summary
from medfl.testing.synthetic import make_cohort
from medfl_flare.records.offer import Offer
from medfl_report.page import write_report

pytestmark = pytest.mark.usefixtures("once")

LATE = SITES[-1]
OWN: dict[str, Any] = {site: {"entry": {"network": network}} for site, network in MINIS.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = mini_place(tmp_path_factory.mktemp("late"))
    make_cohort(place.root / "more", sites=1, images_per_site=12, classes=3, size=12, seed=2)
    (place.root / "more" / "site-01").rename(place.data / "public")
    return place


@pytest.fixture(scope="module", autouse=True)
def once() -> Any:
    with opened_once():
        yield


def begin(place: Place, files: Files, **settings: Any) -> Path:
    """Run one round without the last site."""
    folder, progress, _ = serve(files, offer(place, rounds=1, **settings), tamper=silent(LATE))
    assert (progress.state, list(progress.missing)) == ("finished", [LATE])
    return folder


def offer(place: Place, rounds: int = 2, **settings: Any) -> Offer:
    return offered(place, **({"method": "fedskd", "rounds": rounds, "min_replies": 2, "steps": 1} | settings))


def joined_sites(folder: Path) -> dict[str, JoinedSite]:
    return RunFile.read(folder / "run.json").provenance.joined


def equals_one_machine_without_it_in_round_1(place: Place, files: Files, folder: Path, out: Path) -> None:
    """Compare with a run on one machine whose round has two steps."""
    known = offer(place, networks_by_site=MINIS)
    place.local(known, files, out, unavailable=lambda site, step: site == LATE and step < 3)
    here, there = local_outcome(out), outcome(folder, files)
    assert {name: there[name] for name in ("server", *SITES)} == {name: here[name] for name in ("server", *SITES)}


def test_it_takes_part_from_the_next_round_on_with_the_bits_of_one_machine(place: Place, tmp_path: Path) -> None:
    files = place.files("joins", OWN)
    begin(place, files)
    folder, progress, _ = serve(files, offer(place))
    assert (progress.state, progress.missing) == ("finished", {})
    assert joined_sites(folder) == {LATE: JoinedSite(round=2, network=MINIS[LATE])}
    equals_one_machine_without_it_in_round_1(place, files, folder, tmp_path)
    assert Summary.read(folder / "summary.json").attendance.missed_rounds == {LATE: ((1, 1),)}
    page = write_report([folder]).read_text()
    assert f"{LATE} missed round 1, took part in round 2" in page
    assert f"{LATE} joined later and participates from round 2 on, with the network {MINIS[LATE]}" in page
    run = RunFile.read(folder / "run.json")
    assert run.settings.networks_by_site | run.provenance.late_networks == MINIS
    bundle = json.loads((files[LATE].state / "runs" / "one" / "bundle" / "configs" / "train.json").read_text())
    assert bundle["network_name"] == MINIS[LATE]


def test_whatever_dies_meanwhile_the_bits_are_the_same(place: Place, tmp_path: Path) -> None:
    files = place.files("killed", OWN)
    begin(place, files)
    loopback = Photographed(files)
    loopback.watch(tmp_path)
    folder, _ = loopback.serve(offer(place))
    expected, joined = outcome(folder, files), joined_sites(folder)
    for picture in list(loopback.pictures.values())[::14]:
        restore(picture, files)
        folder, progress, _ = serve(files, offer(place))
        assert (progress.state, progress.missing) == ("finished", {})
        assert (outcome(folder, files), joined_sites(folder)) == (expected, joined), picture.name


def test_in_a_round_that_has_begun_it_is_not_asked(place: Place, tmp_path: Path) -> None:
    files = place.files("amid", OWN)
    loopback = Photographed(files)
    loopback.watch(tmp_path)
    keep, lose = loopback.tamper, silent(LATE)
    loopback.tamper = lambda site, blob: lose(site, blob) and keep(site, blob)
    loopback.serve(offer(place))

    def rounds(picture: Path) -> list[int]:
        newest = Journal(picture / "server" / "runs" / "one").latest()
        return [] if newest is None else [newest[1].round, newest[1].rounds_done]

    restore(next(picture for picture in loopback.pictures.values() if rounds(picture) == [1, 0]), files)
    folder, progress, _ = serve(files, offer(place))
    assert (progress.state, progress.missing) == ("finished", {})
    assert joined_sites(folder)[LATE].round == 2
    equals_one_machine_without_it_in_round_1(place, files, folder, tmp_path / "local")
    assert Summary.read(folder / "summary.json").attendance.missed_rounds == {LATE: ((1, 1),)}


@pytest.mark.parametrize("method", ["pfedcdp", pytest.param("feddf", marks=pytest.mark.slow)])
def test_the_server_begins_a_model_for_a_network_that_no_one_had(place: Place, method: str) -> None:
    args = {"pfedcdp": {"fisher_samples": 4, "server_epochs": 1, "refine": None}, "feddf": {"distil_steps": 1}}
    own = {LATE: OWN[LATE]}
    files, settings = place.files(method, own), {"method": method, "method_args": args[method]}
    folder = begin(place, files, **settings)
    state, _ = RunViewer(folder).latest() or (None, None)
    assert state is not None
    assert not [name for name in state.tensors if f"/{MINIS[LATE]}/" in name]
    folder, progress, _ = serve(files, offer(place, **settings))
    assert (progress.state, progress.missing) == ("finished", {})
    state, _ = RunViewer(folder).latest() or (None, None)
    assert state is not None
    assert [name for name in state.tensors if f"/{MINIS[LATE]}/" in name]


def test_a_network_that_the_method_cannot_take_is_refused_and_the_others_continue(place: Place) -> None:
    files = place.files("refused", {LATE: OWN[LATE]})
    begin(place, files, method="fedavg")
    folder, progress, _ = serve(files, offer(place, method="fedavg"))
    assert (progress.state, list(progress.missing)) == ("finished", [LATE])
    assert "the run can't use the network 'mini8' of this site: Method 'fedavg' needs one" in progress.missing[LATE]
    assert joined_sites(folder) == {}


def test_who_has_taken_part_keeps_its_network(place: Place) -> None:
    files = place.files("keeps")
    begin(place, files)
    files = place.files("keeps", {SITES[0]: {"entry": {"network": "mini8"}}})
    _, progress, _ = serve(files, offer(place))
    assert progress.missing == {SITES[0]: "its own file names the network 'mini8'; the run expects 'mini4'"}


def test_by_its_machine_it_joins_a_cluster_that_is_settled(place: Place) -> None:
    path = place.bundle / "configs" / "federate.json"
    content = json.loads(path.read_text())
    networks = {"high": "mini8", "medium": "mini6", "low": "mini4"}
    content["network_assignment"] = {"name": "machine_clusters", "profiles": "live", "networks": networks}
    content["federation"]["network_assignment"] = "@network_assignment"
    path.write_text(json.dumps(content))
    machine = {"cpu_max_mhz": 3000, "memory_free_gb": 16, "memory_gb": 16, "battery_percent": 100}
    machine |= {"latency_ms": 0, "latency_max_ms": 200}
    clocks = dict(zip(SITES, (3000, 1500, 2000), strict=True))
    own = {site: {"profile": machine | {"cpu_mhz": mhz}} for site, mhz in clocks.items()}
    files = place.files("machines", own)
    begin(place, files, method="local")
    folder, progress, _ = serve(files, offer(place, method="local"))
    assert (progress.state, progress.missing) == ("finished", {})
    run = RunFile.read(folder / "run.json")
    provenance = run.provenance
    assert run.settings.networks_by_site == {"site-01": "mini8", "site-02": "mini6"}
    assert provenance.joined == {LATE: JoinedSite(round=2, network="mini6")}
    assert provenance.assigned_networks[LATE].facts["cluster"] == "medium"
