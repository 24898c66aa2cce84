"""The sites of an adopted bundle: what each folder ``D/<site>/`` holds, as data sets with the bundle's transforms."""

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
from medfl.data.label_map import LabelMap
from medfl.data.leaks import Holding, check_kinds, leaks_between, refuse_leaks
from medfl.data.partition.case_list import SUBJECTS
from medfl.data.pooled import Empty, all_targets
from medfl.data.sites import SiteData
from medfl.data.transforms.cases import case_digest
from medfl.data.transforms.dataset import TransformDataset
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.objectives import Objective
from medfl.settings import Execution
from medfl.types import GLOBAL, Dataset, Meta
from medfl_adopt.bundle import EVALUATE, TRAIN, AdoptedBundle
from medfl_adopt.site import AdoptedSite, Row

INPUTS, TARGETS = "image", "label"
"""Keys of what a network takes and of what it learns, by MONAI's convention."""

KINDS = {"training": None, "validation": TRAIN, "test": EVALUATE}
"""Split to the configuration whose evaluator scores it."""

CACHE = ".medfl_cache"
"""The folder of a cache on disk in a site's folder."""

PREFIX = "bundle_"
"""What names of the bundle's own metrics begin with in a run's scores."""


class AdoptedSplit(TransformDataset):
    """The cases of one split of a site, which the bundle's evaluator can score; it fulfils `medfl.types.Judged` and
    `medfl.types.Listed`.

    Args:
        site: Whose they are.
        rows: The cases.
        kind: Which of the bundle's evaluators scores them; None for none.
        transform: The bundle's preprocessing.
        **options: Of `TransformDataset`.
    """

    def __init__(
        self, site: AdoptedSite, rows: Sequence[Row], kind: str | None, transform: Any, **options: Any
    ) -> None:
        super().__init__(rows, transform, INPUTS, TARGETS, **options)
        self._site, self._rows, self._kind = site, rows, kind

    @property
    def list_id(self) -> str:
        """As `medfl.types.Listed.list_id`."""
        bundle = self._site.bundle
        dataset = bundle.ids["val_dataset"]
        return f"{dataset}#data" if dataset and bundle.adopted["cases"]["mode"] != "dataset_dir" else ""

    @property
    def listed_cases(self) -> Sequence[Row]:
        """As `medfl.types.Listed.listed_cases`."""
        return self._rows

    def judge(self, model: nn.Module, device: str) -> dict[str, float]:
        """As `medfl.types.Judged.judge`; names begin with `PREFIX`."""
        if self._kind is None:
            return {}
        scores = self._site.score(model, self._rows, device, self._kind)
        return {f"{PREFIX}{name}": value for name, value in scores.items()}


class AdoptedSource:
    """Reads the folders of sites as an adopted bundle does (`medfl.data.source.Source`).

    Args:
        bundle: The bundle.
        objective: What it learns.
        val_fraction: Share of a site's cases for validation, in [0, 1), where the bundle has one list for all; at least
            one case of two.
        test_fraction: Share for the test, likewise.

    Raises:
        SettingsError: If a fraction can't be.
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
        """As `medfl.data.source.Source.weights`."""
        return [Path(name) for name in self._bundle.adopted["weights"]]

    def cohort(
        self,
        folder: Path,
        execution: Execution,
        sites: Sequence[str] | None = None,
        public: str | None = None,
        label_map: LabelMap | None = None,
    ) -> Cohort:
        """As `medfl.data.source.Source.cohort`; there are no public data.

        Raises:
            DataError: If data are missing or can't be read.
            SettingsError: If public data are asked for.
        """
        if public is not None or label_map is not None:
            raise SettingsError(
                "unsupported_setting",
                "an adopted bundle has no public data. Leave out --public and --label_map.",
                settings=["public", "label_map"],
            )
        known = site_folders(folder)
        for name in sites or ():
            if name not in known:
                raise DataError(
                    "unknown_site", f"no site '{name}' in {folder}. {did_you_mean(name, known)}", site=name, path=folder
                )
        chosen = sorted(set(known if sites is None else sites))
        parts = {name: self.site(folder / name, execution) for name in chosen}
        return Cohort(parts, self.shared_test(folder, execution))

    def shared_test(self, folder: Path, execution: Execution) -> SiteData | None:
        """As `medfl.data.source.Source.shared_test`."""
        there = execution.open_test and (folder / GLOBAL).is_dir()
        return self.site(folder / GLOBAL, execution) if there else None

    def site(self, folder: Path, execution: Execution) -> SiteData:
        """As `medfl.data.source.Source.site`."""
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
            "cache_dir": (execution.cache_dir or folder / CACHE) if execution.cache == "disk" else None,
            "target_type": torch.float32 if self._overlapping else self._objective.target_type,
            "check": self._objective.check_targets,
        }
        splits = self._splits(site, execution.open_test)
        train, val, test = (self._split(site, name, splits[name], transforms[name], options) for name in splits)
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

    def _split(self, site: AdoptedSite, name: str, rows: list[Row], transform: Any, options: Meta) -> Dataset:
        """One split of a site."""
        if not rows:
            return Empty()
        kind = KINDS[name] if self._bundle.ids["evaluator"] is not None else None
        where = f"site '{site.site}', split '{name}'"
        part = AdoptedSplit(site, rows, kind, transform or [], patients=_patients(rows), where=where, **options)
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
        """As `medfl.data.source.Source.check_leaks`: images are the same if their files hold the same bytes.

        Patients are compared within each site, as names there may be running numbers.
        """
        check_kinds(allow)
        holdings = {}
        for name in [*sorted(set(names)), *([GLOBAL] if open_test and (folder / GLOBAL).is_dir() else [])]:
            site = AdoptedSite(self._bundle, folder / name, name)
            for split, rows in self._splits(site, open_test).items():
                subjects: set[Hashable] = {(name, text) for row in rows if (text := _subject(row)) is not None}
                holdings[f"{name}/{split}"] = Holding(subjects, {_image_digest(row) for row in rows})
        return refuse_leaks(leaks_between(holdings), allow)

    def _splits(self, site: AdoptedSite, open_test: bool) -> dict[str, list[Row]]:
        """A site's cases by split; one list for all is dealt out. A test that stays closed has none."""
        lists = site.lists()
        if lists.validation is None:
            val_fraction, test_fraction = self._fractions
            train, validation, test = deal(lists.train, val_fraction, 0 if lists.test is not None else test_fraction)
        else:
            train, validation, test = lists.train, lists.validation, []
        closed = [] if not open_test else lists.test if lists.test is not None else test
        return {"training": train, "validation": validation, "test": closed}

    def _class_labels(self, part: TransformDataset) -> torch.Tensor | None:
        return self._objective.class_labels(all_targets(part)) if self._objective.has_class_labels else None


def deal(rows: Sequence[Row], val_fraction: float, test_fraction: float) -> tuple[list[Row], list[Row], list[Row]]:
    """Deal cases to training, validation and test, those of a patient together.

    Which go where hangs on the content of their images alone: not on their names, their order or a seed.

    Args:
        rows: The cases.
        val_fraction: Share for validation, in [0, 1); with two cases or more at least one, where it is above 0.
        test_fraction: Share for the test, likewise.
    """
    groups: dict[str, list[int]] = {}
    digests = [_image_digest(row) for row in rows]
    for number, row in enumerate(rows):
        groups.setdefault(_subject(row) or digests[number], []).append(number)
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


def _subject(row: Row) -> str | None:
    return next((text for key in SUBJECTS if (text := entry_text(dict(row), key))), None)


def _image_digest(row: Row) -> str:
    return case_digest({INPUTS: row.get(INPUTS)})


def _patients(rows: Sequence[Row]) -> list[int] | None:
    """For each case a number that cases of one patient share; None where no case says whose it is."""
    subjects = [_subject(row) for row in rows]
    if not any(subjects):
        return None
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(subject or ("row", row), len(numbers)) for row, subject in enumerate(subjects)]
