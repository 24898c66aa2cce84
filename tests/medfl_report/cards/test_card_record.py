"""The facts and scores of a card."""

from __future__ import annotations

import pytest
from card_records import FACTS, RUN, SCORES
from pydantic import ValidationError

from medfl_report.cards.card_record import CardAnswers, DataFacts, ImageCounts, NamedValue, SiteImageCounts
from medfl_report.cards.card_scores import CardScores, CardTable
from medfl_report.cards.checklists import CHECKLISTS


def test_images_are_counted_over_sites_and_classes() -> None:
    sites = (SiteImageCounts(site="a", training=(1, 2)), SiteImageCounts(site="b", training=(3, 0), test=(5, 0)))
    counts = ImageCounts(classes=("x", "y"), sites=sites)
    assert [counts.total(split) for split in ("training", "validation", "test")] == [6, 0, 5]
    assert list(sites[0].by_split) == ["training", "validation", "test"]
    with pytest.raises(KeyError):
        counts.total("tests")


def test_a_setting_of_the_partition_is_known_or_not() -> None:
    partition = (NamedValue(name="scheme", value="iid"), NamedValue(name="seed", value="0"))
    assert DataFacts(partition=partition).partition_setting("scheme") == "iid"
    assert DataFacts().partition_setting("scheme") is None


def test_people_know_the_intended_use_better_than_the_bundle() -> None:
    assert FACTS.intended_use == "Research."
    answers = CardAnswers(intended_use="Teaching.")
    assert FACTS.model_copy(update={"answers": answers}).intended_use == "Teaching."


def test_each_checklist_has_answers() -> None:
    answers = CardAnswers(claim={"5": "a"}, tripod_ai={"6c": "b"})
    assert answers.checklists == {"claim": {"5": "a"}, "tripod_ai": {"6c": "b"}}
    assert answers.checklists.keys() == CHECKLISTS.keys()


def test_an_unknown_kind_of_model_is_no_fact() -> None:
    with pytest.raises(ValidationError):
        type(RUN).model_validate(RUN.to_json() | {"model_kind": "local"})


def test_each_value_of_the_scores_has_a_name_of_its_own() -> None:
    values = list(SCORES.values())
    assert len(dict(values)) == len(values)
    assert dict(values)["all all test images auc"] == 0.8
    assert dict(values)["all all test images auc, lower end"] == 1e-05
    assert dict(values)["all rows"] == "all test images, mean of sites"
    assert dict(values)["bin 1 share"] == 0.5


def test_scores_without_images_are_empty() -> None:
    assert CardScores().overall is None
    assert CardScores(tables=(CardTable(part="all", metrics=(), rows=()),)).overall is None
    assert SCORES.overall == SCORES.tables[0].rows[0]
