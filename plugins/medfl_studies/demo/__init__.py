"""Federations from nothing: made-up images, prepared, partitioned, trained, compared, and on a page each."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from medfl_studies.demo.brains import brains
from medfl_studies.demo.cells import cells


def demo(out: Path, rounds: int = 14, images: int = 200, seed: int = 0) -> list[Path]:
    """Go the whole way twice: blood cells of six hospitals, and brain maps at four sites with unlike networks.

    `medfl_studies.demo.cells` and `medfl_studies.demo.brains` say what is made up there, and how.

    Args:
        out: Where everything goes; what is there is continued.
        rounds: Rounds of the runs on blood cells; those on brains have half of them.
        images: Images per hospital, on average; brains have a quarter of it for each of eight scanning centres.
        seed: Of all data and runs.

    Returns:
        The reports.

    Raises:
        MedflError: If a run fails.
    """
    console = Console(highlight=False, soft_wrap=True)
    parts = {
        "Blood cells of six hospitals": cells(out, rounds, images, seed, console),
        "Brain maps, unlike networks that teach each other": brains(
            out / "brains", max(rounds // 2, 1), max(images // 4, 10), seed, console
        ),
    }
    for title, part in parts.items():
        lines = "".join(f"\n  {line}" for line in part.gains)
        console.print(f"\n{title}: open {part.page}{lines}", markup=False)
    return [part.page for part in parts.values()]
