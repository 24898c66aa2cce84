"""Command ``medfl attack``: attack a finished run, and write the results to its folder ``attacks``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from medfl.utils.imports import quick_imports
from medfl.utils.progress import progress_bar

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
"""Typer application of ``medfl attack``; its subcommands are the attacks."""

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)]
"""Argument of all attacks: the folder of the run."""
Device = Annotated[str, typer.Option(help="Device to compute on: auto, cpu or cuda:N.")]
"""Option ``--device`` of all attacks."""
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the run's data, if they have moved.", show_default="as recorded"),
]
"""Option ``--data`` of all attacks."""
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Plugin file to load. Plugin files that the run itself names are not loaded.",
    ),
]
"""Option ``--plugin`` of all attacks."""
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers of the attack.")]
"""Option ``--seed`` of the attacks that draw random numbers."""


class TargetChoice(StrEnum):
    """Values of ``--targets``: models that the membership attack is run on."""

    GLOBAL = "global"
    """The server's model."""
    SITES = "sites"
    """The model of each site."""


class ShadowChoice(StrEnum):
    """Values of ``--shadow``: images that the shadow network is trained on."""

    SHARED = "shared"
    """Images that the sites sent each other in the run."""
    VALIDATION = "validation"
    """The sites' validation images."""
    NONE = "none"
    """No shadow network: only the loss threshold attack runs."""


class InversionTargetChoice(StrEnum):
    """Values of ``--target``: information that images are reconstructed from."""

    ALL = "all"
    """Everything that the run allows."""
    SHARED = "shared"
    """Images that the sites sent each other in the run."""
    UPDATE = "update"
    """The update that a site would send for one training step."""
    MODEL = "model"
    """The global model."""


@app.callback()
def attack() -> None:
    """Attack a finished run to measure what it reveals, or measure the effect of the attackers in a simulation.

    Example: medfl attack membership runs/fedavg --images 200
    """


@app.command()
def membership(
    run: Run,
    targets: Annotated[
        TargetChoice | None,
        typer.Option(
            help="Models to attack. global: the server's model. sites: the model of each site.",
            show_default="global if the method has a global model",
        ),
    ] = None,
    shadow: Annotated[
        ShadowChoice | None,
        typer.Option(
            help="Images that the attacker's shadow network is trained on. shared: images that the sites shared. "
            "validation: the sites' validation images. none: run the loss threshold attack only.",
            show_default="shared if the run shared images, else validation if there are enough",
        ),
    ] = None,
    images: Annotated[int | None, typer.Option(min=2, help="Largest number of members.", show_default="all")] = None,
    shadow_epochs: Annotated[
        int | None, typer.Option(min=1, help="Training epochs of the shadow network.", show_default="as in the run")
    ] = None,
    round_: Annotated[
        str | None,
        typer.Option(
            "--round",
            metavar="N",
            help="Attack the global model after this round, which the run kept (setting keep_rounds), or 'kept' for "
            "all kept rounds.",
            show_default="the last round",
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    data: Data = None,
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write.", show_default="RUN/attacks")
    ] = None,
) -> None:
    """Tell training images from others by the answers of a model: by the loss, and by a shadow network.

    Example: medfl attack membership runs/fedavg --targets sites --images 200
    """
    with quick_imports():
        from medfl_attacks.attack_files import results_path
        from medfl_attacks.membership.attack import ATTACK_NAME, MembershipOptions, format_result, run_membership
        from medfl_attacks.open_run import open_run

    options = MembershipOptions(
        targets=targets.value if targets else None,
        shadow=shadow.value if shadow else None,
        images=images,
        shadow_epochs=shadow_epochs,
        round=int(round_) if round_ and round_.isdigit() else round_,
        seed=seed,
    )
    with progress_bar("shadow network", transient=True) as show:
        results = run_membership(open_run(run, device, data, plugin or ()), options, out, show)
    for row in results:
        typer.echo(format_result(row))
    path = results_path(run, ATTACK_NAME, out)
    typer.echo(f"wrote {path} and {path.with_suffix('.html').name}")


@app.command()
def inversion(
    run: Run,
    target: Annotated[
        InversionTargetChoice, typer.Option(help="What to attack. all: everything that the run allows.")
    ] = InversionTargetChoice.ALL,
    images: Annotated[int, typer.Option(min=1, help="Number of images to reconstruct.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Batch size of an attacked update.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each optimization.")] = 300,
    smoothness: Annotated[float, typer.Option(min=0, help="Weight of the total variation.")] = 1e-3,
    seed: Seed = 0,
    device: Device = "cpu",
    data: Data = None,
    plugin: Plugins = None,
) -> None:
    """Reconstruct training images from images that the run shared, from updates, and from the global model.

    Example: medfl attack inversion runs/fedavg --target update --images 1 --steps 100
    """
    with quick_imports():
        from medfl_attacks.attack_files import results_path
        from medfl_attacks.inversion.attack import InversionOptions, run_inversion
        from medfl_attacks.open_run import open_run

    options = InversionOptions(
        target=target.value, images=images, batch=batch, steps=steps, smoothness=smoothness, seed=seed
    )
    opened = open_run(run, device, data, plugin or ())
    with progress_bar("inversion", transient=True) as show:
        rows = run_inversion(opened, run, options, show)
    for row in rows:
        measured = f"MSE {row.mse:.4g}, PSNR {row.psnr:.4g} dB, SSIM {row.ssim:.4g}"
        typer.echo(f"{row.target}, {row.attack}, {row.item}: {measured}; {row.images} images")
    path = results_path(run, "inversion")
    typer.echo(f"wrote {path} and {path.with_suffix('.html').name}")


@app.command()
def poisoning(
    run: Run,
    adversaries: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Attacks to measure in a run without attackers: a JSON object in the form of the setting adversaries, "
            "or a list of such objects.",
            show_default="none: measure the accuracy only",
        ),
    ] = None,
    device: Device = "cpu",
    data: Data = None,
    plugin: Plugins = None,
) -> None:
    """Measure a simulation with adversaries: accuracy, accuracy at the worst honest site, attack success rate.

    Example: medfl attack poisoning runs/median
    """
    with quick_imports():
        from medfl_attacks.attack_files import results_path
        from medfl_attacks.open_run import open_run
        from medfl_attacks.poisoning import ATTACK_NAME, PoisoningOptions, format_result, run_poisoning

    for row in run_poisoning(open_run(run, device, data, plugin or ()), PoisoningOptions(adversaries=adversaries)):
        typer.echo(format_result(row))
    typer.echo(f"wrote {results_path(run, ATTACK_NAME)}")
