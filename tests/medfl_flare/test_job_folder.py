"""A job contains only configuration: two class names and the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kits_and_offers import offer
from refusals import refused

from medfl.errors import SettingsError
from medfl_flare.job_folder import write_job
from medfl_flare.provision import ALLOWED_CLASSES
from medfl_flare.records.offer import Offer


def test_a_job_holds_nothing_but_configuration(tmp_path: Path) -> None:
    job = write_job(offer(), tmp_path)
    files = {str(path.relative_to(job)) for path in job.rglob("*") if path.is_file()}
    assert job.name == "one"
    assert files == {
        "meta.json",
        "app_server/config/config_fed_server.json",
        "app_site/config/config_fed_client.json",
    }


def test_a_job_names_the_allowed_classes_the_sites_and_the_offer_unchanged(tmp_path: Path) -> None:
    job = write_job(offer(), tmp_path)
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app_server": ["server"], "app_site": ["site-01", "site-02"]}
    (workflow,) = json.loads((job / "app_server/config/config_fed_server.json").read_text())["workflows"]
    assert workflow["path"] == ALLOWED_CLASSES["server"]
    assert Offer.from_meta(workflow["args"]["offer"]) == offer()
    (executor,) = json.loads((job / "app_site/config/config_fed_client.json").read_text())["executors"]
    assert executor == {"tasks": ["medfl"], "executor": {"path": ALLOWED_CLASSES["client"], "args": {}}}


@pytest.mark.parametrize(
    ("overrides", "value"),
    [({"method": "{$HOME}"}, "{$HOME}"), ({"method_args": {"a": ["{x}"]}}, "{x}"), ({"{x}": 1}, "{x}")],
)
def test_texts_that_nvflare_would_fill_in_are_refused(overrides: dict, value: str, tmp_path: Path) -> None:
    with refused(SettingsError, "unsupported_character", value=value):
        write_job(offer(overrides=overrides), tmp_path)


def test_a_job_without_sites_is_refused(tmp_path: Path) -> None:
    with refused(SettingsError, "no_sites"):
        write_job(offer(sites=[]), tmp_path)
