"""``medfl prep``: photographs of faces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, Workers, height_and_width, summarise, to_stderr


def celeba(
    source: Annotated[Path, typer.Option(help="The folder of img_align_celeba and list_attr_celeba.")],
    out: Out,
    attribute: Annotated[str, typer.Option(help="The label, for example Smiling or Eyeglasses.")] = "Smiling",
    size: Annotated[str, typer.Option(help="Of the images in the array: 64, or 218x178 (HxW).")] = "64",
    crop: Annotated[bool, typer.Option("--crop", help="Cut the largest square out of the middle first.")] = False,
    split: Annotated[
        str, typer.Option(help="official; none: all in training; auto: official if list_eval_partition is there.")
    ] = "auto",
    min_images: Annotated[
        int, typer.Option(min=1, help="Leave out persons with fewer images (needs identity_CelebA.txt).")
    ] = 1,
    workers: Workers = None,
    force: Force = False,
) -> None:
    """CelebA: faces with any of 40 attributes as label. Nothing is downloaded.

    With identity_CelebA.txt images of a person stay together, and medfl partition --scheme by_site --column identity
    makes a site of each. What is missing or can't be read is left out and listed in quarantine.csv.
    """
    from medfl_datasets.celeba.spec import prepare

    datalist = prepare(
        source,
        out,
        attribute=attribute,
        size=height_and_width(size),
        crop=crop,
        split=split,
        min_images=min_images,
        workers=workers,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


COMMANDS = (celeba,)
"""In the order of the help."""
