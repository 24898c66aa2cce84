"""Start and stop of a kit, with scripts in place of NVFlare's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kits_and_offers import make_kit
from refusals import refused

from medfl.errors import MedflError, SettingsError
from medfl_flare import kit as kits

RUNS = 'echo "Server started with $OMP_NUM_THREADS threads in $PATH"\nwhile :; do sleep 0.05; done\n'


def test_a_kit_is_started_once_and_its_processes_are_gone_after_stop(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", RUNS)
    (kit / "local" / "medfl-site.toml").write_text('site = "server"\nthreads = 3\n')
    assert kits.processes(kit) == []
    assert not kits.stop(kit)
    kits.start(kit, patience=600)
    try:
        assert len(kits.processes(kit)) >= 1
        log = (kit / kits.LOG_FILE_NAME).read_text()
        assert "with 3 threads" in log
        assert f"in {Path(sys.executable).parent}{os.pathsep}" in log
        with refused(SettingsError, "kit_already_running", path=str(kit), process=kits.processes(kit)[0]):
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
        with refused(SettingsError, "port_unavailable", port=port, reason="Address already in use"):
            kits.start(kit, patience=600)
    assert not (kit / kits.LOG_FILE_NAME).exists()
    errors = iter(["Address already in use"] * 3)
    monkeypatch.setattr(kits, "_port_error", lambda port: next(errors, None))
    with refused(MedflError, "process_ended", path=str(kit), status=3, output="started all the same"):
        kits.start(kit, patience=600)
    other.close()


def test_a_process_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", "echo no certificate\nexit 3\n")
    (kit / kits.LOG_FILE_NAME).write_text("Server started\n")  # of an earlier start: it must not count
    with refused(MedflError, "process_ended", path=str(kit), status=3, output="no certificate"):
        kits.start(kit, patience=600)


def test_a_site_that_does_not_reach_its_server_learns_where_that_should_be(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "site", "client", "echo trying\nwhile :; do sleep 0.05; done\n")
    try:
        with refused(MedflError, "start_timeout", path=str(kit), seconds=0.3) as caught:
            kits.start(kit, patience=0.3)
    finally:
        assert kits.stop(kit)
    why = str(caught.value).partition("Likely reason: ")[2]
    assert "fl.hospital.org" in why


def test_a_servers_jobs_are_kept_in_its_kit_wherever_that_lies(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "server", "server", "exit 0\n")
    resources = {
        "kept": 1,
        "snapshot_persistor": {"args": {"storage": {"args": {"root_dir": "/tmp/nvflare/snapshot-storage"}}}},
        "components": [{"id": "job_manager", "args": {"uri_root": "/tmp/nvflare/jobs-storage"}}],
    }
    (kit / "local" / "resources.json").write_text(json.dumps(resources))
    with refused(MedflError, "process_ended", path=str(kit), status=0):
        kits.start(kit, patience=600)
    resources_ = json.loads((kit / "local" / "resources.json").read_text())
    assert resources_["kept"] == 1
    assert resources_["components"][0]["args"]["uri_root"] == str(kit / "storage" / "jobs")
    assert "/tmp/nvflare" not in json.dumps(resources_)


def test_kinds_are_distinguished(tmp_path: Path) -> None:
    admin = make_kit(tmp_path / "admin", "admin", "")
    assert kits.read_admin_kit(admin)["username"] == "me@hospital.org"
    with refused(SettingsError, "wrong_kit", path=str(admin), expected=["client", "server"], found="admin"):
        kits.start(admin)
    with refused(SettingsError, "wrong_kit", expected="admin", found="client"):
        kits.read_admin_kit(make_kit(tmp_path / "site", "client", ""))
    with refused(SettingsError, "not_a_kit", path=str(tmp_path)):
        kits.read_kit_kind(tmp_path)


# ---- the end of whoever started a kit

TREE = """\
echo $$ >> pids
setsid sh -c 'echo $$ >> pids; trap "" TERM; sleep 600 & echo $! >> pids; while :; do sleep 0.1; done' &
(setsid sh -c 'echo $$ >> pids; exec sleep 600' &)
while [ $(wc -l < pids) -lt 4 ]; do sleep 0.05; done
echo "Successfully registered client"
while :; do sleep 0.05; done
"""
"""A script with processes in other sessions, as NVFlare's jobs: one ignores SIGTERM, one has lost its parent."""

needs_setsid = pytest.mark.skipif(shutil.which("setsid") is None, reason="this system has no setsid")


def living(numbers: list[int]) -> list[int]:
    """Return the processes that have not ended; zombies have ended."""
    words = ["ps", "-o", "pid=,state=", "-p", ",".join(map(str, numbers))]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if not line.split()[1].startswith("Z")]


def ended(numbers: list[int], seconds: float = 60.0) -> bool:
    """Return whether all processes end in time; kill the others, so that a failed test leaves none."""
    until = time.monotonic() + seconds
    while (left := living(numbers)) and time.monotonic() < until:
        time.sleep(0.05)
    for number in left:
        os.kill(number, signal.SIGKILL)
    return not left


def starts_a_tree(kit: Path, words: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Return a process that starts the kit, and all processes of the kit; the first is a guard's child."""
    code = f"import sys, time\nfrom pathlib import Path\nfrom medfl_flare import kit\nkit.{words}\n"
    code += "print('up', flush=True)\ntime.sleep(600)"
    starter = subprocess.Popen([sys.executable, "-c", code, str(kit)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    assert starter.stdout.readline() in ("up\n", "Successfully registered client\n")
    return starter, [int(number) for number in (kit / "pids").read_text().split()]


@needs_setsid
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_all_processes_of_a_kit_end_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    kit = make_kit(tmp_path / "kit", "client", f"cd {tmp_path}/kit\n{TREE}")
    starter, tree = starts_a_tree(kit, "start(Path(sys.argv[1]), restart=False)")
    with starter:
        before = living(tree)
        starter.send_signal(number)
    assert len(before) == 4
    assert ended([*tree, *kits.processes(kit)]), "all of them, and the guard itself"
    assert kits.processes(kit) == []


@needs_setsid
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_kit_in_the_foreground_ends_with_all_its_processes_on_request(tmp_path: Path, number: signal.Signals) -> None:
    kit = make_kit(tmp_path / "kit", "client", f"cd {tmp_path}/kit\n{TREE}")
    starter, tree = starts_a_tree(kit, "become_kit_process(Path(sys.argv[1]))")
    with starter:
        before = living(tree)
        starter.send_signal(number)
    assert len(before) == 4
    assert starter.returncode == -number  # for systemd an ordinary end
    assert ended(tree)


def test_a_kit_that_ends_by_itself_in_the_foreground_hands_its_status_on(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", "client", "exit 7\n")
    code = (
        "import sys\nfrom pathlib import Path\nfrom medfl_flare import kit\nkit.become_kit_process(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(kit)], check=False).returncode == 7


@needs_setsid
def test_a_kit_started_as_a_service_continues_until_it_is_stopped(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "kit", "client", 'echo "Successfully registered client"\nwhile :; do sleep 0.05; done\n')
    code = "import sys\nfrom medfl.cli.main import main\nmain(['federate', 'start', sys.argv[1]])"
    assert (
        subprocess.run([sys.executable, "-c", code, str(kit)], check=False, stdout=subprocess.DEVNULL).returncode == 0
    )
    try:
        time.sleep(1.0)  # a guard would have ended it by now
        assert kits.processes(kit)
    finally:
        assert kits.stop(kit)
    assert kits.processes(kit) == []
