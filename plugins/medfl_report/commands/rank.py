"""``medfl rank``: compare methods over several data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    scores: Annotated[
        list[Path], typer.Argument(metavar="SCORES", help="Files <set>-scores.csv of studies.", show_default=False)
    ],
    metric: Annotated[list[str], typer.Option(help="Metric; of several, the first that a file has is used for it.")],
    reference: Annotated[str, typer.Option(help="Row that the others are compared with.")] = "fedavg",
    rope: Annotated[float, typer.Option(min=0, help="Largest difference of scores that is practically none.")] = 0.01,
    sites: Annotated[bool, typer.Option("--sites", help="Also fit a mixed model over all sites.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write ranks.md and ranks.svg into this folder.")] = None,
) -> None:
    """Rank methods over several data sets: Friedman's and Nemenyi's tests, Bayesian signed-rank test.

    The unit is the data set. Rows that a file lacks are left out. Without --out the command prints the table.

    Example: medfl rank results/blood-scores.csv results/heart-scores.csv --metric balanced_accuracy --rope 0.01
    """
    import io

    from medfl.utils.files import write_atomic
    from medfl_report.data_set_ranks import compare_data_sets, critical_difference_figure, ranks_markdown, read_scores

    comparison = compare_data_sets([read_scores(path, metric) for path in scores], reference, rope, sites)
    text = ranks_markdown(comparison)
    if out is None:
        typer.echo(text, nl=False)
        return
    picture = io.BytesIO()
    critical_difference_figure(comparison.ranks).savefig(picture, format="svg", metadata={"Date": None})
    files = {out / "ranks.md": text.encode(), out / "ranks.svg": picture.getvalue()}
    for path, content in files.items():
        write_atomic(path, content)
    typer.echo("\n".join(str(path) for path in files))
