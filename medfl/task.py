"""Task: the networks, loss, optimiser and metrics of a learning problem, read from a bundle or built by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from medfl.errors import SettingsError, did_you_mean
from medfl.networks.transfer.adapters.layers import AdapterOptions
from medfl.networks.transfer.feature_input import FeatureNetworkBuilder, overwriting_tensors
from medfl.networks.transfer.frozen import frozen_tensors, set_and_remove_frozen
from medfl.networks.transfer.trainable import ALL, build_with_frozen_rest
from medfl.objectives import Objective
from medfl.settings import Lora, Optimization, Settings
from medfl.training.learning_rates import EpochRates, LearningRates, Schedule, StepRates
from medfl.training.parameter_groups import parameter_groups
from medfl.types import Tensors
from medfl.utils.rng import seeded_generators
from medfl.utils.wire import digest

if TYPE_CHECKING:
    from medfl.networks.transfer.start import Start
    from medfl.training.augment import Augmentation, AugmentFunction
    from medfl.training.predict import Inferer

OptimizerFactory = Callable[[Iterable[nn.Parameter] | list[dict[str, Any]]], torch.optim.Optimizer]
"""Function that creates an optimiser for parameters or for torch's parameter groups."""


def optimizer_factory(optimizer: torch.optim.Optimizer) -> OptimizerFactory:
    """Return a factory that creates optimisers like the given one for other parameters.

    A bundle defines one site's optimiser; each site gets a new one with the same class and hyperparameters.

    Args:
        optimizer: Optimiser with one parameter group.

    Raises:
        SettingsError: If it has several groups, because their options can't be applied to another network.
    """
    if len(optimizer.param_groups) != 1:
        raise SettingsError(
            "several_parameter_groups",
            f"expected an optimizer with one parameter group, got {len(optimizer.param_groups)} groups. "
            "Give all parameters to one group: per-group options can't be carried to other sites' networks. For a "
            "learning rate per layer, or no weight decay on norms and biases, use the setting 'optimization'.",
            expected=1,
            found=len(optimizer.param_groups),
        )
    kind = type(optimizer)
    accepted = inspect.signature(kind.__init__).parameters
    group = optimizer.param_groups[0]  # options of the group override the optimiser's defaults
    options = {name: group.get(name, value) for name, value in optimizer.defaults.items() if name in accepted}

    def build(parameters: Iterable[nn.Parameter] | list[dict[str, Any]]) -> torch.optim.Optimizer:
        return kind(parameters, **options)

    return build


@dataclass(frozen=True)
class ImageScale:
    """Shape and normalisation of a task's images: the network input is (image - mean) / std for an image in [0, 1].

    Attributes:
        shape: Shape of an image, (C, *spatial).
        mean: Mean that is subtracted, one number or one per channel.
        std: Standard deviation that the result is divided by, one number or one per channel, > 0.
        table_features: Number of last channels that are features of a table row, so that the case is no image.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    table_features: int = 0

    def to_images(self, images: torch.Tensor) -> torch.Tensor:
        """Convert network inputs (B, C, *spatial) to images in [0, 1]."""
        return images * self._per_channel(self.std, images) + self._per_channel(self.mean, images)

    def to_inputs(self, images: torch.Tensor) -> torch.Tensor:
        """Convert images in [0, 1], (B, C, *spatial), to network inputs."""
        return (images - self._per_channel(self.mean, images)) / self._per_channel(self.std, images)

    def difference_to_inputs(self, differences: torch.Tensor) -> torch.Tensor:
        """Convert the difference of two images in [0, 1] to the difference of network inputs (B, C, *spatial).

        The means cancel.
        """
        return differences / self._per_channel(self.std, differences)

    @staticmethod
    def _per_channel(values: tuple[float, ...], images: torch.Tensor) -> torch.Tensor:
        """Reshape the values for broadcasting over images (B, C, *spatial)."""
        return images.new_tensor(values).view(1, -1, *[1] * (images.dim() - 2))


@dataclass(frozen=True)
class Task:
    """Networks, loss, optimiser and metrics of one learning problem.

    Attributes:
        networks: Functions that build a new network, by the network's name. Its outputs have the objective's form.
        network: Name of the default network.
        loss: Module that maps outputs (B, ...) and targets (B, ...) to a scalar.
        optimizer: Function that creates an optimiser for parameters or for torch's parameter groups.
        objective: Kind of the learning problem: its targets, outputs and metrics (`medfl.objectives`).
        metrics: Names of the reported metrics, the key metric first; empty uses the objective's metrics.
        device: Device for training and evaluation.
        regions: Region labels of an image, (*spatial), integers, 0 for the background; None without regions. For
            methods that use features per region.
        augmentation: Random augmentation of training images; None leaves them unchanged.
        views: Random augmentation for methods that compare two views of an image; None uses `augmentation`.
        start: Weights that `with_start` has loaded into the default network; None if its weights are random, as those
            of all other networks are.
        scale: Shape and normalisation of the images; None if unknown. For methods that generate images.
        inferer: Function that applies a model to a case in evaluation, such as MONAI's `SlidingWindowInferer`; None
            applies the model to the whole case.
        schedule: Learning-rate schedule per round, or per epoch in a round; None keeps the learning rate constant.
        epoch_rates: Callback at the start of each epoch of a training; None outside a round or without a schedule per
            epoch.
        train_part: Parameters that learn (setting ``train_part``), as `with_training_of` has frozen all others.
        step_rates: Callback before each batch of a training; None outside a round or without a schedule per step.
        optimization: Optimisation recipe of the run; None outside a round or without a recipe.
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
    start: Start | None = None
    scale: ImageScale | None = None
    inferer: Inferer | None = field(default=None, compare=False)
    schedule: Schedule | None = field(default=None, compare=False)
    epoch_rates: EpochRates | None = field(default=None, compare=False)
    train_part: str = ALL
    step_rates: StepRates | None = field(default=None, compare=False)
    optimization: Optimization | None = field(default=None, compare=False)
    _names: dict[str, list[str]] = field(default_factory=dict, repr=False, compare=False)
    _frozen: dict[str, Tensors] = field(default_factory=dict, repr=False, compare=False)
    _frozen_digests: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def initial(self, seed: int, network: str | None = None, owner: str = "") -> Tensors:
        """Return the initial tensors of a network.

        They depend on seed, network, owner and `start`, not on the method.

        Args:
            seed: Seed of the run.
            network: Name of the network; None uses the task's default.
            owner: Name of the site that gets initial tensors of its own; empty for tensors that all sites have in
                common.

        Returns:
            The state dict: trainable parameters and buffers, contiguous, on the CPU.

        Raises:
            SettingsError: If the weights in `start` don't fit the network.
        """
        name = network or self.network
        with seeded_generators(seed, "initial", name, owner):
            model = self.build(name)
        state = model.state_dict()
        return {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}

    def names(self, network: str | None = None) -> list[str]:
        """Return the names of a network's state dict (trainable parameters and buffers), in order."""
        name = network or self.network
        if name not in self._names:
            with torch.random.fork_rng(devices=[]):
                self._names[name] = list(self.build(name).state_dict())
        return self._names[name]

    def frozen(self, network: str | None = None) -> Tensors:
        """Return the frozen tensors of a network by name, on the CPU (`medfl.networks.transfer.frozen.frozen_tensors`).

        They depend only on the network and `start`, not on the run's seed, the site or the round. They never change,
        so state dicts of networks from `build` and `load` don't contain them, and they are never sent, averaged or
        noised. The caller must not change the tensors.

        Raises:
            SettingsError: If all parameters of the network are frozen, or the weights in `start` don't fit it.
        """
        name = network or self.network
        if name not in self._frozen:
            with seeded_generators("frozen", name):
                model = self._construct(name)
            parameters = list(model.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                raise SettingsError(
                    "no_trainable_parameters",
                    f"All {len(parameters)} parameters of the network '{name}' are frozen: expected at least one "
                    "trainable parameter. Leave some trainable (requires_grad) in the network's constructor, and "
                    "select one of those with the setting 'train_part'.",
                    network=name,
                    count=len(parameters),
                )
            frozen = frozen_tensors(model)
            self._frozen[name] = {key: value.clone() for key, value in frozen.items()}
        return self._frozen[name]

    def frozen_digest(self, network: str | None = None) -> str | None:
        """Return the SHA-256 of a network's frozen tensors, or None without any."""
        name = network or self.network
        if name not in self._frozen_digests:
            frozen = self.frozen(name)
            self._frozen_digests[name] = digest(frozen) if frozen else None
        return self._frozen_digests[name]

    def __post_init__(self) -> None:
        if not self.metrics:
            object.__setattr__(self, "metrics", self.objective.metrics)

    def with_class_weights(self, targets: torch.Tensor) -> Task:
        """Return the task with the class weights of a site in its loss (`medfl.objectives.balance`).

        Args:
            targets: Targets of the site's training cases, (n, ...).
        """
        return replace(self, loss=self.objective.balanced_loss(self.loss, targets, "cpu"))

    def with_training_of(self, train_part: str, lora: Lora | None = None) -> Task:
        """Return the task whose networks have all parameters frozen that a run doesn't train.

        Args:
            train_part: The run's setting ``train_part`` (`medfl.networks.transfer.trainable.freeze_rest`); ``all``
                leaves the task unchanged.
            lora: The run's setting ``lora``, for ``train_part`` ``lora``; None uses the defaults.
        """
        if train_part == self.train_part:
            return self
        adapters = AdapterOptions(**(lora or Lora()).model_dump())
        networks = {
            name: partial(build_with_frozen_rest, build, train_part, name, adapters)
            for name, build in self.networks.items()
        }
        return replace(self, networks=networks, train_part=train_part, _names={}, _frozen={}, _frozen_digests={})

    def on_features(self) -> Task:
        """Return the task whose default network takes features of its frozen body instead of images, not augmented."""
        task = replace(self, augmentation=None, views=None)
        return task.with_network(self.network, FeatureNetworkBuilder(self.networks[self.network]))

    def in_round(self, round_: int, settings: Settings) -> Task:
        """Return the task with the learning rates and the optimisation recipe of a round.

        A learning rate is the optimiser's, times ``lr_decay ** (round_ - 1)``, times the schedule's factor of the
        round. If the schedule restarts, its factor changes with each epoch of a training instead. With a schedule in
        the settings, the factor changes with each batch of a training.

        Args:
            round_: Number of the round, from 1.
            settings: Settings of the run.
        """
        recipe = settings.optimization
        if settings.lr_decay == 1 and self.schedule is None and recipe is None:
            return self
        by_epoch = EpochRates(self.schedule) if self.schedule is not None and self.schedule.restarts else None
        varies = recipe is not None and recipe.varies_in_round
        by_step = StepRates(recipe, round_, settings.rounds) if recipe is not None and varies else None
        by_round = 1.0 if self.schedule is None or by_epoch is not None else self.schedule(round_)
        factor = settings.lr_decay ** max(round_ - 1, 0) * by_round
        changing: list[LearningRates] = [rates for rates in (by_epoch, by_step) if rates is not None]

        def build(parameters: Iterable[nn.Parameter] | list[dict[str, Any]]) -> torch.optim.Optimizer:
            optimizer = self.optimizer(parameters)
            for group in optimizer.param_groups:
                group["lr"] *= factor
            for rates in changing:
                rates.follow(optimizer)
            return optimizer

        return replace(self, optimizer=build, epoch_rates=by_epoch, step_rates=by_step, optimization=recipe)

    def make_optimizer(self, model: nn.Module, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Create an optimiser for a model, with the parameter groups of the optimisation recipe.

        Args:
            model: The model, or a part of one.
            parameters: Parameters of the model to train.
        """
        recipe = self.optimization
        if recipe is None or not recipe.has_groups:
            return self.optimizer(parameters)
        groups = parameter_groups(model, parameters, recipe.layer_decay, recipe.decay_norms)
        optimizer = self.optimizer([group.options() for group in groups])
        for options, group in zip(optimizer.param_groups, groups, strict=True):
            options["lr"] *= group.rate_factor
        return optimizer

    def with_start(self, start: Start) -> Task:
        """Return the task with the default network starting from weights. Networks built on top of it do so, too."""
        started = start.builder(self.networks[self.network], self.network)
        return replace(self.with_network(self.network, started), start=start)

    def with_network(self, name: str, build: Callable[[], nn.Module]) -> Task:
        """Return the task with a network added, or replaced if the name is already in use."""
        return replace(self, networks={**self.networks, name: build}, _names={}, _frozen={}, _frozen_digests={})

    def augment(self, generator: torch.Generator) -> AugmentFunction | None:
        """Return a function that augments a batch with random numbers from `generator`; None without augmentation."""
        if self.augmentation is None:
            return None
        return partial(
            self.augmentation.batch,
            regions=self.regions,
            generator=generator,
            has_spatial_targets=self.objective.has_spatial_targets,
        )

    def build(self, network: str | None = None) -> nn.Module:
        """Return a new network on the CPU, with the initial tensors that its constructor draws.

        Its frozen tensors have the values of `frozen`, and its state dict does not contain them.

        Raises:
            SettingsError: If the task has no network of that name, or all parameters of the network are frozen.
        """
        name = network or self.network
        model = self._construct(name)
        if frozen := self.frozen(name):
            set_and_remove_frozen(model, frozen)
        return model

    def _construct(self, name: str) -> nn.Module:
        """Call the constructor of a network. Raise if there is no network of that name."""
        if name not in self.networks:
            raise SettingsError(
                "unknown_choice",
                f"unknown network '{name}'. {did_you_mean(name, self.networks)}",
                what="network",
                choice=name,
            )
        return self.networks[name]()

    def load(self, tensors: Tensors, network: str | None = None) -> nn.Module:
        """Return a network with the given tensors on the task's device, in channels-last layout if that is supported.

        The function also moves the task's loss to the device, in place, because a loss may have class weights.

        Args:
            tensors: State dict of the network, with or without its frozen tensors.
            network: Name of the network; None uses the task's default.
        """
        self.frozen(network)  # they are drawn here, once, and not in the block below
        is_complete = tensors.keys() >= set(self.names(network))  # adapters keep values that plain tensors don't have
        with torch.random.fork_rng(devices=[]), overwriting_tensors() if is_complete else nullcontext():
            model = self.build(network)
        model.load_state_dict(tensors)
        self.loss.to(self.device)
        if not suits_channels_last(model):
            return model.to(self.device)
        return model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def suits_channels_last(model: nn.Module) -> bool:
    """Return True if a network supports channels-last layout: it is 2-D, and not affected by a bug in torch's kernels.

    With few input channels, the backward pass of a strided 1x1 convolution in that layout writes out of bounds on a CPU
    (torch 2.13, https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    risky = [
        convolution
        for convolution in convolutions
        if convolution.kernel_size == (1, 1) and max(convolution.stride) > 1 and convolution.in_channels < 16
    ]
    return not risky and all(parameter.dim() < 5 for parameter in model.parameters())
