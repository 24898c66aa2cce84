"""What the commands of ``medfl prep`` share: options, sizes and the last lines of their output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.errors import SettingsError

if TYPE_CHECKING:
    from medfl.data.datalists import Datalist

Out = Annotated[Path, typer.Option(help="The folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a data set that is there.")]
DeidentifyCheck = Annotated[str, typer.Option(help="DICOM that may tell who the patient is: strip, or refuse it.")]
CropBreast = Annotated[
    bool, typer.Option("--crop-breast", help="Cut the breast out of whole mammograms (needs medfl[mammography]).")
]
Align = Annotated[bool, typer.Option("--align", help="Mirror right breasts: the chest wall is on the left.")]
Voi = Annotated[bool, typer.Option("--voi", help="Apply the window for display that a DICOM file holds.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that can't be read; quarantine.csv lists them.")
]


def check_mirror(url: str | None, download: bool) -> None:
    """Refuse the address of a mirror where nothing is downloaded.

    Raises:
        SettingsError: If it is given without ``--download``.
    """
    if url and not download:
        raise SettingsError("--url says where to download from: give --download as well, or leave it out.")


def to_stderr(line: str) -> None:
    """Show a line of progress or a warning."""
    typer.echo(line, err=True)


def edges(text: str) -> tuple[int, ...]:
    """One to three edges of an image, as in 224, 224x160 or 64x64x32.

    Raises:
        SettingsError: If the text is none of these.
    """
    if not re.fullmatch(r"\d+([x, ]\d+){0,2}", text):
        raise SettingsError(f"expected a size like 224, 224x160 or 64x64x32, got '{text}'")
    return tuple(int(edge) for edge in re.split("[x, ]", text))


def height_and_width(text: str) -> tuple[int, int]:
    """Height and width of an image, as in 224 or 448x224.

    Raises:
        SettingsError: If the text is none of these.
    """
    found = edges(text)
    if len(found) > 2:
        raise SettingsError(f"expected one or two edges for images, as in 224 or 448x224, got '{text}'")
    return found[0], found[-1]


def summarise(out: Path, datalist: Datalist) -> None:
    """Say what was written: images of each split and of each class."""
    counts = datalist.counts()
    sizes = ", ".join(f"{len(records)} {split}" for split, records in datalist.splits.items())
    typer.echo(f"{out}: {sizes} images of {datalist.num_classes} classes")
    for label, class_name in datalist.labels.items():
        typer.echo(f"  {label} {class_name}: {sum(split[label] for split in counts.values())}")
