"""Numbers of results pages that are no scores of a study: ranks over data sets, exact noise, missing cases."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from medfl.objectives import Segmentation
from medfl.privacy import gaussian
from medfl.privacy.concentrated import concentrated_epsilon, rho_of
from medfl_report.predictions import PredictionSet
from medfl_studies.results.page_statistics import DataScores
from medfl_studies.results.page_tables import compare_ranks_over, mean_noise


def scores(study: str, metric: str, **by_row: list[float]) -> SimpleNamespace:
    """Return what ranks need of a study's scores: one score for each run of a row."""
    raw = SimpleNamespace(study=study)
    return SimpleNamespace(
        rows=list(by_row), metric=metric, data="demo", by_seed=by_row.__getitem__, results=SimpleNamespace(raw=raw)
    )


def test_ranks_are_of_the_rows_that_all_studies_have() -> None:
    parts = [scores(f"s{place}", "auc", fedavg=[0.8, 0.6], local=[0.6, 0.6], other=[0.9]) for place in range(5)]
    parts.append(scores("errors", "mae", fedavg=[3.0], local=[2.0], other=[1.0], fourth=[0.0]))
    result = compare_ranks_over(parts, "fedavg", 0.01)  # type: ignore[arg-type]
    assert result.ranks.ranks == {"other": 1.0, "fedavg": pytest.approx(13 / 6), "local": pytest.approx(17 / 6)}
    assert (result.ranks.data_sets, result.ranks.can_decide) == (6, True)
    assert [(part.name, part.metric) for part in result.data][-1] == ("errors", "mae")


@pytest.mark.parametrize("epsilon", [5.0, 500.0])
def test_noise_in_the_mean_has_the_epsilon(epsilon: float) -> None:
    alone, shared = mean_noise(epsilon, 10, 20), mean_noise(epsilon, 10, 20, 7)
    sensitivity = gaussian.SENSITIVITY["replace"]
    of_one = alone * math.sqrt(10)  # the mean of ten independent noises
    assert gaussian.epsilon(of_one, 20, 1e-5, sensitivity) == pytest.approx(epsilon, rel=1e-6)
    of_seven_shares = shared * 10 / math.sqrt(10 / 7)  # noise of the sum of seven of ten shares
    assert concentrated_epsilon(rho_of(of_seven_shares, 20, sensitivity), 1e-5) == pytest.approx(epsilon, rel=1e-6)


def test_cases_without_a_number_are_counted_in_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = Segmentation(channels=2)
    values = torch.zeros(3, 5, dtype=torch.float64)
    values[1, objective.columns(()).index("hd95_1")] = math.nan
    test_set = PredictionSet(torch.arange(3), torch.ones(3, 1), values, objective)
    monkeypatch.setattr(DataScores, "seeds", lambda *_: [0, 1])
    monkeypatch.setattr(DataScores, "_sets", lambda *_: {"north": test_set, "south": test_set})
    part = DataScores(None, "demo", "dice")  # type: ignore[arg-type]
    assert part.undefined_cases("fedavg", "hd95_1") == 4
    assert part.undefined_cases("fedavg", "dice_1") == 0
