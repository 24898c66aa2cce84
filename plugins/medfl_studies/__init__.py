"""Study files, tuning and the demo: comparisons of methods that are described once and run many times."""

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
            "tune",
            "medfl_studies.commands.tune:command",
            "Search a study's settings, on validation images alone.",
            "Study and compare",
        ),
    ]


@hookimpl
def medfl_run_location(path: str) -> RunLocation | None:
    """Return the output folder of a study file; None for anything else."""
    if Path(path).suffix not in (".yaml", ".yml"):
        return None
    from medfl_studies.reading import read_study
    from medfl_studies.schema import FULL
    from medfl_studies.study import default_out

    return RunLocation(default_out(read_study(Path(path), FULL, None, ()), FULL))
