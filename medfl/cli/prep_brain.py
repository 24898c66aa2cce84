"""``medfl prep``: maps of the brain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, check_mirror, summarise, to_stderr


def abide(
    source: Annotated[Path, typer.Option(help="The folder with PCP's Outputs, nilearn's ABIDE_pcp, or all files.")],
    out: Out,
    derivatives: Annotated[
        str, typer.Option(help="The channels, separated by commas.")
    ] = "reho,degree_weighted,lfcd,vmhc",
    size: Annotated[int, typer.Option(help="Voxels along each edge of an image.")] = 48,
    sites: Annotated[
        str, typer.Option(help="fedasd for its four regions, or a column of the phenotypic file, such as SITE_ID.")
    ] = "fedasd",
    pipeline: Annotated[str, typer.Option(help="ccs, cpac, dparsf or niak.")] = "cpac",
    strategy: Annotated[str, typer.Option(help="filt_global, filt_noglobal, nofilt_...")] = "filt_noglobal",
    atlas: Annotated[Path | None, typer.Option(help="Labels in MNI152 space (NIfTI), to put on the same grid.")] = None,
    phenotypes: Annotated[Path | None, typer.Option(help="The phenotypic file, if it is not in --source.")] = None,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Stop if any map is missing or can't be read.")
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Download what is not in --source.")] = False,
    url: Annotated[str | None, typer.Option(help="A mirror: the address below which Outputs lies.")] = None,
    force: Force = False,
) -> None:
    """ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) has them.

    871 subjects passed its raters. Who lacks a map is left out and listed in quarantine.csv.
    """
    from medfl_datasets.abide.download import URL
    from medfl_datasets.abide.files import Maps
    from medfl_datasets.abide.spec import prepare

    check_mirror(url, download)
    names = tuple(name.strip() for name in derivatives.split(",") if name.strip())
    datalist = prepare(
        source,
        out,
        maps=Maps(names, pipeline, strategy),
        size=size,
        sites=sites,
        phenotypes=phenotypes,
        atlas=atlas,
        require_complete=require_complete,
        fetch=download,
        url=url or URL,
        force=force,
        say=to_stderr,
    )
    summarise(out, datalist)


COMMANDS = (abide,)
"""In the order of the help."""
