"""DP-SGD: a site's training in which the influence of each image is bounded and hidden by noise.

Source: Abadi et al., CCS 2016. Each step draws every image with the same probability (Poisson subsampling), clips the
gradient of each drawn image over all parameters together, adds Gaussian noise to the sum of the gradients, and divides
by the expected number of images. The trained model may leave the site, and so may everything computed from it
(post-processing).

Opacus clips and sums the gradients. Two parts differ from Opacus:

* The gradients are computed from the method's whole loss for one image at a time (`torch.func`). They include terms of
  the parameters, and no loss can mix the images of a batch. The network is not wrapped and keeps its parameter names.
* The subsampling and the noise come from the site's secret stream, because an attacker who knew the drawn images would
  see more than the accountant assumes. For the same reason, dropout and random augmentation draw from the secret
  (`medfl.privacy.secret_site`). The key of a step's noise also contains the sum that it hides, so two different sums
  never share their noise.

The number of images of a site is not hidden: the sampling rate and the number of steps follow from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

from medfl.contract import Site
from medfl.errors import SettingsError
from medfl.networks.norms import buffer_names, has_batch_norm, norm_names
from medfl.privacy.composition import NoisedReleases, calibrate, opacus
from medfl.privacy.secret_site import SecretSite
from medfl.settings import Settings

if TYPE_CHECKING:
    from medfl.training.loop import Batch

CHUNK_NUMBERS = 1 << 26
"""Maximum number of elements of the per-image gradients that are in memory at once (256 MB in float32)."""


def sampling_schedule(settings: Settings, images: int) -> tuple[float, int]:
    """Return the sampling rate of a step and the number of steps in a round, as (rate, steps).

    A batch has ``batch_size`` images on average. The number of steps is the same as without privacy: ceil(images /
    batch_size) for each epoch.

    Args:
        settings: Settings of the run.
        images: Number of the site's training images, >= 1.
    """
    rate = min(1.0, settings.batch_size / images)
    return rate, settings.steps or settings.epochs * math.ceil(images / settings.batch_size)


def planned_steps(settings: Settings, images: int) -> NoisedReleases:
    """Return the noised steps of a site in the whole run, with the noise that keeps the privacy budget.

    The site is assumed to train in every round.

    Args:
        settings: Settings of the run, with a privacy setting for the unit ``sample``.
        images: Number of the site's training images, >= 1.

    Returns:
        The steps of all rounds. Without steps, the noise multiplier is infinite.
    """
    privacy = settings.privacy
    assert privacy is not None
    rate, steps = sampling_schedule(settings, images)
    count = settings.rounds * steps
    if not count:
        return NoisedReleases(math.inf, 0, rate)
    return NoisedReleases(calibrate(privacy.epsilon, count, rate, privacy.delta, privacy.adjacency), count, rate)


def check_samples(settings: Settings, networks: Sequence[nn.Module]) -> None:
    """Check that networks and settings are possible with DP-SGD.

    Args:
        settings: Settings of the run, with a privacy setting for the unit ``sample``.
        networks: All networks that the run trains.

    Raises:
        SettingsError: If a network mixes the images of a batch, or a setting uses the labels of a site.
    """
    if settings.balance != "none":
        raise SettingsError(
            "incompatible_settings",
            f"Privacy with the unit 'sample' needs balance 'none', got '{settings.balance}', which would reveal the "
            "class sizes of a site. Set 'balance' to 'none'; a bundle may have another default.",
            setting="balance",
            expected="none",
            found=settings.balance,
        )
    for network in networks:
        statistics = norm_names(network, ("batch", "instance")) & buffer_names(network)
        if has_batch_norm(network) or statistics:
            raise SettingsError(
                "network_not_supported",
                f"Privacy with the unit 'sample' can't train {type(network).__name__}: batch norm, and running "
                "statistics of any norm, mix the images of a batch, so no image's influence is bounded. Use group norm "
                "(for the networks of medfl: norm 'group'), or no norm.",
                network=type(network).__name__,
            )


class PrivateSteps:
    """Steps of DP-SGD, which replace the plain steps of `medfl.training.loop.train`.

    Args:
        model: Network to train, on the task's device.
        optimizer: Optimiser of the parameters to train.
        site: Site that trains, with a privacy setting for the unit ``sample``. Its secret keys the subsampling and the
            noise.
        payload: Hash of the model before the training.
        gradient_clip: Largest L2 norm of the noised mean gradient, or None. It is post-processing and costs no privacy.
        sigma: Noise multiplier; None computes it from the settings.

    Attributes:
        smallest: Minimum number of images in a batch that makes a step. It is 0, as an empty batch also makes a step,
            by the noise alone.

    Raises:
        SettingsError: If Opacus is not installed, or no noise keeps the privacy budget.
        ContractError: If it is the second training in one step of the site.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        site: Site,
        payload: str,
        gradient_clip: float | None = None,
        sigma: float | None = None,
    ) -> None:
        privacy = site.settings.privacy
        assert privacy is not None
        self.smallest = 0  # an empty batch also makes a step, by the noise alone
        if isinstance(site, SecretSite):
            site.count_training()
        self._rate, self._steps = sampling_schedule(site.settings, len(site.train))
        sigma = planned_steps(site.settings, len(site.train)).sigma if sigma is None else sigma
        self._std = sigma * privacy.clip
        # The parameters are part of the label, so that no noise is a multiple of a noise with other parameters.
        self._label = f"of dp-sgd {sigma!r} {privacy.clip!r} {self._rate!r}"
        self._site, self._payload, self._done = site, payload, 0
        self._draws = site.secret_rng(f"draws {self._label}", payload)
        self._model, self._optimizer, self._gradient_clip = model, optimizer, gradient_clip
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self._parameters = {name: p for name, p in model.named_parameters() if id(p) in trained}
        self._private: Any = opacus("optimizers").DPOptimizer(
            optimizer,
            noise_multiplier=sigma,
            max_grad_norm=privacy.clip,
            expected_batch_size=self._rate * len(site.train),
        )

    def batches(self, n: int) -> Iterator[torch.Tensor]:
        """Yield the rows of each batch. Each image is drawn independently, so a batch may be empty.

        Args:
            n: Number of images.
        """
        for _ in range(self._steps if n else 0):
            yield (self._draws.uniform((n,)) < self._rate).nonzero().squeeze(1)

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Update the parameters by the noised mean of the clipped gradients; without images by the noise alone.

        Args:
            loss: Function that returns the scalar loss of a batch. It is called with batches of one image.
            batch: Images of the step, or None.

        Returns:
            Mean loss of the images.
        """
        self._private.zero_grad(set_to_none=True)
        values = [torch.zeros(0)]
        if batch is None:
            self._clip_and_sum({name: p.detach().new_zeros(0, *p.shape) for name, p in self._parameters.items()})
        else:
            chunk = max(1, CHUNK_NUMBERS // sum(p.numel() for p in self._parameters.values()))
            refuse_patches(batch)
            values = [self._add_gradients(loss, part) for part in _split(batch, chunk)]
        self._add_noise()
        self._private.scale_grad()
        if self._gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), self._gradient_clip)
        self._optimizer.step()
        return torch.cat(values).sum() / max(1, sum(len(value) for value in values))

    def _add_noise(self) -> None:
        """Set each parameter's gradient to the sum of the clipped gradients plus noise.

        The same sum in the same step has the same noise.
        """
        sums: dict[str, torch.Tensor] = {
            name: parameter.summed_grad.detach().double()  # type: ignore[attr-defined]
            for name, parameter in self._parameters.items()
        }
        hashed = hashlib.sha256()
        for value in sums.values():
            hashed.update(value.cpu().contiguous().numpy().tobytes())
        key = f"{self._payload} {self._done} {hashed.hexdigest()}"
        stream = self._site.secret_rng(f"noise {self._label}", key)
        self._done += 1
        for name, parameter in self._parameters.items():
            noise = self._std * stream.normal(tuple(parameter.shape)).to(parameter.device)
            parameter.grad = (sums[name] + noise).to(parameter.dtype).view_as(parameter)

    def _add_gradients(self, loss: Callable[[Batch], torch.Tensor], batch: Batch) -> torch.Tensor:
        """Add the clipped gradient of each image to the sum, and return the losses, shape (B,)."""
        module = _LossModule(self._model, loss, batch)
        parameters = {f"model.{name}": p.detach() for name, p in self._parameters.items()}
        parts = {name: value[:, None] for name, value in _tensors(batch).items()}

        def loss_of_image(trained: dict[str, torch.Tensor], example: dict[str, torch.Tensor]) -> torch.Tensor:
            value: torch.Tensor = functional_call(module, trained, (example,))
            return value

        try:
            gradients, values = vmap(grad_and_value(loss_of_image), in_dims=(None, 0), randomness="different")(
                parameters, parts
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise SettingsError(
                "loss_not_per_image",
                f"Privacy with the unit 'sample' needs the loss of each single image, but it can't be computed here: "
                f"{error} Choose another method or loss, or the unit 'site'.",
            ) from error
        self._clip_and_sum({name: gradients[f"model.{name}"] for name in self._parameters})
        losses: torch.Tensor = values.detach().float().cpu()
        return losses

    def _clip_and_sum(self, gradients: dict[str, torch.Tensor]) -> None:
        """Clip the gradients of single images and add them to the sum.

        A gradient that is not finite counts as zero. Otherwise a single image could stop the training visibly.
        """
        flat = [value.reshape(len(value), math.prod(value.shape[1:])) for value in gradients.values()]
        finite = torch.stack([torch.isfinite(value).all(dim=1) for value in flat]).all(dim=0)
        for name, parameter in self._parameters.items():
            value = gradients[name]
            value = torch.where(finite.view(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
            parameter.grad_sample = value  # type: ignore[attr-defined]
        self._private.clip_and_accumulate()


def refuse_patches(batch: Batch) -> None:
    """Raise an error if a batch has several samples (such as patches) of an image.

    Clipping bounds the gradient of each sample, so an image with several samples would not be protected.

    Raises:
        SettingsError: If the batch has several samples of an image.
    """
    if len(batch.rows.unique()) < len(batch.rows):
        raise SettingsError(
            "patches_not_supported",
            "Privacy with the unit 'sample' needs one sample of each image, but the transforms cut an image into "
            "several: together they would have more influence than the noise hides. Use transforms that return one "
            "patch (num_samples 1), or the unit 'site'.",
        )


class _LossModule(nn.Module):
    """Method's loss as a module around the network, so that `functional_call` can replace the network's parameters."""

    def __init__(self, model: nn.Module, loss: Callable[[Batch], torch.Tensor], like: Batch) -> None:
        super().__init__()
        self.model = model
        self._loss, self._like = loss, like

    def forward(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._loss(dataclasses.replace(self._like, **tensors))


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(batch).items() if value is not None}


def _split(batch: Batch, size: int) -> Iterator[Batch]:
    for start in range(0, len(batch.rows), size):
        part = {name: value[start : start + size] for name, value in _tensors(batch).items()}
        yield dataclasses.replace(batch, **part)
