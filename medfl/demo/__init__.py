"""Federations from nothing: made-up images, prepared, partitioned, trained, compared, and on a page each."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medfl.demo.brains import brains
from medfl.demo.cells import cells


def demo(out: Path, rounds: int = 14, images: int = 240, seed: int = 0) -> list[Path]:
    """Go the whole way twice: blood cells at four sites, and brain maps at four sites with unlike networks.

    `medfl.demo.cells` and `medfl.demo.brains` say what is made up there, and how.

    Args:
        out: Where everything goes; what is there is continued.
        rounds: Rounds of the runs on blood cells; those on brains have half of them.
        images: Images per site, on average; brains have a sixth of it for each of eight scanning centres.
        seed: Of all data and runs.

    Returns:
        The reports.

    Raises:
        MedflError: If a run fails.
    """
    console = Console(highlight=False, soft_wrap=True)
    pages = [
        cells(out, rounds, images, seed, console),
        brains(out / "brains", max(rounds // 2, 1), max(images // 6, 10), seed, console),
    ]
    console.print(f"\nWho gains, site by site: open {pages[0]}\nUnlike networks that teach each other: open {pages[1]}")
    return pages
