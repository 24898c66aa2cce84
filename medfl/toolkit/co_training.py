"""Training of a companion model on the batches of a site's own model, as in mutual distillation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.func import functional_call

from medfl.contract import Site
from medfl.networks.norms import freeze_norms
from medfl.networks.parts import features_and_logits
from medfl.toolkit.feature_hooks import FeatureHooks
from medfl.training.checkpoints import ModelPart
from medfl.training.loop import Batch, smallest_batch
from medfl.types import Tensors
from medfl.utils.rng import SeparateStream
from medfl.utils.wire import prefixed, select


class CompanionModel:
    """Second model that is trained on the same batches, with its own optimiser and random stream for dropout.

    Without a loss that couples the two models, the first model's training has the same bits as without a companion.

    Args:
        site: The site with its task, settings and random streams.
        tensors: Tensors of the model, with buffers.
        network: Name of the model's network in the task.
        frozen: Whether the head's weights are frozen; gradients still pass through it to the body.

    Attributes:
        model: The model on the task's device, in training mode.
    """

    def __init__(self, site: Site, tensors: Tensors, network: str, frozen: bool) -> None:
        self.model = site.task.load(tensors, network).train()
        if site.settings.norm_sync == "frozen":
            freeze_norms(self.model)
        if frozen:
            head: nn.Module = self.model.head  # type: ignore[assignment]
            head.requires_grad_(False)
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._optimizer = site.task.make_optimizer(self.model, self._parameters)
        self._aside = SeparateStream(site.rng("beside"), site.task.device)
        self._smallest = smallest_batch(self.model, site.settings)

    def skips(self, batch: Batch) -> bool:
        """Return True if the batch is too small for this model's batch-norm layers."""
        return len(batch.rows) < self._smallest

    def __call__(self, images: torch.Tensor, parameters: Tensors | None = None) -> torch.Tensor:
        """Compute logits (B, num_classes) of images (B, C, *spatial).

        Args:
            images: Images of a batch.
            parameters: Tensors by name that replace the model's own parameters; None uses the model's own.
        """
        with self._aside:
            logits: torch.Tensor = functional_call(self.model, parameters or {}, (images,))
        return logits

    def features_and_logits(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute features (B, d) and logits (B, num_classes) of images (B, C, *spatial)."""
        with self._aside:
            return features_and_logits(self.model, images)

    def training_state(self) -> Tensors:
        """Return the tensors of the model, of the optimiser's state and of the random stream, for a checkpoint."""
        stream = {f"stream/{number}": state for number, state in enumerate(self._aside.state)}
        return ModelPart(self.model, self._optimizer).training_state() | stream

    def load_training_state(self, state: Tensors) -> None:
        """Load a state from `training_state`, in place."""
        ModelPart(self.model, self._optimizer).load_training_state(state)
        self._aside.state = [tensor for _, tensor in sorted(select(state, "stream/").items())]

    def step(self, gradient_clip: float | None) -> None:
        """Take an optimiser step with the current gradients, and reset them.

        Args:
            gradient_clip: Maximum L2 norm of this model's gradient, or None for no clipping.
        """
        if gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, gradient_clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class ModelPair:
    """A site's own model and a visiting model in joint training: their latest features, and the means of their losses.

    A visiting model belongs to another site, which has sent it to this site for the round.

    Args:
        own: The site's own model.
        visiting: The visiting model.
        compared: Function that returns the stages of a network whose features are compared.

    Attributes:
        visiting: The visiting model.
    """

    def __init__(
        self, own: nn.Module, visiting: CompanionModel, compared: Callable[[nn.Module], list[nn.Module]]
    ) -> None:
        self.visiting = visiting
        self._taps = FeatureHooks(compared(own)), FeatureHooks(compared(visiting.model))
        self._sums: dict[str, torch.Tensor] = {}
        self._images = 0

    @property
    def own_features(self) -> list[torch.Tensor]:
        """Features of the own model's latest forward pass, one tensor per stage."""
        return self._taps[0].features

    @property
    def visiting_features(self) -> list[torch.Tensor]:
        """Features of the visiting model's latest forward pass, one tensor per stage."""
        return self._taps[1].features

    def note(self, images: int, **losses: torch.Tensor) -> None:
        """Add losses to the running means; each is the mean over a batch of `images` images."""
        self._images += images
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.detach() * images

    def training_state(self) -> Tensors:
        """Return the state of the visiting model and the sums of the losses, for a checkpoint."""
        sums = {**self._sums, "images": torch.tensor(self._images)}
        return prefixed(self.visiting.training_state(), "visiting/") | prefixed(sums, "sums/")

    def load_training_state(self, state: Tensors) -> None:
        """Load a state from `training_state`, in place."""
        self.visiting.load_training_state(select(state, "visiting/"))
        sums = select(state, "sums/")
        self._images = int(sums.pop("images"))
        device = next(self.visiting.model.parameters()).device
        self._sums = {name: value.to(device) for name, value in sums.items()}

    def close(self) -> dict[str, float]:
        """Remove the feature hooks.

        Returns:
            Mapping from each loss to its mean over the images that both models were trained on.
        """
        for taps in self._taps:
            taps.close()
        return {name: float(total) / self._images for name, total in sorted(self._sums.items())}
