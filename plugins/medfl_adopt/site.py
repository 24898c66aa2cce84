"""An adopted bundle at a site: its lists of cases, and scores by the bundle's own evaluator.

A site's rows never enter the configuration, where text that begins with ``$`` would be evaluated.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monai.bundle import ConfigParser
from monai.data import Dataset
from monai.transforms import Compose, SaveClassificationd, SaveImaged
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from medfl.errors import DataError, SettingsError
from medfl.utils.rng import pinned
from medfl_adopt.bundle import EVALUATE, TRAIN, AdoptedBundle
from medfl_adopt.cases import check_folder

Row = Mapping[str, Any]
"""One case as a bundle lists it: key to file, files, or value."""


def _without_savers(chain: Compose) -> Compose:
    """A chain of transforms without those that write images and tables of patients."""
    kept = [each for each in chain.flatten().transforms if not isinstance(each, SaveImaged | SaveClassificationd)]
    return Compose(kept)


class Lists(NamedTuple):
    """A site's cases as its bundle lists them.

    Attributes:
        train: Training cases, at least one; with one list for all, that.
        validation: Validation cases; None where the bundle has no list of its own for them.
        test: Test cases, of the bundle's ``evaluate``; None where that has no other list than validation's.
    """

    train: list[Row]
    validation: list[Row] | None
    test: list[Row] | None


class AdoptedSite:
    """An adopted bundle over one site's folder.

    Args:
        bundle: The bundle.
        folder: The site's, in place of the bundle's ``dataset_dir``.
        site: The site's name, for messages.

    Raises:
        DataError: If the folder lacks what the bundle reads.
    """

    def __init__(self, bundle: AdoptedBundle, folder: Path, site: str) -> None:
        self.bundle, self.site, self._folder = bundle, site, folder.resolve()
        self._cases, self._transforms = bundle.adopted["cases"], dict[str, Any]()
        check_folder(self._cases["needs"], self._folder, site)

    def lists(self) -> Lists:
        """The site's cases, by the bundle's own expressions over the site's folder.

        Raises:
            DataError: If a list can't be made, holds something else than cases, or is that of training and empty.
        """
        cases, ids = self._cases, self.bundle.ids
        if cases["mode"] == "dataset_dir":
            validation = self._of_dataset(ids["val_dataset"]) if ids["val_dataset"] else None
            return Lists(self._of_dataset(str(ids["train_dataset"]), needed=True), validation, None)
        train = self._list(cases["train_list"], needed=True)
        validation = self._list(cases["validation_list"]) if cases["validation_list"] else None
        test = self._list(cases["test_list"], EVALUATE) if cases["test_list"] else None
        return Lists(train, validation, test)

    def train_preprocessing(self) -> Any:
        """The transforms of a training case; None where there are none."""
        return self.bundle.build(self.bundle.parser(self._folder), self.bundle.ids["train_preprocessing"])

    def preprocessing(self, kind: str = TRAIN) -> Any:
        """The transforms of a validation case, or with `EVALUATE` of a test case; None where there are none."""
        if kind not in self._transforms:
            parser = self.bundle.parser(self._folder, kind=kind)
            self._transforms[kind] = self.bundle.build(parser, self.bundle.ids["val_preprocessing"])
        return self._transforms[kind]

    def collate(self) -> Any:
        """What makes batches of training cases; None is MONAI's ``list_data_collate``."""
        loader = self.bundle.ids["train_dataloader"]
        parser = self.bundle.parser(self._folder)
        id_ = f"{loader}#collate_fn"
        return self.bundle.build(parser, id_) if loader and id_ in parser else None

    def score(
        self, network: nn.Module, rows: Sequence[Row], device: str = "cpu", kind: str = TRAIN
    ) -> dict[str, float]:
        """Score a network by the bundle's own evaluator, without its handlers and transforms that write.

        Args:
            network: On `device`.
            rows: Cases, at least one.
            device: As torch names it.
            kind: `TRAIN` for the evaluator that validates, `EVALUATE` for that of the bundle's ``evaluate``.

        Returns:
            Name to value of the bundle's metrics, as it would print them for these cases.

        Raises:
            SettingsError: If the bundle has no evaluator, or its code fails.
        """
        ids = self.bundle.ids
        if ids["evaluator"] is None or ids["val_dataset"] is None:
            raise SettingsError(
                "missing_evaluator",
                "the bundle has no 'validate#evaluator': expected one to score by.",
                id="validate#evaluator",
            )
        transform = self.preprocessing(kind)
        if isinstance(transform, Compose):
            transform.set_random_state(0)
        parser = self.bundle.parser(self._folder, device, kind)
        parser[ids["val_dataset"]] = Dataset(list(rows), transform)
        parser[f"{ids['evaluator']}#network"] = network
        parser[f"{ids['evaluator']}#val_handlers"] = None
        if ids["val_preprocessing"] is not None:  # what the postprocessing inverts is this very chain
            parser[ids["val_preprocessing"]] = transform
        if f"{ids['val_dataloader']}#num_workers" in parser:
            parser[f"{ids['val_dataloader']}#num_workers"] = 0
        with pinned("score", self.site):
            postprocessing = self.bundle.build(parser, ids["val_postprocessing"])
            if isinstance(postprocessing, Compose):
                parser[f"{ids['evaluator']}#postprocessing"] = _without_savers(postprocessing)
            evaluator = self.bundle.build(parser, ids["evaluator"])
            with self.bundle.importable():
                evaluator.run()
        return {str(name): float(value) for name, value in evaluator.state.metrics.items()}

    def _list(self, id_: str, kind: str = TRAIN, needed: bool = False) -> list[Row]:
        return self._rows(id_, self.bundle.parser(self._folder, kind=kind), needed)

    def _of_dataset(self, id_: str, needed: bool = False) -> list[Row]:
        """The cases of a data set that finds them itself, before its transforms."""
        parser = self.bundle.parser(self._folder)
        parser[f"{id_}#transform"] = Compose([])
        return self._rows(id_, parser, needed)

    def _rows(self, id_: str, parser: ConfigParser, needed: bool) -> list[Row]:
        try:
            with self.bundle.importable():
                content = parser.get_parsed_content(id_)
                rows = [content[number] for number in range(len(content))]
        except Exception as error:  # its message may name a patient's file
            raise DataError(
                "list_not_buildable",
                f"Site '{self.site}': the list of cases '{id_}' can't be made of its folder: {type(error).__name__}. "
                "Expected the files that the bundle's docs/federate.md names.",
                site=self.site,
                id=id_,
                cause=type(error).__name__,
            ) from error
        if not isinstance(content, Sequence | TorchDataset) or not all(isinstance(row, Mapping) for row in rows):
            raise DataError(
                "wrong_type",
                f"Site '{self.site}': expected '{id_}' to be a list of cases, each with a file by its key.",
                site=self.site,
                id=id_,
            )
        if not rows and needed:
            raise DataError(
                "no_images",
                f"Site '{self.site}' has no cases: '{id_}' is an empty list. Look into its folder.",
                site=self.site,
                id=id_,
            )
        return [self._below_folder(row) for row in rows] if self._cases["relative"] else rows

    def _below_folder(self, row: Row) -> Row:
        """A case of a list file, the files in it that are named from the site's folder on with that folder."""

        def below(value: Any) -> Any:
            if isinstance(value, list):
                return [below(entry) for entry in value]
            path = self._folder / value if isinstance(value, str) else None
            return str(path) if path is not None and os.path.exists(path) else value

        return {key: below(value) for key, value in row.items()}
