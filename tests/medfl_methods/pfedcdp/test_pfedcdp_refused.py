"""What PFedCDP refuses, before anybody trains, and says of it."""

import sys

import pytest
from pfedcdp_toys import SHORT, run
from refusals import refused

from medfl.errors import SettingsError
from medfl.testing.cohort import make_task


@pytest.mark.parametrize("refine", [{"explain": 1}, {"teachers": "literal"}])
def test_shap_is_needed_where_pixels_are_explained(tmp_path, monkeypatch, refine):
    monkeypatch.setitem(sys.modules, "shap", None)
    with refused(SettingsError, "missing_package", package="shap", extra="explain"):
        run(tmp_path / "1", {"refine": SHORT | refine})
    assert not (tmp_path / "1" / "state" / "site-1").exists()
    assert run(tmp_path / "2", {"refine": SHORT}, rounds=1).outcome.status == "finished"


def test_a_run_says_at_its_start_what_the_papers_preset_misses(tmp_path, caplog):
    run(tmp_path, {"preset": "paper", "refine": None}, rounds=1)
    assert (
        "The preset 'paper' of 'pfedcdp' belongs to runs with other settings than this one: expected rounds = 20"
        in (caplog.text)
    )


def test_limits_are_told(tmp_path, caplog):
    args = {"personal_share": 1.0, "head_share": 0.0, "lam": 0.0}
    run(tmp_path, args, task=make_task("plain"), rounds=1)
    assert "on a network without batch-norm layers, 'pfedcdp' is 'local'" in caplog.text
