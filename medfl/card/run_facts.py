"""What a card says of the run that made a model, from the files of its folder: method, settings, promises, costs."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.data.datalists import SPLITS
from medfl.report.formats import duration, number, size
from medfl.report.groups import group_runs
from medfl.report.notices import make_notices
from medfl.report.scores import class_names, key_metrics, named_runs
from medfl.report.section import ReportData
from medfl.report.sections.attacks import KINDS, attacks_section
from medfl.report.sections.costs import COSTS, costs, settings, surroundings
from medfl.report.sections.privacy import privacy_section
from medfl.runs.records import RunRecord
from medfl.types import Meta

MODELS = {"personal": "the site's own model", "global": "the model that all sites share"}
"""Kind of a model to what a card calls it."""


NONE = "none"
"""What `surroundings` says of plugins where nobody wrote down any."""


def run_facts(run: RunRecord, site: str | None) -> Meta:
    """The facts about a run, as JSON; what nobody wrote down is None.

    Args:
        run: The run.
        site: Whose card it is: of the sites it tells this one's images, costs and model alone. None for the global
            model.
    """
    groups = group_runs([run])
    data = ReportData(tuple(named_runs(groups)), tuple(groups), {}, {})  # scores come from predictions alone
    identity, summary, notices = run.run.identity, run.summary, make_notices(groups)
    return {
        "method": run.method,
        "status": None if summary is None else run.status,
        "rounds": None if summary is None else summary.rounds,
        "planned": run.run.rounds,
        "models_round": None if summary is None else summary.models_round,
        "seed": run.seed,
        "fold": None if run.fold is None else f"{run.fold} of {run.folds}, from 0",
        "objective": run.objective.name,
        "metrics": list(identity.task.metrics),
        "networks": sorted({*identity.task.networks, *run.run.provenance.late_networks.values()}),
        "loss": str(identity.task.loss["is"]),
        "optimizer": identity.task.optimizer.partition("{")[0],
        "sites": list(identity.sites),
        "model": MODELS.get(str(run.exported_kind(site) if site is not None else "global")),
        "taken_home": sorted({kind for name in identity.sites if (kind := run.exported_kind(name)) is not None}),
        "holdings": _holdings(run, site),
        "settings": sorted([fact.name, fact.value, fact.origin] for fact in settings(data.runs)),
        "surroundings": sorted([fact.name, fact.value] for fact in surroundings(data.runs) if fact.value != NONE),
        "data": run.data,
        "costs": _costs(data, site),
        "privacy": _privacy(data),
        "attacks": _attacks(data),
        "notices": [notice.text for notice in notices if notice.level == "warn"],
        "attention": [notice.text for notice in notices if notice.level == "bad"],
        "leaks": [] if summary is None else list(summary.leaks),
        "best_round": None if summary is None or summary.best_round is None else summary.best_round.to_json(),
        "server_scores": {} if site is not None else _server_scores(data, run),
    }


def outputs_of(run: RunRecord, channels: Sequence[str] = ()) -> list[str]:
    """Names of the classes, or of what else each output is for; empty where nobody named them.

    Args:
        run: A run; its summary has the names.
        channels: What the model's own bundle calls its outputs, for a folder without a summary.
    """
    if not run.objective.has_class_labels:
        return list(run.names or channels)
    named = run.holdings is not None or len(channels) != run.objective.classes
    return class_names(run) if named else list(channels)


def _holdings(run: RunRecord, site: str | None) -> Meta | None:
    """Images by site, split and class; None where the run did not write them down."""
    holdings = run.holdings
    if holdings is None:
        return None
    wanted = {
        name: {split: list(splits[split]) for split in SPLITS if split in splits}
        for name, splits in holdings.sites.items()
        if site in (None, name)
    }
    return {"classes": outputs_of(run) or list(holdings.classes), "sites": wanted}


def _costs(data: ReportData, site: str | None) -> list[list[str]]:
    """What training took: of a site, or of all together."""
    words = ("sent up", "received", "sent to other sites", "training", "evaluation")
    for cost in costs(data.runs):
        spent = cost.total if site is None else cost.sites.get(site)
        if spent is not None:
            texts = (size(spent[name]) if name.startswith("bytes") else duration(spent[name]) for name in COSTS)
            return [list(pair) for pair in zip(words, texts, strict=True)]
    return []


def _privacy(data: ReportData) -> Meta | None:
    """The promise in words, and its numbers; None where the run promises nothing."""
    section = privacy_section(data.groups)
    if section is None:
        return None
    row: Meta = dict(section["rows"][0])
    return {key: str(row[key]) for key in ("unit", "adjacency", "delta", "sigma", "clip", "stated", "spent", "words")}


def _attacks(data: ReportData) -> Meta | None:
    """The tables of attacks, as on the page; None where the run was not attacked."""
    section = attacks_section(data.groups, None)
    if section is None:
        return None
    tables = {kind: _table(section[kind]) for kind in KINDS if section[kind]}
    return {"tables": tables, "notices": list(section["notices"])}


def _table(table: Meta) -> list[list[str]]:
    heads = ["target", "attack", *(["item"] if len(table["rows"][0]["names"]) > 3 else []), "images"]
    lines = [[*heads, *(f"{head} ({note})" for head, note in table["heads"])]]
    for row in table["rows"]:
        pairs = zip(row["cells"], row["intervals"], strict=True)
        cells = [cell + (" [{:.3f}, {:.3f}]".format(*ends) if ends else "") for cell, ends in pairs]
        lines.append([*row["names"][1:], row["images"], *cells])
    return lines


def _server_scores(data: ReportData, run: RunRecord) -> Meta:
    """Scores of the global model that no file of predictions holds: on the server's test set, and at the sites."""
    scored = run.scores.get("global", {}).get("test", {})
    return {
        metric: {"server": scored[metric].global_test, "sites": scored[metric].sites}
        for metric in key_metrics(data.groups)
        if metric in scored
    }


def image_count(holdings: Meta | None, split: str) -> str:
    """How many images there are in a split, as text."""
    if holdings is None:
        return "unknown"
    return number(sum(sum(splits.get(split, [])) for splits in holdings["sites"].values()))
