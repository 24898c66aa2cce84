"""``medfl adopt``: a stock MONAI bundle as a site of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.plugin_options import Disabled, PluginFiles, load


def command(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the copy is to be: an empty folder, or none yet.")],
    objective: Annotated[
        str | None,
        typer.Option(
            help="What is learned, where it is not to be recognised: multiclass, binary, multilabel, regression, "
            "survival, segmentation or overlapping_segmentation.",
            show_default="recognised",
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="The network's last layer, by its module's name, for methods that share the rest.",
            show_default="known of MONAI's networks",
        ),
    ] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="A stage of the network, by its module's name, once for each in order, for methods that compare them.",
            show_default="known of MONAI's networks",
        ),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Copy a stock MONAI bundle, and add what a federation over it needs.

    The bundle is read as text: nothing in it is imported, instantiated, evaluated or loaded. What can't be told, or
    can't be done in a federation, is refused by name.

    Example: medfl adopt zoo/spleen_ct_segmentation --out bundles/spleen
    """
    from medfl.utils.text import visible
    from medfl_adopt.adopting import OVERLAY, PAGE, adopt

    registry = load(plugin, no_plugin)
    adoption = adopt(bundle, out, objective, registry, head, stage or ())
    learned = adoption.objective
    typer.echo(f"objective: {learned.kind}{' (given)' if learned.chosen else ''}")
    for sign in learned.signs:
        typer.echo(f"  {visible(sign.text)}{'' if learned.kind in sign.kinds else ': speaks against it'}")
    enter = " and ".join(filter(None, (adoption.cases.train, adoption.cases.validation))) or "dataset_dir"
    typer.echo(f"a site's cases enter at: {visible(enter)}")
    for pattern in adoption.cases.needs:
        typer.echo(f"  its folder holds {visible(pattern)}")
    typer.echo(f"left out ({len(adoption.ignored)}; the page says what to do instead):")
    for entry in adoption.ignored:
        typer.echo(f"  {'! ' if entry.is_urgent else ''}{visible(entry.what)}: {entry.why}")
    typer.echo(f"wrote {out / OVERLAY}\nwrote {out / PAGE}")
    typer.echo(f"Next: read the page, and check the code: medfl check-bundle {out}")
    typer.echo(f"Then: medfl run {out} --dataset-dir D --method fedavg, with a folder in D for each site")
