"""Tests of the container image, the compose file and the Helm chart, with their own tools if these are installed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HERE = ROOT / "containers"
CHART = HERE / "helm" / "medfl"
FILE = HERE / "Containerfile"
BASE = "docker.io/library/python:3.11-slim-bookworm"
PUBLIC = {"docker.io", "download.pytorch.org", "pypi.org", "json-schema.org"}
"""Host names that these files may contain."""


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def run(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, **options)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


# ---- the image


def stages() -> list[list[str]]:
    """Return the instructions of each stage of the Containerfile."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.M))
    lines = [line for line in text.splitlines() if line]
    starts = [number for number, line in enumerate(lines) if line.startswith("FROM ")]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def test_the_image_runs_as_a_user_without_rights_and_holds_nothing_of_the_build() -> None:
    *_, final = stages()
    assert [line for line in final if line.startswith("USER ")] == ["USER 10001:10001"]
    after = final[final.index("USER 10001:10001") :]
    assert not [line for line in after if line.startswith(("RUN", "COPY", "ADD"))]
    assert [line for line in final if line.startswith("COPY")] == ["COPY --from=build /opt/medfl /opt/medfl"]
    assert 'ENTRYPOINT ["medfl"]' in final
    assert "sudo" not in FILE.read_text()
    assert ":latest" not in FILE.read_text()


def test_torch_comes_from_the_index_that_the_arguments_choose() -> None:
    build, _ = stages()
    assert {"ARG ACCELERATOR=cpu", "ARG TORCH_INDEX=https://download.pytorch.org/whl"} <= set(build)
    (torch,) = [line for line in build if "torch>=" in line]
    assert '--index-url "${TORCH_INDEX}/${ACCELERATOR}"' in torch
    assert "--no-deps" in torch, "no other index may give another torch"
    assert re.search(r"torch>=[\d.]+", torch)[0] in (ROOT / "pyproject.toml").read_text()
    said_in_head = re.findall(r"^# ([A-Z_]+) ", FILE.read_text(), re.M)
    assert sorted(said_in_head) == sorted(re.findall(r"^ARG ([A-Z_]+)=", FILE.read_text(), re.M))


def test_only_what_is_installed_goes_into_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if not line.startswith("#")) == "*"
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "medfl", "bundles", "plugins", "data_prep"}
    assert all((ROOT / name).exists() for name in kept)


def test_no_host_is_in_these_files_but_public_ones() -> None:
    for path in [ROOT / ".dockerignore", *(path for path in HERE.rglob("*") if path.is_file())]:
        text = path.read_text()
        hosts = set(re.findall(r"https?://([\w.-]+)", text)) | set(re.findall(r"=([\w-]+\.[\w.-]+)/", text))
        assert hosts <= PUBLIC, path
        assert not re.search(r"\b(10|127|172|192)\.\d+\.\d+\.\d+", text), path


def test_hadolint_has_nothing_against_it() -> None:
    run(tool("hadolint"), "--failure-threshold", "info", str(FILE))


@pytest.mark.slow
def test_the_image_is_built_and_its_medfl_works_without_rights(tmp_path: Path) -> None:
    """Build the image with the options in MEDFL_BUILD_OPTIONS, such as ``--network host``.

    The command in the image runs as a step of a second build, so the test also works where no container can be started.
    """
    pytest.importorskip("medfl_flare")
    podman = tool("podman")
    if subprocess.run([podman, "image", "exists", BASE], check=False).returncode:
        pytest.skip(f"the base image {BASE} is not on this machine, and nothing is fetched in a test")
    options = shlex.split(os.environ.get("MEDFL_BUILD_OPTIONS", ""))
    run(podman, "build", *options, "-f", str(FILE), "-t", "medfl-test", str(ROOT))
    probe = tmp_path / "Containerfile"
    probe.write_text(
        "FROM medfl-test\n"
        'RUN test "$(id -u)" = 10001 && ! touch /opt/medfl/x 2>/dev/null\n'
        "RUN medfl list methods | grep -q fedavg && medfl list bundles | grep -q tabular\n"
        "RUN medfl federate provision --server server --sites site-01 --admin me@hospital.org --out /tmp/kits\n"
        "RUN medfl site check --kit /tmp/kits/site-01 | grep -q FAIL && medfl federate status /tmp/kits/server\n"
    )
    try:
        run(podman, "build", *options, "--no-cache", "-f", str(probe), "-t", "medfl-probe", str(tmp_path))
    finally:
        subprocess.run([podman, "rmi", "-f", "medfl-probe", "medfl-test"], capture_output=True, check=False)


# ---- the compose file


@pytest.fixture
def services() -> dict[str, Any]:
    return yaml.safe_load((HERE / "compose.yaml").read_text())["services"]


def test_compose_has_a_server_and_three_sites_each_with_its_own_kit_and_no_rights(services: dict[str, Any]) -> None:
    sites = [name for name in services if name.startswith("site-")]
    assert sites == ["site-01", "site-02", "site-03"]
    for name, service in services.items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "${MEDFL_UID:-1000}:${MEDFL_GID:-1000}"
        assert not {"privileged", "ports", "network_mode", "pid"} & service.keys()
        if name == "researcher":
            assert service["profiles"] == ["researcher"]
            continue
        assert service["command"] == ["federate", "start", "/kit", "--foreground"]
        mounted = [volume.replace("${MEDFL_HOME:-.}/", "") for volume in service["volumes"]]
        assert mounted[:2] == [f"kits/{name}:/kit", f"state/{name}:/state"]
        assert mounted[2:] == (["data:/data:ro"] if name in sites else [])
    assert services["server"]["hostname"] == "server"
    assert (HERE / services["server"]["build"]["context"] / services["server"]["build"]["dockerfile"]).is_file()


def test_compose_itself_reads_the_file() -> None:
    command = [tool("podman-compose")] if shutil.which("podman-compose") else [tool("docker"), "compose"]
    if command[1:] and subprocess.run([*command, "version"], capture_output=True, check=False).returncode:
        pytest.skip("neither podman-compose nor docker's compose is installed")
    shown = yaml.safe_load(run(*command, "-f", str(HERE / "compose.yaml"), "config", cwd=HERE))
    assert {"server", "site-01", "site-02", "site-03"} <= shown["services"].keys()


# ---- the chart


def test_every_value_that_a_template_takes_is_in_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in (CHART / "templates").iterdir():
        for place in re.findall(r"\.Values\.([\w.]+)", path.read_text()):
            inner: Any = values
            for key in place.split("."):
                assert key in inner, f"{path.name}: {place}"
                inner = inner[key]


def test_the_schema_knows_what_the_values_are() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["required"]) <= values.keys()
    assert schema["properties"].keys() <= values.keys()
    assert values["role"] in schema["properties"]["role"]["enum"]


def test_a_participant_has_no_rights_in_its_cluster() -> None:
    text = (CHART / "templates" / "participant.yaml").read_text()
    for line in (
        "automountServiceAccountToken: false", "runAsNonRoot: true", "allowPrivilegeEscalation: false",
        "readOnlyRootFilesystem: true", 'drop: ["ALL"]', "type: RuntimeDefault", "replicas: 1",
    ):  # fmt: skip
        assert line in text


@pytest.mark.parametrize("role", ["site", "server"])
def test_helm_lints_and_renders_the_chart(role: str) -> None:
    helm = tool("helm")
    run(helm, "lint", "--strict", str(CHART), "--set", f"role={role}")
    made = list(yaml.safe_load_all(run(helm, "template", "north", str(CHART), "--set", f"role={role}")))
    kinds = {each["kind"] for each in made if each}
    assert kinds == {"Deployment", "PersistentVolumeClaim", "Service" if role == "server" else "NetworkPolicy"}
    assert subprocess.run([helm, "lint", str(CHART), "--set", "role=boss"], capture_output=True, check=False).returncode
