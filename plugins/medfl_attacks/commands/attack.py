"""``medfl attack``: what a finished run gives away, and what attackers reached. Results go to its ``attacks``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from medfl.utils.imports import quick_imports
from medfl.utils.progress import progress_bar

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda:N.")]
Data = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The run's data, where they have moved.", show_default="as recorded")
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="Load a plugin file too: none is loaded that the run itself names."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of all that is drawn.")]


class Targets(StrEnum):
    """Models under attack."""

    GLOBAL = "global"
    SITES = "sites"


class Shadow(StrEnum):
    """Images of a shadow network."""

    SHARED = "shared"
    VALIDATION = "validation"
    NONE = "none"


class Against(StrEnum):
    """What images are reconstructed from."""

    ALL = "all"
    SHARED = "shared"
    UPDATE = "update"
    MODEL = "model"


@app.callback()
def attack() -> None:
    """Attack a finished run as somebody would who wants its images, or see what attackers in a simulation reached.

    Example: medfl attack membership runs/fedavg --images 200
    """


@app.command()
def membership(
    run: Run,
    targets: Annotated[
        Targets | None,
        typer.Option(help="global: the server's model. sites: each site's own.", show_default="global if there is one"),
    ] = None,
    shadow: Annotated[
        Shadow | None,
        typer.Option(
            help="What the attacker's own network learns from: shared images, the sites' validation images, or none: "
            "the loss threshold alone.",
            show_default="shared if the run shared any, else validation if there are enough",
        ),
    ] = None,
    images: Annotated[int | None, typer.Option(min=2, help="At most so many members.", show_default="all")] = None,
    shadow_epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the attacker's own network.", show_default="as in the run")
    ] = None,
    round_: Annotated[
        str | None,
        typer.Option(
            "--round",
            metavar="N",
            help="The model after a round that the run kept (setting keep_rounds), or 'kept' for each of these.",
            show_default="the last",
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
        from medfl_attacks.membership.attack import NAME, MembershipOptions, plain_line, run_membership
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
        typer.echo(plain_line(row))
    path = results_path(run, NAME, out)
    typer.echo(f"wrote {path} and {path.with_suffix('.html').name}")


@app.command()
def inversion(
    run: Run,
    against: Annotated[Against, typer.Option(help="What to start from; all: whatever the run allows.")] = Against.ALL,
    images: Annotated[int, typer.Option(min=1, help="Images under attack.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Images in the batch whose update is attacked.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each gradient descent.")] = 300,
    smoothness: Annotated[float, typer.Option(min=0, help="Weight of the total variation.")] = 1e-3,
    seed: Seed = 0,
    device: Device = "cpu",
    data: Data = None,
    plugin: Plugins = None,
) -> None:
    """Reconstruct training images from what the run shared, from updates, and from the model.

    Example: medfl attack inversion runs/fedavg --against update --images 1 --steps 100
    """
    with quick_imports():
        from medfl_attacks.attack_files import results_path
        from medfl_attacks.inversion.attack import InversionOptions, run_inversion
        from medfl_attacks.open_run import open_run

    options = InversionOptions(
        against=against.value, images=images, batch=batch, steps=steps, smoothness=smoothness, seed=seed
    )
    opened = open_run(run, device, data, plugin or ())
    with progress_bar("inversion", transient=True) as show:
        rows = run_inversion(opened, run, options, show)
    for row in rows:
        measured = f"MSE {row.mse:.4g}, PSNR {row.psnr:.4g}, SSIM {row.ssim:.4g}"
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
            help="What to look for in a run without attackers, as the setting adversaries has it, or a list of such.",
            show_default="how good the models are",
        ),
    ] = None,
    device: Device = "cpu",
    data: Data = None,
    plugin: Plugins = None,
) -> None:
    """Measure a simulation with adversaries: accuracy, worst honest site, success rate of the attack.

    Example: medfl attack poisoning runs/median
    """
    with quick_imports():
        from medfl_attacks.attack_files import results_path
        from medfl_attacks.open_run import open_run
        from medfl_attacks.poisoning import NAME, PoisoningOptions, plain_line, run_poisoning

    for row in run_poisoning(open_run(run, device, data, plugin or ()), PoisoningOptions(adversaries=adversaries)):
        typer.echo(plain_line(row))
    typer.echo(f"wrote {results_path(run, NAME)}")
