"""How a study prepares releases of white blood cells; see `medfl.studies.preps`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from medfl.errors import DataError
from medfl.settings import Strict

if TYPE_CHECKING:
    from medfl_datasets.bloodcells.pool import How

Say = Callable[[str], None]


class Cells(Strict):
    """What all of them have.

    Attributes:
        size: Height and width in pixels.
        test_share: Share of each class of a release in the test set, 0 <= share < 1.
    """

    size: int = Field(224, ge=1)
    test_share: float = Field(0.2, ge=0, lt=1)

    def how(self) -> How:
        """Both, as `medfl.data` takes them."""
        from medfl_datasets.bloodcells.pool import How

        return How(self.size, self.test_share)


class OneRelease(Cells):
    """A release alone.

    Attributes:
        dataset: Its name.
    """

    dataset: str

    def find(self, source: Path) -> Path:
        """The release: the folder of its name in the study's source folder, or that itself.

        Raises:
            DataError: If it is in neither, or is not as expected.
        """
        return _find(source, self.dataset)


class Acevedo(OneRelease):
    """Acevedo-20; the arguments of `medfl_datasets.bloodcells.acevedo.prepare`.

    Attributes:
        dataset: ``acevedo``.
        preset: ``medfl`` or ``paper``.
        labels: ``class`` or ``subclass``; None means the preset's.
    """

    dataset: Literal["acevedo"]
    preset: Literal["medfl", "paper"] = "medfl"
    labels: Literal["class", "subclass"] | None = None

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.bloodcells.acevedo import prepare

        prepare(self.find(source), pool, self.how(), preset=self.preset, labels=self.labels, say=say)


class Matek(OneRelease):
    """Matek-19; the arguments of `medfl_datasets.bloodcells.matek.prepare`.

    Attributes:
        dataset: ``matek``.
    """

    dataset: Literal["matek"]

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.bloodcells.matek import prepare

        prepare(self.find(source), pool, self.how(), say=say)


class Bodzas(OneRelease):
    """Bodzas-23; the arguments of `medfl_datasets.bloodcells.bodzas.prepare`.

    Attributes:
        dataset: ``bodzas``.
    """

    dataset: Literal["bodzas"]

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.bloodcells.bodzas import prepare

        prepare(self.find(source), pool, self.how(), say=say)


class BloodCells(Cells):
    """Several releases with one set of classes; the arguments of `medfl_datasets.bloodcells.spec.prepare`.

    Attributes:
        dataset: ``bloodcells``.
        sources: Which releases, each in the folder of its name in the study's source folder.
        label_map: A label map, relative to the source folder; None means the one that medfl ships.
    """

    dataset: Literal["bloodcells"]
    sources: tuple[Literal["acevedo", "matek", "bodzas"], ...] = Field(("acevedo", "matek", "bodzas"), min_length=1)
    label_map: str | None = None

    def find(self, source: Path) -> Path:
        """The study's source folder.

        Raises:
            DataError: If it lacks a release or the label map, or a release is not as expected.
        """
        for name in self.sources:
            _find(source, name)
        if self.label_map is not None and not (source / self.label_map).is_file():
            raise DataError(f"expected a label map at '{source / self.label_map}', there is none. Correct 'label_map'.")
        return source

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.bloodcells.spec import prepare

        folders: dict[str, Path] = {name: _find(source, name) for name in self.sources}
        label_map = None if self.label_map is None else source / self.label_map
        prepare(folders, pool, self.how(), label_map=label_map, say=say)


def _find(source: Path, name: str) -> Path:
    """The folder of a release, once its files were listed: what is wrong is told before anything is made."""
    from medfl_datasets.bloodcells.spec import RELEASES

    folder = source / name if (source / name).is_dir() else source
    RELEASES[name].find(folder)
    return folder
