"""Tiny federation that trains in milliseconds: data, networks, and functions that run a method on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from medfl.contract import Method
from medfl.data.pooled import TensorData
from medfl.engine.adversaries.simulation import read_attackers
from medfl.engine.plan import MethodChoice, RunPlan
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, SimulationResult, simulate
from medfl.engine.site import Splits
from medfl.engine.store import Store
from medfl.objectives import Multiclass
from medfl.plugins import Registry
from medfl.settings import Execution, Settings
from medfl.task import ImageScale, Task
from medfl.toolkit.averaging import Averaging
from medfl.types import Dataset, Meta, Tensors
from medfl.utils.rng import make_generator

CLASSES = 3
"""Number of classes of the tiny federation's images."""


class SmallNet(nn.Module):
    """Network with a body of one convolution and a linear head, with or without batch norm.

    Its stages (`feature_layers`) give a feature map and a vector.

    Args:
        norm: Whether the network has a batch-norm layer. Its name does not contain 'bn', so code that searches for
            names does not find it.
        width: Number of channels.
        outputs: Number of outputs.
        kernel: Edge of the convolution kernel, odd.

    Attributes:
        body: Feature extractor from images (B, 1, H, W) to features (B, 4 * width).
        head: Linear layer from features to outputs (B, outputs).
        feature_layers: Modules whose outputs are the features of the stages.
    """

    def __init__(self, norm: bool = True, width: int = 6, outputs: int = CLASSES, kernel: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, kernel, padding=kernel // 2)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * width, outputs)
        self.feature_layers = [self.body[-3], self.body]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute outputs (B, outputs) of images (B, 1, H, W)."""
        return self.head(self.body(images))


class FixedConv(nn.Conv2d):
    """Frozen convolution from 1 to 6 channels, whose forward pass raises if its weights have changed."""

    def __init__(self) -> None:
        super().__init__(1, 6, 3, padding=1)
        self.load_state_dict(self.original())
        self.requires_grad_(False)

    @staticmethod
    def original() -> Tensors:
        """Return the convolution's initial weights, which must not change."""
        return {"weight": torch.linspace(-1, 1, 54).reshape(6, 1, 3, 3), "bias": torch.full((6,), 0.25)}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the convolved images.

        Raises:
            AssertionError: If a weight has changed or is trainable.
        """
        for name, expected in self.original().items():
            tensor = getattr(self, name)
            if tensor.requires_grad or not torch.equal(tensor.cpu(), expected):
                raise AssertionError(f"the frozen parameter 'body.0.{name}' was changed or is trained")
        return super().forward(images)


class PartlyFrozenNet(SmallNet):
    """`SmallNet` with a frozen first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body[0] = FixedConv()


class FixedNorm(nn.BatchNorm2d):
    """Batch norm of 6 channels, whose forward pass raises if it is in training mode or a tensor of it has changed."""

    def __init__(self) -> None:
        super().__init__(6)
        self.load_state_dict(self.original())

    @staticmethod
    def original() -> Tensors:
        """Return the layer's initial tensors, which must not change."""
        return {
            "weight": torch.linspace(0.5, 1.5, 6),
            "bias": torch.linspace(-0.1, 0.1, 6),
            "running_mean": torch.linspace(-0.2, 0.2, 6),
            "running_var": torch.linspace(0.8, 1.2, 6),
            "num_batches_tracked": torch.tensor(11),
        }

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the normalised images.

        Raises:
            AssertionError: If the layer is in training mode, or one of its tensors has changed or is trainable.
        """
        for name, expected in self.original().items():
            tensor = getattr(self, name)
            if self.training or tensor.requires_grad or not torch.equal(tensor.cpu(), expected):
                raise AssertionError(f"the frozen tensor 'body.1.{name}' was changed or is trained")
        return super().forward(images)


class HeadOnlyNet(SmallNet):
    """`SmallNet` with a body that raises if it is trained, for runs with the setting ``train_part: head``."""

    def __init__(self) -> None:
        super().__init__()
        self.body[0] = FixedConv().requires_grad_(True)  # the setting must freeze it
        self.body[1] = FixedNorm()


def make_head_only_task() -> Task:
    """Return the tiny task with `HeadOnlyNet` as its network; only runs with ``train_part: head`` can use it."""
    task = make_task()
    return replace(task, networks={**task.networks, task.network: HeadOnlyNet})


def make_partly_frozen_task() -> Task:
    """Return the tiny task with `PartlyFrozenNet` as its network."""
    task = make_task()
    return replace(task, networks={**task.networks, task.network: PartlyFrozenNet})


def make_task(network: str = "norm", loss: nn.Module | None = None) -> Task:
    """Return a task with the networks ``norm`` (with batch norm), ``plain`` (without), ``wide`` and ``coarse``.

    The body of ``coarse`` differs from the body of ``norm`` and has the same number of features.
    """
    return Task(
        networks={
            "norm": SmallNet,
            "plain": lambda: SmallNet(norm=False),
            "wide": lambda: SmallNet(width=9),
            "coarse": lambda: SmallNet(kernel=5),
        },
        network=network,
        loss=loss or nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        objective=Multiclass(CLASSES),
        metrics=("accuracy",),
        scale=ImageScale((1, 6, 6), (0.5,), (0.5,)),
    )


def make_data(n: int, key: str, labels: torch.Tensor | None = None) -> TensorData:
    """Create n images (1, 6, 6) whose brightness pattern depends on the class, as a function of `key`."""
    generator = make_generator("tiny data", key)
    if labels is None:
        labels = torch.randint(CLASSES, (n,), generator=generator)
    patterns = torch.eye(CLASSES).repeat_interleave(2, 1).reshape(CLASSES, 1, 1, 6)
    images = 0.5 * torch.randn(n, 1, 6, 6, generator=generator) + patterns[labels]
    return TensorData(images, labels)


def make_site(n: int, key: str, labels: torch.Tensor | None = None) -> Splits:
    """Create a site with n training, 6 validation and 9 test images."""
    return Splits(make_data(n, key, labels), make_data(6, key + "/val"), make_data(9, key + "/test"))


def make_sites(sizes: Mapping[str, int] | None = None) -> dict[str, Splits]:
    """Create sites of the given sizes; by default three different ones."""
    return {name: make_site(n, name) for name, n in (sizes or {"site-1": 21, "site-2": 13, "site-3": 8}).items()}


def make_plan(
    settings: Settings, task: Task | None = None, sites: Sequence[str] = ("site-1", "site-2", "site-3")
) -> RunPlan:
    """Return the plan of a tiny run, to test a single site without a server.

    Args:
        settings: Settings of the run.
        task: Task; None means `make_task`.
        sites: Names of the run's sites.
    """
    return RunPlan(
        MethodChoice(name="tiny", make=lambda: cast(Method, Averaging())), task or make_task(), settings, sites
    )


@dataclass
class Case:
    """A method with its settings in the tiny federation.

    Attributes:
        registry: Registry with the method.
        name: Name of the method.
        args: Settings of the method.
        settings: Settings of the run that differ from the suite's.
        home: Folder for the run folder of `reference`; None uses the system's temporary folder.
        device: Device of the runs, ``cpu`` or ``cuda:N``.
        worked: Numbers of the steps of the reference run in which sites executed requests.
    """

    registry: Registry
    name: str
    args: Meta = field(default_factory=dict)
    settings: Meta = field(default_factory=dict)
    home: Path | None = None
    device: str = "cpu"
    worked: set[int] = field(default_factory=set)

    def settings_of(self, **changes: Any) -> Settings:
        """Return the run's settings: the suite's, overridden by this case's, overridden by the given changes."""
        return Settings(**({"rounds": 3, "batch_size": 5, "seed": 7} | self.settings | changes))

    @property
    def kind(self) -> type[Method]:
        """Class of the method."""
        return self.registry.method_class(self.name)

    def make_method(self) -> Method:
        """Create a new object of the method."""
        return self.registry.make_method(self.name, self.args)

    @cached_property
    def reference(self) -> tuple[SimulationResult, Path]:
        """Result and folder of the unchanged run, executed once and shared by checks that only read it."""
        folder = Path(tempfile.mkdtemp(dir=self.home)) / "reference"
        return self.run(folder, unavailable=self._present), folder

    def _present(self, site: str, step: int) -> bool:
        """Record a step in which a site executes a request; return False, because the site is available."""
        self.worked.add(step)
        return False

    def run(
        self,
        folder: Path,
        *,
        sites: Mapping[str, Splits] | None = None,
        task: Task | None = None,
        workers: int = 1,
        devices: tuple[str, ...] = (),
        unavailable: Callable[[str, int], bool] = lambda site, step: False,
        make_method: Callable[[], Method] | None = None,
        public: TensorData | None = None,
        server_test: Dataset | None = None,
        frees_space: bool = False,
        feature_cache: bool = True,
        checkpoint_minutes: float | None = None,
        **settings: Any,
    ) -> SimulationResult:
        """Run the federation in `folder` and return its result.

        Args:
            folder: Run folder.
            sites: Data of each site by name; None uses `make_sites`.
            task: Task of the run; None uses `make_task`.
            workers: Number of processes that train sites.
            devices: Devices of the worker processes, in place of `workers`.
            unavailable: Function of a site's name and a step number that returns True if the site does not reply.
            make_method: Function that creates the method; None uses the method's own.
            public: Public data of the server; None creates them if the method needs public data.
            server_test: Test set of the server.
            frees_space: Whether files of earlier steps are deleted during the run.
            feature_cache: Whether the features of a frozen body are computed only once.
            checkpoint_minutes: Most minutes of training within a step that are lost by a kill; None: no checkpoints.
            settings: Settings of the run that differ from those of the case.
        """
        data, run_settings = sites or make_sites(), self.settings_of(**settings)
        if public is None and "public_data" in self.kind.needs:
            public = make_data(12, "public")
        return simulate(
            SimulatedRun(
                method=MethodChoice(
                    name=self.name,
                    make=make_method or self.make_method,
                    args=self.args,
                    needs_by_method={record.name: record.needs for record in self.registry.methods.values()},
                ),
                task=replace(task or make_task(), device=self.device),
                settings=run_settings,
                data=RunData(sites=data, server_test=server_test or make_data(10, "global"), public=public),
                folder=folder,
                execution=Execution(
                    workers=workers,
                    devices=devices,
                    feature_cache=feature_cache,
                    checkpoint_minutes=checkpoint_minutes,
                ),
                simulation=Simulation(
                    unavailable=unavailable, attackers=read_attackers(run_settings.adversaries, self.registry)
                ),
                callbacks=Callbacks(frees_space=frees_space),
            )
        )


@contextmanager
def folders(count: int) -> Iterator[list[Path]]:
    """Yield paths for run folders in a temporary folder."""
    with tempfile.TemporaryDirectory() as root:
        yield [Path(root) / str(index) for index in range(count)]


def bits(result: SimulationResult) -> dict[str, Tensors]:
    """Return the tensors of all models of a run's result, to compare them bit by bit.

    Keys are ``PARTICIPANT/KIND``, for example ``site-1/personal``.
    """
    tensors_by_model = {f"server/{kind}": model.tensors for kind, model in result.outcome.models.items()}
    for site, models in result.models.items():
        tensors_by_model |= {f"{site}/{kind}": model.tensors for kind, model in models.items()}
    return tensors_by_model


def states(folder: Path) -> dict[str, Tensors]:
    """Return the tensors of each participant's latest state in a run folder, by participant."""
    tensors_by_participant = {}
    for path in sorted((folder / "state").iterdir()):
        record = Store(path).latest()
        if record is not None:
            tensors_by_participant[path.name] = record.state().tensors
    return tensors_by_participant


def scores(folder: Path) -> list[str]:
    """Return the lines of a run folder's metrics.csv, without the lines with measured seconds."""
    return [line for line in (folder / "metrics.csv").read_text().splitlines() if "seconds" not in line]
