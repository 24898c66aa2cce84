"""A second model that is trained beside a site's own, on the same batches, and forgotten afterwards."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call

from medfl.contract import Site
from medfl.networks.norms import freeze_norms
from medfl.networks.parts import features_and_logits
from medfl.toolkit.feature_hooks import FeatureHooks
from medfl.training.loop import Batch, smallest_batch
from medfl.types import Tensors
from medfl.utils.rng import SeparateStream


class CompanionModel:
    """A model in training beside another one, with a fresh optimiser and a stream of its own for its dropout.

    The first model trains with the bits that it would have alone, as long as no loss ties the two.

    Args:
        site: Gives task, settings and streams.
        tensors: Of the model, buffers included.
        network: Its network's name in the task.
        frozen: Whether the weights of its head stay as they are; gradients pass through them.

    Attributes:
        model: On the task's device, in training mode.
    """

    def __init__(self, site: Site, tensors: Tensors, network: str, frozen: bool) -> None:
        self.model = site.task.load(tensors, network).train()
        if site.settings.norm_sync == "frozen":
            freeze_norms(self.model)
        if frozen:
            head: nn.Module = self.model.head  # type: ignore[assignment]
            head.requires_grad_(False)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = site.task.optimizer(self._parameters)
        self._aside = SeparateStream(site.rng("beside"), site.task.device)
        self._smallest = smallest_batch(self.model, site.settings)

    def sits_out(self, batch: Batch) -> bool:
        """Whether the batch is too small for this model's batch-norm layers (rule G-6)."""
        return len(batch.rows) < self._smallest

    def __call__(self, images: torch.Tensor, parameters: Tensors | None = None) -> torch.Tensor:
        """Logits (B, num_classes) of images (B, C, *spatial).

        Args:
            images: A batch.
            parameters: What it computes with in place of its own, by name; None leaves them.
        """
        with self._aside:
            logits: torch.Tensor = functional_call(self.model, parameters or {}, (images,))
        return logits

    def features_and_logits(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, d) and logits (B, num_classes) of images (B, C, *spatial)."""
        with self._aside:
            return features_and_logits(self.model, images)

    def step(self, gradient_clip: float | None) -> None:
        """Step by the gradients of the last backward pass, and forget them.

        Args:
            gradient_clip: Largest L2 norm of this model's gradient, or None.
        """
        if gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, gradient_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class ModelPair:
    """A site's own model and one beside it: what their stages computed last, and the means of their losses.

    Args:
        own: The site's own model.
        guest: The other one.
        compared: Gives the stages of a network that are watched.
    """

    def __init__(self, own: nn.Module, guest: CompanionModel, compared: Callable[[nn.Module], list[nn.Module]]) -> None:
        self.guest = guest
        self._taps = FeatureHooks(compared(own)), FeatureHooks(compared(guest.model))
        self._sums: dict[str, torch.Tensor] = {}
        self._images = 0

    @property
    def own_features(self) -> list[torch.Tensor]:
        """Of the own model's last pass, stage by stage."""
        return self._taps[0].features

    @property
    def guest_features(self) -> list[torch.Tensor]:
        """Of the guest's last pass, stage by stage."""
        return self._taps[1].features

    def note(self, images: int, **losses: torch.Tensor) -> None:
        """Add losses, each the mean over a batch of so many images."""
        self._images += images
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach() * images

    def close(self) -> dict[str, float]:
        """Stop watching.

        Returns:
            The mean of each loss over the images that both models have seen.
        """
        for taps in self._taps:
            taps.close()
        return {name: float(total) / self._images for name, total in self._sums.items()}
