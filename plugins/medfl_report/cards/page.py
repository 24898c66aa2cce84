"""Text of a card: Markdown with Hugging Face's front matter, from the facts and scores of its evidence alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from medfl.objectives import objective_class
from medfl.types import Meta
from medfl.utils.formats import MISSING, count, listed, metric_meaning, metric_words, number, sentence
from medfl.utils.formats import score as score_text
from medfl_report.cards.answers import item_answers
from medfl_report.cards.card_record import CardFacts, ImageCounts
from medfl_report.cards.card_scores import CardRow, CardScores, ScoreEstimate
from medfl_report.cards.checklists import CHECKLISTS, TITLES
from medfl_report.cards.evidence import Evidence
from medfl_report.cards.run_facts import count_text
from medfl_report.cards.scores import FEWEST, MEAN
from medfl_report.objectives.site_scores import RESAMPLES

FRONT_MATTER = ("license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")
"""Keys of the front matter, of those that Hugging Face knows."""

MARK = "<!-- Written by `medfl card`. -->"
"""Line by which a card of medfl is recognised."""

MODELS = {"personal": "the site's own model", "global": "the model that all sites share"}
"""Maps the kind of a model to its description."""

PARTS = {"all": "", "site": "By site", "sex": "By sex", "centre": "By centre", "class": "By class"}
"""Maps a part of the scores to its heading."""

PIPELINES = {"image-classification", "image-segmentation", "tabular-classification", "tabular-regression"}
"""Tags of Hugging Face that a card may have."""


def render_card(facts: CardFacts, scores: CardScores) -> str:
    """Return the text of a card; the same facts and scores give the same bytes.

    Args:
        facts: Facts of the card.
        scores: Scores of the card.
    """
    return (
        _environment()
        .get_template("card.md")
        .render(
            front=front_matter(facts, scores),
            mark=MARK,
            evidence=Evidence.NAME,
            facts=facts,
            run=facts.run,
            data=facts.data,
            model=facts.model,
            kind=MODELS.get(facts.run.model_kind or "", ""),
            scores=score_lines(facts, scores),
            headline=headline(facts, scores),
            parts=[table.part for table in scores.tables],
            server=_server_lines(facts, scores),
            measures=_measures(facts, scores),
            bins=_bin_lines(scores),
            images=partial(count_text, facts.run.image_counts),
            counted=count,
            image_counts=_image_lines(facts.run.image_counts),
            checklists={TITLES[name]: _checklist_lines(name, facts, scores) for name in CHECKLISTS},
            fewest=FEWEST,
            resamples=RESAMPLES,
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("medfl_report.cards", "."),
        autoescape=False,  # noqa: S701  (it is no HTML; `plain` takes care of Markdown)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"plain": plain, "listed": lambda texts: listed([plain(text) for text in texts]), "table": table}
    made.filters["sentence"] = sentence
    return made


def plain(text: object) -> str:
    """Return a text from a file as one line of Markdown, with all special characters escaped."""
    line = " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", line)


def table(lines: Sequence[Sequence[object]]) -> str:
    """Return rows of cells as a table; the first row is its head, and numbers are aligned to the right."""
    cells = [[plain(cell) for cell in line] for line in lines]
    ends = [":--", *("--:" if _numeric(column) else ":--" for column in list(zip(*cells[1:], strict=True))[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], ends, *cells[1:]])


def _numeric(cells: Sequence[str]) -> bool:
    return all(re.match(r"[\d.−–-]|fewer than", cell) for cell in cells)


def front_matter(facts: CardFacts, scores: CardScores) -> str:
    """Return the metadata at the head of the card as YAML, with keys of Hugging Face and known values only."""
    run, model = facts.run, facts.model
    tag = f"{'image' if model.takes_images else 'tabular'}-{objective_class(run.objective).pipeline}"
    values: Meta = {"license": facts.answers.license or "unknown", "library_name": "monai"}
    values |= {"pipeline_tag": tag} if tag in PIPELINES else {}
    values["tags"] = ["monai", "medical", "federated-learning", "medfl", run.method]
    results = _results(scores)
    if results:
        name = listed(facts.data.names) or facts.data_name or "unknown"
        dataset = {"type": name, "name": name, "split": "test"}
        task = {"type": tag if tag in PIPELINES else "other"}
        values["metrics"] = [metric["type"] for metric in results]
        values["model-index"] = [
            {"name": facts.title, "results": [{"task": task, "dataset": dataset, "metrics": results}]}
        ]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _overall(scores: CardScores) -> list[tuple[str, ScoreEstimate]]:
    """Return each defined metric of all test images with its score, in the order of the table."""
    row = scores.overall
    return [] if row is None else [(name, row.scores[name]) for name in scores.tables[0].metrics if name in row.scores]


def _results(scores: CardScores) -> list[Meta]:
    """Return the scores of all test images as Hugging Face's ``metrics``."""
    return [
        {"type": metric, "name": metric_words(metric), "value": float(score_text(estimate.value))}
        for metric, estimate in _overall(scores)
    ]


def score_lines(facts: CardFacts, scores: CardScores) -> list[tuple[str, str]]:
    """Return the heading and the table of each part of the scores; each score has its interval."""
    parts = []
    for part in scores.tables:
        head = ["", "images", *(_words(metric, facts) for metric in part.metrics)]
        rows = [
            [row.name, _cases(row), *(_cell(row.scores.get(metric)) for metric in part.metrics)] for row in part.rows
        ]
        parts.append((PARTS[part.part], table([head, *rows])))
    return parts


def _words(metric: str, facts: CardFacts) -> str:
    return metric_words(metric, facts.output_names)


def _cases(row: CardRow) -> str:
    if row.cases is None:
        return MISSING if row.name == MEAN else f"fewer than {FEWEST}"
    patients = "" if row.patients is None else f" of {number(row.patients)} patients"
    return number(row.cases) + patients


def _cell(estimate: ScoreEstimate | None) -> str:
    if estimate is None:
        return MISSING
    return f"{score_text(estimate.value)} ({score_text(estimate.low)} to {score_text(estimate.high)})"


def headline(facts: CardFacts, scores: CardScores) -> str:
    """Return the first score in a sentence; empty without scores."""
    row, estimates = scores.overall, _overall(scores)
    if row is None or not estimates:
        return ""
    metric, estimate = estimates[0]
    return f"{sentence(_words(metric, facts))} {_cell(estimate)} on {_cases(row)} test images"


def _measures(facts: CardFacts, scores: CardScores) -> list[str]:
    """Return an explanation of each metric of the tables."""
    metrics = dict.fromkeys(metric for part in scores.tables for metric in part.metrics)
    return [f"{sentence(_words(metric, facts))}: {text}" for metric in metrics if (text := metric_meaning(metric))]


def _server_lines(facts: CardFacts, scores: CardScores) -> list[list[str]]:
    """Return scores of the global model that do not come from predictions.

    They are those on the server's test set, and the mean of the sites if the card has no scores of the sites.
    """
    rows = []
    for score in facts.run.server_scores:
        mean = None if scores.tables else score.sites_mean
        if (score.server, mean) != (None, None):
            rows.append([_words(score.metric, facts), score_text(score.server), score_text(mean)])
    return rows


def _bin_lines(scores: CardScores) -> str:
    """Return the bins of the calibration as a table; empty without bins."""
    if not scores.bins:
        return ""
    lines = [[number(bin_.images), score_text(bin_.mean), score_text(bin_.share)] for bin_ in scores.bins]
    return table([["images", "mean probability", "how often it is right, or there"], *lines])


def _image_lines(counts: ImageCounts | None) -> str:
    """Return the number of images of each class in each split of each site as a table; empty if unknown."""
    if counts is None:
        return ""
    lines = [
        [of_site.site, split, *map(str, numbers), str(sum(numbers))]
        for of_site in counts.sites
        for split, numbers in of_site.by_split.items()
        if any(numbers)
    ]
    return table([["site", "split", *counts.classes, "all"], *lines])


def _checklist_lines(checklist: str, facts: CardFacts, scores: CardScores) -> str:
    """Return the items of a checklist with their answers as a table."""
    items, answers = CHECKLISTS[checklist], item_answers(checklist, facts, scores)
    lines = [[key, items[key].about, answer.state, answer.text] for key, answer in answers.items()]
    return table([["item", "about", "", "answer"], *lines])
