"""Report section on clusters: machines by cluster, medians and curves against NumPy."""

from __future__ import annotations

import re

import numpy as np
import pytest
from make_runs import make_run

pytest.importorskip("medfl_report")

from read_page import section, words

from medfl.engine.runs.records import read_run
from medfl.records.run_file import AssignedNetwork
from medfl_methods.pfedcdp.clusters_report import _cluster_curves, clusters_of, clusters_section, scores_by_cluster
from medfl_methods.pfedcdp.device_profiles import Profile
from medfl_methods.pfedcdp.machine_clusters import MachineClusters
from medfl_report.groups import group_runs

OWN = "Scores by cluster on the sites' own test images"
NETWORKS = {"high": "cnn_a", "medium": "cnn_b", "low": "cnn_c"}


def profile_of(entry):
    return Profile(*(entry.facts[name] for name in Profile._fields))


def names(count):
    return [f"site-{number:02d}" for number in range(1, count + 1)]


def machines(sites, seed=0):
    """Return the assigned networks of sites, with the options of a run that has them."""
    assigned = MachineClusters(networks=NETWORKS).assign(sites, seed)
    return assigned, {
        "sites": sites,
        "assigned": assigned,
        "settings": {"networks_by_site": {site: entry.network for site, entry in assigned.items()}},
        "model": "personal",
        "state": False,
        "images": 12,
    }


@pytest.fixture
def page(tmp_path):
    def write(*runs):
        folders = [make_run(tmp_path / name, re.split("[-/]", name)[0], **options) for name, options in runs]
        return section("clusters", clusters_section(group_runs([read_run(folder) for folder in folders])))

    return write


def test_each_site_is_in_its_cluster_with_its_machine(page):
    placed, options = machines(names(6))
    rows = page(("pfedcdp", options)).tables["Clusters"][1:]
    heads = [words(row[0]) for row in rows if len(row) == 1]
    assert [head.split(" 2 sites")[0] for head in heads] == ["high (cnn_a)", "medium (cnn_b)", "low (cnn_c)"]
    shown = {row[0]: row[1:] for row in rows if len(row) > 1}
    assert set(shown) == set(placed)
    for site, spot in placed.items():
        profile = profile_of(spot)
        assert shown[site] == [
            f"{profile.cpu_mhz:.0f} of {profile.cpu_max_mhz:.0f} MHz",
            f"{profile.memory_free_gb:.1f} of {profile.memory_gb:.0f} GB",
            f"{profile.battery_percent:.0f} %",
            f"{profile.latency_ms:.0f} of {profile.latency_max_ms:.0f} ms",
            f"{spot.facts['score']:.3f}",
        ]
    order = [placed[site].facts["score"] for site in shown]
    assert order == sorted(order, reverse=True), "thirds by score"
    assert f"scores {order[1]:.3f} to {order[0]:.3f}" in heads[0]


def test_of_many_sites_the_medians_are_shown(page, tmp_path):
    placed, options = machines(names(14))
    document = page(("pfedcdp", options))
    head, *rows = document.tables["Clusters"]
    assert [row[:2] for row in rows] == [["high (cnn_a)", "5"], ["medium (cnn_b)", "5"], ["low (cnn_c)", "4"]]
    for row, cluster in zip(rows, clusters_of(read_run(tmp_path / "pfedcdp")), strict=True):
        median = Profile(*np.median([profile_of(placed[spot.site]) for spot in cluster.spots], axis=0))
        assert row[2] == f"{median.cpu_mhz:.0f} of {median.cpu_max_mhz:.0f} MHz"
        assert row[3] == f"{median.memory_free_gb:.1f} of {median.memory_gb:.0f} GB"
        scores = [placed[spot.site].facts["score"] for spot in cluster.spots]
        assert row[6] == f"{min(scores):.3f} to {max(scores):.3f}"
        assert ", ".join(spot.site for spot in cluster.spots) in document.sections["clusters"]


def scored():
    """Return scores of four sites with two networks; the last site has no accuracy."""
    sites = names(4)
    return {
        "sites": sites,
        "settings": {"networks_by_site": dict(zip(sites, ("b", "a", "b", "b"), strict=True))},
        "scores": {"accuracy": dict(zip(sites, (0.9, 0.5, 0.6, None), strict=True))},
        "metrics": ("accuracy",),
        "model": "personal",
        "bundles": False,
        "state": False,
    }


def test_scores_are_averaged_over_the_sites_that_have_one(page):
    document = page(("pfedcdp", scored()))
    spread = np.std([0.9, 0.6], ddof=1)
    head, row = document.tables[OWN]
    assert head == ["run", "a", "b"]
    assert row == ["pfedcdp", "0.500", f"0.750 ± {spread:.3f}"]
    labels = [
        attributes["aria-label"]
        for tag, attributes in document.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]
    assert [label for label in labels if "a: 0.500 after round 3; b: 0.750 after round 3." in label]


def test_scores_on_the_shared_test_set_have_a_table_and_a_picture_of_their_own(page):
    """These scores are figure 2 of PFedCDP."""
    shared = OWN.replace("the sites' own test images", "the server's test images, which all sites share")
    assert shared not in page(("fedbn", scored())).tables
    document = page(("pfedcdp", scored() | {"splits": ("test", "shared")}))
    assert document.tables[shared] == document.tables[OWN]
    labels = [
        attributes["aria-label"]
        for tag, attributes in document.tags
        if tag == "svg" and attributes.get("role") == "img"
    ]
    assert [label for label in labels if "on the server's test images, which all sites share. a: 0.500" in label]


def test_bands_are_one_standard_deviation(tmp_path):
    run = read_run(make_run(tmp_path / "run", **scored()))
    alone, several = _cluster_curves(scores_by_cluster([run], "accuracy"), ["a", "b"])
    shares = np.array([1, 2, 3]) / 3
    np.testing.assert_allclose(several.middle, 0.75 * shares)
    spread = np.std([0.9, 0.6], ddof=1) * shares
    np.testing.assert_allclose(several.low, 0.75 * shares - spread)
    np.testing.assert_allclose(several.high, np.minimum(0.75 * shares + spread, 1.0))
    np.testing.assert_allclose(alone.low, alone.high, err_msg="one site has no spread")


def test_a_network_of_the_settings_wins_over_that_of_the_cluster(tmp_path):
    _, options = machines(names(3))
    site = next(name for name, entry in options["assigned"].items() if entry.facts["cluster"] == "low")
    options["settings"] = {"networks_by_site": options["settings"]["networks_by_site"] | {site: "cnn_a"}}
    run = read_run(make_run(tmp_path / "run", "pfedcdp", **options))
    assert [cluster.name for cluster in clusters_of(run)] == ["high (cnn_a)", "medium (cnn_b)", "low (cnn_a)"]


def test_with_one_network_and_no_machines_there_is_no_section(page):
    assert not page(("fedavg", {})).sections["clusters"]


def test_seeds_whose_sites_were_placed_unlike_have_a_table_each(page):
    runs = []
    for seed in (0, 1):
        _, options = machines(names(4), seed)
        runs.append((f"pfedcdp-{seed}", options | {"seed": seed, "settings": {"networks_by_site": {}}}))
    document = page(*runs)
    assert document.tables["Clusters, seed 0"] != document.tables["Clusters, seed 1"]


def test_a_run_without_scores_says_so(page):
    _, options = machines(names(3))
    document = page(("pfedcdp", options | {"status": "running", "done": 0}))
    sentence = "No curves of pfedcdp on the sites' own test images: fewer than two rounds have scores."
    assert sentence in document.sections["clusters"]
    assert set(document.tables[OWN][1][1:]) == {"–"}


def test_seeds_with_machines_of_their_own_are_one_group(tmp_path):
    """Two different placements with the same seed are listed separately."""
    made = {seed: machines(names(6), seed)[1] for seed in (0, 1)}
    assert made[0]["settings"] != made[1]["settings"]
    first, two = (read_run(make_run(tmp_path / str(n), "pfedcdp", n, **options)) for n, options in made.items())
    assert [group.label for group in group_runs([first, two])] == ["pfedcdp"]
    other = read_run(make_run(tmp_path / "other", "pfedcdp", 0, **made[1]))
    labels = [group.label for group in group_runs([first, other])]
    assert len(set(labels)) == 2
    assert all(label.startswith("pfedcdp (networks.site-0") for label in labels)


def test_facts_of_another_rule_are_no_machine(tmp_path):
    """A third-party rule records its own site information."""
    assigned = {site: AssignedNetwork(network="cnn_a", facts={"score": 1.0, "floor": "second"}) for site in names(2)}
    options = {"sites": names(2), "assigned": assigned, "images": 12}
    assert clusters_of(read_run(make_run(tmp_path / "run", "fedavg", **options))) == ()
