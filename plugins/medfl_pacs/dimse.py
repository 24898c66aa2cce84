"""A PACS with the DICOM network protocol (DIMSE): search with C-FIND, retrieval with C-GET or C-MOVE."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from medfl.errors import DataError, SettingsError
from medfl_pacs.pacs_source import (
    MAX_RESULTS,
    InstanceReference,
    SeriesReference,
    checked_uid,
    is_stored_class,
    malformed_answer,
    too_many_results,
)
from medfl_pacs.profile_actions import missing_package
from medfl_pacs.query import Query

if TYPE_CHECKING:
    from pydicom import Dataset

TIMEOUT_SECONDS = 60.0
"""Maximum seconds to wait for an association, and for the next message."""

HANDSHAKE_SECONDS = 10.0
"""Maximum seconds of a TLS handshake at the port for C-MOVE. It receives one connection at a time until then."""

MAX_CONTEXTS = 126
"""Maximum number of storage contexts of an association; the protocol permits 128 contexts."""

_PENDING, _SUCCESS = (0xFF00, 0xFF01), 0x0000


@dataclass(frozen=True)
class DimseAddress:
    """Address of a PACS, and of medfl as its peer.

    Attributes:
        host: Name or address of the machine.
        port: Port of the PACS.
        aet: Application entity title of the PACS.
        own_aet: Application entity title of medfl, which the PACS must know.
        method: Retrieval with ``get`` or ``move``.
        own_port: Port at which medfl receives images after a C-MOVE; the PACS must know it.
    """

    host: str
    port: int
    aet: str
    own_aet: str = "MEDFL"
    method: Literal["get", "move"] = "get"
    own_port: int = 11112


@dataclass(frozen=True)
class DimseTls:
    """Files for TLS.

    Attributes:
        ca: Certificates of authorities (PEM); None uses the well-known ones.
        certificate: Client certificate (PEM).
        certificate_key: Key of the client certificate (PEM).
    """

    ca: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None


class DimseSource:
    """A PACS with DIMSE.

    Args:
        address: Address of the PACS.
        query: Search keys.
        tls: Files for TLS; None uses no TLS.

    Raises:
        SettingsError: If the address or a file for TLS is invalid, or a package is missing.
        DataError: If the port for C-MOVE is in use.
    """

    def __init__(self, address: DimseAddress, query: Query, tls: DimseTls | None = None) -> None:
        try:
            import pynetdicom
        except ImportError as error:
            raise missing_package("pynetdicom>=3.0") from error
        for title in (address.aet, address.own_aet):
            if re.fullmatch(r"[!-\[\]-~]([ -\[\]-~]{0,14}[!-\[\]-~])?", title) is None:
                raise SettingsError(
                    "invalid_aet",
                    f"Expected an application entity title of 1 to 16 printable ASCII characters, got '{title}'.",
                    title=title,
                )
        self.address, self.query = address, query
        self._tls_failures: list[ssl.SSLError] = []  # of the newest connection
        self._tls = None if tls is None else (_record_failures(_tls_context(tls), self._tls_failures), address.host)
        self._entity = pynetdicom.AE(ae_title=address.own_aet)
        self._entity.acse_timeout = self._entity.connection_timeout = TIMEOUT_SECONDS
        self._entity.dimse_timeout = self._entity.network_timeout = TIMEOUT_SECONDS
        self._received: list[Dataset] = []
        self._expected_uid = ""
        self._associations: dict[str, Any] = {}
        self._server = self._start_server(tls) if address.method == "move" else None

    def find_studies(self) -> list[str]:
        """Return the UIDs of the selected studies."""
        answers = self._find(
            "STUDY", {**self.query.study, "StudyInstanceUID": self.query.study.get("StudyInstanceUID", "")}
        )
        return list(dict.fromkeys(checked_uid(answer.get("StudyInstanceUID")) for answer in answers))

    def find_series(self, study_uid: str) -> list[SeriesReference]:
        """Return the selected series of a study."""
        keys = {"SeriesInstanceUID": "", **self.query.series, "StudyInstanceUID": study_uid}
        uids = dict.fromkeys(checked_uid(answer.get("SeriesInstanceUID")) for answer in self._find("SERIES", keys))
        return [SeriesReference(study_uid, uid) for uid in uids]

    def find_instances(self, series: SeriesReference) -> list[InstanceReference]:
        """Return all instances of a series."""
        keys = {
            "StudyInstanceUID": series.study_uid,
            "SeriesInstanceUID": series.series_uid,
            "SOPInstanceUID": "",
            "SOPClassUID": "",
        }
        classes = {
            checked_uid(answer.get("SOPInstanceUID")): str(answer.get("SOPClassUID") or "")
            for answer in self._find("IMAGE", keys)
        }
        return [InstanceReference(series, uid, class_uid) for uid, class_uid in classes.items()]

    def retrieve(self, instance: InstanceReference) -> Dataset:
        """Return an instance with its file meta information."""
        identifier = _identifier(
            "IMAGE",
            {
                "StudyInstanceUID": instance.series.study_uid,
                "SeriesInstanceUID": instance.series.series_uid,
                "SOPInstanceUID": instance.instance_uid,
            },
        )
        self._received.clear()
        self._expected_uid = instance.instance_uid
        with self._translated_errors():
            if self.address.method == "move":
                association = self._associate("move", [_context(_model("Move"))])
                answers = association.send_c_move(identifier, self.address.own_aet, _model("Move"))
            else:
                contexts, roles = _storage_contexts(instance.class_uid)
                association = self._associate(f"get {instance.class_uid}", [_context(_model("Get")), *contexts], roles)
                answers = association.send_c_get(identifier, _model("Get"))
            self._wait_for_last(answers)
        for dataset in self._received:
            return dataset
        raise DataError(
            "not_dicom",
            "The PACS did not deliver the instance: it may be missing there, or damaged in transfer"
            + (", or the PACS does not know medfl's title and port" if self.address.method == "move" else "")
            + ".",
            cause="not delivered",
        )

    def close(self) -> None:
        """Close all connections."""
        for association in self._associations.values():
            if association.is_established:
                association.release()
        if self._server is not None:
            self._server.shutdown()

    def _find(self, level: str, keys: Mapping[str, str]) -> list[Dataset]:
        """Return the answers to a C-FIND request."""
        answers: list[Dataset] = []
        status = error = None
        with self._translated_errors():
            association = self._associate("find", [_context(_model("Find"))])
            responses = association.send_c_find(_identifier(level, keys), _model("Find"))
            for status, answer in responses:
                if status and status.Status in _PENDING:
                    if answer is None:
                        error = malformed_answer("a search result can't be read")
                        break
                    answers.append(answer)
                    if len(answers) > MAX_RESULTS:
                        error = too_many_results()
                        break
            responses.close()  # releases the lock of the association
        if error is not None:
            association.abort()
            raise error
        self._check_last(status)
        return answers

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert the exception of pynetdicom on a connection that was cut before a request into a DataError."""
        try:
            yield
        except RuntimeError:
            raise self._unreachable() from None

    def _wait_for_last(self, answers: Any) -> None:
        """Wait for the last answer to a C-GET or C-MOVE request, and check its status."""
        statuses = [status for status, _ in answers]
        status = statuses[-1] if statuses else None
        if status and "Status" in status and status.Status & 0xF000 == 0xB000:
            return  # some sub-operations failed: the instance has not been received
        self._check_last(status)

    def _check_last(self, status: Any) -> None:
        """Raise a DataError if the last answer to a request is missing or a failure."""
        if status is None or "Status" not in status:
            raise self._unreachable()
        if status.Status != _SUCCESS:
            raise DataError(
                "pacs_refused_request",
                f"{self._place()} refused a request (DIMSE status 0x{status.Status:04X}). Check the search keys, and "
                f"that it permits queries and retrieval for the title {self.address.own_aet}.",
                host=self._place(),
                status=status.Status,
            )

    def _associate(self, kind: str, contexts: list[Any], roles: list[Any] | None = None) -> Any:
        """Return an established association of a kind: the open one, or a new one."""
        from pynetdicom import evt

        for former, association in list(self._associations.items()):
            if former == kind and association.is_established:
                return association
            if former == kind or "find" not in (kind, former):  # the search's association stays open beside one other
                del self._associations[former]
                if association.is_established:
                    association.release()
        self._tls_failures.clear()
        try:
            association = self._entity.associate(
                self.address.host,
                self.address.port,
                contexts=contexts,
                ae_title=self.address.aet,
                ext_neg=roles or [],
                tls_args=self._tls,
                evt_handlers=[(evt.EVT_C_STORE, self._store)],
            )
        except OSError:
            raise self._unreachable() from None
        if association.is_rejected:
            raise DataError(
                "pacs_rejected",
                f"{self._place()} rejected the connection. Check its title ('{self.address.aet}'), and that it knows "
                f"medfl's title ('{self.address.own_aet}') from this machine.",
                host=self._place(),
            )
        if not association.is_established:
            raise self._untrusted(self._tls_failures[0]) if self._tls_failures else self._unreachable()
        if not any(context.abstract_syntax == contexts[0].abstract_syntax for context in association.accepted_contexts):
            association.release()
            raise DataError(
                "pacs_unsupported",
                f"{self._place()} does not offer C-{kind.split()[0].upper()}. Choose the other method with --method.",
                host=self._place(),
                operation=kind.split()[0],
            )
        self._associations[kind] = association
        return association

    def _store(self, event: Any) -> int:
        """Receive the expected instance from the PACS. Return the status of the C-STORE request."""
        try:
            dataset = event.dataset
            dataset.file_meta = event.file_meta
            if str(dataset.SOPInstanceUID) != self._expected_uid:
                return 0xA900  # another instance: sent late, or never requested
        except Exception:  # pydicom raises many kinds
            return 0xC210  # can't understand
        self._received.append(dataset)
        return _SUCCESS

    def _start_server(self, tls: DimseTls | None) -> Any:
        """Start to listen for instances, which only the PACS may send, with TLS if the requests use it."""
        from pynetdicom import evt

        for name in _stored_classes():
            self._entity.add_supported_context(name, _transfer_syntaxes())
        self._entity.require_called_aet = True
        self._entity.require_calling_aet = [self.address.aet]
        context = None if tls is None else _limit_handshakes(_tls_context(tls, is_server=True))
        try:
            return self._entity.start_server(
                ("", self.address.own_port),
                block=False,
                evt_handlers=[(evt.EVT_C_STORE, self._store)],
                ssl_context=context,
            )
        except OSError as error:
            raise DataError(
                "port_in_use",
                f"Can't listen at port {self.address.own_port}: {error.strerror}. Choose another port with --own-port, "
                "and tell the PACS.",
                port=self.address.own_port,
                reason=error.strerror,
            ) from None

    def _unreachable(self) -> DataError:
        """Return the error for a connection that can't be opened or was cut."""
        return DataError(
            "pacs_unreachable",
            f"No connection to {self._place()}, or it was cut. Check host, port and --tls, and that the PACS knows the "
            f"title {self.address.own_aet}; repeat the command to continue.",
            host=self._place(),
        )

    def _untrusted(self, failure: ssl.SSLError) -> DataError:
        """Return the error for a connection that failed in TLS."""
        cause = str(getattr(failure, "verify_message", "") or failure.reason or "no answer")
        return DataError(
            "pacs_tls",
            f"No secure connection to {self._place()} ({cause}): the certificate of the PACS is not trusted or does "
            "not name this host, medfl's client certificate is missing or refused, or the port has no TLS. Name the "
            "hospital's certificate authority with --ca, and the client certificate with --certificate.",
            host=self._place(),
            cause=cause,
        )

    def _place(self) -> str:
        return f"{self.address.host}:{self.address.port}"


def _identifier(level: str, keys: Mapping[str, str]) -> Dataset:
    """Return the identifier of a request."""
    from pydicom import Dataset

    identifier = Dataset()
    identifier.QueryRetrieveLevel = level
    if not all(value.isascii() for value in keys.values()):
        identifier.SpecificCharacterSet = "ISO_IR 192"
    for keyword, value in keys.items():
        setattr(identifier, keyword, value)
    return identifier


def _model(operation: str) -> Any:
    """Return the SOP class of an operation: ``Find``, ``Get`` or ``Move``."""
    from pynetdicom import sop_class

    return getattr(sop_class, f"StudyRootQueryRetrieveInformationModel{operation}")


def _context(abstract_syntax: Any, *transfer_syntaxes: str) -> Any:
    """Return a presentation context; without transfer syntaxes, with the uncompressed ones."""
    from pynetdicom.presentation import build_context

    return build_context(abstract_syntax, list(transfer_syntaxes) or None)


def _storage_contexts(class_uid: str) -> tuple[list[Any], list[Any]]:
    """Return contexts to receive instances in a C-GET, and their roles.

    Args:
        class_uid: SOP class of the instance, which gets a context for each transfer syntax. If empty, all stored
            classes get a context with the uncompressed syntaxes.
    """
    from pynetdicom import build_role

    classes = [class_uid] if class_uid else _stored_classes()[:MAX_CONTEXTS]
    contexts = (
        [_context(class_uid, syntax) for syntax in _transfer_syntaxes()] if class_uid else list(map(_context, classes))
    )
    return contexts, [build_role(name, scp_role=True) for name in classes]


def _stored_classes() -> list[str]:
    """Return the UIDs of the SOP classes that are stored."""
    from pynetdicom.presentation import AllStoragePresentationContexts

    names = [str(context.abstract_syntax) for context in AllStoragePresentationContexts]
    return [name for name in names if is_stored_class(name)]


def _transfer_syntaxes() -> list[str]:
    """Return the UIDs of all transfer syntaxes of images, the uncompressed ones first."""
    from pynetdicom import ALL_TRANSFER_SYNTAXES, DEFAULT_TRANSFER_SYNTAXES

    first = [str(syntax) for syntax in DEFAULT_TRANSFER_SYNTAXES]
    return list(dict.fromkeys([*first, *map(str, ALL_TRANSFER_SYNTAXES)]))


def _tls_context(tls: DimseTls, *, is_server: bool = False) -> ssl.SSLContext:
    """Return the settings of TLS. As client and as server, medfl demands a trusted certificate of the PACS.

    Args:
        tls: Files for TLS.
        is_server: Whether the PACS opens the connection, as in a C-MOVE.

    Raises:
        SettingsError: If a file is missing or is no certificate or key, or a server has no certificate.
    """
    if is_server and tls.certificate is None:
        raise SettingsError(
            "missing_option",
            "--method move with --tls needs --certificate: the PACS sends images over a connection that it opens to "
            "medfl. Give medfl's certificate, or use --method get.",
            option="--certificate",
        )
    purpose = ssl.Purpose.CLIENT_AUTH if is_server else ssl.Purpose.SERVER_AUTH
    try:
        context = ssl.create_default_context(purpose, cafile=str(tls.ca) if tls.ca else None)
        context.verify_mode = ssl.CERT_REQUIRED
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.certificate_key)
    except (OSError, ssl.SSLError):
        raise SettingsError(
            "invalid_certificate",
            "A file of --ca, --certificate or --certificate-key can't be read as a certificate or key in PEM form.",
        ) from None
    return context


def _limit_handshakes(context: ssl.SSLContext) -> ssl.SSLContext:
    """Limit the handshakes of a server's context to `HANDSHAKE_SECONDS`, in place. Return the context.

    Otherwise a peer that connects and stays silent would block the port.
    """

    class ImpatientSocket(ssl.SSLSocket):
        """Socket whose handshake has a timeout."""

        def do_handshake(self, block: bool = False) -> None:
            self.settimeout(HANDSHAKE_SECONDS)
            super().do_handshake(block)
            self.settimeout(None)

    context.sslsocket_class = ImpatientSocket
    return context


def _record_failures(context: ssl.SSLContext, failures: list[ssl.SSLError]) -> ssl.SSLContext:
    """Make a client's context append the failures of its connections to a list, in place. Return the context.

    pynetdicom only logs them. With TLS 1.3, a server refuses a client after the handshake, in its first answer.
    """

    class WatchedSocket(ssl.SSLSocket):
        """Socket that records the failures of its handshake and of its first answer."""

        def do_handshake(self, block: bool = False) -> None:
            with record():
                super().do_handshake(block)

        def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
            with record():
                return super().recv(buflen, flags)

    @contextlib.contextmanager
    def record() -> Iterator[None]:
        try:
            yield
        except ssl.SSLError as failure:
            failures.append(failure)
            raise

    context.sslsocket_class = WatchedSocket
    return context
