"""Load all data of a run: the sites, the server's test set and public data."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from medfl.data.datalists import DATALIST_FILE, parse_datalist, read_datalist_bytes
from medfl.data.label_map import LabelMap, choose_label_map, class_names, relabel_datalist
from medfl.data.sites import SiteData, load_global, load_sites, site_data, site_names
from medfl.errors import DataError, SettingsError
from medfl.objectives import Objective
from medfl.utils.text import first_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cohort:
    """All data sets of a run.

    Attributes:
        sites: Maps each site's name to its data.
        server: The server's test set, or None.
        public: Public data, or None.
        label_map: Maps each class name of the public data to a class name of the sites, or to None if its images are
            left out. Empty without public data.
    """

    sites: dict[str, SiteData]
    server: SiteData | None = None
    public: SiteData | None = None
    label_map: LabelMap = field(default_factory=dict)

    @property
    def parts(self) -> list[SiteData]:
        """All data sets: the sites, then the server's test set and the public data if there are any."""
        return [*self.sites.values(), *filter(None, (self.server, self.public))]

    @property
    def first(self) -> SiteData:
        """The first site's data, for properties that all sites share."""
        return next(iter(self.sites.values()))

    def digests(self) -> dict[str, str]:
        """Return a mapping from the name of each data set to the SHA-256 digest of its content."""
        return {part.name: part.digest for part in self.parts}

    def digest(self) -> str:
        """Return one SHA-256 digest over the content of all data sets."""
        return hashlib.sha256(repr(sorted(self.digests().items())).encode()).hexdigest()


def load_cohort(
    folder: Path,
    objective: Objective,
    mean: Sequence[float],
    std: Sequence[float],
    sites: Sequence[str] | None = None,
    public: str | None = None,
    label_map: LabelMap | None = None,
    open_test: bool = True,
) -> Cohort:
    """Load the data of a run and check that all data sets fit together.

    Args:
        folder: Partitioned data set: contains one folder for each site.
        objective: Training objective of the task.
        mean: Normalisation mean, as in `medfl.data.sites.load_sites`.
        std: Normalisation standard deviation, as in `medfl.data.sites.load_sites`.
        sites: Names of the sites to load; None loads all.
        public: Folder of the public data, relative to `folder`; None if there are no public data.
        label_map: Maps each class name of the public data to a class name of the sites or to None. Without it, classes
            with equal names are matched.
        open_test: Whether test images are loaded. If False, the server's test set is not loaded either.

    Raises:
        DataError: If data are missing or damaged, do not fit the task, or differ in classes, output names or image
            shape.
        SettingsError: If `label_map` names unknown classes, is incomplete, or is given without public data.
    """
    names = list(sites) if sites is not None else [name for name in site_names(folder) if name != public]
    at_sites = load_sites(folder, objective, mean, std, names, open_test)
    cohort = Cohort(at_sites, load_global(folder, objective, mean, std) if open_test else None)
    classes = cohort.first.classes
    for part in cohort.parts:
        if part.classes != classes:
            raise DataError(
                "different_classes",
                f"expected the same classes in all lists of {folder}, got {list(classes)} at '{cohort.first.name}' and "
                f"{list(part.classes)} at '{part.name}'. Write the same 'labels' into both.",
                path=folder,
                site=part.name,
                expected=list(classes),
                found=list(part.classes),
            )
        if part.names != cohort.first.names:
            raise DataError(
                "different_output_names",
                f"expected the same structures, findings or numbers in all lists of {folder}, got "
                f"{list(cohort.first.names)} at '{cohort.first.name}' and {list(part.names)} at '{part.name}'. Write "
                "the same names into both.",
                path=folder,
                site=part.name,
                expected=list(cohort.first.names),
                found=list(part.names),
            )
    for part in cohort.parts:
        if part.features != cohort.first.features:
            unlike = sorted({*part.features} ^ {*cohort.first.features}) or list(part.features)
            raise DataError(
                "different_features",
                f"expected the same features in all lists of {folder}, those of '{part.name}' differ from those of "
                f"'{cohort.first.name}' in {first_names(unlike)}. Prepare all tables with the same columns.json "
                "(medfl prep table --columns).",
                path=folder,
                site=part.name,
                features=unlike,
            )
    if public is not None:
        public_data, chosen = load_public(folder / public, objective, classes, mean, std, label_map, open_test)
        cohort = replace(cohort, public=public_data, label_map=chosen)
    elif label_map is not None:
        raise SettingsError(
            "incompatible_settings",
            "'label_map' needs public data, and this run has none. Give the folder of the public data with --public.",
            settings=["label_map", "public"],
        )
    shapes = {part.shape for part in cohort.parts}
    if len(shapes) > 1:
        raise DataError(
            "different_shapes",
            f"expected images of one shape (channels, height, width) at all sites of {folder}, got "
            f"{sorted(shapes)}. Prepare them again with one --size.",
            path=folder,
            shapes=sorted(shapes),
        )
    return cohort


def load_public(
    folder: Path,
    objective: Objective,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    label_map: LabelMap | None = None,
    open_test: bool = True,
) -> tuple[SiteData, LabelMap]:
    """Load public data and map their labels to the classes of the sites.

    Args:
        folder: Folder of the public data.
        objective: Training objective of the task.
        classes: Class names of the sites, in label order from 0.
        mean: Normalisation mean, as in `medfl.data.sites.load_sites`.
        std: Normalisation standard deviation, as in `medfl.data.sites.load_sites`.
        label_map: Maps each class name of the public data to a class name of the sites or to None. Without it, classes
            with equal names are matched.
        open_test: Whether the public test images are loaded.

    Returns:
        The public data and the label map that was used. In the map, None marks a class whose images are left out.

    Raises:
        DataError: If the data are missing or damaged, or no label map is given and the class names do not match.
        SettingsError: If `label_map` names unknown classes or is incomplete.
    """
    content = read_datalist_bytes(folder)
    datalist = parse_datalist(content, folder / DATALIST_FILE)
    chosen = choose_label_map(datalist, classes, label_map, str(folder))
    mapped = relabel_datalist(datalist, classes, chosen, f"site '{folder.name}'")
    data = site_data(folder, content, mapped if open_test else mapped.without_test(), objective, mean, std)
    public_classes = class_names(datalist)
    if public_classes != list(classes) or any(name != target for name, target in chosen.items()):
        descriptions = [
            f"'{name}' is {'left out' if (to := chosen[name]) is None else repr(to)}" for name in public_classes
        ]
        logger.info("Classes of the public data: %s.", ", ".join(descriptions))
        data = replace(
            data, digest=hashlib.sha256(f"{data.digest}{json.dumps(chosen, sort_keys=True)}".encode()).hexdigest()
        )
    return data, chosen
