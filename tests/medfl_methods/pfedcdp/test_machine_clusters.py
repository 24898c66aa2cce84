"""Capability of machines: shares, score, clusters, and sources of profiles."""

import collections
import csv
import sys

import pytest
from pydantic import ValidationError
from refusals import refused

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.federation import read_federation
from medfl.engine.runs.network_assignment import read_assignment
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.records.run_file import AssignedNetwork
from medfl.settings import read_settings
from medfl_methods.pfedcdp.device_profiles import (
    ARCHETYPES,
    Profile,
    draw_profile,
    find_profiles,
    measure_profile,
    read_profile,
    read_profiles,
)
from medfl_methods.pfedcdp.machine_clusters import CLUSTERS, MachineClusters, Thresholds, assign_clusters, machine_score

HALF = Profile(1500, 3000, 4, 16, 80, 50, 200)  # shares 1/2, 1/4, 4/5, 3/4
EQUAL = (0.25, 0.25, 0.25, 0.25)
NETWORKS = {"high": "a", "medium": "b", "low": "c"}

# ---- shares and score


def test_shares():
    assert HALF.shares == (0.5, 0.25, 0.8, 0.75)


@pytest.mark.parametrize(
    ("changes", "shares"),
    [
        ({"latency_ms": 500}, (0.5, 0.25, 0.8, 0)),  # the paper's would be -1.5
        ({"cpu_mhz": 4000}, (1, 0.25, 0.8, 0.75)),
        ({"memory_free_gb": 0, "battery_percent": 0}, (0.5, 0, 0, 0.75)),
        ({"latency_ms": 0, "battery_percent": 120}, (0.5, 0.25, 1, 1)),
    ],
)
def test_shares_are_clipped(changes, shares):
    assert HALF._replace(**changes).shares == shares


@pytest.mark.parametrize(
    ("weights", "expected"),
    [(EQUAL, 2.3 / 4), ((0.3, 0.3, 0.1, 0.3), 0.15 + 0.075 + 0.08 + 0.225), ((0, 0, 1, 0), 0.8)],
)
def test_the_score_is_the_weighted_sum(weights, expected):
    """The second weights are the paper's for machines whose battery is less important."""
    assert machine_score(HALF, weights) == pytest.approx(expected, abs=1e-15)
    assert machine_score(Profile(1, 1, 1, 1, 100, 0, 1), weights) == pytest.approx(1)
    assert machine_score(Profile(0, 1, 0, 1, 0, 1, 1), weights) == 0


# ---- clusters


def test_thresholds_belong_to_the_better_cluster():
    scores = {"a": 0.6, "b": 0.5999, "c": 0.4, "d": 0.3999, "e": 0.0, "f": 1.0}
    by_site = assign_clusters(scores, Thresholds())
    assert by_site == {"a": "high", "b": "medium", "c": "medium", "d": "low", "e": "low", "f": "high"}
    assert set(assign_clusters(scores, Thresholds(high=0.0, medium=0.0)).values()) == {"high"}
    assert assign_clusters({"a": 0.5}, Thresholds(high=0.5, medium=0.5)) == {"a": "high"}


def test_thresholds_that_cross_are_refused():
    settings = {"networks": dict.fromkeys(CLUSTERS, "a"), "thresholds": {"high": 0.3}}
    with refused(SettingsError, "invalid_settings") as caught:
        read_settings(MachineClusters, settings, "the network assignment")
    assert "expected high >= medium, got 0.3 and 0.4" in str(caught.value)


@pytest.mark.parametrize(
    ("sites", "sizes"),
    [(1, (1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1)), (4, (2, 1, 1)), (5, (2, 2, 1)), (10, (4, 3, 3))],
)
def test_tertiles(sites, sizes):
    scores = {f"site-{index:02}": ((7 * index) % 11) / 11 for index in range(sites)}
    by_site = assign_clusters(scores, "tertiles")
    assert tuple(list(by_site.values()).count(name) for name in CLUSTERS) == sizes
    ranked = sorted(scores, key=scores.get, reverse=True)
    assert [CLUSTERS.index(by_site[site]) for site in ranked] == sorted(
        CLUSTERS.index(by_site[site]) for site in ranked
    )


def test_of_equal_scores_the_first_by_name_counts_as_larger():
    assert assign_clusters({"c": 0.5, "a": 0.5, "b": 0.5}, "tertiles") == {"a": "high", "b": "medium", "c": "low"}


def test_sites_are_placed(tmp_path):
    path = write(tmp_path, [("weak", 100, 3000, 1, 16, 5, 190, 200), ("strong", 3000, 3000, 9, 10, 100, 0, 200)])
    rule = MachineClusters(profiles=str(path), weights=(0.3, 0.3, 0.1, 0.3), thresholds=Thresholds(), networks=NETWORKS)
    assigned = rule.assign(["weak", "strong"], seed=0)
    assert (assigned["strong"].facts["cluster"], assigned["strong"].network) == ("high", "a")
    assert (assigned["weak"].facts["cluster"], assigned["weak"].network) == ("low", "c")
    assert assigned["strong"].facts["score"] == pytest.approx(0.3 + 0.27 + 0.1 + 0.3)
    assert assigned["weak"].facts.items() >= Profile(100, 3000, 1, 16, 5, 190, 200)._asdict().items()


def test_without_profiles_no_site_is_assigned_a_network():
    rule = MachineClusters(profiles=None, networks=NETWORKS)
    assert rule.assign(["a", "b"], seed=0) == {}
    assert not rule.asks_sites


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": (0.5, 0.5, 0.5, 0.5)}, "four weights >= 0 that sum to 1"),
        ({"weights": (1.5, -0.5, 0, 0)}, "four weights >= 0 that sum to 1"),
        ({"weights": (float("nan"), 0.5, 0.25, 0.25)}, "four weights >= 0 that sum to 1"),
        ({"weights": (0.5, 0.5)}, "weights"),
        ({"networks": {"high": "a", "low": "c"}}, "expected a network for each of"),
        ({"networks": NETWORKS | {"middle": "d"}}, "middle"),
        ({"thresholds": {"high": 2.0}}, "less than or equal to 1"),
        ({"thresholds": "quartiles"}, "tertiles"),
        ({"profile": "live"}, "profile"),
    ],
)
def test_settings_that_are_refused(changes, words):
    with pytest.raises(ValidationError, match=words):
        MachineClusters(**({"networks": NETWORKS} | changes))


# ---- synthetic profiles


def test_made_up_profiles_depend_on_seed_and_name_alone():
    names = [f"site-{index:02}" for index in range(40)]
    profiles = find_profiles(names, "synthetic", 3)
    assert find_profiles(names[::-1], "synthetic", 3) == profiles
    assert draw_profile("site-07", 3) == profiles["site-07"]
    assert len(set(profiles.values())) == 40
    assert find_profiles(names, "synthetic", 4) != profiles
    rule = MachineClusters(networks=NETWORKS)
    assert rule.assign(names[::-1], 3) == rule.assign(names, 3)


def test_made_up_profiles_are_of_all_kinds_and_in_their_ranges():
    profiles = find_profiles([str(index) for index in range(300)], "synthetic", 0).values()
    counts = collections.Counter()
    for profile in profiles:
        fits = [
            name
            for name, ranges in ARCHETYPES.items()
            if all(low <= value <= high for value, (low, high) in zip(profile, ranges, strict=True))
        ]
        counts.update(fits)
        assert len(fits) == 1
        assert all(0 <= share <= 1 for share in profile.shares)
    assert sorted(counts) == sorted(ARCHETYPES)
    assert min(counts.values()) > 70


# ---- profiles in a file

COLUMNS = ("site", *Profile._fields)


def write(folder, rows, columns=COLUMNS):
    path = folder / "profiles.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def test_profiles_from_a_file(tmp_path):
    path = write(tmp_path, [("b", *HALF), ("a", 1, 2, 3, 4, 5, 6, 7), ("more", *HALF)])
    assert find_profiles(["a", "b"], str(path), 0) == {"a": Profile(1, 2, 3, 4, 5, 6, 7), "b": HALF}


def test_columns_may_be_in_any_order(tmp_path):
    path = write(tmp_path, [(*HALF[::-1], "a", "note")], (*Profile._fields[::-1], "site", "remark"))
    assert read_profiles(path) == {"a": HALF}


@pytest.mark.parametrize(
    ("rows", "code", "fields"),
    [
        ([("a", *HALF)], "missing_site", {"path": "{path}", "sites": ["b"]}),
        ([("a", *HALF), ("b", *HALF), ("a", *HALF)], "duplicate_row", {"path": "{path}", "line": 4, "site": "a"}),
        ([("a", *HALF), ("b", "fast", *HALF[1:])], "not_a_number", {"place": "'{path}', line 3"}),
        ([("a", *HALF), ("b", 1, 2, 3)], "not_a_number", {"place": "'{path}', line 3"}),
        ([("a", *HALF), ("b", "nan", *HALF[1:])], "value_out_of_range", {"place": "'{path}', line 3"}),
        ([("a", *HALF), ("b", -1, *HALF[1:])], "value_out_of_range", {"place": "'{path}', line 3"}),
        ([("a", *HALF), ("b", *HALF[:3], 0, *HALF[4:])], "value_out_of_range", {"place": "'{path}', line 3"}),
    ],
)
def test_profiles_that_are_missing_or_impossible(tmp_path, rows, code, fields):
    path = write(tmp_path, rows)
    places = {name: value.format(path=path) for name, value in fields.items() if isinstance(value, str)}
    with refused(SettingsError, code, **fields | places):
        find_profiles(["a", "b"], str(path), 0)


def test_a_column_that_is_missing(tmp_path):
    path = write(tmp_path, [("a", *HALF[:-1])], COLUMNS[:-1])
    with refused(SettingsError, "missing_column", path=str(path), columns=["latency_max_ms"]):
        read_profiles(path)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\x00", b'site,"' + b"x" * 200_000])
def test_a_file_that_is_none(tmp_path, content):
    path = tmp_path / "profiles.csv"
    if content is not None:
        path.write_bytes(content)
    code = "missing_column" if content == b"" else "unreadable_file"
    with refused(SettingsError, code, path=str(path)):
        find_profiles(["a"], str(path), 0)


# ---- this machine


class FakePsutil:
    """Machine in the form of psutil. A value of None means that its system does not support it."""

    Clock = collections.namedtuple("Clock", "current min max")
    Memory = collections.namedtuple("Memory", "total available")
    Battery = collections.namedtuple("Battery", "percent")

    def __init__(self, clock, battery):
        if clock is not None:
            self.cpu_freq = lambda: self.Clock(*clock) if clock else None
        if battery is not None:
            self.sensors_battery = lambda: None if battery == "none" else self.Battery(battery)

    def virtual_memory(self):
        return self.Memory(16e9, 4e9)


@pytest.mark.parametrize(
    ("clock", "battery", "shares", "assumed"),
    [
        ((1500, 0, 3000), 80, (0.5, 0.25, 0.8), "latency"),
        ((1500, 0, 3000), 0, (0.5, 0.25, 0), "latency"),
        ((1500, 0, 3000), "none", (0.5, 0.25, 1), "battery, latency"),
        ((2000, 0.0, 0.0), "none", (1, 0.25, 1), "clock, battery, latency"),  # as virtual machines report
        ((), None, (1, 0.25, 1), "clock, battery, latency"),
        (None, None, (1, 0.25, 1), "clock, battery, latency"),
    ],
)
def test_a_missing_entry_of_a_machine_is_assumed_with_a_warning(monkeypatch, caplog, clock, battery, shares, assumed):
    monkeypatch.setitem(sys.modules, "psutil", FakePsutil(clock, battery))
    profile = measure_profile()
    assert profile.shares == (*shares, 1)
    assert caplog.messages == [f"This machine does not report: {assumed}. Assuming the best value."]


@pytest.mark.parametrize("latency", [0.0, 50.0])
def test_a_machine_that_discloses_all_warns_of_nothing(monkeypatch, caplog, latency):
    monkeypatch.setitem(sys.modules, "psutil", FakePsutil((1500, 0, 3000), 80))
    assert measure_profile(latency_ms=latency) == Profile(1500, 3000, 4, 16, 80, latency, 200)
    assert caplog.messages == []


def test_this_machine():
    pytest.importorskip("psutil")
    profiles = find_profiles(["a", "b"], "live", 0)
    assert profiles["a"] == profiles["b"]
    assert 0 < profiles["a"].shares[1] <= 1
    assert profiles["a"].memory_gb > 0.1


def test_without_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with refused(SettingsError, "missing_package", package="psutil", extra="devices") as caught:
        measure_profile()
    assert "`pip install 'medfl-monai[devices]'`" in str(caught.value)


# ---- by name


def test_the_bundle_for_mammograms_has_clusters_if_profiles_are_named(tmp_path):
    registry = load_plugins()
    for profiles, assigned in ((None, set()), ("synthetic", {"a", "b", "c"})):
        values = {"dataset_dir": str(tmp_path), "network_assignment#profiles": profiles}
        run = read_federation(shipped_bundles()["mammography_classification"], values)
        rule = read_assignment(run.network_assignment, registry)
        assert isinstance(rule, MachineClusters)
        assert set(rule.assign(["a", "b", "c"], seed=0)) == assigned
    assert set(rule.networks.values()) == {"cluster_a", "cluster_b", "cluster_c"}


# ---- profiles that sites report


def test_a_profile_of_other_numbers_is_refused():
    facts = HALF.facts
    assert read_profile(facts, "site 'a'") == HALF
    for wrong in ({}, facts | {"more": 1.0}, {name: value for name, value in facts.items() if name != "memory_gb"}):
        with refused(SettingsError, "wrong_names", place="site 'a'", expected=list(Profile._fields)):
            MachineClusters(networks=NETWORKS).check_facts(wrong, "site 'a'")


@pytest.mark.parametrize(("profiles", "asks"), [("live", True), ("synthetic", False), ("machines.csv", False)])
def test_only_live_profiles_are_asked_for_and_no_file_is_read_between_machines(profiles, asks):
    rule = MachineClusters(profiles=profiles, networks=NETWORKS)
    assert rule.asks_sites == asks
    if profiles == "machines.csv":
        with refused(SettingsError, "unsupported_setting", setting="profiles", expected=["live", "synthetic"]):
            rule.check_between_machines()
    else:
        rule.check_between_machines()


def test_a_site_that_reports_nothing_gets_the_weakest_clusters_network():
    rule = MachineClusters(profiles="live", networks=NETWORKS)
    assigned = rule.assign_reported({"silent": None, "only": HALF.facts})
    assert assigned["silent"] == AssignedNetwork(network="c") == rule.assign_late(None, assigned)
    assert (assigned["only"].network, assigned["only"].facts["cluster"]) == ("a", "high")


@pytest.mark.parametrize(
    ("mhz", "cluster"), [(3000, "high"), (2999, "medium"), (1500, "medium"), (900, "low"), (1, "low")]
)
def test_who_comes_later_is_with_the_strongest_that_it_equals_and_moves_no_one(mhz, cluster):
    rule = MachineClusters(weights=(1.0, 0.0, 0.0, 0.0), networks=NETWORKS)
    placed = [(1.0, "high"), (0.5, "medium"), (0.4, "medium"), (0.2, "low")]
    entry = rule.assign_late(HALF._replace(cpu_mhz=mhz).facts, earlier(placed))
    assert (entry.facts["cluster"], entry.network, entry.facts["score"]) == (cluster, NETWORKS[cluster], mhz / 3000)


def test_with_fixed_thresholds_who_comes_later_is_where_it_would_have_been():
    rule = MachineClusters(thresholds={"high": 0.7, "medium": 0.5}, networks=NETWORKS)
    assert rule.assign_late(HALF.facts, earlier([(0.1, "high")])) == rule.assign_late(HALF.facts, {})
    assert rule.assign_late(HALF.facts, {}).facts["cluster"] == "medium"


def earlier(placed):
    """Return networks that were assigned at the start; the last site reported nothing."""
    entries = [
        AssignedNetwork(network=NETWORKS[name], facts={"score": value, "cluster": name}) for value, name in placed
    ]
    return dict(zip("abcdefg", [*entries, AssignedNetwork(network="c")]))
