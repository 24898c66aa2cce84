"""How a study prepares LC25000 and CelebA, the data sets of FedTPF's paper; see `medfl.studies.preps`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from medfl.settings import Strict

Say = Callable[[str], None]


class LC25000(Strict):
    """LC25000; the arguments of `medfl_datasets.lc25000.spec.prepare`.

    Attributes:
        dataset: ``lc25000``.
        size: Height and width in pixels.
        organ: ``both``, ``lung`` or ``colon``.
        groups: ``hash``: copies of a tile that are found stay together; ``none``: they do not.
    """

    dataset: Literal["lc25000"]
    size: int = Field(224, ge=1)
    organ: Literal["both", "lung", "colon"] = "both"
    groups: Literal["hash", "none"] = "hash"

    def find(self, source: Path) -> Path:
        """The release: ``lc25000/`` of the study's source folder, or that itself.

        Raises:
            DataError: If it is in neither, or is not as expected.
        """
        from medfl_datasets.lc25000.files import find_files
        from medfl_datasets.lc25000.spec import classes_of

        folder = _folder(source, self.dataset)
        find_files(folder, classes_of(self.organ))
        return folder

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.lc25000.spec import prepare

        prepare(self.find(source), pool, size=self.size, organ=self.organ, groups=self.groups, say=say)


class CelebA(Strict):
    """CelebA; the arguments of `medfl_datasets.celeba.spec.prepare`.

    Attributes:
        dataset: ``celeba``.
        size: Height and width in pixels.
        attribute: The label.
        crop: Whether to cut the largest square out of the middle first.
        split: ``auto``, ``official`` or ``none``.
        min_images: Persons with fewer images are left out.
    """

    dataset: Literal["celeba"]
    size: int = Field(64, ge=1)
    attribute: str = "Smiling"
    crop: bool = False
    split: Literal["auto", "official", "none"] = "auto"
    min_images: int = Field(1, ge=1)

    def find(self, source: Path) -> Path:
        """The release: ``celeba/`` of the study's source folder, or that itself.

        Raises:
            DataError: If it is in neither.
        """
        from medfl_datasets.celeba.files import find_files

        folder = _folder(source, self.dataset)
        find_files(folder)
        return folder

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.celeba.spec import prepare

        prepare(
            self.find(source),
            pool,
            attribute=self.attribute,
            size=(self.size, self.size),
            crop=self.crop,
            split=self.split,
            min_images=self.min_images,
            say=say,
        )


def _folder(source: Path, name: str) -> Path:
    return source / name if (source / name).is_dir() else source
