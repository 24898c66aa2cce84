"""GPUs that a run requests of its sites: from the options to the job, and NVFlare's own decision at a site."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from gpu_stub import use_made_up_gpus
from kits_and_offers import offer

from medfl.errors import SettingsError
from medfl_flare.job_folder import write_job
from medfl_flare.records.gpu_request import GpuRequest, requested_gpus
from medfl_flare.submit import read_gpu_request

TWO = GpuRequest(count=2, memory_gib=8)


def job_meta(folder: Path, gpus: GpuRequest | None, **overrides: Any) -> dict[str, Any]:
    job = write_job(offer(overrides=overrides), folder, gpus=gpus)
    return json.loads((job / "meta.json").read_text())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a machine with two GPUs of 16 GiB in place of this one: NVFlare reads them from ``nvidia-smi``."""
    pytest.importorskip("nvflare")
    use_made_up_gpus(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def requirements(meta: dict[str, Any], site: str) -> dict[str, Any]:
    """Return the requirements that NVFlare's scheduler sends to a site."""
    from nvflare.utils.job_launcher_utils import get_resource_manager_spec

    return get_resource_manager_spec(meta, site)


def test_all_sites_must_grant_the_gpus_unless_fewer_replies_suffice(tmp_path: Path) -> None:
    alone = job_meta(tmp_path / "none", None)
    assert (alone["resource_spec"], alone["min_clients"], "mandatory_clients" in alone) == ({}, 1, False)
    every = job_meta(tmp_path / "all", TWO)
    granted = {"num_of_gpus": 2, "mem_per_gpu_in_GiB": 8.0}
    assert every["resource_spec"] == {"site-01": granted, "site-02": granted}
    assert (every["min_clients"], every["mandatory_clients"]) == (1, ["site-01", "site-02"])
    some = job_meta(tmp_path / "some", TWO, min_replies=1)
    assert (some["min_clients"], "mandatory_clients" in some) == (1, False)


def test_nvflare_accepts_the_job_and_reads_its_request(tmp_path: Path) -> None:
    validation = pytest.importorskip("nvflare.private.fed.server.job_meta_validator")
    write_job(offer(), tmp_path, gpus=TWO)
    archive = shutil.make_archive(str(tmp_path / "job"), "zip", tmp_path, "one")
    accepted, problem, meta = validation.JobMetaValidator().validate("one", Path(archive).read_bytes())
    assert (accepted, problem) == (True, "")
    assert requirements(meta, "site-02") == {"num_of_gpus": 2, "mem_per_gpu_in_GiB": 8.0}
    assert requested_gpus(meta) == requested_gpus(meta, "site-02") == TWO
    assert requested_gpus(meta, "elsewhere") is None


@pytest.mark.usefixtures("machine")
def test_a_site_grants_gpus_up_to_its_own_limit_and_again_after_the_job(tmp_path: Path) -> None:
    """NVFlare's classes decide, with the numbers in the site's own file."""
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.resource_consumers.gpu_resource_consumer import GPUResourceConsumer
    from nvflare.app_common.resource_managers.gpu_resource_manager import GPUResourceManager

    context, need = FLContext(), requirements(job_meta(tmp_path / "job", TWO), "site-01")
    manager = GPUResourceManager(num_of_gpus=2, mem_per_gpu_in_GiB=12, expiration_period=300)
    enough, token = manager.check_resources(need, context)
    assert enough
    granted = manager.allocate_resources(need, token, context)
    GPUResourceConsumer().consume(granted)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert manager.check_resources(need, context) == (False, "")
    manager.free_resources(granted, token, context)
    assert manager.check_resources(need, context)[0]

    small = GPUResourceManager(num_of_gpus=2, mem_per_gpu_in_GiB=4, expiration_period=300)
    assert small.check_resources(need, context) == (False, "")
    single = GPUResourceManager(num_of_gpus=1, mem_per_gpu_in_GiB=12, expiration_period=300)
    assert single.check_resources(need, context) == (False, "")
    with pytest.raises(ValueError, match="exceeds available GPUs: 2"):
        GPUResourceManager(num_of_gpus=3, mem_per_gpu_in_GiB=12)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"gpus": 0, "gpu_memory_gib": 0}, None),
        ({"gpus": 1}, GpuRequest(count=1)),
        ({"gpus": 2, "gpu_memory_gib": 0.5}, GpuRequest(count=2, memory_gib=0.5)),
    ],
)
def test_the_options_of_a_run(values: dict[str, Any], expected: GpuRequest | None) -> None:
    assert read_gpu_request(values) == expected


@pytest.mark.parametrize(
    "values", [{"gpus": -1}, {"gpus": 1.5}, {"gpu_memory_gib": 8}, {"gpus": 1, "gpu_memory_gib": -1}]
)
def test_requests_that_no_site_can_grant_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        read_gpu_request(values)


@pytest.mark.parametrize(
    "meta",
    [None, {}, {"resource_spec": {}}, {"resource_spec": {"a": {}}}, {"resource_spec": {"a": {"num_of_gpus": "two"}}}],
)
def test_other_metadata_contain_no_request(meta: Any) -> None:
    assert requested_gpus(meta) is None


def test_a_request_in_words() -> None:
    assert [str(GpuRequest(count=1)), str(TWO)] == ["1 GPU", "2 GPUs with 8 GiB each"]
