"""The sites of a partitioned data set: one folder each, with a data list and a card.

::

    D/site-01/datalist.json     which rows of the shared array are this site's, and their labels
    D/site-01/site_card.json    counts, class balance, versions, exclusions with reasons: for people
    D/global/datalist.json      optional: a test set that the server holds
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
from medfl.data.datalists import FILE, SPLITS, Datalist, entry_text, parse_datalist, patient_numbers, read_bytes
from medfl.data.targets import STRUCTURES, TARGET_NAMES, integers, record_targets
from medfl.errors import DataError, did_you_mean
from medfl.objectives import Objective
from medfl.records.site_card import SiteCard
from medfl.types import FACTS, GLOBAL, NO_SITES, Dataset, PathLike
from medfl.utils.text import inert_name, name_problem

PATIENT = "patient"
"""Beside `FACTS` in a file of predictions: a number that images of one patient share (`patient_numbers`)."""


@dataclass
class SiteData:
    """The data of one site, or of the server.

    Attributes:
        name: Of the site.
        train: Training data, possibly empty.
        val: Validation data, possibly empty.
        test: Test data, possibly empty.
        digest: SHA-256 over the data list and the image array: the same digest means the same data.
        classes: Names of the classes, from 0.
        shape: Of an image as networks get it: channels, then height and width, or depth, height and width.
        source: Name of the data set.
        modality: How the images were taken.
        names: What each output of a network is for where cases are of no class: a structure, a finding, a number that
            is predicted; empty where nobody named them.
        test_facts: Each of `FACTS` to what the data list says of each test image; None where it is not known.
        files: The data list and the image array to the SHA-256 of each.
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
    test_facts: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)


def site_names(dataset_dir: Path) -> list[str]:
    """The sites of a partitioned data set: its folders that hold a data list, sorted; not those of `NO_SITES`.

    Raises:
        DataError: If there is no site, a name will not do (`name_problem`), or a site's folder lacks its list.
    """
    lacking = "expected a folder with folders of sites, each with a datalist.json"
    if not dataset_dir.is_dir():
        raise DataError(
            "missing_folder", f"{lacking}; there is none at {dataset_dir}. {_mend(dataset_dir)}", path=dataset_dir
        )
    folders = sorted(path for path in dataset_dir.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = [path.name for path in folders if path.name not in NO_SITES and (path / FILE).is_file()]
    for path in folders:
        if path.name not in (*names, *NO_SITES) and ((path / SiteCard.NAME).exists() or path.name.startswith("site-")):
            read_bytes(path)  # says what is missing
    if problem := name_problem(names):
        raise DataError("invalid_site_name", f"{problem} It is a folder in {dataset_dir}.", path=dataset_dir)
    if not names:
        raise DataError("missing_site", f"{lacking}; none is in {dataset_dir}. {_mend(dataset_dir)}", path=dataset_dir)
    return names


def _mend(folder: Path) -> str:
    """What to do with a folder that holds no site."""
    known = {
        SiteCard.NAME: f"This is one site: give the folder above it, {folder.parent}.",
        FILE: f"This is a pooled data set: run `medfl partition {folder} --out ...` first.",
    }
    otherwise = (
        "Check the path. `medfl prep` makes lists (your own images: `medfl prep folder`), `medfl partition` sites."
    )
    return next((text for name, text in known.items() if (folder / name).is_file()), otherwise)


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
        dataset_dir: The folder that holds one folder for each site.
        objective: What is learned.
        mean: Subtracted from images in [0, 1]; one number, or one for each channel.
        std: Divides then; one number, or one for each channel, > 0.
        names: Only these sites; None means all.
        open_test: Whether test images are loaded; without them the digest is the same.

    Returns:
        Name to data, sorted by name. A site may have no training data.

    Raises:
        DataError: If anything is missing or contradicts the task.
    """
    folder = Path(dataset_dir)
    known = site_names(folder)
    for name in names or ():
        if name not in known:
            raise DataError(
                "unknown_site", f"no site '{name}' in {folder}. {did_you_mean(name, known)}", path=folder, site=name
            )
    wanted = known if names is None else sorted(set(names))
    return {name: load_site(folder / name, objective, mean, std, open_test) for name in wanted}


def load_global(
    dataset_dir: str | Path,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> SiteData | None:
    """Load the test set that the server holds, or None if there is none. Arguments and errors as in `load_sites`."""
    folder = Path(dataset_dir) / GLOBAL
    return load_site(folder, objective, mean, std) if folder.is_dir() else None


def load_site(
    folder: PathLike, objective: Objective, mean: Sequence[float], std: Sequence[float], open_test: bool = True
) -> SiteData:
    """Load one site from its folder. Arguments and errors as in `load_sites`."""
    folder = Path(folder)
    content = read_bytes(folder)
    datalist = parse_datalist(content, folder / FILE)
    return site_data(folder, content, datalist if open_test else datalist.without_test(), objective, mean, std)


def site_data(
    folder: Path, content: bytes, datalist: Datalist, objective: Objective, mean: Sequence[float], std: Sequence[float]
) -> SiteData:
    """Load what a data list names.

    Args:
        folder: Of the list.
        content: Its bytes.
        datalist: What they say.
        objective: As in `load_sites`.
        mean: As in `load_sites`.
        std: As in `load_sites`.

    Raises:
        DataError: As in `load_sites`.
    """
    where = f"site '{folder.name}'"
    array = folder / datalist.image_array
    try:
        check_goal(datalist, objective)
        images = open_array(array)
        shape = image_shape(images.shape)
        masks = None if not datalist.mask_array else open_array(folder / datalist.mask_array)
        parts = {}
        for split in datalist.splits:
            place = f"{where}, split '{split}'"
            rows, targets = rows_and_targets(datalist, split, where, objective, shape, masks)
            who = patient_numbers(datalist.splits[split])
            parts[split] = _dataset(images, rows, targets, objective, mean, std, who, place)
        files = {folder / FILE: hashlib.sha256(content).hexdigest(), array: array_digest(array)}
        if masks is not None:
            files[folder / datalist.mask_array] = array_digest(folder / datalist.mask_array)
        digests = [bytes.fromhex(files[path]) for path in files if path != folder / FILE]
        digest = hashlib.sha256(b"".join([content, *digests])).hexdigest()
    except DataError as error:
        text = str(error) if where in str(error) else f"{where}: {error}"
        raise DataError(error.code, text, **{"where": where} | error.fields) from None
    classes = tuple(datalist.labels.get(title, title) for title in objective.titles)
    splits = (parts["training"], parts["validation"], parts["test"])
    facts = {name: tuple(entry_text(record, name) for record in datalist.splits["test"]) for name in FACTS}
    named = output_names(datalist, objective)
    return SiteData(folder.name, *splits, digest, classes, shape, datalist.name, datalist.modality, named, facts, files)


def image_shape(array: Sequence[int]) -> tuple[int, ...]:
    """The shape of a case as networks get it, (channels, *spatial) or (F,), from its array's; see `channels_of`."""
    if len(array) == 2:
        return (array[1],)
    channels = channels_of(array)
    spatial = tuple(array[1:]) if channels is None else tuple(array[1:-1])
    return (channels or 1, *spatial)


def fact(dataset_dir: str | Path, name: str, otherwise: Any) -> Any:
    """A fact of a partitioned data set that a bundle's configuration follows, so that nobody needs to type it.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        name: ``num_classes``, ``in_channels`` (of vectors their numbers), ``size`` (spatial edges), ``spatial_dims``,
            ``objective`` (as JSON), a field of the objective, such as ``channels`` and ``spacing`` of a segmentation,
            or another entry of the list, such as ``window`` and `FEATURES`.
        otherwise: What the configuration has as long as the data can't be read; the run then refuses them, with the
            reason.
    """
    try:
        folder = Path(dataset_dir) / site_names(Path(dataset_dir))[0]
        datalist = parse_datalist(read_bytes(folder), folder / FILE)
        channels, *size = image_shape(open_array(folder / datalist.image_array).shape)
    except DataError:
        return otherwise
    facts = {"num_classes": datalist.num_classes, "in_channels": channels, "size": size, "spatial_dims": len(size)}
    facts["objective"] = datalist.goal.facts
    return {FEATURES: [], **datalist.extra, **datalist.goal.facts, **facts}.get(name, otherwise)


def load_split(
    dataset_dir: str | Path,
    site: str,
    split: str,
    objective: Objective,
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> ArrayDataset:
    """One split of one site, as a bundle's configuration names it.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        site: Name of the site.
        split: ``training``, ``validation`` or ``test``.
        objective: What is learned.
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


def _dataset(
    images: np.ndarray,
    rows: np.ndarray,
    targets: torch.Tensor | ArrayMasks,
    objective: Objective,
    mean: Sequence[float],
    std: Sequence[float],
    patients: Sequence[int] | None,
    place: str,
) -> ArrayDataset:
    try:
        return ArrayDataset(images, targets, rows, mean, std, patients, objective.target_type)
    except DataError as error:
        raise DataError(error.code, f"{place}: {error}", **error.fields | {"where": place}) from None


def rows_and_targets(
    datalist: Datalist,
    split: str,
    where: str,
    objective: Objective,
    shape: Sequence[int],
    masks: np.ndarray | None = None,
) -> tuple[np.ndarray, torch.Tensor | ArrayMasks]:
    """Rows and targets of a split.

    Args:
        datalist: The list.
        split: Of it.
        where: What the list belongs to, for messages.
        objective: Of the task.
        shape: Of a case as networks get it.
        masks: The array of masks, (N, ...), with as many numbers in a row as a target has; None without any.

    Returns:
        (n,), int64, and (n, *target shape); of masks, uint8, where they are.

    Raises:
        DataError: If a record is wrong, or masks are missing or of another size.
    """
    if objective.has_class_labels:
        rows, labels = datalist.rows_and_labels(split, where, objective.classes)
        return rows, torch.from_numpy(labels)
    place, records = f"{where}, split '{split}'", datalist.splits.get(split, [])
    rows = integers(records, "image", place)
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


def check_goal(datalist: Datalist, objective: Objective) -> None:
    """Refuse a list that is for another objective than the task's; a list of two classes is for 'binary' as well.

    Raises:
        DataError: If it is, or masks have other numbers of structures or another spacing, or what outputs are for has
            not a name each.
    """
    goal = datalist.goal
    if goal.in_space and goal.name == objective.name:
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
        key = _names_key(objective)
        names = datalist.extra.get(key, [""] * objective.outputs)
        texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not texts or len(names) != objective.outputs:
            raise DataError(
                "wrong_output_names",
                f"expected {objective.outputs} names in '{key}' of the list, a text for each output of the objective "
                f"'{objective.name}', got {len(names) if texts else 'another thing'}. Correct the list.",
                key=key,
                objective=objective.name,
                expected=objective.outputs,
                found=len(names) if texts else None,
            )


def output_names(datalist: Datalist, objective: Objective) -> tuple[str, ...]:
    """What each output of a network is for, by its number: a structure, a finding, a number that is predicted.

    Returns:
        Names that can be shown; one that can't be is its number. Empty where the list names none, and where cases are
        of classes, which have their own (`Datalist.labels`).
    """
    names = () if objective.has_class_labels else datalist.extra.get(_names_key(objective), ())
    return tuple(inert_name(name, str(number)) for number, name in enumerate(names))


def _names_key(objective: Objective) -> str:
    return STRUCTURES if objective.in_space else TARGET_NAMES
