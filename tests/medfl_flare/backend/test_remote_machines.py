"""A network assignment of a distributed run uses the machine profiles that the sites disclose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loopback import SITES, Place
from refusals import refused
from remote_cases import (
    local_outcome,
    mini_place,
    offered,
    on,
    outcome,
    serve,
    set_meta,
)

from medfl.bundle.federation import read_federation
from medfl.errors import SettingsError
from medfl.records.run_file import RunFile
from medfl.testing.synthetic import make_cohort

NETWORKS = {"high": "mini8", "medium": "mini6", "low": "mini4"}
MACHINES = {
    "site-01": (1000, 3000, 4, 16, 50, 50, 200),
    "site-02": (3000, 3000, 60, 64, 100, 5, 200),
    "site-03": (2000, 3000, 8, 16, 100, 20, 200),
}
NAMES = ("cpu_mhz", "cpu_max_mhz", "memory_free_gb", "memory_gb", "battery_percent", "latency_ms", "latency_max_ms")
LIVE = {"network_assignment#profiles": "live"}
CLUSTERED = {"site-01": "mini4", "site-02": "mini8", "site-03": "mini6"}
PFEDCDP = {"method": "pfedcdp", "method_args": {"fisher_samples": 4, "server_epochs": 1, "refine": None}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place whose bundle assigns sites to clusters if a run names profiles."""
    place = mini_place(tmp_path_factory.mktemp("machines"))
    make_cohort(place.root / "more", sites=1, images_per_site=12, classes=3, size=12, seed=2)
    (place.root / "more" / "site-01").rename(place.data / "public")
    path = place.bundle / "configs" / "federate.json"
    content = json.loads(path.read_text())
    content["network_assignment"] = {"name": "machine_clusters", "profiles": None, "networks": NETWORKS}
    content["federation"]["network_assignment"] = "@network_assignment"
    path.write_text(json.dumps(content, indent=4))
    return place


def telling(*sites: str) -> dict[str, Any]:
    """Return site files in which these sites disclose a machine profile."""
    return {site: {"profile": profile_of(site)} for site in sites}


def profile_of(site: str) -> dict[str, float]:
    return dict(zip(NAMES, MACHINES[site], strict=True))


def test_clusters_by_disclosed_profiles_have_the_bits_of_one_machine_with_the_same_profiles(
    place: Place, tmp_path: Path
) -> None:
    files, offer = place.files("told", telling(*SITES)), offered(place, rounds=1, **LIVE, **PFEDCDP)
    folder, progress, _ = serve(files, offer)
    assert (progress.state, progress.missing) == ("finished", {})
    rows = [",".join(map(str, (site, *profile))) for site, profile in MACHINES.items()]
    (tmp_path / "machines.csv").write_text("\n".join([",".join(("site", *NAMES)), *rows]) + "\n")
    here = {"dataset_dir": str(place.data), "device": "cpu", "output_dir": str(tmp_path / "local")}
    here |= {"network_assignment#profiles": str(tmp_path / "machines.csv"), "allow_leaks": ["subjects", "pixels"]}
    read_federation(place.bundle, offer.overrides | here).simulate()
    assert outcome(folder, files) == local_outcome(tmp_path / "local")
    records = [RunFile.read(run / "run.json") for run in (folder, tmp_path / "local")]
    assert records[0].provenance.assigned_networks == records[1].provenance.assigned_networks
    assert set(records[0].provenance.assigned_networks) == set(SITES)
    assert records[0].settings.networks_by_site == CLUSTERED


def test_a_site_that_discloses_nothing_of_its_machine_gets_what_any_machine_can_train(place: Place) -> None:
    own = telling("site-01", "site-02") | {"site-02": {"profile": profile_of("site-02"), "entry": {"network": "mini6"}}}
    files = place.files("some", own)
    folder, progress, _ = serve(files, offered(place, method="local", rounds=1, steps=1, **LIVE))
    assert (progress.state, progress.missing) == ("finished", {})
    record = RunFile.read(folder / "run.json")
    assigned = record.provenance.assigned_networks
    assert {site for site, entry in assigned.items() if entry.facts} == {"site-01", "site-02"}
    assert (assigned["site-02"].network, assigned["site-03"].network) == ("mini8", "mini4")
    assert record.settings.networks_by_site == {"site-01": "mini6", "site-02": "mini6", "site-03": "mini4"}


def test_a_file_of_profiles_is_refused_and_an_impossible_machine_left_out(place: Place) -> None:
    files = place.files("impossible", telling(*SITES))
    with refused(SettingsError, "unsupported_setting", setting="profiles", expected=["live", "synthetic"]):
        serve(files, offered(place, method="local", **{"network_assignment#profiles": "machines.csv"}))
    offer = offered(place, run="impossible", method="local", rounds=1, steps=1, min_replies=2, **LIVE)
    impossible = on("site-02", "hello", set_meta(profile=profile_of("site-02") | {"cpu_max_mhz": 0.0}))
    _, progress, _ = serve(files, offer, tamper_answer=impossible)
    assert (progress.state, list(progress.missing)) == ("finished", ["site-02"])
    assert "cpu_max_mhz, memory_gb and latency_max_ms > 0" in progress.missing["site-02"]


@pytest.mark.parametrize(
    "wrong", [[1.0] * 7, {"cpu_mhz": "fast"}, {"cpu_mhz": -1.0}, {f"n{n}": 1.0 for n in range(33)}]
)
def test_facts_of_another_form_are_refused_before_the_rule_sees_them(place: Place, wrong: Any) -> None:
    files = place.files("malformed", telling(*SITES))
    offer = offered(place, run="malformed", method="local", rounds=1, steps=1, min_replies=2, **LIVE)
    _, progress, _ = serve(files, offer, tamper_answer=on("site-02", "hello", set_meta(profile=wrong)))
    assert (progress.state, list(progress.missing)) == ("finished", ["site-02"])
    assert "profile" in progress.missing["site-02"]
