"""Data of an adopted bundle's sites: the cases in each folder ``D/<site>/``, as data sets.

The data sets apply the bundle's transforms. An adopted bundle is a copy of a stock MONAI bundle to which ``medfl
adopt`` added a configuration for federations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from monai.data import list_data_collate
from torch import nn

from medfl.bundle.adopted import site_folders
from medfl.data.cohort import Cohort
from medfl.data.datalists import entry_text
from medfl.data.folders import CACHE_FOLDER
from medfl.data.label_map import LabelMap
from medfl.data.leaks import PlaceContents, check_kinds, leaks_between, raise_leaks
from medfl.data.partition.case_list import SUBJECT_KEYS
from medfl.data.pooled import EmptyDataset, all_targets
from medfl.data.sites import SiteData
from medfl.data.transforms.cases import case_digest
from medfl.data.transforms.dataset import TransformDataset
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.objectives import Objective
from medfl.settings import Execution
from medfl.types import GLOBAL, Dataset, Meta
from medfl_adopt.bundle import EVALUATE, TRAIN, AdoptedBundle
from medfl_adopt.site import AdoptedSite, CaseRow

INPUT_KEY, TARGET_KEY = "image", "label"
"""Keys of a case under which the bundle's transforms put the network's input and its target, by MONAI's convention."""

CONFIG_BY_SPLIT = {"training": None, "validation": TRAIN, "test": EVALUATE}
"""Maps each split to the kind of configuration whose evaluator scores its cases, or to None if none does."""

METRIC_PREFIX = "bundle_"
"""Prefix of the names of the bundle's own metrics in the scores of a run."""


class AdoptedSplit(TransformDataset):
    """Cases of one split of a site, which the bundle's evaluator can score.

    It implements `medfl.types.SelfScoringDataset` and `medfl.types.ListedDataset`.

    Args:
        site: The site.
        rows: The cases.
        kind: `TRAIN` or `EVALUATE`, the configuration whose evaluator scores the cases; None if none does.
        transform: The bundle's preprocessing transforms, which are applied to each case.
        **options: Options of `TransformDataset`.
    """

    def __init__(
        self, site: AdoptedSite, rows: Sequence[CaseRow], kind: str | None, transform: Any, **options: Any
    ) -> None:
        super().__init__(rows, transform, INPUT_KEY, TARGET_KEY, **options)
        self._site, self._rows, self._kind = site, rows, kind

    @property
    def list_id(self) -> str:
        """Id of the case list in the configuration of the bundle's ``evaluate``; empty if there is no list."""
        bundle = self._site.bundle
        dataset = bundle.ids["val_dataset"]
        return f"{dataset}#data" if dataset and bundle.adopted["cases"]["mode"] != "dataset_dir" else ""

    @property
    def listed_cases(self) -> Sequence[CaseRow]:
        """Cases in the bundle's list format: each maps keys to files and values."""
        return self._rows

    def compute_metrics(self, model: nn.Module, device: str) -> dict[str, float]:
        """Return the metrics of the bundle's own evaluator over all cases, by name; empty if no evaluator scores them.

        The names begin with `METRIC_PREFIX`.

        Args:
            model: Model on `device`.
            device: Device, as torch names it.
        """
        if self._kind is None:
            return {}
        scores = self._site.score(model, self._rows, device, self._kind)
        return {f"{METRIC_PREFIX}{name}": value for name, value in scores.items()}


class AdoptedSource:
    """Reader of the sites' folders with an adopted bundle (implements `medfl.data.source.DataSource`).

    Args:
        bundle: The bundle.
        objective: Objective of the bundle.
        val_fraction: Share of a site's validation cases, in [0, 1), if the bundle has one list; at least one case if
            the site has two.
        test_fraction: Share of a site's test cases, with the same rules as `val_fraction`.

    Raises:
        SettingsError: If a fraction is not in [0, 1), or their sum is not below 1.
    """

    def __init__(
        self, bundle: AdoptedBundle, objective: Objective, val_fraction: float = 0.2, test_fraction: float = 0.2
    ) -> None:
        fractions = {"val_fraction": val_fraction, "test_fraction": test_fraction}
        if any(not 0 <= value < 1 for value in fractions.values()) or sum(fractions.values()) >= 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected fractions in [0, 1) with a sum below 1, got {fractions}.",
                **fractions,
            )
        self._bundle, self._objective, self._fractions = bundle, objective, (val_fraction, test_fraction)
        self._overlapping = bundle.adopted["objective"]["overlapping"]  # losses with a sigmoid take floating masks

    @property
    def weights(self) -> list[Path]:
        """Paths, relative to the bundle, of the files from which the bundle's own workflows read weights."""
        return [Path(name) for name in self._bundle.adopted["weights"]]

    def cohort(
        self,
        folder: Path,
        execution: Execution,
        sites: Sequence[str] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
    ) -> Cohort:
        """Load all data of a run: the data of its sites, and the server's test set. Public data are not supported.

        Args:
            folder: Folder with one folder for each site.
            execution: Settings of the machine, such as the cache.
            sites: Names of the sites to load; None loads all.
            public: Must be None.
            label_map: Must be None.

        Raises:
            DataError: If data are missing or can't be read.
            SettingsError: If public data are requested.
        """
        if public is not None or label_map is not None:
            raise SettingsError(
                "unsupported_setting",
                "An adopted bundle has no public data. Leave out --public and --label-map.",
                settings=["public", "label_map"],
            )
        known = site_folders(folder)
        for name in sites or ():
            if name not in known:
                raise DataError(
                    "unknown_site",
                    f"There is no site '{name}' in '{folder}'. {did_you_mean(name, known)}",
                    site=name,
                    path=folder,
                )
        chosen = sorted(set(known if sites is None else sites))
        parts = {name: self.site(folder / name, execution) for name in chosen}
        return Cohort(parts, self.shared_test(folder, execution))

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """Load the server's test set from the folder ``global``, or return None.

        The result is None if there is no such folder, or if the setting ``open_test`` keeps test sets closed.

        Args:
            folder: Folder with one folder for each site.
            execution: Settings of the machine, such as the cache.
        """
        exists = execution.open_test and (folder / GLOBAL).is_dir()
        return self.site(folder / GLOBAL, execution) if exists else None

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """Load the data of one site: its splits as data sets, and facts about them.

        Args:
            folder: Folder of the site, named like the site.
            execution: Settings of the machine, such as the cache.
        """
        self._bundle.initialize()
        site = AdoptedSite(self._bundle, folder, folder.name)
        transforms = {
            "training": site.train_preprocessing(),
            "validation": site.preprocessing(TRAIN),
            "test": site.preprocessing(EVALUATE),
        }
        options = {
            "collate": site.collate() or list_data_collate,
            "cache": execution.cache,
            "loaders": execution.loaders,
            "cache_dir": (execution.cache_dir or folder / CACHE_FOLDER) if execution.cache == "disk" else None,
            "target_type": torch.float32 if self._overlapping else self._objective.target_type,
            "check": self._objective.check_targets,
        }
        splits = self._split_site(site, execution.open_test)
        train, val, test = (self._make_split(site, name, splits[name], transforms[name], options) for name in splits)
        digests = [part.digest if isinstance(part, TransformDataset) else "" for part in (train, val, test)]
        names, titles = self._bundle.output_names(self._objective.outputs), self._objective.titles
        of_classes = self._objective.has_class_labels
        return SiteData(
            folder.name,
            train,
            val,
            test,
            digest=hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
            classes=names if of_classes and len(names) == len(titles) else titles,
            source=self._bundle.root.name,
            names=() if of_classes else names,
        )

    def _make_split(self, site: AdoptedSite, name: str, rows: list[CaseRow], transform: Any, options: Meta) -> Dataset:
        """Return one split of a site as a data set."""
        if not rows:
            return EmptyDataset()
        kind = CONFIG_BY_SPLIT[name] if self._bundle.ids["evaluator"] is not None else None
        where = f"site '{site.site}', split '{name}'"
        part = AdoptedSplit(site, rows, kind, transform or [], patients=_number_patients(rows), where=where, **options)
        part.class_labels = self._class_labels(part)
        return part

    def check_leaks(
        self,
        folder: Path,
        names: Sequence[str],
        public: str | None = None,
        allow: Sequence[str] = (),
        open_test: bool = True,
    ) -> list[str]:
        """Raise if two splits, of one site or of different sites, share patients or images.

        Images are equal if their files have the same bytes. Patients are compared within each site only, because
        patient names may be running numbers.

        Args:
            folder: Folder with one folder for each site.
            names: Names of the sites to check.
            public: Not used, as an adopted bundle has no public data.
            allow: Kinds of leaks to allow: ``subjects``, ``pixels``.
            open_test: Whether the test cases are checked, too.

        Returns:
            A sentence for each allowed leak, for the report.

        Raises:
            DataError: If there is a leak of a kind that is not allowed.
        """
        check_kinds(allow)
        holdings = {}
        for name in [*sorted(set(names)), *([GLOBAL] if open_test and (folder / GLOBAL).is_dir() else [])]:
            site = AdoptedSite(self._bundle, folder / name, name)
            for split, rows in self._split_site(site, open_test).items():
                subjects: set[Hashable] = {(name, text) for row in rows if (text := _subject_id(row)) is not None}
                holdings[f"{name}/{split}"] = PlaceContents(subjects, {_image_digest(row) for row in rows})
        return raise_leaks(leaks_between(holdings), allow)

    def _split_site(self, site: AdoptedSite, open_test: bool) -> dict[str, list[CaseRow]]:
        """Return a site's cases by split; the list of a bundle with one list is split here.

        A closed test set is empty.
        """
        lists = site.lists()
        if lists.validation is None:
            val_fraction, test_fraction = self._fractions
            train, validation, test = split_cases(
                lists.train, val_fraction, 0 if lists.test is not None else test_fraction
            )
        else:
            train, validation, test = lists.train, lists.validation, []
        closed = [] if not open_test else lists.test if lists.test is not None else test
        return {"training": train, "validation": validation, "test": closed}

    def _class_labels(self, part: TransformDataset) -> torch.Tensor | None:
        """Return the class labels of a split, or None for objectives without classes."""
        return self._objective.class_labels(all_targets(part)) if self._objective.has_class_labels else None


def split_cases(
    rows: Sequence[CaseRow], val_fraction: float, test_fraction: float
) -> tuple[list[CaseRow], list[CaseRow], list[CaseRow]]:
    """Split cases into training, validation and test, with all cases of a patient in one split.

    The assignment depends only on the content of the images, not on names, order or a seed.

    Args:
        rows: The cases.
        val_fraction: Share of validation cases, in [0, 1). If it is positive and there are two cases, at least one
            case.
        test_fraction: Share of test cases, with the same rules as `val_fraction`.

    Returns:
        Training, validation and test cases.
    """
    groups: dict[str, list[int]] = {}
    digests = [_image_digest(row) for row in rows]
    for number, row in enumerate(rows):
        groups.setdefault(_subject_id(row) or digests[number], []).append(number)
    order = sorted(groups.values(), key=lambda group: min(digests[number] for number in group))
    taken: list[list[int]] = []
    for fraction in (val_fraction, test_fraction):
        wanted = max(1, round(fraction * len(rows))) if fraction > 0 else 0
        part: list[int] = []
        while len(part) < wanted and len(order) > 1:
            part += order.pop()
        taken.append(part)
    parts = [sorted(number for group in order for number in group), *map(sorted, taken)]
    train, validation, test = ([rows[number] for number in part] for part in parts)
    return train, validation, test


def _subject_id(row: CaseRow) -> str | None:
    """Return the patient of a case, or None if the case has no subject key."""
    return next((text for key in SUBJECT_KEYS if (text := entry_text(dict(row), key))), None)


def _image_digest(row: CaseRow) -> str:
    """Return the digest of a case's image files."""
    return case_digest({INPUT_KEY: row.get(INPUT_KEY)})


def _number_patients(rows: Sequence[CaseRow]) -> list[int] | None:
    """Return a number for each case that cases of one patient share; None if no case names its patient."""
    subjects = [_subject_id(row) for row in rows]
    if not any(subjects):
        return None
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(subject or ("row", row), len(numbers)) for row, subject in enumerate(subjects)]
