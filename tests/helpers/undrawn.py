"""Figures without content, for tests in which drawing would take longer than everything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest


@contextmanager
def undrawn() -> Iterator[None]:
    """Save figures as empty SVG elements."""

    def save(figure: object, target: Path | TextIO, **options: object) -> None:
        write = target.write_text if isinstance(target, Path) else target.write
        write("<svg></svg>")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", save)
        yield
