"""Answers to the items of the reporting checklists: derived from a card's facts, or written by people in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medfl.data.datalists import SPLITS
from medfl.errors import SettingsError, did_you_mean
from medfl.utils.formats import join_words, metric_words, number, sentence
from medfl.utils.strict_yaml import parse_yaml
from medfl_report.cards.card_record import CardAnswers, CardFacts, RunFacts
from medfl_report.cards.card_scores import CardScores
from medfl_report.cards.checklists import ANSWERED, CHECKLISTS, NOT_APPLICABLE, UNKNOWN
from medfl_report.cards.run_facts import format_image_count
from medfl_report.objectives.site_scores import RESAMPLES

TEXT_KEYS = ("license", "intended_use")
"""Keys of an answers file whose value is a text; the other keys are names of checklists, with answers by item."""


def read_answers(path: Path | None) -> CardAnswers:
    """Read an answers file: YAML with ``license``, ``intended_use``, ``claim`` and ``tripod_ai`` (answers by item).

    Args:
        path: Path of the file; None for no answers.

    Raises:
        SettingsError: If the file can't be read, has an unknown key or item, or an answer is not a text.
    """
    if path is None:
        return CardAnswers()
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError) as error:
        raise SettingsError(
            "unreadable_file",
            f"the answers file '{path}' can't be read ({type(error).__name__}). It must be a YAML file.",
            path=path,
        ) from None
    keys = (*TEXT_KEYS, *CHECKLISTS)
    if not isinstance(content, dict):
        raise SettingsError(
            "wrong_type",
            f"expected the keys {join_words(keys)} in '{path}', got {type(content).__name__}.",
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
        answers[key] = _check_items(key, value, path) if key in CHECKLISTS else _check_text(value, key, path)
    return CardAnswers(**answers)


def _check_items(checklist: str, items: Any, path: Path) -> dict[str, str]:
    """Return the answers to the items of a checklist by number; raise SettingsError if they are invalid."""
    if not isinstance(items, dict):
        raise SettingsError(
            "wrong_type",
            f"expected a mapping from item numbers to texts in '{checklist}' of '{path}', got {type(items).__name__}.",
            path=path,
            place=checklist,
        )
    texts = {str(item): _check_text(text, f"{checklist} {item}", path) for item, text in items.items()}
    for item in texts:
        if item not in CHECKLISTS[checklist]:
            raise SettingsError(
                "unknown_choice",
                f"unknown item '{item}' of '{checklist}' in '{path}'. {did_you_mean(item, CHECKLISTS[checklist])}",
                what=checklist,
                choice=item,
                path=path,
            )
    return texts


def _check_text(value: Any, where: str, path: Path) -> str:
    """Return a text as one line; raise SettingsError if the value is no text, or blank."""
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
    """Answer to an item of a reporting checklist.

    Attributes:
        state: One of the constants `ANSWERED`, `NOT_APPLICABLE` and `UNKNOWN`.
        text: Text of the answer, or reason why the item is not applicable; empty if unknown.
    """

    state: str
    text: str


def answer_items(checklist: str, facts: CardFacts, scores: CardScores) -> dict[str, ItemAnswer]:
    """Return the answers to all items of a checklist, by the number of the item.

    People's answers take precedence over those derived from facts.

    Args:
        checklist: Name of the checklist, a key of `CHECKLISTS`.
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    people_answers, known_answers = facts.answers.checklists[checklist], answer_topics(facts, scores)
    answers: dict[str, ItemAnswer] = {}
    for item_number, item in CHECKLISTS[checklist].items():
        if item_number in people_answers:
            is_not_applicable = people_answers[item_number].lower().startswith(NOT_APPLICABLE)
            state = NOT_APPLICABLE if is_not_applicable else ANSWERED
            answers[item_number] = ItemAnswer(state, people_answers[item_number])
        else:
            answers[item_number] = known_answers.get(item.topic, ItemAnswer(UNKNOWN, ""))
    return answers


def answer_topics(facts: CardFacts, scores: CardScores) -> dict[str, ItemAnswer]:
    """Return the answers that can be derived from a card; topics without an answer are left out.

    The keys are topics: names by which the items of both checklists refer to an answer (`ChecklistItem.topic`).

    Args:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    texts = _model_answers(facts) | _training_answers(facts.run) | _data_answers(facts) | _score_answers(facts, scores)
    answers = {topic: ItemAnswer(ANSWERED, text) for topic, text in texts.items() if text}
    answers["updating"] = (
        ItemAnswer(ANSWERED, f"Training started from existing weights: {facts.run.start}")
        if facts.run.start
        else ItemAnswer(NOT_APPLICABLE, "No existing model was updated.")
    )
    if facts.model.takes_images:
        answers["assessors"] = ItemAnswer(NOT_APPLICABLE, "The image is the only predictor.")
    return answers


def _model_answers(facts: CardFacts) -> dict[str, str | None]:
    """Return the answers about the model by topic; None or "" if unknown."""
    run, model, license_ = facts.run, facts.model, facts.answers.license
    networks = join_words(model.networks)
    availability = f"Licence of the model: {license_}. medfl is free software (Apache-2.0). Data: see Training data."
    return {
        "title": f"A deep network ({networks}), trained by federated learning ({run.method}).",
        "intended_use": facts.intended_use,
        "preprocessing": "All transforms are in configs/inference.json of this bundle, the same for all groups."
        + (f" Harmonised: {run.harmonisation}." if run.harmonisation else ""),
        "model": f"Network {networks}: definition in configs/train.json, weights in models.",
        "output": model.output,
        "predictors": "The whole input; no features were selected." if model.takes_images else None,
        "predictions": "predictions.csv contains the prediction for each test image of a site.",
        "availability": availability if license_ else None,
        "details": "evidence.json contains all settings that identify the run.",
        "objectives": "Development, with an evaluation on test images from the same sites"
        + (" and an external validation." if facts.external else "."),
    }


def _training_answers(run: RunFacts) -> dict[str, str | None]:
    """Return the answers about the training by topic; None or "" if unknown."""
    settings = {setting.name: setting.value for setting in run.settings}
    balance = settings.get("balance")
    start = run.start or f"Random, from the seed {run.seed}."
    packages = ", ".join(f"{entry.name} {entry.value}" for entry in run.environment if entry.name in PACKAGES)
    return {
        "software": packages,
        "code": f"medfl is free software (Apache-2.0); versions in the run: {packages}.",
        "start": start,
        "training": f"{run.method}, {run.planned_rounds} rounds, {run.optimizer}, {run.loss}; see Training procedure.",
        "selection": _selection_answer(run),
        "imbalance": f"Setting balance: {balance}." if balance else None,
    }


def _selection_answer(run: RunFacts) -> str | None:
    """Return how the final model was selected; None if unknown."""
    if run.best_round is not None and run.best_round.is_exported:
        return f"Model of round {run.best_round.round}, the best one on validation images."
    return f"Model after the last round, {run.model_round}; no selection." if run.model_round else None


PACKAGES = ("medfl", "torch", "python")
"""Names of the software whose versions are stated in the answers."""


def _data_answers(facts: CardFacts) -> dict[str, str | None]:
    """Return the answers about the data by topic; None or "" if unknown."""
    run, data = facts.run, facts.data
    sources = (
        f"{join_words(data.names)}; licence: {join_words(data.licences)}" if data.names and data.licences else None
    )
    scheme = data.partition_setting("scheme")
    level = "Patient, as named in the data lists." if data.has_patients else "Image: patients are unknown."
    splits = [f"{format_image_count(run.image_counts, split)} {split} images" for split in SPLITS]
    patients = "unknown" if data.patients is None else number(data.patients)
    exclusions = "; ".join(f"{exclusion.count} x {exclusion.reason}" for exclusion in data.exclusions)
    return {
        "sources": sources,
        "data_sharing": sources,
        "exclusions": f"Excluded by medfl: {exclusions}. Otherwise as in the data set." if exclusions else None,
        "partition": f"Scheme {scheme}; see Partition." if scheme is not None else None,
        "disjoint": level if scheme is not None and not run.leaks else None,
        "numbers": f"{join_words(splits)}; number of patients: {patients}." if run.image_counts else None,
        "outcome": f"{run.objective}: {', '.join(facts.output_names)}." if facts.output_names else None,
    }


def _external_answer(facts: CardFacts) -> str | None:
    """Return the answer about testing on external data; None if an evaluation could not be compared with the run."""
    if facts.external:
        sites = join_words(list(dict.fromkeys(entry.site for entry in facts.external)))
        return f"Data of {sites}; see External validation."
    if any(entry.relation.kind == "unchecked" for entry in facts.evaluations):
        return None
    return "None: no data from other sites were used for testing."


def _score_answers(facts: CardFacts, scores: CardScores) -> dict[str, str | None]:
    """Return the answers about the evaluation by topic; None if unknown."""
    tables = {table.part: table for table in scores.tables}
    if "all" not in tables or not tables["all"].metrics:
        return {"limitations": "See Limitations."}
    metrics = [metric_words(name, facts.output_names) for name in tables["all"].metrics]
    groupings = [table.part for table in scores.tables if table.part in ("site", "centre")]
    return {
        "metrics": f"{sentence(join_words(metrics))}.",
        "uncertainty": "95 % confidence intervals over patients, or images if patients are unknown: Wilson's interval, "
        f"or a bootstrap with {RESAMPLES} resamples.",
        "internal": "Test images of the sites that trained the model; see Performance.",
        "external": _external_answer(facts),
        "differences": "Both come from the same sites; see Partition."
        if not facts.external
        else "The test images come from the same sites; those of the external validation come from elsewhere.",
        "performance": "See Performance and Subgroups.",
        "characteristics": "Class sizes in Training data and Evaluation data, sex of the test images in Subgroups; no "
        "others."
        if "sex" in tables
        else None,
        "fairness": "Performance by sex is in Subgroups; the training did not aim at equal performance."
        if "sex" in tables
        else None,
        "heterogeneity": f"Performance by {join_words(groupings)} is in Subgroups." if groupings else None,
        "limitations": "See Limitations.",
    }
