"""Starting and stopping a kit, with scripts that stand for NVFlare's."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from kits_and_offers import make_kit

from medfl.deploy import kit as kits
from medfl.errors import MedflError, SettingsError

RUNS = 'echo "Server started with $OMP_NUM_THREADS threads in $PATH"\nwhile :; do sleep 0.05; done\n'


def test_a_kit_is_started_once_and_its_processes_are_gone_after_stop(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", RUNS)
    (kit / "local" / "medfl-site.toml").write_text('site = "server"\nthreads = 3\n')
    assert kits.processes(kit) == []
    assert not kits.stop(kit)
    kits.start(kit, patience=600)
    try:
        assert len(kits.processes(kit)) >= 1
        log = (kit / kits.LOG).read_text()
        assert "with 3 threads" in log
        assert f"in {Path(sys.executable).parent}{os.pathsep}" in log
        with pytest.raises(SettingsError, match="runs already"):
            kits.start(kit)
    finally:
        assert kits.stop(kit)
    assert kits.processes(kit) == []


def test_a_server_waits_for_its_port_and_is_not_started_where_that_stays_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = make_kit(tmp_path / "server", "server", "echo started all the same\nexit 3\n")
    other = socket.create_server(("", 0))
    port = other.getsockname()[1]
    service = {"service": {"target": f"localhost:{port}"}}
    (kit / "startup" / "fed_server.json").write_text(json.dumps({"servers": [service]}))
    with monkeypatch.context() as patched:
        patched.setattr(kits, "PORT_SECONDS", 0.3)
        with pytest.raises(SettingsError, match=f"can't listen at port {port}: Address already in use"):
            kits.start(kit, patience=600)
    assert not (kit / kits.LOG).exists()
    errors = iter(["Address already in use"] * 3)
    monkeypatch.setattr(kits, "_port_error", lambda port: next(errors, None))
    with pytest.raises(MedflError, match="ended with status 3: started all the same"):
        kits.start(kit, patience=600)
    other.close()


def test_a_process_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", "echo no certificate\nexit 3\n")
    (kit / kits.LOG).write_text("Server started\n")  # of an earlier start: it must not count
    with pytest.raises(MedflError, match="ended with status 3: no certificate"):
        kits.start(kit, patience=600)


def test_a_site_that_does_not_reach_its_server_is_told_where_that_should_be(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "site", "client", "echo trying\nwhile :; do sleep 0.05; done\n")
    try:
        with pytest.raises(MedflError, match="Likely why: .*fl.hospital.org"):
            kits.start(kit, patience=0.3)
    finally:
        assert kits.stop(kit)


def test_a_servers_jobs_are_kept_in_its_kit_wherever_that_lies(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", "exit 0\n")
    resources = {
        "kept": 1,
        "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "/tmp/nvflare/snapshot-storage"}}}},
        "components": [{"id": "job_manager", "args": {"uri_root": "/tmp/nvflare/jobs-storage"}}],
    }
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    with pytest.raises(MedflError, match="ended with status 0"):
        kits.start(kit, patience=600)
    resources_ = json.loads((kit / "local" / "resources.json").read_text())
    assert resources_["kept"] == 1
    assert resources_["components"][0]["args"]["uri_root"] == str(kit / "storage" / "jobs")
    assert "/tmp/nvflare" not in json.dumps(resources_)


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    admin = make_kit(tmp_path / "admin", "admin", "")
    assert kits.admin_of(admin)["username"] == "me@hospital.org"
    with pytest.raises(SettingsError, match="nothing to start"):
        kits.start(admin)
    with pytest.raises(SettingsError, match="kit of a client; expected the researcher's"):
        kits.admin_of(make_kit(tmp_path / "site", "client", ""))
    with pytest.raises(SettingsError, match="is no startup kit"):
        kits.kind_of(tmp_path)
