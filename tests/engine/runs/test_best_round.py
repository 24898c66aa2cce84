"""Test the best round and early stopping: only validation scores decide, also after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused
from toys import SIZES, Ring, Toy, builtin, digests, snapshot

from medfl.engine.evaluation import BestEvaluation, MetricRow
from medfl.engine.runs.records import read_run
from medfl.engine.site import Splits
from medfl.errors import SettingsError
from medfl.records.run_file import RunFile
from medfl.testing.cohort import make_data, make_sites, scores

ROUNDS = 7


def by_hand(folder: Path) -> list[float]:
    """Return the mean validation accuracy of each round from the metrics file."""
    table = pd.read_csv(folder / "metrics.csv")
    table = table[(table["split"] == "val") & (table["moment"] == "aggregated")]
    return table.groupby("round")["value"].mean().tolist()


def cases() -> dict[str, Any]:
    """Return cases with personal states, with peer messages, with a server's state alone, and with heads."""
    return {
        "ring": Toy(Ring, alone=True),
        "fedavg": builtin("fedavg", norm_sync="params"),
        "fedsdc": builtin("fedsdc"),
    }


# ---- which round


def row(value: float, site: str = "a", **other: Any) -> MetricRow:
    return MetricRow(
        1, site, **({"model": "global", "split": "val", "moment": "aggregated", "metric": "auc"} | other), value=value
    )


@pytest.mark.parametrize(
    ("rows", "metric", "expected"),
    [
        ([row(0.7)], "auc", BestEvaluation(4, 8, 0.7)),
        ([row(0.6)], "auc", BestEvaluation(1, 2, 0.6, 3)),
        ([row(0.8), row(0.7, "b")], "auc", BestEvaluation(4, 8, 0.75)),
        ([row(0.9), row(float("nan"), "b")], "auc", BestEvaluation(4, 8, 0.9)),
        ([row(1e9), row(-1.0, "b"), row(float("inf"), "c")], "auc", BestEvaluation(1, 2, 0.6, 3)),
        ([], "auc", BestEvaluation(1, 2, 0.6, 3)),
        ([row(0.9), row(0.1, model="personal")], "auc", BestEvaluation(1, 2, 0.6, 3)),
        (
            [row(0.9, split="test"), row(0.9, moment="trained"), row(0.9, metric="f1")],
            "auc",
            BestEvaluation(1, 2, 0.6, 3),
        ),
        ([row(0.9, metric="ece")], "ece", BestEvaluation(1, 2, 0.6, 3)),
        ([row(0.1, metric="ece")], "ece", BestEvaluation(4, 8, 0.1)),
    ],
    ids=[
        "better",
        "equal",
        "mean",
        "undefined",
        "impossible",
        "none",
        "taken-home",
        "other-rows",
        "error",
        "less-error",
    ],
)
def test_only_a_better_mean_validation_score_replaces_the_best(
    rows: list[MetricRow], metric: str, expected: BestEvaluation
) -> None:
    best = BestEvaluation(1, 2, 0.6, 2).after(4, 8, rows, metric)
    assert (best.round, best.step, best.evaluations_since) == (
        expected.round,
        expected.step,
        expected.evaluations_since,
    )
    assert best.score == pytest.approx(expected.score)


def test_the_first_score_counts_whatever_it_is() -> None:
    assert BestEvaluation().after(1, 2, [], "auc") == BestEvaluation(evaluations_since=1)
    assert BestEvaluation(evaluations_since=1).after(2, 4, [row(0.0)], "auc") == BestEvaluation(2, 4, 0.0)
    assert BestEvaluation().after(1, 2, [row(0.9, metric="ece")], "ece") == BestEvaluation(1, 2, 0.9), (
        "worse than the 0 that stands for none"
    )
    assert BestEvaluation(1, 2, 0.9).after(2, 4, [], "auc") == BestEvaluation(1, 2, 0.9, 1)


def test_scores_at_the_ends_of_their_range_count_and_beyond_them_do_not() -> None:
    assert BestEvaluation(1, 2, 0.5).after(2, 4, [row(1.0), row(0.4, "b")], "auc") == BestEvaluation(2, 4, 0.7)
    assert BestEvaluation(1, 2, 0.2).after(2, 4, [row(0.0), row(0.6, "b")], "auc") == BestEvaluation(2, 4, 0.3)
    assert BestEvaluation(1, 2, 0.2).after(2, 4, [row(0.0), row(0.3, "b"), row(1.001, "c")], "auc") == BestEvaluation(
        1, 2, 0.2, 1
    )
    assert BestEvaluation(1, 2, 0.2).after(2, 4, [row(0.2, metric="ece")], "ece") == BestEvaluation(1, 2, 0.2, 1), (
        "equal is no better"
    )


@pytest.mark.parametrize("option", [{"best_round": True}, {"patience": 1}])
def test_without_validation_images_a_run_that_needs_them_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    sites = {name: Splits(site.train, make_data(0, name), site.test) for name, site in make_sites(SIZES).items()}
    with refused(SettingsError, "no_images", split="val", settings=["best_round", "patience"]):
        builtin("fedavg", **option).run(tmp_path, sites=sites)


# ---- what sites take home


@pytest.mark.parametrize("name", list(cases()))
def test_sites_export_the_models_of_the_best_round(tmp_path: Path, name: str) -> None:
    case = cases()[name]
    result = case.run(tmp_path / "best", rounds=ROUNDS, best_round=True)
    means = by_hand(tmp_path / "best")
    best = means.index(max(means)) + 1
    assert best < ROUNDS, "else the last round proves nothing"
    facts = {
        "round": best,
        "metric": "accuracy",
        "score": pytest.approx(max(means)),
        "is_exported": True,
        "ended_early": False,
    }
    summary, record = result.summary, RunFile.read(tmp_path / "best" / "run.json")
    assert {key: getattr(summary.best_round, key) for key in facts} == facts
    assert record.best_round == summary.best_round
    assert (summary.rounds, summary.evaluated_round, summary.models_round) == (ROUNDS, best, best)
    short, last = case.run(tmp_path / "short", rounds=best), case.run(tmp_path / "last", rounds=ROUNDS)
    assert digests(result) == digests(short) != digests(last)
    assert summary.scores == short.summary.scores
    assert last.summary.best_round is None
    assert scores(tmp_path / "last") == scores(tmp_path / "best"), "choosing changes nothing of what is computed"


def test_only_evaluated_rounds_can_be_chosen_and_more_rounds_continue_the_choice(tmp_path: Path) -> None:
    """Check that a round that is scored only because it was the last one can be chosen too."""
    case = cases()["ring"]
    first = case.run(tmp_path / "run", rounds=4, best_round=True, evaluate_every=3)
    assert first.summary.best_round.round in (3, 4)
    more = case.run(tmp_path / "run", rounds=9, best_round=True, evaluate_every=3)
    table = read_run(tmp_path / "run").metrics
    table = table[(table["split"] == "val") & (table["moment"] == "aggregated")]
    means = table.groupby("round")["value"].mean()
    assert list(means.index) == [3, 4, 6, 9]
    best = int(means.idxmax())
    assert more.summary.models_round == best
    assert digests(more) == digests(case.run(tmp_path / "short", rounds=best))


def test_the_server_test_is_of_the_exported_models(tmp_path: Path) -> None:
    case = cases()["ring"]
    best = case.run(tmp_path / "best", rounds=ROUNDS, best_round=True, cross_site_evaluation=True).summary.models_round
    case.run(tmp_path / "short", rounds=best, cross_site_evaluation=True)
    lines, expected = ([line for line in scores(tmp_path / run) if "@" in line] for run in ("best", "short"))
    assert lines == expected
    assert lines


# ---- ending early


@pytest.mark.parametrize(("name", "best_round"), [("ring", True), ("fedsdc", False)])
def test_a_run_ends_when_no_better_score_came_for_long_enough(tmp_path: Path, name: str, best_round: bool) -> None:
    case, options = cases()[name], {"rounds": 30, "patience": 2, "best_round": best_round}
    result = case.run(tmp_path / "run", **options)
    means = by_hand(tmp_path / "run")
    over = next(n for n in range(30) if n - means[: n + 1].index(max(means[: n + 1])) >= 2) + 2
    assert (result.outcome.status, result.summary.rounds, len(means)) == ("finished", over, over)
    assert result.summary.best_round.ended_early
    best = means.index(max(means)) + 1
    assert result.summary.models_round == (best if best_round else over)
    before = snapshot(tmp_path / "run")
    for rounds in (30, 40):  # again, and with more rounds: it is over
        again = case.run(tmp_path / "run", **options | {"rounds": rounds})
        assert digests(again) == digests(result)
        assert snapshot(tmp_path / "run") == before
        assert again.summary.model_copy(update={"costs": {}}) == result.summary.model_copy(update={"costs": {}})


# ---- what tells of it


def test_the_report_says_which_round_was_chosen_and_on_what(tmp_path: Path) -> None:
    pytest.importorskip("medfl_report")
    from medfl_report.groups import Group
    from medfl_report.notices import make_notices

    groups = []
    for name, options in {"best": {"best_round": True}, "early": {"patience": 1}}.items():
        cases()["fedavg"].run(tmp_path / name, rounds=ROUNDS, **options)
        groups.append(Group(name, (read_run(tmp_path / name),)))
    texts = [notice.text for notice in make_notices(groups) if "validation images" in notice.text]
    chosen, ended = (group.runs[0].summary.best_round for group in groups)
    assert texts[0] == (
        f"best: its models and final scores are those of round {chosen.round}, by scores on validation images, mean "
        f"over the sites (accuracy {chosen.score:.3f})."
    )
    assert f"it ended early, after {groups[1].runs[0].summary.rounds} of {ROUNDS} rounds" in texts[1]
    assert f"the best was {ended.round}" in texts[1]
