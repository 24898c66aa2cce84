"""``medfl prep``: white blood cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, Workers, summarise, to_stderr

Size = Annotated[int, typer.Option(min=1, help="Height and width of the images in the array.")]
TestShare = Annotated[
    float, typer.Option(help="Share of each class of a release in the test set; 0 leaves it to medfl partition.")
]
Seed = Annotated[int, typer.Option(help="Decides which images these are.")]


def acevedo(
    source: Annotated[Path, typer.Option(help="The folder PBC_dataset_normal_DIB, or the one that holds it.")],
    out: Out,
    size: Size = 224,
    preset: Annotated[
        str, typer.Option(help="medfl: no copies of files; paper: FedSDC's ten sub-classes with all files.")
    ] = "medfl",
    labels: Annotated[
        str | None, typer.Option(help="class (eight) or subclass (ten); by default class, subclass for paper.")
    ] = None,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Acevedo-20: normal white blood cells. Nothing is downloaded.

    Of byte-identical files one is kept, or none if they are in two classes. What can't be read is left out and listed
    in quarantine.csv. If interrupted, the same command goes on where it stopped.
    """
    from medfl_datasets.bloodcells.acevedo import prepare
    from medfl_datasets.bloodcells.pool import How

    how = How(size, test_share, seed, workers=workers, force=force)
    summarise(out, prepare(source, out, how, preset=preset, labels=labels, say=to_stderr))


def matek(
    source: Annotated[Path, typer.Option(help="The folder AML-Cytomorphology_LMU, or the one that holds it.")],
    out: Out,
    size: Size = 224,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Matek-19: white blood cells with leukaemia and without, in 15 classes. Nothing is downloaded.

    Labels are those of annotations.dat; what that and the folders do not agree on is left out and listed in
    quarantine.csv.
    """
    from medfl_datasets.bloodcells.matek import prepare
    from medfl_datasets.bloodcells.pool import How

    how = How(size, test_share, seed, workers=workers, force=force)
    summarise(out, prepare(source, out, how, say=to_stderr))


def bodzas(
    source: Annotated[Path, typer.Option(help="The folder that holds one for each class, or the one above.")],
    out: Out,
    size: Size = 224,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """Bodzas-23: normal and pathological white blood cells in nine classes. Nothing is downloaded."""
    from medfl_datasets.bloodcells.bodzas import prepare
    from medfl_datasets.bloodcells.pool import How

    how = How(size, test_share, seed, workers=workers, force=force)
    summarise(out, prepare(source, out, how, say=to_stderr))


def bloodcells(
    out: Out,
    acevedo: Annotated[Path | None, typer.Option(help="The folder of Acevedo-20.")] = None,
    matek: Annotated[Path | None, typer.Option(help="The folder of Matek-19.")] = None,
    bodzas: Annotated[Path | None, typer.Option(help="The folder of Bodzas-23.")] = None,
    label_map: Annotated[
        Path | None, typer.Option(help="YAML file with the class of each kind of cell; by default medfl's own.")
    ] = None,
    size: Size = 224,
    test_share: TestShare = 0.2,
    seed: Seed = 0,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """White blood cells of up to three releases, with one set of classes. Nothing is downloaded.

    The release of each image is kept as 'source': medfl partition --scheme by_site --column source makes a site of
    each.
    """
    from medfl_datasets.bloodcells.pool import How
    from medfl_datasets.bloodcells.spec import prepare

    given = {"acevedo": acevedo, "matek": matek, "bodzas": bodzas}
    folders = {name: folder for name, folder in given.items() if folder is not None}
    how = How(size, test_share, seed, workers=workers, force=force)
    summarise(out, prepare(folders, out, how, label_map=label_map, say=to_stderr))


COMMANDS = (acevedo, matek, bodzas, bloodcells)
"""In the order of the help."""
