"""``medfl partition``: split a pooled data set among sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from medfl.cli.plugin_options import Disabled, PluginFiles, load

if TYPE_CHECKING:
    from medfl.data.datalists import Datalist


def command(
    pool: Annotated[Path, typer.Argument(help="The pooled data set, as written by `medfl prep`.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    scheme: Annotated[str, typer.Option(help="How to split; see `medfl list partitions`.")] = "iid",
    sites: Annotated[int, typer.Option(min=1, help="Number of sites.")] = 20,
    alpha: Annotated[float | None, typer.Option(help="Concentration of Dirichlet draws; small is skewed.")] = None,
    min_size: Annotated[int | None, typer.Option(help="Images each site has at least.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    test_fraction: Annotated[float, typer.Option(help="Share of a site's images for its own test set.")] = 0.2,
    val_fraction: Annotated[float, typer.Option(help="Share of a site's images for validation.")] = 0.0,
    global_test: Annotated[bool, typer.Option(help="Let the server hold the pooled test split.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace a partition that is there.")] = False,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Split the training images of a pooled data set among sites. No image is copied.

    Each site gets a folder with a data list and a card. The pooled test split becomes the server's.
    """
    function = load(plugin, no_plugin).partition(scheme)
    from medfl.partition.plan import Plan, partition

    given = {"alpha": alpha, "min_size": min_size}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    plan = Plan(scheme, sites, seed, options, test_fraction, val_fraction, global_test)
    written = partition(pool, out, plan, function, force=force)
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max(console.width, 100)
    console.print(counts_table(written))
    labels = next(iter(written.values())).labels
    console.print("Classes: " + ", ".join(f"{label} {name}" for label, name in labels.items()))
    _say_left_out(pool, written)


def counts_table(lists: Mapping[str, Datalist]) -> Table:
    """Sites by classes: images of all splits, and the sizes of the splits."""
    classes = [str(number) for number in range(next(iter(lists.values())).num_classes)]
    table = Table(title="Images of each class", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", no_wrap=True)
    for header in (*classes, "train", "val", "test"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, datalist in lists.items():
        counts = datalist.counts()
        cells = [str(sum(split[label] for split in counts.values())) for label in classes]
        table.add_row(name, *cells, *(str(sum(split.values())) for split in counts.values()))
    return table


def _say_left_out(pool: Path, written: Mapping[str, Datalist]) -> None:
    from medfl.data.datalists import read_datalist

    source = read_datalist(pool)
    for split, records in source.splits.items():
        if records and split != "training" and not (split == "test" and "global" in written):
            typer.echo(f"note: the {len(records)} {split} images of the pooled data set are at no site", err=True)
