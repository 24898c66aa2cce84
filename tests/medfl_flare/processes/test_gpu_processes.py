"""Runs that request GPUs of real NVFlare sites: two grant one each, the third has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flare_federation import Federation, federation
from gpu_stub import use_made_up_gpus
from refusals import refused

from medfl.errors import MedflError
from medfl_flare.provision import Project, provision
from medfl_flare.records.gpu_request import GpuRequest
from medfl_flare.session import Submission, submit

pytestmark = [pytest.mark.flare, pytest.mark.slow]

NEED = GpuRequest(count=1, memory_gib=8)


def provide(project: Project, out: Path) -> dict[str, Path]:
    """Make kits of which two grant a GPU, and a server that gives a job up after two attempts."""
    made = provision(project, out)
    for site in ("site-01", "site-02"):
        change_arguments(made[site], "resource_manager", num_of_gpus=1, mem_per_gpu_in_GiB=12)
    change_arguments(made["localhost"], "job_scheduler", max_schedule_count=2)
    return made


def change_arguments(kit: Path, component: str, **arguments: Any) -> None:
    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text())
    (part,) = [part for part in resources["components"] if part["id"] == component]
    part["args"] |= arguments
    path.write_text(json.dumps(resources))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with pytest.MonkeyPatch.context() as patch:
        use_made_up_gpus(tmp_path_factory.mktemp("gpus"), patch)
        with federation(tmp_path_factory.mktemp("g"), provide) as running:
            yield running


def test_a_run_starts_where_its_gpus_are_granted_and_names_the_other_site(running: Federation) -> None:
    offer = running.offer("granted", method="fedavg", rounds=1, min_replies=2)
    out = running.place.root / "out" / "granted"
    submit(Submission(offer, running.kits["researcher"], out, gpus=NEED))
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["status"], list(summary["unavailable_reasons"])) == ("finished", ["site-03"])
    assert f"did not grant {NEED}" in summary["unavailable_reasons"]["site-03"]


def test_a_run_that_needs_gpus_of_all_sites_says_who_lacks_them(running: Federation) -> None:
    offer = running.offer("refused", method="fedavg", rounds=1)
    out = running.place.root / "out" / "refused"
    with refused(MedflError, "run_failed") as caught:
        submit(Submission(offer, running.kits["researcher"], out, gpus=NEED))
    reason = caught.value.fields["reason"]
    assert "['site-03'] don't have enough resources" in reason
    assert f"requests {NEED} of each site" in reason
