"""A PACS with DICOMweb: search with QIDO-RS, retrieval with WADO-RS.

The address, the token and the password never appear in messages together with UIDs; the libraries' own messages are not
repeated, because they contain UIDs of patients' studies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from medfl.errors import DataError, SettingsError, StoreError
from medfl_pacs.pacs_source import (
    MAX_RESULTS,
    InstanceReference,
    SeriesReference,
    checked_uid,
    malformed_answer,
    too_many_results,
)
from medfl_pacs.profile_actions import missing_package
from medfl_pacs.query import Query

if TYPE_CHECKING:
    from pydicom import Dataset

PAGE = 200
"""Number of results of one search request."""

TIMEOUT_SECONDS = 60.0
"""Maximum seconds to wait for a connection, and between two parts of an answer."""

MAX_ANSWER_BYTES = 4 << 30
"""Maximum size of an answer in bytes, after decompression. An answer is kept in memory."""

_STUDY, _SERIES, _INSTANCE, _CLASS = "0020000D", "0020000E", "00080018", "00080016"


@dataclass(frozen=True)
class Credentials:
    """Means to authenticate at a server.

    Attributes:
        token_file: File with a bearer token.
        user: Name of a user, for basic authentication.
        password_file: File with the user's password.
        certificate: Client certificate (PEM), which may contain its key.
        certificate_key: Key of the client certificate (PEM).
        ca: Certificates of authorities (PEM) that may have signed the server's certificate; None uses the well-known
            ones.
    """

    token_file: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None
    ca: Path | None = None


class DicomwebSource:
    """A PACS with DICOMweb.

    Args:
        url: Address of the service, for example ``https://pacs/dicom-web``.
        query: Search keys.
        credentials: Means to authenticate.

    Raises:
        SettingsError: If the address or the credentials are invalid, or a package is missing.
    """

    def __init__(self, url: str, query: Query, credentials: Credentials) -> None:
        try:
            from dicomweb_client.web import DICOMwebClient
        except ImportError as error:
            raise missing_package("dicomweb-client>=0.60") from error
        self.query = query
        self.host = _checked_host(url)
        self._session = _new_session(credentials)
        self._client = DICOMwebClient(
            url.rstrip("/"), session=self._session, permissive_uid=True, timeout=TIMEOUT_SECONDS
        )
        self._client.set_http_retry_params(retry=False)

    def find_studies(self) -> list[str]:
        """Return the UIDs of the selected studies."""
        filters = dict(self.query.study)
        entries = self._search(lambda **page: self._client.search_for_studies(search_filters=filters, **page), _STUDY)
        return [checked_uid(_value(entry, _STUDY)) for entry in entries]

    def find_series(self, study_uid: str) -> list[SeriesReference]:
        """Return the selected series of a study."""
        filters = dict(self.query.series)
        entries = self._search(
            lambda **page: self._client.search_for_series(study_uid, search_filters=filters, **page), _SERIES
        )
        return [SeriesReference(study_uid, checked_uid(_value(entry, _SERIES))) for entry in entries]

    def find_instances(self, series: SeriesReference) -> list[InstanceReference]:
        """Return all instances of a series."""
        entries = self._search(
            lambda **page: self._client.search_for_instances(series.study_uid, series.series_uid, **page), _INSTANCE
        )
        return [
            InstanceReference(series, checked_uid(_value(entry, _INSTANCE)), str(_value(entry, _CLASS) or ""))
            for entry in entries
        ]

    def retrieve(self, instance: InstanceReference) -> Dataset:
        """Return an instance with its file meta information."""
        with self._translated_errors(is_retrieval=True):
            return self._client.retrieve_instance(
                instance.series.study_uid, instance.series.series_uid, instance.instance_uid
            )

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def _search(self, search: Callable[..., Any], key: str) -> list[Mapping[str, Any]]:
        """Return all results of a search, page by page and each once.

        Args:
            search: Function that searches, with the arguments ``limit`` and ``offset``.
            key: Tag of the UID that identifies a result.
        """
        entries: dict[object, Mapping[str, Any]] = {}
        offset = 0
        while True:
            with self._translated_errors():
                page = search(limit=PAGE, offset=offset)
            if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
                raise malformed_answer("expected a list of results")
            new = {uid: entry for entry in page if (uid := _value(entry, key)) not in entries}
            entries |= new
            offset += len(page)
            if len(entries) > MAX_RESULTS:
                raise too_many_results()
            if not new:  # also if the server ignores the offset and repeats its first page
                return list(entries.values())

    @contextlib.contextmanager
    def _translated_errors(self, is_retrieval: bool = False) -> Iterator[None]:
        """Convert the exceptions of the block into a DataError without UIDs, header values or credentials."""
        import requests

        try:
            yield
        except DataError:  # of `_new_session`
            raise
        except requests.exceptions.SSLError:
            raise DataError(
                "pacs_tls",
                f"No secure connection to {self.host}: its certificate is not trusted, or the client certificate is "
                "missing or refused. Name the hospital's certificate authority with --ca, and the client certificate "
                "with --certificate.",
                host=self.host,
            ) from None
        except requests.exceptions.Timeout:
            raise DataError(
                "pacs_timeout",
                f"{self.host} did not answer within {TIMEOUT_SECONDS:.0f} s. Repeat the command to continue.",
                host=self.host,
            ) from None
        except requests.exceptions.HTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            raise self._status_error(status) from None
        except requests.exceptions.JSONDecodeError:
            raise malformed_answer("a search result is not JSON") from None
        except (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError):
            raise DataError(
                "pacs_unreachable",
                f"No connection to {self.host}, or it was cut. Check the address and that the server runs; repeat the "
                "command to continue.",
                host=self.host,
            ) from None
        except Exception as error:  # pydicom and the client raise many kinds, with values of the answer
            if is_retrieval:
                raise DataError(
                    "not_dicom",
                    f"The answer is no DICOM instance ({type(error).__name__}).",
                    cause=type(error).__name__,
                ) from None
            raise malformed_answer(f"a search result can't be read ({type(error).__name__})") from None

    def _status_error(self, status: int) -> DataError:
        """Return the error for an HTTP status."""
        if status in (401, 403):
            return DataError(
                "pacs_unauthorized",
                f"{self.host} refused the credentials (status {status}). Check the token, the password or the client "
                "certificate, and the user's rights.",
                host=self.host,
                status=status,
            )
        if status in (408, 429) or status >= 500:
            return DataError(
                "pacs_server_error",
                f"{self.host} could not answer a request (status {status}). Repeat the command to continue, if needed "
                "with a smaller --per-second.",
                host=self.host,
                status=status,
            )
        return DataError(
            "pacs_refused_request",
            f"{self.host} refused a request (status {status}). Check the address, such as its ending /dicom-web, and "
            "the search keys.",
            host=self.host,
            status=status,
        )


def _checked_host(url: str) -> str:
    """Return host and port of an address.

    Raises:
        SettingsError: If the address is invalid or contains a password.
    """
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
    except ValueError:
        parts, host = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
        raise SettingsError(
            "invalid_url",
            "Expected an address such as https://pacs.hospital/dicom-web, without a query and without a user name or "
            "password; give these with --user and --password-file.",
        )
    return host


def _new_session(credentials: Credentials) -> Any:
    """Return an HTTP session that authenticates."""
    import requests

    class Session(requests.Session):
        """Session that sends the wildcards of a query as they are. Orthanc 1.10 takes ``%2A`` literally."""

        def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
            prepared = super().prepare_request(request)
            prepared.url = str(prepared.url).replace("%2A", "*").replace("%3F", "?")
            return prepared

        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            """Send a request. Refuse redirects, which may lead to a server without encryption, and endless answers.

            Raises:
                DataError: If the server redirects the request, or the answer is larger than `MAX_ANSWER_BYTES`.
            """
            response = super().send(request, **{**options, "stream": True, "allow_redirects": False})
            if response.is_redirect:
                response.close()
                raise DataError(
                    "pacs_redirected",
                    "The server redirects requests to another address. Give the final address of the DICOM service.",
                )
            content = bytearray()
            for part in response.iter_content(1 << 20):
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    response.close()
                    raise DataError(
                        "pacs_answer_too_large",
                        f"expected an answer of at most {MAX_ANSWER_BYTES:,} bytes, the server sends more.",
                        maximum=MAX_ANSWER_BYTES,
                    )
            response._content = bytes(content)
            return response

    session = Session()
    session.trust_env = False  # a ~/.netrc would replace the credentials
    if credentials.token_file is not None and credentials.user is not None:
        raise SettingsError("two_credentials", "Expected --token-file or --user, got both. Give one of them.")
    if (credentials.user is None) != (credentials.password_file is None):
        raise SettingsError("incomplete_credentials", "Expected --user and --password-file together.")
    if credentials.token_file is not None:
        session.auth = _bearer(_read_secret(credentials.token_file, "--token-file"))
    elif credentials.user is not None and credentials.password_file is not None:
        session.auth = (credentials.user, _read_secret(credentials.password_file, "--password-file"))
    for path in (credentials.certificate, credentials.certificate_key, credentials.ca):
        if path is not None and not path.is_file():
            raise SettingsError("missing_file", f"expected the certificate file '{path}', there is none.", path=path)
    if credentials.certificate is not None:
        key = credentials.certificate_key
        session.cert = (str(credentials.certificate), str(key)) if key else str(credentials.certificate)
    if credentials.ca is not None:
        session.verify = str(credentials.ca)
    return session


def _bearer(token: str) -> Callable[[Any], Any]:
    """Return a function that adds a bearer token to a request."""

    def authenticate(request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return authenticate


def _read_secret(path: Path, option: str) -> str:
    """Read a token or password: the first line of a file.

    Raises:
        StoreError: If the file can't be read.
        SettingsError: If it is empty or not printable ASCII text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(
            "unreadable_file", f"{option}: '{path}' can't be read: {error.strerror}.", path=path, reason=error.strerror
        ) from None
    secret = content.split(b"\n")[0].strip()
    if not secret or not secret.isascii() or not secret.decode("ascii").isprintable():
        raise SettingsError(
            "invalid_secret",
            f"{option}: expected one line of printable ASCII characters in '{path}'.",
            option=option,
            path=path,
        )
    return secret.decode("ascii")


def _value(entry: Mapping[str, Any], tag: str) -> object:
    """Return the first value of an element in DICOM's JSON form, or None."""
    element = entry.get(tag)
    values = element.get("Value") if isinstance(element, dict) else None
    value = values[0] if isinstance(values, list) and values else None
    return value if isinstance(value, str) else None
