"""Each participant's own data in a distributed run: changes after a partition, and classes of the server's data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from loopback import Loopback, Place, make_place
from refusals import refused

from medfl.data.datalists import DATALIST_FILE, read_datalist, write_datalist
from medfl.errors import DataError, PluginError
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import DataOrigin, RunFile
from medfl.types import GLOBAL, PUBLIC
from medfl_flare.offered_bundle import open_offer
from medfl_flare.server import _ServerTestData
from medfl_flare.sites.site_check import check_site

CHANGED = f"site-02/{DATALIST_FILE}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return data with another list at site 2, and with another class order in the server's public data."""
    place = make_place(tmp_path_factory.mktemp("place"), images=20)
    path = place.data / CHANGED
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"training": content["training"][1:]}))
    shutil.copytree(place.data / "site-01", place.data / PUBLIC)
    public = read_datalist(place.data / PUBLIC)
    public.labels = {str(number): public.labels[str(2 - number)] for number in range(3)}
    write_datalist(place.data / PUBLIC, public)
    return place


def test_a_site_refuses_its_data_if_they_changed_unless_its_file_says_so(place: Place) -> None:
    offer = place.offer(rounds=1)
    files = place.files("refused")
    _, progress = Loopback(files).serve(offer)
    assert list(progress.missing) == ["site-02"]
    assert DATALIST_FILE not in progress.missing["site-02"], "what a site has is its own affair"
    (line,) = [line.text for line in check_site(files["site-02"].path) if not line.ok]
    assert f"not as `medfl partition` left them in {place.data}: {CHANGED}. Partition again" in line
    accepted = place.files("accepted", {"site-02": {"entry": {"allow_changes": [CHANGED]}}})
    _, progress = Loopback(accepted).serve(offer)
    assert (progress.state, progress.missing) == ("finished", {})
    run = RunFile.read(accepted["site-02"].state / "runs" / "one" / "run.json")
    assert run.provenance.data == DataOrigin(allowed_changes=(CHANGED,))
    assert all(line.ok for line in check_site(accepted["site-02"].path))


def test_the_servers_public_data_get_the_sites_classes_by_name(place: Place) -> None:
    file = place.files("server")["server"]
    data = _ServerTestData(open_offer(place.offer(), file), file)
    assert data.has_public
    classes = tuple(read_datalist(place.data / GLOBAL).labels.values())
    data.load_public_data(classes)
    assert data.public is not None
    own = [record["label"] for record in read_datalist(place.data / PUBLIC).splits["training"]]
    np.testing.assert_array_equal(data.public.train.class_labels, 2 - np.array(own))
    with refused(DataError, "different_classes", expected=["a", "b", "c"], found=list(classes)):
        data.load_public_data(("a", "b", "c"))


def test_plugins_with_problems_are_named_in_the_participants_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Registry:
        registry = load_plugins()
        registry.problems.append("Plugin 'extra' can't be loaded: it lacks a method.")
        return registry

    monkeypatch.setattr("medfl_flare.offered_bundle.load_plugins", broken)
    file = place.files("server")["server"]
    open_offer(place.offer(), file)
    assert "Plugin 'extra' can't be loaded: it lacks a method." in caplog.messages


@pytest.mark.parametrize(
    ("overrides", "what", "choice"),
    [
        ({"robust": {"rule": "medain"}}, "robust_rule", "medain"),
        ({"privacy": {"unit": "ward", "epsilon": 5.0, "clip": 1.0}}, "privacy_mechanism", "ward"),
    ],
    ids=["rule", "unit"],
)
def test_a_site_refuses_a_rule_or_a_privacy_unit_that_its_plugins_do_not_have(
    place: Place, overrides: dict[str, object], what: str, choice: str
) -> None:
    file = place.files("plain")["site-01"]
    with refused(PluginError, "unknown_choice", what=what, choice=choice):
        open_offer(place.offer(**overrides), file)


def test_public_classes_of_other_names_are_refused_at_the_server(place: Place, tmp_path: Path) -> None:
    shutil.copytree(place.data / PUBLIC, tmp_path / PUBLIC)
    public = read_datalist(tmp_path / PUBLIC)
    public.labels = {"0": "a", "1": "b", "2": "c"}
    public.image_array = str(place.data / "images.npy")
    write_datalist(tmp_path / PUBLIC, public)
    file = place.files("other", {"server": {"entry": {"data": str(tmp_path)}}})["server"]
    data = _ServerTestData(open_offer(place.offer(), file), file)
    with refused(DataError, "missing_label_map", expected=["x", "y", "z"], found=["a", "b", "c"]):
        data.load_public_data(("x", "y", "z"))
