"""Commands ``medfl federate``: a distributed federation with NVIDIA FLARE. See docs/deploy.md.

A startup kit is the folder with certificate, settings and scripts with which a participant (the server, a site or a
researcher) connects to the federation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medfl.errors import SettingsError
from medfl_flare.commands.federate_evaluate import evaluate
from medfl_flare.commands.federate_keys import COMMANDS

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
"""Typer application with all subcommands of ``medfl federate``."""

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="A startup kit.", show_default=False)]
"""Type of the argument KIT of several commands: the path of a startup kit."""
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The local run folder.", show_default=False)]
"""Type of the argument RUN: the path of the run folder on the researcher's machine."""


@app.callback()
def group() -> None:
    """Run a federation between machines with NVIDIA FLARE.

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
    days: Annotated[int, typer.Option(help="Days until a new root certificate expires.")] = 360,
) -> None:
    """Make a startup kit for the server, each site and the researcher, with certificates of one root.

    Run the command again with more sites to add them: the root and existing kits are not changed. Keep OUT/ca secret:
    anyone who has it can make participants.

    Example: medfl federate provision --server fl.hospital.org --sites north,south --admin me@hospital.org --out kits
    """
    from medfl_flare.provision import Project, provision

    named = tuple(site.strip() for site in sites.split(",") if site.strip())
    made = provision(Project(server, named, admin, name, port, scheme, days), out)
    for participant, folder in made.items():
        typer.echo(f"{participant}: {folder}")
    typer.echo(f"{len(made)} kits made" if made else "no participant is new; no kit was made")


for command in COMMANDS:  # kits whose private keys never leave their owner's machine
    app.command()(command)


@app.command()
def start(
    kit: Kit,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground, for a service manager.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Do not restart the process if it dies.")] = False,
    patience: Annotated[float, typer.Option(help="Seconds to wait until the process is ready.")] = 60.0,
) -> None:
    """Start a server or a site as a service in the background and wait until it is ready.

    The service continues after this command and its terminal have ended, until `medfl federate stop KIT`. Its output
    goes to console.log in its kit. With --foreground, all its processes end with the process that started this command.

    Example: medfl federate start kits/north
    """
    from medfl_flare import kit as kits

    if foreground:
        kits.become_kit_process(kit)
    kits.start(kit, restart=not once, patience=patience, as_service=True)
    typer.echo(f"'{kit}' is up")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(
    context: typer.Context,
    bundle: Annotated[str, typer.Argument(help="The bundle's folder, or a name of `medfl list bundles`.")],
    kit: Annotated[Path, typer.Option(help="The researcher's startup kit.")],
    dataset_dir: Annotated[
        Path | None,
        typer.Option(help="Local data of the same task, to read number of classes, channels and size from."),
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
def statistics(
    data: Annotated[
        Path | None, typer.Argument(metavar="[DATA]", help="A folder of sites on this machine.", show_default=False)
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(help="The researcher's startup kit: request statistics from the sites.")
    ] = None,
    bundle: Annotated[
        str | None, typer.Option(help="With --kit: bundle in the sites' own files; identifies the data.")
    ] = None,
    sites: Annotated[
        str, typer.Option(help="With --kit: names of sites, with commas; by default all connected sites.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("statistics"),
    min_count: Annotated[
        int | None,
        typer.Option(min=1, help="With DATA: minimum number of images behind a shown number.", show_default="10"),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Add noise that hides a training image, with this budget.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon: probability that the guarantee fails.")] = 1e-5,
    timeout: Annotated[int, typer.Option(min=1, help="With --kit: seconds to wait for a silent site.")] = 3600,
) -> None:
    """Show statistics of each site's training images before training, and which sites are outliers.

    Counts, labels, sizes, spacing and quantiles of the training images, as each site's own file allows; counts of few
    images are suppressed. Across machines each site computes its statistics itself and sends nothing else.

    Example: medfl federate statistics --kit kits/me@hospital.org --bundle medmnist_classification --out runs/before
    """
    from medfl.settings import read_settings
    from medfl_flare.federated_statistics.researcher_session import fetch_statistics
    from medfl_flare.federated_statistics.statistics_request import NoiseRequest, StatisticsRequest, privacy_settings
    from medfl_flare.statistics.disclosure import DisclosurePolicy
    from medfl_flare.statistics.local_folder import compute_folder_statistics
    from medfl_flare.statistics.report_content import make_report
    from medfl_flare.statistics.statistics_page import HTML_FILE_NAME, write_statistics_report

    values = {"epsilon": epsilon, "delta": delta}
    noise = None if epsilon is None else read_settings(NoiseRequest, values, "the noise of the statistics")
    if data is not None and (kit, bundle, sites) == (None, None, ""):
        privacy = None if noise is None else privacy_settings(noise)
        policy = DisclosurePolicy(min_count=10 if min_count is None else min_count)
        by_site = compute_folder_statistics(data, policy, privacy)
        report = make_report(by_site, {}, f"the data lists and arrays in {data.name}")
        write_statistics_report(report, out)
    elif kit is not None and bundle is not None and (data, min_count) == (None, None):
        names = sorted(filter(None, (name.strip() for name in sites.split(","))))
        meta = {"statistics": out.absolute().name, "bundle": bundle, "sites": names, "reply_timeout": timeout}
        request = StatisticsRequest.from_meta(meta | {"privacy": None if noise is None else noise.model_dump()})
        report = fetch_statistics(request, kit.absolute(), out)
    else:
        raise SettingsError(
            "incompatible_settings",
            "expected either DATA, a folder of sites on this machine, optionally with --min-count; or --kit and "
            "--bundle, to request statistics from sites on other machines, whose own files set min_count",
            settings=["data", "min_count", "kit", "bundle"],
        )
    typer.echo(report.title)
    for outlier in report.outliers:
        typer.echo(
            f"  {outlier.site}: {outlier.quantity} is {outlier.value_text}, the median over the others is "
            f"{outlier.median_text}"
        )
    for site, why in report.missing.items():
        typer.echo(f"  no statistics of {site}: {why}")
    typer.echo(f"page: {out / HTML_FILE_NAME}")


app.command()(evaluate)


@app.command()
def resume(run: RunFolder) -> None:
    """Continue a run from its last saved step, or follow it again, and fetch its results.

    Example: medfl federate resume runs/one
    """
    from medfl.engine.runs.console import show_log
    from medfl_flare import session

    show_log()
    session.resume(run)


@app.command()
def status(kit: Kit) -> None:
    """Show the sites and jobs (researcher's kit), or whether the server or site is running on this machine.

    Example: medfl federate status kits/me@hospital.org
    """
    from medfl.utils.text import visible
    from medfl_flare import kit as kits
    from medfl_flare import session

    kind = kits.read_kit_kind(kit)
    if kind != "admin":
        running = kits.processes(kit)
        typer.echo(f"{kind}: " + (f"running, process {running[0]}" if running else "not running on this machine"))
        return
    for name, text in session.status(kit):
        typer.echo(visible(f"{name}: {text}"))


@app.command()
def stop(
    what: Annotated[Path, typer.Argument(metavar="KIT_OR_RUN", help="A kit, or a run folder.", show_default=False)],
) -> None:
    """Stop a server or a site, or abort the job of a run. A stopped run can be resumed.

    Example: medfl federate stop runs/one
    """
    from medfl_flare import kit as kits
    from medfl_flare import session
    from medfl_flare.records.submission import SubmissionFile

    if (what / SubmissionFile.NAME).is_file():
        typer.echo("the job was aborted" if session.stop(what) else "no job of that run is running")
    elif (what / "startup").is_dir():
        typer.echo("stopped" if kits.stop(what) else "no process of that kit is running")
    else:
        raise SettingsError(
            "unknown_folder_kind",
            f"'{what}' is neither a startup kit (no folder startup) nor a submitted run",
            path=what,
        )
