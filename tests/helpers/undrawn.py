"""Figures without content, and runs without reports, for tests in which these would take longer than all else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import pytest

run_reports = False
"""Whether runs write reports at their end; the fixture of this name sets it."""


@contextmanager
def undrawn() -> Iterator[None]:
    """Save figures as empty SVG elements."""

    def save(figure: object, target: Path | TextIO, **options: object) -> None:
        write = target.write_text if isinstance(target, Path) else target.write
        write("<svg></svg>")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", save)
        yield


@contextmanager
def without_report() -> Iterator[None]:
    """Let a run end without its report, unless `run_reports` is set. No run fails if its report does."""
    with undrawn(), pytest.MonkeyPatch.context() as patch:
        if not run_reports and find_spec("medfl_report"):
            patch.setattr("medfl_report.page.write_report", lambda *runs, **options: None)
        yield
