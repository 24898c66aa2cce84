"""``medfl check-bundle``: check a bundle, and list the code that it would run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from medfl.bundle.check import BundleReport

BASE_PACKAGES = ("torch", "monai", "medfl")
"""Packages that every installation has. The report marks code of any other package."""

MAX_ID_WIDTH = 60
"""Largest width of the column of ids in characters."""


def command(
    bundle: Annotated[str, typer.Argument(help="Folder of the bundle, or a name from `medfl list bundles`.")],
) -> None:
    """Check a bundle offline, and list all code that it would run.

    The check imports, instantiates and evaluates nothing of the bundle. The exit status is 2 if there are errors.

    Example: medfl check-bundle medmnist_classification
    """
    from medfl.bundle.bundle_folders import find_bundle
    from medfl.bundle.check import check_bundle

    report = check_bundle(find_bundle(bundle))
    for line in report_lines(report):
        typer.echo(line)
    if report.errors:
        raise typer.Exit(2)


def report_lines(report: BundleReport) -> list[str]:
    """Return the lines of a report. Characters that a terminal would not show are escaped, so no text is hidden."""
    from medfl.utils.text import visible

    shown = [f"{report.title or 'bundle'}: {report.root}", ""]
    for title, sentences in (("Errors", report.errors), ("Warnings", report.warnings), ("Notes", report.notes)):
        shown += [f"{title}: {len(sentences) or 'none'}", *(f"  {sentence}" for sentence in sentences), ""]
    shown += [*_package_lines(report), "", *_code_lines(report), *_file_lines(report)]
    return [visible(line) for line in shown]


def _package_lines(report: BundleReport) -> list[str]:
    """Return lines with the number of calls and imports of each target, package by package."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for code in report.code:
        if code.package:
            counts[code.package][code.text] += 1
    shown = ["Calls and imports by package (expressions can call more code; they are listed in full below):"]
    for package in sorted(counts, key=lambda name: (name in BASE_PACKAGES, name)):
        mark = package if package in BASE_PACKAGES else f"{package} (other package)"
        shown.append(f"  {mark}")
        shown += [f"    {count} x {text}" for text, count in sorted(counts[package].items())]
    return shown


def _code_lines(report: BundleReport) -> list[str]:
    """Return lines with all code, file by file."""
    shown = []
    for file in dict.fromkeys(code.file for code in report.code):
        codes = [code for code in report.code if code.file == file]
        counts = Counter(code.kind for code in codes)
        shown.append(f"{file}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
        width = min(MAX_ID_WIDTH, max(len(code.id) for code in codes))
        shown += [f"  {code.kind:<10}  {code.id:<{width}}  {code.text}" for code in codes]
        shown.append("")
    return shown


def _file_lines(report: BundleReport) -> list[str]:
    """Return lines with the files that contain code or weights."""
    shown = [f"Files with code or weights: {len(report.files) or 'none'}"]
    return shown + [f"  {file.path}: {file.text}" for file in report.files]
