"""A task: what is learned, taken from a bundle (or built by hand)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from medfl.errors import SettingsError, did_you_mean
from medfl.networks.frozen import frozen_parameters, hold_frozen
from medfl.objectives import Objective
from medfl.types import Meta, Tensors
from medfl.utils.rng import pinned
from medfl.utils.wire import digest

if TYPE_CHECKING:
    from medfl.networks.pretrained import Pretrained
    from medfl.training.augment import Augment, Augmentation
    from medfl.training.predict import Inferer

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Schedule(Protocol):
    """The learning rate as a share of the optimiser's, round by round, or anew in each round epoch by epoch.

    Attributes:
        restarts: Whether it counts the epochs of each training, and not rounds.
        facts: What makes two schedules the same; JSON.
    """

    restarts: bool
    facts: Meta

    def __call__(self, number: int) -> float:
        """The share in a round or, if it `restarts`, in an epoch; both are counted from 1; >= 0."""
        ...


class EpochRates:
    """The learning rates of a round's optimisers under a schedule that restarts.

    Args:
        schedule: What they follow.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._followers: list[tuple[torch.optim.Optimizer, list[float]]] = []

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimiser's learning rates follow the schedule, as shares of what they are now."""
        self._followers.append((optimizer, [float(group["lr"]) for group in optimizer.param_groups]))

    def __call__(self, epoch: int) -> None:
        """An epoch of a training begins, counted from 1."""
        share = self._schedule(epoch)
        for optimizer, rates in self._followers:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share


def optimizer_factory(optimizer: torch.optim.Optimizer) -> OptimizerFactory:
    """A factory that makes optimisers like the given one for other parameters.

    A bundle describes one site's optimiser; every site gets a new one with the same class and hyper-parameters.

    Args:
        optimizer: An optimiser with one parameter group.

    Raises:
        SettingsError: If it has several groups: their options can't be carried to another network.
    """
    if len(optimizer.param_groups) != 1:
        raise SettingsError(
            "several_parameter_groups",
            f"expected an optimizer with one parameter group, got {len(optimizer.param_groups)} groups. "
            "Give all parameters to one group: per-group options can't be carried to other sites' networks.",
            expected=1,
            found=len(optimizer.param_groups),
        )
    kind = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    group = optimizer.param_groups[0]  # its own options win over the optimiser's defaults
    options = {name: group.get(name, value) for name, value in optimizer.defaults.items() if name in accepted}

    def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, **options)

    return build


@dataclass(frozen=True)
class Scale:
    """Shape and normalisation of a task's images: what a network sees is (image - mean) / std, image in [0, 1].

    Attributes:
        shape: (C, *spatial).
        mean: One number, or one for each channel.
        std: One number, or one for each channel, > 0.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def raw(self, images: torch.Tensor) -> torch.Tensor:
        """Images in [0, 1] of what a network sees, (B, C, *spatial)."""
        return images * self._per_channel(self.std, images) + self._per_channel(self.mean, images)

    def seen(self, images: torch.Tensor) -> torch.Tensor:
        """What a network sees of images in [0, 1], (B, C, *spatial)."""
        return (images - self._per_channel(self.mean, images)) / self._per_channel(self.std, images)

    def seen_difference(self, differences: torch.Tensor) -> torch.Tensor:
        """What a network sees of the difference of two images in [0, 1], (B, C, *spatial): the means cancel."""
        return differences / self._per_channel(self.std, differences)

    @staticmethod
    def _per_channel(values: tuple[float, ...], images: torch.Tensor) -> torch.Tensor:
        return images.new_tensor(values).view(1, -1, *[1] * (images.dim() - 2))


@dataclass(frozen=True)
class Task:
    """Networks, loss, optimiser and metrics of one learning problem.

    Attributes:
        networks: Name to a function that builds a new network, whose outputs are as the objective says.
        network: The name used where a run names no other.
        loss: Maps outputs (B, ...) and targets (B, ...) to a scalar.
        optimizer: Makes an optimiser for parameters.
        objective: What is learned: targets, outputs and scores (`medfl.objectives`).
        metrics: Names of metrics to report, the key metric first; empty takes the objective's.
        device: Where networks are trained and evaluated.
        regions: Labels of the regions of an image, (*spatial), integers, 0 for the background; None without any. For
            methods that look at features region by region.
        augmentation: Changes training images at random; None leaves them as they are.
        views: Changes images at random for methods that compare two views of an image; None takes `augmentation`.
        weights: Initial tensors for the body of `network`, from a file; None draws them. Other networks draw theirs.
        scale: Shape and normalisation of the images; None where nobody said. For methods that generate images.
        inferer: Applies a model to a case in evaluation, such as MONAI's `SlidingWindowInferer`; None applies it whole.
        schedule: The learning rate of each round, or of each epoch in a round, as a share of the optimiser's; None
            keeps that.
        epoch_rates: Called as each epoch of a training begins; None outside a round, and where nothing follows epochs.
    """

    networks: Mapping[str, Callable[[], nn.Module]]
    network: str
    loss: nn.Module
    optimizer: OptimizerFactory
    objective: Objective
    metrics: tuple[str, ...] = ()
    device: str = "cpu"
    regions: torch.Tensor | None = field(default=None, compare=False)
    augmentation: Augmentation | None = None
    views: Augmentation | None = None
    weights: Pretrained | None = None
    scale: Scale | None = None
    inferer: Inferer | None = field(default=None, compare=False)
    schedule: Schedule | None = field(default=None, compare=False)
    epoch_rates: EpochRates | None = field(default=None, compare=False)
    _names: dict[str, list[str]] = field(default_factory=dict, repr=False, compare=False)
    _frozen: dict[str, Tensors] = field(default_factory=dict, repr=False, compare=False)

    def initial(self, seed: int, network: str | None = None, owner: str = "") -> Tensors:
        """The initial tensors of a network: a function of seed, network, owner and `weights`, not of the method (G-13).

        Args:
            seed: The run's seed.
            network: Its name; None means the task's default.
            owner: A site's name for parts that start unlike at each site; empty for the common start.

        Returns:
            The state dict: trainable parameters and buffers, on the CPU, contiguous.

        Raises:
            SettingsError: If `weights` don't fit the network.
        """
        name = network or self.network
        with pinned(seed, "initial", name, owner):
            model = self.build(name)
        state = model.state_dict()
        if self.weights is not None and name == self.network:
            loaded = self.weights.body_of(model, name)
            state |= {key: value for key, value in loaded.items() if key in state}
        return {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}

    def names(self, network: str | None = None) -> list[str]:
        """State-dict names of a network, in order."""
        name = network or self.network
        if name not in self._names:
            with torch.random.fork_rng(devices=[]):
                self._names[name] = list(self.build(name).state_dict())
        return self._names[name]

    def frozen(self, network: str | None = None) -> Tensors:
        """Return the parameters that a network's constructor gives ``requires_grad=False``, by name, on the CPU.

        They are a function of the network and `weights` alone: not of the run's seed, the site or the round. They never
        change, so no state dict of a network from `build` or `load` holds them, and nothing sends, averages or noises
        them (`medfl.networks.frozen`). The caller must not change the tensors.

        Raises:
            SettingsError: If all parameters of the network are frozen, or `weights` don't fit it.
        """
        name = network or self.network
        if name not in self._frozen:
            with pinned("frozen", name):
                model = self._construct(name)
            frozen = frozen_parameters(model)
            if frozen and len(frozen) == len(list(model.named_parameters(remove_duplicate=False))):
                raise SettingsError(
                    "no_trainable_parameters",
                    f"All {len(frozen)} parameters of the network '{name}' are frozen (requires_grad is False): "
                    "expected at least one that can learn. Leave some trainable in the network's constructor.",
                    network=name,
                    count=len(frozen),
                )
            if frozen and self.weights is not None and name == self.network:
                frozen |= {key: value for key, value in self.weights.body_of(model, name).items() if key in frozen}
            self._frozen[name] = {key: value.clone() for key, value in frozen.items()}
        return self._frozen[name]

    def frozen_digest(self, network: str | None = None) -> str | None:
        """Return a SHA-256 of a network's frozen parameters; None if it has none."""
        frozen = self.frozen(network)
        return digest(frozen) if frozen else None

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", self.objective.metrics)

    def weighted(self, targets: torch.Tensor) -> Task:
        """The same task with the class weights of a site in its loss (`medfl.objectives.balance`).

        Args:
            targets: Of the site's training cases, shape (n, ...).
        """
        return replace(self, loss=self.objective.balanced_loss(self.loss, targets, self.device))

    def in_round(self, round_: int, lr_decay: float) -> Task:
        """The task as it is in a round.

        Learning rates are those of the optimiser times ``lr_decay ** (round_ - 1)``, times the schedule's share: of the
        round or, if the schedule restarts, of each epoch of a training in it.

        Args:
            round_: Counted from 1.
            lr_decay: In (0, 1]; 1 leaves the task as it is.
        """
        if lr_decay == 1 and self.schedule is None:
            return self
        by_epoch = EpochRates(self.schedule) if self.schedule is not None and self.schedule.restarts else None
        by_round = 1.0 if self.schedule is None or by_epoch is not None else self.schedule(round_)
        factor = lr_decay ** max(round_ - 1, 0) * by_round

        def build(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = self.optimizer(parameters)
            for group in optimizer.param_groups:
                group["lr"] *= factor
            if by_epoch is not None:
                by_epoch.follow(optimizer)
            return optimizer

        return replace(self, optimizer=build, epoch_rates=by_epoch)

    def with_network(self, name: str, build: Callable[[], nn.Module]) -> Task:
        """The same task with another network under a name."""
        return replace(self, networks={**self.networks, name: build}, _names={}, _frozen={})

    def augment(self, generator: torch.Generator) -> Augment | None:
        """What changes the images of a training, drawing from `generator`; None where nothing does."""
        if self.augmentation is None:
            return None
        return partial(
            self.augmentation.batch, regions=self.regions, generator=generator, in_space=self.objective.in_space
        )

    def build(self, network: str | None = None) -> nn.Module:
        """Return a new network on the CPU, with whatever initial tensors its constructor draws.

        Its frozen parameters are those of `frozen`, and its state dict lacks them.

        Raises:
            SettingsError: If the task has no network of that name, or the network has nothing to learn.
        """
        name = network or self.network
        model = self._construct(name)
        if frozen := self.frozen(name):
            hold_frozen(model, frozen)
        return model

    def _construct(self, name: str) -> nn.Module:
        if name not in self.networks:
            raise SettingsError(
                "unknown_choice",
                f"unknown network '{name}'. {did_you_mean(name, self.networks)}",
                what="network",
                choice=name,
            )
        return self.networks[name]()

    def load(self, tensors: Tensors, network: str | None = None) -> nn.Module:
        """Return a network with the given tensors, on the task's device; in channels-last layout where that suits it.

        Args:
            tensors: State dict of the network; its frozen parameters may be left out.
            network: Name of the network; None means the task's default.
        """
        with torch.random.fork_rng(devices=[]):  # a constructor draws numbers that are overwritten here
            model = self.build(network)
        model.load_state_dict(tensors)
        model.to(self.device)
        if not suits_channels_last(model):
            return model
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def suits_channels_last(model: nn.Module) -> bool:
    """Whether a network may be put into channels-last layout: it is 2-D, and safe from a bug of torch's CPU kernels.

    With few input channels the backward pass of a strided 1x1 convolution in that layout writes outside its memory
    (torch 2.13, https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    risky = [
        convolution
        for convolution in convolutions
        if convolution.kernel_size == (1, 1) and max(convolution.stride) > 1 and convolution.in_channels < 16
    ]
    return not risky and all(parameter.dim() < 5 for parameter in model.parameters())
