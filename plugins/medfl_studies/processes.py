"""Processes of a study: forks of one server process that imports torch and MONAI only once.

`RunProcesses` is the study's side. The server's side is this module, run as a program. For each request it forks a
supervisor, which forks the requested run and reports its end. A run continues if its study is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from medfl.utils.imports import quick_imports

PRELOADED_MODULES = {
    "medfl": ("medfl.workflow", "medfl.cli.main", "medfl.builtin", "medfl_report.page", "torch._dynamo"),
}
"""Mapping from a module that runs as a program to the modules that the server imports before it forks.

torch imports ``torch._dynamo``, which takes a second, when a process creates its first optimizer.
"""

STOP_SECONDS = 10.0
"""Seconds that an interrupted run gets to end by itself before it is killed."""

MAX_REQUEST_BYTES = 1 << 20
"""Largest size of a request in bytes."""


class RunProcesses:
    """The running processes of a study, which can be ended together.

    Attributes:
        stopped: Event that is set when `stop` is called; no process is launched afterwards.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def launch(self, command: list[str], log: Path) -> int:
        """Run a command line to its end, unless the processes were stopped.

        Args:
            command: Words of the command: this Python, ``-m``, a module, and its arguments.
            log: File that the output is appended to.

        Returns:
            Exit status; negative if a signal ended the process, or if its end was not reported.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command)}\n")
        assert command[:2] == [sys.executable, "-m"], command
        read, write = os.pipe()
        with open(read, encoding="ascii") as answers:
            with self._lock:
                try:
                    if self.stopped.is_set():
                        return -signal.SIGTERM
                    self._send_request({"words": command[2:], "log": str(log.absolute())}, write)
                finally:
                    os.close(write)
                pid = int(answers.readline() or 0)
                self._running.add(pid)
            status = int(answers.readline() or -signal.SIGKILL)
            with self._lock:
                self._running.discard(pid)
        return status

    def stop(self) -> None:
        """End all processes. Runs save every step, so no finished step is lost."""
        with self._lock:
            self.stopped.set()
        self._signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self._running and time.monotonic() < until:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End the server process."""
        with self._lock:
            if self._requests is not None and self._server is not None:
                self._requests.close()
                self._server.wait()
            self._requests = self._server = None

    def _send_request(self, request: dict[str, object], answer: int) -> None:
        """Send a request with a pipe for the answer; start the server process if necessary."""
        if self._requests is None:
            self._requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, "-m", __name__, str(other.fileno())]
                self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        socket.send_fds(self._requests, [json.dumps(request).encode()], [answer])

    def _signal(self, how: signal.Signals) -> None:
        """Send a signal to all running processes."""
        with self._lock:
            for pid in self._running - {0}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)


def serve_requests(requests: socket.socket) -> list[str]:
    """Serve requests until their socket closes; fork a process for each request.

    The function returns twice over: in each fork it returns the words of the requested command, for the caller to run;
    in the server it returns an empty list when the requests end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study and its runs handle Ctrl-C
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the supervisors
    while True:
        content, answers, *_ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 1)
        if not content:
            return []
        request = json.loads(content)
        with quick_imports():
            for module in PRELOADED_MODULES.get(request["words"][0], ()):
                importlib.import_module(module)
        if os.fork() == 0:
            requests.close()
            _supervise(request["log"], *answers)
            return list(request["words"])
        os.close(answers[0])


def _supervise(log: str, answer: int) -> None:
    """Fork and report how the fork ended; return only in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) != 0:
        os.write(answer, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # the study may have ended
            os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(answer)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(log, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


if __name__ == "__main__":
    words = serve_requests(socket.socket(fileno=int(sys.argv[1])))
    if words:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
