"""Studies of all methods: rows have one budget, inputs one scale, and the table shows how sites are weighted."""

from __future__ import annotations

from pathlib import Path

import pytest

from medfl.plugins import load_plugins
from medfl_studies.study import rows_markdown
from medfl_studies.study_reader import read_study

REGISTRY = load_plugins()
STUDIES = Path(__file__).parents[2] / "studies"
NAMES = ("blood", "breast", "heart", "tcga")
KEEPS = {"persistent", "travel"}


@pytest.fixture(params=NAMES)
def study(request):
    return read_study(STUDIES / f"methods_{request.param}.yaml")


def test_every_row_takes_the_same_number_of_steps_with_fine_tuning(study):
    """Per-FedAvg ends with one more step, so its number of steps can't be equal everywhere; it never takes more."""
    total = study.settings["rounds"] * study.settings["steps"]
    for name, row in study.rows.items():
        settings, method = study.settings | row.settings, REGISTRY.make_method(row.method, row.method_args)
        steps = settings["rounds"] * settings["steps"]
        if row.method == "per_fedavg":
            assert total - 10 <= steps + 1 <= total
        elif row.method == "fedbabu":
            assert method.finetune_steps >= 0.1 * total
            assert steps + method.finetune_steps == total
        else:
            assert steps == total, name


def test_models_that_are_never_averaged_keep_their_optimisers_where_it_matters(study):
    """FedSKD and local training need the same optimizer policy. SGD without momentum has no state to keep."""
    if study.settings.get("optimizer#momentum", 0) == 0 and study.bundle == "tabular":
        return
    for name in ("centralized", "local", "fedcross", "fedcross_star", "fedskd"):
        row = study.rows[name]
        assert REGISTRY.make_method(row.method, row.method_args).optimizer_state in KEEPS, name
    assert REGISTRY.make_method("local", study.rows["local_reset"].method_args).optimizer_state == "reset"


def test_tables_are_standardised_once(study):
    """The preparation standardises FLamby's heart disease table; the bundle standardises all other tables."""
    if study.bundle == "tabular":
        datasets = {data.prep.dataset for data in study.data.values()}
        assert study.settings.get("standardise", True) == (datasets != {"flamby_heart"})


def test_a_table_says_how_each_row_weighs_sites(study):
    lines = [line.split(" | ") for line in rows_markdown(study, REGISTRY).splitlines() if line.startswith("| ")]
    cells = {line[0].removeprefix("| "): line[2] for line in lines[2:]}
    assert cells.keys() == study.rows.keys()
    expected = {"fedavg": "size", "fedprox": "size", "feddyn": "uniform", "pfedme": "uniform", "per_fedavg": "uniform"}
    expected |= {"flash": "uniform", "mr_mtl": "uniform", "local": "none", "cyclic": "none", "fedcross": "none"}
    assert {name: cells[name] for name in expected} == expected
