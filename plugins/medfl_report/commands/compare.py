"""``medfl compare``: compare runs in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", show_default=False)],
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric; repeat for several. By default the task's first.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Reference of the differences. By default the first row.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the images: test or val.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Write compare.md and compare.csv into this folder.")] = None,
) -> None:
    """Compare runs: mean and standard deviation over seeds, worst site, differences from a reference with intervals.

    Runs that differ only in seed and fold make one row. Without --out the command prints the table as Markdown.

    Example: medfl compare runs/local runs/fedavg --metric accuracy --metric balanced_accuracy
    """
    from medfl.engine.runs.records import common_output_names, read_run
    from medfl.engine.runs.run_files import exclude_logs
    from medfl.utils.files import write_atomic
    from medfl.utils.formats import csv_table
    from medfl_report.compare import compare, to_markdown

    records = [read_run(folder) for folder in exclude_logs(runs)]
    table = compare(records, metric, baseline, split)
    text = to_markdown(table, common_output_names(records))
    if out is None:
        typer.echo(text, nl=False)
        return
    files = {out / "compare.md": text, out / "compare.csv": csv_table(table)}
    for path, content in files.items():
        write_atomic(path, content.encode())
    typer.echo("\n".join(str(path) for path in files))
