"""``medfl prep``: MedMNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.prep_options import Force, Out, check_mirror, summarise, to_stderr


def medmnist(
    source: Annotated[Path, typer.Option(help="The folder that holds <flag>.npz, or the file.")],
    flag: Annotated[str, typer.Option(help="Name of the data set: bloodmnist, organmnist3d, bloodmnist_64, ...")],
    out: Out,
    finding: Annotated[str | None, typer.Option(help="ChestMNIST: the finding to classify, absent or present.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download the file if it is not there.")] = False,
    url: Annotated[str | None, typer.Option(help="A mirror: the address below which <flag>.npz lies.")] = None,
    force: Force = False,
) -> None:
    """MedMNIST, in 2-D and 3-D and all sizes. Nothing is downloaded without --download."""
    from medfl_datasets.medmnist.releases import URL
    from medfl_datasets.medmnist.spec import prepare

    check_mirror(url, download)
    datalist = prepare(source, flag, out, finding=finding, fetch=download, url=url or URL, force=force, say=to_stderr)
    summarise(out, datalist)


COMMANDS = (medmnist,)
"""In the order of the help."""
