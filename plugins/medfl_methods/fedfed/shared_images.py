"""The shared set: what sites have sent of their images, as everyone holds it, and how a training draws from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.data.sampling import balanced_rows
from medfl.errors import RefusedError
from medfl.types import Tensors
from medfl.utils.wire import select

COPIES = "images/"
"""What the name of each noisy copy begins with."""


@dataclass(frozen=True)
class SharedImages:
    """Copies of parts of images, with their labels.

    Attributes:
        copies: At least one, each (N, C, *spatial), half precision, in units of images in [0, 1]: the same parts under
            unlike noise.
        labels: (N,), int64.
    """

    copies: tuple[torch.Tensor, ...]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def read(cls, tensors: Tensors) -> SharedImages:
        """From named tensors, as `tensors` makes them."""
        copies = select(tensors, COPIES)
        return cls(tuple(copies[name] for name in sorted(copies, key=int)), tensors["labels"])

    def tensors(self) -> Tensors:
        """For a message or a blob."""
        return {"labels": self.labels} | {f"{COPIES}{number}": copy for number, copy in enumerate(self.copies)}

    @classmethod
    def joined(cls, parts: Mapping[str, SharedImages]) -> SharedImages:
        """Those of all sites, in the order given; sites without any are left out.

        Args:
            parts: At least one.
        """
        some = [part for part in parts.values() if len(part)] or list(parts.values())
        copies = tuple(torch.cat(same) for same in zip(*(part.copies for part in some), strict=True))
        return cls(copies, torch.cat([part.labels for part in some]))


def check_shared(tensors: Tensors, copies: int, shape: Sequence[int], num_classes: int) -> None:
    """Refuse what is no part of a shared set.

    Args:
        tensors: As `SharedImages.tensors` makes them, of any number of images.
        copies: Of each image.
        shape: Of an image, (C, *spatial).
        num_classes: Labels are below it.

    Raises:
        RefusedError: If a tensor is missing or one too many, or of another shape or dtype, or a label is no class.
    """
    names = {"labels", *(f"{COPIES}{number}" for number in range(copies))}
    labels = tensors.get("labels", torch.empty(0))
    forms = {((*labels.shape[:1], *shape), torch.float16)}
    came = {(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items() if name != "labels"}
    classes = labels.dtype is torch.int64 and labels.ndim == 1 and bool(((labels >= 0) & (labels < num_classes)).all())
    if tensors.keys() != names or came != forms or not classes:
        raise RefusedError(
            "unexpected_tensors",
            f"Expected {copies} half-precision copies of images of shape {list(shape)} and a label below {num_classes} "
            "for each, got something else. The site needs the same bundle and version of medfl.",
            copies=copies,
            shape=list(shape),
            classes=num_classes,
        )


class SharedBatches:
    """Batches of the shared set for one training of a site: an epoch has as many rows as the site has images.

    Args:
        shared: At least one image.
        images: Rows of an epoch, >= 1.
        generator: The stream of the rows.
        balanced: Whether each class that is present comes equally often.
    """

    def __init__(self, shared: SharedImages, images: int, generator: torch.Generator, balanced: bool) -> None:
        self._shared, self._images, self._generator, self._balanced = shared, images, generator, balanced
        self._rows = torch.empty(0, dtype=torch.int64)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The next rows of the epoch, or of the next one.

        Args:
            count: Rows, >= 0.

        Returns:
            Parts of all copies one after the other, (copies * count, C, *spatial), float32, and their labels.
        """
        while len(self._rows) < count:
            self._rows = torch.cat([self._rows, self._epoch()])
        rows, self._rows = self._rows[:count], self._rows[count:]
        parts = torch.cat([copy[rows].float() for copy in self._shared.copies])
        return parts, self._shared.labels[rows].repeat(len(self._shared.copies))

    def _epoch(self) -> torch.Tensor:
        if self._balanced:
            return balanced_rows(self._shared.labels, self._images, self._generator)
        return torch.randint(len(self._shared), (self._images,), generator=self._generator)
