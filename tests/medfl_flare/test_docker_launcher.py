"""A site whose jobs run in Docker, by NVFlare's launcher and the files in docs/deploy.md. No container is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from documented_blocks import block_after
from kits_and_offers import offer

from medfl_flare.job_folder import write_job
from medfl_flare.kit_check import kit_checks
from medfl_flare.provision import ALLOWED_CLASSES, Project, provision
from medfl_flare.records.gpu_request import GpuRequest

pytest.importorskip("nvflare")
pytest.importorskip("docker")

SITE = "site-01"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kit that NVFlare's command makes with the documented configuration."""
    root = tmp_path_factory.mktemp("docker")
    made = provision(Project("localhost", (SITE,), "me@hospital.org"), root / "kits")
    (root / "docker.yaml").write_text(block_after("deploy.md", "docker.yaml"))
    command = [sys.executable, "-m", "nvflare.cli", "deploy", "prepare", "--kit", str(made[SITE])]
    command += ["--output", str(root / "kit"), "--config", str(root / "docker.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (root / "kit" / "local" / "study_runtime.yaml").write_text(block_after("deploy.md", "study_runtime.yaml"))
    return root / "kit"


def read_resources(kit: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text())
    return content


def test_the_prepared_kit_keeps_what_medfl_allows_and_forbids(kit: Path) -> None:
    resources = read_resources(kit)
    assert not (kit / "local" / "resources.json").exists()
    assert ALLOWED_CLASSES["client"] in resources["class_allow_list"]
    assert resources["allow_log_streaming"] is False
    checks = dict(kit_checks(kit, SITE))
    assert "is complete" in checks["files"]()
    assert ALLOWED_CLASSES["client"] in checks["allow list"]()
    assert "medfl:jobs" in (kit / "startup" / "start_docker.sh").read_text()


def test_a_job_gets_its_container_with_image_folders_and_gpus(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVFlare's launcher requests the container from a stand-in for Docker's client."""
    from nvflare.apis.fl_constant import FLContextKey, ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.job_launcher_spec import JobProcessArgs
    from nvflare.apis.workspace import Workspace
    from nvflare.app_opt.job_launcher.docker_launcher import ClientDockerJobLauncher

    (part,) = [part for part in read_resources(kit)["components"] if part["id"] == "docker_launcher"]
    assert part["path"].rpartition(".")[2] == ClientDockerJobLauncher.__name__
    launcher = ClientDockerJobLauncher(workspace=str(kit), **part["args"])
    monkeypatch.setattr(launcher, "WORKSPACE_MOUNT", str(kit))
    requested: dict[str, Any] = {}
    container = SimpleNamespace(id="1", status="running", wait=lambda: {"StatusCode": 0})

    def run(image: str, **options: Any) -> SimpleNamespace:
        requested.update(options, image=image)
        return container

    client = SimpleNamespace(containers=SimpleNamespace(run=run, get=lambda name: container))
    monkeypatch.setattr(launcher, "_get_docker_client", lambda: client)

    job = write_job(offer(), tmp_path, gpus=GpuRequest(count=2, memory_gib=8))
    meta = json.loads((job / "meta.json").read_text()) | {"job_id": "job-1", "study": "default"}
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, SITE)
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, Workspace(str(kit), SITE), private=True)
    arguments = {
        JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
        JobProcessArgs.JOB_ID: ("-n", "job-1"),
        JobProcessArgs.PARENT_URL: ("-p", "stcp://localhost:8102"),
        JobProcessArgs.PARENT_CONN_SEC: ("--parent_conn_sec", "mtls"),
        JobProcessArgs.AUTH_TOKEN: ("-t", "secret"),
    }
    context.set_prop(FLContextKey.JOB_PROCESS_ARGS, arguments, private=True)
    launcher.launch_job(meta, context)

    assert (requested["image"], requested["network"], requested["shm_size"]) == ("medfl:jobs", "medfl", "2g")
    assert requested["device_requests"] == [{"Count": 2, "Capabilities": [["gpu"]]}]
    assert requested["environment"]["OMP_NUM_THREADS"] == "8"
    assert f"stcp://{SITE}:8102" in requested["command"]
    assert "secret" not in requested["command"], "credentials travel in the environment"
    mounts = {mount["Target"]: (mount["Source"], mount["ReadOnly"]) for mount in requested["mounts"]}
    assert mounts["/data/default/state"] == ("/srv/medfl/state", False)
    assert mounts["/data/default/images"] == ("/srv/medfl/images", True)
    assert mounts[f"{kit}/local"] == (f"{kit}/local", True)
