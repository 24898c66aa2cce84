"""Tests of the DICOM network protocol against a small server that can misbehave."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from orthanc import free_port
from pydicom import Dataset
from refusals import refused

from medfl.errors import DataError, SettingsError

pynetdicom = pytest.importorskip("pynetdicom", reason="needs pynetdicom, from the extra pacs")

from pynetdicom import evt, sop_class  # noqa: E402

from medfl_pacs import dimse  # noqa: E402
from medfl_pacs.dimse import DimseAddress, DimseSource, DimseTls  # noqa: E402
from medfl_pacs.query import Query  # noqa: E402

STUDY_FIND = sop_class.StudyRootQueryRetrieveInformationModelFind
STUDY_MOVE = sop_class.StudyRootQueryRetrieveInformationModelMove
QUERY = Query({"StudyDate": "20200101-"}, {})


@pytest.fixture
def results() -> list[Dataset]:
    """Results of each search; a test may change them."""
    studies = []
    for number in range(3):
        studies.append(Dataset())
        studies[-1].StudyInstanceUID = f"1.2.{number}"
    return studies


@pytest.fixture
def source(results: list[Dataset]) -> Iterator[DimseSource]:
    """A source of a server with `results`."""
    entity = pynetdicom.AE(ae_title="PACS")
    entity.add_supported_context(STUDY_FIND)

    def find(event: evt.Event) -> Iterator[tuple[int, Dataset | None]]:
        yield from ((0xFF00, result) for result in results)

    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_FIND, find)])
    opened = DimseSource(DimseAddress("127.0.0.1", server.server_address[1], "PACS"), QUERY)
    try:
        yield opened
    finally:
        opened.close()
        server.shutdown()


def test_a_search_result_that_cannot_be_read_is_not_dropped(source: DimseSource, monkeypatch: pytest.MonkeyPatch):
    assert source.find_studies() == ["1.2.0", "1.2.1", "1.2.2"]
    with monkeypatch.context() as patch:
        patch.setattr("pynetdicom.association.decode", lambda *arguments: 1 / 0)
        with refused(DataError, "pacs_malformed_answer"):
            source.find_studies()
    assert source.find_studies() == ["1.2.0", "1.2.1", "1.2.2"], "on a new connection"


def test_endless_results_are_refused(source: DimseSource, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dimse, "MAX_RESULTS", 2)
    with refused(DataError, "too_many_results"):
        source.find_studies()


def test_a_connection_that_is_cut_before_a_request_is_reported(source: DimseSource, monkeypatch: pytest.MonkeyPatch):
    def cut(self: object, *arguments: object) -> None:
        raise RuntimeError("The association with a peer SCP must be established")

    monkeypatch.setattr(pynetdicom.association.Association, "send_c_find", cut)
    with refused(DataError, "pacs_unreachable"):
        source.find_studies()


def test_a_port_without_tls_is_refused_with_tls(source: DimseSource, certificates: Path):
    encrypted = DimseSource(source.address, QUERY, DimseTls(certificates / "server.pem"))
    with refused(DataError, "pacs_tls", host=f"127.0.0.1:{source.address.port}"):
        encrypted.find_studies()
    encrypted.close()


def test_images_of_a_c_move_are_received_with_tls_only(certificates: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dimse, "HANDSHAKE_SECONDS", 0.2)
    files = DimseTls(certificates / "client.pem", certificates / "server.pem", certificates / "server.key")
    address = DimseAddress("127.0.0.1", free_port(), "PACS", method="move", own_port=free_port())
    with refused(SettingsError, "missing_option", option="--certificate"):
        DimseSource(address, QUERY, DimseTls(ca=certificates / "client.pem"))
    source = DimseSource(address, QUERY, files)
    try:
        entity = pynetdicom.AE(ae_title="PACS")
        entity.acse_timeout = entity.network_timeout = entity.connection_timeout = 2
        entity.add_requested_context(sop_class.CTImageStorage)
        stranger = ssl.create_default_context(cafile=certificates / "server.pem")
        known = ssl.create_default_context(cafile=certificates / "server.pem")
        known.load_cert_chain(certificates / "client.pem", certificates / "client.key")
        established = []
        silent = socket.create_connection(("127.0.0.1", address.own_port))
        for tls in (None, (stranger, "127.0.0.1"), (known, "127.0.0.1")):
            association = entity.associate("127.0.0.1", address.own_port, ae_title="MEDFL", tls_args=tls)
            established.append(association.is_established)
            association.abort()
        silent.close()
        assert established == [False, False, True]
    finally:
        source.close()
