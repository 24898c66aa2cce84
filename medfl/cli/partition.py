"""``medfl partition``: split a pooled data set among sites."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from medfl.cli.plugin_options import Disabled, PluginFiles, load
from medfl.errors import SettingsError
from medfl.utils.text import visible

if TYPE_CHECKING:
    from medfl.data.datalists import Datalist

SITES = 20
"""Number of sites if none is given and no column names them."""

MAX_SITES = 40
"""Sites that the table shows; the picture and the cards show all."""

_BELONGS = {
    "test_fraction": ("test", ("fraction", "class_balanced")),
    "folds": ("test", ("k_fold",)),
    "fold": ("test", ("k_fold",)),
    "per_class": ("global_test", ("per_class",)),
    "duplicates": ("global_test", ("official",)),
    "allow_leaks": ("global_test", ("official",)),
    "public_test_fraction": ("public", ("validation",)),
}


OF_A_LIST = {"pool", "out", "scheme", "sites", "seed", "column", "alpha", "min_size", "k", "share", "option"}
"""Options that a list of cases takes; a bundle's sites hold out their own test and validation cases."""


def command(
    context: typer.Context,
    pool: Annotated[
        Path,
        typer.Argument(help="The pooled data set, as written by `medfl prep`, or a bundle's list of cases (JSON)."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    scheme: Annotated[str, typer.Option(help="How to split; see `medfl list partitions`.")] = "iid",
    sites: Annotated[int | None, typer.Option(min=1, help=f"Number of sites; {SITES} unless a column tells.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Concentration of Dirichlet draws; small is skewed.")] = None,
    min_size: Annotated[int | None, typer.Option(help="Images each site has at least.")] = None,
    k: Annotated[int | None, typer.Option(help="Classes of each site, for label_k.")] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Of a class: what its main sites get (subset), or limited sites keep (limited_classes)."),
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column of the data list to go by, for by_site.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the scheme.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    test: Annotated[
        str, typer.Option(help="A site's own test set: fraction, class_balanced, k_fold, official (by column) or none.")
    ] = "fraction",
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of a site's images that is its test set [0.2].")
    ] = None,
    folds: Annotated[int | None, typer.Option(help="With k_fold: number of folds [5].")] = None,
    fold: Annotated[int | None, typer.Option(help="With k_fold: the fold to test on, from 0 [0].")] = None,
    val_fraction: Annotated[float, typer.Option(help="Share of a site's images for validation.")] = 0.0,
    stratify: Annotated[
        list[str] | None, typer.Option(help="Column to stratify test and validation images by, besides labels.")
    ] = None,
    global_test: Annotated[
        str, typer.Option(help="The server's test set: official (pooled test split), per_class, remainder or none.")
    ] = "official",
    per_class: Annotated[int | None, typer.Option(help="With per_class: images of each class [30].")] = None,
    public: Annotated[
        str, typer.Option(help="Public data for the server: none, validation (that pooled split), or a pooled folder.")
    ] = "none",
    public_test_fraction: Annotated[
        float | None, typer.Option(help="With validation: share of the public images that is their test set [0].")
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            help="Training images that are in the pooled test split, public ones that are private: refuse or drop."
        ),
    ] = None,
    allow_leak: Annotated[list[str] | None, typer.Option(help="Keep such images: subjects or pixels.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a partition that is there.")] = False,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Split the training images of a pooled data set among sites. No image is copied.

    Each site gets a folder with a data list and a card. Images of a patient, and identical images, stay together. Of a
    bundle's own list of cases (a Decathlon's dataset.json) each site gets a list of that name and links to its files.

    Example: medfl partition data/own --out data/hospitals --scheme by_site --column site
    """
    from medfl.data.partition.case_list import partition_cases
    from medfl.data.partition.partition import partition
    from medfl.data.partition.plan import PartitionPlan
    from medfl.data.partition.writing import counts_by_class

    registry = load(plugin, no_plugin)
    function = registry.partition(scheme)
    options = _options({"alpha": alpha, "min_size": min_size, "k": k, "share": share}, option or [])
    number = SITES if sites is None and column is None else sites
    if pool.is_file():
        _check_of_list(context)
        _show_cases(partition_cases(pool, out, PartitionPlan(scheme, number, seed, options, column=column), function))
        return
    policies = {"test": test, "global_test": global_test, "public": public}
    details: dict[str, Any] = {"test_fraction": test_fraction, "folds": folds, "fold": fold, "per_class": per_class}
    details |= {"public_test_fraction": public_test_fraction, "duplicates": duplicates}
    details |= {"allow_leaks": tuple(allow_leak) if allow_leak else None}
    plan = PartitionPlan(
        scheme,
        number,
        seed,
        options,
        val_fraction=val_fraction,
        stratify=tuple(stratify or ()),
        column=column,
        **policies,  # type: ignore[arg-type]  # checked by the plan
        **_details(details, policies),
    )
    written = partition(pool, out, plan, function, force=force)
    counts, classes = counts_by_class(written)
    registry.notify("medfl_partition_written", folder=str(out), counts=counts, classes=classes)
    _show(written)
    _tell(out)
    for picture in sorted(out.glob("*.svg")):
        typer.echo(f"Who holds what: {picture}")


def _check_of_list(context: typer.Context) -> None:
    """Refuse options that belong to pooled data sets.

    Raises:
        SettingsError: Naming them.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    others = sorted(named - OF_A_LIST - {"plugin", "no_plugin"})
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise SettingsError(
            "incompatible_settings",
            f"{flags}: expected the folder of a pooled data set with it; a list of cases is only dealt.",
            settings=others,
        )


def _show_cases(counts: Mapping[str, Mapping[str, int]]) -> None:
    for site, sections in counts.items():
        typer.echo(f"{site}: " + ", ".join(f"{count} {section}" for section, count in sections.items()))


def counts_table(lists: Mapping[str, Datalist]) -> Table:
    """Sites by classes: images of all splits, and the sizes of the splits; of `MAX_SITES` at most, and of all."""
    from medfl.types import NO_SITES

    first = next(iter(lists.values()))
    classes = [str(number) for number in range(first.num_classes)]
    table = Table(title="Images of each class", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", no_wrap=True)
    for header in (*classes, "train", "val", "test"):
        table.add_column(header, justify="right", no_wrap=True)
    rows = {name: _row(datalist, classes) for name, datalist in lists.items()}
    held = {name: row for name in NO_SITES if (row := rows.pop(name, None)) is not None}
    for name in list(rows)[:MAX_SITES]:
        table.add_row(name, *map(str, rows[name]))
    if len(rows) > MAX_SITES:
        table.add_row(f"... {len(rows) - MAX_SITES} more")
    table.add_section()
    table.add_row("all sites", *(str(sum(column)) for column in zip(*rows.values(), strict=True)))
    for name, row in held.items():
        cells = list(map(str, row))  # public data may have other classes, which no column counts
        table.add_row(name, *(cells if lists[name].labels == first.labels else ["-"] * len(classes) + cells[-3:]))
    return table


def _row(datalist: Datalist, classes: list[str]) -> list[int]:
    counts = datalist.counts().values()
    return [sum(split.get(label, 0) for split in counts) for label in classes] + [
        sum(split.values()) for split in counts
    ]


def _options(named: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    """The options of the scheme: those with a flag of their own, and those of ``--option``."""
    options = {name: value for name, value in named.items() if value is not None}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingsError("invalid_option", f"expected --option NAME=VALUE, got '{text}'", text=text)
        if name in options:
            raise SettingsError("repeated_option", f"option '{name}' is given twice", name=name)
        options[name] = value
    return options


def _details(details: Mapping[str, Any], policies: Mapping[str, str]) -> dict[str, Any]:
    """The details of the policies that are given, if they belong to them."""
    chosen = {name: value for name, value in details.items() if value is not None}
    for name in chosen:
        policy, needed = _BELONGS[name]
        copies = name in ("duplicates", "allow_leaks")
        elsewhere = copies and (policies["public"] != "none" or policies["test"] == "official")
        if policies[policy] not in needed and not elsewhere:
            flag = "allow-leak" if name == "allow_leaks" else name.replace("_", "-")
            owner = policy.replace("_", "-")
            raise SettingsError(
                "incompatible_settings",
                f"--{flag} belongs to --{owner} {' or '.join(needed)}, but --{owner} is {policies[policy]}",
                setting=name,
                policy=policy,
                expected=needed,
                found=policies[policy],
            )
    return chosen


def _show(written: Mapping[str, Datalist]) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    table = counts_table(written)
    console.width = 10_000  # measured without the terminal's limit: a squeezed table is no use
    console.width = max(Measurement.get(console, console.options, table).maximum, 80)
    console.print(table)
    labels = next(iter(written.values())).labels
    typer.echo("Classes: " + "; ".join(f"{label} {visible(name)}" for label, name in labels.items()))


def _tell(out: Path) -> None:
    """Print the exclusions, allowed leaks and warnings of a partition."""
    from medfl.data.partition.overlap import images
    from medfl.records.partition import Partition

    made = Partition.read(out / Partition.NAME)
    for entry in made.exclusions:
        typer.echo(f"left out at {entry.where}: {images(entry.count)}, {entry.reason}", err=True)
    for sentence in made.allowed_leaks:
        typer.echo(f"allowed leak: {visible(sentence)}", err=True)
    for sentence in made.warnings:
        typer.echo(f"note: {visible(sentence)}", err=True)
