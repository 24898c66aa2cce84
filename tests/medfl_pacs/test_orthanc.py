"""Tests against a real Orthanc: both protocols, killed in the middle and continued."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pydicom
import pytest
from orthanc import Orthanc, free_port, running_orthanc
from pacs_images import ROOT, SECRETS, Corpus, Place, content_of, secret_instance
from pydicom.data import get_testdata_file

for package in ("dicomweb_client", "dicomanonymizer", "pynetdicom"):
    pytest.importorskip(package, reason=f"needs {package}, from the extra pacs")

from medfl_pacs.pseudonyms import open_key  # noqa: E402

pytestmark = pytest.mark.slow

SAMPLES = ("693_J2KI", "MR_small_RLE", "examples_palette", "liver_1frame", "test-SR", "CT_small")
"""Files of pydicom: JPEG 2000, RLE, an ultrasound image, a segmentation, a report, and a plain slice."""

KEYS = "StudyDate=19000101-20301231"
"""Search keys that select all studies with a date."""


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    with running_orthanc(tmp_path_factory.mktemp("orthanc")) as server:
        server.upload(Corpus(patients=2, series=2, instances=10).content().values())
        server.upload([content_of(secret_instance(Place(9)))])
        for name in SAMPLES:
            with suppress(urllib.error.HTTPError):  # Orthanc refuses some files
                server.upload([Path(get_testdata_file(f"{name}.dcm")).read_bytes()])
        yield server


def words(protocol: str, server: Orthanc, folder: Path, store: str, *options: object) -> list[str]:
    """The command that retrieves everything into a store."""
    (folder / "password").write_text(f"{server.password}\n")
    if protocol == "dicomweb":
        address = [server.url, "--query", KEYS, "--user", server.user, "--password-file", folder / "password"]
    else:
        address = ["127.0.0.1", "--port", server.dicom_port, "--aet", "ORTHANC", "--find", KEYS, "--method", protocol]
        address += ["--own-port", server.peer_port]
    name = "dicomweb" if protocol == "dicomweb" else "dimse"
    target = ["--out", folder / store, "--key", folder / "key"]
    return [sys.executable, "-m", "medfl", "pacs", name, *map(str, (*address, *target, *options))]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def content(store: Path) -> dict[str, bytes]:
    return {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.suffix in (".dcm", ".csv")
    }


def count_images(store: Path) -> int:
    """The number of images, also while another process moves them and removes folders."""
    return sum(name.endswith(".dcm") for _, _, names in os.walk(store) for name in names)


@pytest.mark.parametrize("protocol", ["dicomweb", "get", "move"])
def test_a_killed_retrieval_continues(orthanc: Orthanc, tmp_path: Path, protocol: str):
    run(words(protocol, orthanc, tmp_path, "whole"))
    whole = content(tmp_path / "whole")
    count = sum(name.endswith(".dcm") for name in whole)
    assert count >= 44
    store = tmp_path / "killed"
    kills = 0
    for target in (3, 11, 27):
        process = subprocess.Popen(
            words(protocol, orthanc, tmp_path, "killed", "--per-second", 25), stderr=subprocess.DEVNULL
        )
        while process.poll() is None and count_images(store) < target:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += process.returncode == -signal.SIGKILL
        assert count_images(store) < count
    assert kills == 3
    before = {path.name: path.stat().st_mtime_ns for path in store.rglob("*.dcm")}
    out = run(words(protocol, orthanc, tmp_path, "killed"))
    assert content(store) == whole
    names = [path.name for path in store.rglob("*.dcm")]
    assert len(names) == len(set(names)) == count
    again = {path.name for path in store.rglob("*.dcm") if before.get(path.name, 0) not in (0, path.stat().st_mtime_ns)}
    assert len(again) <= 1, "only the instance at which the command was killed is retrieved again"
    assert f"{count} were there already" in run(words(protocol, orthanc, tmp_path, "killed")), out
    assert not list((store / "incoming").rglob("*.dcm"))


def test_all_protocols_give_the_same_images(orthanc: Orthanc, tmp_path: Path):
    for protocol in ("dicomweb", "get", "move"):
        run(words(protocol, orthanc, tmp_path, protocol))
    tables = [(tmp_path / protocol / "images.csv").read_text() for protocol in ("dicomweb", "get", "move")]
    assert tables[0] == tables[1] == tables[2]
    with (tmp_path / "get" / "images.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["modality"] for row in rows} >= {"CT", "MR", "SEG"}
    assert "SR" not in {row["modality"] for row in rows}
    assert [row["slice_spacing_mm"] for row in rows if row["images"] == "10"] == ["2.5"] * 4
    for path in (tmp_path / "get" / "images").rglob("*.dcm"):
        other = tmp_path / "dicomweb" / path.relative_to(tmp_path / "get")
        assert pydicom.dcmread(path).PixelData == pydicom.dcmread(other).PixelData


def test_nothing_of_the_patients_is_in_the_store(orthanc: Orthanc, tmp_path: Path):
    run(words("dicomweb", orthanc, tmp_path, "store"))
    texts = [text.lower().encode() for text in (*SECRETS, ROOT)]
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            assert [text for text in texts if text in path.read_bytes().lower()] == [], path
    pseudonyms, _ = open_key(tmp_path / "key", tmp_path / "store")
    assert pseudonyms.patient("PID-7312-X1") in (tmp_path / "store" / "images.csv").read_text()


def test_search_keys_select(orthanc: Orthanc, tmp_path: Path):
    for protocol in ("dicomweb", "get"):
        command = words(protocol, orthanc, tmp_path, protocol)
        command[command.index(KEYS)] = "PatientID=PID-7312-X1,SeriesNumber=2"
        assert "10 images retrieved, 0 were there already, 1 series" in run(command)


def test_refusals_of_a_real_server(orthanc: Orthanc, tmp_path: Path):
    command = words("dicomweb", orthanc, tmp_path, "store")
    (tmp_path / "password").write_text("wrong\n")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "status 401" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    command = words("get", orthanc, tmp_path, "store", "--own-aet", "STRANGER")
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "STRANGER" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
    command = words("move", orthanc, tmp_path, "store")
    command[command.index("--own-port") + 1] = str(free_port())  # where Orthanc does not send to
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "in a row" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
