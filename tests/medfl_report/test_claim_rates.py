"""The benchmark of false claims: it decides as the library, continues after interruptions, and runs in a tiny size."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medfl_report.patient_tests import SiteModels, compare_models
from medfl_report.statistics import exchange

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "claim_rates.py"

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the benchmark in this process, and return its figures."""

    def run(*options: str) -> dict[str, Any]:
        monkeypatch.setattr(exchange, "EXCHANGES", exchange.EXCHANGES)  # the benchmark sets it
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options, "--json", str(tmp_path / "figures.json")])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return json.loads((tmp_path / "figures.json").read_text())

    return run


@pytest.mark.slow
def test_claims_are_counted(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rates = run("--simulations", "2", "--patients", "3", "6", "--one-site")
    assert "equal, auc, 1 sites, 6 patients" in capsys.readouterr().out
    assert {rates[f"{kind}, dice, 1 x 3"] for kind in ("equal", "other shape", "better")} == {"0.0"}


@pytest.mark.parametrize(("patients", "sites"), [(3, 1), (8, 1), (3, 20), (50, 4)])
def test_the_benchmark_of_claims_decides_as_the_library(patients: int, sites: int) -> None:
    """It leaves out computations that can't change the decision."""
    rates = runpy.run_path(str(SCRIPT))
    rng, ours, theirs = np.random.default_rng(patients), [], []
    for gain in np.linspace(0, 0.6, 13):
        drawn = [rates["segmenter"]("dice", rng, patients, gain) for _ in range(sites)]
        parts = [
            (1 / sites, SiteModels(pair.score, ((pair.a, pair.b),), pair.targets, None, (0, place), order_only=False))
            for place, pair in enumerate(drawn)
        ]
        ours.append(rates["is_claimed"](parts, 5))
        test = compare_models(parts, 5)
        theirs.append(test.is_significant and not test.too_few)
    assert ours == theirs
    assert any(ours) is (patients * sites >= 6)


def test_rates_of_claims_continue_after_an_interruption(run: Run, tmp_path: Path) -> None:
    page, cells = tmp_path / "statistics.md", tmp_path / "statistics_rates.csv"
    page.write_text("<!-- equal --><!-- end -->\n", encoding="utf-8")
    finished = "kind,metric,sites,patients,simulations,claims\nequal,mae,1,3,10000,500\n"
    cells.write_text(finished, encoding="utf-8")
    rates = run("--simulations", "2", "--patients", "3", "--one-site", "--page", str(page))
    assert rates["equal, mae, 1 x 3"] == "5.0"
    lines = cells.read_text(encoding="utf-8").splitlines()
    assert finished.splitlines()[1] in lines
    assert "better,mae,1,3,2,0" in lines
    assert len(lines) == 1 + 9 + 7 + 4
    assert "| 1 | 3 | 0.0 (0.0 to 65.8; 2) |" in page.read_text(encoding="utf-8")
    assert "| 5.0 |" in page.read_text(encoding="utf-8")
