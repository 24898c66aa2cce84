"""Markdown of a model card with Hugging Face's front matter, rendered from the card's facts and scores alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from medfl.objectives import objective_class
from medfl.records.calibration_evaluation import Rate
from medfl.types import Meta
from medfl.utils.formats import (
    MISSING,
    count,
    join_words,
    metric_meaning,
    metric_words,
    name_or_number,
    number,
    sentence,
)
from medfl.utils.formats import score as score_text
from medfl_report.calibration.calibration_words import chosen_words, recalibration_words, rule_words
from medfl_report.cards.card_record import CardFacts, ImageCounts
from medfl_report.cards.card_scores import CardRow, CardScores, ScoreEstimate
from medfl_report.cards.checklist_answers import answer_items
from medfl_report.cards.checklists import CHECKLIST_TITLES, CHECKLISTS
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.run_facts import format_image_count
from medfl_report.cards.score_computation import CALIBRATION_METRICS, MIN_PATIENTS, SITE_MEAN
from medfl_report.evaluation.external_scores import relation_words
from medfl_report.objectives.site_scores import RESAMPLES

CARD_MARK = "<!-- Written by `medfl card`. -->"
"""Line in every card, by which medfl recognises the cards that it wrote and may replace."""

MODEL_DESCRIPTIONS = {"personal": "the site's personal model", "global": "the global model shared by all sites"}
"""Maps the kind of a model to its description."""

SUBGROUP_HEADINGS = {"site": "By site", "sex": "By sex", "centre": "By centre", "class": "By class"}
"""Mapping from each grouping of the test images to the heading of the grouping's score table."""

HUGGING_FACE_TASKS = {"image-classification", "image-segmentation", "tabular-classification", "tabular-regression"}
"""Pipeline tags of Hugging Face that a card may have."""


def render_card(facts: CardFacts, scores: CardScores) -> str:
    """Return the Markdown of a card. The same facts and scores give the same bytes.

    Args:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    tables = render_score_tables(facts, scores)
    return (
        _environment()
        .get_template("card.md")
        .render(
            front=render_front_matter(facts, scores),
            mark=CARD_MARK,
            evidence=Evidence.NAME,
            facts=facts,
            run=facts.run,
            data=facts.data,
            model=facts.model,
            model_description=MODEL_DESCRIPTIONS.get(facts.run.model_kind or "", "a model of unknown kind"),
            performance=tables.get("all", ""),
            calibrated=_calibrated_tables(facts, scores),
            calibration_facts=_calibration_facts(facts),
            subgroups={SUBGROUP_HEADINGS[part]: lines for part, lines in tables.items() if part in SUBGROUP_HEADINGS},
            has_sex="sex" in tables,
            has_centre="centre" in tables,
            headline=render_headline(facts, scores),
            baseline=render_baseline(scores),
            patients=_patients_text(facts, scores),
            server_scores=_server_score_rows(facts, scores),
            external=_external_table(facts),
            other_evaluations=[
                f"{entry.site}: {relation_words(entry.relation, entry.scores)}"
                for entry in facts.evaluations
                if entry not in facts.external
            ],
            metric_meanings=_metric_meanings(facts, scores),
            calibration_scores=_calibration_scores(facts, scores),
            calibration_bins=_calibration_table(scores),
            calibrates_finding="calibration" in objective_class(facts.run.objective).figures,
            images=partial(format_image_count, facts.run.image_counts),
            count=count,
            training_counts=_image_count_table(facts.run.image_counts, ("training", "validation")),
            test_counts=_image_count_table(facts.run.image_counts, ("test",)),
            checklists={CHECKLIST_TITLES[name]: _checklist_table(name, facts, scores) for name in CHECKLISTS},
            min_patients=MIN_PATIENTS,
            resamples=RESAMPLES,
        )
    )


@cache
def _environment() -> Environment:
    """Return the Jinja environment of the card's template, with filters that escape Markdown."""
    environment = Environment(
        loader=PackageLoader("medfl_report.cards", "."),
        autoescape=False,  # noqa: S701  (the output is Markdown; `escape_markdown` escapes it)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "plain": escape_markdown,
        "listed": lambda texts: join_words([escape_markdown(text) for text in texts]),
        "table": make_markdown_table,
        "sentence": sentence,
    }
    return environment


def escape_markdown(text: object) -> str:
    """Return a text as one line of Markdown, with all special characters escaped and control characters removed."""
    line = " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", line)


def make_markdown_table(rows: Sequence[Sequence[object]]) -> str:
    """Return rows as a Markdown table, with columns of numbers aligned to the right.

    Args:
        rows: Cells of each row; the first row is the head. The cells are escaped.
    """
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    columns = list(zip(*cells[1:], strict=True))
    rule = [":--", *("--:" if _is_numeric(column) else ":--" for column in columns[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], rule, *cells[1:]])


def _is_numeric(cells: Sequence[str]) -> bool:
    """Return whether all cells start with a digit or a sign, or are suppressed counts."""
    return all(re.match(r"[\d.−–-]|fewer than", cell) for cell in cells)


def render_front_matter(facts: CardFacts, scores: CardScores) -> str:
    """Return the metadata at the head of the card as YAML; keys without a known value are left out.

    Args:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    run, model = facts.run, facts.model
    tag = f"{'image' if model.takes_images else 'tabular'}-{objective_class(run.objective).pipeline}"
    values: Meta = {"license": facts.answers.license or "unknown", "library_name": "monai"}
    values |= {"pipeline_tag": tag} if tag in HUGGING_FACE_TASKS else {}
    values["tags"] = ["monai", "medical", "federated-learning", "medfl", run.method]
    results = _hugging_face_metrics(scores)
    if results:
        name = join_words(facts.data.names) or facts.data_name or "unknown"
        dataset = {"type": name, "name": name, "split": "test"}
        task = {"type": tag if tag in HUGGING_FACE_TASKS else "other"}
        values["metrics"] = [metric["type"] for metric in results]
        values["model-index"] = [
            {"name": facts.title, "results": [{"task": task, "dataset": dataset, "metrics": results}]}
        ]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _overall_estimates(scores: CardScores) -> list[tuple[str, ScoreEstimate]]:
    """Return (metric, estimate) over all test images for each defined metric, in the order of the table."""
    row = scores.overall
    return [] if row is None else [(name, row.scores[name]) for name in scores.tables[0].metrics if name in row.scores]


def _hugging_face_metrics(scores: CardScores) -> list[Meta]:
    """Return the scores of all test images as entries of Hugging Face's ``metrics``."""
    return [
        {"type": metric, "name": metric_words(metric), "value": float(score_text(estimate.value))}
        for metric, estimate in _overall_estimates(scores)
    ]


def render_score_tables(facts: CardFacts, scores: CardScores) -> dict[str, str]:
    """Return a mapping from the grouping of each score table (`CardTable.part`) to the table in Markdown.

    Each score is shown with its confidence interval.

    Args:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    tables: dict[str, str] = {}
    for part in scores.tables:
        head = ["group", "images", *(_metric_name(metric, facts) for metric in part.metrics)]
        rows = [
            [row.name, _image_count_text(row), *(_estimate_text(row.scores.get(metric)) for metric in part.metrics)]
            for row in part.rows
        ]
        tables[part.part] = make_markdown_table([head, *rows])
    return tables


def _external_table(facts: CardFacts) -> str:
    """Return the scores of the external validation in Markdown, a row for each site; empty without one."""
    metrics = list(dict.fromkeys(metric for entry in facts.external for metric in entry.scores))
    if not facts.external:
        return ""
    rows = [
        [
            entry.site,
            entry.dataset or "unknown",
            _image_count_text(CardRow(name=entry.site, cases=entry.images, patients=entry.patients, scores={})),
            *(_estimate_text(entry.scores.get(metric)) for metric in metrics),
        ]
        for entry in facts.external
    ]
    return make_markdown_table(
        [["site", "data set", "images", *(_metric_name(name, facts) for name in metrics)], *rows]
    )


def _metric_name(metric: str, facts: CardFacts) -> str:
    return metric_words(metric, facts.output_names)


def _image_count_text(row: CardRow) -> str:
    """Return the number of images and patients of a row; suppressed for few patients, a dash for a mean."""
    if row.cases is None:
        return MISSING if row.name == SITE_MEAN else f"fewer than {MIN_PATIENTS}"
    patients = "" if row.patients is None else f" of {number(row.patients)} patients"
    return number(row.cases) + patients


def _estimate_text(estimate: ScoreEstimate | None) -> str:
    if estimate is None:
        return MISSING
    return f"{score_text(estimate.value)} ({score_text(estimate.low)} to {score_text(estimate.high)})"


def render_headline(facts: CardFacts, scores: CardScores) -> str:
    """Return the card's first score as a phrase, with interval and number of images; empty without scores.

    Args:
        facts: Statements of the card beside its scores.
        scores: Scores of the card.
    """
    row, estimates = scores.overall, _overall_estimates(scores)
    if row is None or not estimates:
        return ""
    metric, estimate = estimates[0]
    value, low, high = (score_text(end) for end in (estimate.value, estimate.low, estimate.high))
    interval = f"{value} (95 % confidence interval {low} to {high})"
    patients = "" if row.cases is None or row.patients is None else f" of {number(row.patients)} patients"
    images = _image_count_text(row.model_copy(update={"patients": None}))
    return f"{_metric_name(metric, facts)} {interval} on {images} test images{patients}"


def render_baseline(scores: CardScores) -> str:
    """Return a sentence with the scores of the majority-class baseline; empty without a baseline.

    Args:
        scores: Scores of the card.
    """
    baseline = scores.baseline
    if baseline is None:
        return ""
    share = f"{number(baseline.class_images)} of {number(baseline.images)} test images"
    return (
        f"always predicting {escape_markdown(baseline.class_name)} ({share}) has accuracy "
        f"{score_text(baseline.accuracy)}, balanced accuracy {score_text(baseline.balanced_accuracy)} and AUC 0.500"
    )


def _patients_text(facts: CardFacts, scores: CardScores) -> str:
    """Return the numbers of patients in all data and in the test images, or ``unknown``."""
    row = scores.overall
    numbers = []
    if facts.data.patients is not None:
        numbers.append(f"{number(facts.data.patients)} in all splits")
    if row is not None and row.patients is not None:
        numbers.append(f"{number(row.patients)} in the scored test images")
    return "; ".join(numbers) or "unknown"


def _metric_meanings(facts: CardFacts, scores: CardScores) -> list[str]:
    """Return an explanation of each metric in the tables."""
    metrics = dict.fromkeys(metric for part in scores.tables for metric in part.metrics)
    return [
        f"{sentence(_metric_name(metric, facts))}: {meaning}"
        for metric in metrics
        if (meaning := metric_meaning(metric))
    ]


def _server_score_rows(facts: CardFacts, scores: CardScores) -> list[list[str]]:
    """Return rows (metric, score on the server's test set, mean of the sites) of the global model.

    The mean of the sites is left out (a dash) if the card has scores from predictions.
    """
    rows = []
    for score in facts.run.server_scores:
        mean = None if scores.tables else score.sites_mean
        if (score.server, mean) != (None, None):
            rows.append([_metric_name(score.metric, facts), score_text(score.server), score_text(mean)])
    return rows


def _calibration_scores(facts: CardFacts, scores: CardScores) -> list[str]:
    """Return the calibration metrics over all test images with their intervals, in words."""
    return [
        f"{sentence(_metric_name(metric, facts))}: {_estimate_text(estimate)}"
        for metric, estimate in _overall_estimates(scores)
        if metric in CALIBRATION_METRICS
    ]


def _calibration_table(scores: CardScores) -> str:
    """Return the bins of the calibration curve as a table; empty without bins."""
    if not scores.bins:
        return ""
    rows = [[number(bin_.images), score_text(bin_.mean), score_text(bin_.share)] for bin_ in scores.bins]
    return make_markdown_table([["images", "mean predicted probability", "observed frequency"], *rows])


def _calibration_facts(facts: CardFacts) -> list[str]:
    """Return sentences on the calibration of the model; empty without one."""
    calibration = facts.calibration
    if calibration is None:
        return []
    texts = [
        f"Chosen on validation images: {chosen_words([calibration])}",
        f"Recalibration: {recalibration_words(calibration)}",
    ]
    if (threshold := calibration.threshold) is not None:
        name = name_or_number(threshold.class_number, facts.output_names)
        texts.append(
            f"{name} is predicted at a probability of at least {threshold.threshold:.4g} "
            f"({rule_words(threshold)}), otherwise the most probable other class"
        )
    if calibration.conformal_set is not None:
        texts.append(f"Prediction sets of classes with a coverage of {calibration.conformal_set.coverage:g}")
    if calibration.conformal_interval is not None:
        texts.append(f"Prediction intervals with a coverage of {calibration.conformal_interval.coverage:g}")
    if calibration.risk_threshold is not None:
        texts.append(f"Higher risk: a risk above {calibration.risk_threshold:.4g}, the median of the validation images")
    return texts


def _calibrated_tables(facts: CardFacts, scores: CardScores) -> list[str]:
    """Return tables of the rates and scores of the calibrated model at each site, and of the patients needed.

    Sites of an external validation follow those of the run.
    """
    evaluations = [(item.site, item) for item in scores.calibrated]
    evaluations += [(f"{entry.site} (external)", entry.calibrated) for entry in facts.external if entry.calibrated]
    rates = [
        [site, rate.name, number(rate.images), _rate_text(rate)] for site, item in evaluations for rate in item.rates
    ]
    changes = [
        [site, _metric_name(change.name, facts), score_text(change.before), score_text(change.after)]
        for site, item in evaluations
        for change in item.scores
    ]
    needed = [
        [item.site, _metric_name(need.quantity, facts), f"{need.difference:.3g}", number(need.patients)]
        for item in scores.calibrated
        for need in item.needed
    ]
    heads = (
        (rates, ["site", "rate", "images", "value"]),
        (changes, ["site", "score", "before recalibration", "after"]),
        (needed, ["site", "quantity", "difference or hazard ratio", "patients needed"]),
    )
    return [make_markdown_table([head, *rows]) for rows, head in heads if rows]


def _rate_text(rate: Rate) -> str:
    return f"{score_text(rate.value)} ({score_text(rate.low)} to {score_text(rate.high)})"


def _image_count_table(counts: ImageCounts | None, splits: Sequence[str]) -> str:
    """Return the numbers of images by site, split and class as a table; empty if they are unknown."""
    if counts is None:
        return ""
    rows = [
        [site.site, split, *map(str, site.by_split[split]), str(sum(site.by_split[split]))]
        for site in counts.sites
        for split in splits
        if any(site.by_split[split])
    ]
    return make_markdown_table([["site", "split", *counts.classes, "all"], *rows]) if rows else ""


def _checklist_table(checklist: str, facts: CardFacts, scores: CardScores) -> str:
    """Return the items of a checklist with their answers as a table."""
    items, answers = CHECKLISTS[checklist], answer_items(checklist, facts, scores)
    rows = [[key, items[key].about, answer.state, answer.text] for key, answer in answers.items()]
    return make_markdown_table([["item", "topic", "state", "answer"], *rows])
