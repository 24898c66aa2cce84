"""``medfl harmonise``: match the images of a prepared data set to a template of quantiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Folder of a prepared data set, or of one site.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write.", show_default=False)],
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the template from statistics.json of medfl federate statistics, or from datalist.json of "
            "harmonised data.",
            show_default="computed from the sites of DATA",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a data set that exists in the folder.")] = False,
) -> None:
    """Match the grey values of each image to a template that all sites share, and write a new data set.

    The template is the mean over the sites of their typical quantiles at 5, 25, 50, 75 and 95 %. The data list
    records it. Training, exported bundles and their inference then treat a new image in the same way. A bundle that
    can't apply the template is refused when a run starts.

    Example: medfl harmonise data/own --out data/own-harmonised
    """
    from medfl.data.harmonisation.harmonise import (
        channel_count,
        compute_template,
        harmonise,
        read_template,
        template_lines,
    )

    chosen = compute_template(data) if template is None else read_template(template, channel_count(data))
    count = harmonise(data, out, chosen, force=force)
    for line in template_lines(chosen):
        typer.echo(line)
    typer.echo(f"{count} images matched to the template in {out}")
