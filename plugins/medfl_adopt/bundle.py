"""An adopted bundle as it runs: its configuration with a site's folder in it, and what is built of that.

Here the bundle's code runs, where it was reviewed. Only the ids that are needed are parsed; not the trainer and the
data sets, which read images when they are built.
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

from medfl.bundle.adopted import Used
from medfl.bundle.check import METADATA
from medfl.bundle.check.reading import read_config
from medfl.data.readers.quiet import drop_missing_codec
from medfl.errors import SettingsError
from medfl.networks.known import name_parts
from medfl.task import OptimizerFactory, optimizer_factory
from medfl.types import Meta
from medfl.utils.rng import pinned
from medfl.utils.text import inert_name
from medfl_adopt.adoption import OVERLAY

TRAIN, EVALUATE = "train", "evaluate"
"""Kinds of configurations, as ``adopted#files`` names them."""


@dataclass(frozen=True)
class TrainingParts:
    """What all sites train with, as the bundle's configuration builds it.

    Attributes:
        network: Makes a new network on the CPU, with whatever tensors its constructor draws.
        loss: Maps outputs and targets to a scalar.
        optimizer: Makes an optimiser like the bundle's for other parameters.
        amp: Whether the bundle trains in mixed precision.
        train_inferer: Applies a network in training; None calls it.
        val_inferer: Applies a network in validation; None calls it.
        prepare_batch: Makes inputs and targets of a batch; None is MONAI's, keys image and label.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    optimizer: OptimizerFactory
    amp: bool
    train_inferer: Callable[..., Any] | None
    val_inferer: Callable[..., Any] | None
    prepare_batch: Callable[..., Any] | None


class AdoptedBundle:
    """A bundle that ``medfl adopt`` made, reviewed: its code runs here.

    Args:
        root: The adopted bundle.
        overrides: Id of its configurations to value, as of the command line, or the same in JSON; ids of the overlay
            are passed over.

    Raises:
        SettingsError: If the bundle was not adopted, or an id that it names is not there.
    """

    def __init__(self, root: str | Path, overrides: Meta | str | None = None) -> None:
        self.root = Path(root).resolve()
        path = self.root / OVERLAY
        overlay = ConfigParser.load_config_file(str(path)) if path.is_file() else {}
        if "adopted" not in overlay:
            raise SettingsError(
                "not_adopted",
                f"'{root}' is no adopted bundle: expected '{OVERLAY}' with 'adopted' (medfl adopt).",
                path=root,
            )
        self.adopted: Meta = overlay["adopted"]
        self.ids: dict[str, str | None] = self.adopted["parts"]
        self._overlay = overlay
        values: Meta = json.loads(overrides) if isinstance(overrides, str) else (overrides or {})
        plain = {id_.replace("::", "#"): value for id_, value in values.items()}
        self._overrides = {id_: value for id_, value in plain.items() if id_.split("#")[0] not in overlay}
        used = Used.of(self.adopted)
        if lost := [id_ for id_ in self._overrides if not used.has_effect(id_)]:
            raise SettingsError(
                "option_without_effect",
                f"the overrides {', '.join(sorted(lost))} have no effect: a run builds nothing from these ids. "
                "docs/federate.md of the bundle lists what it builds and what is left out.",
                options=sorted(lost),
            )
        files = self.adopted["files"]
        kinds = {TRAIN: [TRAIN], EVALUATE: [TRAIN, EVALUATE] if EVALUATE in files else [TRAIN]}
        self._contents = {
            kind: ConfigParser.load_config_files([str(self.root / files[each]) for each in read])
            for kind, read in kinds.items()
        }
        self._initialized = False
        if str(self.root) not in sys.path:  # for processes that load cases
            sys.path.append(str(self.root))
        parser = self.parser()
        missing = [id_ for id_ in self.ids.values() if id_ is not None and id_ not in parser]
        if missing:
            raise SettingsError(
                "missing_ids",
                f"'{root}' lacks ids that '{OVERLAY}' names: {', '.join(missing)}. Adopt it again.",
                path=root,
                ids=missing,
            )

    def initialize(self) -> None:
        """Run the bundle's ``initialize``, once in a process; torch's, NumPy's, Python's generators stay as they are.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        if not self._initialized and "initialize" in self.parser():
            with pinned(0, "initialize"):
                self.build(self.parser(), "initialize")
        self._initialized = True

    def parser(self, folder: Path | None = None, device: str = "cpu", kind: str = TRAIN) -> ConfigParser:
        """The bundle's configuration with a site's folder in it, nothing of it parsed yet.

        Args:
            folder: In place of the bundle's ``dataset_dir``; None leaves that.
            device: Where networks are, as torch names it.
            kind: `TRAIN`, or `EVALUATE`, which lies over it where the bundle has it.
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
            slash = "/" if str(self._contents[kind]["dataset_dir"]).endswith("/") else ""  # names may rely on it
            parser["dataset_dir"] = f"{folder}{slash}"
            for id_, path in cases["list_files"].items():
                parser[id_] = str(folder / Path(path).name)
        return parser

    def build(self, parser: ConfigParser, id_: str | None) -> Any:
        """What an id stands for; None for no id.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        if id_ is None:
            return None
        try:
            with self.importable():
                return parser.get_parsed_content(id_)
        except Exception as error:  # whatever the bundle's code raises
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
        """Build the parts of a training; a site's transforms are its own (`medfl_adopt.site.AdoptedSite`).

        Raises:
            SettingsError: If the bundle's code fails, or its optimiser has several groups of parameters.
        """
        parser = self.parser()
        built = {name: self.build(parser, self.ids[name]) for name in _BUILT}
        frozen = _without_steps(self._trained(parser), built["optimizer"])
        return TrainingParts(
            network=partial(self._network, frozen),
            optimizer=optimizer_factory(built.pop("optimizer")),
            amp=bool(built.pop("amp")),
            **built,
        )

    def _network(self, frozen: Sequence[str]) -> nn.Module:
        """Build the network that the bundle's trainer trains, anew, with some parameters frozen."""
        network = self._trained(self.parser())
        for name in frozen:
            network.get_parameter(name).requires_grad_(False)
        return name_parts(network, **self.adopted["modules"])

    def _trained(self, parser: ConfigParser) -> nn.Module:
        id_ = self.ids["trained"]
        network = self.build(parser, id_)
        if not isinstance(network, nn.Module):
            raise SettingsError(
                "not_a_network",
                f"'{id_}' of the bundle gives a {type(network).__name__}: expected the network to train, a "
                "torch.nn.Module. Correct the expression.",
                id=id_,
                found=type(network).__name__,
            )
        return network

    def output_names(self, count: int) -> tuple[str, ...]:
        """What the metadata say that each channel of the network's output is for; empty where they don't name them all.

        Args:
            count: Of the channels.
        """
        names, _ = read_config(self.root / METADATA)
        for key in ("network_data_format", "outputs", "pred", "channel_def"):
            names = names.get(key) if isinstance(names, Mapping) else None
        if not isinstance(names, Mapping) or names.keys() != {str(number) for number in range(count)}:
            return ()
        return tuple(inert_name(str(names[str(number)]), str(number)) for number in range(count))

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Let the bundle's own modules be imported, as they are where MONAI runs it from its folder."""
        sys.path.insert(0, str(self.root))
        try:
            yield
        finally:
            sys.path.remove(str(self.root))


def _without_steps(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of a network's trainable parameters that its optimiser does not have.

    Raises:
        SettingsError: If the optimiser has parameters that are not the network's.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if foreign := held - {id(parameter) for parameter in network.parameters()}:
        raise SettingsError(
            "foreign_parameters",
            f"the bundle's optimiser has {len(foreign)} parameters that are not the network's: expected only those of "
            "the network that the trainer trains. A federation shares the network alone; put what learns into it.",
            count=len(foreign),
        )
    return [
        name for name, parameter in network.named_parameters() if parameter.requires_grad and id(parameter) not in held
    ]


_BUILT = (
    "loss",
    "optimizer",
    "amp",
    "train_inferer",
    "val_inferer",
    "prepare_batch",
)
