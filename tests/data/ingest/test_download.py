"""Test downloads over failing connections, from servers of different kinds, and with wrong content."""

from __future__ import annotations

import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import refused
from web import Web, serving

from medfl.data.ingest.download import download
from medfl.errors import DataError, SettingsError
from medfl.utils.locks import hold_lock

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HALF = len(CONTENT) // 2


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving(Web(CONTENT)) as running:
        yield running


def fetch(web: Web, target: Path, **options) -> Path:
    return download(f"{web.url}/file.npz", target, wait=0.0, **options)


def only_file(folder: Path) -> str:
    (path,) = folder.iterdir()
    return path.name


@pytest.mark.parametrize("check", [{}, {"md5": MD5}, {"sha256": SHA256.upper()}, {"size": len(CONTENT)}])
def test_a_whole_download(web, tmp_path, check):
    target = fetch(web, tmp_path / "new" / "file.npz", **check)
    assert target.read_bytes() == CONTENT
    assert only_file(target.parent) == "file.npz", "nothing temporary stays"
    fetch(web, target, **check)
    assert len(web.requests) == 1, "a file that is there is not asked for again"


def test_a_cut_line_is_continued_where_it_broke(web, tmp_path):
    web.cut = [1000, 5000, None]
    lines: list[str] = []
    target = fetch(web, tmp_path / "file.npz", md5=MD5, say=lines.append)
    assert target.read_bytes() == CONTENT
    assert web.requests == [(None, None), ("bytes=1000-", '"one"'), ("bytes=6000-", '"one"')]
    assert [line for line in lines if "was cut" in line] == [
        f"the connection was cut (received 1000 of {len(CONTENT)} bytes); trying again",
        f"the connection was cut (received 6000 of {len(CONTENT)} bytes); trying again",
    ]


def test_what_came_is_kept_for_the_same_command_later(web, tmp_path):
    web.cut = [HALF, 0]
    part = str(tmp_path / "file.npz.part")
    with refused(DataError, "incomplete_download", url=f"{web.url}/file.npz", path=part, kept=HALF):
        fetch(web, tmp_path / "file.npz", retries=0)
    assert (tmp_path / "file.npz.part").read_bytes() == CONTENT[:HALF]
    assert not (tmp_path / "file.npz").exists()
    assert fetch(web, tmp_path / "file.npz", retries=0).read_bytes() == CONTENT
    assert web.requests[-1] == (f"bytes={HALF}-", '"one"')
    assert only_file(tmp_path) == "file.npz"


def test_tries_that_bring_nothing_are_counted(web, tmp_path):
    web.cut = [0] * 10
    with refused(DataError, "incomplete_download", kept=0, reason=f"received 0 of {len(CONTENT)} bytes"):
        fetch(web, tmp_path / "file.npz", retries=2)
    assert len(web.requests) == 3


def test_a_server_that_ignores_range_begins_again(web, tmp_path):
    web.ranges, web.cut = False, [HALF]
    assert fetch(web, tmp_path / "file.npz", md5=MD5).read_bytes() == CONTENT
    assert web.requests[1][0] == f"bytes={HALF}-"


def test_a_file_that_changed_meanwhile_begins_again(web, tmp_path):
    web.cut, web.status = [HALF], [200, 404]
    with refused(DataError, "http_error", status=404):
        fetch(web, tmp_path / "file.npz")
    web.content, web.etag = CONTENT[::-1], '"two"'
    assert fetch(web, tmp_path / "file.npz").read_bytes() == CONTENT[::-1]


def test_a_server_that_disregards_the_mark_does_not_make_a_mixture_of_two_versions(web, tmp_path):
    web.cut, web.status, web.conditional = [HALF], [200, 404], False
    with refused(DataError, "http_error", status=404):
        fetch(web, tmp_path / "file.npz")
    web.content, web.etag = CONTENT[::-1], '"two"'
    assert fetch(web, tmp_path / "file.npz").read_bytes() == CONTENT[::-1]
    assert [wanted for wanted, _ in web.requests[-2:]] == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("lengths", [True, False])
def test_an_empty_file(web, tmp_path, lengths):
    web.content, web.lengths = b"", lengths
    assert fetch(web, tmp_path / "file.npz", md5=hashlib.md5().hexdigest()).read_bytes() == b""
    assert only_file(tmp_path) == "file.npz"


def test_without_a_length_only_the_checksum_shows_a_cut_line(web, tmp_path):
    web.lengths, web.cut = False, [HALF]
    with refused(DataError, "wrong_checksum", what="MD5", expected=MD5):
        fetch(web, tmp_path / "file.npz", md5=MD5)
    assert fetch(web, tmp_path / "file.npz", md5=MD5).read_bytes() == CONTENT


def test_two_processes_do_not_write_to_the_same_part(web, tmp_path):
    """The lock belongs to an open file, so a second opening in this process acts like another process."""
    with hold_lock(tmp_path / ".file.npz.lock", remove=True) as alone:
        assert alone
        with refused(DataError, "file_in_use", path=str(tmp_path / "file.npz")):
            fetch(web, tmp_path / "file.npz")
    assert not web.requests
    assert not list(tmp_path.iterdir())
    assert fetch(web, tmp_path / "file.npz").read_bytes() == CONTENT
    assert only_file(tmp_path) == "file.npz"


def test_many_at_once_bring_one_whole_file(web, tmp_path):
    def one(_: int) -> str:
        try:
            return fetch(web, tmp_path / "file.npz").name
        except DataError as error:
            return error.code

    with ThreadPoolExecutor(8) as threads:
        ends = set(threads.map(one, range(16)))
    assert (tmp_path / "file.npz").read_bytes() == CONTENT
    assert only_file(tmp_path) == "file.npz"
    assert ends <= {"file.npz", "file_in_use"}


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_mark_the_date_is_used(web, tmp_path, etag):
    web.etag, web.modified, web.cut = etag, "Wed, 21 Oct 2015 07:28:00 GMT", [HALF]
    assert fetch(web, tmp_path / "file.npz").read_bytes() == CONTENT
    assert web.requests[1] == (f"bytes={HALF}-", "Wed, 21 Oct 2015 07:28:00 GMT")


@pytest.mark.parametrize(("md5", "second"), [(MD5, f"bytes={HALF}-"), (None, None)])
def test_without_any_mark_only_a_checksum_lets_it_continue(web, tmp_path, md5, second):
    web.etag, web.cut = None, [HALF]
    assert fetch(web, tmp_path / "file.npz", md5=md5).read_bytes() == CONTENT
    assert web.requests[1] == (second, None)


def test_a_part_that_is_whole_needs_no_more_bytes(web, tmp_path):
    (tmp_path / "file.npz.part").write_bytes(CONTENT)
    assert fetch(web, tmp_path / "file.npz", md5=MD5).read_bytes() == CONTENT
    assert web.requests == [(f"bytes={len(CONTENT)}-", None)]


def test_a_part_that_is_too_long_begins_again(web, tmp_path):
    (tmp_path / "file.npz.part").write_bytes(CONTENT + b"more")
    assert fetch(web, tmp_path / "file.npz", md5=MD5).read_bytes() == CONTENT


def test_a_server_that_continues_elsewhere_begins_again(web, tmp_path):
    web.cut, web.shift = [HALF], 7
    assert fetch(web, tmp_path / "file.npz", md5=MD5).read_bytes() == CONTENT
    assert [wanted for wanted, _ in web.requests] == [None, f"bytes={HALF}-", None]


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_wrong_bytes_are_deleted(web, tmp_path, size):
    web.content = CONTENT[:-1] + b"?"
    got = hashlib.md5(web.content).hexdigest()
    with refused(DataError, "wrong_checksum", what="MD5", expected=MD5, found=got):
        fetch(web, tmp_path / "file.npz", md5=MD5, size=size)
    assert not list(tmp_path.iterdir())


def test_a_wrong_beginning_is_found_by_the_checksum(web, tmp_path):
    (tmp_path / "file.npz.part").write_bytes(b"x" * HALF)
    with refused(DataError, "wrong_checksum", what="SHA256", expected=SHA256):
        fetch(web, tmp_path / "file.npz", sha256=SHA256)
    assert not list(tmp_path.iterdir())


def test_wrong_lengths_are_refused(web, tmp_path):
    with refused(DataError, "wrong_announced_size", expected=5, found=len(CONTENT)):
        fetch(web, tmp_path / "file.npz", size=5)
    web.lengths = False
    with refused(DataError, "wrong_size", expected=5, found=len(CONTENT)):
        fetch(web, tmp_path / "file.npz", size=5)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_no_reason_to_try_again(web, tmp_path):
    web.status = [404]
    with refused(DataError, "http_error", status=404, url=f"{web.url}/file.npz"):
        fetch(web, tmp_path / "file.npz")
    assert len(web.requests) == 1


def test_a_busy_server_is_asked_again(web, tmp_path):
    web.status = [503, 429]
    assert fetch(web, tmp_path / "file.npz").read_bytes() == CONTENT
    assert len(web.requests) == 3


def test_no_one_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with refused(DataError, "incomplete_download", kept=0) as caught:
        download(f"http://127.0.0.1:{port}/a", tmp_path / "a", retries=1, wait=0.0)
    assert "ConnectionRefusedError" in caught.value.fields["reason"]


def test_a_silent_server_times_out(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with refused(DataError, "incomplete_download", kept=0) as caught:
            download(f"http://127.0.0.1:{silent.getsockname()[1]}/a", tmp_path / "a", retries=0, timeout=0.2)
    assert "timed out" in caught.value.fields["reason"]


def test_impossible_requests(tmp_path):
    for url in ("file:///etc/hosts", "ftp://a/b", "bloodmnist.npz", "https://"):
        with refused(SettingsError, "invalid_url", url=url):
            download(url, tmp_path / "a")
    with refused(SettingsError, "incompatible_settings", settings=["md5", "sha256"]):
        download("http://a/b", tmp_path / "a", md5=MD5, sha256=SHA256)


def test_a_place_that_can_not_be_written(web, tmp_path):
    (tmp_path / "file").touch()
    with refused(DataError, "unwritable_file", path=str(tmp_path / "file" / "below.npz")):
        fetch(web, tmp_path / "file" / "below.npz")


def test_progress_is_plain_lines_without_a_terminal(web, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.utils.progress.EVERY_SECONDS", 0.0)
    lines: list[str] = []
    fetch(web, tmp_path / "file.npz", say=lines.append)
    assert lines[-1] == "downloading file.npz: 1 of 1 MB"
