"""What the facts of a card answer of the items of the checklists, and what people answer in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medfl.card.checklists import ANSWERED, CHECKLISTS, NOT_APPLICABLE, UNKNOWN
from medfl.card.run_facts import image_count
from medfl.errors import SettingsError, did_you_mean
from medfl.report.formats import listed, metric_words, sentence
from medfl.report.objectives.site_scores import RESAMPLES
from medfl.types import Meta
from medfl.utils.strict_yaml import parse_yaml

TEXTS = ("license", "intended_use")
"""Keys of a file of answers beside those of the checklists."""

Answer = tuple[str, str]
"""`ANSWERED`, `NOT_APPLICABLE` or `UNKNOWN`, and the answer."""


def read_answers(path: Path | None) -> Meta:
    """A file of answers, in YAML: ``license``, ``intended_use``, and ``claim`` and ``tripod_ai`` with items by number.

    Args:
        path: The file; None is an empty one.

    Returns:
        All keys; a text that is not there is None.

    Raises:
        SettingsError: If it can't be read, or has a key or an item that there is not.
    """
    answers: Meta = dict.fromkeys(TEXTS) | {name: {} for name in CHECKLISTS}
    if path is None:
        return answers
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
    for key, value in content.items():
        if key not in keys:
            raise SettingsError(
                "unknown_setting",
                f"unknown key '{key}' in '{path}'. {did_you_mean(str(key), keys)}",
                name=str(key),
                path=path,
            )
        answers[key] = _items(key, value, path) if key in CHECKLISTS else _text(value, key, path)
    return answers


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


def answered(checklist: str, about: Meta, scores: Meta) -> dict[str, Answer]:
    """Each item of a checklist with what can be said of it.

    Args:
        checklist: One of `CHECKLISTS`.
        about: The facts of a card (`medfl.card.evidence`).
        scores: Its scores.
    """
    people: Mapping[str, str] = about["answers"][checklist]
    known = topics(about, scores)
    table: dict[str, Answer] = {}
    for number, item in CHECKLISTS[checklist].items():
        if number in people:
            left_out = people[number].lower().startswith(NOT_APPLICABLE)
            table[number] = (NOT_APPLICABLE if left_out else ANSWERED, people[number])
        else:
            table[number] = known.get(item.topic, (UNKNOWN, ""))
    return table


def topics(about: Meta, scores: Meta) -> dict[str, Answer]:
    """Topic to its answer; those that no fact answers are not there."""
    answers = _of_model(about) | _of_training(about) | _of_data(about) | _of_scores(about, scores)
    table = {topic: (ANSWERED, text) for topic, text in answers.items() if text}
    table["updating"] = (NOT_APPLICABLE, "No earlier model was updated.")
    if about["model"]["images"]:
        table["assessors"] = (NOT_APPLICABLE, "The image is the only predictor.")
    return table


def _of_model(about: Meta) -> dict[str, str | None]:
    run, model = about["run"], about["model"]
    networks = listed(model["networks"])
    licensed = f"Licence of the model: {about['license']}." if about["license"] else None
    return {
        "title": f"A deep network ({networks}), trained by federated learning ({run['method']}).",
        "intended_use": about["intended_use"],
        "preprocessing": "All transforms stand in configs/inference.json of this bundle, alike for all groups.",
        "model": f"Network {networks}: its definition stands in configs/train.json, its weights in models.",
        "output": model["output"],
        "predictors": "The image as a whole; none was chosen." if model["images"] else None,
        "predictions": "predictions.csv has what the model says of each test image of a site.",
        "availability": licensed and f"{licensed} medfl is free software (Apache-2.0). Data: see Data.",
        "details": "evidence.json has the identity of the run, with all settings.",
        "objectives": "Development, with an evaluation on test images of the same sites.",
    }


def _of_training(about: Meta) -> dict[str, str | None]:
    run = about["run"]
    settings = {name: (value, origin) for name, value, origin in run["settings"]}
    weights = settings.get("weights", ("", ""))[0]
    start = f"The weights of the file {weights}." if weights else f"Drawn at random, from the seed {run['seed']}."
    best = run["best_round"] or {}
    balance = settings.get("balance", ("", ""))[0]
    packages = ", ".join(f"{name} {value}" for name, value in run["surroundings"] if name in PACKAGES)
    return {
        "software": packages,
        "code": f"medfl is free software (Apache-2.0); versions in the run: {packages}.",
        "start": start,
        "training": f"{run['method']} over {run['planned']} rounds, {run['optimizer']}, {run['loss']}; see Method.",
        "selection": f"The best round by validation images: {best['round']}."
        if best.get("exported")
        else f"The model after the last round, {run['models_round']}; none was chosen."
        if run["models_round"]
        else None,
        "imbalance": f"balance: {balance}" if balance else None,
    }


PACKAGES = ("medfl", "torch", "python")
"""Of the versions that a run notes, those of software."""


def _of_data(about: Meta) -> dict[str, str | None]:
    run, data = about["run"], about["data"]
    holdings, licences = run["holdings"], data.get("licences", [])
    sources = f"{listed(data['names'])}; licence: {listed(licences)}" if data.get("names") and licences else None
    partition = data.get("partition", {})
    level = "Patient, as the data lists name them." if data.get("patients") else "Image: no patients are known."
    splits = [f"{image_count(holdings, split)} images for {split}" for split in ("training", "validation", "test")]
    left_out = [f"{entry['count']} x {entry['reason']}" for entry in data.get("exclusions", [])]
    return {
        "sources": sources,
        "data_sharing": sources,
        "exclusions": f"Left out: {'; '.join(left_out)}. Else as in the data set." if left_out else None,
        "partition": f"Scheme {partition['scheme']}; see Partition." if "scheme" in partition else None,
        "disjoint": level if "scheme" in partition and not run["leaks"] else None,
        "numbers": f"{listed(splits)}; of how many patients is unknown." if holdings else None,
        "outcome": f"{run['objective']}: {', '.join(about['names'])}." if about["names"] else None,
    }


def _of_scores(about: Meta, scores: Meta) -> dict[str, str | None]:
    parts = {table["part"]: table for table in scores.get("tables", [])}
    if "all" not in parts or not parts["all"]["metrics"]:
        return {"limitations": "See Limitations."}
    metrics = [metric_words(name, about["names"]) for name in parts["all"]["metrics"]]
    apart = [part for part in ("site", "centre") if part in parts]
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
