"""``medfl check-bundle``: what a bundle would run, and what is wrong with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl.bundle.check import Report

KNOWN = ("torch", "monai", "medfl")
"""Packages that every installation has; code of any other is marked."""

WIDEST = 60
"""Letters of an id up to which the column of ids grows."""


def command(
    bundle: Annotated[str, typer.Argument(help="A bundle's folder, or the name of one that comes with medfl.")],
) -> None:
    """Check a bundle offline, and list all code that it would run.

    Nothing in the bundle is imported, instantiated or evaluated. The status is 2 if there are errors.

    Example: medfl check-bundle medmnist_classification
    """
    from medfl.bundle.check import check_bundle
    from medfl.bundle.files import find_bundle

    report = check_bundle(find_bundle(bundle))
    for line in lines(report):
        typer.echo(line)
    if report.errors:
        raise typer.Exit(2)


def lines(report: Report) -> list[str]:
    """A report for reading; characters that a terminal would not show are written out, so that none can hide."""
    from medfl.utils.text import visible

    shown = [f"{report.title or 'bundle'}: {report.root}", ""]
    for title, sentences in (("Errors", report.errors), ("Warnings", report.warnings), ("Notes", report.notes)):
        shown += [f"{title}: {len(sentences) or 'none'}", *(f"  {sentence}" for sentence in sentences), ""]
    shown += [*_by_package(report), "", *_by_file(report), *_files(report)]
    return [visible(line) for line in shown]


def _by_package(report: Report) -> list[str]:
    """Targets and imports, package by package with counts."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for code in report.code:
        if code.package:
            counts[code.package][code.text] += 1
    shown = ["What is called and imported, by package (expressions can call more; they stand below in full):"]
    for package in sorted(counts, key=lambda name: (name in KNOWN, name)):
        mark = package if package in KNOWN else f"{package} (other package)"
        shown.append(f"  {mark}")
        shown += [f"    {count} x {text}" for text, count in sorted(counts[package].items())]
    return shown


def _by_file(report: Report) -> list[str]:
    """All code, file by file in its order."""
    shown = []
    for file in dict.fromkeys(code.file for code in report.code):
        codes = [code for code in report.code if code.file == file]
        counts = Counter(code.kind for code in codes)
        shown.append(f"{file}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        width = min(WIDEST, max(len(code.id) for code in codes))
        shown += [f"  {code.kind:<10}  {code.id:<{width}}  {code.text}" for code in codes]
        shown.append("")
    return shown


def _files(report: Report) -> list[str]:
    shown = [f"Files with code or weights: {len(report.files) or 'none'}"]
    return shown + [f"  {file.path}: {file.text}" for file in report.files]
