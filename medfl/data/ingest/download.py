"""Download a file with resumption and a checksum.

The content goes to ``<name>.part``. Next to it, ``<name>.part.tag`` stores the server's version mark (ETag or date), so
that a resumed file never combines two versions. The file gets its final name when it is complete and its checksum is
right. If several processes want the same file, one of them downloads it.

The library pooch does not replace this module: it restarts a download when the connection is lost, and some releases
are files of many gigabytes.

Source: RFC 9110, sections 13.1.5 (If-Range) and 14 (range requests).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from medfl.errors import DataError, SettingsError
from medfl.utils.locks import hold_lock
from medfl.utils.progress import progress
from medfl.utils.text import Say
from medfl.version import __version__

CHUNK_BYTES = 1 << 18
"""Size, in bytes, of the chunks in which the server's response is read."""

_TEMPORARY_HTTP_ERRORS = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes after which another try may succeed."""


class _ConnectionLostError(Exception):
    """Network failure after which another try may succeed."""


@dataclass(frozen=True)
class _Download:
    """Download to perform, with the expected size and checksum.

    Attributes:
        url: Address of the file.
        target: Path of the finished file.
        checksum: Name and expected value of the hash, or None.
        size: Expected length in bytes, or None.
        timeout: Seconds without an answer after which the connection counts as lost.
        say: Receives lines of text about progress.
    """

    url: str
    target: Path
    checksum: tuple[str, str] | None
    size: int | None
    timeout: float
    say: Say

    @property
    def part_path(self) -> Path:
        """Path of the partial file."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def tag_path(self) -> Path:
        """Path of the file with the server's version mark of the partial file."""
        return self.target.with_name(self.target.name + ".part.tag")

    def received_bytes(self) -> int:
        """Return the size of the partial file."""
        return self.part_path.stat().st_size if self.part_path.exists() else 0

    def restart(self) -> None:
        """Delete the partial file and its version mark."""
        self.part_path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)


def download(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    size: int | None = None,
    say: Say = lambda _: None,
    timeout: float = 30.0,
    retries: int = 3,
    wait: float = 1.0,
) -> Path:
    """Download a file, or resume an interrupted download.

    Args:
        url: An http or https address.
        target: File to write. If it exists, nothing is done, because a file gets this name only after its checksum was
            verified.
        md5: Expected MD5, in hexadecimal digits.
        sha256: Expected SHA-256, in hexadecimal digits; at most one of both may be given.
        size: Expected length in bytes; None if unknown.
        say: Receives lines of text about progress and retries.
        timeout: Seconds without an answer after which the connection counts as lost, > 0.
        retries: Number of consecutive retries without progress, >= 0.
        wait: Seconds before the first retry, >= 0; doubled for each further one.

    Returns:
        `target`.

    Raises:
        DataError: If the server refuses or can't be reached, the content has another size or checksum, or the disk is
            full.
        SettingsError: If the address is invalid, or both checksums are given.
    """
    if not re.match(r"https?://[^/]", url):
        raise SettingsError(
            "invalid_url", f"expected an address that begins with http:// or https://, got '{url}'", url=url
        )
    if md5 and sha256:
        raise SettingsError(
            "incompatible_settings",
            "expected one checksum, got an MD5 and a SHA-256. Give the SHA-256.",
            settings=("md5", "sha256"),
        )
    if target.exists():
        return target
    checksum = ("md5", md5) if md5 else ("sha256", sha256) if sha256 else None
    job = _Download(url=url, target=target, checksum=checksum, size=size, timeout=timeout, say=say)
    with _disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _disk_errors(target), hold_lock(target.with_name(f".{target.name}.lock"), remove=True) as alone:
        if not alone:
            raise DataError(
                "file_in_use",
                f"another process is downloading {target}. Run the same command again when it has ended.",
                path=target,
            )
        if not target.exists():  # another process may have finished it meanwhile
            _fetch_with_retries(job, retries, wait)
            _verify_content(job)
            os.replace(job.part_path, target)
            job.tag_path.unlink(missing_ok=True)
    return target


def _fetch_with_retries(job: _Download, retries: int, wait: float) -> None:
    """Fetch until the file is complete; give up after `retries` consecutive tries without progress."""
    most_bytes, tries_without_progress = job.received_bytes(), 0
    while True:
        try:
            _fetch(job)
            return
        except _ConnectionLostError as error:
            tries_without_progress = 0 if job.received_bytes() > most_bytes else tries_without_progress + 1
            most_bytes = max(most_bytes, job.received_bytes())
            if tries_without_progress > retries:
                kept = (
                    f"{job.received_bytes()} bytes are kept in {job.part_path}; the same"
                    if job.received_bytes()
                    else "The same"
                )
                raise DataError(
                    "incomplete_download",
                    f"the download of {job.url} is incomplete: {error}. {kept} command continues. "
                    "Check the network, or give another address.",
                    url=job.url,
                    path=job.part_path,
                    kept=job.received_bytes(),
                    reason=str(error),
                ) from None
            job.say(f"the connection was cut ({error}); trying again")
            time.sleep(wait * 2 ** max(tries_without_progress - 1, 0))


def _fetch(job: _Download) -> None:
    """Send one request and append the response to the partial file. Start the file again if the server can't resume.

    Raises:
        _ConnectionLostError: If the content did not arrive completely.
        DataError: If the server refuses.
    """
    request = urllib.request.Request(job.url, headers=_headers(job))
    received_bytes = job.received_bytes()
    try:
        response = urllib.request.urlopen(request, timeout=job.timeout)  # noqa: S310 - http and https only, see above
    except urllib.error.HTTPError as error:
        with error:
            _handle_http_error(job, error, received_bytes)
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _ConnectionLostError(_network_reason(error)) from None
    with response:
        start, total = _content_range(response, received_bytes)
        if start not in (0, received_bytes):
            job.restart()
            raise _ConnectionLostError("the server continued at another place")
        mark, wanted = _version_mark(response), request.get_header("If-range")
        if start and mark and wanted and mark != wanted:
            job.restart()
            raise _ConnectionLostError("the server continued with another version of the file")
        _check_total(job, total)
        if start == 0:
            job.restart()
            with _disk_errors(job.tag_path):
                job.tag_path.write_text(mark, encoding="utf-8")
        with _disk_errors(job.part_path), job.part_path.open("ab") as file:
            _copy_content(job, response, file, start, total)
    if total is not None and job.received_bytes() < total:
        raise _ConnectionLostError(f"received {job.received_bytes()} of {total} bytes")


def _headers(job: _Download) -> dict[str, str]:
    """Return the request headers.

    They ask for the remaining bytes if the partial file can be verified, by the server's version mark or by a checksum.
    """
    headers = {"User-Agent": f"medfl/{__version__}", "Accept-Encoding": "identity"}
    mark = job.tag_path.read_text(encoding="utf-8") if job.tag_path.exists() else ""
    if job.received_bytes() and (mark or job.checksum):
        headers["Range"] = f"bytes={job.received_bytes()}-"
        if mark:
            headers["If-Range"] = mark
    return headers


def _content_range(response: http.client.HTTPResponse, received_bytes: int) -> tuple[int, int | None]:
    """Return the start of a response's content in the file, and the file's whole length if the server states it."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    extent = re.match(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if not extent:
        return -1, None
    return int(extent[1]) if received_bytes else -1, None if extent[2] == "*" else int(extent[2])


def _handle_http_error(job: _Download, error: urllib.error.HTTPError, received_bytes: int) -> None:
    """Raise for an HTTP error; return if the error means that the partial file is already complete."""
    if error.code == 416:
        total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if total == str(received_bytes):
            return
        job.restart()
        raise _ConnectionLostError(
            "the partial file does not match the file on the server, so the download starts again"
        )
    if error.code in _TEMPORARY_HTTP_ERRORS:
        raise _ConnectionLostError(f"the server answered {error.code} {error.reason}")
    raise DataError(
        "http_error",
        f"the server answered {error.code} {error.reason} for {job.url}. Check the name and the address; "
        "or download the file by other means and put it where it is expected.",
        status=error.code,
        url=job.url,
    )


def _check_total(job: _Download, total: int | None) -> None:
    if job.size is not None and total is not None and total != job.size:
        job.restart()
        raise DataError(
            "wrong_announced_size",
            f"expected {job.size} bytes at {job.url}, the server has {total}: another version, or an error page. "
            "Open the address in a browser, or give another one.",
            url=job.url,
            expected=job.size,
            found=total,
        )


def _version_mark(response: http.client.HTTPResponse) -> str:
    """Return the server's version mark: a strong ETag or the date of the last change.

    Weak ETags are not used, because they do not guarantee equal bytes (RFC 9110, section 8.8.1).
    """
    mark = response.headers.get("ETag") or ""
    return mark if mark.startswith('"') else response.headers.get("Last-Modified") or ""


def _copy_content(
    job: _Download, response: http.client.HTTPResponse, file: BinaryIO, start: int, total: int | None
) -> None:
    done = start
    with progress(f"downloading {job.target.name}", total, "MB", job.say, in_bytes=True) as show:
        show(done)
        while chunk := _read_chunk(response):
            file.write(chunk)
            done += len(chunk)
            show(done)


def _read_chunk(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _ConnectionLostError(_network_reason(error)) from None


def _network_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Convert OSErrors of the block into DataErrors. Network errors are `_ConnectionLostError` by then."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "unwritable_file",
            f"{path} can't be written: {error.strerror}. Make room, or give another folder.",
            path=path,
            reason=error.strerror,
        ) from None


def _verify_content(job: _Download) -> None:
    """Compare size and checksum with the expected values. If they differ, delete the partial file and raise."""
    checks: list[tuple[str, object, object]] = []
    if job.size is not None:
        checks.append(("bytes", job.size, job.received_bytes()))
    if job.checksum:
        name, expected = job.checksum
        with job.part_path.open("rb") as file:
            got = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()
        checks.append((name.upper(), expected.lower(), got))
    for kind, expected_value, actual_value in checks:
        if expected_value != actual_value:
            job.restart()
            raise DataError(
                "wrong_size" if kind == "bytes" else "wrong_checksum",
                f"expected {kind} {expected_value} of {job.url}, got {actual_value}: damaged in transit, or another "
                "version. The file was deleted. Run the same command again; if the value is the same again, give "
                "another address.",
                url=job.url,
                what=kind,
                expected=expected_value,
                found=actual_value,
            )
