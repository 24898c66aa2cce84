"""Failures of real consortia: a run survives each of them, or an error names the cause and the remedy.

docs/deploy.md lists all ten failures; tests/medfl_flare/processes tests the ones that need NVFlare's processes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kits_and_offers import make_kit
from loopback import SITES, Loopback
from refusals import refused
from remote_cases import Place, mini_place, offered, outcome, serve, silent

from medfl.engine.store import lock_for_writing
from medfl.errors import MedflError, RefusedError, StoreError
from medfl_flare import kit as kits
from medfl_flare.backend.messages import Limits, Message, pack, unpack
from medfl_flare.sites.data_changes import DataChangeDetector


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return mini_place(tmp_path_factory.mktemp("failures"))


@pytest.fixture(scope="module")
def unbroken(place: Place) -> dict[str, Any]:
    files = place.files("unbroken")
    give_secrets(files)
    folder, _, _ = serve(files, offered(place, rounds=2))
    return outcome(folder, files)


def give_secrets(files: Any) -> None:
    """Write the same secrets in every trial."""
    for site in SITES:
        files[site].state.mkdir(parents=True, exist_ok=True)
        (files[site].state / "secret").write_bytes(site.encode().ljust(32))
        (files[site].state / "secret").chmod(0o600)


def at_step(number: int, act: Callable[[], None]) -> Callable[[str, bytes], bytes]:
    """Run an action when the last site gets its n-th message with a request."""
    seen = 0

    def tamper(site: str, blob: bytes) -> bytes:
        nonlocal seen
        message = unpack(blob, Limits())
        if site == SITES[-1] and message.kind == "step" and message.meta["request"] is not None:
            seen += 1
            if seen == number:
                act()
        return blob

    return tamper


# ---- a site that leaves after its first order


def test_a_site_that_leaves_early_is_named_and_comes_back_with_the_bits_of_an_unbroken_run(
    place: Place, unbroken: dict[str, Any]
) -> None:
    files = place.files("leaves")
    give_secrets(files)
    _, progress, _ = serve(files, offered(place, rounds=2), tamper=silent(SITES[1], since="step"))
    assert progress.state == "incomplete"
    assert "Missing: site-02" in progress.message
    folder, progress, _ = serve(files, offered(place, rounds=2))
    assert (progress.state, progress.missing) == ("finished", {})
    assert outcome(folder, files) == unbroken


# ---- a full disk at the server


def test_a_full_disk_at_the_server_ends_the_run_without_blame_and_the_next_job_continues(
    place: Place, unbroken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = place.files("full")
    give_secrets(files)
    write = Path.write_bytes

    def full(path: Path, blob: bytes) -> int:
        if path.parent.name == "replies":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, blob)

    offer, loopback = offered(place, rounds=2, min_replies=1), Loopback(files)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with refused(StoreError, "unwritable_file") as caught:
            loopback.serve(offer)
    assert "No site is at fault" in str(caught.value)
    loopback.restart()
    summary = files["server"].state / "runs" / "one" / "summary.json"
    assert not summary.exists(), "the run did not go on with fewer sites"
    folder, progress = loopback.serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    assert outcome(folder, files)["rows"] == unbroken["rows"]
    loopback.restart()


# ---- a site whose data changed between rounds


def changed_images(place: Place, name: str) -> Path:
    """Give the last site its own copy of the data, so that it can be changed."""
    return Path(shutil.copytree(place.data, place.root / f"data-{name}"))


def test_data_that_change_between_rounds_are_noticed_and_a_run_continues_when_they_are_back(place: Place) -> None:
    data = changed_images(place, "changed")
    (data / "partition.json").unlink()  # its digests would tell, too, when the next job begins
    changes = {site: {"entry": {"data": str(data / site)}} for site in SITES}
    files = place.files("changed", changes)
    array = data / "images.npy"
    before, images = array.read_bytes(), np.load(array)

    def change() -> None:
        np.save(array, 255 - images)

    _, progress, _ = serve(files, offered(place, rounds=2), tamper=at_step(2, change))
    assert progress.state == "incomplete"
    why = progress.missing[SITES[-1]]
    assert "the data of 'site-03' changed since it joined the run (images.npy)" in why
    assert "restore the files and resume it, or begin a new run" in why
    assert str(place.root) not in why
    _, progress, _ = serve(files, offered(place, rounds=2))
    assert "differ from the data with which it began this run" in progress.missing[SITES[-1]]
    array.write_bytes(before)
    _, progress, _ = serve(files, offered(place, rounds=2))
    assert (progress.state, progress.missing) == ("finished", {})


def test_a_file_that_was_only_touched_is_the_same(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "images.npy"
    path.write_bytes(b"pixels")
    watch = DataChangeDetector("site-01", {path: hashlib.sha256(b"pixels").hexdigest()})
    os.utime(path, (1, 1))
    watch.check()
    shutil.copy(path, tmp_path / "other")
    os.replace(tmp_path / "other", path)
    watch.check()
    path.unlink()
    with refused(RefusedError, "changed_data", site="site-01", files=["images.npy"]):
        watch.check()


# ---- a model of 750 MB


def test_a_model_above_the_limit_is_refused_with_both_sizes(place: Place) -> None:
    files = place.files("large", {SITES[0]: {"max_message_mb": 1}})
    _, progress, _ = serve(files, offered(place, rounds=1, network_name="cnn4", steps=1, min_replies=2))
    assert "expected at most 1000000 bytes, got" in progress.missing[SITES[0]]
    assert "raise the receiver's limit" in progress.missing[SITES[0]]


@pytest.mark.parametrize("megabytes", [8, pytest.param(750, marks=pytest.mark.slow)])
def test_a_large_model_goes_through_with_a_few_times_its_memory(megabytes: int) -> None:
    """Pack, check and unpack, as server and sites do."""
    size = megabytes * 10**6 // 4
    tensors = {f"model/{part}": torch.full((size // 10,), float(part)) for part in range(10)}
    blob = pack(Message("step", tensors, {"request": None}))
    assert 0 <= len(blob) - 4 * (size // 10) * 10 < 10_000
    with refused(RefusedError, "message_too_large", maximum=len(blob) - 1, found=str(len(blob))):
        unpack(blob, Limits(max_bytes=len(blob) - 1))
    del tensors
    arrived = unpack(blob, Limits(max_bytes=len(blob))).tensors
    assert all(bool((tensor == int(name.rpartition("/")[2])).all()) for name, tensor in arrived.items())


# ---- two sites with one name


def test_a_second_machine_with_a_sites_name_is_named_when_it_joins_a_run(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The second machine has the name but not the state. Both have contributed, and the server reports it."""
    data = changed_images(place, "twin")
    files = place.files("twins")
    other = place.files("twins-other", {SITES[0]: {"entry": {"data": str(data / SITES[1])}}})
    whole = Loopback(files)
    assert whole.serve(offered(place, rounds=1, min_replies=2))[1].state == "finished"
    whole.restart()
    twins = Loopback(files | {SITES[0]: other[SITES[0]]})
    _, progress = twins.serve(offered(place, rounds=2, min_replies=2))
    assert (progress.state, progress.missing) == ("finished", {})
    assert "site-01 continues after its step 0, though it had answered later steps:" in caplog.text
    assert "or another machine uses its name" in caplog.text
    for service in (*whole.services.values(), *twins.services.values()):
        service.close()


def test_a_second_process_of_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVFlare only reports "Login failed": each process interrupts the other's connection."""
    kit = make_kit(tmp_path / "site", "client", "echo Login failed\nexit 101\n")
    monkeypatch.setattr(kits, "server_checks", lambda kit: [("port", lambda: "it answers")])
    with refused(MedflError, "process_ended", path=str(kit), status=101, output="Login failed") as caught:
        kits.start(kit, patience=30)
    assert "Another process may use this site's name" in str(caught.value)


# ---- a stale lock


def test_a_lock_that_a_dead_process_left_holds_no_one_up(place: Place) -> None:
    files = place.files("stale")
    for participant in ("server", *SITES):
        run = files[participant].state / "runs" / "one"
        run.mkdir(parents=True)
        (run / ".lock").write_text("4194304\n")
    _, progress, _ = serve(files, offered(place, rounds=1))
    assert progress.state == "finished"


def test_a_run_that_another_process_holds_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("medfl_flare.sites.site_run.REMOTE_LOCK_SECONDS", 0.05)
    files = place.files("held")
    with lock_for_writing(files[SITES[0]].state / "runs" / "one"):
        _, progress, _ = serve(files, offered(place, rounds=1, min_replies=2))
    assert "'site-01' can't take part: a problem with its store" in progress.missing[SITES[0]]


# ---- a wrong generation of the kit


def test_a_kit_that_reaches_no_server_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> str:
        raise MedflError("other_generation", "the server is of another generation")

    kit = make_kit(tmp_path / "site", "client", "echo trying\nwhile :; do sleep 0.05; done\n")
    monkeypatch.setattr(kits, "server_checks", lambda kit: [("kit's generation", wrong)])
    try:
        with refused(MedflError, "start_timeout", path=str(kit), seconds=0.3) as caught:
            kits.start(kit, patience=0.3)
    finally:
        kits.stop(kit)
    assert "Likely reason: the server is of another generation" in str(caught.value)


def test_the_record_of_a_kit_that_is_not_json_names_the_file(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "site", "client", "exit 0\n")
    (kit / "startup" / "fed_client.json").write_text(json.dumps({}))
    with refused(MedflError, "invalid_kit", path=str(kit / "startup" / "fed_client.json")):
        kits.server_checks(kit)[0][1]()
