"""HTML report, comparison tables, model cards and live monitor of runs. This package never changes a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medfl.hooks import CommandRecord, SectionRecord, hookimpl
from medfl.plugins import Registry

if TYPE_CHECKING:
    from pandas import DataFrame

    from medfl.records.evaluation import Evaluation
    from medfl_report.evaluation.cases import Split


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package, such as ``report``, ``card`` and ``monitor``."""
    return [
        CommandRecord(
            "status",
            "medfl_report.commands.status:command",
            "Show the progress of runs.",
            "Run",
        ),
        CommandRecord(
            "monitor",
            "medfl_report.commands.monitor:command",
            "Monitor running jobs in the terminal or on a page.",
            "Run",
        ),
        CommandRecord(
            "look",
            "medfl_report.commands.look:command",
            "Show a prepared data set before training.",
            "Data",
        ),
        CommandRecord(
            "report",
            "medfl_report.commands.report:command",
            "Write an HTML report about one or several runs.",
            "Look at results",
        ),
        CommandRecord(
            "card",
            "medfl_report.commands.card:command",
            "Write a model card into each bundle of a run.",
            "Look at results",
        ),
        CommandRecord(
            "calibrate",
            "medfl_report.commands.calibrate:command",
            "Choose thresholds and recalibrate models on validation images.",
            "Look at results",
        ),
        CommandRecord(
            "evaluate",
            "medfl_report.commands.evaluate:command",
            "Score a finished model at a site that did not train it.",
            "Look at results",
        ),
        CommandRecord(
            "verify",
            "medfl_report.commands.verify:command",
            "Check files and numbers of bundles against their model cards.",
            "Look at results",
        ),
        CommandRecord(
            "compare",
            "medfl_report.commands.compare:command",
            "Compare runs over seeds, as Markdown and CSV.",
            "Study and compare",
        ),
        CommandRecord(
            "rank",
            "medfl_report.commands.rank:command",
            "Rank methods over several data sets.",
            "Study and compare",
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the general sections of the report. Plugins of methods and data sets add further sections."""
    return [
        SectionRecord("glance", "At a glance", "medfl_report.sections.at_a_glance:GlanceSection", -20),
        SectionRecord("methods", "Comparison of the methods", "medfl_report.sections.methods:MethodsSection", -10),
        SectionRecord("gains", "Results by site", "medfl_report.sections.site_results:SiteResultsSection", 0),
        SectionRecord("masks", "Segmentation", "medfl_report.objectives.masks:MasksSection", 10),
        SectionRecord("survival", "Survival analysis", "medfl_report.objectives.survival:SurvivalSection", 20),
        SectionRecord(
            "agreement", "Agreement with reference values", "medfl_report.objectives.agreement:AgreementSection", 30
        ),
        SectionRecord(
            "label_aucs", "Discrimination by finding", "medfl_report.objectives.label_aucs:LabelAucsSection", 40
        ),
        SectionRecord("calibration", "Calibration", "medfl_report.objectives.calibration:CalibrationSection", 50),
        SectionRecord(
            "calibrated", "Calibrated models", "medfl_report.sections.calibrated_models:CalibratedSection", 55
        ),
        SectionRecord("sweep", "Sensitivity to one setting", "medfl_report.sections.sweep:SweepSection", 100),
        SectionRecord(
            "centres", "Discrimination by scanning centre", "medfl_report.sections.centres:CentresSection", 110
        ),
        SectionRecord("classes", "Discrimination by class", "medfl_report.sections.classes:ClassesSection", 120),
        SectionRecord("matrix", "Cross-site evaluation", "medfl_report.sections.cross_site:CrossSiteSection", 130),
        SectionRecord("external", "External validation", "medfl_report.sections.external:ExternalSection", 135),
        SectionRecord("fairness", "Discrimination by sex", "medfl_report.sections.fairness:FairnessSection", 140),
        SectionRecord("privacy", "Differential privacy", "medfl_report.sections.privacy:PrivacySection", 300),
        SectionRecord("scores", "Test performance", "medfl_report.sections.standard:ScoresSection", 500),
        SectionRecord("curves", "Performance by round", "medfl_report.sections.standard:CurvesSection", 510),
        SectionRecord(
            "forgetting", "Forgetting between rounds", "medfl_report.sections.forgetting:ForgettingSection", 520
        ),
        SectionRecord("images", "Image counts by site", "medfl_report.sections.standard:ImageCountsSection", 530),
        SectionRecord(
            "attendance", "Site participation by round", "medfl_report.sections.attendance:AttendanceSection", 535
        ),
        SectionRecord("costs", "Cost", "medfl_report.sections.standard:CostsSection", 540),
        SectionRecord("settings", "Settings", "medfl_report.sections.standard:SettingsSection", 550),
    ]


@hookimpl(tryfirst=True)  # before observers that send the report somewhere
def medfl_run_ended(run_folder: str, registry: Registry) -> None:
    """Write the report of a run that has ended, ``report.html``, into the run folder."""
    from medfl_report.page import write_report

    write_report([run_folder], registry=registry)


@hookimpl
def medfl_write_report(folders: list[str], out: str | None) -> str:
    """Write the report about runs and return its path."""
    from medfl_report.page import write_report

    return str(write_report(folders, out))


@hookimpl
def medfl_compare(folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> DataFrame:
    """Return a table that compares the runs in some folders, with a row for each metric and group of runs."""
    from medfl.engine.runs.records import read_run
    from medfl_report.compare import compare

    return compare([read_run(folder) for folder in folders], metrics, baseline, split)


@hookimpl
def medfl_evaluate(model: str, dataset_dir: str, out: str | None, split: Split, device: str) -> list[Evaluation]:
    """Evaluate finished models on the data of sites."""
    from medfl_report.evaluation.evaluate import evaluate_sites

    return evaluate_sites(model, Path(dataset_dir), None if out is None else Path(out), split, device)


@hookimpl
def medfl_partition_written(folder: str, counts: dict[str, list[int]], classes: list[str]) -> None:
    """Write a figure of the number of images of each class at each site into the partition's folder."""
    from medfl_report.sections.class_counts_figure import draw_counts

    draw_counts(Path(folder), counts, classes)
