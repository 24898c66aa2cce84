"""Sites on NVIDIA FLARE describe their data before a training, each as its own file allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flare_federation import Federation, federation
from loopback import SITES
from refusals import refused

from medfl.errors import MedflError
from medfl_flare.describing.request import Request, Wanted
from medfl_flare.describing.session import describe_sites
from medfl_flare.records.audit import read_entries
from medfl_flare.sites.audit import audit_file
from medfl_flare.statistics.description import FACTS
from medfl_flare.statistics.folder import describe_folder
from medfl_flare.statistics.page import JSON, MARKDOWN, PAGE
from medfl_flare.statistics.telling import Policy

pytestmark = [pytest.mark.flare, pytest.mark.slow]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(tmp_path_factory.mktemp("f")) as up:
        yield up


def test_sites_describe_their_data_across_processes_and_one_whose_floor_asks_for_noise_refuses(
    running: Federation, tmp_path: Path
) -> None:
    floor = {"unit": "sample", "adjacency": "replace", "epsilon": 8.0, "delta": 1e-5}
    running.write_files(
        site_01={"disclose": list(FACTS), "min_count": 5},
        site_02={"disclose": ["size"], "min_count": 5},
        site_03={"disclose": list(FACTS), "min_count": 5, "privacy": floor},
    )
    kit = running.kits["researcher"]
    exact = Request(describe="before", bundle="small", answer_timeout=300)
    view = describe_sites(exact, kit, tmp_path / "exact", lambda _: running._shared())
    here = describe_folder(running.place.data, Policy(min_count=5))
    assert view.sites[SITES[0]] == here[SITES[0]]
    assert (view.sites[SITES[1]].images, view.sites[SITES[1]].numbers) == (here[SITES[1]].images, [])
    assert view.missing.keys() == {SITES[2]}
    assert "required at least" in view.missing[SITES[2]]
    assert {PAGE, MARKDOWN, JSON} <= {path.name for path in (tmp_path / "exact").iterdir()}
    wanted = Request(describe="noised", bundle="small", sites=list(SITES), privacy=Wanted(epsilon=8.0))
    noised = describe_sites(wanted, kit, tmp_path / "noised", lambda _: running._shared())
    assert (noised.missing, {each.promise is None for each in noised.sites.values()}) == ({}, {False})
    for site in SITES:
        entry = read_entries(audit_file(running.files[site]))[-1]
        assert (entry.run, entry.kind, entry.outcome) == ("noised", "describe", "answered")
        assert entry.budget.composed == pytest.approx(8.0, rel=1e-6)
    unknown = Request(describe="unknown", bundle="elsewhere", answer_timeout=300)
    with refused(MedflError, "description_failed") as caught:
        describe_sites(unknown, kit, tmp_path / "unknown", lambda _: running._shared())
    assert "no site describes its data" in caught.value.fields["reason"]
    assert "allows: other, small" in caught.value.fields["reason"]
