"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd of the current user, on loopback."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from medfl_studies.records.slurm_files import SlurmBatch

START_SECONDS = 60.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults", "sacct")
PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"

CONFIGURATION = """\
ClusterName=medfl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
{accounting}
SwitchType=switch/none
KillWait=2
MinJobAge=300
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,bf_interval=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus} RealMemory=4000 Gres=gpu:1 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 DefMemPerCPU=100 MaxTime=60 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF DefMemPerCPU=100 State=UP
"""

ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/socket"""

DATABASE_CONFIGURATION = """\
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
"""


@dataclass
class SlurmCluster:
    """A running cluster with the partitions ``low`` and ``high``; jobs in ``high`` preempt those in ``low``."""

    folder: Path
    cpus: int
    has_accounting: bool = False
    daemons: list[subprocess.Popen] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}

    def call(self, *words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | self.variables, timeout=60)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of each job of this user by its number, such as ``3_0``; also of jobs that have ended."""
        lines = self.call("squeue", "--noheader", "--array", "--me", "--states=all", "--format=%i|%T").splitlines()
        return dict(line.split("|") for line in lines)

    def job_of(self, study: Path, log: Path) -> str:
        """Return the number of the job in the queue that writes to a log file of a study."""
        words = ("squeue", "--noheader", "--array", "--me", "--format=%j|%K|%i")
        for line in self.call(*words).splitlines():
            name, index, job = line.split("|")
            for path in study.glob("slurm/*/batch.json"):
                batch = SlurmBatch.read(path)
                if batch.job_name == name and batch.tasks[int(index)].log == str(log):
                    return job
        raise AssertionError(f"no job writes to {log}")

    def show(self, job: str) -> dict[str, str]:
        """Return what Slurm says of a job by name, such as ``TimeLimit``."""
        words = self.call("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def start_waiting_jobs(self) -> None:
        """Start jobs that Slurm queued again; it lets them wait for two minutes."""
        words = ("squeue", "--noheader", "--array", "--me", "--states=PENDING", "--format=%i|%r")
        for job, reason in (line.split("|") for line in self.call(*words).splitlines()):
            if reason == "BeginTime":
                self.call("scontrol", "update", f"JobId={job}", "StartTime=now")


def wait_until(reached: Callable[[], object], seconds: float = 300.0, step: float = 0.5) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(step)


@contextlib.contextmanager
def running_slurm(folder: Path, cpus: int = 8, *, accounting: bool = False) -> Iterator[SlurmCluster]:
    """Start a cluster, or skip the test with a reason.

    Args:
        folder: Folder for all files of the cluster.
        cpus: Number of cores that the configuration claims.
        accounting: Whether slurmdbd records jobs in a database, so that ``sacct`` shows them.
    """
    programs = (*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ()))
    missing = [program for program in programs if shutil.which(program, path=PATH) is None]
    if missing:
        packages = "slurm-wlm munge" + (" slurmdbd mariadb-server-core mariadb-client-core" if accounting else "")
        pytest.skip(f"Slurm is not installed (apt-get install {packages}): no {', '.join(missing)}")
    cluster = SlurmCluster(folder, cpus, accounting)
    try:
        _start(cluster)
        yield cluster
    finally:
        _stop(cluster)


def _start(cluster: SlurmCluster) -> None:
    folder = cluster.folder
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o700)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (controller_port, node_port, database_port), host = _free_ports(3), socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(
        host=host,
        folder=folder,
        user=getpass.getuser(),
        controller_port=controller_port,
        node_port=node_port,
        cpus=cluster.cpus,
        accounting=ACCOUNTING.format(port=database_port, folder=folder)
        if cluster.has_accounting
        else "AccountingStorageType=accounting_storage/none",
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")  # a device that every machine has stands for a GPU
    files = ["key-file", "socket", "pid-file", "log-file", "seed-file"]
    options = [f"--{name}={folder}/munge/{name.partition('-')[0]}" for name in files]
    _start_daemon(cluster, ["munged", "--foreground", "--force", *options])
    _wait_for(cluster, lambda: (folder / "munge" / "socket").exists())
    if cluster.has_accounting:
        _start_accounting(cluster, database_port)
    _start_daemon(cluster, ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"])
    _start_daemon(cluster, ["slurmd", "-D", "-f", f"{folder}/slurm.conf", "-N", host])
    _wait_for(cluster, lambda: "idle" in _node_state(cluster))


def _start_accounting(cluster: SlurmCluster, port: int) -> None:
    """Start a database and slurmdbd, which listens at a port."""
    folder, user, (database_port,) = cluster.folder, getpass.getuser(), _free_ports(1)
    data, options = folder / "database", ["--no-defaults", f"--datadir={folder}/database", f"--user={user}"]
    install = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, capture_output=True, timeout=300, env=os.environ | cluster.variables)
    grants = folder / "grants.sql"
    account = "slurm@'127.0.0.1'"
    grants.write_text(f"CREATE USER {account} IDENTIFIED BY 'slurm';\nGRANT ALL ON *.* TO {account};\n")
    own = [f"--socket={data}/socket", f"--pid-file={data}/pid", f"--init-file={grants}", "--skip-name-resolve"]
    _start_daemon(cluster, ["mariadbd", *options, *own, f"--port={database_port}", "--bind-address=127.0.0.1"])
    _wait_for(cluster, lambda: _listens(database_port))
    configuration = folder / "slurmdbd.conf"
    configuration.write_text(
        DATABASE_CONFIGURATION.format(port=port, user=user, folder=folder, database_port=database_port)
    )
    configuration.chmod(0o600)
    _start_daemon(cluster, ["slurmdbd", "-D"])
    _wait_for(cluster, lambda: _listens(port))


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def _node_state(cluster: SlurmCluster) -> str:
    words = ["sinfo", "--noheader", "--format=%t"]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | cluster.variables, timeout=60).stdout


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.socket()) for _ in range(count)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        return [server.getsockname()[1] for server in servers]


def _start_daemon(cluster: SlurmCluster, words: list[str]) -> None:
    with (cluster.folder / f"{words[0]}.out").open("wb") as output:
        program = shutil.which(words[0], path=PATH)
        assert program is not None
        command, variables = [program, *words[1:]], os.environ | cluster.variables
        cluster.daemons.append(
            subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=variables)
        )


def _wait_for(cluster: SlurmCluster, reached: Callable[[], bool]) -> None:
    """Wait for a daemon; skip the test with the last lines of its output if the system does not let it run."""
    until = time.monotonic() + START_SECONDS
    while not reached():
        ended = [daemon for daemon in cluster.daemons if daemon.poll() is not None]
        if ended or time.monotonic() > until:
            files = [*sorted(cluster.folder.glob("*.out")), *sorted(cluster.folder.glob("*.log"))]
            tails = [f"{file.name}: {line}" for file in files for line in file.read_text().splitlines()[-2:]]
            pytest.skip("Slurm does not start on this machine: " + "; ".join(tails)[-600:])
        time.sleep(0.1)


def _stop(cluster: SlurmCluster) -> None:
    if len(cluster.daemons) == (5 if cluster.has_accounting else 3):
        subprocess.run(["scancel", "--me"], capture_output=True, env=os.environ | cluster.variables, timeout=60)
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            ended = ("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT")
            wait_until(lambda: all(state in ended for state in cluster.jobs().values()), 20)
    for daemon in reversed(cluster.daemons):
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
