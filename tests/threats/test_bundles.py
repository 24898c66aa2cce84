"""Test malicious bundles: the check lists every way by which MONAI would run code."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from monai.bundle import ConfigParser

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.check import check_bundle

CALL = "os.mkdir"

HIDDEN: dict[str, dict[str, Any]] = {
    "in its place": {"evil": {"_target_": CALL, "path": "MADE"}},
    "laid into a part by ::": {"evil": {"path": "MADE"}, "evil::_target_": CALL},
    "laid into a part by #": {"evil": {"path": "MADE"}, "evil#_target_": CALL},
    "laid over a part": {"evil": {"path": "MADE"}, "+evil": {"_target_": CALL}},
    "laid over and into": {"evil": {"path": "MADE"}, "+evil::_target_": CALL},
    "laid into a list": {"evil": [{"path": "MADE"}], "evil::0::_target_": CALL},
    "in the place of a part": {"evil": {"x": {"path": "MADE"}}, "evil::x": {"_target_": CALL, "path": "MADE"}},
    "pulled in": {"evil": "%template", "template": {"_target_": CALL, "path": "MADE"}},
}


@pytest.mark.parametrize("way", HIDDEN)
def test_what_monai_would_call_is_listed_everywhere(tmp_path: Path, way: str) -> None:
    made = tmp_path / "made"
    bundle = shutil.copytree(shipped_bundles()["medmnist_classification"], tmp_path / "bundle")
    path = bundle / "configs" / "train.json"
    content = json.loads(path.read_text()) | json.loads(json.dumps(HIDDEN[way]).replace("MADE", str(made)))
    path.write_text(json.dumps(content))
    listed = [code for code in check_bundle(bundle).code if code.text == CALL]
    assert [code.kind for code in listed] == ["target"]
    assert listed[0].package == "python"
    assert not made.exists(), "the check itself runs nothing"
    parser = ConfigParser()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MONAI's, of parts that are not there
        parser.read_config([str(path)])
    parser.get_parsed_content("evil")
    assert made.is_dir(), "and MONAI would have called it"


@pytest.mark.parametrize("key", ["_mode_", "_disabled_", "_requires_"])
def test_what_changes_a_call_is_listed_where_it_is_laid_into_a_part(tmp_path: Path, key: str) -> None:
    bundle = shutil.copytree(shipped_bundles()["medmnist_classification"], tmp_path / "bundle")
    path = bundle / "configs" / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {f"network_def::{key}": "debug"}))
    (code,) = [code for code in check_bundle(bundle).code if code.text == "debug"]
    assert (code.id, code.kind) == (f"network_def::{key}", key.strip("_"))


@pytest.mark.parametrize("target", ["@name", "%name", "$@name", "$'os.' + 'mkdir'"])
def test_a_target_that_only_running_shows_is_said_to_be_one(tmp_path: Path, target: str) -> None:
    bundle = shutil.copytree(shipped_bundles()["medmnist_classification"], tmp_path / "bundle")
    path = bundle / "configs" / "train.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": CALL, "evil::_target_": target, "evil": {}}))
    (code,) = [code for code in check_bundle(bundle).code if code.id == "evil::_target_"]
    assert (code.kind, code.package) == ("target", "computed")
