"""How a study prepares a data set from its release: one class for each kind of release."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from medfl.errors import DataError
from medfl.settings import Strict
from medfl.studies.cell_preps import Acevedo, BloodCells, Bodzas, Matek
from medfl.studies.tpf_preps import LC25000, CelebA

Say = Callable[[str], None]


class MedMNIST(Strict):
    """A file of MedMNIST.

    Attributes:
        dataset: ``medmnist``.
        flag: Name of the data set, for example ``bloodmnist``; ``<flag>.npz`` is looked for in ``medmnist/`` of the
            source folder, then in the source folder itself.
        finding: Of a data set with several labels for an image, the one to classify.
    """

    dataset: Literal["medmnist"]
    flag: str = Field(pattern=r"^\w+$")
    finding: str | None = None

    def find(self, source: Path) -> Path:
        """The release in the study's source folder.

        Raises:
            DataError: If it is not there.
        """
        from medfl_datasets.medmnist.spec import find_npz

        nested = source / "medmnist"
        return find_npz(nested if (nested / f"{self.flag}.npz").is_file() else source, self.flag)

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.medmnist.spec import prepare

        prepare(self.find(source), self.flag, pool, finding=self.finding, say=say)


class Abide(Strict):
    """ABIDE I; the arguments of `medfl_datasets.abide.spec.prepare`.

    Attributes:
        dataset: ``abide``.
        derivatives: The maps, one for each channel.
        pipeline: Of the Preprocessed Connectomes Project.
        strategy: Of the Preprocessed Connectomes Project.
        size: Voxels along each edge.
        sites: ``fedasd`` or a column.
        atlas: A file of labels, relative to the source folder; None means none.
    """

    dataset: Literal["abide"]
    derivatives: tuple[str, ...] = ("reho", "degree_weighted", "lfcd", "vmhc")
    pipeline: str = "cpac"
    strategy: str = "filt_noglobal"
    size: int = Field(48, ge=1)
    sites: str = "fedasd"
    atlas: str | None = None

    def find(self, source: Path) -> Path:
        """The release: ``abide/`` of the source folder, or the source folder itself.

        Raises:
            DataError: If the phenotypic file is in neither, or the atlas is not there.
        """
        from medfl_datasets.abide.tables import FILE

        folder = _first(source, "abide", FILE)
        if self.atlas is not None and not (source / self.atlas).is_file():
            raise DataError(f"expected an atlas at '{source / self.atlas}', there is none. Correct 'atlas'.")
        return folder

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.abide.files import Maps
        from medfl_datasets.abide.spec import prepare

        maps = Maps(self.derivatives, self.pipeline, self.strategy)
        atlas = None if self.atlas is None else source / self.atlas
        prepare(self.find(source), pool, maps=maps, size=self.size, sites=self.sites, atlas=atlas, say=say)


class Derm7pt(Strict):
    """Derm7pt; the arguments of `medfl_datasets.derm7pt.spec.prepare`.

    Attributes:
        dataset: ``derm7pt``.
        size: Height and width in pixels.
        view: ``derm`` or ``clinic``.
        split: ``official``, or ``none``: all cases are dealt to the sites.
    """

    dataset: Literal["derm7pt"]
    size: int = Field(224, ge=1)
    view: Literal["derm", "clinic"] = "derm"
    split: Literal["official", "none"] = "none"

    def find(self, source: Path) -> Path:
        """The release: ``release_v0/`` or ``derm7pt/release_v0/`` of the source folder.

        Raises:
            DataError: If it is in neither.
        """
        return _first(source, "derm7pt", "release_v0/meta/meta.csv")

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.derm7pt.spec import prepare

        prepare(self.find(source), pool, size=self.size, view=self.view, split=self.split, say=say)


class CbisDdsm(Strict):
    """CBIS-DDSM; the arguments of `medfl_datasets.cbis_ddsm.spec.prepare`.

    Attributes:
        dataset: ``cbis_ddsm``.
        size: Height and width in pixels.
        view: ``full`` films or lesion ``crop``s.
        abnormality: ``mass``, ``calc`` or ``both``.
        crop_breast: Whether to cut the breast out of whole films.
        align: Whether to mirror right breasts.
    """

    dataset: Literal["cbis_ddsm"]
    size: int = Field(224, ge=1)
    view: Literal["full", "crop"] = "full"
    abnormality: Literal["mass", "calc", "both"] = "both"
    crop_breast: bool = False
    align: bool = False

    def find(self, source: Path) -> Path:
        """The release: ``cbis_ddsm/`` of the study's source folder.

        Raises:
            DataError: If it is not there.
        """
        return _folder(source, "cbis_ddsm")

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.cbis_ddsm.pixels import Options
        from medfl_datasets.cbis_ddsm.spec import prepare

        options = Options((self.size, self.size), self.crop_breast, self.align)
        prepare(self.find(source), pool, view=self.view, abnormality=self.abnormality, options=options, say=say)


class Mias(Strict):
    """mini-MIAS; the arguments of `medfl_datasets.mias.spec.prepare`.

    Attributes:
        dataset: ``mias``.
        size: Height and width in pixels.
        view: ``full`` films or lesion ``crop``s.
        labels: What is told apart; None as `medfl_datasets.mias.spec.prepare` has it.
        crop_breast: Whether to cut the breast out of whole films.
        align: Whether to mirror right breasts.
    """

    dataset: Literal["mias"]
    size: int = Field(224, ge=1)
    view: Literal["full", "crop"] = "full"
    labels: Literal["three-class", "benign-malignant", "malignant-rest"] | None = None
    crop_breast: bool = False
    align: bool = False

    def find(self, source: Path) -> Path:
        """The release: ``mias/`` of the study's source folder.

        Raises:
            DataError: If it is not there.
        """
        return _folder(source, "mias")

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.mias.spec import prepare

        how = {"view": self.view, "labels": self.labels, "crop_breast": self.crop_breast, "align": self.align}
        prepare(self.find(source), pool, size=(self.size, self.size), say=say, **how)  # type: ignore[arg-type]


class Ham10000(Strict):
    """HAM10000; the arguments of `medfl_datasets.ham10000.spec.prepare`.

    Attributes:
        dataset: ``ham10000``.
        size: Height and width in pixels.
        preset: ``medfl``: images of a lesion stay together; ``paper``: they do not.
        crop_lesion: Whether to cut the lesion out.
    """

    dataset: Literal["ham10000"]
    size: int = Field(224, ge=1)
    preset: Literal["medfl", "paper"] = "medfl"
    crop_lesion: bool = False

    def find(self, source: Path) -> Path:
        """The release: ``ham10000/`` of the study's source folder.

        Raises:
            DataError: If it is not there.
        """
        return _folder(source, "ham10000")

    def make(self, source: Path, pool: Path, say: Say) -> None:
        """Prepare the pooled data set."""
        from medfl_datasets.ham10000.spec import prepare

        size = (self.size, self.size)
        prepare(self.find(source), pool, size=size, preset=self.preset, crop_lesion=self.crop_lesion, say=say)


Prep = Annotated[
    MedMNIST | Abide | Derm7pt | CbisDdsm | Mias | Ham10000 | Acevedo | Matek | Bodzas | BloodCells | LC25000 | CelebA,
    Field(discriminator="dataset"),
]
"""What a study file may say under ``prep``."""


def _folder(source: Path, name: str) -> Path:
    if not (source / name).is_dir():
        raise DataError(f"expected the folder '{source / name}', there is none. Put the release there.")
    return source / name


def _first(source: Path, nested: str, file: str) -> Path:
    for folder in (source / nested, source):
        if (folder / file).is_file():
            return folder
    raise DataError(
        f"expected '{file}' in '{source / nested}' or '{source}', there is none. Put the release there, or give "
        "another --source."
    )
