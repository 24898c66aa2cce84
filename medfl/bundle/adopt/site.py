"""An adopted bundle at a site: its lists of cases and the parts of its training, built with MONAI and nothing besides.

Here the bundle's code runs, at the site that has reviewed it. Only the ids that are needed are parsed; not the trainer
and the data sets, which read images when they are built. A site's rows never enter the configuration, where text that
begins with ``$`` would be evaluated.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai.bundle import ConfigParser
from torch import nn

from medfl.bundle.adopt.adoption import OVERLAY
from medfl.bundle.adopt.cases import check_folder
from medfl.bundle.check import METADATA
from medfl.errors import DataError, SettingsError
from medfl.task import OptimizerFactory, optimizer_factory
from medfl.utils.rng import pinned

Row = Mapping[str, Any]
"""One case as a bundle lists it: key to file, files, or value."""


@dataclass(frozen=True)
class SiteParts:
    """What a site trains with, as the bundle's configuration builds it.

    Attributes:
        network: Makes a new network on the CPU, with whatever tensors its constructor draws.
        loss: Maps outputs and targets to a scalar.
        optimizer: Makes an optimiser like the bundle's for other parameters.
        amp: Whether the bundle trains in mixed precision.
        train_inferer: Applies a network in training; None calls it.
        val_inferer: Applies a network in validation; None calls it.
        train_preprocessing: From a row to a training sample, or several; None takes rows as they are.
        val_preprocessing: From a row to a validation sample.
        prepare_batch: Makes inputs and targets of a batch; None is MONAI's, keys image and label.
    """

    network: Callable[[], nn.Module]
    loss: Callable[..., torch.Tensor]
    optimizer: OptimizerFactory
    amp: bool
    train_inferer: Callable[..., Any] | None
    val_inferer: Callable[..., Any] | None
    train_preprocessing: Callable[..., Any] | None
    val_preprocessing: Callable[..., Any] | None
    prepare_batch: Callable[..., Any] | None


class AdoptedSite:
    """An adopted bundle over one site's folder.

    Args:
        root: The adopted bundle, reviewed: its code runs here.
        dataset_dir: The site's folder, in place of the bundle's ``dataset_dir``.
        site: The site's name, for messages.
        device: Where networks are, as torch names it.

    Raises:
        SettingsError: If the bundle was not adopted, or an id that it names is not there.
        DataError: If the folder lacks what the bundle reads.
    """

    def __init__(self, root: Path, dataset_dir: Path, site: str, device: str = "cpu") -> None:
        self.root, self.site = root.resolve(), site
        overlay = ConfigParser.load_config_file(str(root / OVERLAY)) if (root / OVERLAY).is_file() else {}
        if "adopted" not in overlay:
            raise SettingsError(f"'{root}' is no adopted bundle: expected '{OVERLAY}' with 'adopted' (medfl adopt).")
        self._adopted = overlay["adopted"]
        self._folder = dataset_dir.resolve()
        check_folder(self._adopted["cases"]["needs"], self._folder, site)
        self._overlay, self._device = overlay, torch.device(device)
        missing = [id_ for id_ in self._ids().values() if id_ is not None and id_ not in self._parser()]
        if missing:
            raise SettingsError(f"'{root}' lacks ids that '{OVERLAY}' names: {', '.join(missing)}. Adopt it again.")

    def initialize(self) -> None:
        """Run the bundle's ``initialize``, once in a process; torch's, NumPy's, Python's generators stay as they are.

        Raises:
            SettingsError: If the bundle's code fails.
        """
        parser = self._parser()
        if "initialize" in parser:
            with pinned(0, "initialize"):
                self._build(parser, "initialize")

    def lists(self) -> tuple[list[Row], list[Row] | None]:
        """The site's cases, by the bundle's own expressions over the site's folder.

        Returns:
            Training and validation cases; with one list for both, that list and None.

        Raises:
            SettingsError: With the mode ``dataset_dir``, where the bundle has no list.
            DataError: If a list can't be made, is empty, or holds something else than cases.
        """
        cases = self._adopted["cases"]
        if cases["train_list"] is None:
            raise SettingsError(
                "the bundle has no list of cases: its data sets find them below dataset_dir themselves."
            )
        train, validation = (self._list(cases[name]) if cases[name] else None for name in _LISTS)
        return train or [], validation

    def parts(self) -> SiteParts:
        """Build the parts of the site's training.

        Raises:
            SettingsError: If the bundle's code fails, or its optimiser has several groups of parameters.
        """
        ids = self._ids()
        parser = self._parser()
        built = {name: self._build(parser, ids[name]) for name in _BUILT}
        return SiteParts(
            network=lambda: self._build(self._parser(), ids["network"]),
            loss=built["loss"],
            optimizer=optimizer_factory(built["optimizer"]),
            amp=bool(built["amp"]),
            **{name: built[name] for name in _BUILT if name not in ("loss", "optimizer", "amp")},
        )

    def score(self, network: nn.Module, rows: Sequence[Row]) -> dict[str, float]:
        """Score a network by the bundle's own evaluator, without its handlers, which write.

        Args:
            network: On the site's device.
            rows: Validation cases, at least one.

        Returns:
            Name to value of the bundle's metrics, as it would print them for these cases.

        Raises:
            SettingsError: If the bundle has no evaluator, or its code fails.
        """
        from monai.data import Dataset

        ids = self._ids()
        if ids["evaluator"] is None or ids["val_dataset"] is None:
            raise SettingsError("the bundle has no 'validate#evaluator': expected one to score by.")
        parser = self._parser()
        transform = self._build(parser, ids["val_preprocessing"])
        parser = self._parser()
        parser[ids["val_dataset"]] = Dataset(list(rows), transform)
        parser[f"{ids['evaluator']}#network"] = network
        parser[f"{ids['evaluator']}#val_handlers"] = None
        if f"{ids['val_dataloader']}#num_workers" in parser:
            parser[f"{ids['val_dataloader']}#num_workers"] = 0
        evaluator = self._build(parser, ids["evaluator"])
        evaluator.run()
        return {str(name): float(value) for name, value in evaluator.state.metrics.items()}

    def _ids(self) -> dict[str, str | None]:
        parts: dict[str, str | None] = self._adopted["parts"]
        return parts

    def _parser(self) -> ConfigParser:
        """The bundle's configuration with the site's folder in it, nothing of it parsed yet."""
        parser = ConfigParser()
        parser.read_config(str(self.root / self._adopted["files"]["train"]))
        if (self.root / METADATA).is_file():
            parser.read_meta(str(self.root / METADATA))
        cases = self._adopted["cases"]
        for id_ in filter(None, {cases["train_list"], cases["validation_list"]}):
            if id_ in self._overlay:
                parser[id_] = self._overlay[id_]
        parser["bundle_root"], parser["dataset_dir"] = str(self.root), str(self._folder)
        parser["device"] = self._device
        for id_, path in cases["list_files"].items():
            parser[id_] = str(self._folder / Path(path).name)
        return parser

    def _build(self, parser: ConfigParser, id_: str | None) -> Any:
        if id_ is None:
            return None
        try:
            with _importable(self.root):
                return parser.get_parsed_content(id_)
        except Exception as error:  # whatever the bundle's code raises
            raise SettingsError(f"'{id_}' of the bundle can't be built: {type(error).__name__}: {error}") from error

    def _list(self, id_: str) -> list[Row]:
        try:
            with _importable(self.root):
                rows = self._parser().get_parsed_content(id_)
        except Exception as error:  # its message may name a patient's file
            raise DataError(
                f"Site '{self.site}': the list of cases '{id_}' can't be made of its folder: {type(error).__name__}. "
                "Expected the files that the bundle's docs/federate.md names."
            ) from error
        if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise DataError(f"Site '{self.site}': expected '{id_}' to be a list of cases, each with a file by its key.")
        if not rows:
            raise DataError(f"Site '{self.site}' has no cases: '{id_}' is an empty list. Look into its folder.")
        return list(rows)


_LISTS = ("train_list", "validation_list")
_BUILT = (
    "loss",
    "optimizer",
    "amp",
    "train_inferer",
    "val_inferer",
    "train_preprocessing",
    "val_preprocessing",
    "prepare_batch",
)


@contextlib.contextmanager
def _importable(root: Path) -> Iterator[None]:
    """Let a bundle's own modules be imported, as they are where MONAI runs it from its folder."""
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))
