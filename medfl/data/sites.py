"""Load the sites of a partitioned data set.

The data set has one folder for each site, with a data list and a site card::

    D/site-01/datalist.json     rows of the shared array that belong to this site, with their labels
    D/site-01/site_card.json    counts, class balance, versions and exclusions with reasons, for human readers
    D/global/datalist.json      optional: the server's test set
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medfl.data.arrays import CHUNK_BYTES, FEATURES, ArrayDataset, ArrayMasks, array_digest, channels_of, open_array
from medfl.data.datalists import (
    DATALIST_FILE,
    SPLITS,
    Datalist,
    entry_text,
    parse_datalist,
    patient_numbers,
    read_datalist_bytes,
)
from medfl.data.features.feature_encoding import typed_columns
from medfl.data.features.record_features import check_feature_names, count_image_features, image_features
from medfl.data.readers.image_reading import IMAGE_READING_KEY
from medfl.data.targets import STRUCTURES_KEY, TARGET_NAMES_KEY, read_integers, record_targets
from medfl.errors import DataError, did_you_mean
from medfl.objectives import Objective
from medfl.records.site_card import SiteCard
from medfl.types import GLOBAL, METADATA_KEYS, NON_SITE_NAMES, Dataset, PathLike
from medfl.utils.text import inert_name, name_problem, one_line

PATIENT_COLUMN = "patient"
"""Name of the column of a prediction file that contains patient numbers (`medfl.data.datalists.patient_numbers`).
Images of one patient share a number, which does not reveal who the patient is."""


@dataclass
class SiteData:
    """Data of one site, of the server, or public data.

    Attributes:
        name: Name of the site, which is the name of its folder.
        train: Training data, possibly empty.
        val: Validation data, possibly empty.
        test: Test data, possibly empty.
        digest: SHA-256 over the data list and the arrays. The same digest means the same data.
        classes: Class names, in label order from 0.
        shape: Shape of one case as networks receive it: channels, then height and width, or depth, height and width;
            (F,) for vectors. Channels include `image_features`.
        source: Name of the data set.
        modality: Imaging modality.
        names: Names of the network outputs if cases have no class label: structures, findings or predicted numbers.
            Empty if the data list has no names.
        test_metadata: Maps each key of `medfl.types.METADATA_KEYS` to one entry for each test image, from the data
            list; None where an entry is unknown.
        files: Maps the data list and each array file to its SHA-256.
        features: Names of the features of table columns; empty for images without them and if the data list names none.
        notes: Warnings of the data list, and sentences on the numbers of cases that were left out.
        image_features: Number of features of table columns that are appended to each image as channels.
        image_reading: Rule by which the images were read, as in the data list (`medfl.data.readers.image_reading`);
            empty for the default rule.
    """

    name: str
    train: Dataset
    val: Dataset
    test: Dataset
    digest: str
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    source: str = ""
    modality: str = ""
    names: tuple[str, ...] = ()
    test_metadata: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    image_features: int = 0
    image_reading: Mapping[str, Any] = field(default_factory=dict)


def site_names(dataset_dir: Path) -> list[str]:
    """Return the sorted names of the sites in a partitioned data set.

    A site is a folder with a data list whose name is not in `NON_SITE_NAMES`.

    Raises:
        DataError: If there is no site, a name is invalid (`name_problem`), or a folder that looks like a site lacks its
            list.
    """
    expected = "expected a folder with folders of sites, each with a datalist.json"
    if not dataset_dir.is_dir():
        raise DataError(
            "missing_folder", f"{expected}; there is none at {dataset_dir}. {_advise(dataset_dir)}", path=dataset_dir
        )
    folders = sorted(path for path in dataset_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = [path.name for path in folders if path.name not in NON_SITE_NAMES and (path / DATALIST_FILE).is_file()]
    known = {*names, *NON_SITE_NAMES}
    for path in folders:
        if path.name not in known and ((path / SiteCard.NAME).exists() or path.name.startswith("site-")):
            read_datalist_bytes(path)  # raises with the reason
    if problem := name_problem(names):
        raise DataError("invalid_site_name", f"{problem} It is a folder in {dataset_dir}.", path=dataset_dir)
    if not names:
        raise DataError(
            "missing_site", f"{expected}; none is in {dataset_dir}. {_advise(dataset_dir)}", path=dataset_dir
        )
    return names


def _advise(folder: Path) -> str:
    """Return the advice for an error about a folder that contains no site."""
    advice_by_file = {
        SiteCard.NAME: f"This is one site: give the folder above it, {folder.parent}.",
        DATALIST_FILE: f"This is a pooled data set: run `medfl partition {folder} --out ...` first.",
    }
    general_advice = (
        "Check the path. `medfl prep` writes a pooled data set (`medfl prep folder` from your own images), and "
        "`medfl partition` splits it into sites."
    )
    return next((text for name, text in advice_by_file.items() if (folder / name).is_file()), general_advice)


def load_sites(
    dataset_dir: str | Path,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
    names: Sequence[str] | None = None,
    open_test: bool = True,
) -> dict[str, SiteData]:
    """Load the sites of a partitioned data set.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        objective: Training objective of the task.
        mean: Mean to subtract from images in [0, 1]; one number, or one for each channel.
        std: Standard deviation to divide by after that; one number, or one for each channel, > 0.
        names: Names of the sites to load; None loads all.
        open_test: Whether test images are loaded. The digest does not depend on it.

    Returns:
        Maps each site's name to its data, sorted by name. A site may have no training data.

    Raises:
        DataError: If data are missing or do not fit the task.
    """
    folder = Path(dataset_dir)
    known = site_names(folder)
    if unknown := sorted({*(names or ())} - {*known}):
        advice = did_you_mean(unknown[0], known)
        raise DataError("unknown_site", f"no site '{unknown[0]}' in {folder}. {advice}", path=folder, site=unknown[0])
    wanted = known if names is None else sorted(set(names))
    sites = {name: load_site(folder / name, objective, mean, std, open_test) for name in wanted}
    _check_same_reading(sites)
    return sites


def _check_same_reading(sites: Mapping[str, SiteData]) -> None:
    """Raise if the images of sites were read by different rules, because equal values would mean different tissue."""
    first = next(iter(sites), "")
    for name, site in sites.items():
        if site.image_reading != sites[first].image_reading:
            raise DataError(
                "different_image_readings",
                f"expected images of one scale at all sites, but '{first}' and '{name}' were prepared with different "
                "--window, --scale or series options, or harmonised with different templates. Prepare them with the "
                "same options.",
                sites=[first, name],
                found=[sites[first].image_reading, site.image_reading],
            )


def load_global(
    dataset_dir: str | Path,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> SiteData | None:
    """Load the server's test set; return None if there is none. Arguments and errors as in `load_sites`."""
    folder = Path(dataset_dir) / GLOBAL
    return load_site(folder, objective, mean, std) if folder.is_dir() else None


def load_site(
    folder: PathLike, objective: Objective, mean: Sequence[float], std: Sequence[float], open_test: bool = True
) -> SiteData:
    """Load one site from its folder. Arguments and errors as in `load_sites`."""
    folder = Path(folder)
    content = read_datalist_bytes(folder)
    datalist = parse_datalist(content, folder / DATALIST_FILE)
    return site_data(folder, content, datalist if open_test else datalist.without_test(), objective, mean, std)


def site_data(
    folder: Path, content: bytes, datalist: Datalist, objective: Objective, mean: Sequence[float], std: Sequence[float]
) -> SiteData:
    """Load the data that a data list names.

    Args:
        folder: Folder of the list.
        content: Bytes of the list, for the digest.
        datalist: Parsed list; may differ from `content`, for example without test records.
        objective: As in `load_sites`.
        mean: As in `load_sites`.
        std: As in `load_sites`.

    Raises:
        DataError: As in `load_sites`.
    """
    where = f"site '{folder.name}'"
    arrays = [folder / name for name in (datalist.image_array, datalist.mask_array) if name]
    try:
        check_objective(datalist, objective)
        columns = typed_columns(datalist.extra)
        images = open_array(arrays[0])
        check_feature_names(columns, datalist.extra.get(FEATURES, []), images.shape)
        shape, count = image_shape(images.shape), count_image_features(columns, images.shape)
        shape = (shape[0] + count, *shape[1:])
        masks = None if not datalist.mask_array else open_array(arrays[1])
        datasets = {}
        for split in datalist.splits:
            place = f"{where}, split '{split}'"
            rows, targets = rows_and_targets(datalist, split, where, objective, shape, masks)
            patients = patient_numbers(datalist.splits[split])
            features = image_features(columns, images.shape, datalist.splits[split], place)
            datasets[split] = _make_dataset(
                images, rows, targets, objective, mean, std, patients, place, columns is not None, features
            )
        digests = [array_digest(path) for path in arrays]
        files = {folder / DATALIST_FILE: hashlib.sha256(content).hexdigest(), **dict(zip(arrays, digests, strict=True))}
        digest = _join_digests(content, digests)
    except DataError as error:
        text = str(error) if where in str(error) else f"{where}: {error}"
        raise DataError(error.code, text, **{"where": where} | error.fields) from None
    metadata = {name: tuple(entry_text(record, name) for record in datalist.splits["test"]) for name in METADATA_KEYS}
    return SiteData(
        name=folder.name,
        train=datasets["training"],
        val=datasets["validation"],
        test=datasets["test"],
        digest=digest,
        classes=tuple(datalist.labels.get(title, title) for title in objective.titles),
        shape=shape,
        source=datalist.name,
        modality=datalist.modality,
        names=output_names(datalist, objective),
        test_metadata=metadata,
        files=files,
        notes=tuple(map(one_line, (*datalist.warnings, *map(str, datalist.exclusions)))),
        features=tuple(_feature_names(datalist)),
        image_features=count,
        image_reading=datalist.extra.get(IMAGE_READING_KEY) or {},
    )


def data_digest(folder: Path, content: bytes, datalist: Datalist) -> str:
    """Return the digest of a site's data (`SiteData.digest`).

    Args:
        folder: Folder of the site.
        content: Bytes of the data list.
        datalist: The data list, which names the arrays.

    Raises:
        DataError: If an array is missing.
    """
    names = filter(None, (datalist.image_array, datalist.mask_array))
    return _join_digests(content, [array_digest(folder / name) for name in names])


def _join_digests(content: bytes, digests: Sequence[str]) -> str:
    return hashlib.sha256(b"".join([content, *map(bytes.fromhex, digests)])).hexdigest()


def image_shape(array: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one case as networks receive it, (channels, *spatial) or (F,).

    Args:
        array: Shape of the whole array; see `medfl.data.arrays.channels_of`.
    """
    if len(array) == 2:
        return (array[1],)
    channels = channels_of(array)
    spatial = tuple(array[1:]) if channels is None else tuple(array[1:-1])
    return (channels or 1, *spatial)


def dataset_value(dataset_dir: str | Path, name: str, otherwise: Any) -> Any:
    """Return a property of a partitioned data set, so that a bundle's configuration can follow the data.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site. The first site is read.
        name: ``num_classes``, ``in_channels`` (number of features for vectors), ``size`` (spatial edges),
            ``spatial_dims``, ``image_features`` (number of table features of each image), ``objective`` (as JSON), a
            field of the objective such as ``channels`` or ``spacing`` of a segmentation, or another entry of the data
            list such as ``window`` or `FEATURES`.
        otherwise: Value to return if the data can't be read or lack the property. If the data can't be read, the run
            itself reports the reason later.
    """
    try:
        folder = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        datalist = parse_datalist(read_datalist_bytes(folder), folder / DATALIST_FILE)
        array_shape = open_array(folder / datalist.image_array).shape
        channels, *size = image_shape(array_shape)
        count = count_image_features(typed_columns(datalist.extra), array_shape)
    except DataError:
        return otherwise
    facts = {"num_classes": datalist.num_classes, "in_channels": channels, "size": size, "spatial_dims": len(size)}
    facts |= {"objective": datalist.goal.facts, "image_features": count}
    if FEATURES in datalist.extra:
        facts[FEATURES] = _feature_names(datalist)
    return {FEATURES: [], **datalist.extra, **datalist.goal.facts, **facts}.get(name, otherwise)


def load_split(
    dataset_dir: str | Path,
    site: str,
    split: str,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> ArrayDataset:
    """Load one split of one site, as a bundle's configuration names it.

    Args:
        dataset_dir: Partitioned data set: contains one folder for each site.
        site: Name of the site.
        split: ``training``, ``validation`` or ``test``.
        objective: Training objective of the task.
        mean: As in `load_sites`.
        std: As in `load_sites`.

    Raises:
        DataError: If the split is unknown, or as in `load_sites`.
    """
    if split not in SPLITS:
        raise DataError(
            "unknown_choice", f"unknown split '{split}'. {did_you_mean(split, SPLITS)}", what="split", choice=split
        )
    data = load_sites(dataset_dir, objective, mean, std, [site])[site]
    chosen = dict(zip(SPLITS, (data.train, data.val, data.test), strict=True))[split]
    assert isinstance(chosen, ArrayDataset)
    return chosen


def _make_dataset(
    images: np.ndarray,
    rows: np.ndarray,
    targets: torch.Tensor | ArrayMasks,
    objective: Objective,
    mean: Sequence[float],
    std: Sequence[float],
    patients: Sequence[int] | None,
    place: str,
    has_missing: bool,
    features: np.ndarray | None,
) -> ArrayDataset:
    try:
        return ArrayDataset(images, targets, rows, mean, std, patients, objective.target_type, has_missing, features)
    except DataError as error:
        raise DataError(error.code, f"{place}: {error}", **error.fields | {"where": place}) from None


def _feature_names(datalist: Datalist) -> list[str]:
    """Return the names of the features of table rows, safe to write into a bundle; empty if the list has none."""
    return [inert_name(str(name), str(number)) for number, name in enumerate(datalist.extra.get(FEATURES, ()))]


def rows_and_targets(
    datalist: Datalist,
    split: str,
    where: str,
    objective: Objective,
    shape: Sequence[int],
    masks: np.ndarray | None = None,
) -> tuple[np.ndarray, torch.Tensor | ArrayMasks]:
    """Return the array rows and the targets of a split, after checking them.

    Args:
        datalist: Data list of the site.
        split: Name of the split.
        where: Owner of the list, for messages.
        objective: Training objective of the task.
        shape: Shape of one case as networks receive it.
        masks: Mask array, (N, ...), whose rows have as many elements as a target; None without masks.

    Returns:
        Rows (n,), int64, and targets (n, *target shape). Masks are returned as `ArrayMasks`, uint8.

    Raises:
        DataError: If a record is wrong, or masks are missing or have another size or type.
    """
    if objective.has_class_labels:
        rows, labels = datalist.rows_and_labels(split, where, objective.classes)
        return rows, torch.from_numpy(labels)
    place, records = f"{where}, split '{split}'", datalist.splits.get(split, [])
    rows = read_integers(records, "image", place)
    if objective.target_columns:
        return rows, record_targets(records, objective, place)
    if masks is None:
        raise DataError(
            "missing_mask_array",
            f"{where}: expected 'mask_array' in the list for the objective '{objective.name}'. Add it.",
            where=where,
            objective=objective.name,
        )
    target = objective.target_shape(shape)
    fits = masks.dtype == np.uint8 and int(np.prod(masks.shape[1:])) == int(np.prod(target))
    if not fits or bool(((rows < 0) | (rows >= len(masks))).any()):
        raise DataError(
            "wrong_mask_array",
            f"expected masks of type uint8 and shape {list(target)} for each image at {place}, got an array "
            f"{list(masks.shape)} of {masks.dtype}. Write the masks again, a row for each image.",
            where=place,
            expected=list(target),
            found=list(masks.shape),
            type=str(masks.dtype),
        )
    chosen = ArrayMasks(masks, rows, target)
    step = max(1, CHUNK_BYTES // max(1, masks[:1].nbytes))
    for some in torch.arange(len(rows)).split(step) if len(rows) else ():
        objective.check_targets(chosen.gather(some), place, int(some[0]))
    return rows, chosen


def check_objective(datalist: Datalist, objective: Objective) -> None:
    """Raise if a data list does not fit the task's objective. A list of two classes also fits the objective ``binary``.

    Raises:
        DataError: If the objectives differ, masks differ in structures or spacing, or the number of output names is
            wrong.
    """
    goal = datalist.goal
    if goal.has_spatial_targets and goal.name == objective.name:
        facts, needed = goal.facts, objective.facts
        for key in ("channels", "overlapping", "spacing"):
            if facts[key] != needed[key]:
                raise DataError(
                    "wrong_mask_layout",
                    f"expected masks with {key} {needed[key]}, as the task has it, got a list with {facts[key]}. "
                    "Prepare the data of all sites alike (medfl prep decathlon has --spacing), or choose another task.",
                    key=key,
                    expected=needed[key],
                    found=facts[key],
                )
    if goal.name != objective.name and not (goal.has_class_labels and objective.has_class_labels):
        raise DataError(
            "different_objective",
            f"the list is for the objective '{goal.name}', and the task for '{objective.name}'. Choose another task, "
            "or correct the entry 'objective' of the list.",
            expected=objective.name,
            found=goal.name,
        )
    if not goal.has_class_labels:
        key = _output_names_key(objective)
        names = datalist.extra.get(key, [""] * objective.outputs)
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not texts or len(names) != objective.outputs:
            raise DataError(
                "wrong_output_names",
                f"expected {objective.outputs} names in '{key}' of the list, a text for each output of the objective "
                f"'{objective.name}', got {len(names) if texts else 'something else'}. Correct the list.",
                key=key,
                objective=objective.name,
                expected=objective.outputs,
                found=len(names) if texts else None,
            )


def output_names(datalist: Datalist, objective: Objective) -> tuple[str, ...]:
    """Return the name of each network output: a structure, a finding or a predicted number.

    Returns:
        Names that are safe to print; an unsafe name is replaced by the output's number. Empty if the list has no names,
        or if cases have class labels, whose names are in `Datalist.labels`.
    """
    names = () if objective.has_class_labels else datalist.extra.get(_output_names_key(objective), ())
    return tuple(inert_name(name, str(number)) for number, name in enumerate(names))


def _output_names_key(objective: Objective) -> str:
    """Return the data list key of the output names for an objective."""
    return STRUCTURES_KEY if objective.has_spatial_targets else TARGET_NAMES_KEY
