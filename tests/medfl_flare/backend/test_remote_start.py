"""Sites of a run between machines start from the same weights, prove it, and open no path that the server names."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from loopback import BUNDLE, SITES, Place
from refusals import refused
from remote_cases import local_outcome, mini_place, offered, outcome, outcome_without, serve

from medfl.engine.runs.features.feature_cache import cache_folder
from medfl.errors import RefusedError
from medfl.records.run_file import RunFile
from medfl_flare.backend.messages import Message
from medfl_flare.backend.protocol_messages import read_begin_reply
from medfl_flare.offered_bundle import open_offer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return mini_place(tmp_path_factory.mktemp("start"))


def weights(place: Place, path: Path, value: float) -> str:
    """Save weights of the run's network, all with one value, and return the SHA-256 of the file."""
    state = open_offer(offered(place), place.files("shapes")["server"]).task.build().state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({name: torch.full_like(tensor, value) for name, tensor in state.items()}, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_all_sites_start_from_the_file_in_their_own_folder(place: Place, tmp_path: Path) -> None:
    digest = weights(place, tmp_path / "server" / "w.pt", 0.05)
    own = {"server": {"weights": str(tmp_path / "server")}}
    for site in SITES:
        (tmp_path / site).mkdir()
        shutil.copy(tmp_path / "server" / "w.pt", tmp_path / site / f"{site}.pt")
        own[site] = {"weights": str(tmp_path / site)}
    files = place.files("equal", own)
    offer = offered(place, start=f"sha256:{digest}", rounds=1)
    task = open_offer(offer, files["site-02"]).task
    assert all(
        bool((tensor.float() - 0.05).abs().max() < 1e-9 or not tensor.is_floating_point())
        for tensor in task.initial(3).values()
    )
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    run = RunFile.read(folder / "run.json")
    assert run.identity.task.start == run.provenance.start.sha256 == digest
    place.local(offer, files, tmp_path / "local")
    assert outcome(folder, files) == local_outcome(tmp_path / "local")
    plain, _, _ = serve(place.files("plain"), offered(place, rounds=1))
    assert outcome(plain, place.files("plain"))["server"] != outcome(folder, files)["server"]


@pytest.mark.parametrize("case", ["other file", "no file", "no folder"])
def test_a_site_without_the_weights_is_missing_before_round_1(place: Place, tmp_path: Path, case: str) -> None:
    digest = weights(place, tmp_path / "all" / "w.pt", 0.05)
    (tmp_path / "few").mkdir()
    if case == "other file":
        weights(place, tmp_path / "few" / "w.pt", 0.06)
    shared = {"weights": str(tmp_path / "all")}
    last = {} if case == "no folder" else {"weights": str(tmp_path / "few")}
    own = {"server": shared, "site-01": shared, "site-02": shared, "site-03": last}
    files = place.files(case.replace(" ", "-"), own)
    offer = offered(place, start=f"sha256:{digest}", rounds=1, min_replies=2)
    folder, progress, _ = serve(files, offer)
    assert (progress.state, list(progress.missing)) == ("finished", ["site-03"])
    assert "missing_weights" in progress.missing["site-03"]
    assert str(tmp_path) not in progress.missing["site-03"]
    place.local(offer, files, tmp_path / "local", unavailable=lambda site, step: site == "site-03")
    states = outcome_without("site-03", folder, files)
    assert states == {name: value for name, value in local_outcome(tmp_path / "local").items() if name in states}


def test_a_site_whose_bundle_has_other_weights_is_missing_before_round_1(place: Place, tmp_path: Path) -> None:
    copies = {site: tmp_path / site / BUNDLE for site in ("server", *SITES)}
    for site, copy in copies.items():
        shutil.copytree(place.bundle, copy)
        weights(place, copy / "models" / "model.pt", 0.06 if site == "site-03" else 0.05)
    own = {site: {"entry": {"folder": str(copy)}} for site, copy in copies.items()}
    files = place.files("bundles", own)
    folder, progress, _ = serve(files, offered(place, start="bundle", rounds=1, min_replies=2))
    assert (progress.state, list(progress.missing)) == ("finished", ["site-03"])
    digest = RunFile.read(folder / "run.json").identity.task.start
    assert digest[:12] in progress.missing["site-03"]
    assert not (files["site-03"].state / "runs" / "one" / "state").exists()


@pytest.mark.parametrize("source", ["{folder}/w.pt", "w.pt", "../w.pt", "bundle:../w.pt", "{folder}", "sha256:w.pt"])
def test_a_site_opens_no_path_that_a_server_names(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    weights(place, tmp_path / "w.pt", 0.05)
    monkeypatch.chdir(tmp_path)
    files = place.files("paths", {"site-01": {"weights": str(tmp_path / "weights")}})
    offer = offered(place, start=source.format(folder=tmp_path))
    with refused(RefusedError, "start_not_available", site="site-01"):
        open_offer(offer, files["site-01"])


@pytest.mark.parametrize(("theirs", "ours"), [("1" * 64, "2" * 64), (None, "2" * 64), ("1" * 64, None)])
def test_a_site_that_tells_of_other_weights_or_of_none_is_refused(theirs: str | None, ours: str | None) -> None:
    facts = {"trainable": True, "validates": True} | ({} if theirs is None else {"start": theirs})
    data = {"name": "", "modality": "", "classes": [], "names": [], "shared_test": None}
    message = Message("begin", {}, {"facts": facts, "newest": 0, "data": data})
    with refused(RefusedError, "unlike_start", site="north"):
        read_begin_reply("north", message, 0, 0, None, ours)
    assert "start" not in read_begin_reply("north", message, 0, 0, None, theirs)["facts"]


def test_the_refusal_does_not_name_a_path_of_the_own_bundle(place: Place, tmp_path: Path) -> None:
    copy = tmp_path / BUNDLE
    shutil.copytree(place.bundle, copy)
    config = copy / "configs" / "federate.json"
    content = json.loads(config.read_text())
    content["settings"]["start"] = str(tmp_path / "secret" / "w.pt")
    config.write_text(json.dumps(content))
    files = place.files("own-path", {"site-01": {"entry": {"folder": str(copy)}}})
    offer = offered(replace(place, bundle=copy))
    with refused(RefusedError, "start_not_available", site="site-01", cause="unknown_start") as caught:
        open_offer(offer, files["site-01"])
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.fields)


def test_a_site_whose_data_can_not_be_written_caches_features_in_its_run(place: Place, tmp_path: Path) -> None:
    data, state = tmp_path / "data", tmp_path / "state"
    data.mkdir()
    assert cache_folder(data, state).parent == data
    with mock.patch("os.access", return_value=False):  # tests may run as root, who can write everything
        assert cache_folder(data, state).parent == state
    assert cache_folder(None, state).parent == cache_folder(tmp_path / "absent", state).parent == state
