"""Answers of the checklists' items, from the facts of a card and from a file that people write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.data.datalists import SPLITS
from medfl.errors import SettingsError, did_you_mean
from medfl.utils.formats import listed, metric_words, sentence
from medfl.utils.strict_yaml import parse_yaml
from medfl_report.cards.card_record import CardAnswers, CardFacts, RunFacts
from medfl_report.cards.card_scores import CardScores
from medfl_report.cards.checklists import ANSWERED, CHECKLISTS, NOT_APPLICABLE, UNKNOWN
from medfl_report.cards.run_facts import count_text
from medfl_report.objectives.site_scores import RESAMPLES

TEXTS = ("license", "intended_use")
"""Keys with a text in a file of answers; the others are those of the checklists."""


def read_answers(path: Path | None) -> CardAnswers:
    """Read a file of answers, in YAML: ``license``, ``intended_use``, and ``claim`` and ``tripod_ai`` by item.

    Args:
        path: Path of the file; None returns no answers.

    Raises:
        SettingsError: If the file can't be read, or has an unknown key or item.
    """
    if path is None:
        return CardAnswers()
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:
        raise SettingsError(
            "unreadable_file",
            f"the answers '{path}' can't be read: {type(error).__name__}. Write them in YAML.",
            path=path,
        ) from None
    keys = (*TEXTS, *CHECKLISTS)
    if not isinstance(content, dict):
        raise SettingsError(
            "wrong_type",
            f"expected the keys {listed(keys)} in '{path}', got {type(content).__name__}.",
            path=path,
            found=type(content).__name__,
        )
    answers: dict[str, Any] = {}
    for key, value in content.items():
        if key not in keys:
            raise SettingsError(
                "unknown_setting",
                f"unknown key '{key}' in '{path}'. {did_you_mean(str(key), keys)}",
                name=str(key),
                path=path,
            )
        answers[key] = _items(key, value, path) if key in CHECKLISTS else _text(value, key, path)
    return CardAnswers(**answers)


def _items(checklist: str, items: Any, path: Path) -> dict[str, str]:
    if not isinstance(items, dict):
        raise SettingsError(
            "wrong_type",
            f"expected the numbers of items with a text each in '{checklist}' of '{path}'.",
            path=path,
            place=checklist,
        )
    texts = {str(number): _text(text, f"{checklist} {number}", path) for number, text in items.items()}
    for number in texts:
        if number not in CHECKLISTS[checklist]:
            raise SettingsError(
                "unknown_choice",
                f"there is no item '{number}' of '{checklist}' in '{path}'. "
                f"{did_you_mean(number, CHECKLISTS[checklist])}",
                what=checklist,
                choice=number,
                path=path,
            )
    return texts


def _text(value: Any, where: str, path: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(
            "wrong_type",
            f"expected a text in '{where}' of '{path}', got {type(value).__name__}.",
            path=path,
            place=where,
            expected="text",
            found=type(value).__name__,
        )
    return " ".join(value.split())


@dataclass(frozen=True)
class ItemAnswer:
    """Answer of an item of a checklist.

    Attributes:
        state: `ANSWERED`, `NOT_APPLICABLE` or `UNKNOWN`.
        text: The answer; empty if unknown.
    """

    state: str
    text: str


def item_answers(checklist: str, facts: CardFacts, scores: CardScores) -> dict[str, ItemAnswer]:
    """Return the answer of each item of a checklist, by number.

    Args:
        checklist: One of `CHECKLISTS`.
        facts: Facts of the card.
        scores: Scores of the card.
    """
    people, known = facts.answers.checklists[checklist], topic_answers(facts, scores)
    table: dict[str, ItemAnswer] = {}
    for number, item in CHECKLISTS[checklist].items():
        if number in people:
            is_left_out = people[number].lower().startswith(NOT_APPLICABLE)
            table[number] = ItemAnswer(NOT_APPLICABLE if is_left_out else ANSWERED, people[number])
        else:
            table[number] = known.get(item.topic, ItemAnswer(UNKNOWN, ""))
    return table


def topic_answers(facts: CardFacts, scores: CardScores) -> dict[str, ItemAnswer]:
    """Return the answers that the facts of a card give, by topic; a topic that no fact answers is not there."""
    answers = _of_model(facts) | _of_training(facts.run) | _of_data(facts) | _of_scores(facts, scores)
    table = {topic: ItemAnswer(ANSWERED, text) for topic, text in answers.items() if text}
    table["updating"] = ItemAnswer(NOT_APPLICABLE, "No earlier model was updated.")
    if facts.model.takes_images:
        table["assessors"] = ItemAnswer(NOT_APPLICABLE, "The image is the only predictor.")
    return table


def _of_model(facts: CardFacts) -> dict[str, str | None]:
    run, model, license_ = facts.run, facts.model, facts.answers.license
    networks = listed(model.networks)
    licensed = f"Licence of the model: {license_}." if license_ else None
    return {
        "title": f"A deep network ({networks}), trained by federated learning ({run.method}).",
        "intended_use": facts.intended_use,
        "preprocessing": "All transforms stand in configs/inference.json of this bundle, alike for all groups.",
        "model": f"Network {networks}: its definition stands in configs/train.json, its weights in models.",
        "output": model.output,
        "predictors": "The image as a whole; none was chosen." if model.takes_images else None,
        "predictions": "predictions.csv has what the model says of each test image of a site.",
        "availability": licensed and f"{licensed} medfl is free software (Apache-2.0). Data: see Data.",
        "details": "evidence.json has the identity of the run, with all settings.",
        "objectives": "Development, with an evaluation on test images of the same sites.",
    }


def _of_training(run: RunFacts) -> dict[str, str | None]:
    settings = {setting.name: setting.value for setting in run.settings}
    weights, balance = settings.get("weights"), settings.get("balance")
    start = f"The weights of the file {weights}." if weights else f"Drawn at random, from the seed {run.seed}."
    packages = ", ".join(f"{fact.name} {fact.value}" for fact in run.environment if fact.name in PACKAGES)
    return {
        "software": packages,
        "code": f"medfl is free software (Apache-2.0); versions in the run: {packages}.",
        "start": start,
        "training": f"{run.method} over {run.planned_rounds} rounds, {run.optimizer}, {run.loss}; see Method.",
        "selection": _selection(run),
        "imbalance": f"balance: {balance}" if balance else None,
    }


def _selection(run: RunFacts) -> str | None:
    if run.best_round is not None and run.best_round.is_exported:
        return f"The best round by validation images: {run.best_round.round}."
    return f"The model after the last round, {run.model_round}; none was chosen." if run.model_round else None


PACKAGES = ("medfl", "torch", "python")
"""Names of the versions of software in the environment of a run."""


def _of_data(facts: CardFacts) -> dict[str, str | None]:
    run, data = facts.run, facts.data
    sources = f"{listed(data.names)}; licence: {listed(data.licences)}" if data.names and data.licences else None
    scheme = data.partition_setting("scheme")
    level = "Patient, as the data lists name them." if data.has_patients else "Image: no patients are known."
    splits = [f"{count_text(run.image_counts, split)} images for {split}" for split in SPLITS]
    left_out = "; ".join(f"{exclusion.count} x {exclusion.reason}" for exclusion in data.exclusions)
    return {
        "sources": sources,
        "data_sharing": sources,
        "exclusions": f"Left out: {left_out}. Else as in the data set." if left_out else None,
        "partition": f"Scheme {scheme}; see Partition." if scheme is not None else None,
        "disjoint": level if scheme is not None and not run.leaks else None,
        "numbers": f"{listed(splits)}; of how many patients is unknown." if run.image_counts else None,
        "outcome": f"{run.objective}: {', '.join(facts.output_names)}." if facts.output_names else None,
    }


def _of_scores(facts: CardFacts, scores: CardScores) -> dict[str, str | None]:
    parts = {table.part: table for table in scores.tables}
    if "all" not in parts or not parts["all"].metrics:
        return {"limitations": "See Limitations."}
    metrics = [metric_words(name, facts.output_names) for name in parts["all"].metrics]
    apart = [table.part for table in scores.tables if table.part in ("site", "centre")]
    return {
        "metrics": f"{sentence(listed(metrics))}.",
        "uncertainty": f"95 % intervals over patients or images: Wilson's, or a bootstrap of {RESAMPLES} resamples.",
        "internal": "Test images of the sites that trained; see Scores.",
        "external": "None: no data of other sites were tested.",
        "differences": "Both are of the same sites; see Partition.",
        "performance": "See Scores.",
        "characteristics": "Classes in Data, sex of the tested in Scores; nothing else." if "sex" in parts else None,
        "fairness": "Scores of men and women stand in Scores; nothing was done to make them alike."
        if "sex" in parts
        else None,
        "heterogeneity": f"Scores by {listed(apart)} stand in Scores." if apart else None,
        "limitations": "See Limitations.",
    }
