"""Commands ``medfl federate root | request | approve | package``: kits whose owners make their own private keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Fingerprint = "64 hexadecimal digits, with or without colons."
"""Sentence on the form of a fingerprint (SHA-256), for the help of options."""


def root(
    server: Annotated[str, typer.Option(help="The server's host name, as sites resolve it.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between them.")],
    admin: Annotated[str, typer.Option(help="E-mail address of the researcher who submits runs.")],
    out: Annotated[Path, typer.Option(help="Folder for the root.")] = Path("federation"),
    port: Annotated[int, typer.Option(help="The one port at which the server listens.")] = 8002,
    scheme: Annotated[str, typer.Option(help="http (websockets), grpc or tcp; each under mutual TLS.")] = "http",
    name: Annotated[str, typer.Option(help="Name of the project in the certificates.")] = "medfl",
    days: Annotated[int, typer.Option(help="Days until a new root certificate expires.")] = 360,
) -> None:
    """Make the root of a federation whose participants make their own keys, and record the expected participants.

    Run the command again with more sites to add them. Keep OUT secret and off the server: anyone with the root's key
    can impersonate any participant.

    Example: medfl federate root --server fl.hospital.org --sites north,south --admin me@hospital.org --out federation
    """
    from medfl_flare.keys.approval import make_root
    from medfl_flare.provision import Project

    named = tuple(site.strip() for site in sites.split(",") if site.strip())
    fingerprint = make_root(Project(server, named, admin, name, port, scheme, days), out)
    typer.echo(f"root: {out}; keep all its files secret")
    typer.echo(f"fingerprint of the root, tell it to every participant by telephone: {fingerprint}")


def request(
    name: Annotated[
        str, typer.Argument(help="The site's name, the server's host name, or the researcher's e-mail address.")
    ],
    role: Annotated[str, typer.Option(help="site, server or researcher.")] = "site",
    project: Annotated[str, typer.Option(help="Name of the project in the certificates.")] = "medfl",
    out: Annotated[Path | None, typer.Option(help="Folder for key and request; by default NAME.")] = None,
) -> None:
    """Make a private key on this machine, and a request for a certificate. Send only the file NAME.request.zip.

    Example: medfl federate request north --out north
    """
    from medfl_flare.keys.certificate_request import KeyOwner, make_request

    made = make_request(KeyOwner(name, role, project), out or Path(name))
    typer.echo(f"private key: {made.key}; keep it on this machine")
    typer.echo(f"file to send to the coordinator: {made.file}")
    typer.echo(f"fingerprint of the key, tell it to the coordinator by telephone: {made.fingerprint}")


def approve(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="The received file NAME.request.zip.")],
    root: Annotated[Path, typer.Option(help="Folder of the root.")],
    fingerprint: Annotated[str, typer.Option(help=f"Fingerprint of the key, from the participant: {Fingerprint}")],
    out: Annotated[
        Path | None, typer.Option(help="File of the signed answer; by default NAME.signed.zip beside the request.")
    ] = None,
) -> None:
    """Sign a request if its name, role and key are the expected ones. A name gets only one key.

    Example: medfl federate approve north.request.zip --root federation --fingerprint SHA256:3F:09:...
    """
    from medfl_flare.keys.approval import approve

    done = approve(request, root, fingerprint, out)
    typer.echo(f"approved: '{done.participant.name}' as {done.participant.role}")
    typer.echo(f"file to send back: {done.file}")
    typer.echo(f"fingerprint of the root, tell it to the participant by telephone: {done.root}")


def package(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER", help="The received file NAME.signed.zip.")],
    request: Annotated[Path, typer.Option(help="Folder of the request, with the private key.")],
    fingerprint: Annotated[str, typer.Option(help=f"Fingerprint of the root, from the coordinator: {Fingerprint}")],
    out: Annotated[Path, typer.Option(help="Folder for the kit.")],
) -> None:
    """Make a startup kit from the signed answer. The private key moves from the request's folder into the kit.

    Example: medfl federate package north.signed.zip --request north --fingerprint SHA256:9B:41:... --out kit
    """
    from medfl_flare.keys.kit_assembly import package

    typer.echo(f"{package(answer, request, fingerprint, out)}: ready; only this folder contains the private key")


COMMANDS = (root, request, approve, package)
"""Commands in the order in which the participants use them."""
