"""Studies, tuning and the demo.

A study file (YAML) describes a comparison of methods that is repeated over seeds. Each row of the study is a method
with its settings, and each row has one run for each seed.
"""

from __future__ import annotations

from pathlib import Path

from medfl.hooks import CommandRecord, RunLocation, hookimpl


@hookimpl
def medfl_commands() -> list[CommandRecord]:
    """Return the commands of this package."""
    return [
        CommandRecord(
            "demo",
            "medfl_studies.commands.demo:command",
            "Compare methods on synthetic data in a few minutes.",
            "First steps",
        ),
        CommandRecord(
            "study",
            "medfl_studies.commands.study:command",
            "Run the methods and seeds of a study file.",
            "Study and compare",
        ),
        CommandRecord(
            "results",
            "medfl_studies.commands.results:app",
            "Keep raw results of studies, and recompute pages.",
            "Study and compare",
        ),
        CommandRecord(
            "tune",
            "medfl_studies.commands.tune:command",
            "Search for good settings of a study on validation images.",
            "Study and compare",
        ),
    ]


@hookimpl
def medfl_run_location(path: str) -> RunLocation | None:
    """Return the location of a study's runs (its output folder), or None if the path is not a study file."""
    if Path(path).suffix not in (".yaml", ".yml"):
        return None
    from medfl_studies.schema import FULL_SCALE
    from medfl_studies.study import default_output_dir
    from medfl_studies.study_reader import read_study

    return RunLocation(default_output_dir(read_study(Path(path), FULL_SCALE, None, ()), FULL_SCALE))
