"""Check that results pages and raw results belong together: every page is generated again and compared byte by byte.

Three kinds of files are checked: the raw results against their SHA-256 and their own scores, the pages against the text
that their template and the raw results give, and everything else against its SHA-256.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path

import torch

from medfl.errors import MedflError, SettingsError, StoreError
from medfl.utils.files import sha256_of, write_atomic
from medfl.utils.processes import fresh_context, live_with_parent
from medfl_studies.results.pages import (
    INDEX,
    RAW,
    TEMPLATES,
    Page,
    find_pages,
    page_renderer,
)
from medfl_studies.results.recorded_study import compare_rounds, compare_scores, read_results

SUMS = "SHA256SUMS"
"""File with the SHA-256 of every file that is not generated, in the format of ``sha256sum``."""

SCORE_TOLERANCE = 1e-9
"""Difference of scores up to which two processors may differ."""

SHOWN_CHARACTERS = 160
"""Largest number of characters of a line of a page in a message."""


@dataclass(frozen=True)
class CheckLine:
    """Result of the check of a page, or of a file.

    Attributes:
        subject: Name of the page or file.
        ok: Whether the check passed.
        text: What was found.
        seconds: Duration.
    """

    subject: str
    ok: bool
    text: str
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the line as the command prints it."""
        return f"{'ok  ' if self.ok else 'FAIL'} {self.subject}: {self.text}"


def check_results(folder: Path, jobs: int = 1) -> Iterator[CheckLine]:
    """Check the files of a folder of results pages, and yield a line for each page, study and fault.

    Args:
        folder: Folder of the pages.
        jobs: Number of pages that are checked at the same time, each in a process of its own; 1 is this process.

    Raises:
        StoreError: If the folder has no pages.
    """
    pages = find_pages(folder)
    yield from _check_sums(folder, pages)
    checked: set[str] = set()
    checker = PageChecker(folder)
    with _page_checks(checker, pages, jobs) as checks:
        for check in checks:
            yield from (line for line in check.studies if line.subject not in checked)
            checked |= {line.subject for line in check.studies}
            yield check.page
    for path in sorted((folder / RAW).glob("*/")):  # studies of no page
        if _subject(path.name) not in checked:
            yield checker.check_study(path.name)


@dataclass(frozen=True)
class PageCheck:
    """Result of the check of a page and of its studies.

    Attributes:
        page: Result for the page.
        studies: Results for the raw results of the studies that the page shows.
    """

    page: CheckLine
    studies: tuple[CheckLine, ...] = ()


class PageChecker:
    """Checker of single pages. It reads and checks the raw results of each study once.

    Args:
        folder: Folder of the pages.

    Attributes:
        folder: Folder of the pages.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = cache(read_results)
        self._render = page_renderer(folder, self._read)
        self._studies: dict[str, CheckLine] = {}

    def check(self, page: Page) -> PageCheck:
        """Check a page and the scores of its studies."""
        started = time.monotonic()
        try:
            rendered = self._render(page)
        except MedflError as error:
            return PageCheck(CheckLine(page.path.name, False, str(error)))
        fault = _first_difference(page.path, rendered.text)
        sources = ", ".join(map(_subject, rendered.studies))
        text = f"recomputed from {sources}" if sources else "generated; there are no raw results of its studies yet"
        line = CheckLine(page.path.name, not fault, fault or text, time.monotonic() - started)
        return PageCheck(line, tuple(self.check_study(name) for name in rendered.studies))

    def check_study(self, name: str) -> CheckLine:
        """Check the scores of a study: the line has the first one that its predictions or rounds contradict."""
        if name not in self._studies:
            self._studies[name] = self._compute_study(name)
        return self._studies[name]

    def _compute_study(self, name: str) -> CheckLine:
        started = time.monotonic()
        try:
            results = self._read(self.folder / RAW / name)
            count, by_round, fault = 0, 0, ""
            for kept, run in zip(results.raw.runs, results.runs, strict=True):
                limit = results.raw.data[kept.data].score_error + SCORE_TOLERANCE
                for score in compare_scores(kept, run, results.read_sets(run)):
                    count += 1
                    if score.error > limit and not fault:
                        fault = f"{score.place}: {score.metric} is {score.recorded}, predictions give {score.computed}"
                for score in compare_rounds(kept, run):
                    by_round += 1
                    if score.error > 0 and not fault:
                        fault = f"{score.place}: {score.metric} is {score.recorded}, the final score {score.computed}"
        except MedflError as error:
            return CheckLine(_subject(name), False, str(error))
        text = fault or f"{len(results.runs)} runs, {count} scores agree with the predictions"
        text += f", {by_round} scores of last rounds with the final scores" if by_round and not fault else ""
        return CheckLine(_subject(name), not fault, text, time.monotonic() - started)


def _start_worker() -> None:
    live_with_parent()
    torch.set_num_threads(1)


@cache
def _worker_checker(folder: Path) -> PageChecker:
    """Return the checker of this worker process, the same for all of its pages."""
    return PageChecker(folder)


def _check_in_worker(folder: Path, page: Page) -> PageCheck:
    return _worker_checker(folder).check(page)


@contextmanager
def _page_checks(checker: PageChecker, pages: Sequence[Page], jobs: int) -> Iterator[Iterable[PageCheck]]:
    """Yield the check of each page in order, by `checker` or in other processes; see `check_results`."""
    if jobs == 1:
        yield map(checker.check, pages)
        return
    context = fresh_context([__name__])
    with ProcessPoolExecutor(jobs, context, initializer=_start_worker) as pool:
        yield pool.map(partial(_check_in_worker, checker.folder), pages)


def _subject(study: str) -> str:
    return f"{RAW}/{study}"


def verify_sums(folder: Path) -> None:
    """Raise StoreError if a file that is not generated was changed, or is not in the list of SHA-256.

    Args:
        folder: Folder of the pages.
    """
    for line in _check_sums(folder, find_pages(folder)):
        raise StoreError("changed_file", f"{line.subject}: {line.text}", path=folder / line.subject)


def update_sums(folder: Path, files: list[Path], removed_below: Path | None = None) -> None:
    """Write the SHA-256 of some files into the list, and leave the other lines unchanged.

    Args:
        folder: Folder of the pages.
        files: Files within this folder.
        removed_below: Folder whose files are removed from the list first; None removes none.

    Raises:
        SettingsError: If a file is not within the folder.
    """
    sums = read_sums(folder)
    if removed_below is not None:
        gone = removed_below.resolve().relative_to(folder.resolve())
        sums = {name: digest for name, digest in sums.items() if gone not in Path(name).parents}
    for path in files:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise SettingsError(
                "outside_folder", f"expected a file within '{folder}', got '{path}'.", path=path, folder=folder
            )
        sums[path.resolve().relative_to(folder.resolve()).as_posix()] = sha256_of(path)
    sums = {name: digest for name, digest in sorted(sums.items()) if (folder / name).is_file()}
    write_atomic(folder / SUMS, "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each listed file, by its path relative to the folder; empty without the list.

    Raises:
        StoreError: If a line is not in the format of ``sha256sum``.
    """
    path = folder / SUMS
    if not path.is_file():
        return {}
    sums = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64:
            raise StoreError(
                "damaged_file",
                f"'{path}', line {number}: expected a SHA-256, two spaces and a path. Put the file back.",
                path=path,
                line=number,
            )
        sums[name] = digest
    return sums


def _check_sums(folder: Path, pages: list[Page]) -> Iterator[CheckLine]:
    """Yield a line for each file that was changed, is missing, or is not in the list."""
    sums, generated = read_sums(folder), {page.path for page in pages}
    free = {folder / SUMS, folder / INDEX} | generated
    present = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path not in free and folder / TEMPLATES not in path.parents
    }
    for name in sorted(present.keys() | sums.keys()):
        if name not in present:
            yield CheckLine(name, False, f"the file is missing; {SUMS} lists it")
        elif present[name].suffix == ".md":
            yield CheckLine(name, False, f"the page has no template in '{TEMPLATES}'; every page is generated")
        elif name not in sums:
            yield CheckLine(name, False, f"the file is not in {SUMS}; run `medfl results keep` on it")
        elif sha256_of(present[name]) != sums[name]:
            yield CheckLine(name, False, f"the file was changed: its SHA-256 is not that of {SUMS}")


def _first_difference(path: Path, expected: str) -> str:
    """Return a text about the first line in which a page differs from its generated text; empty if it does not."""
    if not path.is_file():
        return "the page is missing; run `medfl results render`"
    content = path.read_bytes()
    if content == expected.encode():
        return ""
    pairs = zip_longest(content.decode("utf-8", "replace").splitlines(), expected.splitlines())
    for number, (line, right) in enumerate(pairs, 1):
        if line != right:
            return f"line {number} differs: found {_shown(line, right)}, expected {_shown(right, line)}"
    return "the line ends differ; run `medfl results render`"


def _shown(line: str | None, other: str | None) -> str:
    """Return the part of a line around the first character that differs from another line."""
    if line is None:
        return "no line"
    pairs = enumerate(zip(line, other or "", strict=False))
    first = next((place for place, (a, b) in pairs if a != b), min(len(line), len(other or "")))
    start = max(0, first - SHOWN_CHARACTERS // 2)
    return repr(line[start : start + SHOWN_CHARACTERS])
