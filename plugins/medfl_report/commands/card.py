"""The command ``medfl card``: write a model card into every bundle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.plugin_options import Disabled, PluginFiles, load


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the sites' data.", show_default="the run's data folder"),
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with license, intended_use, and answers to items of claim and tripod_ai.",
            show_default=False,
        ),
    ] = None,
    plugin: PluginFiles = None,
    no_plugin: Disabled = None,
) -> None:
    """Write a model card and its evidence into every bundle of a run.

    The card is README.md: intended use, training and evaluation data, performance with confidence intervals,
    calibration, subgroups, privacy, limitations, CLAIM and TRIPOD+AI, with Hugging Face's front matter. Fields without
    a source are marked unknown. evidence.json has the SHA-256 of every file; `medfl verify` checks both.

    Example: medfl card runs/fedavg --answers answers.yaml
    """
    import torch

    from medfl.engine.runs.console import show_log
    from medfl.utils.files import sha256_of
    from medfl_report.cards.evidence import Evidence
    from medfl_report.cards.write import write_cards

    show_log()
    torch.set_num_threads(1)  # the tensors are small
    for card in write_cards(run, load(plugin, no_plugin), data, answers):
        typer.echo(f"wrote {card}; SHA-256 of {Evidence.NAME}: {sha256_of(card.parent / Evidence.NAME)}")
