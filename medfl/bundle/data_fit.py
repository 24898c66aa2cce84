"""Check before a run that the data are of the kind that the bundle learns from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from medfl.data.arrays import open_array
from medfl.data.datalists import DATALIST_FILE, Datalist, parse_datalist, read_datalist_bytes
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.features.record_features import count_image_features
from medfl.data.readers.image_reading import IMAGE_READING_KEY, parse_image_reading
from medfl.data.sites import SiteData, site_names
from medfl.engine.runs.provenance import bundle_values
from medfl.errors import DataError
from medfl.types import Meta

TARGETS_BY_OBJECTIVE = {"Multiclass": "classes", "Binary": "classes", "Segmentation": "masks"}
"""Maps the class name of the objective in a bundle's ``train.json`` to the kind of targets that the bundle learns.
Other objectives accept any kind."""

IMAGES, IMAGES_AND_TABLE, ROWS = "images", "images with table features", "rows of a table"
"""Kinds of inputs."""


class DataKind(NamedTuple):
    """Kind of the data that a bundle takes, or that a data list describes.

    Attributes:
        inputs: ``images``, ``images with table features`` or ``rows of a table``; "" if unknown.
        targets: ``classes``, ``masks`` or the name of an objective; "" if unknown.
    """

    inputs: str
    targets: str

    def fits(self, wanted: DataKind) -> bool:
        """Return whether data of this kind fit a bundle of the kind `wanted`. An unknown entry of it fits any data.

        A bundle for images with table features also takes images alone.
        """
        fits_inputs = wanted.inputs in ("", self.inputs) or (self.inputs, wanted.inputs) == (IMAGES, IMAGES_AND_TABLE)
        return fits_inputs and wanted.targets in ("", self.targets)

    def __str__(self) -> str:
        return f"{self.inputs or 'cases'} with {self.targets}" if self.targets else self.inputs


def check_fit(bundle: Path, dataset_dir: Path, shipped: dict[str, Path]) -> None:
    """Raise if data and bundle differ in the kind of inputs, such as images and table rows, or of targets.

    The function does not compare the number of dimensions, because networks adapt to the data. It accepts any data for
    a bundle whose configuration does not show the kind, and for an adopted bundle, which reads its own files.

    Args:
        bundle: Folder of the bundle.
        dataset_dir: Folder with one folder for each site.
        shipped: Maps the name of each bundle that comes with medfl to its folder. The message names fitting ones.

    Raises:
        DataError: If no site has a data list, or the data are of another kind.
    """
    if "adopted" in bundle_values(bundle):  # a stock bundle, which reads its own files
        return
    folder = dataset_dir / site_names(dataset_dir)[0]
    datalist = parse_datalist(read_datalist_bytes(folder), folder / DATALIST_FILE)
    try:
        shape = open_array(folder / datalist.image_array).shape
        count = count_image_features(typed_columns(datalist.extra), shape)
    except DataError:
        return  # the run reports the problem
    inputs = ROWS if len(shape) == 2 else IMAGES_AND_TABLE if count else IMAGES
    kind = DataKind(inputs, _target_kind(datalist))
    wanted = bundle_kind(bundle)
    if not kind.fits(wanted):
        fitting = [name for name, root in shipped.items() if kind.fits(bundle_kind(root))]
        raise DataError(
            "data_not_supported",
            f"Expected {wanted} for the bundle '{bundle.name}', got {kind} in {dataset_dir}. Bundles "
            f"for these: {', '.join(fitting) or 'none that comes with medfl'}.",
            bundle=bundle.name,
            path=dataset_dir,
            expected=str(wanted),
            found=str(kind),
        )


def check_harmonisation(bundle: Path, sites: Iterable[SiteData], exported: Meta) -> None:
    """Raise unless the exported bundle would match a new image to the same template as the images of each site.

    Args:
        bundle: Folder of the bundle.
        sites: Data of the sites.
        exported: Values that the export writes into the bundle's configurations.

    Raises:
        DataError: If a site's template differs from the exported one, or the bundle's inference takes no template.
    """
    wanted = parse_image_reading(exported.get(IMAGE_READING_KEY)).template
    for site in sites:
        template = parse_image_reading(site.image_reading).template
        if template and not _takes_image_reading(bundle, exported):
            raise DataError(
                "harmonisation_not_supported",
                f"the images of '{site.name}' are matched to a template, and the data in inference.json of the bundle "
                f"'{bundle.name}' have no '{IMAGE_READING_KEY}' to match a new image. Train on the data before their "
                "harmonisation, or choose another bundle.",
                site=site.name,
                bundle=bundle.name,
            )
        if template != wanted:
            raise DataError(
                "different_templates",
                f"expected images that are matched to {'the template of the run' if wanted else 'no template'}, those "
                f"of '{site.name}' are matched to {'another one' if template else 'none'}. Harmonise the data of all "
                "sites with the same --template.",
                site=site.name,
                expected=wanted,
                found=template,
            )


def _takes_image_reading(bundle: Path, exported: Meta) -> bool:
    """Return whether the bundle's inference passes the rule for reading images to its data, and the export sets it."""
    try:
        inference = json.loads((bundle / "configs" / "inference.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    dataset = inference.get("dataset") if isinstance(inference, dict) else None
    return isinstance(dataset, dict) and IMAGE_READING_KEY in dataset and IMAGE_READING_KEY in exported


def bundle_kind(bundle: Path) -> DataKind:
    """Return the kind of data that a bundle takes, as far as its configuration shows it."""
    try:
        metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
        train = json.loads((bundle / "configs" / "train.json").read_text(encoding="utf-8"))
        sort = metadata["network_data_format"]["inputs"]["image"]["type"]
        target = str(train["objective"]["_target_"])
    except (OSError, ValueError, KeyError, TypeError):
        return DataKind("", "")
    images = IMAGES_AND_TABLE if "image_features" in train else IMAGES
    inputs = {"image": images, "vector": ROWS}.get(sort, "")
    return DataKind(inputs, TARGETS_BY_OBJECTIVE.get(target.rpartition(".")[2], ""))


def _target_kind(datalist: Datalist) -> str:
    """Return the kind of target of a data list."""
    goal = datalist.goal
    return "classes" if goal.has_class_labels else "masks" if goal.has_spatial_targets else goal.name
