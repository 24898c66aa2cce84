"""``medfl federate``: a federation between machines, around NVIDIA FLARE's own tools. See docs/deploy.md."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.errors import SettingsError
from medfl_flare.commands.federate_keys import COMMANDS

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
    from medfl_flare.provision import Project, provision

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
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, for a service manager; end with it.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Do not start the process again should it die.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait until it is up.")] = 60.0,
) -> None:
    """Start a server or a site as a service in the background and wait until it is up.

    It goes on when this command and its terminal have ended, until `medfl federate stop KIT`. It writes to console.log
    in its kit. With --foreground, all its processes end with the process that gave this command.

    Example: medfl federate start kits/north
    """
    from medfl_flare import kit as kits

    if foreground:
        kits.run_here(kit)
    kits.start(kit, restart=not once, patience=patience, as_service=True)
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
    """Submit a run, follow it, and fetch its results: `medfl run` with `--backend flare`.

    Every other option names an id of the bundle's configuration, as in `medfl run`: --method fedprox --rounds 20
    --output-dir runs/one. Without data here, give what is not the bundle's own: --num-classes 2 --in-channels 1.
    Ctrl-C stops following, not the run.

    Example: medfl federate submit medmnist_classification --kit kits/me@hospital.org --dataset-dir data/mine --method
    fedprox --rounds 20 --output-dir runs/one
    """
    from medfl.cli import run

    options = run.parse_overrides(context.args) | {"backend": "flare", "kit": str(kit)}
    run.run_bundle(bundle, ({} if dataset_dir is None else {"dataset_dir": str(dataset_dir)}) | options)


@app.command()
def describe(
    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="A folder of sites on this machine.", show_default=False)
    ] = None,
    kit: Annotated[Path | None, typer.Option(help="The researcher's startup kit: asks the sites.")] = None,
    bundle: Annotated[str | None, typer.Option(help="With --kit: whose data, as in the sites' own files.")] = None,
    sites: Annotated[str, typer.Option(help="With --kit: names with commas; by default all that are connected.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("description"),
    min_count: Annotated[
        int | None, typer.Option(min=1, help="With DATA: fewest images of which a number is told.", show_default="10")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Noise that hides a training image, with this budget.")] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon: probability that the promise fails.")] = 1e-5,
    timeout: Annotated[int, typer.Option(min=1, help="With --kit: seconds to wait for a silent site.")] = 3600,
) -> None:
    """Show what each site holds before anything is trained, and which site is odd.

    Counts, labels, sizes, spacing and quantiles of the training images, as far as each site's own file allows: counts
    of few images are withheld. Across machines each site computes at home and sends only that.

    Example: medfl federate describe --kit kits/me@hospital.org --bundle medmnist_classification --out runs/before
    """
    from medfl.settings import read_settings
    from medfl_flare.describing.request import Request, Wanted, settings_of
    from medfl_flare.describing.session import describe_sites
    from medfl_flare.statistics.folder import describe_folder
    from medfl_flare.statistics.page import PAGE, write_description
    from medfl_flare.statistics.telling import Policy
    from medfl_flare.statistics.view import view_of

    values = {"epsilon": epsilon, "delta": delta}
    wanted = None if epsilon is None else read_settings(Wanted, values, "the noise of a description")
    if data is not None and (kit, bundle, sites) == (None, None, ""):
        privacy = None if wanted is None else settings_of(wanted)
        known = describe_folder(data, Policy(min_count=10 if min_count is None else min_count), privacy)
        view = view_of(known, {}, f"the data lists and arrays in {data.name}")
        write_description(view, out)
    elif kit is not None and bundle is not None and (data, min_count) == (None, None):
        names = sorted(filter(None, (name.strip() for name in sites.split(","))))
        about = {"describe": out.absolute().name, "bundle": bundle, "sites": names, "answer_timeout": timeout}
        request = Request.from_meta(about | {"privacy": None if wanted is None else wanted.model_dump()})
        view = describe_sites(request, kit.absolute(), out)
    else:
        raise SettingsError(
            "incompatible_settings",
            "expected either DATA, a folder of sites on this machine, with --min-count if need be; or --kit and "
            "--bundle, to ask the sites across machines, each of which has a min_count of its own",
            settings=["data", "min_count", "kit", "bundle"],
        )
    typer.echo(view.title)
    for mark in view.marks:
        typer.echo(f"  {mark.site}: {mark.quantity} is {mark.here}, the median of the sites {mark.others}")
    for site, why in view.missing.items():
        typer.echo(f"  nothing is known of {site}: {why}")
    typer.echo(f"page: {out / PAGE}")


@app.command()
def resume(run: RunFolder) -> None:
    """Continue a run where it stopped, or follow it again, and fetch its results.

    Example: medfl federate resume runs/one
    """
    from medfl.engine.runs.console import show_log
    from medfl_flare import session

    show_log()
    session.resume(run)


@app.command()
def status(kit: Kit) -> None:
    """Say who is connected and how the jobs stand (a researcher's kit), or whether a server or site runs here.

    Example: medfl federate status kits/me@hospital.org
    """
    from medfl.utils.text import visible
    from medfl_flare import kit as kits
    from medfl_flare import session

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
    from medfl_flare import kit as kits
    from medfl_flare import session
    from medfl_flare.records.submission import SubmissionFile

    if (what / SubmissionFile.NAME).is_file():
        typer.echo("the job was aborted" if session.stop(what) else "no job of that run is at work")
    elif (what / "startup").is_dir():
        typer.echo("stopped" if kits.stop(what) else "nothing runs from that kit")
    else:
        raise SettingsError(
            "unknown_folder_kind",
            f"'{what}' is neither a startup kit (no folder startup) nor a submitted run",
            path=what,
        )
