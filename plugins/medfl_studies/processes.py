"""The processes of a study: forks of one process that imports torch and MONAI once for all of them.

`Processes` is the study's side. The other side is this module as a program: for each request it forks a supervisor,
which forks what was asked for and tells how it ended. A run whose study was killed goes on, as any process would.
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

PRELOADED = {"medfl": ("medfl.workflow", "medfl.cli.main")}
"""Module that is run to those that are imported before it is forked."""

PATIENCE = 10.0
"""Seconds that an interrupted run gets to end by itself."""

REQUEST = 1 << 20
"""Bytes of a request, at most."""


class Processes:
    """The processes at work, so that all can be ended together."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def launch(self, command: list[str], log: Path) -> int:
        """Run a command line to its end, unless everything was stopped.

        Args:
            command: This Python, ``-m``, a module, and its arguments.
            log: The file to which what it prints is added.

        Returns:
            Its status; negative if a signal ended it, or if nothing was heard of its end.
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
                    self._ask({"words": command[2:], "log": str(log.absolute())}, write)
                finally:
                    os.close(write)
                pid = int(answers.readline() or 0)
                self._running.add(pid)
            status = int(answers.readline() or -signal.SIGKILL)
            with self._lock:
                self._running.discard(pid)
        return status

    def stop(self) -> None:
        """End all processes. Runs save each step, so nothing is lost."""
        with self._lock:
            self.stopped.set()
        self._signal(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while self._running and time.monotonic() < until:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End the process that forks."""
        with self._lock:
            if self._requests is not None and self._server is not None:
                self._requests.close()
                self._server.wait()
            self._requests = self._server = None

    def _ask(self, request: dict[str, object], answer: int) -> None:
        if self._requests is None:
            self._requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, "-m", __name__, str(other.fileno())]
                self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()])
        socket.send_fds(self._requests, [json.dumps(request).encode()], [answer])

    def _signal(self, how: signal.Signals) -> None:
        with self._lock:
            for pid in self._running - {0}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request; returns in each fork, with the words that it is to run, and without any at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study and its runs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    while True:
        content, answers, *_ = socket.recv_fds(requests, REQUEST, 1)
        if not content:
            return []
        request = json.loads(content)
        with quick_imports():
            for module in PRELOADED.get(request["words"][0], ()):
                importlib.import_module(module)
        if os.fork() == 0:
            requests.close()
            _supervise(request["log"], *answers)
            return list(request["words"])
        os.close(answers[0])


def _supervise(log: str, answer: int) -> None:
    """Fork, and tell how the fork ended; returns in the fork alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) != 0:
        os.write(answer, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(answer, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(answer)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(log, "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


if __name__ == "__main__":
    words = serve(socket.socket(fileno=int(sys.argv[1])))
    if words:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
