"""Find the derivative maps of ABIDE I as the Preprocessed Connectomes Project (PCP) publishes them.

A map is an fMRI volume with a value for each brain voxel in MNI152 space, and 0 outside of the brain. A derivative is a
kind of map, such as ``reho`` (regional homogeneity). PCP computed each with several pipelines (software) and strategies
(filters). When a map is read, its non-zero voxels are normalised to mean 0 and standard deviation 1; all others stay 0.
It is then resampled to the common grid of `medfl.data.readers.volumes`, so that the maps of all subjects are aligned.

Messages never contain a file name, because it identifies a subject.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.errors import DataError, SettingsError, did_you_mean
from medfl_datasets.abide.map_files import SUFFIXES

PIPELINES = ("ccs", "cpac", "dparsf", "niak")
"""Pipelines: the software packages with which PCP computed the maps."""


STRATEGIES = ("filt_global", "filt_noglobal", "nofilt_global", "nofilt_noglobal")
"""Strategies: preprocessing with or without a band-pass filter, and with or without regression of the global signal."""


DERIVATIVES = (
    "alff",
    "degree_binarize",
    "degree_weighted",
    "eigenvector_binarize",
    "eigenvector_weighted",
    "falff",
    "lfcd",
    "reho",
    "vmhc",
)
"""Derivatives that have one map for each subject."""


DEFAULT_DERIVATIVES = ("reho", "degree_weighted", "lfcd", "vmhc")
"""Derivatives that the method FedASD uses as image channels, in their order; default of `MapSelection.derivatives`."""


@dataclass(frozen=True)
class MapSelection:
    """Selection of maps: derivatives, pipeline and strategy.

    Attributes:
        derivatives: Derivatives to read, from `DERIVATIVES`, each once; they become the channels in this order.
        pipeline: Software that computed the maps, one of `PIPELINES`.
        strategy: Preprocessing of the maps, one of `STRATEGIES`.

    Raises:
        SettingsError: If a name is unknown, or derivatives are empty or repeated.
    """

    derivatives: tuple[str, ...] = DEFAULT_DERIVATIVES
    pipeline: str = "cpac"
    strategy: str = "filt_noglobal"

    def __post_init__(self) -> None:
        _check_known("pipeline", [self.pipeline], PIPELINES)
        _check_known("strategy", [self.strategy], STRATEGIES)
        _check_known("derivative", self.derivatives, DERIVATIVES)
        if not self.derivatives or len(set(self.derivatives)) < len(self.derivatives):
            raise SettingsError(
                "wrong_derivatives",
                f"expected each derivative once and at least one, got {', '.join(self.derivatives) or 'none'}",
                found=self.derivatives,
            )

    def folder(self, derivative: str) -> str:
        """Return the folder of a derivative's maps, below the top folder of PCP's bucket."""
        return f"Outputs/{self.pipeline}/{self.strategy}/{derivative}"


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise SettingsError if a name is unknown."""
    for name in names:
        if name not in known:
            raise SettingsError(
                "unknown_choice",
                f"unknown {what} '{name}' of ABIDE. {did_you_mean(name, known)}",
                what=what,
                choice=name,
            )


def file_name(file_id: str, derivative: str) -> str:
    """Return the name of the file with the map of a subject (given by file id) and a derivative."""
    return f"{file_id}_{derivative}{SUFFIXES[0]}"


def find_maps(source: Path, maps: MapSelection, file_ids: Sequence[str]) -> dict[tuple[str, str], Path]:
    """Find the maps of subjects.

    Args:
        source: Folder of the maps. It is PCP's top folder as in its bucket (or its parent, or its ``Outputs``),
            nilearn's data folder or its ``ABIDE_pcp``, or a folder that contains the files themselves.
        maps: Derivatives, pipeline and strategy of the maps.
        file_ids: File id of each subject.

    Returns:
        Mapping from (file id, derivative) to the file (``.nii.gz`` or ``.nii``), for existing files. If a file exists
        in several layouts, the bucket's layout has priority, then nilearn's, then the folder itself.
    """
    files: dict[str, Path] = {}
    for folder in _map_folders(source, maps):
        for name in _file_names(folder):
            files.setdefault(name, folder / name)
    maps_ = {}
    for file_id in file_ids:
        for derivative in maps.derivatives:
            names = (f"{file_id}_{derivative}{suffix}" for suffix in SUFFIXES)
            path = next((files[name] for name in names if name in files), None)
            if path:
                maps_[file_id, derivative] = path
    return maps_


def no_maps_error(source: Path, maps: MapSelection, subjects: int) -> DataError:
    """Make the error for a source folder without any map; its message names alternatives found there.

    Args:
        source: Folder of the maps that was searched.
        maps: Derivatives, pipeline and strategy that were requested.
        subjects: Number of subjects whose maps were looked up.
    """
    ends = tuple(f"_{derivative}{suffix}" for derivative in maps.derivatives for suffix in SUFFIXES)
    strange = {name for folder in _map_folders(source, maps) for name in _file_names(folder) if name.endswith(ends)}
    others = sorted({f"{path.parent.name}/{path.name}" for top in _TOPS for path in (source / top).glob("*/*/")})
    known = [other for other in others if other.partition("/")[0] in PIPELINES and other.split("/")[1] in STRATEGIES]
    hints = []
    if strange:
        hints.append(f"{len(strange)} files there are named like maps, but belong to no subject that is used.")
    if known:
        hints.append(f"There are folders of {', '.join(known)}: give another --pipeline or --strategy.")
    hints.append("Give the folder that holds PCP's Outputs, nilearn's ABIDE_pcp or the files, or add --download.")
    return DataError(
        "no_images",
        f"expected maps of {subjects} subjects in {source}, such as {maps.folder(maps.derivatives[0])}/"
        f"{file_name('<FILE_ID>', maps.derivatives[0])}, found none. {' '.join(hints)}",
        path=source,
        subjects=subjects,
        unused_files=len(strange),
        other_folders=known,
    )


_TOPS = ("Outputs", "ABIDE_Initiative/Outputs", "", "ABIDE_pcp")
"""Top folders of the known layouts, below the source folder."""


def _map_folders(source: Path, maps: MapSelection) -> list[Path]:
    """Return the existing folders that may contain maps, in all layouts."""
    kind = f"{maps.pipeline}/{maps.strategy}"
    bucket = [f"{top}/{kind}/{derivative}" for top in _TOPS[:3] for derivative in maps.derivatives]
    nilearn = [f"{top}/{kind}" for top in ("ABIDE_pcp", ".")]
    folders = [source / place.lstrip("/") for place in (*bucket, *nilearn, ".")]
    return [folder for folder in folders if folder.is_dir()]


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the names of the files in a folder."""
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries if entry.is_file())
