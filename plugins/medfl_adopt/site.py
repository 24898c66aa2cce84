"""An adopted bundle at one site: the site's lists of cases, and evaluation with the bundle's own evaluator.

An adopted bundle is a copy of a stock MONAI bundle to which ``medfl adopt`` added a configuration for federations.

A site's cases are never inserted into the configuration, where MONAI would evaluate text that begins with ``$``.
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
from medfl.utils.rng import seeded_generators
from medfl_adopt.bundle import EVALUATE, TRAIN, AdoptedBundle
from medfl_adopt.cases import check_folder

CaseRow = Mapping[str, Any]
"""One case as a bundle lists it: maps each key to a file, files, or a value."""


def _without_savers(chain: Compose) -> Compose:
    """Return a chain of transforms without the transforms that write images and tables of patients."""
    kept = [each for each in chain.flatten().transforms if not isinstance(each, SaveImaged | SaveClassificationd)]
    return Compose(kept)


class SiteCaseLists(NamedTuple):
    """Cases of a site as its bundle lists them.

    Attributes:
        train: Training cases, at least one; all cases if the bundle has only one list.
        validation: Validation cases; None if the bundle has no separate list for them.
        test: Cases that the bundle's configuration ``evaluate`` scores; None if these are the validation cases.
    """

    train: list[CaseRow]
    validation: list[CaseRow] | None
    test: list[CaseRow] | None


class AdoptedSite:
    """An adopted bundle with the folder of one site.

    Args:
        bundle: The bundle.
        folder: Folder of the site, which replaces the bundle's ``dataset_dir``.
        site: Name of the site, for messages.

    Attributes:
        bundle: The bundle.
        site: Name of the site.

    Raises:
        DataError: If the folder lacks files that the bundle reads.
    """

    def __init__(self, bundle: AdoptedBundle, folder: Path, site: str) -> None:
        self.bundle, self.site, self._folder = bundle, site, folder.resolve()
        self._cases, self._transforms = bundle.adopted["cases"], dict[str, Any]()
        check_folder(self._cases["needs"], self._folder, site)

    def lists(self) -> SiteCaseLists:
        """Evaluate the bundle's list expressions with the site's folder, and return the site's cases.

        Raises:
            DataError: If a list can't be built or does not contain cases, or the training list is empty.
        """
        cases, ids = self._cases, self.bundle.ids
        if cases["mode"] == "dataset_dir":
            validation = self._read_dataset(ids["val_dataset"]) if ids["val_dataset"] else None
            return SiteCaseLists(self._read_dataset(str(ids["train_dataset"]), needed=True), validation, None)
        train = self._read_list(cases["train_list"], needed=True)
        validation = self._read_list(cases["validation_list"]) if cases["validation_list"] else None
        test = self._read_list(cases["test_list"], EVALUATE) if cases["test_list"] else None
        return SiteCaseLists(train, validation, test)

    def train_preprocessing(self) -> Any:
        """Return the bundle's transforms of a training case, or None if the bundle has none."""
        return self.bundle.build(self.bundle.parser(self._folder), self.bundle.ids["train_preprocessing"])

    def preprocessing(self, kind: str = TRAIN) -> Any:
        """Return the bundle's transforms of a validation or test case, or None if the bundle has none.

        Args:
            kind: `TRAIN` for validation cases, `EVALUATE` for the test cases of the bundle's configuration
                ``evaluate``.
        """
        if kind not in self._transforms:
            parser = self.bundle.parser(self._folder, kind=kind)
            self._transforms[kind] = self.bundle.build(parser, self.bundle.ids["val_preprocessing"])
        return self._transforms[kind]

    def collate(self) -> Any:
        """Return the function that makes batches of training cases; None means MONAI's ``list_data_collate``."""
        loader = self.bundle.ids["train_dataloader"]
        parser = self.bundle.parser(self._folder)
        id_ = f"{loader}#collate_fn"
        return self.bundle.build(parser, id_) if loader and id_ in parser else None

    def score(
        self, network: nn.Module, rows: Sequence[CaseRow], device: str = "cpu", kind: str = TRAIN
    ) -> dict[str, float]:
        """Evaluate a network with the bundle's own evaluator.

        The evaluator's handlers, and transforms that write files, are removed.

        Args:
            network: Network on `device`.
            rows: Cases, at least one.
            device: Device, as torch names it.
            kind: `TRAIN` for the evaluator of the validation, `EVALUATE` for the evaluator of the bundle's
                ``evaluate``.

        Returns:
            Mapping from the bundle's metrics to their values for these cases.

        Raises:
            SettingsError: If the bundle has no evaluator, or its code fails.
        """
        ids = self.bundle.ids
        if ids["evaluator"] is None or ids["val_dataset"] is None:
            raise SettingsError(
                "missing_evaluator",
                "The bundle has no evaluator: expected one at 'validate#evaluator'.",
                id="validate#evaluator",
            )
        transform = self.preprocessing(kind)
        if isinstance(transform, Compose):
            transform.set_random_state(0)
        parser = self.bundle.parser(self._folder, device, kind)
        parser[ids["val_dataset"]] = Dataset(list(rows), transform)
        parser[f"{ids['evaluator']}#network"] = network
        parser[f"{ids['evaluator']}#val_handlers"] = None
        if ids["val_preprocessing"] is not None:  # the postprocessing must invert the same chain of transforms
            parser[ids["val_preprocessing"]] = transform
        if f"{ids['val_dataloader']}#num_workers" in parser:
            parser[f"{ids['val_dataloader']}#num_workers"] = 0
        with seeded_generators("score", self.site):
            postprocessing = self.bundle.build(parser, ids["val_postprocessing"])
            if isinstance(postprocessing, Compose):
                parser[f"{ids['evaluator']}#postprocessing"] = _without_savers(postprocessing)
            evaluator = self.bundle.build(parser, ids["evaluator"])
            with self.bundle.importable():
                evaluator.run()
        return {str(name): float(value) for name, value in evaluator.state.metrics.items()}

    def _read_list(self, id_: str, kind: str = TRAIN, needed: bool = False) -> list[CaseRow]:
        """Return the cases of the list at an id."""
        return self._build_rows(id_, self.bundle.parser(self._folder, kind=kind), needed)

    def _read_dataset(self, id_: str, needed: bool = False) -> list[CaseRow]:
        """Return the cases of a data set that finds them itself, before its transforms."""
        parser = self.bundle.parser(self._folder)
        parser[f"{id_}#transform"] = Compose([])
        return self._build_rows(id_, parser, needed)

    def _build_rows(self, id_: str, parser: ConfigParser, needed: bool) -> list[CaseRow]:
        """Build the list at an id and check that it contains cases."""
        try:
            with self.bundle.importable():
                content = parser.get_parsed_content(id_)
                rows = [content[number] for number in range(len(content))]
        except Exception as error:  # its message may name a patient's file
            raise DataError(
                "list_not_buildable",
                f"Site '{self.site}': the list of cases '{id_}' can't be built from its folder: "
                f"{type(error).__name__}. Expected the files that the bundle's docs/federate.md names.",
                site=self.site,
                id=id_,
                cause=type(error).__name__,
            ) from error
        if not isinstance(content, Sequence | TorchDataset) or not all(isinstance(row, Mapping) for row in rows):
            raise DataError(
                "wrong_type",
                f"Site '{self.site}': expected '{id_}' to be a list of cases, each a mapping from keys to files.",
                site=self.site,
                id=id_,
            )
        if not rows and needed:
            raise DataError(
                "no_images",
                f"Site '{self.site}' has no cases: '{id_}' is an empty list. Check the files in its folder.",
                site=self.site,
                id=id_,
            )
        return [self._resolve_paths(row) for row in rows] if self._cases["relative"] else rows

    def _resolve_paths(self, row: CaseRow) -> CaseRow:
        """Return a case of a list file with absolute paths.

        Paths of existing files are relative to the site's folder; other values are unchanged.
        """

        def resolve(value: Any) -> Any:
            if isinstance(value, list):
                return [resolve(entry) for entry in value]
            path = self._folder / value if isinstance(value, str) else None
            return str(path) if path is not None and os.path.exists(path) else value

        return {key: resolve(value) for key, value in row.items()}
