"""The smallest types of the package, and the names that are reserved.

Imports torch only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    pass


Tensors = dict[str, torch.Tensor]
"""Tensors by flat name, for example ``model/conv1.weight`` or ``proto/3``."""


Meta = dict[str, Any]
"""Small facts beside tensors: JSON only."""


SERVER = "server"
"""The name of the server among participants; no site may have it."""


@runtime_checkable
class Dataset(Protocol):
    """Images and labels of one split of one site, addressed by row."""

    labels: torch.Tensor
    """Integer labels, shape (n,)."""

    def __len__(self) -> int: ...

    def batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (B, C, *spatial), float32, and labels (B,), int64, of the given rows; the same ones each time."""
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
