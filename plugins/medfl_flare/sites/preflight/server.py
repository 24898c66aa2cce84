"""The server as a site reaches it: its port, whether its kit is of the same making as the site's, and its clock.

A connection is opened under mutual TLS with the kit's certificate, one question without content is asked where the
scheme is ``http``, and it is closed again. Nothing of the site is sent.
"""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medfl.errors import MedflError, SettingsError
from medfl_flare.kit_check import Check
from medfl_flare.sites.preflight import Caution
from medfl_flare.sites.preflight.route import (
    Address,
    NoRouteError,
    address_of,
    proxy_for,
    read_head,
    straight,
    takes_proxy,
    through,
)

SKEW = 30.0
"""Seconds by which clocks may differ."""

FAR = 3600.0
"""Seconds beyond which certificates that were just made are refused."""

ALERT = 1.0
"""Seconds to wait for a server that refuses a certificate: under TLS 1.3 it says so only after the greeting."""


def check_server(kit: Path) -> list[Check]:
    """The checks of the server from a site's kit. All but the first fail alike where the server can't be reached."""
    return [
        ("port", lambda: port(address_of(kit))),
        ("kit's generation", lambda: generation(kit)),
        ("clock", lambda: clock(kit)),
    ]


def port(address: Address) -> str:
    """Whether the server can be reached as NVFlare reaches it, and what a proxy has to do with it.

    Raises:
        NoRouteError: If not.
    """
    named = proxy_for(address)
    begun = time.monotonic()
    if named is None:
        straight(address).close()
        return f"{address} answers in {1000 * (time.monotonic() - begun):.0f} ms; no proxy is named"
    variable, proxy = named
    if takes_proxy(address, variable):
        through(proxy, address).close()
        milliseconds = 1000 * (time.monotonic() - begun)
        return f"{address} answers in {milliseconds:.0f} ms through the proxy of {variable}, as gRPC takes it"
    try:
        straight(address).close()
    except NoRouteError as error:
        raise error.reworded(f"{error}. {_proxy_words(address, variable, proxy)}") from None
    return f"{address} answers without the proxy of {variable}, which NVFlare's {address.scheme} does not take"


def _proxy_words(address: Address, variable: str, proxy: str) -> str:
    """What a proxy could do that is there and is not taken."""
    try:
        through(proxy, address).close()
    except NoRouteError as error:
        return f"The proxy of {variable} would not help: {error}"
    if address.scheme == "grpc":
        return f"The proxy of {variable} lets it pass, but gRPC reads small letters only: set https_proxy"
    return (
        f"The proxy of {variable} lets it pass, but NVFlare's {address.scheme} takes no proxy: have the port opened, "
        "or the federation provisioned with --scheme grpc"
    )


def _open(kit: Path) -> socket.socket:
    """A connection to the server, on the way that NVFlare takes."""
    address = address_of(kit)
    named = proxy_for(address)
    if named is not None and takes_proxy(address, named[0]):
        return through(named[1], address)
    return straight(address)


def _greeted(kit: Path, verified: bool = True) -> ssl.SSLSocket:
    """A connection under mutual TLS, checked as NVFlare does: by the project's root, not by the server's name."""
    startup, context = kit / "startup", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    try:
        context.load_verify_locations(startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            "unusable_certificate",
            f"the kit's certificates can't be used ({error}); ask whoever made the kit",
            path=kit,
        ) from None
    plain = _open(kit)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def generation(kit: Path) -> str:
    """Whether the server's certificate is of the kit's own root, and the server takes the kit's.

    Raises:
        MedflError: If they are of two makings of the project, or something between opens TLS.
    """
    address, ours = address_of(kit), _certificate((kit / "startup" / "rootCA.pem").read_bytes())
    try:
        with _greeted(kit) as connection:
            theirs = _certificate(connection.getpeercert(binary_form=True) or b"")
            _wait_for_alert(connection)
    except ssl.SSLCertVerificationError as error:
        raise _unlike(kit, ours, error) from None
    except ssl.SSLError as error:
        raise MedflError(
            "certificate_refused",
            f"the server does not take this kit's certificate ({error.reason or error}): the kit is of another making "
            "of the project, or its certificate has ended; ask whoever made the kit for a new one",
            path=kit,
        ) from None
    except OSError as error:
        raise MedflError(
            "handshake_failed",
            f"{address} breaks off during the greeting ({error.strerror or error}): something between does not let TLS "
            "pass, or the server listens with another scheme than the kit's",
            address=str(address),
        ) from None
    if theirs is not None and address.identity not in _names(theirs.subject):
        raise MedflError(
            "wrong_certificate_name",
            f"the server is '{', '.join(_names(theirs.subject))}', the kit is for '{address.identity}'; ask whoever "
            "made the kit which is right",
            expected=address.identity,
            found=_names(theirs.subject),
        )
    return f"server and kit are of the same root{'' if ours is None else f' ({_words(ours)})'}"


def _unlike(kit: Path, ours: Any, error: ssl.SSLCertVerificationError) -> MedflError:
    """Return the error that says why the server's certificate is not of the kit's root."""
    with _greeted(kit, verified=False) as connection:
        theirs = _certificate(connection.getpeercert(binary_form=True) or b"")
    if ours is None or theirs is None:
        return MedflError(
            "untrusted_certificate",
            f"the server's certificate is not of the kit's root ({error.verify_message}); are they of one making?",
            path=kit,
        )
    now = datetime.datetime.now(datetime.UTC)
    if not theirs.not_valid_before_utc <= now <= theirs.not_valid_after_utc:
        return MedflError(
            "expired_certificate",
            f"the server's certificate holds from {theirs.not_valid_before_utc:%Y-%m-%d} to "
            f"{theirs.not_valid_after_utc:%Y-%m-%d}, the clock here says {now:%Y-%m-%d}: mend the clock, or have new "
            "kits made",
            path=kit,
            end=f"{theirs.not_valid_after_utc:%Y-%m-%d}",
        )
    return MedflError(
        "other_generation",
        f"the server is of another generation: its certificate was signed by '{', '.join(_names(theirs.issuer))}' on "
        f"{theirs.not_valid_before_utc:%Y-%m-%d} by a root that is not the kit's ({_words(ours)}). Kits were made "
        "anew, or a proxy opens TLS. Ask whoever provisions for the kit of the present generation",
        path=kit,
    )


def _wait_for_alert(connection: ssl.SSLSocket) -> None:
    connection.settimeout(ALERT)
    try:
        if connection.recv(1) == b"":
            raise OSError(0, "closed by the other side")
    except TimeoutError:
        pass


def clock(kit: Path) -> str:
    """How far the clocks here and at the server are apart, by the time that its HTTP answers carry.

    Only ``http`` has such answers; with the other schemes all that can be said is that the certificates hold now.

    Raises:
        MedflError: If they are hours apart.
    """
    address = address_of(kit)
    if address.scheme != "http":
        return _within(kit, address.scheme)
    try:
        with _greeted(kit) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            head = read_head(connection)
        here = time.time()
        date = next(line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("date:"))
        skew = here - email.utils.parsedate_to_datetime(date.strip()).timestamp()
    except (OSError, StopIteration, ValueError):
        return _within(kit, address.scheme)
    skew = 0.0 if 0 <= skew <= 1 else skew  # the answer knows whole seconds
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's (by the time in its HTTP answer)"
    mend = "set both by a time server (NTP)"
    if abs(skew) > FAR:
        raise MedflError(
            "clock_skew", f"{text}: certificates that were just made count as not yet valid; {mend}", seconds=skew
        )
    return Caution(f"{text}: what logs and records say does not fit together; {mend}") if abs(skew) > SKEW else text


def _within(kit: Path, scheme: str) -> str:
    certificate = _certificate((kit / "startup" / "client.crt").read_bytes())
    unknown = f"the server's is not known (over '{scheme}' it does not say its time)"
    if certificate is None:
        return Caution(f"{unknown}, and the kit's certificate was not looked into")
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not start <= now <= end:
        raise MedflError(
            "clock_outside_certificate",
            f"it says {now:%Y-%m-%d %H:%M}, the kit's certificate holds from {start:%Y-%m-%d %H:%M} to "
            f"{end:%Y-%m-%d %H:%M}; set the clock by a time server (NTP)",
        )
    return f"{unknown}; the time here lies within the kit's certificate"


def _certificate(content: bytes) -> Any:
    """A certificate in PEM or DER; None where the package that reads it is not installed."""
    try:
        from cryptography import x509
    except ImportError:
        return None
    load: Callable[[bytes], Any] = x509.load_der_x509_certificate
    if content.lstrip().startswith(b"-----"):
        load = x509.load_pem_x509_certificate
    try:
        return load(content)
    except ValueError as error:
        raise SettingsError(
            "invalid_certificate", f"the kit holds no certificate ({error}); ask whoever made the kit"
        ) from None


def _names(name: Any) -> list[str]:
    from cryptography.x509.oid import NameOID

    return [str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _words(certificate: Any) -> str:
    from cryptography.hazmat.primitives import hashes

    digest = certificate.fingerprint(hashes.SHA256()).hex()
    return f"made on {certificate.not_valid_before_utc:%Y-%m-%d}, fingerprint {digest[:16]}"
