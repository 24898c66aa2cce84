"""Tests of encryption, certificates, tokens and passwords against a real Orthanc."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from orthanc import Orthanc, running_orthanc
from pacs_images import ROOT, SECRETS, Corpus
from tls_files import Identity, write_identity
from tls_front import tls_front

for package in ("dicomweb_client", "dicomanonymizer", "pynetdicom"):
    pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")

from medfl.errors import DataError  # noqa: E402
from medfl_pacs.dicomweb import Credentials, DicomwebSource  # noqa: E402
from medfl_pacs.dimse import DimseAddress, DimseSource, DimseTls  # noqa: E402
from medfl_pacs.query import Query  # noqa: E402

pytestmark = pytest.mark.slow

KEYS = "StudyDate=19000101-20301231"
"""Search keys that select all studies."""

TOKEN = "header.right-token.signature"

Fetch = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Identities:
    """Certificates of the hospital's authority, and of a stranger's authority."""

    authority: Identity
    server: Identity
    client: Identity
    stranger: Identity
    strange_client: Identity

    @property
    def client_options(self) -> tuple[object, ...]:
        return ("--certificate", self.client.certificate, "--certificate-key", self.client.key)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = write_identity(folder, "authority"), write_identity(folder, "stranger")
    server, client = (write_identity(folder, name, authority) for name in ("server", "client"))
    return Identities(authority, server, client, stranger, write_identity(folder, "strange_client", stranger))


@dataclass(frozen=True)
class Pacs:
    """An Orthanc with TLS for DIMSE, and with a reverse proxy that adds TLS to HTTP."""

    orthanc: Orthanc
    https_port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.https_port}/dicom-web"


@contextlib.contextmanager
def running_pacs(
    folder: Path, identities: Identities, *, demands_client: bool, token: str | None = None
) -> Iterator[Pacs]:
    """Start a PACS with four images.

    Orthanc's own HTTPS can't be used: that of Debian 12 crashes at the first request, because its civetweb expects a
    function that OpenSSL 3 no longer has.
    """
    dicom_tls = {
        "DicomTlsEnabled": True,
        "DicomTlsCertificate": str(identities.server.certificate),
        "DicomTlsPrivateKey": str(identities.server.key),
        "DicomTlsTrustedCertificates": str(identities.authority.certificate),
        "DicomTlsRemoteCertificateRequired": demands_client,
    }
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(identities.authority.certificate))
    context.load_cert_chain(identities.server.certificate, identities.server.key)
    context.verify_mode = ssl.CERT_REQUIRED if demands_client else ssl.CERT_NONE
    with running_orthanc(folder, dicom_tls, token) as orthanc, tls_front(orthanc.http_port, context) as port:
        orthanc.upload(Corpus(patients=2, series=1, instances=2).content().values())
        yield Pacs(orthanc, port)


@pytest.fixture(scope="module")
def open_pacs(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pacs]:
    """A PACS that accepts clients without a certificate, with a user and a password for HTTPS."""
    with running_pacs(tmp_path_factory.mktemp("open"), identities, demands_client=False) as pacs:
        yield pacs


@pytest.fixture(scope="module")
def strict_pacs(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pacs]:
    """A PACS that demands a client certificate, and a bearer token for HTTPS."""
    with running_pacs(tmp_path_factory.mktemp("strict"), identities, demands_client=True, token=TOKEN) as pacs:
        yield pacs


@pytest.fixture
def fetch(medfl, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Fetch:
    """Return a function that retrieves into ``store``, and checks that no secret is printed, logged or stored."""
    caplog.set_level(logging.DEBUG)

    def run(pacs: Pacs, protocol: str, *options: object) -> tuple[int, str, str]:
        server = pacs.orthanc
        if protocol == "dicomweb":
            command: tuple[object, ...] = ("dicomweb", pacs.url, "--query", KEYS)
        else:
            command = ("dimse", "127.0.0.1", "--port", server.dicom_port, "--aet", "ORTHANC", "--find", KEYS)
            command += ("--method", protocol, "--own-port", server.peer_port)
        target = ("--out", tmp_path / "store", "--key", tmp_path / "key")
        status, out, err = medfl("pacs", *command, *target, *options)
        printed = (out + err + "\n".join(record.getMessage() for record in caplog.records)).encode()
        stored = [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()]
        for text in (*SECRETS, ROOT, TOKEN, "wrong-token", server.password, "wrong password"):
            for content in (printed, *stored):
                assert text.lower().encode() not in content.lower(), text
        assert b"Traceback" not in printed
        return status, out, err

    return run


@pytest.mark.parametrize("method", ["get", "move"])
def test_dimse_with_tls(fetch: Fetch, open_pacs: Pacs, identities: Identities, method: str):
    trust = ("--tls", "--ca", identities.authority.certificate)
    client = identities.client_options if method == "move" else ()  # medfl is a server, too
    status, out, err = fetch(open_pacs, method, *trust, *client)
    assert (status, "4 images retrieved" in out) == (0, True), err


def search_error(source: DimseSource | DicomwebSource) -> DataError:
    """The error of a search; the source is closed."""
    try:
        with pytest.raises(DataError) as caught:
            source.find_studies()
    finally:
        source.close()
    return caught.value


def dimse_error(pacs: Pacs, tls: DimseTls | None) -> DataError:
    """The error of a search with DIMSE."""
    address = DimseAddress("127.0.0.1", pacs.orthanc.dicom_port, "ORTHANC")
    return search_error(DimseSource(address, Query({"StudyDate": ""}, {}), tls))


def test_dimse_refuses_a_server_of_another_authority(fetch: Fetch, open_pacs: Pacs, identities: Identities):
    for ca in (identities.stranger.certificate, None):
        error = dimse_error(open_pacs, DimseTls(ca))
        assert (error.code, error.fields["cause"]) == ("pacs_tls", "self-signed certificate in certificate chain")
    status, _, err = fetch(open_pacs, "get", "--tls", "--ca", identities.stranger.certificate)
    assert (status, "--ca" in err) == (2, True), err


def test_dimse_without_tls_at_a_server_with_tls(open_pacs: Pacs):
    assert dimse_error(open_pacs, None).code == "pacs_unreachable"


def test_dimse_server_that_demands_a_client_certificate(strict_pacs: Pacs, identities: Identities):
    authority, strange = identities.authority.certificate, identities.strange_client
    error = dimse_error(strict_pacs, DimseTls(authority))
    assert (error.code, error.fields["cause"]) == ("pacs_tls", "TLSV13_ALERT_CERTIFICATE_REQUIRED")
    error = dimse_error(strict_pacs, DimseTls(authority, strange.certificate, strange.key))
    assert (error.code, error.fields["cause"]) == ("pacs_tls", "TLSV1_ALERT_UNKNOWN_CA")


@pytest.mark.parametrize("method", ["get", "move"])
def test_dimse_with_a_client_certificate(fetch: Fetch, strict_pacs: Pacs, identities: Identities, method: str):
    status, out, err = fetch(
        strict_pacs, method, "--tls", "--ca", identities.authority.certificate, *identities.client_options
    )
    assert (status, "4 images retrieved" in out) == (0, True), err


def dicomweb_error(pacs: Pacs, credentials: Credentials) -> DataError:
    """The error of a search with DICOMweb."""
    return search_error(DicomwebSource(pacs.url, Query({"StudyDate": "19000101-"}, {}), credentials))


def secret_file(folder: Path, content: str) -> Path:
    path = folder / "secret"
    path.write_text(f"{content}\n")
    return path


def test_dicomweb_with_a_user_of_orthanc(fetch: Fetch, open_pacs: Pacs, identities: Identities, tmp_path: Path):
    trust = ("--ca", identities.authority.certificate)
    user = ("--user", open_pacs.orthanc.user, "--password-file", tmp_path / "secret")
    secret_file(tmp_path, "wrong password")
    for options in ((), user):
        status, _, err = fetch(open_pacs, "dicomweb", *trust, *options)
        assert (status, "status 401" in err) == (2, True), err
    secret_file(tmp_path, open_pacs.orthanc.password)
    status, out, err = fetch(open_pacs, "dicomweb", *trust, *user)
    assert (status, "4 images retrieved" in out) == (0, True), err


def test_dicomweb_refuses_a_server_of_another_authority(open_pacs: Pacs, identities: Identities, tmp_path: Path):
    user, password = open_pacs.orthanc.user, secret_file(tmp_path, open_pacs.orthanc.password)
    for ca in (identities.stranger.certificate, None):
        assert dicomweb_error(open_pacs, Credentials(user=user, password_file=password, ca=ca)).code == "pacs_tls"


def test_dicomweb_with_a_token_and_a_client_certificate(
    fetch: Fetch, strict_pacs: Pacs, identities: Identities, tmp_path: Path
):
    options = ("--ca", identities.authority.certificate, "--token-file", secret_file(tmp_path, "wrong-token"))
    status, _, err = fetch(strict_pacs, "dicomweb", *options)
    assert (status, "--certificate" in err) == (2, True), err
    status, _, err = fetch(strict_pacs, "dicomweb", *options, *identities.client_options)
    assert (status, "status 403" in err, "token" in err) == (2, True, True), err
    secret_file(tmp_path, TOKEN)
    status, out, err = fetch(strict_pacs, "dicomweb", *options, *identities.client_options)
    assert (status, "4 images retrieved" in out) == (0, True), err
