"""``medfl prep``: a data set as downloaded in, a pooled data set out. One command for each data set.

To add a command, write a function into the module of its modality and name it in ``COMMANDS`` there.
"""

from __future__ import annotations

import typer

from medfl.cli import (
    prep_brain,
    prep_cells,
    prep_faces,
    prep_folder,
    prep_histology,
    prep_mammography,
    prep_medmnist,
    prep_skin,
)

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def prep() -> None:
    """Turn a data set as downloaded, or your own images, into one array of images and a data list."""


for _module in (
    prep_medmnist,
    prep_cells,
    prep_skin,
    prep_histology,
    prep_mammography,
    prep_brain,
    prep_faces,
    prep_folder,
):
    for _command in _module.COMMANDS:
        app.command(_command.__name__)(_command)
