"""Launchers for NVFlare that have their job processes forked by `warm_jobs`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import threading
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import JOB_RETURN_CODE_MAPPING
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.utils.job_launcher_utils import get_credential_env


class Handle(JobHandleSpec):  # type: ignore[misc]
    """A forked process; its exit status comes through the socket."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__()
        self._said = server.makefile()
        self._process, self._status = int(self._said.readline()), JobReturnCode.UNKNOWN
        self._waiting = threading.Thread(target=self._read, daemon=True)
        self._waiting.start()

    def terminate(self) -> None:
        if self._waiting.is_alive():
            os.kill(self._process, signal.SIGKILL)

    def poll(self) -> Any:
        return self._status

    def wait(self) -> None:
        self._waiting.join()

    def _read(self) -> None:
        code = int(self._said.readline() or -signal.SIGKILL)
        self._status = JOB_RETURN_CODE_MAPPING.get(code, JobReturnCode.EXECUTION_ERROR)


class _Warm:
    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def launch_job(self, job_meta: Any, fl_ctx: Any) -> Handle:
        credentials = get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        request = {
            "command": shlex.split(self.get_command(job_meta, fl_ctx)),  # type: ignore[attr-defined]
            "folder": os.getcwd(),
            "environment": dict(os.environ) | credentials,
            "parent": os.getpid(),
        }
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._address)
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        return Handle(server)


class WarmSite(_Warm, ClientProcessJobLauncher):  # type: ignore[misc]
    """For the kit of a site."""


class WarmServer(_Warm, ServerProcessJobLauncher):  # type: ignore[misc]
    """For the kit of a server."""
