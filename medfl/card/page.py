"""The card itself: Markdown with Hugging Face's front matter, made from the facts and scores of its evidence alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, partial

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from medfl.card.answers import answered
from medfl.card.checklists import CHECKLISTS, TITLES
from medfl.card.evidence import EVIDENCE, MARK
from medfl.card.run_facts import image_count
from medfl.card.scores import FEWEST, MEAN
from medfl.report.formats import MISSING, count, listed, metric_meaning, metric_words, number, sentence
from medfl.report.formats import score as score_text
from medfl.report.gains import mean_known
from medfl.report.objectives.site_scores import RESAMPLES
from medfl.types import Meta

FRONT_MATTER = ("license", "library_name", "pipeline_tag", "tags", "metrics", "model-index")
"""Keys of the front matter, of those that Hugging Face knows."""

PARTS = {"all": "", "site": "By site", "sex": "By sex", "centre": "By centre", "class": "By class"}
"""Part of the scores to its heading."""

TASKS = {"multiclass": "classification", "binary": "classification", "multilabel": "classification"}
TASKS |= {"segmentation": "segmentation", "regression": "regression"}
"""Objective to the end of a pipeline's tag."""

PIPELINES = {"image-classification", "image-segmentation", "tabular-classification", "tabular-regression"}
"""Tags of Hugging Face that fit; others are left out."""


def render_card(about: Meta, scores: Meta) -> str:
    """A card; the same facts and scores give the same bytes.

    Args:
        about: The facts (`medfl.card.evidence`).
        scores: From `medfl.card.scores.card_scores`.
    """
    lists = {TITLES[name]: answered(name, about, scores) for name in CHECKLISTS}
    return (
        _environment()
        .get_template("card.md")
        .render(
            front=front_matter(about, scores),
            mark=MARK,
            evidence=EVIDENCE,
            about=about,
            run=about["run"],
            data=about["data"],
            model=about["model"],
            scores=score_lines(about, scores),
            headline=headline(about, scores),
            parts=[part["part"] for part in scores.get("tables", [])],
            server=_server(about, scores),
            measures=_measures(about, scores),
            bins=_bins(scores),
            images=partial(image_count, about["run"]["holdings"]),
            counted=count,
            holdings=_holdings(about["run"]["holdings"]),
            checklists={title: _checklist(title, answers) for title, answers in lists.items()},
            fewest=FEWEST,
            resamples=RESAMPLES,
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("medfl.card", "."),
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
    """A text from a file in Markdown: one line, in which nothing means more than itself."""
    line = " ".join("".join(char if char.isprintable() else " " for char in str(text)).split())
    return re.sub(r"([\\`*\[\]<>|#])", r"\\\1", line)


def table(lines: Sequence[Sequence[object]]) -> str:
    """Rows of cells as a table; the first row is its head, numbers stand to the right."""
    cells = [[plain(cell) for cell in line] for line in lines]
    ends = [":--", *("--:" if _numeric(column) else ":--" for column in list(zip(*cells[1:], strict=True))[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], ends, *cells[1:]])


def _numeric(cells: Sequence[str]) -> bool:
    return all(re.match(r"[\d.−–-]|fewer than", cell) for cell in cells)


def front_matter(about: Meta, scores: Meta) -> str:
    """The metadata at the head of the card, as YAML: known keys of Hugging Face only, and nothing that is not known."""
    run, model = about["run"], about["model"]
    tag = f"{'image' if model['images'] else 'tabular'}-{TASKS.get(run['objective'], 'other')}"
    values: Meta = {"license": about["license"] or "unknown", "library_name": "monai"}
    values |= {"pipeline_tag": tag} if tag in PIPELINES else {}
    values["tags"] = ["monai", "medical", "federated-learning", "medfl", run["method"]]
    results = _results(scores)
    if results:
        name = listed(about["data"].get("names") or []) or about["name"] or "unknown"
        dataset = {"type": name, "name": name, "split": "test"}
        task = {"type": tag if tag in PIPELINES else "other"}
        values["metrics"] = [metric["type"] for metric in results]
        values["model-index"] = [
            {"name": about["title"], "results": [{"task": task, "dataset": dataset, "metrics": results}]}
        ]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _results(scores: Meta) -> list[Meta]:
    tables = scores.get("tables", [])
    if not tables:
        return []
    first = tables[0]["rows"][0]["scores"]
    return [
        {"type": metric, "name": metric_words(metric), "value": float(score_text(estimate[0]))}
        for metric, estimate in first.items()
        if estimate is not None
    ]


def score_lines(about: Meta, scores: Meta) -> list[tuple[str, str]]:
    """Heading and table of each part of the scores: each number with its interval."""
    parts = []
    for part in scores.get("tables", []):
        head = ["", "images", *(_words(metric, about) for metric in part["metrics"])]
        rows = [head, *([row["name"], _cases(row), *_cells(row, part["metrics"])] for row in part["rows"])]
        parts.append((PARTS[part["part"]], table(rows)))
    return parts


def _words(metric: str, about: Meta) -> str:
    return metric_words(metric, about["names"])


def _cases(row: Meta) -> str:
    if row["cases"] is None:
        return MISSING if row["name"] == MEAN else f"fewer than {FEWEST}"
    patients = "" if row["patients"] is None else f" of {number(row['patients'])} patients"
    return number(row["cases"]) + patients


def _cells(row: Meta, metrics: Sequence[str]) -> list[str]:
    return [_cell(row["scores"].get(metric)) for metric in metrics]


def _cell(estimate: Sequence[float | None] | None) -> str:
    if estimate is None:
        return MISSING
    value, low, high = estimate
    return f"{score_text(value)} ({score_text(low)} to {score_text(high)})"


def headline(about: Meta, scores: Meta) -> str:
    """The first score in a sentence; empty without any."""
    for metric in scores["tables"][0]["metrics"] if scores else []:
        row = scores["tables"][0]["rows"][0]
        if row["scores"].get(metric):
            return f"{sentence(_words(metric, about))} {_cell(row['scores'][metric])} on {_cases(row)} test images"
    return ""


def _measures(about: Meta, scores: Meta) -> list[str]:
    """What each metric of the tables says."""
    metrics = dict.fromkeys(metric for part in scores.get("tables", []) for metric in part["metrics"])
    return [f"{sentence(_words(metric, about))}: {text}" for metric in metrics if (text := metric_meaning(metric))]


def _server(about: Meta, scores: Meta) -> list[list[str]]:
    """Scores of the global model that no predictions tell: on the server's test set; without any, of the sites, too."""
    rows = []
    for metric, values in about["run"]["server_scores"].items():
        mean = None if scores else mean_known(values["sites"].values())
        if (values["server"], mean) != (None, None):
            rows.append([_words(metric, about), score_text(values["server"]), score_text(mean)])
    return rows


def _bins(scores: Meta) -> str:
    if not scores.get("bins"):
        return ""
    lines = [[number(bin_["images"]), score_text(bin_["mean"]), score_text(bin_["share"])] for bin_ in scores["bins"]]
    return table([["images", "mean probability", "how often it is right, or there"], *lines])


def _holdings(holdings: Meta | None) -> str:
    """Images of each class in each split, of each site."""
    if holdings is None:
        return ""
    lines = [
        [site, split, *map(str, counts), str(sum(counts))]
        for site, splits in holdings["sites"].items()
        for split, counts in splits.items()
        if any(counts)
    ]
    return table([["site", "split", *holdings["classes"], "all"], *lines])


def _checklist(title: str, answers: dict[str, tuple[str, str]]) -> str:
    name = next(key for key, value in TITLES.items() if value == title)
    items = CHECKLISTS[name]
    lines = [[key, items[key].about, state, text] for key, (state, text) in answers.items()]
    return table([["item", "about", "", "answer"], *lines])
