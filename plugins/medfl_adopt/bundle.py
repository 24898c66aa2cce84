"""An adopted bundle at run time: its configuration with a site's folder inserted, and the components built from it.

The bundle's code runs here; it must have been reviewed. Only the required ids are parsed. The trainer and the data sets
are not, because they would read images when they are built.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from torch import nn

from medfl.bundle.adopted import UsedIds
from medfl.bundle.check import METADATA
from medfl.bundle.check.reading import read_config
from medfl.data.readers.quiet import drop_missing_codec
from medfl.errors import SettingsError
from medfl.networks.part_names import name_parts
from medfl.task import OptimizerFactory, optimizer_factory
from medfl.types import Meta
from medfl.utils.rng import seeded_generators
from medfl.utils.text import inert_name
from medfl_adopt.adoption import OVERLAY_FILE

TRAIN, EVALUATE = "train", "evaluate"
"""Kinds of configurations, the keys of ``adopted#files``."""


@dataclass(frozen=True)
class TrainingParts:
    """Components that all sites train with, built from the bundle's configuration.

    Attributes:
        network: Builds a new network on the CPU, with the initial weights of its constructor.
        loss: Maps outputs and targets to a scalar.
        optimizer: Builds an optimizer like the bundle's for given parameters.
        amp: Whether the bundle trains in mixed precision.
        train_inferer: Applies a network in training; None calls the network directly.
        val_inferer: Applies a network in validation; None calls the network directly.
        prepare_batch: Extracts inputs and targets from a batch; None means MONAI's function, with the keys image and
            label.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    optimizer: OptimizerFactory
    amp: bool
    train_inferer: Callable[..., Any] | None
    val_inferer: Callable[..., Any] | None
    prepare_batch: Callable[..., Any] | None


class AdoptedBundle:
    """A bundle that ``medfl adopt`` made and that was reviewed: its code runs here.

    Args:
        root: Folder of the adopted bundle.
        overrides: Maps ids of the bundle's configurations to values, as on the command line; or the same mapping in
            JSON. Ids of the overlay are ignored.

    Attributes:
        root: Folder of the adopted bundle.
        adopted: Content of ``adopted`` in the overlay.
        ids: Maps each part (`medfl_adopt.parts.PartIds`) to its id, or None.

    Raises:
        SettingsError: If the bundle was not adopted, lacks an id that the overlay names, or an override has no effect.
    """

    def __init__(self, root: str | Path, overrides: Meta | str | None = None) -> None:
        self.root = Path(root).resolve()
        path = self.root / OVERLAY_FILE
        overlay = ConfigParser.load_config_file(str(path)) if path.is_file() else {}
        if "adopted" not in overlay:
            raise SettingsError(
                "not_adopted",
                f"'{root}' is not an adopted bundle: expected '{OVERLAY_FILE}' with the id 'adopted' (medfl adopt).",
                path=root,
            )
        self.adopted: Meta = overlay["adopted"]
        self.ids: dict[str, str | None] = self.adopted["parts"]
        self._overlay = overlay
        values: Meta = json.loads(overrides) if isinstance(overrides, str) else (overrides or {})
        plain = {id_.replace("::", "#"): value for id_, value in values.items()}
        self._overrides = {id_: value for id_, value in plain.items() if id_.split("#")[0] not in overlay}
        used = UsedIds.of(self.adopted)
        if lost := [id_ for id_ in self._overrides if not used.has_effect(id_)]:
            raise SettingsError(
                "option_without_effect",
                f"The overrides {', '.join(sorted(lost))} have no effect: a run builds nothing from these ids. "
                "docs/federate.md of the bundle lists the parts that a run uses and ignores.",
                options=sorted(lost),
            )
        files = self.adopted["files"]
        kinds = {TRAIN: [TRAIN], EVALUATE: [TRAIN, EVALUATE] if EVALUATE in files else [TRAIN]}
        self._contents = {
            kind: ConfigParser.load_config_files([str(self.root / files[each]) for each in read])
            for kind, read in kinds.items()
        }
        self._initialized = False
        if str(self.root) not in sys.path:  # processes that load cases import the bundle's modules
            sys.path.append(str(self.root))
        parser = self.parser()
        missing = [id_ for id_ in self.ids.values() if id_ is not None and id_ not in parser]
        if missing:
            raise SettingsError(
                "missing_ids",
                f"'{root}' lacks ids that '{OVERLAY_FILE}' names: {', '.join(missing)}. Adopt the bundle again.",
                path=root,
                ids=missing,
            )

    def initialize(self) -> None:
        """Run the bundle's ``initialize``, once in a process. The global random generators keep their state.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        if not self._initialized and "initialize" in self.parser():
            with seeded_generators(0, "initialize"):
                self.build(self.parser(), "initialize")
        self._initialized = True

    def parser(self, folder: Path | None = None, device: str = "cpu", kind: str = TRAIN) -> ConfigParser:
        """Return the bundle's configuration with a site's folder inserted; nothing is parsed yet.

        Args:
            folder: Folder that replaces the bundle's ``dataset_dir``; None keeps it.
            device: Device of the networks, as torch names it.
            kind: `TRAIN`, or `EVALUATE` for the training configuration overlaid with ``evaluate``.
        """
        drop_missing_codec()
        parser = ConfigParser(config=copy.deepcopy(self._contents[kind]))
        if (self.root / METADATA).is_file():
            parser.read_meta(str(self.root / METADATA))
        for id_, value in self._overrides.items():
            parser[id_] = copy.deepcopy(value)
        cases = self.adopted["cases"]
        for id_ in filter(None, (cases[f"{name}_list"] for name in ("train", "validation", "test"))):
            if id_ in self._overlay:
                parser[id_] = self._overlay[id_]
        parser["bundle_root"], parser["device"] = str(self.root), torch.device(device)
        if folder is not None:
            slash = "/" if str(self._contents[kind]["dataset_dir"]).endswith("/") else ""  # expressions may rely on it
            parser["dataset_dir"] = f"{folder}{slash}"
            for id_, path in cases["list_files"].items():
                parser[id_] = str(folder / Path(path).name)
        return parser

    def build(self, parser: ConfigParser, id_: str | None) -> Any:
        """Build the component at an id; return None for the id None.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        if id_ is None:
            return None
        try:
            with self.importable():
                return parser.get_parsed_content(id_)
        except Exception as error:  # the bundle's code may raise anything
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            raise SettingsError(
                "component_not_buildable",
                f"'{id_}' of the bundle can't be built: {type(cause).__name__}: {cause}",
                id=id_,
                cause=type(cause).__name__,
            ) from error

    def parts(self) -> TrainingParts:
        """Build the components of a training. The transforms belong to each site (`medfl_adopt.site.AdoptedSite`).

        Raises:
            SettingsError: If the bundle's code fails, or its optimizer has several groups of parameters.
        """
        parser = self.parser()
        built = {name: self.build(parser, self.ids[name]) for name in _BUILT_PARTS}
        frozen = _parameters_without_optimizer(self._build_trained_network(parser), built["optimizer"])
        return TrainingParts(
            network=partial(self._build_network, frozen),
            optimizer=optimizer_factory(built.pop("optimizer")),
            amp=bool(built.pop("amp")),
            **built,
        )

    def _build_network(self, frozen: Sequence[str]) -> nn.Module:
        """Build a new network in the same way as the bundle's trainer, and freeze some parameters."""
        network = self._build_trained_network(self.parser())
        for name in frozen:
            network.get_parameter(name).requires_grad_(False)
        return name_parts(network, **self.adopted["modules"])

    def _build_trained_network(self, parser: ConfigParser) -> nn.Module:
        """Build the network of the bundle's trainer; raise SettingsError if it is no module."""
        id_ = self.ids["trained"]
        network = self.build(parser, id_)
        if not isinstance(network, nn.Module):
            raise SettingsError(
                "not_a_network",
                f"expected a torch.nn.Module at '{id_}' of the bundle, the network to train; got a "
                f"{type(network).__name__}. Correct the expression.",
                id=id_,
                found=type(network).__name__,
            )
        return network

    def output_names(self, count: int) -> tuple[str, ...]:
        """Return the metadata's name of each channel of the network's output; empty unless all channels have names.

        Args:
            count: Number of channels.
        """
        names, _ = read_config(self.root / METADATA)
        for key in ("network_data_format", "outputs", "pred", "channel_def"):
            names = names.get(key) if isinstance(names, Mapping) else None
        if not isinstance(names, Mapping) or names.keys() != {str(number) for number in range(count)}:
            return ()
        return tuple(inert_name(str(names[str(number)]), str(number)) for number in range(count))

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Make the bundle's own modules importable in the block, as MONAI does when it runs the bundle."""
        sys.path.insert(0, str(self.root))
        try:
            yield
        finally:
            sys.path.remove(str(self.root))


def _parameters_without_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of a network's trainable parameters that its optimizer does not contain.

    Raises:
        SettingsError: If the optimizer contains parameters that do not belong to the network.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if foreign := held - {id(parameter) for parameter in network.parameters()}:
        raise SettingsError(
            "foreign_parameters",
            f"The bundle's optimizer has {len(foreign)} parameters that don't belong to the network: expected only "
            "parameters of the trainer's network, because a federation shares nothing else. Move the other parameters "
            "into the network.",
            count=len(foreign),
        )
    return [
        name for name, parameter in network.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]


_BUILT_PARTS = (
    "loss",
    "optimizer",
    "amp",
    "train_inferer",
    "val_inferer",
    "prepare_batch",
)
