"""NVFlare's job processes, forked from one that has imported torch, MONAI and NVFlare, and nothing of medfl.

A job process of NVFlare's own spends ten seconds of CPU on imports; a federation's job begins with four of them. Here
they are forked: real processes with ids, command lines, exit statuses and environments of their own, which can be
killed. A file in the folder ``holds`` makes them stand still in the middle of a step.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

HEAVY = (
    "torch._dynamo",
    "monai.bundle",
    "safetensors.torch",
    "nvflare.app_common.decomposers.numpy_decomposers",
    "nvflare.app_common.executors.client_api_executor",
    "nvflare.app_common.resource_managers.gpu_resource_manager",
    "nvflare.fuel.f3.drivers.aio_grpc_driver",
    "nvflare.fuel.f3.drivers.aio_http_driver",
    "nvflare.fuel.f3.drivers.grpc_driver",
    "nvflare.fuel.f3.drivers.tcp_driver",
    "nvflare.private.fed.app.client.worker_process",
    "nvflare.private.fed.app.server.runner_process",
)


def serve(folder: Path) -> dict[str, Any] | None:
    """Fork a process for each request until the input ends, and then kill all that are left.

    Args:
        folder: Where the socket is made.

    Returns:
        In a forked process what it is to do; None in this one.
    """
    children: dict[int, tuple[int, socket.socket]] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        server.listen(64)
        print("ready", flush=True)
        while sys.stdin not in (ready := select.select([server, sys.stdin, *children], [], [])[0]):
            for number in ready:
                if number is server:
                    client, _ = server.accept()
                    job, files = _receive(client)
                    child = os.fork()
                    if not child:
                        for target, file in enumerate(files):
                            os.dup2(file, target)
                        for number, (_, other) in children.items():
                            os.close(number)
                            other.close()
                        client.close()
                        return job
                    for file in files:
                        os.close(file)
                    client.sendall(f"{child}\n".encode())
                    children[os.pidfd_open(child)] = child, client
                else:
                    child, client = children.pop(number)
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    os.close(number)
                    with client:
                        _tell(client, status)
        for child, _ in children.values():
            os.kill(child, signal.SIGKILL)
    return None


def _tell(client: socket.socket, status: int) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone
        client.sendall(f"{status}\n".encode())


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, files, _, _ = socket.recv_fds(client, 1 << 16, 3)
    while not text.endswith(b"\n"):
        text += client.recv(1 << 16)
    return json.loads(text), files


def carry_out(job: dict[str, Any], holds: Path) -> None:
    """Run ``python -m MODULE ...`` as the main program of this process."""
    _, flag, module, *words = command = job["command"]
    assert flag == "-m"
    _show(command)
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    os.getppid = lambda: job["parent"]  # NVFlare watches it
    os.fsync = lambda descriptor: None  # no test makes a power cut
    os.replace = _holding(os.replace, holds)
    sys.argv[:] = [module, *words]
    del sys.modules[module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(command: list[str]) -> None:
    """Write a command line over this process's own, for ``ps``."""
    start, end = (int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    text = b"\0".join(word.encode() for word in command)
    assert len(text) < end - start
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _holding(replace: Any, holds: Path) -> Any:
    """`os.replace` that stands still, just before it, where a file in `holds` has a pattern of its target.

    The file's second line is the number of such calls in a process that pass before.
    """
    passed: dict[Path, int] = {}

    def held(source: Any, target: Any, **options: Any) -> None:
        for hold in holds.glob("*.hold"):
            pattern, count = hold.read_text().splitlines()
            if fnmatch.fnmatch(str(target), pattern):
                passed[hold] = passed.get(hold, 0) + 1
                if passed[hold] <= int(count):
                    continue
                mark = hold.with_suffix(".mark")
                mark.write_text(str(os.getpid()))
                replace(mark, hold.with_suffix(".held"))
                while True:
                    time.sleep(3600)
        replace(source, target, **options)

    return held


if __name__ == "__main__":
    place = Path(sys.argv[1])
    for heavy in HEAVY:
        importlib.import_module(heavy)
    assert not [module for module in sys.modules if module.startswith("medfl")]
    gc.collect()
    gc.freeze()
    if (request := serve(place)) is not None:
        carry_out(request, place / "holds")
