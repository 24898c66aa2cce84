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

DEFAULT_SITES = 20
"""Number of sites if neither a number nor a column of sites is given."""

MAX_SITES = 40
"""Largest number of sites in the printed table. The figure and the site cards, JSON files next to the data lists, show
all sites."""

CHOICES_BY_DETAIL = {
    "test_fraction": ("test", ("fraction", "class_balanced")),
    "folds": ("test", ("k_fold",)),
    "fold": ("test", ("k_fold",)),
    "per_class": ("server_test", ("per_class",)),
    "duplicates": ("server_test", ("official",)),
    "allow_leaks": ("server_test", ("official",)),
    "public_images": ("public", ("training",)),
    "public_test_fraction": ("public", ("validation", "training")),
}
"""Maps each option that refines a policy to the policy's option, and to the values of that option that need it.

A policy is the rule for a test set or for public data: ``test``, ``server_test`` or ``public``.
"""

CASE_LIST_OPTIONS = {"pool", "out", "scheme", "sites", "seed", "column", "alpha", "min_size", "k", "share", "option"}
"""Options that apply if a bundle's own list of cases is split. The other options choose test and validation cases,
which the sites of an adopted bundle (a stock MONAI bundle with an added ``federate.json``) choose themselves."""


def command(
    context: typer.Context,
    pool: Annotated[
        Path,
        typer.Argument(help="Pooled data set that `medfl prep` wrote, or a bundle's list of cases (JSON)."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    scheme: Annotated[str, typer.Option(help="Name of the scheme, from `medfl list partitions`.")] = "iid",
    sites: Annotated[
        int | None, typer.Option(min=1, help=f"Number of sites; {DEFAULT_SITES} unless --column is given.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Concentration of the Dirichlet draws; small values skew the sites.")
    ] = None,
    min_size: Annotated[int | None, typer.Option(help="Minimum number of images of a site.")] = None,
    k: Annotated[int | None, typer.Option(help="With label_k: number of classes of each site.")] = None,
    share: Annotated[
        float | None,
        typer.Option(help="Share of a class for its main sites (subset) or for limited sites (limited_classes)."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="With by_site: column of the data list with the names of the sites.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another option of the scheme.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    join_splits: Annotated[
        bool, typer.Option("--join-splits", help="Join training, validation and test images of the release first.")
    ] = False,
    test: Annotated[
        str, typer.Option(help="Test set of each site: fraction, class_balanced, k_fold, official (by column) or none.")
    ] = "fraction",
    test_fraction: Annotated[float | None, typer.Option(help="Share of a site's images in its test set [0.2].")] = None,
    folds: Annotated[int | None, typer.Option(help="With k_fold: number of folds [5].")] = None,
    fold: Annotated[
        int | None, typer.Option(help="With k_fold: number of the fold that is the test set, from 0 [0].")
    ] = None,
    val_fraction: Annotated[float, typer.Option(help="Share of a site's images in its validation set.")] = 0.0,
    stratify: Annotated[
        list[str] | None,
        typer.Option(help="Column by which test and validation images are stratified, besides the labels."),
    ] = None,
    server_test: Annotated[
        str, typer.Option(help="Test set of the server: official (pooled test split), per_class, remainder or none.")
    ] = "official",
    per_class: Annotated[int | None, typer.Option(help="With per_class: number of images of each class [30].")] = None,
    public: Annotated[
        str,
        typer.Option(
            help="Public data for the server: none, validation (the pooled validation split), training (a part of the "
            "pooled training split), or a pooled folder."
        ),
    ] = "none",
    public_images: Annotated[int | None, typer.Option(help="With training: number of public images.")] = None,
    public_test_fraction: Annotated[
        float | None,
        typer.Option(help="With validation, training: share of the public images that are test images [0]."),
    ] = None,
    duplicates: Annotated[
        str | None,
        typer.Option(
            help="Training images in the pooled test split too, and public images that are private: refuse or drop."
        ),
    ] = None,
    allow_leak: Annotated[list[str] | None, typer.Option(help="Kind of leak to allow: subjects or pixels.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a partition that exists in the folder.")] = False,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Split the training images of a pooled data set among sites. No image is copied.

    Each site gets a folder with a data list and a card. Images of a patient, and identical images, go to the same
    split of the same site. For a bundle's own list of cases (such as a Decathlon's dataset.json), each site gets a list
    of the same name and links to its files.

    Example: medfl partition data/own --out data/hospitals --scheme by_site --column site
    """
    from medfl import api
    from medfl.data.partition.case_list import partition_cases
    from medfl.data.partition.plan import PartitionPlan

    registry = load(plugin, no_plugin)
    options = _scheme_options({"alpha": alpha, "min_size": min_size, "k": k, "share": share}, option or [])
    number = DEFAULT_SITES if sites is None and column is None else sites
    if pool.is_file():
        _check_case_list_options(context)
        plan = PartitionPlan(scheme, number, seed, options, column=column)
        _print_case_counts(partition_cases(pool, out, plan, registry.partition(scheme)))
        return
    policies = {"test": test, "server_test": server_test, "public": public}
    details = {
        "test_fraction": test_fraction,
        "folds": folds,
        "fold": fold,
        "per_class": per_class,
        "public_images": public_images,
        "public_test_fraction": public_test_fraction,
        "duplicates": duplicates,
        "allow_leaks": tuple(allow_leak) if allow_leak else None,
    }
    prepared = api.partition(
        pool,
        out=out,
        scheme=scheme,
        force=force,
        plugins=registry,
        sites=number,
        seed=seed,
        join_splits=join_splits,
        val_fraction=val_fraction,
        stratify=tuple(stratify or ()),
        column=column,
        **policies,
        **_given_details(details, policies),
        **options,
    )
    _print_counts(prepared.lists)
    _print_notes(out)
    _print_figures(out)


def _check_case_list_options(context: typer.Context) -> None:
    """Raise if an option is given that applies to pooled data sets only.

    Raises:
        SettingsError: If there is such an option. The message names each.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}
    others = sorted(named - CASE_LIST_OPTIONS - {"plugin", "no_plugin"})
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise SettingsError(
            "incompatible_settings",
            f"Expected the folder of a pooled data set with {flags}; a list of cases is only split into sites.",
            settings=others,
        )


def _print_case_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print the number of cases of each site by section of its list."""
    for site, sections in counts.items():
        typer.echo(f"{site}: " + ", ".join(f"{count} {section}" for section, count in sections.items()))


def counts_table(lists: Mapping[str, Datalist]) -> Table:
    """Return a table with the number of images of each site, by class and by split.

    It has a row for each of the first `MAX_SITES` sites, and one for all sites together.

    Args:
        lists: Maps each site, and the server's and the public data, to its data list.
    """
    from medfl.types import NON_SITE_NAMES

    first = next(iter(lists.values()))
    classes = [str(number) for number in range(first.num_classes)]
    table = Table(title="Images of each class", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("site", no_wrap=True)
    for header in (*classes, "train", "val", "test"):
        table.add_column(header, justify="right", no_wrap=True)
    rows = {name: _count_row(datalist, classes) for name, datalist in lists.items()}
    held = {name: row for name in NON_SITE_NAMES if (row := rows.pop(name, None)) is not None}
    for name in list(rows)[:MAX_SITES]:
        table.add_row(name, *map(str, rows[name]))
    if len(rows) > MAX_SITES:
        table.add_row(f"... {len(rows) - MAX_SITES} more")
    table.add_section()
    table.add_row("all sites", *(str(sum(column)) for column in zip(*rows.values(), strict=True)))
    for name, row in held.items():
        cells = list(map(str, row))  # public data may have other classes, for which there is no column
        table.add_row(name, *(cells if lists[name].labels == first.labels else ["-"] * len(classes) + cells[-3:]))
    return table


def _count_row(datalist: Datalist, classes: list[str]) -> list[int]:
    """Return the number of images of each class, then of each split."""
    counts = datalist.counts().values()
    return [sum(split.get(label, 0) for split in counts) for label in classes] + [
        sum(split.values()) for split in counts
    ]


def _scheme_options(named: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    """Return the options of the scheme: those with their own command-line option, and those given by ``--option``.

    Raises:
        SettingsError: If a text is not NAME=VALUE, or an option is given twice.
    """
    options = {name: value for name, value in named.items() if value is not None}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise SettingsError("invalid_option", f"Expected --option NAME=VALUE, got '{text}'.", text=text)
        if name in options:
            raise SettingsError(
                "repeated_option", f"Expected the option '{name}' once, got it twice. Give one value.", name=name
            )
        options[name] = value
    return options


def _given_details(details: Mapping[str, Any], policies: Mapping[str, str]) -> dict[str, Any]:
    """Return the given details of the policies, and raise if one does not apply to the chosen policies.

    Raises:
        SettingsError: If a detail does not apply.
    """
    chosen = {name: value for name, value in details.items() if value is not None}
    for name in chosen:
        policy, needed = CHOICES_BY_DETAIL[name]
        copies = name in ("duplicates", "allow_leaks")
        elsewhere = copies and (policies["public"] != "none" or policies["test"] == "official")
        if policies[policy] not in needed and not elsewhere:
            flag = "allow-leak" if name == "allow_leaks" else name.replace("_", "-")
            owner = policy.replace("_", "-")
            raise SettingsError(
                "incompatible_settings",
                f"Expected --{owner} {' or '.join(needed)} with --{flag}, got --{owner} {policies[policy]}.",
                setting=name,
                policy=policy,
                expected=needed,
                found=policies[policy],
            )
    return chosen


def _print_counts(written: Mapping[str, Datalist]) -> None:
    """Print the table of image counts and the names of the classes."""
    console = Console(markup=False, highlight=False, emoji=False)
    table = counts_table(written)
    console.width = 10_000  # measured without the terminal's width, because a squeezed table is not readable
    console.width = max(Measurement.get(console, console.options, table).maximum, 80)
    console.print(table)
    labels = next(iter(written.values())).labels
    typer.echo("Classes: " + "; ".join(f"{label} {visible(name)}" for label, name in labels.items()))


def _print_notes(out: Path) -> None:
    """Print the exclusions, allowed leaks and warnings of a partition to stderr."""
    from medfl.data.partition.overlap import image_count_text
    from medfl.records.partition import Partition

    made = Partition.read(out / Partition.NAME)
    for entry in made.exclusions:
        typer.echo(f"left out at {entry.where}: {image_count_text(entry.count)}, {entry.reason}", err=True)
    for sentence in made.allowed_leaks:
        typer.echo(f"allowed leak: {visible(sentence)}", err=True)
    for sentence in made.warnings:
        typer.echo(f"note: {visible(sentence)}", err=True)


def _print_figures(out: Path) -> None:
    """Print the path of each figure of a partition."""
    for figure in sorted(out.glob("*.svg")):
        typer.echo(f"Figure: {figure}")
