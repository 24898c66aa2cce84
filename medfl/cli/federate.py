"""``medfl federate``: a federation between machines, around NVIDIA FLARE's own tools. See docs/deploy.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.cli.federate_keys import COMMANDS
from medfl.errors import SettingsError

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="A startup kit.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder here.", show_default=False)]


@app.callback()
def group() -> None:
    """Run a federation between machines on NVIDIA FLARE.

    Example: medfl federate provision --server localhost --sites site-01,site-02 --admin me@hospital.org
    """


@app.command()
def provision(
    server: Annotated[str, typer.Option(help="The server's host name, as sites resolve it.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    admin: Annotated[str, typer.Option(help="E-mail address of the researcher who submits runs.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits.")] = Path("kits"),
    port: Annotated[int, typer.Option(help="The one port at which the server listens.")] = 8002,
    scheme: Annotated[str, typer.Option(help="http (websockets), grpc or tcp; each under mutual TLS.")] = "http",
    name: Annotated[str, typer.Option(help="Name of the project in the certificates.")] = "medfl",
    days: Annotated[int, typer.Option(help="Days until a new root certificate ends.")] = 360,
) -> None:
    """Make a startup kit for the server, each site and the researcher, with certificates of one root.

    Give the command again with more sites to add them: the root and the kits that are there stay. Keep OUT/ca to
    yourself: whoever has it can make participants.

    Example: medfl federate provision --server fl.hospital.org --sites north,south --admin me@hospital.org --out kits
    """
    from medfl.deploy.provision import Project, provision

    named = tuple(site.strip() for site in sites.split(",") if site.strip())
    made = provision(Project(server, named, admin, name, port, scheme, days), out)
    for participant, folder in made.items():
        typer.echo(f"{participant}: {folder}")
    typer.echo(f"{len(made)} kits made" if made else "nobody is new; no kit was made")


for command in COMMANDS:  # the same with keys made at home
    app.command()(command)


@app.command()
def start(
    kit: Kit,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, for a service manager.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do not start the process again should it die.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait until it is up.")] = 60.0,
) -> None:
    """Start a server or a site in the background and wait until it is up. It writes to console.log in its kit.

    Example: medfl federate start kits/north
    """
    from medfl.deploy import kit as kits

    if foreground:
        kits.run_here(kit)
    kits.start(kit, watch=not once, patience=patience)
    typer.echo(f"'{kit}' is up")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(help="The bundle's folder, or a name of `medfl list bundles`.")],
    kit: Annotated[Path, typer.Option(help="The researcher's startup kit.")],
    dataset_dir: Annotated[
        Path | None, typer.Option(help="Data of the same task here: number of classes, channels and size come from it.")
    ] = None,
) -> None:
    """Submit a run, follow it, and fetch its results: `medfl run` with `--carrier flare`.

    Every other option names an id of the bundle's configuration, as in `medfl run`: --method fedprox --rounds 20
    --output_dir runs/one. Without data here, give what is not the bundle's own: --num_classes 2 --in_channels 1.
    Ctrl-C stops following, not the run.

    Example: medfl federate submit medmnist_classification --kit kits/me@hospital.org --dataset-dir data/mine --method
    fedprox --rounds 20 --output_dir runs/one
    """
    from medfl.cli import run

    options = run.parse_overrides(context.args) | {"carrier": "flare", "kit": str(kit)}
    run.run_bundle(bundle, ({} if dataset_dir is None else {"dataset_dir": str(dataset_dir)}) | options)


@app.command()
def resume(run: RunFolder) -> None:
    """Continue a run where it stopped, or follow it again, and fetch its results.

    Example: medfl federate resume runs/one
    """
    from medfl.deploy import session
    from medfl.runs.console import show_log

    show_log()
    session.resume(run)


@app.command()
def status(kit: Kit) -> None:
    """Say who is connected and how the jobs stand (a researcher's kit), or whether a server or site runs here.

    Example: medfl federate status kits/me@hospital.org
    """
    from medfl.deploy import kit as kits
    from medfl.deploy import session
    from medfl.utils.text import visible

    kind = kits.kind_of(kit)
    if kind != "admin":
        running = kits.processes(kit)
        typer.echo(f"{kind}: " + (f"runs, process {running[0]}" if running else "does not run here"))
        return
    for name, text in session.status(kit):
        typer.echo(visible(f"{name}: {text}"))


@app.command()
def stop(
    what: Annotated[Path, typer.Argument(metavar="KIT_OR_RUN", help="A kit, or a run folder.", show_default=False)],
) -> None:
    """Stop a server or a site, or end the job of a run. A run that was stopped can be resumed.

    Example: medfl federate stop runs/one
    """
    from medfl.deploy import kit as kits
    from medfl.deploy import session

    if (what / session.RECORD).is_file():
        typer.echo("the job was aborted" if session.stop(what) else "no job of that run is at work")
    elif (what / "startup").is_dir():
        typer.echo("stopped" if kits.stop(what) else "nothing runs from that kit")
    else:
        raise SettingsError(f"'{what}' is neither a startup kit (no folder startup) nor a submitted run")
