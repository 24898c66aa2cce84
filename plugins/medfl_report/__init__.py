"""HTML report, comparison tables, model cards and the live monitor. Nothing here computes or changes a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medfl.hooks import CommandRecord, SectionRecord, hookimpl
from medfl.plugins import Registry

if TYPE_CHECKING:
    from pandas import DataFrame


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
    return [
        CommandRecord(
            "status",
            "medfl_report.commands.status:command",
            "Say how far runs are.",
            "Run",
        ),
        CommandRecord(
            "monitor",
            "medfl_report.commands.monitor:command",
            "Watch runs as they happen, in the terminal or on a page.",
            "Run",
        ),
        CommandRecord(
            "report",
            "medfl_report.commands.report:command",
            "Write a page about runs: who gains, curves, costs, settings.",
            "Look at results",
        ),
        CommandRecord(
            "card",
            "medfl_report.commands.card:command",
            "Write a model card into every bundle of a run.",
            "Look at results",
        ),
        CommandRecord(
            "verify",
            "medfl_report.commands.verify:command",
            "Check bundles against their cards: files and numbers.",
            "Look at results",
        ),
        CommandRecord(
            "compare",
            "medfl_report.commands.compare:command",
            "Compare runs over seeds, as Markdown and CSV.",
            "Study and compare",
        ),
    ]


@hookimpl
def medfl_report_sections() -> list[SectionRecord]:
    """Return the general sections of the report. Methods and data sets bring sections of their own."""
    return [
        SectionRecord("gains", "Who gains", "medfl_report.sections.gains:GainsSection", 0),
        SectionRecord("masks", "Masks", "medfl_report.objectives.masks:MasksSection", 10),
        SectionRecord("survival", "Survival", "medfl_report.objectives.survival:SurvivalSection", 20),
        SectionRecord("agreement", "Agreement", "medfl_report.objectives.agreement:AgreementSection", 30),
        SectionRecord("label_aucs", "Each finding", "medfl_report.objectives.label_aucs:LabelAucsSection", 40),
        SectionRecord("calibration", "Calibration", "medfl_report.objectives.calibration:CalibrationSection", 50),
        SectionRecord("sweep", "One setting, several values", "medfl_report.sections.sweep:SweepSection", 100),
        SectionRecord("centres", "Which centres gain", "medfl_report.sections.centres:CentresSection", 110),
        SectionRecord("classes", "Which classes gain", "medfl_report.sections.classes:ClassesSection", 120),
        SectionRecord("matrix", "Every model at every site", "medfl_report.sections.matrix:MatrixSection", 130),
        SectionRecord("fairness", "By sex", "medfl_report.sections.fairness:FairnessSection", 140),
        SectionRecord("privacy", "Privacy", "medfl_report.sections.privacy:PrivacySection", 300),
        SectionRecord("scores", "All scores", "medfl_report.sections.standard:ScoresSection", 500),
        SectionRecord("curves", "Round by round", "medfl_report.sections.standard:CurvesSection", 510),
        SectionRecord("forgetting", "What is forgotten", "medfl_report.sections.forgetting:ForgettingSection", 520),
        SectionRecord("holdings", "Who holds what", "medfl_report.sections.standard:HoldingsSection", 530),
        SectionRecord("attendance", "Who took part", "medfl_report.sections.attendance:AttendanceSection", 535),
        SectionRecord("costs", "Costs", "medfl_report.sections.standard:CostsSection", 540),
        SectionRecord("settings", "Settings", "medfl_report.sections.standard:SettingsSection", 550),
    ]


@hookimpl(tryfirst=True)  # before observers that send the report somewhere
def medfl_run_ended(run_folder: str, registry: Registry) -> None:
    """Write ``report.html`` into the run folder."""
    from medfl_report.page import write_report

    write_report([run_folder], registry=registry)


@hookimpl
def medfl_write_report(folders: list[str], out: str | None) -> str:
    """Write the report on runs and return its path."""
    from medfl_report.page import write_report

    return str(write_report(folders, out))


@hookimpl
def medfl_compare(folders: list[str], metrics: list[str] | None, baseline: str | None, split: str) -> DataFrame:
    """Return the table of `medfl_report.compare.compare`."""
    from medfl.engine.runs.records import read_run
    from medfl_report.compare import compare

    return compare([read_run(folder) for folder in folders], metrics, baseline, split)


@hookimpl
def medfl_partition_written(folder: str, counts: dict[str, list[int]], classes: list[str]) -> None:
    """Draw how many images of each class each site holds, into the partition's folder."""
    from medfl_report.sections.holdings import draw_counts

    draw_counts(Path(folder), counts, classes)
