"""The page as a file: escaped, complete in itself, always the same, small, and readable without seeing it."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from make_runs import SITES, make_run
from read_page import Page
from refusals import refused

from medfl.contract import Findings
from medfl.errors import SettingsError, StoreError
from medfl.records.run_file import AssignedNetwork
from medfl_report.page import write_report

ODD = ("a & b", "<i>c", "$d$ \\frac")
ALWAYS = {"#glance", "#methods", "#gains", "#scores", "#curves", "#images", "#costs", "#settings"}
PRIVACY = {"epsilon": 5.0, "clip": 1.0}
MACHINE = {"cpu_mhz": 1000, "cpu_max_mhz": 2000, "memory_free_gb": 4, "memory_gb": 8, "battery_percent": 50}
MACHINE |= {"latency_ms": 20, "latency_max_ms": 200, "score": 0.6}
ASSIGNED = {
    site: AssignedNetwork(network=f"cnn <{cluster}>", facts=MACHINE | {"cluster": cluster})
    for site, cluster in zip(SITES, ("high", "medium", "low"), strict=True)
}
TAUGHT = {
    "teachers": {"<i>cnn": {"value": 0.1, "weight": 1.0}},
    "groups": {"": 0.5, "<i>cnn": 0.6},
    "weighed_on": 9,
    "how": "shapley",
}


def explained():
    """Public images with the maps of one teacher."""
    images = torch.linspace(0, 1, 2 * 64).reshape(2, 1, 8, 8)
    return {
        "explained/images": images,
        "explained/labels": torch.tensor([0, 1]),
        "explained/maps/<i>cnn": images[:, 0] - 0.5,
    }


@pytest.fixture
def rich(tmp_path):
    """Runs with odd names of classes, and with all that a page can show."""
    options = {"classes": ODD, "metrics": ("accuracy", "balanced_accuracy", "auc", "ece"), "splits": ("val", "test")}
    more = options | {"server_test": {"accuracy": 0.5}, "reason": "<script>alert(1)</script>", "status": "incomplete"}
    more |= {"settings": {"privacy": PRIVACY, "compression": {"bits": 8}}, "plain": 16000.0, "assigned": ASSIGNED}
    more |= {"findings": Findings(TAUGHT, explained())}
    return [make_run(tmp_path / "local", "local", **options), make_run(tmp_path / "fedavg", "fedavg", **more)]


def test_everything_is_escaped(rich, tmp_path):
    html = write_report(rich).read_text()
    assert "<script" not in html
    assert "<i>" not in html
    document = Page(html)
    assert document.tables["Confusion matrix of local"][0][1:] == list(ODD)
    assert {"clusters", "teachers", "looks", "privacy"} <= set(document.sections)
    assert "<script>alert(1)</script>" in document.sections[""]


def test_nothing_is_loaded_from_anywhere(rich):
    html = write_report(rich).read_text()
    assert "//" not in html.replace("<!doctype html>", "")
    assert not re.search(r"@import|url\((?!#)|<(link|script|img|iframe|object|embed)\b", html)
    for _, attributes in Page(html).tags:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("xlink:href") or "#").startswith("#")


def test_no_path_outside_the_run_folders_is_on_the_page(rich, tmp_path):
    assert str(tmp_path) not in write_report(rich).read_text()


def test_it_can_be_read_without_seeing_it(rich):
    document = Page(write_report(rich).read_text())
    html = dict(document.tags)["html"]
    assert html["lang"] == "en"
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes.get("href") for tag, attributes in document.tags if tag == "a"} >= ALWAYS
    for tag, attributes in document.tags:
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or (
                attributes["role"] == "img" and len(attributes["aria-label"]) > 20
            )
        if tag == "th":
            assert attributes["scope"] in ("col", "row", "rowgroup")


def test_the_same_runs_give_the_same_bytes(rich, tmp_path):
    first = write_report(rich, tmp_path / "one.html").read_bytes()
    elsewhere = [shutil.copytree(run, tmp_path / "elsewhere" / run.name) for run in rich]
    assert write_report(elsewhere, tmp_path / "two.html").read_bytes() == first


@pytest.mark.slow
def test_twenty_sites_a_hundred_rounds_three_runs_fit_into_two_megabytes(tmp_path):
    sites = [f"site-{number:02d}" for number in range(1, 21)]
    options = {"sites": sites, "rounds": 100, "classes": [f"class {n}" for n in range(8)], "state": False, "images": 30}
    options["metrics"] = ("accuracy",)  # the page is as large, and resampling AUCs is slow
    runs = [make_run(tmp_path / name, name, **options) for name in ("local", "fedavg", "fedprox")]
    assert write_report(runs).stat().st_size < 2_000_000


@pytest.mark.parametrize("sites", [1, 40])
def test_one_site_and_many(tmp_path, sites):
    names = [f"site-{number:03d}" for number in range(sites)]
    runs = [
        make_run(tmp_path / name, name, sites=names, images=5, rounds=2, metrics=("accuracy",))
        for name in ("local", "fedavg")
    ]
    document = Page(write_report(runs).read_text())
    assert len(document.tables["fedavg against local, accuracy"]) == sites + 3


def test_it_goes_into_the_first_folder_or_the_given_one(rich, tmp_path):
    assert write_report(rich[1:]) == rich[1] / "report.html"
    assert write_report(rich, tmp_path / "new" / "x.html").is_file()


def test_mistakes_are_named(rich, tmp_path):
    with refused(SettingsError, "no_runs"):
        write_report([])
    with refused(SettingsError, "duplicate_run", seed=0, paths=[str(rich[0])] * 2):
        write_report([rich[0], rich[0]])
    with refused(StoreError, "missing_run", path=str(tmp_path)):
        write_report([tmp_path])
    (tmp_path / "file").write_text("")
    with refused(StoreError, "unwritable_file", path=str(tmp_path / "file" / "page.html")):
        write_report(rich, tmp_path / "file" / "page.html")
