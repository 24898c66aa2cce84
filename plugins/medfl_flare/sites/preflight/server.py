"""Checks of the server from a site: its port, whether the two kits belong to the same provisioning, and its clock.

A check opens a connection under mutual TLS with the kit's certificate. With the scheme ``http`` it sends one request
without content. Then it closes the connection. It sends nothing about the site.

Each check returns a sentence with its finding, and raises an error if a run will fail. A `Caution` is a finding after
which a run may fail later. A startup kit is the folder with certificate, settings and scripts with which a participant
connects to the federation.
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
    NoRouteError,
    ServerAddress,
    address_of,
    connect_directly,
    connect_through_proxy,
    proxy_for,
    read_head,
    uses_proxy,
)

MAX_CLOCK_DIFFERENCE = 30.0
"""Clock difference in seconds above which the check warns."""

CERTIFICATE_CLOCK_DIFFERENCE = 3600.0
"""Clock difference in seconds above which the check fails, as new certificates are then not yet valid."""

ALERT_SECONDS = 1.0
"""Seconds to wait for the alert of a server that refuses a certificate: under TLS 1.3 it follows the handshake."""


def server_checks(kit: Path) -> list[Check]:
    """Return the checks of the server for a site's startup kit: pairs of a title and a function that runs the check.

    If the server can't be reached, all checks fail.
    """
    return [
        ("port", lambda: check_port(address_of(kit))),
        ("kit's generation", lambda: check_generation(kit)),
        ("clock", lambda: check_clock(kit)),
    ]


def check_port(address: ServerAddress) -> str:
    """Check that the server can be reached in the way NVFlare connects, and report the role of a proxy.

    Raises:
        NoRouteError: If the server can't be reached.
    """
    named = proxy_for(address)
    begun = time.monotonic()
    if named is None:
        connect_directly(address).close()
        return f"{address} answers in {1000 * (time.monotonic() - begun):.0f} ms; no proxy is configured"
    variable, proxy = named
    if uses_proxy(address, variable):
        connect_through_proxy(proxy, address).close()
        milliseconds = 1000 * (time.monotonic() - begun)
        return f"{address} answers in {milliseconds:.0f} ms through the proxy of {variable}, which gRPC uses"
    try:
        connect_directly(address).close()
    except NoRouteError as error:
        raise error.reworded(f"{error}. {_proxy_advice(address, variable, proxy)}") from None
    return f"{address} answers without the proxy of {variable}, which NVFlare's {address.scheme} does not use"


def _proxy_advice(address: ServerAddress, variable: str, proxy: str) -> str:
    """Return a sentence on whether an existing proxy that NVFlare ignores could reach the server."""
    try:
        connect_through_proxy(proxy, address).close()
    except NoRouteError as error:
        return f"The proxy of {variable} would not help: {error}"
    if address.scheme == "grpc":
        return f"The proxy of {variable} could connect, but gRPC reads lower-case variables only: set https_proxy"
    return (
        f"The proxy of {variable} could connect, but NVFlare's {address.scheme} uses no proxy: have the port opened, "
        "or the federation provisioned with --scheme grpc"
    )


def _open(kit: Path) -> socket.socket:
    """Open a connection to the server in the way NVFlare connects."""
    address = address_of(kit)
    named = proxy_for(address)
    if named is not None and uses_proxy(address, named[0]):
        return connect_through_proxy(named[1], address)
    return connect_directly(address)


def _tls_connection(kit: Path, verified: bool = True) -> ssl.SSLSocket:
    """Open a connection under mutual TLS, verified as by NVFlare: by the project's root, not by the server's name."""
    startup, context = kit / "startup", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    try:
        context.load_verify_locations(startup / "rootCA.pem")
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            "unusable_certificate",
            f"the kit's certificates can't be used ({error}); ask the maker of the kit",
            path=kit,
        ) from None
    plain = _open(kit)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def check_generation(kit: Path) -> str:
    """Check that the kits of the site and the server were provisioned together.

    The server's certificate must be signed by the root certificate in the site's kit, and the server must accept the
    certificate of the site's kit.

    Raises:
        MedflError: If the two kits were made by different provisionings, or if a device in between intercepts TLS.
    """
    address, ours = address_of(kit), _load_certificate((kit / "startup" / "rootCA.pem").read_bytes())
    try:
        with _tls_connection(kit) as connection:
            theirs = _load_certificate(connection.getpeercert(binary_form=True) or b"")
            _wait_for_alert(connection)
    except ssl.SSLCertVerificationError as error:
        raise _root_mismatch_error(kit, ours, error) from None
    except ssl.SSLError as error:
        raise MedflError(
            "certificate_refused",
            f"the server does not accept this kit's certificate ({error.reason or error}): the kit was provisioned "
            "with another root, or its certificate has expired; ask the maker of the kit for a new one",
            path=kit,
        ) from None
    except OSError as error:
        raise MedflError(
            "handshake_failed",
            f"{address} aborts the TLS handshake ({error.strerror or error}): a device in between blocks TLS, or the "
            "server uses another scheme than the kit",
            address=str(address),
        ) from None
    if theirs is not None and address.identity not in _common_names(theirs.subject):
        raise MedflError(
            "wrong_certificate_name",
            f"the server is '{', '.join(_common_names(theirs.subject))}', the kit is for '{address.identity}'; ask the "
            "maker of the kit which is right",
            expected=address.identity,
            found=_common_names(theirs.subject),
        )
    return f"server and kit have the same root{'' if ours is None else f' ({_certificate_text(ours)})'}"


def _root_mismatch_error(kit: Path, ours: Any, error: ssl.SSLCertVerificationError) -> MedflError:
    """Return the error for a server certificate that is not signed by the kit's root, with the cause."""
    with _tls_connection(kit, verified=False) as connection:
        theirs = _load_certificate(connection.getpeercert(binary_form=True) or b"")
    if ours is None or theirs is None:
        return MedflError(
            "untrusted_certificate",
            f"the server's certificate is not signed by the kit's root ({error.verify_message}); ask the maker of the "
            "kit whether both come from the same provisioning",
            path=kit,
        )
    now = datetime.datetime.now(datetime.UTC)
    if not theirs.not_valid_before_utc <= now <= theirs.not_valid_after_utc:
        return MedflError(
            "expired_certificate",
            f"the server's certificate is valid from {theirs.not_valid_before_utc:%Y-%m-%d} to "
            f"{theirs.not_valid_after_utc:%Y-%m-%d}, the clock of this machine says {now:%Y-%m-%d}: correct the clock, "
            "or have new kits made",
            path=kit,
            end=f"{theirs.not_valid_after_utc:%Y-%m-%d}",
        )
    return MedflError(
        "other_generation",
        "the server is of another generation: its certificate was signed by "
        f"'{', '.join(_common_names(theirs.issuer))}' on {theirs.not_valid_before_utc:%Y-%m-%d} with a root that is "
        f"not the kit's ({_certificate_text(ours)}). Either kits were provisioned again, or a proxy intercepts TLS. "
        "Ask the maker of the kits for a current kit",
        path=kit,
    )


def _wait_for_alert(connection: ssl.SSLSocket) -> None:
    """Wait for a TLS alert; raise OSError if the server closed the connection."""
    connection.settimeout(ALERT_SECONDS)
    try:
        if connection.recv(1) == b"":
            raise OSError(0, "closed by the other side")
    except TimeoutError:
        pass


def check_clock(kit: Path) -> str:
    """Check the difference between the clocks of this machine and the server.

    The scheme ``http`` sends the server's time in its response. With the other schemes the check compares the local
    time with the validity of the certificates.

    Raises:
        MedflError: If the clocks differ by more than `CERTIFICATE_CLOCK_DIFFERENCE` seconds.
    """
    address = address_of(kit)
    if address.scheme != "http":
        return _check_certificate_time(kit, address.scheme)
    try:
        with _tls_connection(kit) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
            head = read_head(connection)
        here = time.time()
        date = next(line.partition(":")[2] for line in head.splitlines() if line.lower().startswith("date:"))
        skew = here - email.utils.parsedate_to_datetime(date.strip()).timestamp()
    except (OSError, StopIteration, ValueError):
        return _check_certificate_time(kit, address.scheme)
    skew = 0.0 if 0 <= skew <= 1 else skew  # the response contains whole seconds only
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's clock (date of its HTTP response)"
    advice = "synchronise both with a time server (NTP)"
    if abs(skew) > CERTIFICATE_CLOCK_DIFFERENCE:
        raise MedflError("clock_skew", f"{text}: new certificates are not yet valid; {advice}", seconds=skew)
    return (
        Caution(f"{text}: times in logs and records will not match; {advice}")
        if abs(skew) > MAX_CLOCK_DIFFERENCE
        else text
    )


def _check_certificate_time(kit: Path, scheme: str) -> str:
    """Check that the local time lies within the validity of the kit's certificate."""
    certificate = _load_certificate((kit / "startup" / "client.crt").read_bytes())
    unknown = f"the server's clock is unknown ('{scheme}' does not send the time)"
    if certificate is None:
        return Caution(f"{unknown}, and the kit's certificate was not checked")
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    if not start <= now <= end:
        raise MedflError(
            "clock_outside_certificate",
            f"it says {now:%Y-%m-%d %H:%M}, the kit's certificate is valid from {start:%Y-%m-%d %H:%M} to "
            f"{end:%Y-%m-%d %H:%M}; synchronise the clock with a time server (NTP)",
        )
    return f"{unknown}; the local time lies within the validity of the kit's certificate"


def _load_certificate(content: bytes) -> Any:
    """Return a certificate in PEM or DER, or None if the package ``cryptography`` is not installed."""
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
            "invalid_certificate", f"the kit contains no valid certificate ({error}); ask the maker of the kit"
        ) from None


def _common_names(name: Any) -> list[str]:
    """Return the common names in a certificate's subject or issuer."""
    from cryptography.x509.oid import NameOID

    return [str(part.value) for part in name.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _certificate_text(certificate: Any) -> str:
    """Return a certificate's date and fingerprint as text."""
    from cryptography.hazmat.primitives import hashes

    digest = certificate.fingerprint(hashes.SHA256()).hex()
    return f"made on {certificate.not_valid_before_utc:%Y-%m-%d}, fingerprint {digest[:16]}"
