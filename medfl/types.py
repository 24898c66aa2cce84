"""The smallest types of the package, and the names that are reserved.

Imports nothing of the package, and torch only for whoever checks types.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch


Tensors = dict[str, "torch.Tensor"]
"""Tensors by flat name, for example ``model/conv1.weight`` or ``proto/3``."""


Targets = Any
"""What is to be learned of a batch: a tensor (B, ...); for bundles with more than one target a dictionary of such."""


PathLike = str | os.PathLike[str]
"""A path, as public functions take it."""

Meta = dict[str, Any]
"""Small facts beside tensors: JSON only."""

LeakKind = Literal["subjects", "pixels"]
"""What two places that must not share any images have in common."""


POOLED = "pooled"
"""Name of the one participant that holds all sites' training data, for methods that pool."""

SERVER = "server"
"""The name of the server among participants; no site may have it."""


@runtime_checkable
class Dataset(Protocol):
    """Cases of one split of one site with their targets, addressed by row.

    A case is what a network takes at once: an image (C, *spatial), a volume, or a row of a table (F,). What a target is
    says the task's objective (`medfl.objectives`).
    """

    class_labels: torch.Tensor | None
    """The class of each case, shape (n,), int64; None where cases are of no class."""

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs (B, C, *spatial), float32, and targets (B, ...) of the given rows, each in [0, n), shape (B,)."""
        ...

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        """The targets (B, ...) of the given rows, without reading their images where that is possible."""
        ...


@dataclass
class Loaded:
    """A batch as it comes from a data set, on the CPU.

    Attributes:
        rows: Which case each sample is of, shape (B,): a case that was cut into patches is there several times.
        inputs: (B, C, *spatial), float32.
        targets: (B, ...), or a dictionary of such for bundles with more than one.
        spacing: Millimetres between neighbours along each spatial axis, (B, axes), float64; NaN where it is not known.
            None for data sets without such facts.
    """

    rows: torch.Tensor
    inputs: torch.Tensor
    targets: Targets
    spacing: torch.Tensor | None = None


@runtime_checkable
class Visited(Dataset, Protocol):
    """A data set that changes a case at random whenever it is visited."""

    def visits(self, batches: Iterable[torch.Tensor], stream: int) -> Iterator[Loaded]:
        """Each batch in turn; how a case is changed depends on (stream, row, how often the row came before) only.

        Args:
            batches: Rows of each batch, each in [0, n), shape (B,). They may be drawn ahead of time.
            stream: Seed of the visits, >= 0; another one for each site, round and training.
        """
        ...


@runtime_checkable
class Judged(Dataset, Protocol):
    """A data set of a bundle that scores models itself."""

    def judge(self, model: torch.nn.Module, device: str) -> dict[str, float]:
        """Name to value of the bundle's own metrics over all cases.

        Args:
            model: On `device`; put into evaluation mode.
            device: As torch names it.
        """
        ...


@runtime_checkable
class Listed(Dataset, Protocol):
    """A data set whose cases a stock bundle reads from a list in its configuration."""

    @property
    def list_id(self) -> str:
        """Id at which the configuration of the bundle's ``evaluate`` has its list of cases; empty if it has none."""
        ...

    @property
    def listed_cases(self) -> Sequence[Mapping[str, Any]]:
        """The cases as the bundle lists them: each maps keys to files and values."""
        ...


GLOBAL = "global"
"""The folder of the test set that the server holds; no site may have this name."""


PUBLIC = "public"
"""The folder of data that everybody may see, which the server trains on; no site may have this name."""


NO_SITES = (GLOBAL, PUBLIC)
"""Whose test images are nobody's: rows of scores under these names are no site's."""


FACTS = ("sex", "centre")
"""Entries of a data list by which a report tells test images apart: sex of the person, and scanning centre."""


MODEL = "model/"
"""What the names of a model's shared tensors begin with in messages."""
