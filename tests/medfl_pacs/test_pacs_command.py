"""Tests of `medfl pacs dicomweb`, `dimse` and `review` as users run them, against a small server that can misbehave."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from dicomweb_server import DicomwebServer, serving_dicomweb
from orthanc import free_port
from pacs_images import ROOT, SECRETS, Corpus, Place, content_of, plain_instance, secret_instance

for package in ("dicomweb_client", "dicomanonymizer", "pynetdicom"):
    pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")

from medfl_pacs import dicomweb  # noqa: E402

QUERY = "StudyDate=20200101-20201231"


@pytest.fixture
def server() -> Iterator[DicomwebServer]:
    with serving_dicomweb(DicomwebServer(Corpus(patients=2, series=1, instances=2).content())) as running:
        yield running


@pytest.fixture
def fetch(medfl, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Return a function that retrieves into ``store``, and checks that no secret is printed or logged."""
    caplog.set_level(logging.DEBUG)

    def run(url: str, *options: object, query: str = QUERY) -> tuple[int, str, str]:
        status, out, err = medfl(
            *("pacs", "dicomweb", url, "--query", query),
            *("--out", tmp_path / "store", "--key", tmp_path / "key", *options),
        )
        logged = "\n".join(record.getMessage() for record in caplog.records if record.name != "urllib3.connection")
        for text in (*SECRETS, ROOT, "Traceback", "Bearer", (tmp_path / "key").read_text()[:-1]):
            assert text.lower() not in (out + err + logged).lower(), text
        return status, out, err

    return run


def test_images_are_retrieved_once(fetch, server: DicomwebServer, tmp_path: Path):
    status, out, err = fetch(server.url, query=f"{QUERY},Modality=CT")
    assert status == 0, err
    assert "4 images retrieved, 0 were there already, 2 series" in out
    assert len(list((tmp_path / "store" / "images").rglob("*.dcm"))) == 4
    assert [query.get("StudyDate") for query in server.queries[:2]] == [["20200101-20201231"]] * 2
    assert ["CT"] in [query.get("Modality") for query in server.queries]
    status, out, _ = fetch(server.url)
    assert "0 images retrieved, 4 were there already" in out
    assert set(server.retrieved.values()) == {1}


def test_no_key_is_created_for_an_existing_store(fetch, server: DicomwebServer, medfl, tmp_path: Path):
    fetch(server.url)
    other = ("--out", tmp_path / "store", "--key", tmp_path / "typo")
    status, _, err = medfl("pacs", "dicomweb", server.url, "--query", QUERY, *other)
    assert (status, "There is no key" in err, (tmp_path / "typo").exists()) == (2, True, False)


def test_wildcards_are_sent_as_they_are(fetch, server: DicomwebServer, monkeypatch: pytest.MonkeyPatch):
    lines: list[str] = []
    monkeypatch.setattr(server, "answer", lambda path: (200, b"[]"))
    monkeypatch.setattr(server, "see_request", lines.append)
    status, out, _ = fetch(server.url, query="PatientID=N-*?")
    assert (status, "no series fits the search keys" in out) == (0, True)
    assert lines
    assert all("PatientID=N-*?" in line for line in lines)


def test_secrets_stay_outside_of_the_store_and_the_logs(fetch, tmp_path: Path):
    with serving_dicomweb(DicomwebServer({Place(): content_of(secret_instance())})) as server:
        assert fetch(server.url)[0] == 0
    for path in (tmp_path / "store").rglob("*"):
        content = path.read_bytes().lower() if path.is_file() else b""
        assert [text for text in (*SECRETS, ROOT) if text.lower().encode() in content] == []


def test_a_server_that_ignores_pages_is_not_asked_forever(fetch, server: DicomwebServer):
    server.pages = False
    assert "4 images retrieved" in fetch(server.url)[1]


def test_review(fetch, medfl, tmp_path: Path):
    with serving_dicomweb(DicomwebServer(Corpus(1, 1, 1, modality="US").content())) as server:
        assert "1 series are in quarantine" in fetch(server.url)[1]
    table = tmp_path / "store" / "review.csv"
    table.write_text(table.read_text().replace("modality_US,", "modality_US,keep"))
    status, out, _ = medfl("pacs", "review", tmp_path / "store", "--key", tmp_path / "key")
    assert (status, "1 series moved to images" in out) == (0, True)
    assert len(list((tmp_path / "store" / "images").rglob("*.dcm"))) == 1


@pytest.mark.parametrize("kind", ["token", "password"])
def test_credentials(fetch, server: DicomwebServer, tmp_path: Path, kind: str):
    secret = tmp_path / "secret"
    options: tuple[object, ...]
    if kind == "token":
        server.authorization, options = "Bearer right.token", ("--token-file", secret)
    else:
        encoded = base64.b64encode(b"reader:right.token").decode()
        server.authorization, options = f"Basic {encoded}", ("--user", "reader", "--password-file", secret)
    secret.write_text("wrong.token\n")
    status, _, err = fetch(server.url, *options)
    assert (status, "status 401" in err, "wrong.token" in err) == (2, True, False)
    secret.write_text("right.token\n")
    assert fetch(server.url, *options)[0] == 0


def fails(status: int, body: bytes, ending: str):
    return lambda path: (status, body) if path.endswith(ending) else None


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (fails(200, b"<html>Qwertzuiop</html>", "/studies"), "malformed answer"),
        (fails(200, b"[1, 2]", "/studies"), "malformed answer"),
        (fails(200, b'[{"0020000D": {"vr": "UI", "Value": ["Qwertzuiop"]}}]', "/studies"), "valid UID"),
        (fails(200, b'[{"0020000D": 5}]', "/studies"), "valid UID"),
        (fails(200, b'"Qwertzuiop"', "/studies"), "malformed answer"),
        (fails(404, b"Qwertzuiop", "/studies"), "status 404"),
        (fails(500, b"Qwertzuiop", "/studies"), "status 500"),
        (fails(403, b"Qwertzuiop", "/series"), "status 403"),
        (fails(200, b"{", "/instances"), "malformed answer"),
    ],
)
def test_malformed_answers(fetch, server: DicomwebServer, answer, text: str):
    server.answer = answer
    status, _, err = fetch(server.url)
    assert (status, text in err) == (2, True), err


def test_redirects_are_refused(fetch, server: DicomwebServer):
    target = server.url.replace("dicom-web", "other/studies?limit=200&offset=0")
    server.answer = lambda path: (302, target.encode()) if path.endswith("/dicom-web/studies") else None
    status, _, err = fetch(server.url)
    assert (status, "Give the final address" in err) == (2, True), err


def test_endless_answers_are_refused(fetch, server: DicomwebServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dicomweb, "MAX_ANSWER_BYTES", 5000)
    large = Place(1, 1, 1, 1)
    server.contents = {**server.contents, large: content_of(plain_instance(large, size=64))}
    status, out, _ = fetch(server.url)
    assert (status, "3 images retrieved" in out, "1 images refused" in out) == (0, True, True)
    monkeypatch.setattr(dicomweb, "MAX_RESULTS", 1)
    status, _, err = fetch(server.url)
    assert (status, "results for one search" in err) == (2, True), err


def test_an_answer_that_is_no_dicom_is_refused_and_retried_later(fetch, server: DicomwebServer, tmp_path: Path):
    server.answer = fails(200, b"Qwertzuiop", Place().instance_uid)
    status, out, _ = fetch(server.url)
    assert (status, "3 images retrieved" in out, "1 images refused" in out) == (0, True, True)
    server.answer = lambda path: None
    assert "1 images retrieved, 3 were there already" in fetch(server.url)[1]
    assert not list((tmp_path / "store" / "quarantine").rglob("*.dcm"))


def test_a_damaged_instance_is_refused(fetch, server: DicomwebServer):
    content = content_of(plain_instance(Place()))
    server.contents = {**server.contents, Place(): content[:400]}
    status, out, _ = fetch(server.url)
    assert (status, "1 images refused" in out) == (0, True)


def test_an_unreachable_server(fetch):
    status, _, err = fetch(f"http://127.0.0.1:{free_port()}/dicom-web")
    assert (status, "No connection" in err) == (2, True)


def test_a_server_without_tls(fetch, server: DicomwebServer):
    status, _, err = fetch(server.url.replace("http:", "https:"))
    assert (status, "No secure connection" in err or "No connection" in err) == (2, True)


def test_certificates_of_server_and_client(fetch, server: DicomwebServer, certificates: Path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    trust = ("--ca", certificates / "server.pem")
    client = ("--certificate", certificates / "client.pem", "--certificate-key", certificates / "client.key")
    with serving_dicomweb(DicomwebServer(server.contents), context) as secure:
        for options, advice in ((client, "--ca"), (trust, "--certificate")):
            status, _, err = fetch(secure.url, *options)
            assert (status, "No secure connection" in err, advice in err) == (2, True, True), err
        status, out, err = fetch(secure.url, *trust, *client)
        assert (status, "4 images retrieved" in out) == (0, True), err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--hours", "25:00-06:00"), "--hours"),
        (("--ca", "missing.pem"), "missing.pem"),
        (("--user", "reader"), "--password-file"),
        (("--token-file", "missing"), "missing"),
        (("--key", "store/key"), "inside the store"),
    ],
)
def test_wrong_options(medfl, server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options, text: str):
    monkeypatch.chdir(tmp_path)
    key = () if "--key" in options else ("--key", "key")
    status, _, err = medfl("pacs", "dicomweb", server.url, "--query", QUERY, "--out", "store", *key, *options)
    assert (status, text in err) == (2, True)
    assert not server.queries


@pytest.mark.parametrize(
    "url", ["pacs", "ftp://pacs", "http://Qwertzuiop:secret@pacs/x", "http://pacs/x?a=b", "http://[x"]
)
def test_wrong_addresses(medfl, tmp_path: Path, url: str):
    status, _, err = medfl("pacs", "dicomweb", url, "--query", QUERY, "--out", tmp_path / "s", "--key", tmp_path / "k")
    assert (status, "secret" in err, "https://pacs.hospital/dicom-web" in err) == (2, False, True)


def test_dimse_without_a_pacs(medfl, tmp_path: Path):
    common = ("--find", QUERY, "--out", tmp_path / "s", "--key", tmp_path / "k")
    status, _, err = medfl("pacs", "dimse", "127.0.0.1", "--port", free_port(), *common)
    assert (status, "No connection to 127.0.0.1" in err) == (2, True)
    status, _, err = medfl("pacs", "dimse", "127.0.0.1", "--aet", "A" * 17, *common)
    assert (status, "1 to 16" in err) == (2, True)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, err = medfl("pacs", "dimse", "127.0.0.1", "--method", "move", "--own-port", port, *common)
    assert (status, f"Can't listen at port {port}" in err) == (2, True)


def test_each_command_has_an_example(medfl):
    for name in ("dicomweb", "dimse", "review", "labels"):
        status, out, _ = medfl("pacs", name, "--help")
        assert (status, f"medfl pacs {name}" in out.partition("Example")[2]) == (0, True)
