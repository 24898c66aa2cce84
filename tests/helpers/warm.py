"""Commands in processes that begin with torch and MONAI imported, which takes ten times as long as most of the rest.

A process imports both, but nothing of medfl, and forks for each command. A folder for ``PATH`` holds a ``medfl`` and a
``python`` that hand their arguments, folder, environment and open files on to it. Only ``python -m`` begins like that.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAVY = ("torch._dynamo", "monai.bundle")
"""Modules that are imported beforehand; torch's optimisers import the first one."""

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = {{"words": ["{name}", *sys.argv[1:]], "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    status = server.recv(8)
sys.exit(int(status))
"""


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """Commands ``medfl`` and ``python -m`` that start at once, for as long as the context lasts.

    Args:
        folder: An empty folder.

    Yields:
        The folder to put first into ``PATH``.
    """
    address = str(folder / "socket")
    command = [sys.executable, __file__, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            (folder / "bin").mkdir()
            for name in ("medfl", "python"):
                script = folder / "bin" / name
                script.write_text(CLIENT.format(python=sys.executable, address=address, name=name))
                script.chmod(0o755)
            yield folder / "bin"
        finally:
            assert server.stdin is not None
            server.stdin.close()


def serve(address: str) -> dict[str, Any] | None:
    """Answer requests until the input ends.

    Returns:
        The request to execute in a forked process, which has the requester's files; None in this process.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        print("ready", flush=True)
        while server in select.select([server, sys.stdin], [], [])[0]:
            client, _ = server.accept()
            with client:
                job, files = _receive(client)
                child = os.fork()
                if not child:
                    for number, file in enumerate(files):
                        os.dup2(file, number)
                        os.close(file)
                    _renew_streams()
                    return job
                for file in files:
                    os.close(file)
                _, status = os.waitpid(child, 0)
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return None


def _renew_streams() -> None:
    """Open the standard streams again, since the new files may not be seekable."""
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, closefd=False)  # noqa: SIM115
        for number, mode in enumerate("rww")
    )


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    text, files, _, _ = socket.recv_fds(client, 1 << 16, 3)
    while more := client.recv(1 << 16):
        text += more
    return json.loads(text), files


def carry_out(job: dict[str, Any]) -> None:
    """Run what was asked for as the main program of this process."""
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    name, *words = job["words"]
    if name == "medfl":
        script = str(Path(sys.executable).with_name("medfl"))
        sys.argv[:] = [script, *words]
        sys.path[0] = str(Path(script).parent)
        runpy.run_path(script, run_name="__main__")
    elif words[:1] == ["-m"]:
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        gc.disable()
        for heavy in HEAVY:
            importlib.import_module(heavy)
    assert not [module for module in sys.modules if module.startswith("medfl")]
    gc.freeze()  # a fork that ends, or collects, need not look at what was imported before
    gc.enable()
    if (request := serve(sys.argv[1])) is not None:
        carry_out(request)
