"""DP-SGD: a site's training in which each image has little influence (Abadi et al., CCS 2016).

Each step draws every image with the same probability, clips the gradient of each drawn image over all parameters
together, adds Gaussian noise to their sum and divides by the number of images to expect. What was learned that way may
leave the site, and everything computed from it, too. Clipping and summing are Opacus'; two things are not. The
gradients are those of a method's whole loss for one image at a time (`torch.func`), so that terms of the parameters
are in them and no loss can mix the images of a batch; the network is not wrapped for that and keeps its names. And
which images are drawn, and the noise, come from the site's secret stream: who knew the draws would see more than the
accountant reckons with. For the same reason dropout and random changes of images draw from the secret
(`medfl.privacy.secret_site`). The noise of a step is keyed by the sum that it hides, too, so two sums never share it,
whatever they were computed from. How many images a site has is not hidden: the rate and the number of steps follow
from it.
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
from medfl.privacy.composition import Part, calibrate, opacus
from medfl.privacy.secret_site import SecretSite
from medfl.settings import Settings

if TYPE_CHECKING:
    from medfl.training.loop import Batch

CHUNK_NUMBERS = 1 << 26
"""Numbers in the gradients of single images that are in memory at once (256 MB)."""


def schedule(settings: Settings, images: int) -> tuple[float, int]:
    """With what probability a step draws an image, and the steps of a round.

    A batch has `batch_size` images on average, and there are as many steps as without privacy, ceil(images /
    batch_size) an epoch.

    Args:
        settings: epochs or steps, batch_size.
        images: The site's training images, >= 1.
    """
    rate = min(1.0, settings.batch_size / images)
    return rate, settings.steps or settings.epochs * math.ceil(images / settings.batch_size)


def releases(settings: Settings, images: int) -> Part:
    """What a site's training releases in the whole run, for it may be asked in every round, with the noise for that.

    Args:
        settings: With a privacy setting for the unit ``sample``.
        images: The site's training images, >= 1.

    Returns:
        The steps of all rounds. If there are none, the noise is infinite.
    """
    privacy = settings.privacy
    assert privacy is not None
    rate, steps = schedule(settings, images)
    count = settings.rounds * steps
    if not count:
        return Part(math.inf, 0, rate)
    return Part(calibrate(privacy.epsilon, count, rate, privacy.delta, privacy.adjacency), count, rate)


def check_samples(settings: Settings, networks: Sequence[nn.Module]) -> None:
    """Refuse what can't be trained with DP-SGD.

    Args:
        settings: With a privacy setting for the unit ``sample``.
        networks: All networks that are trained.

    Raises:
        SettingsError: If a network mixes the images of a batch, or a setting looks at the labels of a site.
    """
    if settings.balance != "none":
        raise SettingsError(
            "incompatible_settings",
            f"Privacy with the unit 'sample' needs balance 'none', got '{settings.balance}': class sizes of a site are "
            "no secret then. Leave 'balance' out.",
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
    """DP-SGD in place of the plain steps of `medfl.training.loop.train`.

    Args:
        model: On the task's device.
        optimizer: Over the parameters to train.
        site: Its settings have a privacy setting for the unit ``sample``; its secret gives draws and noise.
        payload: A hash of what the training starts from.
        gradient_clip: As in `medfl.training.loop.train`: it acts on the noised mean and costs no privacy.
        sigma: Noise multiplier; None reckons it from the settings.

    Raises:
        SettingsError: If Opacus is missing, or the budget can't be kept.
        ContractError: If it is the second training of a step.
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
        self.smallest = 0  # an empty batch takes a step of noise alone
        if isinstance(site, SecretSite):
            site.count_training()
        self._rate, self._steps = schedule(site.settings, len(site.train))
        sigma = releases(site.settings, len(site.train)).sigma if sigma is None else sigma
        self._std = sigma * privacy.clip
        self._what = f"of dp-sgd {sigma!r} {privacy.clip!r} {self._rate!r}"  # another noise is never this one, scaled
        self._site, self._payload, self._done = site, payload, 0
        self._draws = site.secret_rng(f"draws {self._what}", payload)
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
        """The rows of each batch, drawn anew each time; there may be none."""
        for _ in range(self._steps if n else 0):
            yield (self._draws.uniform((n,)) < self._rate).nonzero().squeeze(1)

    def step(self, loss: Callable[[Batch], torch.Tensor], batch: Batch | None) -> torch.Tensor:
        """Step by the noised mean of the clipped gradients; without images by the noise alone.

        Args:
            loss: Maps a batch to a scalar; it is called for one image at a time.
            batch: The images, or None.

        Returns:
            The mean loss of the images.
        """
        self._private.zero_grad(set_to_none=True)
        values = [torch.zeros(0)]
        if batch is None:
            self._add({name: p.detach().new_zeros(0, *p.shape) for name, p in self._parameters.items()})
        else:
            chunk = max(1, CHUNK_NUMBERS // sum(p.numel() for p in self._parameters.values()))
            refuse_patches(batch)
            values = [self._one_by_one(loss, part) for part in _split(batch, chunk)]
        self._add_noise()
        self._private.scale_grad()
        if self._gradient_clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), self._gradient_clip)
        self._optimizer.step()
        return torch.cat(values).sum() / max(1, sum(len(value) for value in values))

    def _add_noise(self) -> None:
        """The sum of the clipped gradients with its noise; the same sum in the same step has the same noise."""
        sums: dict[str, torch.Tensor] = {
            name: parameter.summed_grad.detach().double()  # type: ignore[attr-defined]
            for name, parameter in self._parameters.items()
        }
        hashed = hashlib.sha256()
        for value in sums.values():
            hashed.update(value.cpu().contiguous().numpy().tobytes())
        key = f"{self._payload} {self._done} {hashed.hexdigest()}"
        stream = self._site.secret_rng(f"noise {self._what}", key)
        self._done += 1
        for name, parameter in self._parameters.items():
            noise = self._std * stream.normal(tuple(parameter.shape)).to(parameter.device)
            parameter.grad = (sums[name] + noise).to(parameter.dtype).view_as(parameter)

    def _one_by_one(self, loss: Callable[[Batch], torch.Tensor], batch: Batch) -> torch.Tensor:
        """Add the clipped gradient of each image to the sum; the losses, shape (B,)."""
        alone = _Alone(self._model, loss, batch)
        parameters = {f"model.{name}": p.detach() for name, p in self._parameters.items()}
        parts = {name: value[:, None] for name, value in _tensors(batch).items()}

        def of_one(trained: dict[str, torch.Tensor], example: dict[str, torch.Tensor]) -> torch.Tensor:
            value: torch.Tensor = functional_call(alone, trained, (example,))
            return value

        try:
            gradients, values = vmap(grad_and_value(of_one), in_dims=(None, 0), randomness="different")(
                parameters, parts
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise SettingsError(
                "loss_not_per_image",
                f"Privacy with the unit 'sample' needs the loss of each image alone, and this one can't be had: "
                f"{error} Choose another method or loss, or the unit 'site'.",
            ) from error
        self._add({name: gradients[f"model.{name}"] for name in self._parameters})
        losses: torch.Tensor = values.detach().float().cpu()
        return losses

    def _add(self, gradients: dict[str, torch.Tensor]) -> None:
        """Clip and sum; an image whose gradient is not finite counts as none, or it alone would stop the training."""
        flat = [value.reshape(len(value), math.prod(value.shape[1:])) for value in gradients.values()]
        finite = torch.stack([torch.isfinite(value).all(dim=1) for value in flat]).all(dim=0)
        for name, parameter in self._parameters.items():
            value = gradients[name]
            value = torch.where(finite.view(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
            parameter.grad_sample = value  # type: ignore[attr-defined]
        self._private.clip_and_accumulate()


def refuse_patches(batch: Batch) -> None:
    """Refuse a batch with several samples of an image, whose influence is bounded one by one and not together.

    Raises:
        SettingsError: If there are any.
    """
    if len(batch.rows.unique()) < len(batch.rows):
        raise SettingsError(
            "patches_not_supported",
            "Privacy with the unit 'sample' needs one sample of each image, and the transforms cut an image into "
            "several: together they would have more influence than the noise hides. Use transforms that give one patch "
            "(num_samples 1), or the unit 'site'.",
        )


class _Alone(nn.Module):
    """A method's loss as a module around the network, so that `functional_call` reaches the network's parameters."""

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
