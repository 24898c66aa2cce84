"""Slurm's command line programs: submission of job arrays, and their states.

The module uses ``sbatch``, ``squeue`` and ``sinfo``. It does not need Slurm's accounting (``sacct``), which many small
clusters do not have.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.errors import SettingsError, StoreError
from medfl_studies.launchers import slurm_job
from medfl_studies.launchers.resources import Resources

COMMAND_SECONDS = 120.0
"""Seconds that a program of Slurm may take."""

MAX_NAMES = 500
"""Number of arrays that one call of ``squeue`` asks for, because the system limits the length of an argument."""

LEAD_SECONDS = 60
"""Seconds between the signal and the time limit; fewer if the limit is below 10 minutes."""

UNREACHABLE = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were")
"""Parts of the messages of Slurm's programs if the cluster's controller does not answer."""

RESERVED_OPTIONS = (
    "array",
    "chdir",
    "error",
    "job-name",
    "nodes",
    "no-requeue",
    "ntasks",
    "open-mode",
    "output",
    "parsable",
    "requeue",
    "signal",
    "test-only",
    "wait",
    "wrap",
)
"""Options of ``sbatch`` that the study sets itself."""

OWN_OPTIONS = ("partition", "account")
"""Options of ``sbatch`` that are also options of the study."""


@dataclass(frozen=True)
class TaskState:
    """State of an element of a job array.

    Attributes:
        name: Slurm's name of the state, for example ``PENDING``.
        reason: Slurm's reason of the state, for example ``Resources``.
        job: Slurm's number of the job, for example ``12_3``.
    """

    name: str
    reason: str
    job: str


def resource_options(resources: Resources) -> list[str]:
    """Return the options of ``sbatch`` that request resources.

    Args:
        resources: The resources.
    """
    options = []
    if resources.cpus is not None:
        options.append(f"--cpus-per-task={resources.cpus}")
    if resources.memory is not None:
        options.append(f"--mem={resources.memory.removesuffix('B')}")
    if resources.gpus:
        options.append(f"--gres=gpu:{resources.gpus}")
    if resources.partition is not None:
        options.append(f"--partition={resources.partition}")
    lead = LEAD_SECONDS
    if resources.minutes is not None:
        lead = min(lead, 6 * resources.minutes)
        options.append(f"--time={resources.minutes}")
    return [*options, f"--signal=B:{slurm_job.TIME_LIMIT_SIGNAL.name.removeprefix('SIG')}@{lead}"]


def user_options(partition: str | None, account: str | None, sbatch: Sequence[str]) -> list[str]:
    """Return the options of ``sbatch`` from the command line.

    Args:
        partition: Partition of all jobs, or None.
        account: Account of all jobs, or None.
        sbatch: Further options, each ``--name`` or ``--name=value``.

    Raises:
        SettingsError: If a further option has another form, or the study sets it itself.
    """
    for option in sbatch:
        name = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or not name or any(character.isspace() for character in name):
            raise SettingsError(
                "invalid_option",
                f"--sbatch: expected an option of sbatch as '--name' or '--name=value', got '{option}'. "
                "Example: --sbatch=--qos=low",
                text=option,
            )
        if name in RESERVED_OPTIONS or name in OWN_OPTIONS:
            hint = f"Use the option --{name} of the study." if name in OWN_OPTIONS else "The study sets it itself."
            raise SettingsError(
                "reserved_setting", f"--sbatch: '{option}' is not accepted. {hint}", setting=name, place="--sbatch"
            )
    values = {"partition": partition, "account": account}
    return [*(f"--{name}={value}" for name, value in values.items() if value is not None), *sbatch]


class SlurmCommands:
    """Programs of Slurm.

    Args:
        options: Further options of ``sbatch`` for every array; they override requested resources.
    """

    def __init__(self, options: Sequence[str] = ()) -> None:
        self._options = list(options)

    def check(self, resources: Resources) -> None:
        """Check that the cluster would accept a job, without submitting one.

        Args:
            resources: Resources of the job.

        Raises:
            SettingsError: If there is no Slurm, or it refuses the job.
            StoreError: If the cluster's controller does not answer.
        """
        self._call(["sbatch", "--test-only", *self._array_options(resources), "--wrap=true"])

    def submit(self, batch: Path, job_name: str, count: int, resources: Resources) -> None:
        """Submit a job array that runs the tasks of a batch.

        Args:
            batch: Folder of the batch, on a file system that the cluster's nodes share.
            job_name: Name of the array.
            count: Number of tasks.
            resources: Resources of each task.

        Raises:
            SettingsError: If there is no Slurm, or it refuses the array.
            StoreError: If the cluster's controller does not answer.
        """
        program = shlex.join([sys.executable, "-m", slurm_job.__name__, str(batch)])
        self._call(
            [
                "sbatch",
                "--parsable",
                f"--array=0-{count - 1}",
                f"--job-name={job_name}",
                "--requeue",
                "--open-mode=append",
                f"--output={str(batch).replace('%', '%%')}/slurm-%a.out",
                *self._array_options(resources),
                f"--wrap=exec {program}",
            ]
        )

    def states(self, job_names: Collection[str]) -> dict[tuple[str, int], TaskState]:
        """Return the states of the elements of this user's arrays.

        Slurm forgets an element some minutes after its end.

        Args:
            job_names: Names of the arrays.

        Returns:
            Maps the name of an array and an index to the state of the element.

        Raises:
            SettingsError: If there is no Slurm, or it refuses the query.
            StoreError: If the cluster's controller does not answer.
        """
        names = sorted(job_names)
        states: dict[tuple[str, int], TaskState] = {}
        for first in range(0, len(names), MAX_NAMES):
            some = ",".join(names[first : first + MAX_NAMES])
            output = self._call(
                ["squeue", "--noheader", "--array", "--me", "--states=all", f"--name={some}", "--format=%j|%K|%T|%i|%r"]
            )
            for line in output.splitlines():
                name, index, state, job, reason = line.split("|", 4)
                if index.isdecimal():
                    states[name, int(index)] = TaskState(state, reason, job)
        return states

    def _array_options(self, resources: Resources) -> list[str]:
        """Return the options of each element of an array."""
        return ["--nodes=1", "--ntasks=1", *resource_options(resources), *self._options]

    def _call(self, command: list[str]) -> str:
        """Run a program of Slurm and return its output."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        except FileNotFoundError:
            raise SettingsError(
                "missing_program",
                f"--launcher slurm: there is no program '{command[0]}' on this machine. Give the command on a machine "
                "from which you submit jobs to the cluster, or use --launcher local.",
                program=command[0],
            ) from None
        except subprocess.TimeoutExpired:
            raise _unreachable(command[0], f"no answer within {COMMAND_SECONDS:.0f} seconds") from None
        if done.returncode == 0:
            return done.stdout
        message = done.stderr.strip() or done.stdout.strip()
        if any(part in message for part in UNREACHABLE):
            raise _unreachable(command[0], message)
        raise SettingsError(
            "refused_by_slurm",
            f"Slurm refused the jobs of the study:\n  {message}\nThe command was: {shlex.join(command)}\n"
            f"{self._partitions()}Change 'resources' in the study file, or the options of the command.",
            program=command[0],
            reason=message,
        )

    def _partitions(self) -> str:
        """Return a sentence with the names of the partitions; empty if they are unknown."""
        try:
            done = subprocess.run(
                ["sinfo", "--noheader", "--format=%R"], capture_output=True, text=True, timeout=COMMAND_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        names = sorted(set(done.stdout.split()))
        return f"Partitions of the cluster: {', '.join(names)}. " if names and done.returncode == 0 else ""


def _unreachable(program: str, reason: str) -> StoreError:
    """Return the error that the cluster's controller does not answer."""
    return StoreError(
        "unreachable_slurm",
        f"The controller of the Slurm cluster does not answer ({program}: {reason}). Jobs that were submitted are not "
        "affected. Give the same command again later.",
        program=program,
        reason=reason,
    )
