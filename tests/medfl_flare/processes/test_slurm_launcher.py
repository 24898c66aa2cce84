"""A site whose jobs run in Slurm, by NVFlare's launcher and a kit that `nvflare deploy prepare` made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from documented_blocks import block_after
from one_site import SITE, OneSite, one_site
from refusals import refused

from medfl.errors import MedflError
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.session import stop

pytest.importorskip("medfl_studies")  # whose records the stand of the cluster reads
from slurm_cluster import SlurmCluster, running_slurm, wait_until

pytestmark = [pytest.mark.flare, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_slurm(tmp_path_factory.mktemp("slurm"), accounting=True) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, cluster: SlurmCluster) -> Iterator[OneSite]:
    with one_site(tmp_path_factory.mktemp("s")) as running:
        running.kits[SITE] = prepared(running.kits[SITE], running.root)
        yield running


def prepared(kit: Path, root: Path) -> Path:
    """Return the kit that NVFlare's command makes with the configuration in docs/deploy.md."""
    python = root / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{":".join(filter(None, sys.path))}" exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    configuration = yaml.safe_load(block_after("deploy.md", "slurm.yaml"))
    launcher = configuration["job_launcher"]
    launcher |= {"python_path": str(python), "parent_host": "127.0.0.1", "poll_interval": 1}
    launcher["sbatch_directives"] = {"partition": "low", "time": "30"}
    (root / "slurm.yaml").write_text(yaml.safe_dump(configuration))
    command = [sys.executable, "-m", "nvflare.cli", "deploy", "prepare", "--kit", str(kit)]
    command += ["--output", str(root / "slurm-kit"), "--config", str(root / "slurm.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "slurm-kit"


def states(cluster: SlurmCluster) -> list[str]:
    """Return the state of each job of the site in Slurm, oldest first."""
    words = ("squeue", "--noheader", "--me", "--states=all", "--sort=i", "--format=%j|%T")
    lines = [line.split("|") for line in cluster.call(*words).splitlines()]
    return [state for name, state in lines if name.startswith(f"nvfl-{SITE}")]


def test_a_sites_job_runs_in_slurm_with_the_requested_gpus(running: OneSite, cluster: SlurmCluster) -> None:
    summary = running.run("slurm", gpus=GpuRequest(count=1), **cluster.variables)
    assert (summary["status"], summary["unavailable_reasons"]) == ("finished", {})
    assert states(cluster) == ["COMPLETED"]
    assert cluster.show("1")["TresPerNode"] == "gres:gpu:1"
    assert running.has_bits_of_one_machine("slurm")


def test_a_stopped_run_ends_its_job_in_slurm(running: OneSite, cluster: SlurmCluster) -> None:
    before = len(states(cluster))
    with running.site_running(**cluster.variables), ThreadPoolExecutor() as pool:
        followed = pool.submit(running.submit, "stopped", rounds=5, steps=2000)
        wait_until(lambda: states(cluster)[before:] == ["RUNNING"])
        wait_until(lambda: (running.root / SITE / "state" / "runs" / "stopped").is_dir())
        assert stop(running.root / "out" / "stopped")
        with refused(MedflError, "run_failed"):
            followed.result()
        wait_until(lambda: states(cluster)[before:] != ["RUNNING"])
    assert states(cluster)[before:] == ["CANCELLED"]
