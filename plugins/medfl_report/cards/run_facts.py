"""Facts about a run for a model card, from the files of the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from medfl.data.datalists import SPLITS
from medfl.engine.runs.records import RunRecord
from medfl.plugins import Registry
from medfl.types import GLOBAL, Meta
from medfl.utils.formats import duration, number, size
from medfl_report.cards.card_record import (
    CardSection,
    CardSetting,
    ImageCounts,
    ModelKind,
    NamedValue,
    PrivacyFacts,
    RunFacts,
    ServerScore,
    SiteImageCounts,
)
from medfl_report.groups import group_runs
from medfl_report.notices import make_notices
from medfl_report.scores import class_names, key_metrics, named_runs
from medfl_report.section import ReportData
from medfl_report.sections.privacy import privacy_section
from medfl_report.sections.run_tables import COSTS, costs, settings, surroundings
from medfl_report.site_comparison import mean_known

ABSENT = "none"
"""Value of an entry of a run's environment without content, such as the plugins of a run without plugins."""


def read_run_facts(run: RunRecord, site: str | None, registry: Registry) -> RunFacts:
    """Return the facts about a run.

    Args:
        run: The run.
        site: Name of the site whose model the card describes: images, costs and kind of model are this site's.
            None for the global model.
        registry: Registry with the sections of the report.
    """
    groups = group_runs([run])
    data = ReportData(tuple(named_runs(groups)), tuple(groups), {}, {})  # scores come from predictions alone
    identity, summary, notices = run.run.identity, run.summary, make_notices(groups)
    return RunFacts(
        method=run.method,
        status=None if summary is None else summary.status,
        rounds=None if summary is None else summary.rounds,
        planned_rounds=run.run.rounds,
        model_round=None if summary is None else summary.models_round,
        seed=run.seed,
        fold=run.fold,
        folds=run.folds,
        objective=run.objective.name,
        metrics=identity.task.metrics,
        networks=tuple(sorted({*identity.task.networks, *run.run.provenance.late_networks.values()})),
        loss=str(identity.task.loss["is"]),
        optimizer=identity.task.optimizer.partition("{")[0],
        sites=identity.sites,
        model_kind=GLOBAL if site is None else _exported_kind(run, site),
        exported_kinds=tuple(sorted({kind for name in identity.sites if (kind := _exported_kind(run, name))})),
        image_counts=_image_counts(run, site),
        settings=tuple(
            CardSetting(name=fact.name, value=fact.value, origin=fact.origin)
            for fact in sorted(settings(data.runs), key=lambda fact: (fact.name, fact.value, fact.origin))
        ),
        environment=tuple(
            NamedValue(name=fact.name, value=fact.value)
            for fact in sorted(surroundings(data.runs), key=lambda fact: (fact.name, fact.value))
            if fact.value != ABSENT
        ),
        data_digest=run.data,
        costs=_costs(data, site),
        privacy=_privacy(data),
        sections=_sections(data, registry),
        warnings=tuple(notice.text for notice in notices if notice.level == "warn"),
        alerts=tuple(notice.text for notice in notices if notice.level == "bad"),
        leaks=() if summary is None else summary.leaks,
        best_round=None if summary is None else summary.best_round,
        server_scores=() if site is not None else _server_scores(data, run),
        harmonisation=run.run.provenance.data.harmonisation,
        start="" if run.run.provenance.start is None else run.run.provenance.start.sentence,
    )


def read_output_names(run: RunRecord, channels: Sequence[str] = ()) -> list[str]:
    """Return the names of the classes, or of the other outputs; empty if they are unknown.

    Args:
        run: The run; its summary has the names.
        channels: Names of the outputs in the metadata of the bundle, used if the run folder has no summary.
    """
    if not run.objective.has_class_labels:
        return list(run.names or channels)
    is_named = run.holdings is not None or len(channels) != run.objective.classes
    return class_names(run) if is_named else list(channels)


def _exported_kind(run: RunRecord, site: str) -> ModelKind | None:
    return cast(ModelKind | None, run.exported_kind(site))


def _image_counts(run: RunRecord, site: str | None) -> ImageCounts | None:
    """Return the numbers of images at one site or at all, by split and class; None if the run folder lacks them."""
    holdings = run.holdings
    if holdings is None:
        return None
    sites = [
        SiteImageCounts(site=name, **{split: splits[split] for split in SPLITS if split in splits})
        for name, splits in holdings.sites.items()
        if site in (None, name)
    ]
    return ImageCounts(classes=tuple(read_output_names(run) or holdings.classes), sites=tuple(sites))


def _costs(data: ReportData, site: str | None) -> tuple[NamedValue, ...]:
    """Return bytes and seconds of a site, or of all sites together; empty if they are unknown."""
    names = ("sent to the server", "received", "sent to other sites", "training time", "evaluation time")
    for cost in costs(data.runs):
        spent = cost.total if site is None else cost.sites.get(site)
        if spent is not None:
            texts = (size(spent[name]) if name.startswith("bytes") else duration(spent[name]) for name in COSTS)
            return tuple(NamedValue(name=name, value=text) for name, text in zip(names, texts, strict=True))
    return ()


def _privacy(data: ReportData) -> PrivacyFacts | None:
    """Return the differential privacy guarantee; None if the run has none."""
    section = privacy_section(data.groups)
    if section is None:
        return None
    row: Meta = dict(section["rows"][0])
    copied = {name: str(row[name]) for name in ("adjacency", "delta", "sigma", "clip", "spent")}
    return PrivacyFacts(unit=str(row["unit_phrase"]), epsilon=str(row["stated"]), statement=str(row["words"]), **copied)


def _sections(data: ReportData, registry: Registry) -> tuple[CardSection, ...]:
    """Return the card sections that the report's sections contribute, in the order of the report's page."""
    records = sorted(registry.report_sections.values(), key=lambda record: (record.order, record.name))
    parts = [(record.title, registry.report_section(record.name)().card(data)) for record in records]
    return tuple(CardSection(title=title, **dict(part)) for title, part in parts if part is not None)


def _server_scores(data: ReportData, run: RunRecord) -> tuple[ServerScore, ...]:
    """Return the recorded scores of the global model: on the server's test set, and the mean over the sites."""
    metrics = run.scores.get("global", {}).get("test", {})
    return tuple(
        ServerScore(
            metric=metric,
            server=metrics[metric].server_test,
            sites_mean=mean_known(metrics[metric].sites.values()),
        )
        for metric in key_metrics(data.groups)
        if metric in metrics
    )


def format_image_count(counts: ImageCounts | None, split: str) -> str:
    """Return the number of images in a split as text; ``unknown`` if `counts` is None.

    Args:
        counts: Numbers of images; None if they are unknown.
        split: Name of the split.
    """
    return "unknown" if counts is None else number(counts.total(split))
