"""Shared set: the noised image parts of all sites with labels, and the batches that a training draws from it.

A part is, for example, the residual of an image: the image minus a reconstruction. A site sends one or more copies of
each part under different noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from medfl.data.sampling import balanced_rows
from medfl.errors import RefusedError
from medfl.types import Tensors
from medfl.utils.wire import select

COPY_PREFIX = "images/"
"""Prefix of the name of each noised copy's tensor; the number of the copy follows."""


@dataclass(frozen=True)
class SharedImages:
    """Noised copies of image parts, with their labels.

    Attributes:
        copies: One or more tensors (N, C, *spatial), half precision, in units of images in [0, 1]. All contain the same
            parts under different noise.
        labels: Class labels, (N,), int64.
    """

    copies: tuple[torch.Tensor, ...]
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def read(cls, tensors: Tensors) -> SharedImages:
        """Create shared images from named tensors, as the method `tensors` returns them."""
        copies = select(tensors, COPY_PREFIX)
        return cls(tuple(copies[name] for name in sorted(copies, key=int)), tensors["labels"])

    def tensors(self) -> Tensors:
        """Return the images and labels as named tensors, for a message or a blob."""
        return {"labels": self.labels} | {f"{COPY_PREFIX}{number}": copy for number, copy in enumerate(self.copies)}

    @classmethod
    def concatenate(cls, parts: Mapping[str, SharedImages]) -> SharedImages:
        """Return the concatenated shared images of all sites, in the order of the mapping.

        Sites without images are left out, unless no site has images.

        Args:
            parts: Mapping from each site to its shared images; at least one site.
        """
        some = [part for part in parts.values() if len(part)] or list(parts.values())
        copies = tuple(torch.cat(same) for same in zip(*(part.copies for part in some), strict=True))
        return cls(copies, torch.cat([part.labels for part in some]))


def check_shared(tensors: Tensors, copies: int, shape: Sequence[int], num_classes: int) -> None:
    """Raise if tensors are not valid shared images.

    Args:
        tensors: Tensors as returned by `SharedImages.tensors`, of any number of images.
        copies: Expected number of copies.
        shape: Shape of an image, (C, *spatial).
        num_classes: Number of classes; labels must be below it.

    Raises:
        RefusedError: If a name is missing or unexpected, a shape or dtype is wrong, or a label is not a class.
    """
    names = {"labels", *(f"{COPY_PREFIX}{number}" for number in range(copies))}
    labels = tensors.get("labels", torch.empty(0))
    expected_forms = {((*labels.shape[:1], *shape), torch.float16)}
    found_forms = {(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items() if name != "labels"}
    classes = labels.dtype is torch.int64 and labels.ndim == 1 and bool(((labels >= 0) & (labels < num_classes)).all())
    if tensors.keys() != names or found_forms != expected_forms or not classes:
        raise RefusedError(
            "unexpected_tensors",
            f"Expected {copies} half-precision copies of images of shape {list(shape)}, with labels below "
            f"{num_classes}, got other tensors. Use the same bundle and the same version of medfl at the site.",
            copies=copies,
            shape=list(shape),
            classes=num_classes,
        )


class SharedBatches:
    """Batches of the shared set for one training of a site; implements `medfl.training.checkpoints.TrainingPart`.

    An epoch has as many rows as the site has training images.

    Args:
        shared: Shared set with at least one image.
        images: Number of rows of an epoch, >= 1.
        generator: Random stream of the rows.
        balanced: Whether each class that is present is drawn equally often.
    """

    def __init__(self, shared: SharedImages, images: int, generator: torch.Generator, balanced: bool) -> None:
        self._shared, self._images, self._generator, self._balanced = shared, images, generator, balanced
        self._rows = torch.empty(0, dtype=torch.int64)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next rows of the current epoch, continued in the following epoch if necessary.

        Args:
            count: Number of rows, >= 0.

        Returns:
            The parts of all copies one after the other, (copies * count, C, *spatial), float32, and their labels.
        """
        while len(self._rows) < count:
            self._rows = torch.cat([self._rows, self._epoch()])
        rows, self._rows = self._rows[:count], self._rows[count:]
        parts = torch.cat([copy[rows].float() for copy in self._shared.copies])
        return parts, self._shared.labels[rows].repeat(len(self._shared.copies))

    def training_state(self) -> Tensors:
        """Return the rows that are left of the current epoch, and the state of the random stream."""
        return {"rows": self._rows, "generator": self._generator.get_state()}

    def load_training_state(self, state: Tensors) -> None:
        """Continue from a state of `training_state`."""
        self._rows = state["rows"]
        self._generator.set_state(state["generator"])

    def _epoch(self) -> torch.Tensor:
        """Draw the rows of an epoch."""
        if self._balanced:
            return balanced_rows(self._shared.labels, self._images, self._generator)
        return torch.randint(len(self._shared), (self._images,), generator=self._generator)
