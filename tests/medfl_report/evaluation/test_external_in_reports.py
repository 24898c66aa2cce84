"""External validation in reports and model cards."""

from __future__ import annotations

import shutil
from pathlib import Path

import medfl
from medfl.engine.runs.records import read_run
from medfl.plugins import load_plugins
from medfl.records.evaluation import Evaluation
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.verify import verify
from medfl_report.cards.write import write_cards
from medfl_report.evaluation.external_scores import external_rows, mean_over_sites
from medfl_report.evaluation.stored import read_evaluations
from medfl_report.page import write_report

NO_VALIDATION = "There was no external validation"


def cards(run: Path) -> dict[str, str]:
    """Write the cards of a run and return them by the name of the bundle."""
    return {card.parent.name: card.read_text() for card in write_cards(run, load_plugins())}


def test_a_card_says_that_there_was_no_external_validation_only_if_that_is_true(place: Path) -> None:
    run = place / "fedavg"
    assert all(NO_VALIDATION in card for card in cards(run).values())
    medfl.evaluate(run, place / "data" / "site-01")
    assert all(NO_VALIDATION in card for card in cards(run).values()), "a site of the run is not external"
    (evaluation,) = medfl.evaluate(run, place / "data" / "site-03")
    written = cards(run)
    assert NO_VALIDATION not in written["global"]
    assert NO_VALIDATION in written["site-01"], "the evaluated model is the global bundle's"
    score = evaluation.scores["accuracy"]
    assert score is not None
    (line,) = [line for line in written["global"].splitlines() if line.startswith("| site-03 ")]
    assert f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})" in line
    entries = Evidence.read(run / "global" / Evidence.NAME).facts.evaluations
    assert [(entry.site, entry.relation.kind) for entry in entries] == [
        ("site-01", "internal"),
        ("site-03", "external"),
    ]
    assert [result.problems for result in verify(run)] == [[], [], []]


def test_a_report_names_the_sites_of_an_external_validation_among_its_limits(place: Path) -> None:
    def limit() -> str:
        page = write_report([place / "fedavg"], registry=load_plugins()).read_text()
        return page.partition("Performance at sites ")[2].partition(",")[0]

    medfl.evaluate(place / "fedavg", place / "data" / "site-01")
    assert limit() == "outside these runs"
    medfl.evaluate(place / "fedavg", place / "data" / "site-03")
    assert limit() == "other than site-03"


def test_a_card_does_not_deny_a_validation_that_could_not_be_checked(place: Path) -> None:
    shutil.copytree(place / "data", place / "copy")
    shutil.rmtree(place / "data")
    medfl.evaluate(place / "fedavg", place / "copy" / "site-03")
    text = cards(place / "fedavg")["global"]
    assert NO_VALIDATION not in text
    assert "No external validation could be verified" in text


def test_each_sites_model_of_a_run_without_a_global_model_is_validated(place: Path) -> None:
    (evaluation,) = medfl.evaluate(place / "local", place / "data" / "site-03")
    for name, card in cards(place / "local").items():
        assert NO_VALIDATION not in card
        (model,) = [model for model in evaluation.models if model.name == name]
        score = model.scores["accuracy"]
        assert score is not None
        assert f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})" in card


def test_verify_finds_changed_evaluations(place: Path) -> None:
    run = place / "fedavg"
    medfl.evaluate(run, place / "data" / "site-03")
    cards(run)
    folder = run / "evaluations" / "global-at-site-03"
    path = folder / "predictions.csv"
    content = path.read_text()
    path.write_text(content.replace("\n0,", "\n00,", 1))
    assert all(result.problems for result in verify(run))
    path.write_text(content)
    assert not any(result.problems for result in verify(run))
    record = Evaluation.read(folder / Evaluation.NAME)
    model = record.models[0].model_copy(update={"scores": record.models[0].scores | {"accuracy": None}})
    record.model_copy(update={"models": (model,)}).write(folder / Evaluation.NAME)
    assert all(result.problems for result in verify(run))


def test_evaluations_of_replaced_models_do_not_count(place: Path) -> None:
    run = place / "fedavg"
    medfl.evaluate(run, place / "data" / "site-03")
    assert len(read_evaluations(read_run(run))) == 1
    shutil.copy(place / "local" / "sites" / "site-01" / "models" / "model.pt", place / "weights.pt")
    (run / "global" / "models" / "model.pt").unlink()
    shutil.move(place / "weights.pt", run / "global" / "models" / "model.pt")
    assert read_evaluations(read_run(run)) == []


def test_the_report_has_a_row_for_each_method(place: Path) -> None:
    runs = [place / "fedavg", place / "local"]
    write_report(runs, place / "before.html")
    assert "External validation" not in (place / "before.html").read_text()
    for run in runs:
        medfl.evaluate(run, place / "data")
    write_report(runs, place / "report.html")
    text = (place / "report.html").read_text()
    assert "External validation" in text
    rows = external_rows({run.name: [read_run(run)] for run in runs})
    assert [(row.label, row.model, [part.site for part in row.sites]) for row in rows] == [
        ("fedavg", "global", ["site-03"]),
        ("local", "sites", ["site-03"]),
    ]
    for row in rows:
        score = row.mean("accuracy")
        assert score == mean_over_sites([row.sites[0].evaluations[0].record.scores["accuracy"]])
        assert score is not None
        assert f"{score.low:.3f} to {score.high:.3f}" in text
    assert text.count("Not an external validation") == 4
