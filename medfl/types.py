"""Basic types of medfl, and reserved names.

This module imports nothing else of medfl, and imports torch only for type checking.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch


Tensors = dict[str, "torch.Tensor"]
"""Dictionary of tensors by flat name, for example ``model/conv1.weight`` or ``proto/3``."""


Targets = Any
"""Targets of a batch: a tensor (B, ...), or a dictionary of tensors for bundles with several targets."""


PathLike = str | os.PathLike[str]
"""A file path, as public functions accept it."""

Meta = dict[str, Any]
"""Dictionary of JSON values by name, such as the metadata of a message."""

LeakKind = Literal["subjects", "pixels"]
"""Kind of a data leak: two data sets have images of the same ``subjects``, or images with the same ``pixels``."""


POOLED = "pooled"
"""Name of the single participant that has all sites' training data, for methods that train on pooled data."""

SERVER = "server"
"""Name of the server among the participants; no site may have it."""


@runtime_checkable
class Dataset(Protocol):
    """Cases of one split of one site with their targets, addressed by row number.

    A case is one input of a network: an image (C, *spatial), a volume, or a table row (F,). The task's objective
    (`medfl.objectives`) defines the target.
    """

    @property
    def class_labels(self) -> torch.Tensor | None:
        """Class of each case, shape (n,), int64; None if cases have no class."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs (B, C, *spatial), float32, and targets (B, ...) of the rows, each in [0, n), shape (B,)."""
        ...

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the targets (B, ...) of the rows, if possible without reading their images."""
        ...


@dataclass
class LoadedBatch:
    """A batch loaded from a data set, on the CPU.

    Attributes:
        rows: Row number of the case of each sample, shape (B,). A case that is cut into patches occurs several times.
        inputs: Inputs (B, C, *spatial), float32.
        targets: Targets (B, ...), or a dictionary of such for bundles with several targets.
        spacing: Distance between neighbouring voxels along each spatial axis in millimetres, (B, axes), float64; NaN if
            unknown. None for data sets without spacing.
    """

    rows: torch.Tensor
    inputs: torch.Tensor
    targets: Targets
    spacing: torch.Tensor | None = None


class AugmentingDataset(Dataset, Protocol):
    """Data set that augments a case at random each time it is read."""

    def visits(self, batches: Iterable[torch.Tensor], stream: int, skip: int = 0) -> Iterator[LoadedBatch]:
        """Yield each batch, with augmentation that depends only on (stream, row, number of earlier visits of the row).

        Args:
            batches: Row numbers of each batch, each in [0, n), shape (B,). The data set may read ahead.
            stream: Seed of the augmentation, >= 0; different for each site, round and training.
            skip: Number of batches at the beginning that count as visits, but are not loaded and not yielded.
        """
        ...


class SelfScoringDataset(Dataset, Protocol):
    """Data set of a bundle that computes its own metrics."""

    def compute_metrics(self, model: torch.nn.Module, device: str) -> dict[str, float]:
        """Return the bundle's own metrics over all cases by name.

        Args:
            model: Model on `device`; this method puts it into evaluation mode.
            device: Device in torch's notation.
        """
        ...


@runtime_checkable
class ListedDataset(Dataset, Protocol):
    """Data set whose cases a stock bundle (a MONAI bundle not written for medfl) reads from a list in its config."""

    @property
    def list_id(self) -> str:
        """Id under which the configuration of the bundle's ``evaluate`` has the case list; empty if it has none."""
        ...

    @property
    def listed_cases(self) -> Sequence[Mapping[str, Any]]:
        """Cases in the bundle's list format: each maps keys to files and values."""
        ...


def is_augmenting(data: object) -> TypeGuard[AugmentingDataset]:
    """Return True if a data set augments its cases. `isinstance` with a protocol would be 100 times slower."""
    return hasattr(data, "visits")


def is_self_scoring(data: object) -> TypeGuard[SelfScoringDataset]:
    """Return True if a data set computes metrics of its own."""
    return hasattr(data, "compute_metrics")


GLOBAL = "global"
"""Folder of the server's test set; no site may have this name."""


PUBLIC = "public"
"""Folder of the public data that the server trains on; no site may have this name."""


NON_SITE_NAMES = (GLOBAL, PUBLIC)
"""Names in the column of sites of score tables that are not sites: the server's test set and the public data."""


METADATA_KEYS = ("sex", "centre")
"""Columns of a data list that reports use to group test images: sex of the person, and scanning centre."""


MODEL_PREFIX = "model/"
"""Prefix of the model's shared tensors in messages."""
