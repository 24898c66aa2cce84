"""A test set that all sites share in a distributed run: sites with it, with another one, and the check beforehand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from loopback import Place
from remote_cases import mini_place, offered, serve

from medfl.testing.cohort import scores
from medfl_flare.sites.site_check import check_site


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return data without recorded digests, as the tests change lists and images."""
    made = mini_place(tmp_path / "federation")
    (made.data / "partition.json").unlink(missing_ok=True)
    return made


def failed(path: Path) -> list[str]:
    return [line.text for line in check_site(path) if not line.ok]


def test_the_shared_test_is_the_servers_or_a_site_is_left_out(place: Place, tmp_path: Path) -> None:
    for name in ("site-02", "site-03"):
        shutil.copytree(place.data, tmp_path / name)
    shutil.rmtree(tmp_path / "site-02" / "global")
    path = tmp_path / "site-03" / "global" / "datalist.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"test": json.loads(path.read_text())["test"][1:]}))
    own = {name: {"entry": {"data": str(tmp_path / name / name)}} for name in ("site-02", "site-03")}
    files = place.files("shared", own)
    folder, progress, _ = serve(files, offered(place, method="fedper", rounds=1, shared_test=True, min_replies=1))
    assert progress.state == "finished"
    assert "expected a folder 'global' with the test set beside the site's data" in progress.missing["site-02"]
    assert "its shared test set has other images or labels than the server's" in progress.missing["site-03"]
    shared = {tuple(line.split(",")[1:5]) for line in scores(folder) if ",shared," in line}
    assert shared == {("site-01", "personal", "shared", "aggregated")}


def test_a_shared_test_set_is_looked_for_and_compared_with_the_sites_own_images(place: Place) -> None:
    file = place.files("ready")["site-01"].path
    assert failed(file) == []
    text = "\n".join(map(str, check_site(file)))
    assert "scores of its own model on a test set that all sites share are allowed" in text
    assert "global: 0 training, 0 validation" in text
    own, shared = (json.loads((place.data / name / "datalist.json").read_text()) for name in ("site-01", "global"))
    array = place.data / "global" / shared["image_array"]
    images = np.load(array)
    images[shared["test"][0]["image"]] = images[own["training"][0]["image"]]
    np.save(array, images)
    (line,) = failed(file)
    assert "1 identical image in both site-01/training and global/test" in line
    shutil.rmtree(place.data / "global")
    (line,) = failed(file)
    assert "shared_test is true: expected a folder 'global' beside the data" in line
