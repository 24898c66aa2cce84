"""The data of a run: the sites, the server's test set and public data, loaded and compared with each other."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from medfl.data.datalists import FILE, parse_datalist, read_bytes
from medfl.data.label_map import LabelMap, choose_map, class_names, relabelled
from medfl.data.sites import SiteData, load_global, load_sites, site_data, site_names
from medfl.errors import DataError, SettingsError
from medfl.objectives import Objective

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cohort:
    """The data of a run.

    Attributes:
        sites: Name to data.
        server: The server's test set, or None.
        public: Public data, or None.
        label_map: Name of a class of the public data to the sites' class; empty without public data.
    """

    sites: dict[str, SiteData]
    server: SiteData | None = None
    public: SiteData | None = None
    label_map: LabelMap = field(default_factory=dict)

    @property
    def parts(self) -> list[SiteData]:
        """All of them."""
        return [*self.sites.values(), *filter(None, (self.server, self.public))]

    @property
    def first(self) -> SiteData:
        """One of them, for what all have in common."""
        return next(iter(self.sites.values()))

    def digests(self) -> dict[str, str]:
        """Name to hash."""
        return {part.name: part.digest for part in self.parts}

    def digest(self) -> str:
        """One hash for all."""
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
    """Load the data of a run.

    Args:
        folder: Holds one folder for each site.
        objective: What is learned.
        mean: As in `medfl.data.sites.load_sites`.
        std: As in `medfl.data.sites.load_sites`.
        sites: Names of the sites; None means all.
        public: Folder of the public data, relative to `folder`; None for none.
        label_map: Which of their classes is which of the sites'; None goes by names.
        open_test: Whether test images are loaded. Without them, the server's test set is not looked for.

    Raises:
        DataError: If data are missing, damaged, or contradict the task or each other.
        SettingsError: If `label_map` is not possible.
    """
    names = list(sites) if sites is not None else [name for name in site_names(folder) if name != public]
    at_sites = load_sites(folder, objective, mean, std, names, open_test)
    data = Cohort(at_sites, load_global(folder, objective, mean, std) if open_test else None)
    classes = data.first.classes
    for part in data.parts:
        if part.classes != classes:
            raise DataError(
                "different_classes",
                f"expected the same classes in all lists of {folder}, got {list(classes)} at '{data.first.name}' and "
                f"{list(part.classes)} at '{part.name}'. Write the same 'labels' into both.",
                path=folder,
                site=part.name,
                expected=list(classes),
                found=list(part.classes),
            )
        if part.names != data.first.names:
            raise DataError(
                "different_output_names",
                f"expected the same structures, findings or numbers in all lists of {folder}, got "
                f"{list(data.first.names)} at '{data.first.name}' and {list(part.names)} at '{part.name}'. Write the "
                "same names into both.",
                path=folder,
                site=part.name,
                expected=list(data.first.names),
                found=list(part.names),
            )
    if public is not None:
        shown, chosen = load_public(folder / public, objective, classes, mean, std, label_map, open_test)
        data = replace(data, public=shown, label_map=chosen)
    elif label_map is not None:
        raise SettingsError(
            "incompatible_settings",
            "'label_map' is for public data, and this run has none. Name their folder with --public.",
            settings=["label_map", "public"],
        )
    shapes = {part.shape for part in data.parts}
    if len(shapes) > 1:
        raise DataError(
            "different_shapes",
            f"expected images of one shape (channels, height, width) at all sites of {folder}, got "
            f"{sorted(shapes)}. Prepare them again with one --size.",
            path=folder,
            shapes=sorted(shapes),
        )
    return data


def load_public(
    folder: Path,
    objective: Objective,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    label_map: LabelMap | None = None,
    open_test: bool = True,
) -> tuple[SiteData, LabelMap]:
    """Load public data with the classes of the sites.

    Args:
        folder: Of the public data.
        objective: What is learned.
        classes: Names of the sites' classes, from 0.
        mean: As in `medfl.data.sites.load_sites`.
        std: As in `medfl.data.sites.load_sites`.
        label_map: Which class of the public data is which of the sites'; None goes by names.
        open_test: Whether their test images are loaded.

    Returns:
        The data, and name of each of their own classes to the sites' class; None where its images are left out.

    Raises:
        DataError: If they are missing or damaged, or their classes' names do not say which is which.
        SettingsError: If `label_map` is not possible.
    """
    content = read_bytes(folder)
    datalist = parse_datalist(content, folder / FILE)
    chosen = choose_map(datalist, classes, label_map, str(folder))
    mapped = relabelled(datalist, classes, chosen, f"site '{folder.name}'")
    data = site_data(folder, content, mapped if open_test else mapped.without_test(), objective, mean, std)
    own = class_names(datalist)
    if own != list(classes) or any(name != target for name, target in chosen.items()):
        parts = [f"'{name}' is {'left out' if (to := chosen[name]) is None else repr(to)}" for name in own]
        logger.info("Classes of the public data: %s.", ", ".join(parts))
        data = replace(
            data, digest=hashlib.sha256(f"{data.digest}{json.dumps(chosen, sort_keys=True)}".encode()).hexdigest()
        )
    return data, chosen
