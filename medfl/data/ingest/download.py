"""Download a file: what came is kept when the line is cut, the next try continues there, and the checksum decides.

The content goes to ``<name>.part``. Beside it ``<name>.part.tag`` keeps the server's own mark of the version (ETag or
date), so that a continued file is never put together from two versions. The file gets its name when it is whole and
its checksum is right. Of several processes that want the same file, one downloads it.

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

import medfl
from medfl.errors import DataError, SettingsError
from medfl.utils.locks import held
from medfl.utils.progress import progress
from medfl.utils.text import Say

CHUNK_BYTES = 1 << 18
"""How much is read at once."""

_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


class _CutError(Exception):
    """The connection failed; another try may help."""


@dataclass(frozen=True)
class _Job:
    """What is to be downloaded, and how it is known to be right."""

    url: str
    target: Path
    checksum: tuple[str, str] | None
    size: int | None
    timeout: float
    say: Say

    @property
    def part(self) -> Path:
        """What came so far."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def tag(self) -> Path:
        """The server's mark of the version of `part`."""
        return self.target.with_name(self.target.name + ".part.tag")

    def have(self) -> int:
        """Bytes that came so far."""
        return self.part.stat().st_size if self.part.exists() else 0

    def restart(self) -> None:
        """Forget what came so far."""
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)


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
    """Download a file, or continue an interrupted download.

    Args:
        url: An http or https address.
        target: The file to write. If it is there, nothing is done: it got its name after its checksum was right.
        md5: Expected MD5, in hexadecimal digits.
        sha256: Expected SHA-256, in hexadecimal digits; at most one of both is given.
        size: Expected length in bytes; None if it is not known.
        say: Gets plain lines about progress and new tries.
        timeout: Seconds without any answer after which a connection counts as cut, > 0.
        retries: How often to try again in a row without getting any further, >= 0.
        wait: Seconds before the first new try, >= 0; doubled for each one after it.

    Returns:
        `target`.

    Raises:
        DataError: If the server refuses, can't be reached, or sends something else than what is expected.
        SettingsError: If the address is none, or both checksums are given.
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
    job = _Job(url, target, checksum, size, timeout, say)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _writing(target), held(target.with_name(f".{target.name}.lock"), remove=True) as alone:
        if not alone:
            raise DataError(
                "file_in_use",
                f"another process is downloading {target}. Run the same command again when it has ended.",
                path=target,
            )
        if not target.exists():  # another process may have brought it meanwhile
            _persist(job, retries, wait)
            _verify(job)
            os.replace(job.part, target)
            job.tag.unlink(missing_ok=True)
    return target


def _persist(job: _Job, retries: int, wait: float) -> None:
    """Fetch until the file is whole; count only tries that bring nothing new."""
    farthest, vain = job.have(), 0
    while True:
        try:
            _fetch(job)
            return
        except _CutError as error:
            vain = 0 if job.have() > farthest else vain + 1
            farthest = max(farthest, job.have())
            if vain > retries:
                kept = f"{job.have()} bytes are kept in {job.part}; the same" if job.have() else "The same"
                raise DataError(
                    "incomplete_download",
                    f"the download of {job.url} did not come to its end: {error}. {kept} command continues. "
                    "Check the network, or give another address.",
                    url=job.url,
                    path=job.part,
                    kept=job.have(),
                    reason=str(error),
                ) from None
            job.say(f"the connection was cut ({error}); trying again")
            time.sleep(wait * 2 ** max(vain - 1, 0))


def _fetch(job: _Job) -> None:
    """One request: append to the part, or begin it again where the server can't continue.

    Raises:
        _CutError: If the content did not come whole.
        DataError: If the server refuses.
    """
    request = urllib.request.Request(job.url, headers=_headers(job))
    have = job.have()
    try:
        response = urllib.request.urlopen(request, timeout=job.timeout)  # noqa: S310 - http and https only, see above
    except urllib.error.HTTPError as error:
        with error:
            _refused(job, error, have)
        return
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _CutError(_network_reason(error)) from None
    with response:
        start, total = _extent(response, have)
        if start not in (0, have):
            job.restart()
            raise _CutError("the server continued at another place")
        mark, wanted = _mark(response), request.get_header("If-range")
        if start and mark and wanted and mark != wanted:
            job.restart()
            raise _CutError("the server continued with another version of the file")
        _check_total(job, total)
        if start == 0:
            job.restart()
            with _writing(job.tag):
                job.tag.write_text(mark, encoding="utf-8")
        with _writing(job.part), job.part.open("ab") as file:
            _copy(job, response, file, start, total)
    if total is not None and job.have() < total:
        raise _CutError(f"{job.have()} of {total} bytes came")


def _headers(job: _Job) -> dict[str, str]:
    """Ask for the rest if what came can be trusted to be its beginning: by the server's mark, or by a checksum."""
    headers = {"User-Agent": f"medfl/{medfl.__version__}", "Accept-Encoding": "identity"}
    mark = job.tag.read_text(encoding="utf-8") if job.tag.exists() else ""
    if job.have() and (mark or job.checksum):
        headers["Range"] = f"bytes={job.have()}-"
        if mark:
            headers["If-Range"] = mark
    return headers


def _extent(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where the content of an answer begins, and the length of the whole file if the server tells."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else None
    extent = re.match(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if not extent:
        return -1, None
    return int(extent[1]) if have else -1, None if extent[2] == "*" else int(extent[2])


def _refused(job: _Job, error: urllib.error.HTTPError, have: int) -> None:
    """Deal with an answer that is an error; returns if the part is already whole."""
    if error.code == 416:
        total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if total == str(have):
            return
        job.restart()
        raise _CutError("what was kept is no beginning of the file on the server, so it begins again")
    if error.code in _TEMPORARY:
        raise _CutError(f"the server answered {error.code} {error.reason}")
    raise DataError(
        "http_error",
        f"the server answered {error.code} {error.reason} for {job.url}. Check the name and the address; "
        "or download the file by other means and put it where it is expected.",
        status=error.code,
        url=job.url,
    )


def _check_total(job: _Job, total: int | None) -> None:
    if job.size is not None and total is not None and total != job.size:
        job.restart()
        raise DataError(
            "wrong_announced_size",
            f"expected {job.size} bytes at {job.url}, the server has {total}: another version, or a page that says "
            "why. Open the address in a browser, or give another one.",
            url=job.url,
            expected=job.size,
            found=total,
        )


def _mark(response: http.client.HTTPResponse) -> str:
    """The server's mark of a version. Weak ones do not promise equal bytes (RFC 9110, section 8.8.1)."""
    mark = response.headers.get("ETag") or ""
    return mark if mark.startswith('"') else response.headers.get("Last-Modified") or ""


def _copy(job: _Job, response: http.client.HTTPResponse, file: BinaryIO, start: int, total: int | None) -> None:
    done = start
    with progress(f"downloading {job.target.name}", total, "MB", job.say, in_bytes=True) as show:
        show(done)
        while chunk := _read(response):
            file.write(chunk)
            done += len(chunk)
            show(done)


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _CutError(_network_reason(error)) from None


def _network_reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn errors of the disk into ours; those of the network are `_CutError` by then."""
    try:
        yield
    except OSError as error:
        raise DataError(
            "unwritable_file",
            f"{path} can't be written: {error.strerror}. Make room, or give another folder.",
            path=path,
            reason=error.strerror,
        ) from None


def _verify(job: _Job) -> None:
    """Compare length and checksum; what is wrong is deleted."""
    checks: list[tuple[str, object, object]] = []
    if job.size is not None:
        checks.append(("bytes", job.size, job.have()))
    if job.checksum:
        name, expected = job.checksum
        with job.part.open("rb") as file:
            got = hashlib.file_digest(file, lambda: hashlib.new(name, usedforsecurity=False)).hexdigest()
        checks.append((name.upper(), expected.lower(), got))
    for what, wanted, came in checks:
        if wanted != came:
            job.restart()
            raise DataError(
                "wrong_size" if what == "bytes" else "wrong_checksum",
                f"expected {what} {wanted} of {job.url}, got {came}: damaged on the way, or another version. What "
                "came was deleted. Run the same command again; if the same value comes again, give another address.",
                url=job.url,
                what=what,
                expected=wanted,
                found=came,
            )
