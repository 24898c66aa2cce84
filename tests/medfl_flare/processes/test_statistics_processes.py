"""Federated statistics in real NVFlare processes, each site as its own file allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flare_federation import Federation, federation
from loopback import SITES
from refusals import refused

from medfl.errors import MedflError
from medfl_flare.federated_statistics.researcher_session import fetch_statistics
from medfl_flare.federated_statistics.statistics_request import NoiseRequest, StatisticsRequest
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit_log import audit_path
from medfl_flare.statistics.disclosure import DisclosurePolicy
from medfl_flare.statistics.local_folder import compute_folder_statistics
from medfl_flare.statistics.site_statistics import DISCLOSURE_KINDS
from medfl_flare.statistics.statistics_page import HTML_FILE_NAME, JSON_FILE_NAME, MARKDOWN_FILE_NAME

pytestmark = [pytest.mark.flare, pytest.mark.slow]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("f")) as up:
        yield up


def test_sites_compute_statistics_across_processes_and_one_that_requires_noise_refuses(
    running: Federation, tmp_path: Path
) -> None:
    floor = {"unit": "sample", "adjacency": "replace", "epsilon": 8.0, "delta": 1e-5}
    running.write_files(
        site_01={"disclose": list(DISCLOSURE_KINDS), "min_count": 5},
        site_02={"disclose": ["size"], "min_count": 5},
        site_03={"disclose": list(DISCLOSURE_KINDS), "min_count": 5, "privacy": floor},
    )
    kit = running.kits["researcher"]
    exact = StatisticsRequest(statistics="before", bundle="small", reply_timeout=300)
    view = fetch_statistics(exact, kit, tmp_path / "exact", lambda _: running._shared())
    here = compute_folder_statistics(running.place.data, DisclosurePolicy(min_count=5))
    assert view.sites[SITES[0]] == here[SITES[0]]
    assert (view.sites[SITES[1]].images, view.sites[SITES[1]].numbers) == (here[SITES[1]].images, [])
    assert view.missing.keys() == {SITES[2]}
    assert "required at least" in view.missing[SITES[2]]
    assert {HTML_FILE_NAME, MARKDOWN_FILE_NAME, JSON_FILE_NAME} <= {
        path.name for path in (tmp_path / "exact").iterdir()
    }
    noise = NoiseRequest(epsilon=8.0)
    wanted = StatisticsRequest(statistics="noised", bundle="small", sites=list(SITES), privacy=noise)
    noised = fetch_statistics(wanted, kit, tmp_path / "noised", lambda _: running._shared())
    assert (noised.missing, {each.guarantee is None for each in noised.sites.values()}) == ({}, {False})
    for site in SITES:
        entry = read_entries(audit_path(running.files[site]))[-1]
        assert (entry.run, entry.kind, entry.outcome) == ("noised", "statistics", "answered")
        assert entry.budget.composed == pytest.approx(8.0, rel=1e-6)
    unknown = StatisticsRequest(statistics="unknown", bundle="elsewhere", reply_timeout=300)
    with refused(MedflError, "statistics_failed") as caught:
        fetch_statistics(unknown, kit, tmp_path / "unknown", lambda _: running._shared())
    assert "no site returned statistics" in caught.value.fields["reason"]
    assert "allows: other, small" in caught.value.fields["reason"]
