"""An adopted bundle at run time: its configuration with a site's folder inserted, and the components built from it.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added an overlay. The overlay is the file
``configs/federate.json``; it records in its entry ``adopted`` under which ids of the bundle's configurations the parts
of a training are defined. An id is the path of an entry in a configuration, such as ``train#trainer``.

The bundle's code runs here; it must have been reviewed. Only the ids that a run needs are parsed. The trainer and the
data sets are not parsed, because they would read images when they are built.
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
from medfl.networks.bundle_parser import make_parser
from medfl.networks.part_names import name_parts
from medfl.task import OptimizerFactory, optimizer_factory
from medfl.types import Meta
from medfl.utils.rng import seeded_generators
from medfl.utils.text import inert_name
from medfl_adopt.adoption import OVERLAY_FILE

TRAIN, EVALUATE = "train", "evaluate"
"""Kinds of configurations, which are keys of ``adopted#files`` in the overlay.

* ``TRAIN``: the bundle's training configuration.
* ``EVALUATE``: the training configuration overlaid with the bundle's ``evaluate`` configuration.
"""


@dataclass(frozen=True)
class TrainingParts:
    """Components that all sites train with, built from the bundle's configuration.

    Attributes:
        network: Function that builds a new network on the CPU, with the initial weights of its constructor. Parameters
            that the bundle's optimizer does not contain are frozen.
        loss: Function that maps the network's outputs and the targets to a scalar.
        optimizer: Function that builds an optimizer like the bundle's for given parameters.
        amp: Whether the bundle trains in mixed precision.
        train_inferer: MONAI inferer that applies the network in training; None calls the network directly.
        val_inferer: MONAI inferer that applies the network in validation; None calls the network directly.
        prepare_batch: Function that extracts inputs and targets from a batch; None means MONAI's function, which uses
            the keys ``image`` and ``label``.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    optimizer: OptimizerFactory
    amp: bool
    train_inferer: Callable[..., Any] | None
    val_inferer: Callable[..., Any] | None
    prepare_batch: Callable[..., Any] | None


class AdoptedBundle:
    """Reader of an adopted bundle's configurations, which builds their components.

    Building runs the bundle's code: review it first. The constructor appends the bundle's folder to ``sys.path``.

    Args:
        root: Folder of the adopted bundle.
        overrides: Maps ids of the bundle's configurations to values that replace the values in the files, as on the
            command line; or the same mapping as JSON text. Entries whose id is defined by the overlay are ignored.

    Attributes:
        root: Folder of the adopted bundle, as an absolute path.
        adopted: Content of the overlay's entry ``adopted``: everything that ``medfl adopt`` recognized. Its keys
            include ``files``, ``parts``, ``cases``, ``objective``, ``weights`` and ``modules``.
        ids: Maps the name of each part of a training, such as ``loss`` or ``train_dataset`` (the fields of
            `medfl_adopt.parts.PartIds`), to its id; None for a part that the bundle lacks.

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
        """Run the expressions at the bundle's id ``initialize``; later calls have no effect.

        MONAI runs these expressions before a workflow, for example to seed generators. The global random generators
        keep their state.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        if not self._initialized and "initialize" in self.parser():
            with seeded_generators(0, "initialize"):
                self.build(self.parser(), "initialize")
        self._initialized = True

    def parser(self, folder: Path | None = None, device: str = "cpu", kind: str = TRAIN) -> ConfigParser:
        """Return a new MONAI parser with the bundle's configuration; nothing is parsed or built yet.

        The configuration contains the overrides and, if given, the site's folder.

        Args:
            folder: Folder of a site, which replaces the value of the id ``dataset_dir`` and the folder of the lists of
                cases; None keeps the bundle's values.
            device: Value of the id ``device``, as torch names devices.
            kind: `TRAIN` or `EVALUATE`, the configuration to return.
        """
        drop_missing_codec()
        parser = make_parser(copy.deepcopy(self._contents[kind]))
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
        """Build the component that a configuration defines at an id, and return it. This runs the bundle's code.

        Args:
            parser: Parser that `parser` returned.
            id_: Id of the component; for None the result is None.

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
        """Build the components with which all sites train, and return them.

        Transforms are not among them, as they may depend on a site's folder (`medfl_adopt.site.AdoptedSite`).

        Raises:
            SettingsError: If the bundle's code fails, or the network is no module. Also if the optimizer has several
                groups of parameters, or parameters outside of the network.
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
        """Return the names of the network's output channels from the bundle's metadata.

        The result is empty unless the metadata name all channels.

        Args:
            count: Number of channels of the output.
        """
        names, _ = read_config(self.root / METADATA)
        for key in ("network_data_format", "outputs", "pred", "channel_def"):
            names = names.get(key) if isinstance(names, Mapping) else None
        if not isinstance(names, Mapping) or names.keys() != {str(number) for number in range(count)}:
            return ()
        return tuple(inert_name(str(names[str(number)]), str(number)) for number in range(count))

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Context manager in whose block the Python modules in the bundle's folder can be imported, as in MONAI."""
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
"""Names of the parts that `AdoptedBundle.parts` builds in addition to the network."""
