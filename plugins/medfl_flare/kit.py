"""A participant's startup kit on this machine: what it is, and starting and stopping its process.

NVFlare's own scripts do the work. The process gets explicit numbers of threads and this installation's Python; what it
says goes to ``console.log`` in the kit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from medfl.errors import MedflError, SettingsError
from medfl.types import Meta
from medfl_flare import guard
from medfl_flare.guard import processes
from medfl_flare.sites.preflight.server import check_server

KitKind = Literal["server", "client", "admin"]
LOG = "console.log"
"""Where the process of a kit writes, in its folder."""

UP = {"server": "Server started", "client": "Successfully registered client"}
"""What NVFlare says when a participant is up."""

STORAGE = "storage"
"""Folder in a server's kit for NVFlare's jobs; its default is below /tmp."""

THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables that limit a process to so many threads before any library is imported."""

OUTCOME_SECONDS = 15
"""How long a server waits for the sites' last words after a run, before the result can be fetched; NVFlare's is 900."""

PORT_SECONDS = 15.0
"""How long a server's port may still be taken, by connections to one that was killed, before it is not started."""

PID_FILES = ("shutdown.fl", "pid.fl", "daemon_pid.fl", "restart.fl")
"""NVFlare's notes of running processes; its script ends at once where another process has the number in them."""


def kind_of(kit: Path) -> KitKind:
    """Whose kit it is.

    Raises:
        SettingsError: If the folder is no startup kit.
    """
    kinds: tuple[KitKind, ...] = ("server", "client", "admin")
    for kind in kinds:
        if (kit / "startup" / f"fed_{kind}.json").is_file():
            return kind
    raise SettingsError(
        "not_a_kit",
        f"'{kit}' is no startup kit: expected startup/fed_server.json, fed_client.json or fed_admin.json in it. "
        "`medfl federate provision` makes kits.",
        path=kit,
    )


def admin_of(kit: Path) -> Meta:
    """What a researcher's kit says: ``username``, ``host``, ``port`` and more.

    Raises:
        SettingsError: If it is not a researcher's kit.
    """
    if kind_of(kit) != "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{kit}' is the kit of a {kind_of(kit)}; expected the researcher's, named by an e-mail",
            path=kit,
            expected="admin",
            found=kind_of(kit),
        )
    admin: Meta = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    return admin


def start(kit: Path, *, restart: bool = True, patience: float = 60.0, as_service: bool = False) -> None:
    """Start a server or a site in the background and wait until it says that it is up.

    Args:
        kit: Its startup kit.
        watch: Whether NVFlare's script watches the process and starts it again should it die. Without it is quicker.
        patience: Seconds to wait.
        as_service: Whether the kit's processes go on after this process has ended, until `stop`. By default they end
            with this process, in whatever way it ends.

    Raises:
        SettingsError: If it is no kit of a server or site, or runs already.
        MedflError: If it did not come up, with the last lines that it said.
    """
    kind = _startable(kit)
    log = kit / LOG
    said_before = log.stat().st_size if log.is_file() else 0
    with log.open("ab") as output:
        process = subprocess.Popen(
            command(kit, restart=restart) if as_service else guard.arguments(kit, os.getpid(), restart=restart),
            env=environment(kit),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def came_up() -> bool:
        return UP[kind] in _said(log, said_before)

    if _wait(lambda: came_up() or process.poll() is not None, patience) and came_up():
        return
    last = " | ".join(_said(log, said_before).strip().splitlines()[-3:])[-600:]
    if process.poll() is not None:
        why = f"{_reason(kit, kind)}(see '{log}')"
        raise MedflError(
            "process_ended",
            f"the {kind} of '{kit}' ended with status {process.returncode}: {last}. {why}",
            path=kit,
            status=process.returncode,
            output=last,
        )
    raise MedflError(
        "start_timeout",
        f"the {kind} of '{kit}' is not up after {patience:g} s; it goes on trying (`medfl federate stop {kit}` ends "
        f"it). {_reason(kit, kind)}It said last: {last} (see '{log}')",
        path=kit,
        seconds=patience,
    )


def run_here(kit: Path) -> None:
    """Become the process of a server or a site, for a service manager; does not return.

    The kit's processes end with the process that started this one, and on SIGTERM, SIGINT and SIGHUP.

    Raises:
        SettingsError: If it is no kit of a server or site, or runs already.
    """
    _startable(kit)
    arguments = guard.arguments(kit, os.getppid(), restart=False)
    os.execve(arguments[0], arguments, environment(kit))


def command(kit: Path, *, restart: bool) -> list[str]:
    """The command line that starts a kit, in the foreground."""
    return [str((kit / "startup" / "sub_start.sh").resolve()), *([] if restart else [guard.ONCE])]


def environment(kit: Path) -> dict[str, str]:
    """The environment of a kit's process: this installation first in PATH, threads as the site's own file says."""
    threads = {name: str(_threads(kit)) for name in THREADS}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    waits = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": str(OUTCOME_SECONDS)}
    return {**os.environ, **waits, **threads, "PATH": path}


def _threads(kit: Path) -> int:
    try:
        return int(tomllib.loads((kit / "local" / "medfl-site.toml").read_text(encoding="utf-8")).get("threads", 1))
    except (OSError, ValueError, TypeError):
        return 1  # `medfl site check`, and every run, says what is wrong with the file


def _startable(kit: Path) -> KitKind:
    kind = kind_of(kit)
    if kind == "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{kit}' is a researcher's kit, there is nothing to start: submit a run with it.",
            path=kit,
            expected=("client", "server"),
            found=kind,
        )
    if running := processes(kit):
        raise SettingsError(
            "kit_already_running",
            f"'{kit}' runs already (process {running[0]}); `medfl federate stop {kit}` ends it.",
            path=kit,
            process=running[0],
        )
    _forget_processes(kit)
    if kind == "server":
        _check_port_free(kit)
        _keep_jobs_in(kit)
    return kind


def _forget_processes(kit: Path) -> None:
    """Remove notes of processes, none of which runs any more."""
    for name in PID_FILES:
        (kit / name).unlink(missing_ok=True)


def _check_port_free(kit: Path) -> None:
    """NVFlare says that it is up even where it can't listen. After a kill a port may still be taken for a while."""
    config = json.loads((kit / "startup" / "fed_server.json").read_text(encoding="utf-8"))
    port = int(config["servers"][0]["service"]["target"].rpartition(":")[2])
    if not _wait(lambda: _port_error(port) is None, PORT_SECONDS):
        reason = _port_error(port)
        raise SettingsError(
            "port_unavailable",
            f"the server of '{kit}' can't listen at port {port}: {reason or 'it was taken'}",
            port=port,
            reason=reason,
        )


def _port_error(port: int) -> str | None:
    """Why nobody could listen at a port of this machine; None if one could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror
    return None


def _keep_jobs_in(kit: Path) -> None:
    """Move NVFlare's storage of jobs from /tmp, where it is by default, into the kit, wherever that lies now."""
    path = kit / "local" / "resources.json"
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    resources = json.loads(text)
    store = (kit / STORAGE).resolve()
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
    jobs = next(part["args"] for part in resources["components"] if part["id"] == "job_manager")
    snapshots["root_dir"], jobs["uri_root"] = str(store / "snapshots"), str(store / "jobs")
    store.mkdir(mode=0o700, exist_ok=True)
    if resources != json.loads(text):
        path.write_text(json.dumps(resources, indent=2) + "\n", encoding="utf-8")


def _said(log: Path, since: int) -> str:
    with log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


def _reason(kit: Path, kind: KitKind) -> str:
    if kind == "server":
        return ""
    for _, check in check_server(kit):
        try:
            check()
        except MedflError as error:
            return f"Likely why: {error}. "
    return (
        "The server can be reached and takes the kit: does another process have this site's name, as one started from "
        "a copy of its kit? Each takes the other's connection away; stop one. "
    )


def stop(kit: Path, patience: float = 20.0) -> bool:
    """Stop a kit: NVFlare's script that watches it, its process, and those of its jobs.

    State on disk is written so that it may be stopped at any moment; a run goes on with the next job.

    Args:
        kit: Its startup kit.
        patience: Seconds to wait for the processes to go by themselves.

    Returns:
        Whether something ran.

    Raises:
        MedflError: If a process does not go.
    """
    kind_of(kit)
    if not processes(kit):
        return False
    subprocess.run([str(kit / "startup" / "stop_fl.sh")], input="y", text=True, capture_output=True, check=False)
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        for process in processes(kit):
            _send(process, signal_)
        if _wait(lambda: not processes(kit), patience / 2):
            _forget_processes(kit)
            return True
    raise MedflError(
        "processes_not_ending", f"processes {processes(kit)} of '{kit}' do not end; end them yourself", path=kit
    )


def _send(process: int, signal_: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it went by itself
        os.kill(process, signal_)


def _wait(done: Callable[[], bool], patience: float) -> bool:
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
