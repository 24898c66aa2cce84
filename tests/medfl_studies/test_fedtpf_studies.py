"""Studies of FedTPF: compared rows have equally many rounds with shared images, several scores and three seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from medfl_studies.study_reader import read_study

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("fedtpf_*.yaml"))


@pytest.mark.parametrize("scale", ["full", "cpu"])
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_rows_have_equally_many_rounds_with_shared_images(path: Path, scale: str) -> None:
    study = read_study(path, scale)
    rounds, budgets = set(), set()
    for row in study.rows.values():
        settings = study.settings | row.settings
        stage = row.method_args.get("distil_rounds", 15)
        if row.method in ("fedfed", "fedtpf"):
            rounds.add((settings["rounds"], settings["rounds"] - stage))
            budgets.add(row.method_args.get("distil_steps"))
            assert settings["rounds"] - stage >= 2 * settings["evaluate_every"], "a curve, not one last score"
        assert max(settings.get("keep_rounds", [1])) <= settings["rounds"]
    assert len(rounds) == 1
    assert len(study.seed_list()) >= 3
    assert scale == "full" or None not in budgets, "the first stage has a budget of its own at this scale"
