"""Settings of a partition: how a pooled data set is split into sites and test sets.

A partition is carried out in this order: choose the server's test set, let the scheme assign the units to sites, refuse
or drop training copies of the server's test images, and hold out each site's own test and validation images. No image
is copied: every site's list names the pooled array. ``partition.json`` next to the sites records how they were made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import JsonValue

from medfl.data.leaks import check_kinds
from medfl.errors import SettingsError, did_you_mean
from medfl.records.partition import Duplicates, PartitionSettings, ServerTest, TestPolicy

NO_PUBLIC, VALIDATION, TRAINING = "none", "validation", "training"
"""Values of `PartitionPlan.public` that name no folder.

`NO_PUBLIC`: no public data. `VALIDATION`: the pooled validation split becomes public data. `TRAINING`: a random part of
the pooled training split does.
"""


@dataclass(frozen=True)
class PartitionPlan:
    """Settings of a partition.

    A unit is a group of images that stay together, see `medfl.data.partition.units`; without groups it is one image.

    Attributes:
        scheme: Name of the partition scheme.
        sites: Number of sites, >= 1; None lets a scheme that uses a column choose it.
        seed: Seed of all random draws, >= 0.
        options: Options of the scheme.
        test: Rule for a site's own test set. ``fraction``: a stratified share of its units. ``class_balanced``: a share
            with equal numbers of all classes. ``k_fold``: one fold. ``official``: the site's part of the pooled test
            split, by the column; identical images then keep the site and the split that the release states. ``none``:
            no test set.
        test_fraction: With ``fraction`` and ``class_balanced``: share of a site's units that become its test set, in
            [0, 1).
        folds: With ``k_fold``: number of folds, >= 2.
        fold: With ``k_fold``: number of the fold that is the test set, in 0..folds-1.
        val_fraction: Share of a site's units that become its validation set, in [0, 1). The sum with the share of the
            test set must be below 1.
        stratify: Columns of the data list by which a site's test and validation sets are stratified, in addition to
            labels.
        server_test: Rule for the server's test set. ``official``: the pooled test split. ``per_class``: a number of
            training images of each class. ``remainder``: the units that the scheme assigns to no site. ``none``: no
            test set.
        per_class: With ``per_class``: number of images of each class in the server's test set, >= 1.
        public: Public data, which only the server trains on: ``none``; ``validation`` for the pooled validation split,
            which is then not private data of any site; ``training`` for a random part of the pooled training split,
            stratified by class; or the folder of another pooled data set.
        public_images: With ``training``: number of public images, >= 1; approximate if units have several images.
        public_test_fraction: With ``validation`` and ``training``: share of the public units that become the public
            test set, in [0, 1).
        column: Column of the data list, that is, a key of its records such as ``site``, for schemes that use one.
        duplicates: ``refuse`` or ``drop``: what to do with training images that are also in the server's test set, and
            with public images that are also at a site or in that test set.
        allow_leaks: Kinds of such leaks that are tolerated: ``subjects``, ``pixels``.
        join_splits: Whether the splits of the release are joined first, so that all its images may be at the sites.
    """

    scheme: str
    sites: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    test: TestPolicy = "fraction"
    test_fraction: float = 0.2
    folds: int = 5
    fold: int = 0
    val_fraction: float = 0.0
    stratify: Sequence[str] = ()
    server_test: ServerTest = "official"
    per_class: int = 30
    public: str = NO_PUBLIC
    public_images: int | None = None
    public_test_fraction: float = 0.0
    column: str | None = None
    duplicates: Duplicates = "refuse"
    allow_leaks: Sequence[str] = ()
    join_splits: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_ranges()
        self._check_test_sets()
        self._check_public()
        check_kinds(self.allow_leaks)

    def _check_choices(self) -> None:
        """Raise if a name is not one of its choices, or the columns to stratify by are no list."""
        kinds = {"test": TestPolicy, "server_test": ServerTest, "duplicates": Duplicates}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                hint = did_you_mean(str(getattr(self, name)), get_args(kind))
                raise SettingsError(
                    "unknown_choice",
                    f"unknown '{getattr(self, name)}' for {name}. {hint}",
                    what=name,
                    choice=str(getattr(self, name)),
                )
        if isinstance(self.stratify, str) or not all(isinstance(column, str) for column in self.stratify):
            raise SettingsError(
                "wrong_setting_type",
                f"expected a list of columns to stratify by, such as [centre], got {self.stratify!r}",
                setting="stratify",
                found=str(self.stratify),
            )

    def _check_ranges(self) -> None:
        """Raise if a number is out of range."""
        if self.seed < 0:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a seed >= 0, got {self.seed}",
                setting="seed",
                minimum=0,
                found=self.seed,
            )
        if self.folds < 2 or not 0 <= self.fold < self.folds:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least 2 folds and a fold from 0, got fold {self.fold} of {self.folds}",
                setting="fold",
                fold=self.fold,
                folds=self.folds,
            )
        if self.per_class < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least 1 image of each class, got per_class {self.per_class}",
                setting="per_class",
                minimum=1,
                found=self.per_class,
            )
        fractions = (self.held_out, self.val_fraction)
        if not (min(fractions) >= 0 and sum(fractions) < 1):
            raise SettingsError(
                "setting_out_of_range",
                f"expected test and validation fractions >= 0 with a sum below 1, got {fractions[0]} and "
                f"{fractions[1]}",
                settings=("test_fraction", "val_fraction"),
                found=fractions,
            )
        if not 0 <= self.public_test_fraction < 1:
            raise SettingsError(
                "setting_out_of_range",
                f"expected a share in [0, 1) of the public images as their test set, got {self.public_test_fraction}",
                setting="public_test_fraction",
                found=self.public_test_fraction,
            )

    def _check_test_sets(self) -> None:
        """Raise if the test sets of the sites and of the server need a column, or the same images."""
        if self.test == "official" and self.column is None:
            raise SettingsError(
                "missing_setting",
                "test 'official' gives each site its part of the pooled test split, by a column: give --column, and a "
                "scheme that uses it, such as by_site.",
                setting="column",
                needed_by="test",
            )
        if self.test == self.server_test == "official":
            raise SettingsError(
                "incompatible_settings",
                "the pooled test split belongs to the sites (test official) or to the server (server_test official), "
                "not to both. Choose another server_test, such as none.",
                settings=("test", "server_test"),
            )
        if self.join_splits and "official" in (self.test, self.server_test):
            raise SettingsError(
                "incompatible_settings",
                "join_splits leaves no pooled test split, so neither test nor server_test can be 'official'. Choose "
                "others, such as a fraction for the sites and none for the server.",
                settings=("join_splits", "test", "server_test"),
            )

    def _check_public(self) -> None:
        """Raise if the number of public images does not fit the kind of public data."""
        counted = self.public_images is not None
        if (self.public == TRAINING) != counted or (self.public_images is not None and self.public_images < 1):
            raise SettingsError(
                "incompatible_settings",
                "public 'training' needs a number of public_images of at least 1, and other public data need none; "
                f"got public '{self.public}' and public_images {self.public_images}",
                settings=("public", "public_images"),
            )

    @property
    def held_out(self) -> float:
        """Share of a site's units that become its test set; 0 if the test set is not taken from these units."""
        return {"k_fold": 1 / self.folds, "official": 0.0, "none": 0.0}.get(self.test, self.test_fraction)

    def json_options(self) -> dict[str, JsonValue]:
        """Return the options of the scheme as JSON values: tuples become lists."""
        options: dict[str, JsonValue] = json.loads(json.dumps(dict(self.options)))
        return options

    def effective_settings(self, sites: int) -> PartitionSettings:
        """Return the settings for ``partition.json``, with None for each setting that has no effect.

        Args:
            sites: Number of sites of the partition.
        """
        is_fraction, is_fold = self.test in ("fraction", "class_balanced"), self.test == "k_fold"
        is_compared = "official" in (self.test, self.server_test) or self.public != NO_PUBLIC
        is_part_public = self.public in (VALIDATION, TRAINING)
        return PartitionSettings(
            scheme=self.scheme,
            options=self.json_options(),
            column=self.column,
            sites=sites,
            seed=self.seed,
            join_splits=self.join_splits,
            test=self.test,
            test_fraction=self.test_fraction if is_fraction else None,
            folds=self.folds if is_fold else None,
            fold=self.fold if is_fold else None,
            val_fraction=self.val_fraction,
            stratify=tuple(self.stratify),
            server_test=self.server_test,
            per_class=self.per_class if self.server_test == "per_class" else None,
            public=self.public if is_part_public else None,
            public_images=self.public_images,
            public_test_fraction=self.public_test_fraction if is_part_public else None,
            duplicates=self.duplicates if is_compared else None,
            allow_leaks=tuple(self.allow_leaks) if is_compared else None,
        )

    def names(self) -> list[str]:
        """Return the names of the plan's numbered sites, ``site-01`` and so on; empty without a number of sites."""
        return numbered_site_names(self.sites or 0)


def numbered_site_names(count: int) -> list[str]:
    """Return the names of `count` numbered sites, zero-padded so that they sort as numbers: ``site-01``, ..."""
    width = max(2, len(str(count)))
    return [f"site-{number:0{width}d}" for number in range(1, count + 1)]
