"""Test that dividing an evaluation into jobs and caching scores change no score of the local backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from torch import nn
from toys import builtin, snapshot

from medfl.engine.backends.jobs import BackendJob, EvaluateJob, PredictJob
from medfl.engine.backends.local import LocalBackend
from medfl.engine.evaluation import Scorer
from medfl.testing.cohort import make_data, scores
from medfl.types import Dataset


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_did_not_change_is_not_scored_again(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that rounds after the first score only the personal models of the two sites that trained."""
    log = tmp_path / "log"

    def noted(scorer: Scorer, predictor: nn.Module, splits: Mapping[str, Dataset]) -> dict[str, dict[str, float]]:
        with log.open("a") as file:
            file.write("scored\n")
        return score_splits(scorer, predictor, splits)

    score_splits = Scorer._score_splits
    monkeypatch.setattr(Scorer, "_score_splits", noted)
    case = builtin("ditto", rounds=4, fraction=0.7)
    case.run(tmp_path / "run", workers=workers)
    trained = [line for line in scores(tmp_path / "run") if "bytes_up" in line]
    assert len(trained) == 4 * 2
    each_round = 3 + 1  # the global model, at sites and at the server
    assert len(log.read_text().splitlines()) == 4 * each_round + 3 + 3 * 2
    monkeypatch.setattr(
        Scorer,
        "scores",
        lambda scorer, method, kind, model, splits, shared: score_splits(
            scorer, scorer.predictor(method, kind, model, shared), splits
        ),
    )
    case.run(tmp_path / "each", workers=workers)
    assert snapshot(tmp_path / "run") == snapshot(tmp_path / "each")


def test_known_scores_are_the_scores_of_a_resumed_run(tmp_path: Path) -> None:
    """Check that a continued run, whose score cache is empty, computes the same scores again."""
    case = builtin("ditto", rounds=4, fraction=0.7)
    case.run(tmp_path / "whole")
    for rounds in (2, 4):
        case.run(tmp_path / "parts", rounds=rounds)
    whole = {line for line in snapshot(tmp_path / "whole")["rows"] if "aggregated" in line}
    assert whole == {line for line in snapshot(tmp_path / "parts")["rows"] if "aggregated" in line}


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_test_set_of_the_server_that_is_divided_scores_as_the_whole(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divide 59 cases into batches of 4. A method without a global model has no scores on them."""
    monkeypatch.setattr("medfl.training.predict.EVALUATION_BATCH", 4)
    case, test = builtin(method), make_data(59, "global")
    case.run(tmp_path / "one", server_test=test)
    jobs: list[BackendJob] = []
    run_jobs = LocalBackend._run_all
    monkeypatch.setattr(LocalBackend, "_run_all", lambda self, todo: jobs.extend(todo) or run_jobs(self, todo))
    case.run(tmp_path / "two", server_test=test, workers=2)
    parts = [job.cases for job in jobs if isinstance(job, PredictJob) and job.round == 1]
    assert len(parts) >= 3
    assert [start for start, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == 59
    assert all(start % 4 == 0 for start, _ in parts), "whole batches, so that no bit depends on the division"
    assert all("global" not in job.sites for job in jobs if isinstance(job, EvaluateJob))
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    names = {line.split(",")[1] for line in snapshot(tmp_path / "two")["rows"]}
    assert ("global" in names) == (method == "fedavg")
