"""All NVFlare processes, including job processes, end with the process that started the kits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import flare_federation
import pytest
from flare_federation import is_over, wait_for

from medfl_flare import kit

pytestmark = [pytest.mark.flare, pytest.mark.slow]

PROGRAM = """
import sys, time
from pathlib import Path
from flare_federation import federation, wait_for

with federation(Path(sys.argv[1]), warm=False) as running:
    out = running.begin(running.offer("long", method="fedavg", rounds=100_000))
    wait_for(lambda: running.state(out) != "starting")
    print("up", flush=True)
    time.sleep(3600)
"""


def test_a_killed_process_leaves_no_server_site_or_job_behind(tmp_path: Path) -> None:
    """After SIGKILL during a job, the guards, NVFlare's processes and the job processes end."""
    environment = os.environ | {"PYTHONPATH": str(Path(flare_federation.__file__).parent)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "up\n"
            kits = [path.parent.parent for path in tmp_path.glob("kits/**/startup/sub_start.sh")]
            wait_for(lambda: len(jobs_of(kits)) == 4)
            numbers = [number for folder in kits for number in kit.processes(folder)]
        finally:
            starter.send_signal(signal.SIGKILL)
    assert len(kits) == 4, "a server and three sites"
    assert len(numbers) >= 12, "of each kit its guard, NVFlare's process and one of the job"
    wait_for(lambda: all(map(is_over, numbers)), seconds=60)
    assert [number for folder in kits for number in kit.processes(folder)] == []


def jobs_of(kits: list[Path]) -> list[int]:
    """Return the job processes of all kits."""
    words = {number: words_of(number) for folder in kits for number in kit.processes(folder)}
    return [number for number, text in words.items() if "runner_process" in text or "worker_process" in text]


def words_of(number: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
