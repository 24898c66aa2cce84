"""``medfl federate root | request | approve | package``: kits whose private keys are made where they stay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Fingerprint = "64 hexadecimal digits, with or without colons."


def root(
    server: Annotated[str, typer.Option(help="The server's host name, as sites resolve it.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    admin: Annotated[str, typer.Option(help="E-mail address of the researcher who submits runs.")],
    out: Annotated[Path, typer.Option(help="Folder for the root.")] = Path("federation"),
    port: Annotated[int, typer.Option(help="The one port at which the server listens.")] = 8002,
    scheme: Annotated[str, typer.Option(help="http (websockets), grpc or tcp; each under mutual TLS.")] = "http",
    name: Annotated[str, typer.Option(help="Name of the project in the certificates.")] = "medfl",
    days: Annotated[int, typer.Option(help="Days until a new root certificate ends.")] = 360,
) -> None:
    """Make the root of a federation whose participants make their own keys, and say who is expected.

    Give the command again with more sites to add them. Keep OUT to yourself and off the server: whoever has the root's
    key can pose as any participant.

    Example: medfl federate root --server fl.hospital.org --sites north,south --admin me@hospital.org --out federation
    """
    from medfl_flare.keys.approve import make_root
    from medfl_flare.provision import Project

    named = tuple(site.strip() for site in sites.split(",") if site.strip())
    fingerprint = make_root(Project(server, named, admin, name, port, scheme, days), out)
    typer.echo(f"root: {out}; nothing in it leaves")
    typer.echo(f"fingerprint of the root, to be told to everybody by telephone: {fingerprint}")


def request(
    name: Annotated[
        str, typer.Argument(help="The site's name, the server's host name, or the researcher's e-mail address.")
    ],
    role: Annotated[str, typer.Option(help="site, server or researcher.")] = "site",
    project: Annotated[str, typer.Option(help="Name of the project in the certificates.")] = "medfl",
    out: Annotated[Path | None, typer.Option(help="Folder for key and request; by default NAME.")] = None,
) -> None:
    """Make a private key here, and a request for a certificate. Only the file NAME.request.zip is sent.

    Example: medfl federate request north --out north
    """
    from medfl_flare.keys.request import Participant, make_request

    made = make_request(Participant(name, role, project), out or Path(name))
    typer.echo(f"private key: {made.key}; it stays here")
    typer.echo(f"to be sent to whoever approves: {made.file}")
    typer.echo(f"fingerprint of the key, to be told to them by telephone: {made.fingerprint}")


def approve(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The file NAME.request.zip that came.")],
    root: Annotated[Path, typer.Option(help="Folder of the root.")],
    fingerprint: Annotated[str, typer.Option(help=f"Of the key, as whoever asks told it: {Fingerprint}")],
    out: Annotated[
        Path | None, typer.Option(help="File of the answer; by default NAME.signed.zip beside the request.")
    ] = None,
) -> None:
    """Sign a request, if its name, role and key are those that are expected. A name gets one key only.

    Example: medfl federate approve north.request.zip --root federation --fingerprint SHA256:3F:09:...
    """
    from medfl_flare.keys.approve import approve

    done = approve(request, root, fingerprint, out)
    typer.echo(f"approved: '{done.participant.name}' as {done.participant.role}")
    typer.echo(f"to be sent back: {done.file}")
    typer.echo(f"fingerprint of the root, to be told to them by telephone: {done.root}")


def package(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER", help="The file NAME.signed.zip that came.")],
    request: Annotated[Path, typer.Option(help="Folder of the request, with the private key.")],
    fingerprint: Annotated[str, typer.Option(help=f"Of the root, as whoever approved told it: {Fingerprint}")],
    out: Annotated[Path, typer.Option(help="Folder for the kit.")],
) -> None:
    """Make a startup kit of the signed answer. The private key moves out of the request's folder into it.

    Example: medfl federate package north.signed.zip --request north --fingerprint SHA256:9B:41:... --out kit
    """
    from medfl_flare.keys.package import package

    typer.echo(f"{package(answer, request, fingerprint, out)}: ready; the private key is in it and nowhere else")


COMMANDS = (root, request, approve, package)
"""In the order in which they are given."""
