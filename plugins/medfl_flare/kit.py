"""A participant's startup kit on this machine: its kind, and the start and stop of its process.

A startup kit is the folder with certificate, settings and scripts with which the server, a site or a researcher
connects to the federation.

NVFlare's own scripts start the process, with a fixed number of threads and this installation's Python. The process
writes its output to ``console.log`` in the kit.
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
from medfl_flare.sites.preflight.server import server_checks

KitKind = Literal["server", "client", "admin"]
"""Kind of a startup kit in NVFlare's words: of the server, of a site (``client``), or of a researcher (``admin``)."""
LOG_FILE_NAME = "console.log"
"""Name of the file with the output of a kit's process, in the kit's folder."""

READY_OUTPUT = {"server": "Server started", "client": "Successfully registered client"}
"""Maps each kind of kit to NVFlare's output when the process is ready."""

JOB_STORAGE = "storage"
"""Folder in a server's kit for NVFlare's jobs; NVFlare's default is below /tmp."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables that limit the number of threads of a process's libraries."""

OUTCOME_SECONDS = 15
"""Seconds that a server waits for the sites' last messages after a run, before the result can be fetched; NVFlare's
default is 900."""

PORT_SECONDS = 15.0
"""Seconds that a server's port may still be in use, by connections to a killed server, before the start fails."""

SHUTDOWN_FILE = "shutdown.fl"
"""Name of the file in a kit that tells NVFlare's script not to restart the process."""

PID_FILES = (SHUTDOWN_FILE, "pid.fl", "daemon_pid.fl", "restart.fl")
"""Names of NVFlare's files in a kit with the ids of running processes. NVFlare's script ends at once if any process has
a recorded id, so the files of dead processes must be removed before a start."""


def read_kit_kind(kit: Path) -> KitKind:
    """Return the kind of a startup kit: ``server``, ``client`` or ``admin``.

    Raises:
        SettingsError: If the folder is not a startup kit.
    """
    kinds: tuple[KitKind, ...] = ("server", "client", "admin")
    for kind in kinds:
        if (kit / "startup" / f"fed_{kind}.json").is_file():
            return kind
    raise SettingsError(
        "not_a_kit",
        f"'{kit}' is not a startup kit: expected startup/fed_server.json, fed_client.json or fed_admin.json in it. "
        "`medfl federate provision` makes kits.",
        path=kit,
    )


def read_admin_kit(kit: Path) -> Meta:
    """Return the content of a researcher's kit: a dict with the keys ``username``, ``host``, ``port`` and others.

    Raises:
        SettingsError: If the kit is not a researcher's kit.
    """
    if read_kit_kind(kit) != "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{kit}' is the kit of a {read_kit_kind(kit)}; expected a researcher's kit, named like an e-mail address",
            path=kit,
            expected="admin",
            found=read_kit_kind(kit),
        )
    admin: Meta = json.loads((kit / "startup" / "fed_admin.json").read_text(encoding="utf-8"))["admin"]
    return admin


def start(kit: Path, *, restart: bool = True, patience: float = 60.0, as_service: bool = False) -> None:
    """Start a server or a site in the background and wait until its process is ready.

    Args:
        kit: Startup kit of the server or site.
        restart: Whether NVFlare's script restarts the process if the process dies. A start without restarts is faster.
        patience: Seconds to wait.
        as_service: Whether the kit's processes continue after this process has ended, until `stop`. By default they end
            with this process, for any reason.

    Raises:
        SettingsError: If the kit is not of a server or site, or if it is already running.
        MedflError: If the process is not ready in time; with the last lines of its output.
    """
    kind = _prepare_start(kit)
    log = kit / LOG_FILE_NAME
    said_before = log.stat().st_size if log.is_file() else 0
    with log.open("ab") as output:
        process = subprocess.Popen(
            start_command(kit, restart=restart)
            if as_service
            else guard.guard_command(kit, os.getpid(), restart=restart),
            env=process_environment(kit),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def came_up() -> bool:
        """Return whether the output contains NVFlare's ready message."""
        return READY_OUTPUT[kind] in _read_output(log, said_before)

    if _wait_until(lambda: came_up() or process.poll() is not None, patience) and came_up():
        return
    last = " | ".join(_read_output(log, said_before).strip().splitlines()[-3:])[-600:]
    if process.poll() is not None:
        why = f"{_likely_reason(kit, kind)}(see '{log}')"
        raise MedflError(
            "process_ended",
            f"the {kind} of '{kit}' ended with status {process.returncode}: {last}. {why}",
            path=kit,
            status=process.returncode,
            output=last,
        )
    raise MedflError(
        "start_timeout",
        f"the {kind} of '{kit}' is not ready after {patience:g} s; it keeps trying (`medfl federate stop {kit}` ends "
        f"it). {_likely_reason(kit, kind)}Its last output: {last} (see '{log}')",
        path=kit,
        seconds=patience,
    )


def become_kit_process(kit: Path) -> None:
    """Replace this process by a server's or a site's process, for a service manager; does not return.

    The kit's processes end with the parent of this process, and on SIGTERM, SIGINT and SIGHUP.

    Raises:
        SettingsError: If the kit is not of a server or site, or if it is already running.
    """
    _prepare_start(kit)
    arguments = guard.guard_command(kit, os.getppid(), restart=False)
    os.execve(arguments[0], arguments, process_environment(kit))


def start_command(kit: Path, *, restart: bool) -> list[str]:
    """Return the command line that starts a kit in the foreground."""
    return [str((kit / "startup" / "sub_start.sh").resolve()), *([] if restart else [guard.ONCE_OPTION])]


def process_environment(kit: Path) -> dict[str, str]:
    """Return the environment of a kit's process.

    This installation is first in PATH, and the number of threads is that in the site's own file.
    """
    threads = {name: str(_threads(kit)) for name in THREAD_VARIABLES}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    waits = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": str(OUTCOME_SECONDS)}
    return {**os.environ, **waits, **threads, "PATH": path}


def _threads(kit: Path) -> int:
    """Return the number of threads in the site's own file, or 1 if the file is invalid."""
    try:
        return int(tomllib.loads((kit / "local" / "medfl-site.toml").read_text(encoding="utf-8")).get("threads", 1))
    except (OSError, ValueError, TypeError):
        return 1  # `medfl site check` and every run report the error in the file


def _prepare_start(kit: Path) -> KitKind:
    """Prepare the start of a kit and return its kind; raise if it can't be started.

    Removes old process records, checks the server's port, and moves a server's job storage into the kit.
    """
    kind = read_kit_kind(kit)
    if kind == "admin":
        raise SettingsError(
            "wrong_kit",
            f"'{kit}' is a researcher's kit, which has no process to start: submit a run with it.",
            path=kit,
            expected=("client", "server"),
            found=kind,
        )
    if running := processes(kit):
        raise SettingsError(
            "kit_already_running",
            f"'{kit}' is already running (process {running[0]}); `medfl federate stop {kit}` ends it.",
            path=kit,
            process=running[0],
        )
    _remove_process_records(kit)
    if kind == "server":
        _check_port_free(kit)
        _set_job_storage(kit)
    return kind


def _remove_process_records(kit: Path) -> None:
    """Remove NVFlare's process records. The caller has checked that no such process is running."""
    for name in PID_FILES:
        (kit / name).unlink(missing_ok=True)


def _check_port_free(kit: Path) -> None:
    """Raise if the server's port stays in use.

    NVFlare reports readiness even if it can't listen. A port stays in use for a while after a kill.
    """
    config = json.loads((kit / "startup" / "fed_server.json").read_text(encoding="utf-8"))
    port = int(config["servers"][0]["service"]["target"].rpartition(":")[2])
    if not _wait_until(lambda: _port_error(port) is None, PORT_SECONDS):
        reason = _port_error(port)
        raise SettingsError(
            "port_unavailable",
            f"the server of '{kit}' can't listen at port {port}: {reason or 'the port was in use'}",
            port=port,
            reason=reason,
        )


def _port_error(port: int) -> str | None:
    """Return the reason why a process can't listen at a port of this machine, or None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror
    return None


def _set_job_storage(kit: Path) -> None:
    """Set NVFlare's job storage to a folder within the kit instead of /tmp. Updates the path if the kit was moved."""
    path = kit / "local" / "resources.json"
    if not path.is_file():
        return
    text = path.read_text(encoding="utf-8")
    resources = json.loads(text)
    store = (kit / JOB_STORAGE).resolve()
    snapshots = resources["snapshot_persistor"]["args"]["storage"]["args"]
    jobs = next(part["args"] for part in resources["components"] if part["id"] == "job_manager")
    snapshots["root_dir"], jobs["uri_root"] = str(store / "snapshots"), str(store / "jobs")
    store.mkdir(mode=0o700, exist_ok=True)
    if resources != json.loads(text):
        path.write_text(json.dumps(resources, indent=2) + "\n", encoding="utf-8")


def _read_output(log: Path, since: int) -> str:
    """Return the output of a kit's process after a position."""
    with log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


def _likely_reason(kit: Path, kind: KitKind) -> str:
    """Return a likely reason why a site did not connect; empty for a server."""
    if kind == "server":
        return ""
    for _, check in server_checks(kit):
        try:
            check()
        except MedflError as error:
            return f"Likely reason: {error}. "
    return (
        "The server can be reached and accepts the kit. Another process may use this site's name, such as one started "
        "from a copy of its kit: each interrupts the other's connection; stop one. "
    )


def stop(kit: Path, patience: float = 20.0) -> bool:
    """Stop a kit: NVFlare's script that restarts it, its process, and its job processes.

    The state on disk is valid at any moment, so that a new job can continue a stopped run.

    Args:
        kit: Startup kit of a server or site.
        patience: Seconds for the processes to end by themselves.

    Returns:
        Whether a process was running.

    Raises:
        MedflError: If a process does not end.
    """
    read_kit_kind(kit)
    if not processes(kit):
        return False
    (kit / SHUTDOWN_FILE).touch()  # as NVFlare's stop_fl.sh does, which not every kit has
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        for process in processes(kit):
            _send_signal(process, signal_)
        if _wait_until(lambda: not processes(kit), patience / 2):
            _remove_process_records(kit)
            return True
    raise MedflError(
        "processes_not_ending", f"processes {processes(kit)} of '{kit}' did not end; end them yourself", path=kit
    )


def _send_signal(process: int, signal_: signal.Signals) -> None:
    """Send a signal to a process; ignore that it has already ended."""
    with contextlib.suppress(ProcessLookupError):  # the process has already ended
        os.kill(process, signal_)


def _wait_until(done: Callable[[], bool], patience: float) -> bool:
    """Wait until a condition holds; return False if it does not hold in time."""
    end = time.monotonic() + patience
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
