"""A site with another setup or permission is unavailable, with both values in the reason; the other sites continue."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import BUNDLE, SITES, Loopback, Place
from refusals import refused
from remote_cases import (
    LIMITS,
    local_outcome,
    mini_place,
    offered,
    outcome_without,
    serve,
    without_last_site,
)

from medfl.bundle.bundle_folders import bundle_hash
from medfl.data.sites import load_site
from medfl.errors import MedflError, StoreError
from medfl.objectives import Multiclass
from medfl.records.run_file import RunFile
from medfl.records.summary import Summary
from medfl.testing.cohort import scores
from medfl_flare import server as server_run
from medfl_flare.backend.messages import Message, pack, unpack
from medfl_flare.backend.run_progress import RunStatus
from medfl_flare.sites import site_run as site_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return mini_place(tmp_path_factory.mktemp("refusals"))


@pytest.fixture(scope="module")
def alone(place: Place, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of one round of federated averaging on one machine without site-03."""
    return without_last_site(place, tmp_path_factory.mktemp("alone"))


def other_bundle(place: Place, tmp_path: Path) -> dict[str, Any]:
    copy = tmp_path / BUNDLE
    shutil.copytree(place.bundle, copy)
    path = copy / "configs" / "inference.json"
    path.write_text(path.read_text() + "\n")
    return {"entry": {"folder": str(copy)}}


REFUSING: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], list[str]]] = {
    "method": ({"methods": ["fedprox", "fedbn"]}, {}, ["'fedavg'", "fedbn, fedprox"]),
    "rounds": ({"max_rounds": 1}, {"rounds": 2}, ["2 rounds", "at most 1"]),
    "floor": ({"privacy": {"unit": "site", "epsilon": 2.0}}, {}, ["none", "epsilon 2.0"]),
    "counts": ({"min_count": 500}, {}, ["500"]),
    "exchange": ({"cross_site_evaluation": False}, {"cross_site_evaluation": True}, ["cross_site_evaluation", "no"]),
    "shared test": ({"shared_test": False}, {"shared_test": True}, ["shared_test", "no"]),
}


@pytest.mark.parametrize("what", REFUSING)
def test_a_site_that_does_not_allow_the_run_is_missing_and_the_others_have_the_bits_of_a_run_without_it(
    place: Place, tmp_path: Path, alone: dict[str, Any], what: str
) -> None:
    own, wanted, words = REFUSING[what]
    check_missing(place, tmp_path, alone, {"site-03": own}, words, name=what, **wanted)


def test_a_site_with_other_configurations_is_missing_with_both_hashes(
    place: Place, tmp_path: Path, alone: dict[str, Any]
) -> None:
    own = other_bundle(place, tmp_path)
    hashes = [bundle_hash(place.bundle), bundle_hash(Path(own["entry"]["folder"]))]
    check_missing(place, tmp_path, alone, {"site-03": own}, hashes, name="hash")


def check_missing(
    place: Place,
    tmp_path: Path,
    alone: dict[str, Any],
    own: Mapping[str, Any],
    words: list[str],
    name: str,
    **wanted: Any,
) -> None:
    files, offer = place.files(name, own), offered(place, **{"min_replies": 2, "rounds": 1} | wanted)
    folder, progress, _ = serve(files, offer)
    assert (progress.state, list(progress.missing)) == ("finished", ["site-03"])
    assert all(word in progress.missing["site-03"] for word in words), progress.missing
    states = outcome_without("site-03", folder, files)
    if wanted:
        place.local(offer, files, tmp_path / "local", unavailable=lambda site, step: site == "site-03")
        alone = {name: value for name, value in local_outcome(tmp_path / "local").items() if name in states}
    assert states == alone
    assert not any("site-03" in line for line in scores(folder))
    assert not (files["site-03"].state / "runs" / "one" / "state").exists()


def test_another_version_of_medfl_is_refused_with_both(place: Place) -> None:
    files, offer = place.files("version"), offered(place)
    loopback = Loopback(files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("medfl_flare.offer.__version__", "0.0.1")
        answer = unpack(loopback.services["site-01"].answer(pack(Message("hello", {}, offer.to_json()))), LIMITS)
    assert "0.0.1" in answer.meta["refused"]
    assert offer.medfl in answer.meta["refused"]


def test_with_fewer_sites_than_the_quorum_the_run_ends_and_says_why(place: Place) -> None:
    own = {"methods": []}
    files, offer = place.files("few", {"site-02": own, "site-03": own}), offered(place, min_replies=2)
    folder, progress, _ = serve(files, offer)
    assert progress.state == "incomplete"
    assert "1 of 2" in progress.message
    assert sorted(progress.missing) == ["site-02", "site-03"]
    summary = Summary.read(folder / "summary.json")
    assert sorted(summary.unavailable_reasons) == ["site-02", "site-03"]
    assert summary.status == "incomplete"


def test_a_server_obeys_its_own_file(place: Place) -> None:
    files = place.files("server-file", {"server": {"methods": ["local"]}})
    with refused(MedflError, "run_not_allowed", problems=["method_not_allowed"]):
        serve(files, offered(place))
    assert not any((files[site].state / "runs").exists() for site in SITES)


def test_a_site_whose_network_the_bundle_lacks_is_missing_and_harms_no_one(
    place: Place, alone: dict[str, Any], tmp_path: Path
) -> None:
    files = place.files("network", {"site-03": {"entry": {"network": "nonsense"}}})
    folder, progress, _ = serve(files, offered(place, min_replies=2, rounds=1))
    assert progress.state == "finished"
    assert "nonsense" in progress.missing["site-03"]
    assert outcome_without("site-03", folder, files) == alone


def test_a_site_whose_network_is_not_the_runs_is_missing_with_both_names(place: Place, alone: dict[str, Any]) -> None:
    files = place.files("contrary", {"site-03": {"entry": {"network": "mini8"}}})
    offer = offered(place, min_replies=2, rounds=1, networks_by_site=dict.fromkeys(SITES, "mini4"))
    folder, progress, _ = serve(files, offer)
    assert progress.state == "finished"
    assert "mini8" in progress.missing["site-03"]
    assert "mini4" in progress.missing["site-03"]


def test_a_folder_of_another_run_under_the_same_name_is_refused_on_both_sides(place: Place) -> None:
    files = place.files("name")
    serve(files, offered(place, rounds=1))
    with refused(StoreError, "other_run", setting="settings.seed"):
        serve(files, offered(place, rounds=1, seed=4))
    shutil.rmtree(files["server"].state / "runs")
    before = {path: path.read_bytes() for site in SITES for path in files[site].state.rglob("*.safetensors")}
    _, progress, _ = serve(files, offered(place, rounds=1, seed=4))
    assert progress.state == "incomplete"
    assert sorted(progress.missing) == list(SITES)
    assert before == {path: path.read_bytes() for site in SITES for path in files[site].state.rglob("*.safetensors")}


def test_a_second_job_waits_for_the_first_one_and_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_run, "REMOTE_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(site_run, "REMOTE_LOCK_SECONDS", 0.05)
    files, offer, second = place.files("second"), offered(place, rounds=1), []

    def meanwhile(site: str, blob: bytes) -> bytes:
        if unpack(blob, LIMITS).kind == "step" and not second:
            second.append("tried")
            with refused(StoreError, "folder_in_use"):
                Loopback(files).serve(offer)
            (files["server"].state / "elsewhere").mkdir()
            moved = files["server"].model_copy(update={"state": files["server"].state / "elsewhere"})
            other, progress = Loopback({**files, "server": moved}), RunStatus()
            server_run.serve(offer, moved, other, progress)
            second.append(progress)
        return blob

    _, progress, _ = serve(files, offer, tamper=meanwhile)
    assert (progress.state, progress.missing) == ("finished", {})
    assert second[1].state == "incomplete"
    assert sorted(second[1].missing) == list(SITES)


def test_the_cross_site_evaluation_is_among_the_sites_whose_files_allow_it(place: Place) -> None:
    files = place.files("exchanging", {"site-03": {"cross_site_evaluation": False}})
    folder, _, loopback = serve(files, offered(place, rounds=1, cross_site_evaluation=True, min_replies=2))
    exchanged = {tuple(line.split(",")[1:3]) for line in scores(folder) if "@" in line}
    assert exchanged == {(site, f"global@{owner}") for site in SITES[:2] for owner in SITES[:2]}


def test_threads_and_device_are_those_of_each_ones_own_file(place: Place) -> None:
    files = place.files("threads", {"site-02": {"threads": 2}})
    try:
        Loopback({site: files[site] for site in ("site-01", "site-02")})
        assert torch.get_num_threads() == 2
        serve(files, offered(place, rounds=1))
    finally:
        torch.set_num_threads(1)
    records = {site: RunFile.read(files[site].state / "runs" / "one" / "run.json") for site in SITES}
    assert {site: run.execution.threads for site, run in records.items()} == {
        "site-01": 1,
        "site-02": 2,
        "site-03": 1,
    }
    assert {run.execution.device for run in records.values()} == {"cpu"}


@pytest.mark.parametrize("at_site", [["size"], []])
def test_a_site_discloses_no_more_than_its_file_allows(place: Place, at_site: list[str]) -> None:
    files = place.files(f"told-{len(at_site)}", {"site-02": {"disclose": at_site}})
    facts, sizes = {}, []

    def look(site: str, blob: bytes) -> bytes:
        message = unpack(blob, LIMITS)
        if message.kind == "begin":
            facts[site] = message.meta["facts"]
        elif message.kind == "step" and message.meta["answer"] and site == "site-02":
            sizes.append("size" in message.meta["answer"]["meta"])
        return blob

    offer = offered(place, rounds=1, disclose=["size", "label_counts"], min_replies=2)
    serve(files, offer, tamper_answer=look)
    assert facts["site-01"].keys() == {"trainable", "validates", "size", "label_counts"}
    assert facts["site-02"].keys() == {"trainable", "validates", *at_site}
    assert sizes == [bool(at_site)]


def test_small_splits_are_not_scored_and_small_classes_not_counted(place: Place) -> None:
    own = load_site(place.data / "site-02", Multiclass(3), (0.5,), (0.5,))
    smallest = min(len(own.val), len(own.test))
    limit = smallest + 1
    assert limit <= len(own.train)
    files = place.files("small", {"site-02": {"min_count": limit}})
    facts = {}

    def look(site: str, blob: bytes) -> bytes:
        message = unpack(blob, LIMITS)
        if message.kind == "begin":
            facts[site] = message.meta["facts"]
        return blob

    offer = offered(place, rounds=1, disclose=["size", "label_counts"], moments=["aggregated", "trained"])
    folder, _, _ = serve(files, offer, tamper_answer=look)
    allowed = {split for split in ("val", "test") if len(getattr(own, split)) >= limit}
    scored = {line.split(",")[3] for line in scores(folder) if ",site-02," in line}
    assert scored - {"train"} == allowed
    assert len(allowed) < 2
    counts = own.train.class_labels.bincount(minlength=3).tolist()
    assert ("label_counts" in facts["site-02"]) == (not any(0 < count < limit for count in counts))
    assert "label_counts" in facts["site-01"]
