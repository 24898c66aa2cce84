"""Command ``medfl adopt``: make a bundle for federated learning from a stock MONAI bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.plugin_options import Disabled, PluginFiles, load


def command(
    bundle: Annotated[Path, typer.Argument(help="Folder of the stock bundle.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the copy; it must be empty or not exist.")],
    objective: Annotated[
        str | None,
        typer.Option(
            help="Objective of the bundle: multiclass, binary, multilabel, regression, survival, segmentation or "
            "overlapping_segmentation.",
            show_default="recognized from the bundle",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="Module name of the network's last layer, for methods that share only the other layers.",
            show_default="known for MONAI's networks",
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Module name of a stage of the network, for methods that compare stages; repeat it for each stage in "
            "order.",
            show_default="known for MONAI's networks",
        ),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Copy a stock MONAI bundle, and add the files that federated learning needs.

    The bundle is read as text: nothing in it is imported, instantiated, evaluated or loaded. The command stops with an
    error message if a part of the bundle is ambiguous or not supported in a federation.

    Example: medfl adopt zoo/spleen_ct_segmentation --out bundles/spleen
    """
    from medfl.utils.text import visible
    from medfl_adopt.adopting import OVERLAY_FILE, PAGE_FILE, adopt

    registry = load(plugin, no_plugin)
    adoption = adopt(bundle, out, objective, registry, head, stage or ())
    learned = adoption.objective
    typer.echo(f"objective: {learned.kind}{' (given)' if learned.chosen else ''}")
    for sign in learned.signs:
        typer.echo(f"  {visible(sign.text)}{'' if learned.kind in sign.kinds else ': contradicts the objective'}")
    enter = " and ".join(filter(None, (adoption.cases.train, adoption.cases.validation))) or "dataset_dir"
    typer.echo(f"a site's cases replace: {visible(enter)}")
    for pattern in adoption.cases.needs:
        typer.echo(f"  its folder must contain {visible(pattern)}")
    typer.echo(f"start: {visible(adoption.start_sentence)}")
    typer.echo(f"ignored ({len(adoption.ignored)}; the page lists alternatives):")
    for entry in adoption.ignored:
        typer.echo(f"  {'! ' if entry.is_urgent else ''}{visible(entry.what)}: {entry.why}")
    typer.echo(f"wrote {out / OVERLAY_FILE}\nwrote {out / PAGE_FILE}")
    typer.echo(f"Next: read the page, and review the code: medfl check-bundle {out}")
    typer.echo(f"Then: medfl run {out} --dataset-dir D --method fedavg, with one folder in D for each site")
